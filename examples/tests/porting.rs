//! The programs and texts of `docs/porting.md`: the MPI program compiles, its ports give the result
//! of a serial run, and the page quotes both, and names tests that exist.

mod shared;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use shared::{launch, run, text, threads};

const PORTING: &str = env!("CARGO_BIN_EXE_porting");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn file(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Rows by eager and by rendezvous messages, strips without an interior, and a rank alone.
#[test]
fn each_version_equals_the_serial_run() {
    for (ranks, options) in [
        (1, &[][..]),
        (2, &["--rows", "1", "--width", "1"]),
        (3, &[]),
        (3, &["--width", "1000"]),
    ] {
        let launched = launch(ranks, &[&[PORTING], options].concat());
        for output in [launched, threads(PORTING, ranks, options)] {
            assert!(output.status.success(), "{}", text(&output));
            for rank in 0..ranks {
                let words = format!("porting: rank {rank} of {ranks}: 4 versions equal");
                assert!(text(&output).contains(&words), "{}", text(&output));
            }
        }
    }
}

/// The declarations of MPI and CUDA that it uses are beside it.
#[test]
fn the_mpi_program_compiles() {
    let folder = root().join("examples/porting");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"]);
    cc.args(["-fsyntax-only", "-I"]).arg(folder.join("include"));
    let output = run(cc.arg(folder.join("halo.c")));
    assert!(output.status.success(), "{}", text(&output));
}

/// Fences of a language in the page, without the spaces around their lines.
fn fences(page: &str, language: &str) -> Vec<String> {
    let opening = format!("```{language}\n");
    let fences = page.split(&opening).skip(1);
    fences
        .map(|rest| trimmed(rest.split("```").next().unwrap()))
        .collect()
}

fn trimmed(text: &str) -> String {
    text.lines().flat_map(|line| [line.trim(), "\n"]).collect()
}

#[test]
fn the_page_quotes_the_programs() {
    let page = file("docs/porting.md");
    for (language, source) in [
        ("c", "examples/porting/halo.c"),
        ("rust", "examples/porting/halo.rs"),
    ] {
        let (quoted, source) = (fences(&page, language), trimmed(&file(source)));
        assert!(!quoted.is_empty(), "no fence of the language {language}");
        for fence in quoted {
            assert!(source.contains(&fence), "not in the program:\n{fence}");
        }
    }
}

/// A test stands in the page as `` `FILE`: `NAME` ``, with further names behind commas.
#[test]
fn tests_that_the_page_names_exist() {
    let page = file("docs/porting.md");
    let mut found = 0;
    for (path, names) in page.lines().filter_map(|l| l.split_once(".rs`: ")) {
        let source = file(&format!("{}.rs", path.rsplit('`').next().unwrap()));
        for name in names.split('`').skip(1).step_by(2) {
            let test = format!("#[test]\nfn {name}()");
            assert!(source.contains(&test), "no test {name} in {path}.rs");
            found += 1;
        }
    }
    assert!(found >= 6, "{found} tests are named");
}
