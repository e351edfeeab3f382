//! The doctor's output for the machines of `tests/machines`, compared with `*.txt` and `*.json`
//! beside them. `GDS_BLESS=1` writes these files again; read the diff then.

mod common;

use common::{
    H200, Libraries, OLD, SCRATCH, compile_libhip, libcuda, libgdrapi, libibverbs, libmlx5, look,
    none, tree,
};
use gdsync_doctor::Report;
use std::path::{Path, PathBuf};

fn one(path: PathBuf) -> Vec<std::ffi::OsString> {
    vec![path.into()]
}

/// Compares `found` with `tests/machines/NAME`.
fn golden(name: &str, found: &str) {
    // The test creates libraries in a folder of the build.
    let found = found.replace(SCRATCH, "/made") + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/machines")
        .join(name);
    if std::env::var_os("GDS_BLESS").is_some() {
        std::fs::write(&path, found).expect("it can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    if found == expected {
        return;
    }
    for (line, (is, was)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(is, was, "{name}:{}", line + 1);
    }
    panic!("{name}: one is longer than the other:\n{found}");
}

fn examine(name: &str, libraries: Libraries, variables: &[(&str, &str)]) -> Report {
    let report = look(&tree(name), libraries, variables);
    golden(&format!("{name}.txt"), &report.to_string());
    report
}

#[test]
fn bare_machine_gets_no_advice() {
    let report = examine("bare", none(), &[]);
    assert!(report.advice.is_empty());
    let json = serde_json::to_string_pretty(&report).expect("it can be written");
    golden("bare.json", &json);
}

#[test]
fn report_lists_absent_requests_with_remedies() {
    let requested = [("GDS_GPU", "cuda"), ("GDS_NIC", "mlx5_0")];
    let report = look(&tree("bare"), none(), &requested);
    golden("requested.txt", &report.to_string());
    assert_eq!(report.errors.len(), 2);
}

#[test]
fn report_of_a_gpu_without_nic() {
    let libraries = Libraries {
        cuda: one(libcuda(
            "libcuda-nvlink.so",
            &[("NVIDIA H200", H200)],
            ("", 0),
        )),
        ..none()
    };
    let report = examine("nvlink", libraries, &[]);
    let json = serde_json::to_string_pretty(&report).expect("it can be written");
    golden("nvlink.json", &json);
}

#[test]
fn complete_machine_gets_no_advice() {
    let gpus = [("NVIDIA H200", H200), ("NVIDIA H200", H200)];
    let libraries = Libraries {
        cuda: one(libcuda("libcuda-complete.so", &gpus, ("", 0))),
        gdrapi: one(libgdrapi("libgdrapi-complete.so", true)),
        ibverbs: one(libibverbs("libibverbs-complete.so", &["ibv_reg_dmabuf_mr"])),
        mlx5: one(libmlx5("libmlx5-complete.so")),
        hip: one(compile_libhip(
            "libamdhip64-complete.so",
            "#define COUNT 0\n#define VERSION 60443483\n#define FAILING \"\"\n#define CODE 0\n",
        )),
    };
    let variables = [
        ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
        ("CUDA_MODULE_LOADING", "EAGER"),
        ("GDS_GPU", "cuda:1"),
        ("GDS_NIC", "mlx5_0:1"),
    ];
    let report = examine("complete", libraries, &variables);
    assert!(report.advice.is_empty());
}

#[test]
fn report_of_a_troubled_machine_lists_every_remedy() {
    let libraries = Libraries {
        cuda: one(libcuda(
            "libcuda-troubled.so",
            &[("NVIDIA GeForce", OLD)],
            ("", 0),
        )),
        gdrapi: one(libgdrapi("libgdrapi-troubled.so", false)),
        ibverbs: one(libibverbs("libibverbs-troubled.so", &[])),
        ..none()
    };
    examine(
        "troubled",
        libraries,
        &[("CUDA_DEVICE_MAX_CONNECTIONS", "64")],
    );
}

#[test]
fn hardware_without_driver_is_found_on_the_pci_bus() {
    examine("undriven", none(), &[]);
}
