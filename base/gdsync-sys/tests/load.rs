//! Tables filled from good libraries, from libraries that lack a function, and from missing
//! libraries.

mod shared;

use gdsync_sys::LoadError;
use std::path::{Path, PathBuf};

gdsync_sys::dl_api! {
    /// A small library that the test compiles.
    struct Small("small") {
        sonames: ["libgdsync-small.so.9", "libgdsync-small.so.8"],
        env: "GDSYNC_SMALL_LIB",
        required {
            fn small_add(a: i32, b: i32) -> i32;
            fn small_count();
        }
        optional {
            fn small_counted() -> i32;
            fn small_future(a: i32) -> i32;
        }
    }
}

const ADD: &str = "int small_add(int a, int b) { return a + b; }\n";
const COUNT: &str = "static int n;\nvoid small_count(void) { n++; }\n";
const COUNTED: &str = "int small_counted(void) { return n; }\n";

fn library(name: &str, parts: &[&str]) -> PathBuf {
    shared::compile(
        Path::new(env!("CARGO_TARGET_TMPDIR")),
        name,
        &parts.concat(),
    )
}

/// # Safety
/// As `Small::load_from`.
unsafe fn load(paths: &[&Path]) -> Result<Small, LoadError> {
    // SAFETY: the caller's promise.
    unsafe { Small::load_from(paths) }
}

#[test]
fn functions_of_a_good_library_are_called() {
    let path = library("small-good.so", &[ADD, COUNT, COUNTED]);
    // SAFETY: the library was made above, with these functions.
    let small = unsafe { load(&[&path]) }.expect("all is there");
    assert_eq!(small.path(), path);
    assert!(small.small_future.is_none());
    let counted = small.small_counted.expect("it is there");
    // SAFETY: the functions take any numbers.
    unsafe {
        assert_eq!((small.small_add)(40, 2), 42);
        (small.small_count)();
        (small.small_count)();
        assert_eq!(counted(), 2);
    }
    let add = small.small_add;
    drop(small);
    // SAFETY: as above; the library stays open.
    assert_eq!(unsafe { add(1, 2) }, 3);
}

#[test]
fn every_path_is_tried_and_reported_with_its_reason() {
    let good = library("small-last.so", &[ADD, COUNT]);
    let absent = Path::new("/nonexistent/libsmall.so");
    // SAFETY: nothing is loaded but the library made above.
    let small = unsafe { load(&[absent, Path::new(""), &good]) }.expect("the last is good");
    assert_eq!(small.path(), good);
    assert!(small.small_counted.is_none());

    let text = good.with_extension("txt");
    std::fs::write(&text, "not a library").expect("the target folder can be written");
    // SAFETY: nothing can be loaded.
    let error = unsafe { load(&[absent, Path::new(""), &text]) }.expect_err("none is good");
    let LoadError::NotFound { api, tried } = &error else {
        panic!("{error}");
    };
    assert_eq!(*api, "small");
    let paths: Vec<&Path> = tried.iter().map(|t| t.path.as_path()).collect();
    assert_eq!(paths, [absent, Path::new(""), &text]);
    assert!(
        tried[0].reason.contains("No such file"),
        "{}",
        tried[0].reason
    );
    assert!(tried[1].reason.contains("empty"), "{}", tried[1].reason);
    assert!(
        tried[2].reason.contains("file too short") || tried[2].reason.contains("ELF"),
        "{}",
        tried[2].reason
    );
    let text = error.to_string();
    assert!(text.starts_with("no small library could be opened (/nonexistent/libsmall.so: "));
    assert!(text.contains("; "), "{text}");
}

#[test]
fn empty_list_of_paths_is_reported() {
    // SAFETY: nothing is loaded.
    let error = unsafe { load(&[]) }.expect_err("there is nothing to try");
    assert_eq!(
        error.to_string(),
        "no small library could be opened (no path to try)"
    );
}

#[test]
fn missing_symbol_is_reported_with_its_library() {
    let path = library("small-old.so", &[ADD]);
    // SAFETY: the library was made above.
    let error = unsafe { load(&[&path]) }.expect_err("small_count is missing");
    assert_eq!(
        error,
        LoadError::MissingSymbol {
            api: "small",
            library: path.clone(),
            symbol: "small_count",
        }
    );
    assert_eq!(
        error.to_string(),
        format!(
            "{} has no small_count, which the small table requires",
            path.display()
        )
    );
}

#[test]
fn default_table_is_cached_and_its_error_lists_the_paths() {
    let error = Small::get().expect_err("there is no such library");
    let LoadError::NotFound { tried, .. } = error else {
        panic!("{error}");
    };
    let paths: Vec<&str> = tried.iter().filter_map(|t| t.path.to_str()).collect();
    assert_eq!(paths, Small::SONAMES);
    assert!(std::ptr::eq(error, Small::get().expect_err("still not")));
}

#[test]
fn variable_overrides_the_sonames() {
    // PATH is set wherever tests run, and stands for any variable that is.
    let set = std::env::var_os("PATH").expect("PATH is set");
    assert_eq!(gdsync_sys::library::candidates("PATH", &["a", "b"]), [set]);
    assert_eq!(
        gdsync_sys::library::candidates("GDSYNC_NOBODY_SETS_THIS", &["a", "b"]),
        ["a", "b"]
    );
}
