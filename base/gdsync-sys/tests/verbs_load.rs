//! Versioned symbols, and the verbs that are inline functions of the header.

mod shared;

use std::path::{Path, PathBuf};

use gdsync_sys::LoadError;
use gdsync_sys::mlx5::Mlx5;
use gdsync_sys::verbs::Ibverbs;

gdsync_sys::dl_api! {
    /// A library with versioned symbols.
    struct Versioned("versioned") {
        sonames: ["libgdsync-versioned.so.1"],
        env: "GDSYNC_VERSIONED_LIB",
        required {
            "V_2" fn twice(a: i32) -> i32;
        }
        optional {
            "V_1" fn once(a: i32) -> i32;
            "V_9" fn thrice(a: i32) -> i32;
        }
    }
}

/// A library from C source with a version script.
fn library(name: &str, source: &str, script: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let part = folder.join(format!("{name}.{}", std::process::id()));
    let (c, map) = (part.with_extension("c"), part.with_extension("map"));
    std::fs::write(&c, source).expect("the target folder can be written");
    std::fs::write(&map, script).expect("the target folder can be written");
    shared::compile_file(folder, name, &c, &["-O1", &shared::exports(&map)])
}

const BOTH: &str = "int twice_1(int a) { return -a; }\nint twice_2(int a) { return 2 * a; }\n\
     int once(int a) { return a; }\n\
     __asm__(\".symver twice_1,twice@V_1\");\n__asm__(\".symver twice_2,twice@@V_2\");\n";

#[test]
fn symbol_is_resolved_in_the_declared_version() {
    let path = library(
        "versioned-both.so",
        BOTH,
        "V_1 { global: once; twice; local: *; };\nV_2 { global: twice; } V_1;\n",
    );
    // SAFETY: made above, with these functions.
    let table = unsafe { Versioned::load_from([&path]) }.expect("all is there");
    assert!(table.thrice.is_none());
    let once = table.once.expect("it is there");
    // SAFETY: they take any number.
    unsafe {
        assert_eq!((table.twice)(21), 42);
        assert_eq!(once(7), 7);
    }
}

#[test]
fn symbol_of_another_version_is_not_reported_as_missing() {
    let old = library(
        "versioned-old.so",
        "int twice(int a) { return 2 * a; }\n",
        "V_1 { global: twice; local: *; };\n",
    );
    // SAFETY: made above; nothing is called.
    let error = unsafe { Versioned::load_from([&old]) }.expect_err("V_2 is not there");
    let LoadError::OtherVersion {
        symbol, version, ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((*symbol, *version), ("twice", "V_2"));
    let none = library(
        "versioned-none.so",
        "int once(int a) { return a; }\n",
        "V_1 { global: once; local: *; };\n",
    );
    // SAFETY: as above.
    let error = unsafe { Versioned::load_from([&none]) }.expect_err("no such symbol");
    assert!(
        matches!(
            error,
            LoadError::MissingSymbol {
                symbol: "twice",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn libraries_of_this_machine_fill_their_tables() {
    let required = std::env::var("GDS_REQUIRE").unwrap_or_default();
    let must = required.split(',').any(|what| what == "virt");
    for found in [
        Ibverbs::load().map(|t| t.path().to_owned()),
        Mlx5::load().map(|t| t.path().to_owned()),
    ] {
        match found {
            Ok(path) => assert!(path.to_string_lossy().starts_with("lib")),
            Err(LoadError::NotFound { tried, .. }) if !must => assert!(!tried.is_empty()),
            Err(e) => panic!("{e}"),
        }
    }
}
