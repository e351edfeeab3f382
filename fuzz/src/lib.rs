//! The parsers of bytes from other processes, each as a function of hostile bytes ([`Target`]).
//!
//! The coverage-guided driver (`fuzzer/main.rs`) and the replay of the corpora (`tests/replay.rs`)
//! call the same functions. A target panics when a rule is broken; its own panic-freedom is one
//! rule of several. The sanitizer and the limits in `run` detect other errors.

mod address;
mod frame;
mod greeting;
mod heap;
mod input;
mod lines;
mod mp;
mod nic;

#[path = "../../emulator/vmlx5/tests/hostile/mod.rs"]
mod hostile;
#[path = "../../emulator/vmlx5/tests/rig/mod.rs"]
mod rig;
mod ring;
mod shm;
mod tcp;
mod uverbs;
#[path = "../../emulator/uverbs/tests/rig/mod.rs"]
mod uverbs_rig;

/// One parser of bytes from another process.
#[derive(Debug)]
pub struct Target {
    /// Its name, which is also the name of its corpus.
    pub name: &'static str,
    /// Runs it on the bytes. Panics if a rule is broken.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "address",
        run: address::run,
    },
    Target {
        name: "doorbell",
        run: hostile::doorbell::run,
    },
    Target {
        name: "frame",
        run: frame::run,
    },
    Target {
        name: "greeting",
        run: greeting::run,
    },
    Target {
        name: "mp-context",
        run: mp::context::run,
    },
    Target {
        name: "mp-control",
        run: mp::control::run,
    },
    Target {
        name: "mp-frame",
        run: mp::frame::run,
    },
    Target {
        name: "mp-notes",
        run: mp::notes::run,
    },
    Target {
        name: "mp-session",
        run: mp::session::run,
    },
    Target {
        name: "mp-store",
        run: mp::store::run,
    },
    Target {
        name: "mprun-lines",
        run: lines::run,
    },
    Target {
        name: "nic",
        run: nic::run,
    },
    Target {
        name: "ring-reader",
        run: ring::reader,
    },
    Target {
        name: "ring-writer",
        run: ring::writer,
    },
    Target {
        name: "ring-pair",
        run: ring::pair,
    },
    Target {
        name: "shm",
        run: shm::run,
    },
    Target {
        name: "tcp",
        run: tcp::run,
    },
    Target {
        name: "uverbs",
        run: uverbs::run,
    },
    Target {
        name: "wqe",
        run: hostile::wqe::run,
    },
];

/// The target with this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
