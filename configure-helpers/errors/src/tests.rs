//! Each construction that the list follows, in a small source; and what it refuses.

use crate::list::List;
use crate::source::Source;

/// The list of a crate with this text.
fn list(text: &str) -> List {
    List::of(&Source::of_text(text), &[])
}

/// The lines of a crate, without the marks of a list; panics if the list has faults.
fn lines(text: &str) -> Vec<String> {
    let list = list(text);
    assert!(list.faults.is_empty(), "{:?}", list.faults);
    let lines = list.lines().into_iter().flatten();
    lines
        .map(|line| line.trim_start_matches("- ").to_owned())
        .collect()
}

/// The faults of a crate, without their places.
fn faults(text: &str) -> Vec<String> {
    let faults = list(text).faults.into_iter();
    faults
        .map(|f| f.split_once(": ").expect("a place").1.to_owned())
        .collect()
}

#[test]
fn literals_and_constants_of_functions_and_modules() {
    let text = r#"
        const OPEN: &str = "open";
        fn a() -> Result<()> {
            const NAME: &str = "close";
            Err(Error::new(NAME, Kind::Busy, "it is in use"))
        }
        fn aa() -> Result<()> {
            const NAME: &str = "enter";
            Err(Error::new(NAME, Kind::Busy, "it is in use"))
        }
        fn b() -> Result<()> {
            Err(crate::Error::new(OPEN, Kind::Failed(status), "it failed"))
        }
        mod c {
            use super::OPEN;
            fn c() { Error::new(OPEN, Kind::Absent, "it is absent") }
            fn d() { Error::new(super::OPEN, Kind::Absent, "it was never here") }
        }
    "#;
    let expected = [
        "`close` Busy: it is in use",
        "`enter` Busy: it is in use",
        "`open` Absent: it is absent",
        "`open` Absent: it was never here",
        "`open` Failed: it failed",
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn constants_of_the_same_name_in_other_modules_are_kept_apart() {
    let text = r#"
        mod a { const OPEN: &str = "open a"; fn a() { Error::new(OPEN, Kind::Busy, "it is busy") } }
        mod b { const OPEN: &str = "open b"; fn b() { Error::new(OPEN, Kind::Busy, "it is busy") } }
        mod c { fn c() { Error::new(super::b::OPEN, Kind::Busy, "it is lost") } }
    "#;
    let expected = [
        "`open a` Busy: it is busy",
        "`open b` Busy: it is busy",
        "`open b` Busy: it is lost",
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn placeholders_keep_the_names_of_their_values() {
    let text = r#"
        fn f(&self, n: usize) {
            let what = format!(
                "{n} of {:?}, {self:?} at {:#x}, {} {} {{}} {0} {m} {}",
                self.name, to.len(), time(limit), list[0], if x { 1 } else { 2 }, m = self.size(),
            );
            Error::new("count", Kind::Invalid, what)
        }
    "#;
    let expected = "`count` Invalid: {n} of {name}, {self} at {to.len}, {time} {list} {} {name} \
                    {size} {}";
    assert_eq!(lines(text), [expected]);
}

#[test]
fn each_branch_of_a_text_has_its_line() {
    let text = r#"
        fn f() {
            let what = if a { "it is too long" } else { "it is too short" };
            let what = match b {
                0 => format!("zero: {what}"),
                1 => return Ok(()),
                2 => { return Err("two") }
                3 => { panic!("three"); }
                _ => "many".to_owned(),
            };
            Error::new("measure", Kind::Invalid, what)
        }
    "#;
    let expected = [
        "`measure` Invalid: many",
        "`measure` Invalid: zero: it is too long",
        "`measure` Invalid: zero: it is too short",
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn kind_and_text_of_one_tuple_belong_together() {
    let text = r#"
        fn f() -> Error {
            let (kind, what, limit) = match e {
                Full { most } => (Kind::QueueFull, "the queue is full", Some((most, "entries"))),
                _ => (Kind::Invalid, "the entry is invalid", None),
            };
            let error = Error::new("push", kind, what);
            match limit {
                Some((limit, unit)) => error.with_limit(limit, unit),
                None => error,
            }
        }
    "#;
    let expected = [
        "`push` Invalid: the entry is invalid",
        "`push` QueueFull: the queue is full (limit entries)",
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn matches_over_one_value_belong_together() {
    let text = r#"
        fn f(e: &Bad) -> Error {
            let kind = match e { Bad::Full { .. } => Kind::QueueFull, Bad::Old | Bad::Long(_) => Kind::Invalid };
            let what = match *e {
                Bad::Full { most } => "the queue is full",
                Bad::Long(Part::Head) => "the head is too long",
                Bad::Long(_) => "the tail is too long",
                _ => "it is too old",
            };
            let error = Error::new("push", kind, what);
            match e {
                Bad::Full { most } => error.with_limit(most, "entries"),
                Bad::Long(part) => match part {
                    Part::Head => error.with_limit(4, "blocks"),
                    _ => error.with_limit(4, "bytes"),
                },
                _ => error,
            }
        }
    "#;
    let expected = [
        "`push` Invalid: it is too old",
        "`push` Invalid: the head is too long (limit blocks)",
        "`push` Invalid: the tail is too long (limit bytes)",
        "`push` QueueFull: the queue is full (limit entries)",
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn parts_of_one_match_belong_together() {
    let text = r#"
        fn f(e: Bad) {
            let (kind, what) = match e {
                Bad::Full => (Kind::QueueFull, "it is full"),
                Bad::Old => (Kind::Invalid, "it is old"),
            };
            Error::new("push", kind, what)
        }
        fn g(e: Bad) {
            let kind = match e { Bad::Full => Kind::Busy, _ => Kind::Absent };
            Error::new("pull", kind, match e { Bad::Full => "it is full", _ => "it is old" })
        }
    "#;
    let expected = [
        "`pull` Absent: it is old",
        "`pull` Busy: it is full",
        "`push` Invalid: it is old",
        "`push` QueueFull: it is full",
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn parameters_are_followed_to_the_callers() {
    let text = r#"
        fn refuse(operation: &'static str, kind: Kind, what: &str, n: u32) -> Error {
            Error::new(operation, kind, format!("{what} of {n} bytes"))
        }
        fn most((most, unit): (u32, &str)) { Error::new("add", Kind::Invalid, "it is too much").with_limit(most, unit) }
        fn between(operation: &'static str, what: &str) -> Error {
            refuse(operation, Kind::Invalid, what, 7)
        }
        fn a() { between("read", "a page"); most((5, "ms")) }
        fn b() { refuse("write", Kind::Busy, &format!("{owner} pages"), 8); }
        fn name(name: &str, value: &str) { Error::new("name", Kind::Invalid, format!("{name:?} has {value}")) }
        fn c(other: &str) { name("a", other.as_str()); }
    "#;
    let expected = [
        "`add` Invalid: it is too much (limit ms)",
        "`name` Invalid: {name} has {value}",
        "`read` Invalid: a page of {n} bytes",
        "`write` Busy: {owner} pages of {n} bytes",
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn methods_are_followed_by_their_type() {
    let text = r#"
        struct Store { link: Arc<Port> }
        fn check(operation: &'static str) { Error::new(operation, Kind::Busy, "all is busy") }
        impl Other {
            fn check(&self, operation: &'static str, n: u32) { Error::new(operation, Kind::Busy, "the other is busy") }
        }
        impl Port {
            fn check(&self, operation: &'static str) { Error::new(operation, Kind::Busy, "the port is busy") }
            fn open(&self) { self.check("open port") }
        }
        impl Stream {
            fn check(&self, operation: &'static str) { Error::new(operation, Kind::Busy, "the stream is busy") }
        }
        impl Store {
            fn get(&self, s: &Stream) {
                self.link.check("get");
                s.check("flush");
                let port = open();
                port.check("put");
                check("begin");
                open().check("end", 1);
                open().check("finish");
            }
        }
    "#;
    let expected = [
        "`finish`, `get`, `open port`, `put` Busy: the port is busy",
        "`begin` Busy: all is busy",
        "`end` Busy: the other is busy",
        "`finish` Busy: the stream is busy",
        "`flush` Busy: the stream is busy",
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn functions_of_the_same_name_are_told_apart_by_their_modules() {
    let text = r#"
        mod a { pub fn fail(operation: &'static str) -> Error { Error::new(operation, Kind::Busy, "a is busy") } }
        mod b { pub fn fail(operation: &'static str) -> Error { Error::new(operation, Kind::Busy, "b is busy") } }
        mod c { use super::a::fail; fn c() { fail("run c"); super::b::fail("run d"); } }
        impl E {
            fn fail(operation: &'static str) -> Error { Error::new(operation, Kind::Busy, "e is busy") }
            fn e() { Self::fail("run e") }
        }
        impl F {
            fn fail(operation: &'static str) -> Error { Error::new(operation, Kind::Busy, "f is busy") }
            fn f() { Self::fail("run f"); E::fail("run g") }
        }
    "#;
    assert_eq!(
        lines(text),
        [
            "`run c` Busy: a is busy",
            "`run d` Busy: b is busy",
            "`run e` Busy: e is busy",
            "`run f` Busy: f is busy",
            "`run g` Busy: e is busy"
        ]
    );
}

#[test]
fn closures_are_followed_to_their_calls() {
    let text = r#"
        fn f() {
            let invalid = |what: String, limit: u64| Err(Error::new("parse", Kind::Invalid, what).with_limit(limit, "bytes"));
            let late = || Error::new("wait", Kind::Timeout, "the time has passed");
            let foreign = |what| Error::new("add", Kind::Foreign, what);
            return Err(foreign("it is of another queue").with_limit(1, "queues"));
            for &(what, n) in &[("the head", 1), ("the tail", 2)] {
                invalid(format!("{what} has {n} bytes"), 8)?;
            }
            invalid("it is empty".into(), 9)?;
            wait().ok_or_else(late)
        }
    "#;
    let expected = [
        "`add` Foreign: it is of another queue (limit queues)",
        "`parse` Invalid: it is empty (limit bytes)",
        "`parse` Invalid: the head has {n} bytes (limit bytes)",
        "`parse` Invalid: the tail has {n} bytes (limit bytes)",
        "`wait` Timeout: the time has passed",
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn limits_and_owners_are_found_wherever_they_are_added() {
    let text = r#"
        fn gone(rank: u32) -> Error { Error::new("send", Kind::Closed, "it has left").with_rank(rank) }
        fn full() -> Error { Error::new("post", Kind::QueueFull, "the queue is full") }
        fn a() { Err(full().with_limit(n, "entries")) }
        fn b() {
            let error = Error::new("join", Kind::Missing, "it is missing").with_source(e);
            let error = error.with_rank(1);
            return Err(error.with_limit(n, "ms"));
        }
        fn d() { Error::new("bring up", Kind::Timeout, "it is down").with_owner(self) }
    "#;
    let expected = [
        "`bring up` Timeout: {owner}: it is down",
        "`join` Missing: it is missing (limit ms)",
        "`post` QueueFull: the queue is full (limit entries)",
        "`send` Closed: it has left",
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn texts_that_functions_return() {
    let text = r#"
        fn describe(n: u32) -> String {
            if n == 0 { return "nothing is there".to_owned(); }
            format!("{n} are there")
        }
        fn old(n: u32) -> Option<String> { (n < 5).then(|| format!("{n} is too old")) }
        fn may(n: u32) -> Option<(Kind, &'static str)> {
            match n { 0 => Some((Kind::Busy, "it is busy")), _ => None }
        }
        fn gone(what: &str) -> String { format!("{what} is gone") }
        fn d() { Error::new("move", Kind::Invalid, gone("the head")); }
        fn e() { Error::new("stay", Kind::Invalid, gone("the tail")); }
        fn a() { Error::new("look", Kind::Invalid, describe(n)) }
        fn b() { if let Some(what) = old(n) { Error::new("open", Kind::Unsupported, what); } }
        fn c() { let Some((kind, what)) = may(n) else { return }; Error::new("enter", kind, what); }
    "#;
    let expected = [
        "`enter` Busy: it is busy",
        "`look` Invalid: nothing is there",
        "`look` Invalid: {n} are there",
        "`move` Invalid: the head is gone",
        "`open` Unsupported: {n} is too old",
        "`stay` Invalid: the tail is gone",
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn errors_of_others_and_of_thiserror() {
    let text = r#"
        enum Bad {
            #[error("it has version {0}, not {v}", v = VERSION)]
            Version(u32),
            #[error("it is too short")]
            Short,
        }
        fn a(e: Bad) { Error::new("join", Kind::Protocol, format!("the store: {e}")) }
        fn x() { a(other()) }
        fn b(e: std::io::Error) { Error::new("read", Kind::System, e.to_string()) }
        fn c() { x().map_err(|e| Error::new("write", Kind::System, format!("the disk: {e}"))) }
        fn d(e: Error) { Error::new(e.operation(), e.kind(), format!("{e}; no other way")) }
        fn e(e: other::Error) { Error::new(e.operation(), Kind::System, e.reason()) }
    "#;
    let expected = [
        "`join` Protocol: the store: it has version {0}, not {v}",
        "`join` Protocol: the store: it is too short",
        "`read` System: {e}",
        "`write` System: the disk: {e}",
        "`{operation}` {kind}: {e}; no other way",
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn constructors_in_the_impl_of_error() {
    let text = r#"
        impl Error {
            fn unknown(operation: &'static str) -> Error { Self::new(operation, Kind::Absent, "it is unknown") }
        }
        impl Other { fn make() { Self::new("a", Kind::Busy, "no error") } }
        fn a() { Error::unknown("test") }
        fn b() { std::io::Error::new(ErrorKind::Other, "no error of this crate") }
    "#;
    assert_eq!(lines(text), ["`test` Absent: it is unknown"]);
}

#[test]
fn kinds_and_operations_of_one_text_share_a_line() {
    let text = r#"
        fn f(operation: &'static str) {
            let kind = match e { 1 => Kind::Busy, _ => Kind::Absent };
            Error::new(operation, kind, "it is not here")
        }
        fn a() { f("a"); f("b"); f("c"); f("d") }
    "#;
    assert_eq!(
        lines(text),
        ["`a`, `b`, `c`, `d` Absent, Busy: it is not here"]
    );
}

#[test]
fn tests_are_left_out() {
    let text = r#"
        #[cfg(test)]
        mod tests { fn f() { Error::new("test", Kind::Busy, "it is a test") } }
        #[cfg(all(test, feature = "soft"))]
        fn g() { Error::new("test", Kind::Busy, "it is a test") }
        #[test]
        fn h() { Error::new("test", Kind::Busy, "it is a test") }
    "#;
    assert_eq!(lines(text), [""; 0]);
}

#[test]
fn what_a_list_cannot_show_is_refused() {
    for (source, fault) in [
        (
            r#"vec![Error::new("a", Kind::Busy, "it is busy")]"#,
            "an error in a macro",
        ),
        (
            r#"Error::new(name(), Kind::Busy, "it is busy")"#,
            "the operation is not known",
        ),
        (
            r#"Error::new("a", Kind::Busy, self.name)"#,
            "the reason is not known: {name}",
        ),
        (r#"Error::new("a", Kind::Busy, "")"#, "an empty reason"),
        (
            r#"Error::new("", Kind::Busy, "it is busy")"#,
            "an empty operation",
        ),
        (
            r#"Error::new("a", Kind::Busy, "b").with_limit(1, "")"#,
            "a limit without a unit",
        ),
    ] {
        assert_eq!(faults(&format!("fn f(&self) {{ {source} }}")), [fault]);
    }
}

#[test]
fn a_fault_has_its_place() {
    let list = list("fn f() {\n Error::new(\"a\", Kind::Busy, \"\")\n}");
    assert_eq!(
        list.faults.first().map(String::as_str),
        Some("test.rs:2: an empty reason")
    );
}

#[test]
fn pieces_of_texts() {
    let text = r#"
        fn lacks(&self) -> String {
            let what = match self.what { 0 => "no message".to_owned(), _ => format!("no {room} here") };
            format!("{what}; rank {} is {}", self.rank, if a { "stopped or dead" } else { "alive" })
        }
    "#;
    let list = List::of(&Source::of_text(text), &["lacks", "gone"]);
    let texts: Vec<_> = list.texts.iter().map(String::as_str).collect();
    let expected = [
        "no message",
        "no {room} here",
        "stopped or dead",
        "{what}; rank {} is {}",
    ];
    assert_eq!(texts, expected);
    assert_eq!(
        list.faults.first().map(String::as_str),
        Some("there is no function gone")
    );
}

#[test]
fn changes_of_a_page_are_its_lines() {
    let changes = |old, new| crate::changes(old, new);
    assert_eq!(changes("a\nb\n", "a\nc\n"), ["-b", "+c"]);
    assert_eq!(changes("a\nb\n", "a\nb\n"), [""; 0]);
    assert_eq!(
        changes("a\nb\n", "b\na\n"),
        ["the order of its lines differs"]
    );
}
