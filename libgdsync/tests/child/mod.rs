//! Tests in separate processes: the test program starts itself for one test, with another
//! environment, and a failure of that process fails the test.

#![allow(dead_code, unused_macros, unused_imports)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The time limit of a child.
const LIMIT: Duration = Duration::from_secs(300);

/// The name of the current test in its program.
macro_rules! test_name {
    () => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here);
        let path = path.strip_suffix("::here").unwrap();
        path.split_once("::").unwrap().1
    }};
}
pub(crate) use test_name;

/// Whether this is the process for the test `name`, which `variable` names.
pub fn is(variable: &str, name: &str) -> bool {
    match std::env::var(variable) {
        Ok(child) if child == name => true,
        Ok(child) => panic!("the process for {child} runs {name}"),
        Err(_) => false,
    }
}

/// Runs the test `name` of this program in a separate process: `variable` names the test, and
/// `prepare` sets the rest of the environment.
pub fn run(variable: &str, name: &str, prepare: impl FnOnce(&mut Command)) {
    // Cargo does not set this folder for unit tests.
    let folder = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    // Two tests may run the same child at the same time.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let output = folder.join(format!(
        "{variable}-{}-{count}-{}",
        std::process::id(),
        name.replace("::", "-")
    ));
    let file = std::fs::File::create(&output).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env(variable, name)
        .stdout(file.try_clone().unwrap())
        .stderr(file);
    prepare(&mut command);
    let mut child = command.spawn().unwrap();
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
    let text = std::fs::read_to_string(&output).unwrap_or_default();
    std::fs::remove_file(&output).unwrap();
    // With a wrong name no test would run, and the failure would stay hidden.
    let passed = end == "exit status: 0" && text.contains("test result: ok. 1 passed");
    assert!(passed, "{name}: {end}\n{text}");
    // Shown by `--nocapture`.
    print!("{text}");
}
