//! A libamdhip64 that is absent, incomplete, too old, without a GPU, of another release, or fails with
//! unknown codes: a typed error with the reason, and all other calls continue.

mod common;
mod standin;

use std::path::Path;

use common::{Gpu, Kind, MemoryKind, kind};
use standin::{Control, Driver, Variant, cases, inside, run};

const fn without(function: &'static str) -> Variant {
    Variant::of(Driver::Hip6, Some(function), &[])
}

const fn env(env: &'static [(&'static str, &'static str)]) -> Variant {
    Variant::of(Driver::Hip6, None, env)
}

/// The error of a GPU that cannot be opened.
#[track_caller]
fn refused(name: &str, kind: Kind, names: &[&str]) {
    common::refused(Gpu::open(name), kind, None, names);
}

/// `auto` takes the software GPU.
#[track_caller]
fn auto_is_soft() {
    assert_eq!(Gpu::open("auto").unwrap().runtime_name(), "soft");
    assert_eq!(Gpu::from_env().unwrap().runtime_name(), "soft");
}

#[test]
fn absent() {
    // A path without a file, and one of another kind of file.
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    for (test, library) in [
        ("absent_nothing", Path::new("/nowhere/libamdhip64.so.6")),
        ("absent_no_library", &text),
    ] {
        run(test, library, &Variant::HIP6);
    }
}

fn absence(name: &str, reason: &str) {
    if !matches!(std::env::var("STANDIN_CHILD"), Ok(child) if child == name) {
        return;
    }
    for hip in ["hip", "hip:1"] {
        refused(hip, Kind::Absent, &[reason]);
    }
    auto_is_soft();
}

#[test]
fn absent_nothing() {
    absence("absent_nothing", "/nowhere/libamdhip64.so.6");
}

#[test]
fn absent_no_library() {
    absence("absent_no_library", "Cargo.toml");
}

cases! {
    too_old in env(&[("STANDIN_VERSION", "50731921")]) => {
        for gpu in [Gpu::open("hip"), Gpu::hip(0)] {
            let (kind, limit) = (Kind::Unsupported, Some(60_000_000));
            common::refused(gpu, kind, limit, &["5.7", "6.0"]);
        }
        auto_is_soft();
    };
    waits_for_signals_only in env(&[("GPU_STREAMOPS_CP_WAIT", "1")]) => {
        refused("hip", Kind::Unsupported, &["GPU_STREAMOPS_CP_WAIT", "unset it"]);
        auto_is_soft();
    };
    waits_for_words in env(&[("GPU_STREAMOPS_CP_WAIT", "0")]) => drop(Gpu::hip(0).unwrap());
    just_new_enough in env(&[("STANDIN_VERSION", "60000000")]) =>
        assert_eq!(Gpu::open("auto").unwrap().runtime_name(), "hip");
    default_streams in Variant::HIP6 => {
        let gpu = Gpu::hip(0).unwrap();
        for number in 0..3 {
            // SAFETY: the handle of a default stream, which is always live.
            let stream = unsafe { gpu.hip_stream(std::ptr::without_provenance_mut(number)) };
            common::refused(stream, Kind::Invalid, None, &["default stream"]);
        }
    };
    hip_7 in Variant::HIP7 => assert_eq!(Gpu::open("auto").unwrap().runtime_name(), "hip");
    a_required_function_is_missing in without("hipStreamWaitValue64") => {
        refused("hip", Kind::Absent, &["hipStreamWaitValue64"]);
        auto_is_soft();
    };
    the_last_required_function_is_missing in without("hipIpcCloseMemHandle") =>
        refused("hip", Kind::Absent, &["hipIpcCloseMemHandle"]);
    no_gpu in env(&[("STANDIN_DEVICES", "0")]) => {
        refused("hip", Kind::Absent, &["no GPU", "/dev/kfd", "HIP_VISIBLE_DEVICES"]);
        auto_is_soft();
    };
}

/// What the library can do without: UUIDs, devices of streams, capture modes.
#[test]
fn without_optional_functions() {
    for function in [
        "hipDeviceGetUuid",
        "hipStreamGetDevice",
        "hipThreadExchangeStreamCaptureMode",
    ] {
        run("opens", &standin::build(&without(function)), &Variant::HIP6);
    }
}

#[test]
fn opens() {
    inside!(Variant::HIP6);
    let gpu = Gpu::open("hip").unwrap();
    assert_eq!(gpu.runtime_name(), "hip");
    let memory = gpu.alloc(MemoryKind::Device, 64).unwrap();
    memory.write(0, &[1, 2, 3]).unwrap();
    let mut bytes = [0; 3];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3]);
}

#[test]
fn two_gpus() {
    inside!(Variant::of(Driver::Hip7, None, &[("STANDIN_DEVICES", "2")]));
    let (first, second) = (Gpu::hip(0).unwrap(), Gpu::open("hip:1").unwrap());
    assert!(!first.is(&second) && first.is(&Gpu::open("hip").unwrap()));
    assert!(second.name().contains("GPU 1"), "{second:?}");
    assert_ne!(first.identity(), second.identity());
    assert_eq!(first.reaches(&second.identity()), Ok(()));
    let sent = second.identity().to_bytes();
    assert_eq!(
        gdsync::gpu::GpuIdentity::from_bytes(&sent).unwrap(),
        second.identity()
    );
    common::refused(Gpu::hip(2), Kind::Invalid, Some(2), &[]);
    refused("hip:x", Kind::Invalid, &["hip:x"]);
    let (here, there) = (first.stream().unwrap(), second.stream().unwrap());
    let memory = second.alloc(MemoryKind::Device, 64).unwrap();
    let span = memory.span(0, 8).unwrap();
    assert_eq!(kind(here.copy(&span, &span)), Some(Kind::Foreign));
    there.copy(&span, &span).unwrap();
}

/// HIP 6 exports no fine-grained memory as a file.
#[test]
fn hip_6_reaches_no_gpu() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    let no = gpu.reaches(&gpu.identity()).unwrap_err();
    assert!(no.to_string().contains("descriptors"), "{no}");
}

/// Whichever call fails, the error carries the code, and the next try works like the first.
#[test]
fn codes_never_seen_before() {
    inside!(Variant::HIP6);
    let control = Control::open();
    for name in [
        "hipInit",
        "hipGetDeviceCount",
        "hipStreamCreateWithPriority",
        "hipHostMalloc",
        "hipModuleLoadData",
        "hipModuleGetFunction",
        "hipSetDevice",
    ] {
        control.fail(name, 4242, 0);
        if name == "hipSetDevice" {
            // The thread has the device already, so nothing is to be set.
            Gpu::hip(0).unwrap();
            continue;
        }
        let error = Gpu::hip(0).expect_err(name);
        assert!(error.to_string().contains("4242"), "{name}: {error}");
        let kind = match name {
            "hipInit" => Kind::Absent,
            _ => Kind::System,
        };
        assert_eq!(error.kind(), kind, "{name}: {error:?}");
        control.fail(name, 0, 0);
    }
    // A call that only gives details may fail.
    control.fail("hipDeviceGetName", 4242, 0);
    let gpu = Gpu::hip(0).unwrap();
    assert!(gpu.is(&Gpu::hip(0).unwrap()));
}
