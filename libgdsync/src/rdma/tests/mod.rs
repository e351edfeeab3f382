//! Tests that look inside: what is written byte for byte beside libmlx5, when the NIC is called, and
//! NICs that lack something.

mod bytes;
mod calls;
pub(super) mod odd_nic;
