//! NICs that do what no virtual one does: that cannot be opened, cannot be reached by what this
//! library speaks, say of themselves what is not so, or vanish. A stand-in of libibverbs has them.

mod verbs_device;
mod virtual_nic;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use gdsync::gpu::MemoryKind;
use gdsync::rdma::{Descriptor, Device, Provider, QpConfig, Work};
use gdsync::{Gpu, Kind, Status};
use verbs_device::{LIMIT, Pair, finish};
use virtual_nic::outside;

/// The stand-in, built once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/odd_nics");
        let versions = sources.join("verbs.map");
        let part = folder.join(format!("odd_nics.{}.so", std::process::id()));
        let done = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
            .args(["-shared", "-fPIC", "-D_GNU_SOURCE"])
            .arg(format!("-Wl,--version-script={}", versions.display()))
            .arg("-o")
            .args([&part, &sources.join("verbs.c")])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{said}");
        // Processes that run beside this one put the same there.
        let path = folder.join("libodd_nics.so");
        std::fs::rename(&part, &path).unwrap();
        path
    })
}

/// Goes on in a process of its own with these NICs.
macro_rules! with_nics {
    ($nics:expr) => {
        outside!(&[
            ("GDS_IBVERBS_LIB", library().to_str().unwrap()),
            ("GDS_MLX5_LIB", "/nowhere/libmlx5.so.1"),
            ("GDS_PROXY_THREAD", "own"),
            ("ODD_NICS", $nics),
        ]);
    };
}

#[test]
fn a_nic_that_cannot_be_opened_is_there() {
    with_nics!("closed0");
    let gpu = Gpu::soft().unwrap();
    let e = Device::proxy(&gpu).unwrap_err();
    assert_eq!(e.kind(), Kind::System, "{e}");
    assert!(e.to_string().contains("Permission denied"), "{e}");
    let device = Device::from_env(&gpu).unwrap();
    assert_eq!(device.provider(), Provider::Emulated);
    let why = &device.passed_over()[1];
    assert!(why.contains("closed0: Permission denied"), "{why}");
}

/// The stand-in's device is not opened before `ibv_fork_init`, which has to come first.
#[test]
fn forks_are_allowed_before_a_nic_is_opened() {
    with_nics!("forks0");
    Device::proxy(&Gpu::soft().unwrap()).unwrap();
}

#[test]
fn a_nic_that_tells_nothing_of_its_ports_is_there() {
    with_nics!("mute0");
    let e = Device::proxy(&Gpu::soft().unwrap()).unwrap_err();
    assert_eq!(e.kind(), Kind::System, "{e}");
    assert!(e.to_string().contains("mute0"), "{e}");
}

/// Where none is named, one that cannot be used is no obstacle to one that can.
#[test]
fn a_nic_without_an_identifier_is_passed_over() {
    with_nics!("closed_0,iwarp__0,roce___0");
    let gpu = Gpu::soft().unwrap();
    let device = Device::proxy(&gpu).unwrap();
    assert_eq!(device.name(), "proxy roce___0:1");
    let named = gdsync::rdma::DeviceOptions {
        provider: Provider::Proxy,
        nic: Some("iwarp__0".parse().unwrap()),
        ..Default::default()
    };
    let e = Device::open_with(&gpu, &named).unwrap_err();
    assert_eq!(e.kind(), Kind::Unsupported, "{e}");
}

#[test]
fn nics_without_an_identifier_alone_are_unsupported() {
    with_nics!("iwarp0,iwarp1");
    let e = Device::proxy(&Gpu::soft().unwrap()).unwrap_err();
    assert_eq!(e.kind(), Kind::Unsupported, "{e}");
    for nic in ["iwarp0:1", "iwarp1:1"] {
        assert!(e.to_string().contains(nic), "{e}");
    }
}

/// Some drivers say 1 there, which means nothing.
#[test]
fn a_port_on_ethernet_has_no_local_identifier() {
    with_nics!("roce0");
    let gpu = Gpu::soft().unwrap();
    let device = Device::proxy(&gpu).unwrap();
    let pair = Pair::of(gpu, &device, &QpConfig::default());
    let port = pair.a.address().port.unwrap();
    assert_eq!((port.lid, port.gid), (0, [7; 16]));
}

/// Its queue pairs have no more at the device than may complete; the stand-in sees to it.
#[test]
fn a_completion_queue_has_room_for_both_sides() {
    with_nics!("short0");
    let gpu = Gpu::soft().unwrap();
    let device = Device::proxy(&gpu).unwrap();
    Pair::of(gpu, &device, &QpConfig::default());
}

/// Streams that wait for it pass, and all that was posted has failed.
#[test]
fn a_nic_that_vanishes_keeps_no_stream() {
    with_nics!("gone0");
    let gpu = Gpu::soft().unwrap();
    let device = Device::proxy(&gpu).unwrap();
    let mut p = Pair::of(gpu, &device, &QpConfig::default());
    let memory = p.memory(MemoryKind::Pinned, 64);
    let stream = p.gpu.stream().unwrap();
    let receive = p.b.prepare_receive(&[memory.sge(32, 9)]).unwrap();
    let wait = [
        Descriptor::Receive(receive),
        Descriptor::wait_flushed(receive),
    ];
    p.b.post_on(&stream, &wait).unwrap();
    let list = [memory.sge(0, 9)];
    let sends = [(); 2].map(|()| p.a.prepare(&Work::send(&list).signaled()).unwrap());
    let other = p.gpu.stream().unwrap();
    let post = sends.map(Descriptor::Send);
    p.a.post_on(&other, &post).unwrap();
    let waits = sends.map(Descriptor::wait);
    p.a.post_on(&other, &waits).unwrap();
    finish(&other);
    finish(&stream);
    let status = |qp: &mut gdsync::rdma::Qp, c: gdsync::rdma::Completion| qp.poll(c).unwrap();
    let [first, second] = sends.map(|send| status(&mut p.a, send.into()).unwrap());
    assert_eq!((first, second), (Status::UNKNOWN_SYNDROME, Status::FLUSHED));
    let received = status(&mut p.b, receive.into());
    assert_eq!(received, Some(Status::UNKNOWN_SYNDROME));
    // Nothing can be made of it, which is an error and not a wait.
    assert_eq!(p.a.reset().unwrap_err().kind(), Kind::System);
    drop((p, memory));
    device.close(LIMIT).unwrap();
}
