//! Single findings: error codes of the driver, choices by variable, libraries that are too old; and
//! the program itself, on this machine and on others.

mod common;

use common::{
    ANCIENT, Attributes, H200, Libraries, OLD, cuda_alone, libcuda, libcuda_without, libibverbs,
    library, look, none, tree, used,
};
use gdsync_doctor::Report;
use gdsync_doctor::advice::Advice;
use std::process::Command;

fn with_cuda(
    machine: &str,
    file: &str,
    failing: (&str, i32),
    variables: &[(&str, &str)],
) -> Report {
    let libraries = cuda_alone(libcuda(file, &[("NVIDIA H200", H200)], failing));
    look(&tree(machine), libraries, variables)
}

#[test]
fn each_error_code_of_the_driver_has_its_remedy() {
    let cases = [
        ("cuInit", 100, "CUDA_ERROR_NO_DEVICE", "dmesg"),
        ("cuInit", 34, "CUDA_ERROR_STUB_LIBRARY", "stubs"),
        (
            "cuInit",
            802,
            "CUDA_ERROR_SYSTEM_NOT_READY",
            "nvidia-fabricmanager",
        ),
        ("cuInit", 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot"),
        (
            "cuInit",
            804,
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
            "compatibility",
        ),
        ("cuInit", 999, "CUDA_ERROR_UNKNOWN", "NVRM"),
        ("cuInit", 4711, "CUDA_ERROR_OF_THE_FUTURE", "NVRM"),
        ("cuInit", -5, "a code without a name", "NVRM"),
        ("cuDeviceGetCount", 999, "CUDA_ERROR_UNKNOWN", "NVRM"),
        ("cuDeviceGet", 101, "CUDA_ERROR_INVALID_DEVICE", "dmesg"),
    ];
    for (call, code, name, remedy) in cases {
        let file = format!("libcuda-{call}{code}.so");
        let report = with_cuda("nvlink", &file, (call, code), &[]);
        let trouble = report.cuda.trouble.as_ref().expect("the stand-in fails");
        assert_eq!((trouble.call, trouble.code), (call, code));
        assert_eq!(trouble.name, name);
        assert!(report.cuda.gpus.is_empty());
        let advice = &report.advice[0];
        assert!(advice.missing.contains(name), "{}", advice.missing);
        assert!(advice.remedy.contains(remedy), "{code}: {}", advice.remedy);
        assert!(report.uses[0].choice.starts_with("soft"));
        assert!(
            report.uses[0].because.contains(call),
            "{}",
            report.uses[0].because
        );
    }
}

#[test]
fn cuda_visible_devices_that_hides_all_gpus_is_reported() {
    let hidden = [("CUDA_VISIBLE_DEVICES", "")];
    let report = with_cuda("nvlink", "libcuda-hidden.so", ("cuInit", 100), &hidden);
    assert_eq!(
        report.advice[0].remedy,
        "unset CUDA_VISIBLE_DEVICES, which is \"\""
    );
}

#[test]
fn missing_device_files_are_created_by_nvidia_modprobe() {
    let undriven = with_cuda("undriven", "libcuda-undriven.so", ("cuInit", 999), &[]);
    assert!(
        undriven.advice[0]
            .remedy
            .contains("nvidia-modprobe -c 0 -u")
    );
}

#[test]
fn refused_attributes_count_as_missing_capabilities() {
    let failing = ("cuDeviceGetAttribute", 1);
    let report = with_cuda("nvlink", "libcuda-refuses.so", failing, &[]);
    let gpu = &report.cuda.gpus[0];
    assert!(!gpu.memory_operations.bits64 && !gpu.dma_buf && !gpu.gpudirect_rdma);
}

#[test]
fn gds_gpu_selects_the_runtime() {
    let cases = [
        ("auto", "cuda: GPU 0, NVIDIA H200", "GDS_GPU=auto"),
        ("soft", "soft: the software GPU", "GDS_GPU=soft"),
        ("cuda", "cuda: GPU 0, NVIDIA H200", "GDS_GPU=cuda"),
        ("cuda:1", "nothing: an error", "the number of GPUs is 1"),
        ("hip", "nothing: an error", "there is no usable HIP"),
        (
            "metal",
            "nothing: an error",
            "the known values are soft, cuda, cuda:N, hip, hip:N, auto",
        ),
    ];
    for (value, choice, because) in cases {
        let set = [("GDS_GPU", value)];
        let report = with_cuda("nvlink", "libcuda-follows.so", ("", 0), &set);
        assert_eq!(report.uses[0].choice, choice, "{value}");
        let why = &report.uses[0].because;
        assert!(why.contains(because), "{value}: {why}");
    }
    let report = look(&tree("bare"), none(), &[("GDS_GPU", "cuda")]);
    assert_eq!(report.uses[0].choice, "nothing: an error");
}

#[test]
fn translating_iommu_and_peermem_are_reported() {
    let gpus = [("NVIDIA H200", H200)];
    let libraries = || cuda_alone(libcuda("libcuda-iommu.so", &gpus, ("", 0)));
    let advises = |report: &Report, remedy: &str| {
        let mut advice = report.advice.iter();
        advice.any(|a| a.remedy.contains(remedy))
    };
    let is = |report: &Report, end: &str| {
        let memory = used(report, "GPU memory for a physical NIC");
        let found = format!("{}: {}", memory.choice, memory.because);
        assert!(found.ends_with(end), "{found}");
    };

    let tree = tree("complete");
    tree.write(
        "sys/class/infiniband/mlx5_0/device/iommu_group/type",
        "DMA\n",
    );
    let report = look(&tree, libraries(), &[]);
    // Without libibverbs there is no path, so its speed does not matter.
    is(&report, "neither dma-buf nor nvidia_peermem is available");
    assert!(advises(&report, "apt-get install libibverbs1") && !advises(&report, "iommu=pt"));

    tree.write("sys/module/nvidia_peermem/refcnt", "0\n");
    let report = look(&tree, libraries(), &[]);
    is(&report, "nvidia_peermem is available for one");
    assert!(advises(&report, "iommu=pt"));

    let verbs = vec![libibverbs("libibverbs-iommu.so", &["ibv_reg_dmabuf_mr"]).into()];
    let libraries = Libraries {
        ibverbs: verbs,
        ..libraries()
    };
    let report = look(&tree, libraries, &[]);
    is(
        &report,
        "registered as a dma-buf: driver, kernel and libibverbs support it",
    );
    assert!(advises(&report, "iommu=pt"));
}

#[test]
fn unusable_gpu_is_an_error_with_its_reason() {
    let named: fn(&str) -> Libraries = |file| {
        let prohibited: &[(u32, i32)] = &[(20, 2), (75, 9), (122, 1)];
        let narrow: &[(u32, i32)] = &[(75, 9)];
        let gpus = [ANCIENT, prohibited, narrow, H200].map(|gpu| ("NVIDIA X", gpu));
        cuda_alone(libcuda(file, &gpus, ("", 0)))
    };
    let cases = [
        ("auto", "below 7.0"),
        ("cuda:1", "prohibits"),
        ("cuda:2", "64-bit"),
    ];
    for (set, why) in cases {
        let libraries = named("libcuda-unusable.so");
        let report = look(&tree("nvlink"), libraries, &[("GDS_GPU", set)]);
        assert_eq!(report.uses[0].choice, "nothing: an error");
        assert!(
            report.uses[0].because.contains(why),
            "{set}: {}",
            report.uses[0].because
        );
        let missing: Vec<&str> = report.advice.iter().map(|a| a.missing.as_str()).collect();
        assert!(missing.contains(&"permission to create contexts on GPU 1 (NVIDIA X)"));
        assert!(
            missing
                .iter()
                .any(|m| m.ends_with("of GPU 0 (NVIDIA X), GPU 2 (NVIDIA X)"))
        );
    }
    let libraries = named("libcuda-unusable.so");
    let report = look(&tree("nvlink"), libraries, &[("GDS_GPU", "cuda:3")]);
    assert_eq!(report.uses[0].choice, "cuda: GPU 3, NVIDIA X");
}

/// If a GPU cannot map memory, `auto` chooses the software GPU, as the library does.
#[test]
fn auto_skips_a_gpu_without_mappable_memory() {
    let unmapped: Attributes = &[(75, 9), (122, 1)];
    let library = libcuda("libcuda-unmapped.so", &[("NVIDIA X", unmapped)], ("", 0));
    for (set, choice) in [("auto", "soft"), ("cuda", "nothing: an error")] {
        let libraries = cuda_alone(library.clone());
        let report = look(&tree("nvlink"), libraries, &[("GDS_GPU", set)]);
        let used = &report.uses[0];
        assert!(used.choice.starts_with(choice), "{set}: {used:?}");
        assert!(used.because.contains("cuMemCreate"), "{set}: {used:?}");
        assert!(report.advice[0].missing.contains("cuMemCreate"));
    }
}

#[test]
fn advice_for_equal_gpus_is_given_once() {
    let gpus = [("NVIDIA A", OLD), ("NVIDIA B", H200), ("NVIDIA C", OLD)];
    let libraries = cuda_alone(libcuda("libcuda-alike.so", &gpus, ("", 0)));
    let report = look(&tree("nvlink"), libraries, &[]);
    let nor = |a: &&Advice| a.missing.starts_with("NOR waits");
    let nor: Vec<&Advice> = report.advice.iter().filter(nor).collect();
    assert_eq!(nor.len(), 1);
    assert_eq!(
        nor[0].missing,
        "NOR waits of GPU 0 (NVIDIA A), GPU 2 (NVIDIA C)"
    );
}

#[test]
fn too_old_driver_is_reported_with_the_missing_function() {
    let libraries = cuda_alone(library("libcuda-ancient.so", &["cuInit"]));
    let report = look(&tree("nvlink"), libraries, &[]);
    assert!(report.cuda.library.to_string().starts_with("too old: "));
    assert!(
        report.advice[0]
            .missing
            .starts_with("cuDriverGetVersion in ")
    );
    assert!(report.advice[0].remedy.contains("515 or later"));
}

#[test]
fn auto_skips_a_driver_of_an_older_cuda() {
    for (set, choice) in [("auto", "soft"), ("cuda", "nothing: an error")] {
        let older = ("version", 11080);
        let report = with_cuda("nvlink", "libcuda-11.so", older, &[("GDS_GPU", set)]);
        let used = &report.uses[0];
        assert!(used.choice.starts_with(choice), "{set}: {used:?}");
        assert!(
            used.because.contains("11.8, and gdsync needs 12.0"),
            "{set}: {used:?}"
        );
        let advice = &report.advice[0];
        assert!(advice.missing.contains("12.0"), "{advice:?}");
        assert!(report.to_string().contains(&advice.remedy));
    }
}

fn doctor() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gdsync-doctor"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("GDS_") || name == "CUDA_VISIBLE_DEVICES" {
            command.env_remove(&*name);
        }
    }
    command
}

#[test]
fn program_succeeds_on_any_machine() {
    let text = doctor().output().expect("it runs");
    assert!(text.status.success() && text.stderr.is_empty());
    let text = String::from_utf8(text.stdout).expect("it is text");
    assert!(text.contains("What would be used"), "{text}");

    let json = doctor().arg("--json").output().expect("it runs");
    assert!(json.status.success() && json.stderr.is_empty());
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
    for subject in ["cuda", "hip", "gdrcopy", "rdma", "system", "uses", "advice"] {
        assert!(!json[subject].is_null(), "{subject}");
    }
}

#[test]
fn program_opens_the_libraries_that_variables_name() {
    let cuda = libcuda("libcuda-named.so", &[("NVIDIA H200", H200)], ("", 0));
    let tree = tree("nvlink");
    let output = doctor()
        .args(["--json", "--root"])
        .arg(&tree.0)
        .env("GDS_CUDA_LIB", &cuda)
        .env("GDS_GDRAPI_LIB", "/nonexistent/libgdrapi.so")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1), "GDRCopy is named and absent");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(json["cuda"]["gpus"][0]["name"], "NVIDIA H200");
    assert_eq!(
        json["cuda"]["library"]["path"],
        cuda.to_str().expect("it is text")
    );
    let tried = &json["gdrcopy"]["library"]["tried"];
    assert_eq!(tried.as_array().map(Vec::len), Some(1));
}

/// Attributes of a GPU that neither orders nor flushes writes, but reports that the CPU can flush.
const BY_CPU: Attributes = &[(75, 9), (76, 0), (91, 1), (102, 1), (117, 1), (122, 1)];

#[test]
fn flush_by_the_cpu_needs_the_call_of_the_driver() {
    for (call, choice) in [(true, "flushes by the CPU"), (false, "READs by the NIC")] {
        let gpus = [("NVIDIA GPU", BY_CPU)];
        let name = format!("libcuda-flush-{call}.so");
        let cuda = match call {
            true => libcuda(&name, &gpus, ("", 0)),
            false => libcuda_without(&name, &gpus, "cuFlushGPUDirectRDMAWrites"),
        };
        let libraries = || cuda_alone(cuda.clone());
        let report = look(&tree("nvlink"), libraries(), &[]);
        assert_eq!(report.cuda.gpus[0].host_flush, call);
        let found = |report| used(report, "flush of payload from a NIC").choice.clone();
        assert!(found(&report).starts_with(choice), "{}", found(&report));
        let named = [("GDS_CONSISTENCY", "host")];
        let named = look(&tree("nvlink"), libraries(), &named);
        assert_eq!(found(&named) == "nothing: an error", !call);
    }
}

#[test]
fn path_between_ranks_of_the_host_follows_from_gpus_and_variable() {
    const GPUS: [(&str, Attributes); 4] = [("NVIDIA H200", H200); 4];
    let found = |name: &str, gpus: usize, failing, without, set: &[(&str, &str)]| {
        let gpus = &GPUS[..gpus];
        let library = match without {
            "" => libcuda(name, gpus, (failing, 0)),
            function => libcuda_without(name, gpus, function),
        };
        let report = look(&tree("nvlink"), cuda_alone(library), set);
        let used = used(&report, "mp between ranks of this host");
        format!("{}: {}", used.choice, used.because)
    };
    let import = "cuMemImportFromShareableHandle";
    let cases: [(&str, usize, &str, &str, &str, &str); 9] = [
        (
            "one",
            1,
            "",
            "",
            "auto",
            "memory that the ranks map: the ranks share",
        ),
        (
            "two",
            2,
            "",
            "",
            "auto",
            "memory that the ranks map: each GPU has peer access",
        ),
        (
            "apart",
            2,
            "peers",
            "",
            "auto",
            "map; the NIC between GPUs 0 and 1: these GPUs have no",
        ),
        (
            "many",
            4,
            "peers",
            "",
            "auto",
            "1 and 2, 1 and 3, 2 and 3: these",
        ),
        (
            "import",
            1,
            "",
            import,
            "auto",
            "the NIC: the CUDA driver shares no memory",
        ),
        ("nic", 1, "", "", "nic", "the NIC: MP_PATH=nic"),
        (
            "ipc",
            2,
            "peers",
            "",
            "ipc",
            "memory that the ranks map: MP_PATH=ipc",
        ),
        ("tcp", 1, "", "", "tcp", "TCP: MP_PATH=tcp"),
        (
            "unknown",
            1,
            "",
            "",
            "udp",
            "nothing: an error: MP_PATH=udp is not valid",
        ),
    ];
    for (name, gpus, failing, without, path, expected) in cases {
        let file = format!("libcuda-path-{name}.so");
        let text = found(&file, gpus, failing, without, &[("MP_PATH", path)]);
        assert!(text.contains(expected), "{name}: {text}");
    }
    let soft = look(&tree("bare"), none(), &[]);
    let soft = used(&soft, "mp between ranks of this host");
    assert!(soft.because.contains("software GPU"), "{soft:?}");
}

#[test]
fn absent_request_is_an_error_with_a_remedy() {
    let nic = [("GDS_NIC", "mlx5_9"), ("GDS_PROVIDER", "verbs")];
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str);
    let cases: [Case; 10] = [
        (
            &[("GDS_GPU", "cuda")],
            "GDS_GPU=cuda, but there is no usable",
            "unset GDS_GPU",
        ),
        (
            &[("GDS_GPU", "metal")],
            "the known values are soft",
            "unset GDS_GPU",
        ),
        (
            &[("GDS_LOWER", "both")],
            "GDS_LOWER=both",
            "unset GDS_LOWER",
        ),
        (&nic, "no usable libibverbs", "unset GDS_NIC, GDS_PROVIDER:"),
        (
            &[("GDS_GID_INDEX", "3")],
            "GDS_GID_INDEX=3",
            "unset GDS_GID_INDEX",
        ),
        (&[("MP_TELL", "both")], "MP_TELL=both", "unset MP_TELL"),
        (&[("MP_PATH", "udp")], "MP_PATH=udp", "unset MP_PATH"),
        (
            &[("MP_LOCAL_RANK", "a")],
            "MP_LOCAL_RANK",
            "set GDS_GPU=soft",
        ),
        (
            &[("GDS_CONSISTENCY", "ordered")],
            "does not support",
            "unset GDS_CONSISTENCY",
        ),
        (
            &[("GDS_MLX5_LIB", "/x.so")],
            "GDS_MLX5_LIB=/x.so: absent",
            "then opens libmlx5.so.1",
        ),
    ];
    for (set, failed, remedy) in cases {
        let report = look(&tree("bare"), none(), set);
        let [error] = &report.errors[..] else {
            panic!("{set:?}: {:?}", report.errors);
        };
        assert!(error.failed.contains(failed), "{set:?}: {error:?}");
        assert!(error.remedy.contains(remedy), "{set:?}: {error:?}");
        let text = report.to_string();
        assert!(
            text.contains(&error.failed) && text.contains(&error.remedy),
            "{text}"
        );
        assert!(!text.contains("Nothing is missing"), "{text}");
    }
    assert_eq!(look(&tree("bare"), none(), &[]).errors, []);
}

#[test]
fn exit_status_is_1_if_the_requested_gpu_is_absent() {
    let absent = [
        ("GDS_GPU", "cuda"),
        ("GDS_CUDA_LIB", "/nonexistent/libcuda.so.1"),
    ];
    for format in [&[][..], &["--json"]] {
        let output = doctor()
            .args(format)
            .envs(absent)
            .output()
            .expect("it runs");
        let found = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{found}");
        assert!(
            found.contains("unset GDS_GPU") && found.contains("no usable CUDA driver"),
            "{found}"
        );
    }
}

#[test]
fn unknown_option_is_exit_status_2() {
    let output = doctor().arg("--nonsense").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
}

/// Without a name the GPU is that of the local rank; the report has an advice if there are more
/// ranks than GPUs.
#[test]
fn local_rank_selects_the_gpu() {
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let gpus = [("NVIDIA H200", H200), ("NVIDIA H200", H200)];
    let library = libcuda("libcuda-ranks.so", &gpus, ("", 0));
    let on = |variables: Variables<'_>| {
        let libraries = cuda_alone(library.clone());
        look(&tree("nvlink"), libraries, variables)
    };
    let cases: [(Variables<'_>, &str, &str); 5] = [
        (&[], "cuda: GPU 0", "software GPU"),
        (&[("MP_LOCAL_RANK", "3")], "cuda: GPU 1", "MP_LOCAL_RANK=3"),
        (
            &[("GDS_GPU", "cuda"), ("LOCAL_RANK", "1")],
            "GPU 1",
            "LOCAL_RANK=1",
        ),
        (
            &[("GDS_GPU", "cuda:0"), ("LOCAL_RANK", "1")],
            "GPU 0",
            "cuda:0",
        ),
        (&[("MP_LOCAL_RANK", "a")], "an error", "MP_LOCAL_RANK"),
    ];
    for (variables, choice, because) in cases {
        let report = on(variables);
        let used = &report.uses[0];
        assert!(used.choice.contains(choice), "{variables:?}: {used:?}");
        assert!(used.because.contains(because), "{variables:?}: {used:?}");
    }
    let crowded = |size| {
        let report = on(&[("MP_LOCAL_RANK", "0"), ("MP_LOCAL_SIZE", size)]);
        report.advice.iter().any(|a| a.missing.contains("4.5 ms"))
    };
    assert!(crowded("3") && !crowded("2"));
}

#[test]
fn exclusive_compute_mode_is_reported() {
    let exclusive: &[(u32, i32)] = &[(20, 3), (75, 9), (102, 1), (122, 1)];
    let library = libcuda("libcuda-exclusive.so", &[("NVIDIA X", exclusive)], ("", 0));
    let libraries = cuda_alone(library);
    let report = look(&tree("nvlink"), libraries, &[]);
    assert!(report.uses[0].choice.contains("cuda: GPU 0"));
    let advice = report
        .advice
        .iter()
        .find(|a| a.missing.contains("EXCLUSIVE_PROCESS"));
    let advice = advice.expect("advice about the compute mode");
    assert!(advice.remedy.contains("nvidia-smi"), "{}", advice.remedy);
}
