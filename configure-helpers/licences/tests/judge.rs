//! The rules on constructed metadata documents, and the program's result for them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use licences::{Graph, Policy};
use serde_json::{Value, json};

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

const DENY: &str = r#"
    [licenses]
    allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]
    [sources]
    allow-registry = ["https://github.com/rust-lang/crates.io-index"]
"#;

fn package(name: &str, license: Option<&str>, source: Option<&str>) -> Value {
    json!({ "id": name, "name": name, "version": "1.2.3", "license": license, "source": source })
}

/// A document of these packages, all resolved, whose only member is `ours`.
fn document(packages: &[Value]) -> Value {
    let nodes: Vec<_> = packages.iter().map(|p| json!({ "id": p["id"] })).collect();
    json!({
        "packages": packages,
        "workspace_members": ["ours"],
        "resolve": { "nodes": nodes },
    })
}

fn judge(document: &Value) -> Vec<String> {
    let policy = Policy::parse(DENY).expect("a good policy");
    policy.judge(&Graph::parse(&document.to_string()).expect("a good document"))
}

fn judge_licence(licence: &str) -> Vec<String> {
    judge(&document(&[package("dep", Some(licence), Some(CRATES_IO))]))
}

#[test]
fn expression_that_allowed_licences_meet_passes() {
    for licence in [
        "MIT",
        "MIT OR Apache-2.0",
        "MIT/Apache-2.0",
        "GPL-3.0-only OR MIT",
        "MIT AND (GPL-3.0-only OR Apache-2.0)",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        let offences = judge_licence(licence);
        assert!(offences.is_empty(), "{licence}: {offences:?}");
    }
}

#[test]
fn expression_that_needs_another_licence_fails() {
    for (licence, named) in [
        ("GPL-3.0-only", "GPL-3.0-only"),
        ("GPL-2.0", "GPL-2.0"),
        ("MIT AND Zlib", "Zlib"),
        ("MIT AND (ISC OR Zlib)", "ISC, Zlib"),
        ("MIT WITH LLVM-exception", "MIT WITH LLVM-exception"),
    ] {
        let rule = format!("is not allowed (not in licenses.allow: {named})");
        let expected = format!("dep 1.2.3: licence `{licence}` {rule}");
        assert_eq!(judge_licence(licence), [expected]);
    }
}

#[test]
fn invalid_spdx_expression_fails() {
    for licence in ["", "Proprietary", "MIT OR", "non-standard"] {
        let expected = format!("dep 1.2.3: licence `{licence}` is not an SPDX expression");
        assert_eq!(judge_licence(licence), [expected]);
    }
    let silent = judge(&document(&[package("dep", None, Some(CRATES_IO))]));
    assert_eq!(silent, ["dep 1.2.3: gives no SPDX licence"]);
}

#[test]
fn members_of_the_workspace_are_checked() {
    assert!(judge(&document(&[package("ours", Some("MIT"), None)])).is_empty());
    let offences = judge(&document(&[package("ours", Some("Zlib"), None)]));
    let rule = "licence `Zlib` is not allowed (not in licenses.allow: Zlib)";
    assert_eq!(offences, [format!("ours 1.2.3: {rule}")]);
}

#[test]
fn source_outside_the_allowed_registries_fails() {
    for source in [
        None,
        Some("git+https://example.org/dep?rev=1#0123"),
        Some("registry+https://example.org/index"),
        Some("registry+https://github.com/rust-lang/crates.io-index-not"),
    ] {
        let offences = judge(&document(&[package("dep", Some("MIT"), source)]));
        let origin = source.unwrap_or("a path outside the workspace");
        let rule = "is not allowed (not in sources.allow-registry)";
        assert_eq!(offences, [format!("dep 1.2.3: source {origin} {rule}")]);
    }
}

#[test]
fn only_resolved_packages_are_checked() {
    let mut document = document(&[
        package("ours", Some("MIT"), None),
        package("unused", Some("GPL-3.0-only"), None),
    ]);
    document["resolve"] = json!({ "nodes": [{ "id": "ours" }] });
    assert!(judge(&document).is_empty());
}

#[test]
fn incomplete_metadata_is_an_error() {
    let mut unresolved = document(&[]);
    unresolved["resolve"] = Value::Null;
    let mut undescribed = document(&[]);
    undescribed["resolve"] = json!({ "nodes": [{ "id": "ghost" }] });
    for (document, why) in [
        (unresolved.to_string(), "no resolved graph"),
        (undescribed.to_string(), "names ghost,"),
        ("{}".to_owned(), "not a document of"),
    ] {
        let error = Graph::parse(&document).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn invalid_policy_is_an_error() {
    for (policy, why) in [
        (DENY.replace("\"MIT\"", "\"MTI\""), "`MTI` is not an SPDX"),
        (
            "[licenses]\nallow = []".to_owned(),
            "not a usable deny.toml",
        ),
    ] {
        let error = Policy::parse(&policy).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// Runs the program on `document`, written to a file of that name.
fn run(name: &str, document: &Value) -> Output {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let keep = |file: String, text: &str| -> PathBuf {
        let path = folder.join(file);
        std::fs::write(&path, text).expect("a writable target folder");
        path
    };
    Command::new(env!("CARGO_BIN_EXE_licences"))
        .arg(keep(format!("{name}.toml"), DENY))
        .arg(keep(format!("{name}.json"), &document.to_string()))
        .output()
        .expect("the program starts")
}

#[test]
fn program_fails_and_prints_crate_and_licence() {
    let good = package("good", Some("MIT OR GPL-3.0-only"), Some(CRATES_IO));
    let bad = package("bad", Some("MIT AND GPL-3.0-only"), Some(CRATES_IO));

    let passed = run("good", &document(std::slice::from_ref(&good)));
    assert!(passed.status.success(), "{passed:?}");

    let failed = run("bad", &document(&[good, bad]));
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let stderr = String::from_utf8_lossy(&failed.stderr);
    assert!(
        stderr.contains("bad 1.2.3: licence `MIT AND GPL-3.0-only`"),
        "{stderr}"
    );
    assert!(!stderr.contains("good 1.2.3"), "{stderr}");

    let empty = run("empty", &document(&[]));
    assert!(!empty.status.success(), "{empty:?}");
}
