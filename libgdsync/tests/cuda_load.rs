//! A libcuda that is absent, incomplete, too old, without a GPU, or fails with unknown codes: a
//! typed error with the reason, and all other calls continue.

mod common;
mod standin;

use std::path::Path;

use common::{Gpu, Kind, MemoryKind, kind};
use standin::{Control, Variant, cases, inside, run};

/// The error of a GPU that cannot be opened.
#[track_caller]
fn refused(name: &str, kind: Kind, names: &[&str]) {
    common::refused(Gpu::open(name), kind, None, names);
}

#[test]
fn absent() {
    // A path without a file, and one of another kind of file.
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    for (test, library) in [
        ("absent_nothing", Path::new("/nowhere/libcuda.so.1")),
        ("absent_no_library", &text),
    ] {
        run(test, library, &Variant::default());
    }
}

fn absence(name: &str, reason: &str) {
    if !matches!(std::env::var("STANDIN_CHILD"), Ok(child) if child == name) {
        return;
    }
    for cuda in ["cuda", "cuda:1"] {
        refused(cuda, Kind::Absent, &[reason]);
    }
    assert_eq!(Gpu::open("auto").unwrap().runtime_name(), "soft");
    assert_eq!(Gpu::from_env().unwrap().runtime_name(), "soft");
    // SAFETY: there is no context that could be destroyed.
    let current = unsafe { Gpu::cuda_current() };
    assert_eq!(kind(current), Some(Kind::Absent));
}

#[test]
fn absent_nothing() {
    absence("absent_nothing", "/nowhere/libcuda.so.1");
}

#[test]
fn absent_no_library() {
    absence("absent_no_library", "Cargo.toml");
}

#[test]
fn too_old() {
    inside!(Variant::env(&[("STANDIN_VERSION", "11080")]));
    for gpu in [Gpu::open("cuda"), Gpu::cuda(0)] {
        let (kind, limit) = (Kind::Unsupported, Some(12000));
        common::refused(gpu, kind, limit, &["11.8", "12.0"]);
    }
}

cases! {
    just_new_enough in Variant::env(&[("STANDIN_VERSION", "12000")]) =>
        assert_eq!(Gpu::open("auto").unwrap().runtime_name(), "cuda");
    a_required_function_is_missing in Variant::without("cuStreamBatchMemOp_v2") => {
        refused("cuda", Kind::Absent, &["cuStreamBatchMemOp_v2"]);
        assert_eq!(Gpu::open("auto").unwrap().runtime_name(), "soft");
    };
    the_last_required_function_is_missing in Variant::without("cuIpcCloseMemHandle") =>
        refused("cuda", Kind::Absent, &["cuIpcCloseMemHandle"]);
}

/// Kernels are loaded eagerly in any case: the first launch would otherwise block behind a wait.
#[test]
fn without_the_function_that_loads_kernels() {
    inside!(Variant::without("cuFuncLoad"));
    let control = Control::open();
    control.record(true);
    Gpu::cuda(0).unwrap();
    let calls = control.calls();
    let count = |name: &str| calls.lines().filter(|l| l.contains(name)).count();
    let kernels = gdsync::internals::Entry::ALL.len();
    assert_eq!(count("cuModuleGetFunction"), kernels);
    assert_eq!(count("cuFuncGetAttribute"), kernels);
    // All of them may wait.
    assert_eq!(count("cuFuncSetAttribute"), kernels);
}

#[test]
fn without_the_function_that_sets_attributes_of_kernels() {
    inside!(Variant::without("cuFuncSetAttribute"));
    Gpu::cuda(0).unwrap();
}

#[test]
fn without_an_optional_function() {
    inside!(Variant::without("cuMemExportToShareableHandle"));
    let gpu = Gpu::cuda(0).unwrap();
    let memory = gpu.alloc(MemoryKind::Device, 64).unwrap();
    let names = &["cuMemExportToShareableHandle"];
    common::refused(memory.share(), Kind::Unsupported, None, names);
}

cases! {
    without_mapped_memory in Variant::without("cuMemCreate") => {
        refused("cuda", Kind::Unsupported, &["cuMemCreate"]);
        assert_eq!(Gpu::open("auto").unwrap().runtime_name(), "soft");
    };
    no_gpu in Variant::env(&[("STANDIN_DEVICES", "0")]) => {
        refused("cuda", Kind::Absent, &["NO_DEVICE"]);
        assert_eq!(Gpu::open("auto").unwrap().runtime_name(), "soft");
    };
}

#[test]
fn two_gpus() {
    inside!(Variant::env(&[("STANDIN_DEVICES", "2")]));
    let (first, second) = (Gpu::cuda(0).unwrap(), Gpu::open("cuda:1").unwrap());
    assert!(!first.is(&second) && first.is(&Gpu::open("cuda").unwrap()));
    assert!(second.name().contains("Stand-in GPU 1"), "{second:?}");
    common::refused(Gpu::cuda(2), Kind::Invalid, Some(2), &[]);
    refused("cuda:x", Kind::Invalid, &["cuda:x"]);
    let (here, there) = (first.stream().unwrap(), second.stream().unwrap());
    let memory = second.alloc(MemoryKind::Device, 64).unwrap();
    let span = memory.span(0, 8).unwrap();
    assert_eq!(kind(here.copy(&span, &span)), Some(Kind::Foreign));
    there.copy(&span, &span).unwrap();
}

/// Whichever call fails, the error carries the code, no object remains, and the next try works like
/// the first.
#[test]
fn codes_never_seen_before() {
    inside!(Variant::default());
    let control = Control::open();
    for name in [
        "cuInit",
        "cuDriverGetVersion",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuCtxCreate_v2",
        "cuStreamCreate",
        "cuMemHostAlloc",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuFuncLoad",
        "cuCtxPushCurrent_v2",
    ] {
        control.fail(name, 4242, 0);
        let error = Gpu::cuda(0).expect_err(name);
        assert!(error.to_string().contains("4242"), "{name}: {error}");
        let kind = match name {
            "cuInit" => Kind::Absent,
            _ => Kind::System,
        };
        assert_eq!(error.kind(), kind, "{name}: {error:?}");
        control.fail(name, 0, 0);
        let live = control.live();
        let (contexts, hosts) = (live.get("contexts"), live.get("host"));
        assert!(contexts <= Some(&1), "{name}: {live:?}");
        assert_eq!(hosts, Some(&0), "{name}: {live:?}");
    }
    // Calls that only give details may fail: the name, the number of a context.
    control.fail("cuDeviceGetName", 4242, 0);
    control.fail("cuCtxGetId", 4242, 0);
    let gpu = Gpu::cuda(0).unwrap();
    assert!(gpu.name().contains("gpu0"));
    assert!(gpu.is(&Gpu::cuda(0).unwrap()));
}
