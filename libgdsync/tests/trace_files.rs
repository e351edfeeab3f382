//! The file that `GDS_TRACE` names is written, or opening the GPU fails. Each test runs in a
//! separate process, because the environment belongs to the process.

mod child;

use std::path::{Path, PathBuf};

use gdsync::{Gpu, Kind};

const CHILD: &str = "TRACE_FILES_CHILD";

/// A path in the tests' folder where no file exists.
fn absent(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn opening_a_gpu_fails_when_its_trace_file_cannot_be_opened() {
    let path = "/nonexistent/folder/trace.txt";
    let name = child::test_name!();
    if child::is(CHILD, name) {
        for open in [Gpu::soft(), Gpu::open("soft"), Gpu::from_env()] {
            let e = open.expect_err("the folder does not exist");
            assert_eq!(e.kind(), Kind::System);
            let text = e.to_string();
            assert!(text.contains(path) && text.contains("GDS_TRACE"), "{text}");
        }
        return;
    }
    child::run(CHILD, name, |command| {
        command.env("GDS_TRACE", path).env("GDS_GPU", "soft");
        command.env_remove("MP_RANK");
    });
}

#[test]
fn each_rank_writes_a_trace_file_of_its_own() {
    let name = child::test_name!();
    if child::is(CHILD, name) {
        let gpu = Gpu::soft().unwrap();
        gpu.stream().unwrap();
        return;
    }
    let path = absent("trace_files.txt");
    for rank in [0, 12] {
        let own = absent(&format!("trace_files.txt.rank{rank}"));
        child::run(CHILD, name, |command| {
            command.env("GDS_TRACE", &path);
            command.env("MP_RANK", rank.to_string());
        });
        assert!(own.exists() && !path.exists(), "rank {rank}");
    }
}
