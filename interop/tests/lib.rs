//! Where the tests of this workspace find what cargo built beside them, and their libraries.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// An example of this workspace. Cargo builds it when it tests the whole workspace.
///
/// # Panics
/// It is not there.
pub fn example(name: &str) -> PathBuf {
    let here = std::env::current_exe().expect("a test has a file");
    let profile = here.ancestors().nth(2).expect("profile/deps/test");
    let path = profile.join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not built: test the whole workspace",
        path.display()
    );
    path
}

/// What an example says and ends with when `library` is its libcuda.
///
/// # Panics
/// It cannot be started.
pub fn run(name: &str, library: &Path, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(example(name));
    command
        .env_remove("GDS_REQUIRE")
        .env_remove("GDS_GPU")
        .env("GDS_CUDA_LIB", library)
        .envs(env.iter().copied());
    command.output().expect("an example starts")
}
