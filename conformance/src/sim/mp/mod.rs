//! Messages under the simulation: programs over [`mp`] whose ranks are fibers, on random
//! schedules, with weak memory, and with ranks that are lost in the middle.
//!
//! [`halo`] is the stencil of the examples against its serial run, [`loss`] the same with a rank
//! that is lost; [`talk`] random programs of messages of every kind, [`windows`] of one-sided
//! operations, [`neighbours`] of exchanges with neighbours; [`survivors`] ranks that continue to exchange messages when one of them is lost.
//! [`offload`] shows that messages progress while the rank that enqueued them sleeps, [`late`] that
//! ready words which two queue pairs write keep their order. `job` is the common base.

pub mod halo;
mod job;
pub mod late;
pub mod loss;
pub mod neighbours;
pub mod offload;
pub mod survivors;
pub mod talk;
pub mod windows;
