//! The benchmarks of this library's ancestor, under their original names, with the same
//! measurements. benches/README.md lists the differences and their reasons.

pub mod kernel_latency;
pub mod poll_lat;
pub mod sanity;

use std::alloc::{Layout, alloc_zeroed};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, Region};
use serde::Serialize;

/// The memory of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WordMemory {
    /// Device memory.
    Device,
    /// Host memory that the runtime allocates.
    Pinned,
    /// Registered host memory of the program.
    Registered,
}

impl WordMemory {
    fn name(self) -> &'static str {
        match self {
            WordMemory::Device => "device",
            WordMemory::Pinned => "pinned",
            WordMemory::Registered => "registered",
        }
    }

    /// Allocates `len` zeroed bytes of this kind.
    fn region(self, gpu: &Gpu, len: usize) -> Result<Region> {
        match self {
            WordMemory::Device => Ok(gpu.alloc(MemoryKind::Device, len)?),
            WordMemory::Pinned => Ok(gpu.alloc(MemoryKind::Pinned, len)?),
            WordMemory::Registered => {
                let page = rustix::param::page_size();
                let layout = Layout::from_size_align(len.next_multiple_of(page), page)?;
                ensure!(len > 0, "a region of 0 bytes");
                // SAFETY: the size is not zero.
                let memory = unsafe { alloc_zeroed(layout) };
                ensure!(!memory.is_null(), "no memory");
                // SAFETY: `len` zeroed bytes without another user, which stay until the process
                // ends, because it is unknown when the driver stops using them.
                Ok(unsafe { gpu.register_host(memory, len)? })
            }
        }
    }
}

/// Busy-waits on this processor.
fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A time in microseconds, for options.
fn microseconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(us) if us <= 10_000_000 => Ok(Duration::from_micros(us)),
        _ => Err("a number of microseconds, at most ten million, is needed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_every_kind_is_zeroed() {
        let gpu = Gpu::soft().unwrap();
        for memory in [
            WordMemory::Device,
            WordMemory::Pinned,
            WordMemory::Registered,
        ] {
            let region = memory.region(&gpu, 100).unwrap();
            let mut bytes = [1; 100];
            region.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 100], "{memory:?}");
            region.word64(8).unwrap().store(7).unwrap();
            assert_eq!(region.word32(8).unwrap().load().unwrap(), 7);
        }
    }

    #[test]
    fn times_are_parsed() {
        assert_eq!(microseconds("10"), Ok(Duration::from_micros(10)));
        for bad in ["", "-1", "1.5", "10000001"] {
            assert!(microseconds(bad).is_err(), "{bad}");
        }
    }
}
