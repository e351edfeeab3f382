//! Puts as copies, to memory that this rank's CPU and GPU reach: its own (`Path::Local`), or memory
//! of another rank of its host, mapped here (`Path::Ipc`). The CPU copies the puts that the CPU
//! posts, a kernel those that a stream posts. No NIC is used.
//!
//! A put is a *WQE* in pinned memory, with the layout in the kernels of `device/mp_put.cu` and
//! `device/mp_stamp.cu` and with the fields of a NIC's work request: a kernel patches the fields of
//! a late message here as in a NIC's work request. The puts of a stream become waits, stores and
//! launches in the stream's order. The CPU copies its puts when it posts them, a large put in
//! parts. A message to a flagged room or to the memory of its receive, a name and a wait for a peer are
//! parameters of a kernel instead (`put::Target`); they take a WQE's number and report, not its
//! memory.

mod by_cpu;
mod exported;
mod lane;
mod memory;
mod put;
mod reports;
mod stream;
#[cfg(test)]
mod tests;
mod wqe;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gdsync::Gpu;
use gdsync::gpu::Region;

use crate::error::Result;
use crate::kernels::Kernels;

pub(crate) use by_cpu::{AT_ONCE, ROUND};
pub(crate) use exported::Exported;
use exported::Slabs;
pub(crate) use lane::Lane;
use memory::Table;
pub(crate) use memory::{Keys, Piece, Remote, Span};
pub(crate) use put::Put;
pub(crate) use reports::Report;
use reports::Reports;
pub(crate) use stream::{Item, Tasks, check_gpu, launches, post_puts};

/// The objects that the lanes of copies share. Clones refer to the same objects.
#[derive(Clone, Debug)]
pub(crate) struct Copier {
    gpu: Gpu,
    /// `None`: the GPU runs no kernels, and streams cannot put on this path.
    kernels: Option<Arc<Kernels>>,
    table: Arc<Table>,
    slabs: Arc<Slabs>,
    reports: Arc<Reports>,
    /// The number of lanes so far. Relaxed: only the numbers differ.
    lanes: Arc<AtomicU32>,
}

impl Copier {
    /// `shares`: other ranks map the memory that has keys.
    pub fn new(gpu: &Gpu, kernels: Option<Arc<Kernels>>, shares: bool) -> Copier {
        Copier {
            gpu: gpu.clone(),
            kernels,
            table: Arc::new(Table::new(shares)),
            slabs: Arc::default(),
            reports: Arc::new(Reports::new(gpu)),
            lanes: Arc::default(),
        }
    }

    fn next_lane(&self) -> u32 {
        self.lanes.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes reports, 0 at first.
    ///
    /// # Errors
    /// Those of [`Gpu::alloc`].
    pub fn reports(&self, count: usize) -> Result<Vec<Report>> {
        self.reports.take(count)
    }

    /// Reads the reports that the CPU cannot load.
    pub fn read_reports(&self) {
        self.reports.read_reports();
    }

    /// Keys for new memory.
    pub fn keys(&self) -> Keys {
        Keys::new(&self.table)
    }

    /// The memory with a key.
    pub fn region(&self, key: u32) -> Option<Region> {
        self.table.region(key)
    }

    /// The memory that the application has registered, by its key.
    pub fn registered(&self) -> Vec<(u32, Region)> {
        self.table.registered()
    }

    /// The keys that were dropped since the last call.
    pub fn released(&self) -> Vec<u32> {
        self.table.released()
    }
}
