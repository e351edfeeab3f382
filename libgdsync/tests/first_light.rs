//! The whole path on the live driver and the software GPU.

mod common;
mod whole_path;

use common::*;
use gdsync::gpu::MemoryKind::{Device as Dev, Pinned as Pin};

fn each(test: impl Fn(&Gpu, &QpConfig)) {
    for (path, config) in paths_of(16, 16) {
        println!("{path}");
        test(&Gpu::soft().unwrap(), &config);
    }
}

#[test]
fn a_write_posted_on_a_stream_arrives_and_the_stream_sees_it_complete() {
    each(|gpu, config| whole_path::writes(gpu, config, Dev, Dev, 300));
}

#[test]
fn sends_and_receives_posted_ahead_of_time_flow_when_the_gate_opens() {
    each(|gpu, config| whole_path::gated(gpu, config, Pin, Dev));
}

#[test]
fn a_failing_request_stalls_the_stream_until_its_status_is_stored() {
    each(|gpu, config| whole_path::failing(gpu, config, Pin));
}
