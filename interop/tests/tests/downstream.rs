//! A program in another workspace that uses gdsync, without the patch, builds.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn program_without_the_patch_builds_gdsync() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().unwrap();
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Outside of both workspaces: a separate [workspace] ends cargo's search upwards.
    let program = tmp.join("downstream");
    fs::create_dir_all(program.join("src")).unwrap();
    let manifest = format!(
        "[workspace]\n\n[package]\nname = \"downstream\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         [dependencies]\ngdsync = {{ path = {:?} }}\n",
        root.join("libgdsync")
    );
    fs::write(program.join("Cargo.toml"), manifest).unwrap();
    fs::write(
        program.join("src/main.rs"),
        "fn main() -> gdsync::Result<()> {\n    println!(\"{}\", gdsync::Gpu::soft()?.name());\n    Ok(())\n}\n",
    )
    .unwrap();
    // The versions that this workspace uses are available offline; cargo drops packages that are
    // not needed.
    fs::copy(root.join("interop/Cargo.lock"), program.join("Cargo.lock")).unwrap();

    let target = tmp.parent().expect("the target folder");
    let output = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--quiet"])
        .current_dir(&program)
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    let cried = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{cried}");

    let lock = fs::read_to_string(program.join("Cargo.lock")).unwrap();
    assert!(lock.contains("name = \"gdsync\""), "{lock}");
    for name in [
        "cust",
        "cust_raw",
        "find_cuda_helper",
        "cudarc",
        "ibverbs",
        "ibverbs-sys",
    ] {
        assert!(
            !lock.contains(&format!("name = \"{name}\"")),
            "{name} is among its dependencies"
        );
    }
}
