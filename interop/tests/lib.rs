//! Locates the examples that cargo built, and the libraries of the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The path of an example of this workspace.
///
/// # Panics
/// If the example is absent.
pub fn example(name: &str) -> PathBuf {
    built(&format!("examples/{name}"))
}

/// The path of a file that cargo builds when it tests the whole workspace.
///
/// # Panics
/// If the file is absent.
pub fn built(name: &str) -> PathBuf {
    let here = std::env::current_exe().expect("a test has a file");
    let profile = here.ancestors().nth(2).expect("profile/deps/test");
    let path = profile.join(name);
    assert!(
        path.exists(),
        "{} is not built: test the whole workspace",
        path.display()
    );
    path
}

/// Runs an example with `library` as its libcuda; returns its output and exit status.
///
/// # Panics
/// If the example cannot be started.
pub fn run(name: &str, library: &Path, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(example(name));
    command
        .env_remove("GDS_REQUIRE")
        .env_remove("GDS_GPU")
        .env("GDS_CUDA_LIB", library)
        .envs(env.iter().copied());
    command.output().expect("an example starts")
}
