//! Queue pairs that are carried by TCP, on the loopback interface.

mod common;
mod verbs_device;

use common::*;
use gdsync::rdma::TcpOptions;

/// A device of a job whose devices all have this key, on the loopback interface.
fn open(gpu: &Gpu) -> gdsync::Result<Device> {
    open_with(gpu, false)
}

fn open_encrypted(gpu: &Gpu) -> gdsync::Result<Device> {
    open_with(gpu, true)
}

fn open_with(gpu: &Gpu, encrypted: bool) -> gdsync::Result<Device> {
    let options = TcpOptions::default().address(std::net::IpAddr::from([127, 0, 0, 1]));
    Device::tcp(gpu, options.key([7; 32]).encrypted(encrypted))
}

#[test]
fn a_send_from_the_cpu_arrives() {
    verbs_device::a_send_from_the_cpu_arrives(open);
}

#[test]
fn ping_pong_by_streams() {
    verbs_device::ping_pong_by_streams(open);
}

#[test]
fn every_opcode_has_its_effect() {
    verbs_device::every_opcode_has_its_effect(open);
}

#[test]
fn every_opcode_has_its_effect_encrypted() {
    verbs_device::every_opcode_has_its_effect(open_encrypted);
}

#[test]
fn failing_request_has_its_status_and_a_reset_recovers() {
    verbs_device::failing_request_has_its_status_and_a_reset_recovers(open);
}

#[test]
fn a_stream_outlives_the_device() {
    verbs_device::a_stream_outlives_the_device(open);
}

#[test]
fn counters_wrap() {
    verbs_device::counters_wrap(open);
}
