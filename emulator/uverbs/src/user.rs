//! What the interface asks of the process that uses it: its memory, and pages for doorbells.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use vmlx5::Dma;

/// A doorbell page: the memory file that the process maps, and the NIC's own view of it, which
/// stays when the process unmaps it.
pub struct DoorbellPage {
    /// A memory file of 4096 bytes.
    pub file: OwnedFd,
    /// Its bytes.
    pub memory: Arc<dyn Dma>,
}

/// The process whose commands are carried out. Addresses are its own; none of the methods trusts
/// them.
pub trait User: Send + Sync {
    /// The `len` bytes at `addr`, for the NIC: offset 0 is `addr`. `writable`: the NIC will write
    /// there as well.
    ///
    /// # Errors
    /// `EFAULT`: not all of it is there now. What vanishes later is a [`vmlx5::DmaFault`].
    fn memory(&self, addr: u64, len: u64, writable: bool) -> Result<Arc<dyn Dma>, Errno>;

    /// The `len` bytes at `offset` of the memory behind the descriptor `fd` of the process (a
    /// dma-buf, or a file that can be mapped), for the NIC, which keeps it whatever becomes of the
    /// descriptor: offset 0 is `offset`.
    ///
    /// # Errors
    /// `EBADF`: no descriptor. `EINVAL`: it ends before. `EOPNOTSUPP`: memory that the NIC cannot
    /// reach, which is what a process without such memory answers.
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
    /// The system has no memory for it.
    fn doorbell_page(&self) -> Result<DoorbellPage, Errno>;

    /// Makes the NIC look for work soon.
    fn ring(&self);
}
