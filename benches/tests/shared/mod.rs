//! Common parts of the tests of programs: start, time limit, and reading of results.

#![allow(dead_code)]

pub mod short;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Time limit of any of these programs, also on a slow machine.
pub const LIMIT: Duration = Duration::from_secs(100);

/// The program on a GPU, without variables that change its behaviour. Messages beside verbs pass the
/// NIC, as the verbs do; others take the path that the ranks choose.
pub fn mpbench(gpu: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpbench"));
    command
        .args(["--parent", &std::process::id().to_string()])
        .args(arguments)
        .env("GDS_GPU", gpu)
        .env_remove("GDS_LOWER")
        .env_remove("GDS_PROVIDER")
        .env_remove("GDS_DOORBELL")
        .env_remove("GDS_ENDPOINT")
        .env_remove("GDS_TRACE")
        .env_remove("MP_PATH")
        .stdin(Stdio::null());
    if arguments.contains(&"both") {
        command.env("MP_PATH", "nic");
    }
    command
}

pub fn start(command: &mut Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the program; kills it, and fails, if it does not end.
pub fn end(mut child: Child) -> Output {
    let deadline = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the program hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// All output.
pub fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}\n{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

/// A folder that is removed on drop.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("mpbench-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn json(path: impl AsRef<Path>) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub fn number(value: &Value, at: &str) -> f64 {
    value
        .pointer(at)
        .and_then(Value::as_f64)
        .unwrap_or_else(|| panic!("no number {at} in {value:#}"))
}
