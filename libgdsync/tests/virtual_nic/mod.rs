//! Tests in a process of their own in which rdma-core finds a virtual ConnectX: `libvmlx5.so` is
//! built from this workspace and preloaded. The first line of such a test is `inside!`.

#![allow(dead_code, unused_macros, unused_imports)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Tells a child which test it is.
const CHILD: &str = "VIRTUAL_NIC_CHILD";
/// Ends a child that hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// Environment of the process.
pub type Vars<'a> = &'a [(&'a str, &'a str)];

/// Goes on in a process of its own with a virtual NIC, and these variables set.
macro_rules! inside {
    ($vars:expr) => {
        fn here() {}
        let path = std::any::type_name_of_val(&here);
        let (_, name) = path
            .strip_suffix("::here")
            .unwrap()
            .split_once("::")
            .unwrap();
        if !crate::virtual_nic::is_child(name, $vars, true) {
            return;
        }
    };
}
pub(crate) use inside;

/// As `inside!`, without a virtual NIC.
macro_rules! outside {
    ($vars:expr) => {
        fn here() {}
        let path = std::any::type_name_of_val(&here);
        let (_, name) = path
            .strip_suffix("::here")
            .unwrap()
            .split_once("::")
            .unwrap();
        if !crate::virtual_nic::is_child(name, $vars, false) {
            return;
        }
    };
}
pub(crate) use outside;

/// Whether this is the process for the test `name`. If not, it is started, and its failure is
/// this test's.
pub fn is_child(name: &str, vars: Vars<'_>, nic: bool) -> bool {
    match std::env::var(CHILD) {
        Ok(child) if child == name => return true,
        Ok(child) => panic!("the process for {child} runs {name}"),
        Err(_) => {}
    }
    let fabric = format!("gdsync-test-{}-{name}", std::process::id()).replace("::", "-");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env_remove("GDS_NIC")
        .env_remove("GDS_PROVIDER")
        .env_remove("GDS_LOWER")
        .env("VMLX5_FABRIC", &fabric[..fabric.len().min(64)])
        .env(CHILD, name)
        .envs(vars.iter().copied());
    if nic {
        command.env("LD_PRELOAD", library());
    }
    if std::env::var_os("TSAN_OPTIONS").is_some() {
        // The sanitizer's handlers of faults are not to be shared.
        command.env("VMLX5_GUARD", "syscall");
    }
    run(name, &mut command);
    false
}

fn run(name: &str, command: &mut Command) {
    let said = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "virtual-nic-{}-{}",
        std::process::id(),
        name.replace("::", "-")
    ));
    let file = std::fs::File::create(&said).unwrap();
    let mut child = command
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .spawn()
        .unwrap();
    let start = Instant::now();
    let end = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.to_string();
        }
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            break "it hangs".to_owned();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = std::fs::read_to_string(&said).unwrap_or_default();
    std::fs::remove_file(&said).unwrap();
    // A name that is no test's would be a test that never fails.
    let passed = end == "exit status: 0" && text.contains("test result: ok. 1 passed");
    assert!(passed, "{name}: {end}\n{text}");
}

/// The library to preload, built if its sources have changed: as `emulator/ci/run` builds it.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        // target/PROFILE/deps/PROGRAM
        let target = exe.ancestors().nth(3).unwrap();
        let done = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["build", "--quiet", "--profile", "test"])
            // Both, as there: alone, it would be another build.
            .args(["--package", "vmlx5-preload", "--package", "vmlx5-cli"])
            // As everybody has it, also where this test is built for a sanitizer.
            .env_remove("RUSTFLAGS")
            .env_remove("RUSTC_BOOTSTRAP")
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
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
