//! Registration of memory: host memory by its address. A GPU's memory by a dma-buf, by the address
//! that a module of its driver in the kernel resolves (`nvidia_peermem`), or by its CPU address, if
//! it has one.

use std::ffi::c_void;
use std::os::fd::AsRawFd as _;
use std::sync::Once;

use gdsync_sys::verbs::Ibverbs;
use gdsync_sys::verbs::types::{ibv_mr, ibv_pd};

use super::refused_last;
use crate::error::{Error, Kind, Result};
use crate::gpu::{MemoryKind, Region};

/// A region to be registered.
pub(super) struct Memory<'a> {
    pub nic: &'a str,
    pub verbs: &'a Ibverbs,
    /// A live protection domain.
    pub pd: *mut ibv_pd,
    pub region: &'a Region,
    pub rights: i32,
}

impl Memory<'_> {
    /// Registers the region by the first method that works. If a GPU's memory is registered by
    /// another method than a dma-buf, this is logged once (`logged`), with the reason.
    ///
    /// # Errors
    /// `System`, with the reasons of all attempts, if the NIC refuses.
    pub fn register(&self, logged: &Once) -> Result<*mut ibv_mr> {
        if self.region.kind() == MemoryKind::Pinned {
            return self.by_address();
        }
        self.by_dma_buf().or_else(|why| {
            logged.call_once(|| {
                let gpu = self.region.gpu();
                let how = match self.region.host_view() {
                    Some(_) => "the CPU's addresses",
                    None => "its addresses (peer memory)",
                };
                tracing::info!(
                    target: "gdsync",
                    "memory of {gpu:?} is registered with {} by {how}, because: {why}", self.nic
                );
            });
            let and = |e: Error| {
                let what = format!("{}; before that: {why}", e.reason());
                Error::new(e.operation(), e.kind(), what)
            };
            self.by_address().map_err(and)
        })
    }

    fn by_address(&self) -> Result<*mut ibv_mr> {
        let iova = self.region.addr().0;
        let at: *mut c_void = match self.region.host_view() {
            Some(host) => host.as_ptr().cast(),
            None => std::ptr::without_provenance_mut(iova as usize),
        };
        // SAFETY: memory that lives as long as the region, which the registration holds.
        let mr = unsafe {
            let register = self.verbs.ibv_reg_mr_iova;
            register(self.pd, at, self.region.len(), iova, self.rights)
        };
        self.made(mr, "ibv_reg_mr_iova", "register memory")
    }

    fn by_dma_buf(&self) -> Result<*mut ibv_mr> {
        const OPERATION: &str = "register dma-buf";
        let (fd, offset) = self.region.dma_buf_to_register()?;
        let Some(register) = self.verbs.ibv_reg_dmabuf_mr else {
            let what = format!(
                "{:?} has no ibv_reg_dmabuf_mr; update rdma-core",
                self.verbs
            );
            return Err(Error::new(OPERATION, Kind::Unsupported, what));
        };
        let (fd, iova) = (fd.as_raw_fd(), self.region.addr().0);
        // SAFETY: the descriptor covers the region from `offset` on.
        let mr = unsafe { register(self.pd, offset, self.region.len(), iova, fd, self.rights) };
        self.made(mr, "ibv_reg_dmabuf_mr", OPERATION)
    }

    fn made(&self, mr: *mut ibv_mr, call: &str, operation: &'static str) -> Result<*mut ibv_mr> {
        match mr.is_null() {
            false => Ok(mr),
            true => {
                let call = format!("{call} for {:?} on {}", self.region, self.nic);
                Err(refused_last(operation, &call))
            }
        }
    }
}
