//! The configuration of a software GPU: its capabilities, its limits, and its memory model.

use crate::{Error, GridConfig};

/// The capabilities of a GPU's streams. Each can be disabled, so that every fall-back of a library
/// above can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// 64-bit memory operations.
    pub memops64: bool,
    /// The condition [`Cond::Nor`](crate::Cond::Nor).
    pub nor: bool,
    /// Waits with `flush`, and [`MemOp::FlushRemote`](crate::MemOp::FlushRemote).
    pub flush: bool,
    /// [`Cond::Geq`](crate::Cond::Geq) compares cyclically (CUDA); otherwise as unsigned numbers
    /// (HIP).
    pub cyclic: bool,
    /// The maximal number of memory operations of one submission.
    pub batch_limit: usize,
}

impl Default for Caps {
    /// All capabilities, with the batch limit of CUDA and HIP.
    fn default() -> Caps {
        Caps {
            memops64: true,
            nor: true,
            flush: true,
            cyclic: true,
            batch_limit: 255,
        }
    }
}

/// A weak memory model for tests: a write that no fence or flush orders becomes visible late, in
/// any order that the rules permit. The probabilities are per engine step, drawn from the seed, so
/// a run under a deterministic driver replays exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weak {
    /// The seed of all draws.
    pub seed: u64,
    /// In each step, a held-back store of a stream becomes visible with a probability of one in
    /// this number.
    pub store_one_in: u32,
    /// In each step, a held-back write of a NIC reaches device memory with a probability of one in
    /// this number.
    pub nic_one_in: u32,
}

impl Weak {
    /// Weak memory with medium delays.
    pub fn seeded(seed: u64) -> Weak {
        Weak {
            seed,
            store_one_in: 4,
            nic_one_in: 8,
        }
    }
}

/// The configuration of a software GPU.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name in errors and traces.
    pub name: String,
    /// The capabilities of its streams.
    pub caps: Caps,
    /// The limit of allocated device and pinned memory in bytes. The default is the memory size of
    /// the machine.
    pub memory: usize,
    /// The maximal number of unfinished submissions of a stream; an enqueue above it blocks.
    pub stream_bound: usize,
    /// The number of hardware channels. When as many streams wait as there are channels, every
    /// other stream of the GPU stops too.
    pub channels: usize,
    /// Weak memory, if it is enabled.
    pub weak: Option<Weak>,
    /// NIC writes are ordered across device memory and pinned memory: an observer of one write
    /// observes all earlier ones. With weak memory, all of them then take the same path.
    pub ordered_writes: bool,
    /// Device memory has a memory protection key, so that a stray access by host code faults, if
    /// CPU and kernel support keys.
    pub protect: bool,
    /// The number of kernel threads that run at the same time, their stacks and their order. With
    /// weak memory and no separate seed, a kernel's threads use the seed of `weak`.
    pub kernels: GridConfig,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            name: "gpu0".to_owned(),
            caps: Caps::default(),
            memory: machine_memory(),
            stream_bound: 1024,
            channels: 8,
            weak: None,
            ordered_writes: false,
            protect: true,
            kernels: GridConfig::default(),
        }
    }
}

/// The memory size of the machine in bytes.
fn machine_memory() -> usize {
    // SAFETY: reads a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    let page = rustix::param::page_size();
    usize::try_from(pages).map_or(usize::MAX, |pages| pages.saturating_mul(page))
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let weak = self.weak.unwrap_or(Weak::seeded(0));
        for (what, value, max) in [
            ("memory", self.memory, usize::MAX),
            ("stream_bound", self.stream_bound, 1 << 20),
            ("channels", self.channels, usize::MAX),
            ("batch_limit", self.caps.batch_limit, 1 << 16),
            (
                "store_one_in",
                weak.store_one_in as usize,
                u32::MAX as usize,
            ),
            ("nic_one_in", weak.nic_one_in as usize, u32::MAX as usize),
        ] {
            if !(1..=max).contains(&value) {
                let min = 1;
                return Err(Error::BadConfig {
                    what,
                    value,
                    min,
                    max,
                });
            }
        }
        match self.kernels.warp {
            32 | 64 => Ok(()),
            value => Err(Error::BadWarp(value)),
        }
    }
}
