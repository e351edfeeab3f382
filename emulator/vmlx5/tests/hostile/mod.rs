//! Hosts that break the rules: rings, records and doorbells of any bytes, made of an [`Input`], so
//! that a fuzzer or a random generator can drive them. These invariants must hold: the NIC touches
//! only memory that allows it, every entry completes once and in order or is flushed, and the NIC
//! still serves all other queue pairs.
//!
//! [`Input`]: crate::input::Input
#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

pub mod doorbell;
pub mod ledger;
pub mod watched;
pub mod wqe;

use mlx5_prm::opcode::CqeOpcode;
use vmlx5::HostMemory;

use crate::rig::*;

/// Checks that another pair on the same NICs still works; `c` uses the page at `bell` for its
/// doorbell.
pub fn others_are_served(world: &mut World, c: &mut End, d: &mut End, bell: &HostMemory) {
    let n = c.get64(0) + 1;
    c.put64(0, n);
    d.post_recv(&[d.sge(0, 8)]);
    let s = c.post(&send(&[c.sge(0, 8)]));
    bell.store64(0x800, c.doorbell).expect("inside");
    world.settle();
    assert_ok(&c.send.poll().expect("sent"), CqeOpcode::REQ, s);
    assert_ok(&d.recv.poll().expect("received"), CqeOpcode::RESP_SEND, s);
    assert_eq!(d.get64(0), n);
}
