//! Shared libraries that the tests compile.

#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `source`, C, to the shared library `name` in `folder` and returns its path.
pub fn compile(folder: &Path, name: &str, source: &str) -> PathBuf {
    let c = folder.join(format!("{name}.{}.c", std::process::id()));
    std::fs::write(&c, source).expect("the target folder can be written");
    let library = compile_file(folder, name, &c, &["-O1", "-Wall", "-Werror"]);
    std::fs::remove_file(&c).expect("just written");
    library
}

/// As [`compile`], for the file `source`, with these arguments of the compiler.
///
/// The file is written under a temporary name and moved into place, so that tests of several
/// processes may compile the same library at once.
pub fn compile_file(folder: &Path, name: &str, source: &Path, arguments: &[&str]) -> PathBuf {
    let library = folder.join(name);
    let part = folder.join(format!("{name}.{}", std::process::id()));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let done = Command::new(compiler)
        .args(["-shared", "-fPIC", "-D_GNU_SOURCE=", "-o"])
        .args([&part, source])
        .args(arguments)
        .output()
        .expect("a C compiler is here");
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{stderr}");
    std::fs::rename(&part, &library).expect("just written");
    library
}

/// The linker argument for a version script.
pub fn exports(versions: &Path) -> String {
    format!("-Wl,--version-script={}", versions.display())
}
