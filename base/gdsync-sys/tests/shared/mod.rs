//! Shared libraries compiled by the tests themselves.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `source`, C, to the shared library `name` in `folder` and says where it lies.
///
/// Written under another name and moved into place, so that tests of several processes may make
/// the same library at once.
pub fn compile(folder: &Path, name: &str, source: &str) -> PathBuf {
    let library = folder.join(name);
    let part = folder.join(format!("{name}.{}", std::process::id()));
    let c = part.with_extension("c");
    std::fs::write(&c, source).expect("the target folder can be written");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let done = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
        .args([&part, &c])
        .output()
        .expect("a C compiler is here");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    std::fs::remove_file(&c).expect("just written");
    std::fs::rename(&part, &library).expect("just written");
    library
}
