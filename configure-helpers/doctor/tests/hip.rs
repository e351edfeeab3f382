//! What the doctor says about AMD GPUs, on simulated machines.

mod common;

use common::*;
use gdsync_doctor::{Access, Report};
use std::path::PathBuf;

/// A libamdhip64 with `count` GPUs, whose functions return `failing` for the function named in it.
fn libhip(name: &str, count: u32, failing: (&str, i32)) -> PathBuf {
    let head = format!(
        "#define COUNT {count}\n#define VERSION 60443483\n#define FAILING {:?}\n#define CODE {}\n",
        failing.0, failing.1
    );
    compile_libhip(name, &head)
}

fn with(hip: PathBuf) -> Libraries {
    Libraries {
        hip: vec![hip.into()],
        ..none()
    }
}

/// A machine with an MI300X on the PCI bus, and these files.
fn machine(files: &[(&str, &str)]) -> Tree {
    let tree = tree("bare");
    let device = "sys/bus/pci/devices/0000:c1:00.0";
    for (file, text) in [
        ("vendor", "0x1002\n"),
        ("device", "0x74a1\n"),
        ("class", "0x120000\n"),
    ] {
        tree.write(&format!("{device}/{file}"), text);
    }
    for (path, text) in files {
        tree.write(path, text);
    }
    tree
}

/// The advice with the missing thing and the remedy.
fn advised(report: &Report, missing: &str, remedy: &str) {
    let found = report
        .advice
        .iter()
        .any(|a| a.missing.contains(missing) && a.remedy.contains(remedy));
    assert!(found, "{missing}: {remedy}\n{:#?}", report.advice);
}

#[test]
fn gpus_are_reported_with_their_architecture_and_release() {
    let tree = machine(&[("dev/kfd", ""), ("sys/module/amdgpu/x", "")]);
    let report = look(&tree, with(libhip("libhip-two.so", 2, ("", 0))), &[]);
    let hip = &report.hip;
    assert_eq!(hip.version.as_deref(), Some("6.4"));
    assert_eq!(
        (&hip.trouble, &hip.kfd, hip.amdgpu),
        (&None, &Access::Granted, true)
    );
    assert_eq!(hip.gpus.len(), 2);
    let gpu = &hip.gpus[1];
    assert_eq!(gpu.architecture.as_deref(), Some("gfx942"));
    assert_eq!(gpu.pci.as_deref(), Some("0000:c2:00.0"));
    assert_eq!((gpu.compute_units, gpu.memory >> 20), (304, 196_592));
    assert!(gpu.wait_values && gpu.fine_grained && gpu.large_bar);
    assert!(hip.library.lacks("hipMemGetHandleForAddressRange"));
    let text = report.to_string();
    assert!(text.contains("AMD Instinct MI300X"), "{text}");
    assert!(text.contains("gfx942"), "{text}");
    assert!(report.advice.is_empty(), "{:#?}", report.advice);
    let chosen = &report.uses[0];
    assert_eq!(
        chosen.choice, "hip: GPU 0, AMD Instinct MI300X",
        "{chosen:?}"
    );
}

#[test]
fn gpu_without_a_library_needs_rocm() {
    let tree = machine(&[("dev/kfd", ""), ("sys/module/amdgpu/x", "")]);
    advised(&look(&tree, none(), &[]), "libamdhip64", "ROCm");
}

#[test]
fn gpu_without_the_kernel_driver_needs_amdgpu() {
    let hip = libhip("libhip-driverless.so", 0, ("hipGetDeviceCount", 100));
    let report = look(&machine(&[]), with(hip), &[]);
    advised(&report, "/dev/kfd", "modprobe amdgpu");
}

#[test]
fn driver_without_its_device_file_is_a_container() {
    let hip = libhip("libhip-contained.so", 0, ("hipGetDeviceCount", 100));
    let tree = machine(&[("sys/module/amdgpu/x", "")]);
    advised(
        &look(&tree, with(hip), &[]),
        "/dev/kfd",
        "--device=/dev/kfd",
    );
}

#[test]
fn user_without_access_to_the_device_file_needs_its_groups() {
    let hip = libhip("libhip-refused.so", 0, ("hipGetDeviceCount", 100));
    // A folder cannot be opened for writing, by root neither.
    let tree = machine(&[("dev/kfd/x", ""), ("sys/module/amdgpu/x", "")]);
    let report = look(&tree, with(hip), &[]);
    advised(&report, "access to /dev/kfd", "groups render and video");
}

#[test]
fn variables_may_hide_every_gpu() {
    let tree = machine(&[("dev/kfd", ""), ("sys/module/amdgpu/x", "")]);
    for variable in ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"] {
        let hip = libhip("libhip-hidden.so", 0, ("hipGetDeviceCount", 100));
        let report = look(&tree, with(hip), &[(variable, "-1")]);
        advised(
            &report,
            "a GPU that HIP reports",
            &format!("unset {variable}"),
        );
    }
}

#[test]
fn release_and_settings_that_the_library_refuses_are_reported() {
    let tree = machine(&[("dev/kfd", ""), ("sys/module/amdgpu/x", "")]);
    let old = "#define COUNT 1\n#define VERSION 50731921\n#define FAILING \"\"\n#define CODE 0\n";
    let (old, new) = (
        compile_libhip("libhip-old.so", old),
        libhip("libhip-new.so", 1, ("", 0)),
    );
    let signals = ("GPU_STREAMOPS_CP_WAIT", "1");
    for (hip, variables, why) in [
        (old, &[][..], "gdsync needs 6.0 or later; update ROCm"),
        (new, &[signals], "GPU_STREAMOPS_CP_WAIT set, streams wait"),
    ] {
        let report = look(&tree, with(hip.clone()), variables);
        assert!(report.to_string().contains(why), "{report}");
        advised(&report, "a HIP that gdsync can use", why);
        let forced = [variables, &[("GDS_GPU", "hip")]].concat();
        let chosen = look(&tree, with(hip), &forced).uses[0].clone();
        assert!(chosen.because.contains(why), "{chosen:?}");
    }
}

#[test]
fn failing_call_is_reported_with_its_name() {
    let tree = machine(&[("dev/kfd", ""), ("sys/module/amdgpu/x", "")]);
    let hip = libhip("libhip-failing.so", 1, ("hipDeviceTotalMem", 999));
    let report = look(&tree, with(hip), &[]);
    let text = report.to_string();
    assert!(
        text.contains("hipDeviceTotalMem returned hipErrorUnknown (999)"),
        "{text}"
    );
    advised(
        &report,
        "hipDeviceTotalMem returned hipErrorUnknown",
        "dmesg",
    );
}

#[test]
fn library_without_an_amd_gpu_is_no_reason_for_advice() {
    let hip = libhip("libhip-idle.so", 0, ("hipGetDeviceCount", 100));
    let report = look(&tree("bare"), with(hip), &[]);
    assert!(report.advice.is_empty(), "{:#?}", report.advice);
}
