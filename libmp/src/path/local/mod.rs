//! The path of a rank to itself: copies of its memory, by the CPU for puts that the CPU posts, by a
//! kernel for puts that a stream posts. It uses no NIC.
//!
//! A put is a *WQE* in pinned memory, with the layout in the kernels of `device/mp_put.cu` and
//! `device/mp_stamp.cu` and with the fields of a NIC's work request: a kernel patches the fields of
//! a late message here as in a NIC's work request. The puts of a stream become waits, stores and
//! launches in the stream's order. The CPU copies its puts when it posts them, a large put in
//! parts.

mod lane;
mod memory;
mod stream;
#[cfg(test)]
mod tests;
mod wqe;

use std::sync::Arc;

use gdsync::Gpu;

use crate::kernels::Kernels;

pub(crate) use lane::{AT_ONCE, Lane, Put, ROUND};
use memory::Table;
pub(crate) use memory::{Keys, Piece, Remote, Span};
pub(crate) use stream::Item;

/// The objects that the lanes of a rank to itself share. Clones refer to the same objects.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    gpu: Gpu,
    /// `None`: the GPU runs no kernels, and streams cannot put on this path.
    kernels: Option<Kernels>,
    table: Arc<Table>,
}

impl Local {
    pub fn new(gpu: &Gpu, kernels: Option<Kernels>) -> Local {
        Local {
            gpu: gpu.clone(),
            kernels,
            table: Arc::default(),
        }
    }

    /// Keys for new memory.
    pub fn keys(&self) -> Keys {
        Keys::new(&self.table)
    }
}
