//! Each rule of the list, in a small source.

use crate::list::List;
use crate::read::Source;

/// The list of a crate with this text; `// FILE` begins a file.
fn list(text: &str) -> List {
    let mut source = Source::default();
    for text in text.split("// ").filter(|text| !text.trim().is_empty()) {
        let (file, text) = text.split_once('\n').expect("a file");
        source.read_file(file, text).expect("valid Rust");
    }
    List::of(&source, &["lacks"])
}

/// Compares the lines of a crate.
#[track_caller]
fn check(text: &str, expected: &str) {
    let list = list(&format!(
        "// src/lacks.rs\nfn lacks() {{}} // src/a.rs\n{text}"
    ));
    let expected: Vec<&str> = expected.trim().lines().map(str::trim).collect();
    assert_eq!(Vec::from_iter(list.lines), expected);
    assert!(list.faults.is_empty(), "{:?}", list.faults);
}

#[test]
fn texts_of_literals_constants_and_variables() {
    check(
        r#"
        const OPEN: &str = "open";
        fn g() { const OPEN: &str = "adopt"; Error::new(OPEN, Kind::Busy, "it is gone") }
        fn a() {
            const NAME: &str = "close";
            let what = "it is in use".to_owned();
            Err(Error::new(NAME, Kind::Busy, what))
        }
        mod b { fn b() { const NAME: &str = "enter"; Error::new(NAME, Kind::Busy, "it is gone") } }
        fn c() {
            let what = if x { "it is long" } else { match y { 0 => return, _ => String::from("it is short") } };
            Error::new(OPEN, Kind::Failed(status), what)
        }
        fn d() { let Some(what) = (n > 1).then(|| "it is old") else { return }; Error::new(OPEN, Kind::Busy, what) }
        fn e() { let what = "it is odd"; { let what = format!("{what}, always"); Error::new(OPEN, Kind::Absent, what) } }
        fn f() { if let (1, what) = (1, "it was odd") { Error::new(OPEN, Kind::Absent, what) } }
        "#,
        "`adopt`, `enter` Busy: it is gone
        `close` Busy: it is in use
        `open` Absent: it is odd, always
        `open` Absent: it was odd
        `open` Busy: it is old
        `open` Failed: it is long
        `open` Failed: it is short",
    );
}

#[test]
fn constants_of_other_files_the_nearest_first() {
    check(
        r#"fn f() { Error::new(OPEN, Kind::Busy, "it is busy") } // src/a/mod.rs
        const OPEN: &str = "open a"; // src/a/x.rs
        fn f() { Error::new(super::OPEN, Kind::Busy, "it is late") } // src/b/mod.rs
        pub const OPEN: &str = "open b"; // src/b/y.rs
        const OPEN: &str = "open y";
        fn g() { Error::new(CLOSE, Kind::Busy, "it is closed") } // src/c/x.rs
        pub(crate) const CLOSE: &str = "close c"; // src/d/x.rs
        pub(super) const CLOSE: &str = "close d";"#,
        "`close c` Busy: it is closed
        `open a` Busy: it is late
        `open b` Busy: it is busy",
    );
}

#[test]
fn placeholders_have_names_and_no_format() {
    check(
        r#"fn f(&self, n: usize) {
            let what = format!("{n:#x} of {:?} is {{{self:?}}} at {}, {}", self.name, &to.len(), time(1));
            Error::new("count", Kind::Invalid, what)
        }"#,
        "`count` Invalid: {n} of {name} is {{self}} at {to.len}, {time}",
    );
}

#[test]
fn the_first_variable_of_several_words_is_replaced_in_a_text() {
    check(
        r#"fn f() {
            let name = if x { "GDS_GPU" } else { "GDS_NIC" };
            let why = if x { "it is too long" } else { "it is no number" };
            Error::new("read", Kind::Invalid, format!("{name}={}: {why}, {why}", value))
        }"#,
        "`read` Invalid: {name}={value}: it is no number, {why}
        `read` Invalid: {name}={value}: it is too long, {why}",
    );
}

#[test]
fn parameters_have_the_texts_of_their_calls() {
    check(
        r#"fn refuse(operation: &'static str, kind: Kind, what: &str) -> Error {
            Error::new(operation, kind, format!("{what} of {n} bytes"))
        }
        fn between(operation: &'static str, what: &str) { refuse(operation, Kind::Busy, what) }
        fn a() { between("read", "the page"); refuse("write", Kind::Absent, "the disk") }
        fn b(&self) {
            let late = |what| Error::new("wait", Kind::Timeout, what);
            late("the time has passed"); self.check("test")
        }
        fn late(&self, what: &str) { self.late("no closure") }
        fn check(&self, operation: &'static str) { Error::new(operation, Kind::Closed, "it is closed") }
        fn d(operation: &'static str) { Error::new(operation, Kind::Closed, "it was never open") }"#,
        "`read` Busy: the page of {n} bytes
        `test` Closed: it is closed
        `wait` Timeout: the time has passed
        `write` Absent: the disk of {n} bytes
        `{operation}` Closed: it was never open",
    );
}

#[test]
fn functions_of_the_same_file_come_first_and_numbers_are_no_texts() {
    check(
        r#"fn fail(what: &str, n: u32) { Error::new("a", Kind::Busy, format!("{n}: {what}")) }
        fn a() { fail("a is busy", "no number") } // src/b.rs
        fn fail(what: &str, n: u32) { Error::new("b", Kind::Busy, format!("{n}: {what}")) }
        fn b() { fail("b is busy", 2) }"#,
        "`a` Busy: {n}: a is busy
        `b` Busy: {n}: b is busy",
    );
}

#[test]
fn parts_of_one_branch_and_of_one_call_belong_together() {
    check(
        r#"fn f() -> Error {
            let (kind, what) = match e { Full => (Kind::QueueFull, "it is full"), _ => (Kind::Busy, "it is busy") };
            let error = Error::new("push", kind, what);
            error.with_limit(1, "blocks").with_source(e)
        }
        fn g() {
            let fail = |what, unit| Err(Error::new("pull", Kind::Busy, what).with_limit(1, unit));
            fail("it is long", "bytes"); fail("it is late", "ms")
        }"#,
        "`pull` Busy: it is late (limit ms)
        `pull` Busy: it is long (limit bytes)
        `push` Busy: it is busy (limit blocks)
        `push` QueueFull: it is full (limit blocks)",
    );
}

#[test]
fn functions_that_return_texts_and_other_errors() {
    check(
        r#"impl Error { fn unknown() { Self::new("test", Kind::Absent, "it is unknown") } }
        impl Other { fn make() { Self::new("a", Kind::Busy, "no error") } }
        fn old(n: u32) -> String { format!("{n} is too old") }
        fn a() { Error::new("open", Kind::Invalid, old(1)) }
        fn b() { x().map_err(|e| Error::new("close", Kind::Busy, e.to_string())) }
        fn c(e: Error) { Error::new(e.operation(), Kind::System, e.reason().to_owned()) }"#,
        "`close` Busy: {e}
        `open` Invalid: {n} is too old
        `test` Absent: it is unknown
        `{operation}` System: {e}",
    );
}

#[test]
fn operations_share_a_line_and_tests_have_none() {
    check(
        r#"fn f(operation: &'static str) { Error::new(operation, Kind::Busy, "it is busy") }
        fn g(operation: &'static str) { Error::new(operation, Kind::Busy, "it is gone") }
        fn a() { f("a"); f("b"); f("c"); f("d"); g("a"); g("b"); g("c"); g("d"); g("e") }
        #[cfg(test)] mod tests { fn f() { Error::new("test", Kind::Busy, "it is a test") } }
        #[test] fn h() { Error::new("test", Kind::Busy, "it is a test") }"#,
        "`a`, `b`, `c`, `d` Busy: it is busy
        many operations Busy: it is gone",
    );
}

#[test]
fn messages_of_enums_and_pieces_of_texts() {
    let list = list(
        r#"// a.rs
        enum Bad { #[error("it has version {0:x}, not {v}", v = VERSION)] Version(u32) }
        fn lacks() { let (room, what) = ("no", format!("no {room:?} here")); format!("{what}") }"#,
    );
    assert_eq!(
        Vec::from_iter(list.messages),
        ["it has version {0}, not {v}"]
    );
    assert_eq!(Vec::from_iter(list.pieces), ["no {room} here"]);
}

#[test]
fn faults_have_a_place() {
    let text = r#"// a.rs
        fn f() { vec![Error::new("a", Kind::Busy, "b"); 2] }
        fn f() { Error::new("a", Kind::Busy, self.name) }
        fn f() { Error::new("a", Kind::Busy, "") }
        fn f() { Error::new("", Kind::Busy, "b") }
        fn f() { full().with_limit(1, "") }
        fn f() { Error::new({ return; }, Kind::Busy, "b") }"#;
    let expected = [
        "a.rs:1: an error in a macro",
        "a.rs:2: no text is found for the reason",
        "a.rs:3: an empty reason",
        "a.rs:4: an empty operation",
        "a.rs:5: an empty unit",
        "a.rs:6: no text is found for the operation",
        "there is no function lacks",
    ];
    assert_eq!(Vec::from_iter(list(text).faults), expected);
}
