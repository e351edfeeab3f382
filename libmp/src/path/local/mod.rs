//! The path of a rank to itself: its memory is copied, by the CPU for what the CPU posts, by a
//! kernel for what a stream posts. No NIC has to do with it.
//!
//! A put is a *WQE* in pinned memory, laid out as the kernels of `device/mp_put.cu` and
//! `device/mp_stamp.cu` have it, with the fields of a NIC's work request: what a kernel completes of
//! a late message it finds here as there. What a stream posts becomes waits, stores and launches in
//! the stream's order; what the CPU posts it copies at once, a large put in parts.

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

/// What lanes of a rank to itself are made of. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    gpu: Gpu,
    /// `None`: the GPU runs none, and streams put nothing here.
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

    /// Those of new memory.
    pub fn keys(&self) -> Keys {
        Keys::new(&self.table)
    }
}
