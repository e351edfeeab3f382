//! The memory of this process, as the system reports it.

use std::fs;

use anyhow::{Context, Result};

/// Memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Resident memory without pages of files, such as those of programs, which the system maps and drops
    /// as it likes.
    pub resident: u64,
    /// Private and writable memory, whether it was touched or not.
    pub private: u64,
}

/// The memory of this process, including drivers.
pub fn of_process() -> Result<Process> {
    let text = fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    let bytes = |name: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_ascii_whitespace().next());
        let kib: u64 = number
            .with_context(|| format!("/proc/self/status lacks {name}"))?
            .parse()?;
        Ok(kib << 10)
    };
    Ok(Process {
        resident: bytes("RssAnon:")? + bytes("RssShmem:")?,
        private: bytes("VmData:")? + bytes("VmStk:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_memory_counts_at_allocation_and_resident_at_first_access() {
        const MUCH: usize = 256 << 20;
        const MOST: u64 = MUCH as u64 / 4 * 3;
        let before = of_process().unwrap();
        assert!(before.resident > 100_000);
        let mut memory = Vec::<u8>::with_capacity(MUCH);
        let allocated = of_process().unwrap();
        assert!(allocated.private > before.private + MOST);
        assert!(allocated.resident < before.resident + MOST);
        memory.resize(MUCH, 1);
        assert!(of_process().unwrap().resident > before.resident + MOST);
        drop(std::hint::black_box(memory));
    }
}
