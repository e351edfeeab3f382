//! The interface to the user's process: its memory, and pages for doorbells.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use vmlx5::Dma;

/// A doorbell page: the memory file that the process maps, and the NIC's own mapping of it, which
/// stays when the process unmaps the page.
pub struct DoorbellPage {
    /// A memory file of 4096 bytes.
    pub file: OwnedFd,
    /// Its bytes.
    pub memory: Arc<dyn Dma>,
}

/// The process whose commands are executed. Addresses are those of the process, and no method
/// trusts them.
pub trait User: Send + Sync {
    /// The `len` bytes at `addr`, for the NIC: offset 0 is `addr`. `writable`: the NIC also writes
    /// them.
    ///
    /// # Errors
    /// `EFAULT`: some of it is not mapped now. Memory that is unmapped later is a
    /// [`vmlx5::DmaFault`].
    fn memory(&self, addr: u64, len: u64, writable: bool) -> Result<Arc<dyn Dma>, Errno>;

    /// The `len` bytes at `offset` of the memory behind the descriptor `fd` of the process (a
    /// dma-buf, or a file that can be mapped), for the NIC: offset 0 is `offset`. The NIC keeps the
    /// memory when the descriptor is closed.
    ///
    /// # Errors
    /// `EBADF`: the descriptor is not open. `EINVAL`: the memory ends before the range.
    /// `EOPNOTSUPP`: the NIC cannot access the memory; a process without dma-buf memory returns
    /// this.
    fn dmabuf(
        &self,
        fd: i32,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Arc<dyn Dma>, Errno> {
        let _ = (fd, offset, len, writable);
        Err(Errno::OPNOTSUPP)
    }

    /// Copies from the process.
    ///
    /// # Errors
    /// `EFAULT`.
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Copies into the process.
    ///
    /// # Errors
    /// `EFAULT`.
    fn write(&self, addr: u64, from: &[u8]) -> Result<(), Errno>;

    /// A new page of zeros to ring doorbells in.
    ///
    /// # Errors
    /// The system has no memory for a page.
    fn doorbell_page(&self) -> Result<DoorbellPage, Errno>;

    /// Wakes the NIC to look for work.
    fn ring(&self);
}
