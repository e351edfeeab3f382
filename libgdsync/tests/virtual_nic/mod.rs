//! Tests in separate processes in which rdma-core finds a virtual ConnectX: `libvmlx5.so` is built
//! from this workspace and preloaded. Each of these tests begins with `inside!` or `outside!`.

#![allow(dead_code, unused_macros, unused_imports)]

// A test that includes this file, and also a file that includes the same module, compiles the
// module twice.
#[allow(clippy::duplicate_mod)]
#[path = "../child/mod.rs"]
pub mod child;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The variable that names a NIC of this machine, in the form of `GDS_NIC`. The tests use that NIC
/// in place of the virtual one.
const REAL: &str = "GDS_TEST_NIC";

/// The variable that names the test which a child process runs.
const CHILD: &str = "VIRTUAL_NIC_CHILD";

/// Variables that are set in the environment of the process.
pub type Vars<'a> = &'a [(&'a str, &'a str)];

/// Continues in a separate process with a virtual NIC, or the one that `GDS_TEST_NIC` names, and
/// with these variables set.
macro_rules! inside {
    ($vars:expr) => {
        let name = crate::virtual_nic::child::test_name!();
        if !crate::virtual_nic::is_child(name, $vars, true) {
            return;
        }
    };
}
pub(crate) use inside;

/// As `inside!`, with the stand-in for libcuda too.
macro_rules! inside_with_cuda {
    ($($var:expr),*) => {
        let library = crate::standin::build(&crate::standin::Variant::default());
        let vars = [(crate::standin::LIBRARY, library.to_str().unwrap()), $($var),*];
        crate::virtual_nic::inside!(&vars);
    };
}
pub(crate) use inside_with_cuda;

/// A test for each line, in a separate process with a virtual NIC: its name, the variables of the
/// process if it has any, and its body.
macro_rules! cases {
    (@) => { &[] };
    (@ $vars:expr) => { $vars };
    ($($(#[$doc:meta])* $name:ident $(in $vars:expr)? => $body:expr;)*) => {$(
        $(#[$doc])*
        #[test]
        #[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
        fn $name() {
            crate::virtual_nic::inside!(crate::virtual_nic::cases!(@ $($vars)?));
            $body;
        }
    )*};
}
pub(crate) use cases;

/// As `inside!`, without a virtual NIC and without `GDS_TEST_NIC`.
macro_rules! outside {
    ($vars:expr) => {
        let name = crate::virtual_nic::child::test_name!();
        if !crate::virtual_nic::is_child(name, $vars, false) {
            return;
        }
    };
}
pub(crate) use outside;

/// Whether this is the process for the test `name`. If not, the function runs that process, and
/// panics if it fails. `nic`: the process gets a NIC.
pub fn is_child(name: &str, vars: Vars<'_>, nic: bool) -> bool {
    if child::is(CHILD, name) {
        return true;
    }
    let fabric = format!("gdsync-test-{}-{name}", std::process::id()).replace("::", "-");
    child::run(CHILD, name, |command| {
        command
            .env_remove("GDS_NIC")
            .env_remove("GDS_PROVIDER")
            .env_remove("GDS_DOORBELL")
            .env_remove("GDS_ENDPOINT")
            .env_remove("GDS_LOWER")
            .env_remove("GDS_VERBS_THREAD")
            .env("VMLX5_FABRIC", &fabric[..fabric.len().min(64)])
            .envs(vars.iter().copied());
        if nic && let Ok(real) = std::env::var(REAL) {
            command.env("GDS_NIC", real);
        } else if nic {
            command.env("LD_PRELOAD", library());
        }
        if std::env::var_os("TSAN_OPTIONS").is_some() {
            // Both the sanitizer and the guard with signals install handlers for faults.
            command.env("VMLX5_GUARD", "syscall");
        }
    });
    false
}

/// The library to preload, rebuilt if its sources have changed: as `emulator/ci/run` builds it.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        // target/PROFILE/deps/PROGRAM; tests of the workspace interop have a target folder inside
        // this workspace's.
        let target = exe.ancestors().nth(3).unwrap();
        let target = match target.file_name() {
            Some(name) if name == "interop" => target.parent().unwrap(),
            _ => target,
        };
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let home = |folder: &&Path| folder.join("emulator/vmlx5-preload").exists();
        let workspace = here.ancestors().find(home).unwrap();
        let done = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["build", "--quiet", "--profile", "test"])
            // Both packages, as there: cargo unifies the features of the packages of one command,
            // so a build of one package alone may have other features.
            .args(["--package", "vmlx5-preload", "--package", "vmlx5-cli"])
            // The ordinary build, even if this test is built for a sanitizer.
            .env_remove("RUSTFLAGS")
            .env_remove("RUSTC_BOOTSTRAP")
            .arg("--target-dir")
            .arg(target)
            .current_dir(workspace)
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        let library = target.join("debug/libvmlx5.so");
        assert!(library.exists(), "no {}", library.display());
        library
    })
}
