//! Libraries of C that tests build, in place of installed ones.

#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../../base/gdsync-sys/tests/shared/mod.rs"]
mod shared;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use shared::exports;

/// Compiles `source` to the library of this file name.
pub fn compile(name: &str, source: &Path, arguments: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    shared::compile_file(folder, name, source, arguments)
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
