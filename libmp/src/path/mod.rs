//! How bytes reach a peer.

mod order;

pub use order::Tell;
