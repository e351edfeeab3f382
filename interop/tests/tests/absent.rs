//! Without CUDA or libibverbs, the example programs start and report the absence; they succeed, or
//! fail if `GDS_REQUIRE` names the library.

use std::path::Path;
use std::process::Command;

use interop_tests::{example, run};

const EXAMPLES: [&str; 2] = ["cust_send", "cudarc_send"];

#[test]
fn absent_libcuda_is_reported_without_a_panic() {
    for name in EXAMPLES {
        let output = run(name, Path::new("/nowhere/libcuda.so.1"), &[]);
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {stdout}{stderr}");
        assert!(stdout.starts_with("not run: no CUDA: "), "{name}: {stdout}");
        assert!(stderr.is_empty(), "{name}: {stderr}");
    }
    let output = run("cust_send", Path::new("/nowhere/libcuda.so.1"), &[]);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    // cust's own error names the file that was tried, and the reason of the failure.
    assert!(stdout.contains("/nowhere/libcuda.so.1"), "{stdout}");
    assert!(stdout.contains("No such file"), "{stdout}");
}

#[test]
fn required_but_absent_library_is_a_failure() {
    for name in EXAMPLES {
        let env = [("GDS_REQUIRE", "soft,cuda")];
        let output = run(name, Path::new("/nowhere/libcuda.so.1"), &env);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {stderr}");
        assert!(
            stderr.contains("GDS_REQUIRE lists cuda"),
            "{name}: {stderr}"
        );
    }
}

#[test]
fn absent_libibverbs_is_reported_without_a_panic() {
    let program = |required: Option<&str>| {
        let mut command = Command::new(example("ibverbs_send"));
        command
            .env_remove("GDS_REQUIRE")
            .env("GDS_IBVERBS_LIB", "/nowhere/libibverbs.so.1");
        if let Some(required) = required {
            command.env("GDS_REQUIRE", required);
        }
        command.output().expect("an example starts")
    };
    let output = program(None);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.starts_with("not run: no RDMA: "), "{stdout}");
    assert!(stdout.contains("shared library"), "{stdout}");
    assert!(stderr.is_empty(), "{stderr}");
    let output = program(Some("soft,rdma"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("GDS_REQUIRE lists rdma"), "{stderr}");
}

#[test]
fn examples_do_not_link_cuda_or_libibverbs() {
    for name in [EXAMPLES[0], EXAMPLES[1], "ibverbs_send"] {
        let output = Command::new("readelf")
            .args(["--dynamic", "--wide"])
            .arg(example(name))
            .output()
            .expect("readelf, of binutils");
        let text = String::from_utf8(output.stdout).unwrap();
        let needed: Vec<&str> = text.lines().filter(|l| l.contains("(NEEDED)")).collect();
        assert!(needed.iter().any(|l| l.contains("[libc.so")), "{text}");
        let theirs = ["cuda", "verbs", "mlx5", "rdma"];
        let linked = |l: &&str| theirs.iter().any(|name| l.contains(name));
        assert!(!needed.iter().any(linked), "{needed:?}");
    }
}
