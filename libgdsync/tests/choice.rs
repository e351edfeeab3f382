//! The NIC that a program gets if it names none, or only a part of a name, and the reports of the
//! NICs that were passed over.

mod common;
#[path = "common/listen.rs"]
mod listen;
mod standin;
mod verbs_device;
mod virtual_nic;

use common::*;
use gdsync::rdma::{DeviceOptions, NicChoice, Provider};
use listen::Events;
use standin::Control;
use virtual_nic::{cases, inside, inside_with_cuda, outside};

/// Asserts that `Auto` selects this provider, twice, that the provider works, and that one event at
/// `level` reports why the others are passed over: each reason contains the text.
#[track_caller]
fn comes_to(gpu: &Gpu, provider: Provider, level: &str, reasons: &[&str]) {
    let events = Events::of_this_process(tracing::Level::TRACE);
    let first = Device::from_env(gpu).unwrap();
    let second = Device::from_env(gpu).unwrap();
    for device in [&first, &second] {
        assert_eq!(device.provider(), provider, "{device:?}");
        let passed_over = device.passed_over();
        assert_eq!(passed_over.len(), reasons.len(), "{passed_over:?}");
        for (text, reason) in passed_over.iter().zip(reasons) {
            assert!(
                text.contains(reason),
                "{text:?} does not contain {reason:?}"
            );
        }
    }
    let mut news = events.lines();
    news.retain(|line| line.contains("is used"));
    assert_eq!(news.len(), reasons.len(), "{news:?}");
    for (line, reason) in news.iter().zip(reasons) {
        assert!(line.starts_with(level) && line.contains(reason), "{line}");
    }
    let pair = Pair::over(&first, &QpConfig::default());
    pair.works();
}

cases! {
    connectx_is_the_first_choice => comes_to(&Gpu::soft().unwrap(), Provider::Mlx5, "", &[]);
    without_direct_verbs_a_thread_drives_it in &[("GDS_MLX5_LIB", "/nowhere/libmlx5.so.1")] => {
        let why = ["/nowhere/libmlx5.so.1"];
        comes_to(&Gpu::soft().unwrap(), Provider::Verbs, "INFO", &why);
    };
}

/// A GPU whose queues need no more registrations of pinned memory, so that the next registration is
/// that of a doorbell.
fn with_pinned_memory() -> Gpu {
    let gpu = Gpu::cuda(0).unwrap();
    drop(gpu.alloc(MemoryKind::Pinned, 64).unwrap());
    gpu
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn a_gpu_that_reaches_no_doorbell_has_it_driven_by_a_thread() {
    inside_with_cuda!();
    let gpu = with_pinned_memory();
    // CUDA_ERROR_NOT_SUPPORTED.
    Control::open().fail("cuMemHostRegister_v2", 801, 0);
    comes_to(&gpu, Provider::Verbs, "WARN", &["register host memory"]);
}

/// The name of the NIC is valid: the GPU's driver returns *invalid value* for the doorbell's
/// address.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn named_nic_is_driven_by_a_cpu_thread_too() {
    inside_with_cuda!(("GDS_NIC", "mlx5_0"));
    let gpu = with_pinned_memory();
    // CUDA_ERROR_INVALID_VALUE.
    Control::open().fail("cuMemHostRegister_v2", 1, 0);
    comes_to(&gpu, Provider::Verbs, "WARN", &["register host memory"]);
}

#[test]
fn without_the_library_there_is_the_virtual_one() {
    outside!(&[("GDS_IBVERBS_LIB", "/nowhere/libibverbs.so.1")]);
    let why = ["/nowhere/libibverbs.so.1"; 2];
    comes_to(&Gpu::soft().unwrap(), Provider::Emulated, "INFO", &why);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn without_an_active_port_there_is_the_virtual_one() {
    inside!(&[("VMLX5_FAULTS", "down=1:0s..1000s")]);
    let gpu = Gpu::soft().unwrap();
    // The port goes down soon after the NIC was opened.
    standin::until("a port that is down", || Device::mlx5(&gpu).is_err());
    let why = ["mlx5_0:1 is not active"; 2];
    comes_to(&gpu, Provider::Emulated, "INFO", &why);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn named_nic_is_not_replaced() {
    inside!(&[]);
    let gpu = Gpu::soft().unwrap();
    let named = |nic: &str| DeviceOptions::default().nic(nic.parse::<NicChoice>().unwrap());
    let opened = Device::open_with(&gpu, &named("mlx5_7"));
    refused(opened, Kind::Absent, None, &["mlx5_7"]);
    let device = Device::open_with(&gpu, &named("mlx5_0:1")).unwrap();
    assert_eq!(device.name(), "mlx5 mlx5_0:1");
}

cases! {
    the_environment_forces_the_virtual_one in &[("GDS_PROVIDER", "emulated")] =>
        comes_to(&Gpu::soft().unwrap(), Provider::Emulated, "", &[]);
    the_environment_forces_a_thread in &[("GDS_PROVIDER", "verbs")] =>
        comes_to(&Gpu::soft().unwrap(), Provider::Verbs, "", &[]);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn former_name_is_accepted_with_one_warning() {
    inside!(&[("GDS_PROVIDER", "proxy")]);
    let (events, gpu) = (
        Events::of_this_process(tracing::Level::INFO),
        Gpu::soft().unwrap(),
    );
    for _ in 0..2 {
        let device = Device::from_env(&gpu).unwrap();
        assert_eq!(device.provider(), Provider::Verbs);
    }
    let warning = "WARN GDS_PROVIDER=proxy is now called GDS_PROVIDER=verbs";
    let lines = events.lines();
    let count = lines.iter().filter(|line| *line == warning).count();
    assert_eq!(count, 1, "{lines:?}");
}

#[test]
fn forced_provider_is_not_replaced() {
    outside!(&[
        ("GDS_PROVIDER", "mlx5"),
        ("GDS_IBVERBS_LIB", "/nowhere/libibverbs.so.1")
    ]);
    let opened = Device::from_env(&Gpu::soft().unwrap());
    assert_eq!(kind(opened), Some(Kind::Absent));
}

#[test]
fn unknown_provider_is_refused() {
    outside!(&[("GDS_PROVIDER", "connectx")]);
    let text = "GDS_PROVIDER=connectx is not a known value; the known values are auto, mlx5, verbs, \
                emulated";
    let opened = Device::from_env(&Gpu::soft().unwrap());
    refused(opened, Kind::Invalid, None, &[text]);
}

/// If ranks of a job have different kinds of NIC, both get an error.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn a_virtual_nic_and_another_do_not_connect() {
    inside!(&[]);
    let gpu = Gpu::soft().unwrap();
    let make = |device: gdsync::Result<Device>| {
        let pd = device.unwrap().alloc_pd().unwrap();
        pd.create_qp(&QpConfig::default()).unwrap()
    };
    let mut ends = [make(Device::mlx5(&gpu)), make(Device::emulated(&gpu))];
    let addresses = [ends[0].address(), ends[1].address()];
    for (i, end) in ends.iter_mut().enumerate() {
        let connected = end.connect(&addresses[1 - i]);
        refused(connected, Kind::Invalid, None, &["virtual NIC"]);
    }
}
