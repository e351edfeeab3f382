//! A C++ program that uses HIP and gdsync, compiled against the headers of HIP, on a stand-in for
//! libamdhip64.

#[path = "../../../libgdsync/tests/standin/mod.rs"]
mod standin;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use standin::{HIP_7, HIP_LIBRARY, Variant};

/// Compiles `hip_send.cpp` and links it to the library of gdsync-hip and to the stand-in.
fn program(standin: &Path) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gdsync-hip");
    let library = interop_tests::built("deps/libgdsync_hip.so");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hip_send");
    let mut command = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()));
    command
        .args(["-std=c++17", "-D__HIP_PLATFORM_AMD__", "-I"])
        .arg(package.join("include"))
        .arg(package.join("examples/hip_send.cpp"))
        .args([&library, standin])
        .arg("-o")
        .arg(&program);
    assert!(command.status().expect("a C++ compiler").success());
    program
}

/// Runs the program with the stand-in as its libamdhip64, and `library` as gdsync's.
fn run(program: &Path, standin: &Path, library: &Path) -> Output {
    let built = interop_tests::built("deps/libgdsync_hip.so");
    let folders = [built.parent().unwrap(), standin.parent().unwrap()];
    Command::new(program)
        .env_remove("GDS_GPU")
        .env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap())
        .env(HIP_LIBRARY, library)
        .envs([HIP_7])
        .output()
        .unwrap()
}

#[test]
#[cfg_attr(
    not(hip_headers),
    ignore = "needs the headers of HIP, Debian's libamdhip64-dev"
)]
fn program_in_cpp_sends_on_its_stream() {
    let standin = standin::build(&Variant::HIP7);
    let program = program(&standin);

    let output = run(&program, &standin, &standin);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{stderr}");
    let expected = "3 messages of 4096 bytes sent and received on a stream of HIP\n";
    assert_eq!(stdout, expected, "{stderr}");

    let output = run(&program, &standin, Path::new("/absent/libamdhip64.so"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("gdsync_hip_open("), "{stderr}");
    assert!(stderr.contains("/absent/libamdhip64.so"), "{stderr}");
}

#[test]
fn headers_are_present_where_they_are_required() {
    let required = std::env::var("GDS_REQUIRE").unwrap_or_default();
    let must = required.split(',').any(|what| what == "hip_headers");
    assert!(cfg!(hip_headers) || !must, "no headers of HIP");
}
