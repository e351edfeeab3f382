//! What a software GPU can do and how it behaves: its capabilities, its limits, and whether
//! its memory is weak on purpose.

use crate::{Error, GridConfig};

/// What a GPU's streams can do. Switched off one by one, so that every fall-back of the
/// library above can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// 64-bit memory operations.
    pub memops64: bool,
    /// The condition [`Cond::Nor`](crate::Cond::Nor).
    pub nor: bool,
    /// Waits with `flush`, and [`MemOp::FlushRemote`](crate::MemOp::FlushRemote).
    pub flush: bool,
    /// Memory operations of one submission, at most.
    pub batch_limit: usize,
}

impl Default for Caps {
    /// Everything, with the batch limit of CUDA and HIP.
    fn default() -> Caps {
        Caps {
            memops64: true,
            nor: true,
            flush: true,
            batch_limit: 255,
        }
    }
}

/// Memory that is weak on purpose: what is not ordered by a fence or a flush becomes visible
/// late and in any order the rules leave open. The chances are per engine step, drawn from
/// the seed, so a run under a deterministic driver replays exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weak {
    /// Seed of every draw.
    pub seed: u64,
    /// A held-back store of a stream becomes visible with a chance of one in this many, each
    /// step.
    pub store_one_in: u32,
    /// A held-back write of a NIC reaches device memory with a chance of one in this many, each
    /// step.
    pub nic_one_in: u32,
}

impl Weak {
    /// Weak memory with middling delays.
    pub fn seeded(seed: u64) -> Weak {
        Weak {
            seed,
            store_one_in: 4,
            nic_one_in: 8,
        }
    }
}

/// How to make a software GPU.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name in errors and traces.
    pub name: String,
    /// What its streams can do.
    pub caps: Caps,
    /// Bytes of device and pinned memory that can be allocated at a time. By default as many as
    /// the machine has.
    pub memory: usize,
    /// Unfinished submissions a stream holds; an enqueue past it blocks.
    pub stream_bound: usize,
    /// Hardware channels: when this many streams stand at a wait, every other stream of the
    /// GPU stands still too.
    pub channels: usize,
    /// Weak memory, if wanted.
    pub weak: Option<Weak>,
    /// Who sees a write of a NIC's sees those before it, wherever they went: to the device or to
    /// pinned memory. With weak memory, all of them are on one way then.
    pub ordered_writes: bool,
    /// Put device memory under a memory protection key, so that a stray access by host code
    /// faults, where CPU and kernel can.
    pub protect: bool,
    /// How many threads of a kernel run at the same time, on which stacks, in which order. With
    /// weak memory and no seed of its own, a kernel's threads take the seed of `weak`.
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

/// Bytes of memory that the machine has.
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
        Ok(())
    }
}
