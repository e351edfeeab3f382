//! The thread of an idle TCP device sleeps. The test is alone in its process: it reads the processor
//! time of threads by their names.

mod common;
mod verbs_device;

use gdsync::rdma::{Device, TcpOptions};

#[test]
fn idle_thread_sleeps() {
    let open = |gpu: &gdsync::Gpu| Device::tcp(gpu, TcpOptions::default());
    verbs_device::idle_thread_sleeps(open, "gds-tcp", 100);
}
