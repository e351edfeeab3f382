//! The program of `docs/kernels.md`: the page contains the files unchanged, and the program runs.

use std::path::Path;
use std::process::{Command, Stdio};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn kernels_page_contains_the_files_of_the_package() {
    let page = read("../../docs/kernels.md");
    for (language, file) in [
        ("cpp", "device/scale.cu"),
        ("rust", "build.rs"),
        ("rust", "src/main.rs"),
    ] {
        let block = format!("`{file}`:\n\n```{language}\n{}```", read(file));
        assert!(
            page.contains(&block),
            "docs/kernels.md shows another {file}"
        );
    }
}

#[test]
fn kernel_runs_between_receive_and_send_on_three_ranks() {
    let job = format!("own-kernel-{}", std::process::id());
    let ranks = [0, 1, 2].map(|rank: u32| {
        Command::new(env!("CARGO_BIN_EXE_own-kernel"))
            .envs([("GDS_GPU", "soft"), ("GDS_PROVIDER", "emulated")])
            .envs([("MP_JOB", job.as_str()), ("MP_SIZE", "3")])
            .env("MP_RANK", rank.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    });
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rank {rank}: {wrong}");
        let number = 2 << rank;
        let expected = format!("own-kernel: rank {rank}: 1000 numbers are {number}: ok");
        assert_eq!(said.trim(), expected);
    }
}
