//! Messages under the simulation: programs over [`mp`] whose ranks are fibers, on random
//! schedules, with weak memory, and with ranks that are lost in the middle.
//!
//! - Examples against their serial runs: [`halo`] (`halo2d`; [`loss`] with a rank that is lost),
//!   [`halo3d`] and [`particles`], with and without a loss.
//! - Random programs: [`messages`] of every kind, [`windows`] of one-sided operations,
//!   [`neighbours`] of exchanges with neighbours, [`collectives`] of calls of all ranks.
//! - Losses: [`survivors`] continue to exchange messages, [`agree`] has ranks that agree on the lost
//!   ones, while they die.
//! - [`graphs`]: messages in graphs, which are launched many times; [`zero_sm`]: messages without kernels.
//! - [`ahead`] has a sender that is ahead of its receiver, [`offload`] shows that messages progress while the rank that enqueued them sleeps, [`late`]
//!   that ready words which two queue pairs write keep their order.
//!
//! `job` and `death` are the common base. Scenarios with a [`Wire`] also run with WRITEs out of order.

pub mod agree;
pub mod ahead;
pub mod collectives;
mod death;
pub mod graphs;
pub mod halo;
pub mod halo3d;
mod job;
pub mod late;
pub mod loss;
pub mod messages;
pub mod neighbours;
pub mod offload;
pub mod particles;
pub mod survivors;
pub mod windows;
pub mod zero_sm;

pub use job::Wire;
