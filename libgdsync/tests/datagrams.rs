//! Queue pairs of datagrams over the virtual NIC that is linked in.

mod common;
mod verbs_device;

use common::*;

#[test]
fn datagrams_over_the_emulated_nic() {
    verbs_device::datagrams::all(Device::emulated);
}
