//! How bytes reach a peer: a path for each, chosen once.
//!
//! Messages need four things of a peer: put bytes into its memory ([`Batch::put`]), put a word of 64
//! bits behind them ([`Batch::announce`]), wait for a word of this rank's own ([`List::wait_for`]),
//! and know that what was put is done here ([`Lane::poll`]). What stands above speaks of nothing
//! else: queue pairs, work requests and keys are known to `nic` alone.
//!
//! Another path is a folder beside `nic`, a variant of [`Path`], and a kind of
//! [`wire::record::Record`](crate::wire::record::Record), by which ranks name their ends and their
//! memory.

mod nic;
mod order;

pub use nic::NicOptions;
pub(crate) use nic::{
    Batch, Keys, LANES, Lane, Link, List, MOST_BYTES, MOST_PIECES, Nic, Piece, Put, Remote, Rights,
    Span,
};
pub use order::WordOrder;

/// How bytes reach a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// By queue pairs of this rank's NIC.
    Nic,
}

impl Path {
    /// The path from `me` to `peer`, and why it is that one.
    pub(crate) fn choose(me: u32, peer: u32) -> (Path, &'static str) {
        match me == peer {
            true => (Path::Nic, "the NIC loops back to the rank itself"),
            false => (Path::Nic, "the NIC reaches every rank"),
        }
    }
}
