//! Libraries of C that tests make, to take the place of installed ones.

#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Compiles `source` to the library of this file name.
pub fn compile(name: &str, source: &Path, arguments: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let part = folder.join(format!("{name}.{}", std::process::id()));
    let done = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(["-shared", "-fPIC", "-D_GNU_SOURCE=", "-o"])
        .args([&part, source])
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    // Processes that run beside this one put the same there.
    let path = folder.join(name);
    std::fs::rename(&part, &path).unwrap();
    path
}

/// The argument by which a library exports what the file says.
pub fn exports(versions: &Path) -> String {
    format!("-Wl,--version-script={}", versions.display())
}

/// The library of `tests/NAME/verbs.c`, linked with these arguments; made once.
pub fn verbs(name: &str, arguments: &[&str]) -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests")
            .join(name);
        let exports = exports(&sources.join("verbs.map"));
        let arguments = [&[exports.as_str()], arguments].concat();
        let source = sources.join("verbs.c");
        compile(&format!("lib{name}.so"), &source, &arguments)
    })
}
