//! Runs a test with many seeds, or replays one seed.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gds_step::panic_message;

/// Runs `body` with `count` seeds, which are the same in every run.
///
/// `GDS_SEED=<n>` (decimal, or hexadecimal after `0x`) runs that seed alone;
/// `GDS_SEEDS=<n>` runs that many instead of `count`.
///
/// # Panics
/// The body failed or panicked for a seed: the message names the seed and the command that replays
/// it. Or the value of a variable is not a number.
pub fn seeds<T, E: Display>(count: u64, body: impl FnMut(u64) -> Result<T, E>) {
    let only = number("GDS_SEED");
    let count = number("GDS_SEEDS").unwrap_or(count);
    if let Err(message) = run(only, count, body) {
        panic!("{message}");
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = parse(&text);
    assert!(number.is_some(), "{variable}={text}: not a number");
    number
}

fn parse(text: &str) -> Option<u64> {
    let text = text.trim().replace('_', "");
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn run<T, E: Display>(
    only: Option<u64>,
    count: u64,
    mut body: impl FnMut(u64) -> Result<T, E>,
) -> Result<(), String> {
    let many = (0..count).map(|i| fastrand::Rng::with_seed(i).u64(..));
    let chosen: Vec<u64> = only.map_or_else(|| many.collect(), |seed| vec![seed]);
    for seed in chosen {
        let message = match catch_unwind(AssertUnwindSafe(|| body(seed))) {
            Ok(Ok(_)) => continue,
            Ok(Err(e)) => e.to_string(),
            Err(payload) => panic_message(payload),
        };
        // The test harness names a test's thread after the test.
        let thread = std::thread::current();
        let test = thread.name().filter(|n| *n != "main").unwrap_or("");
        return Err(format!(
            "seed {seed:#018x} failed: {message}\n\
             replay: GDS_SEED={seed:#018x} cargo test {test}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_distinct_and_the_same_in_every_run() {
        let collect = |only, count| {
            let mut seen = Vec::new();
            run(only, count, |s| {
                seen.push(s);
                Ok::<_, String>(())
            })
            .unwrap();
            seen
        };
        let seen = collect(None, 100);
        assert_eq!(seen, collect(None, 100));
        let distinct: std::collections::BTreeSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), 100);
        assert_eq!(collect(Some(0x2a), 100), [0x2a]);
    }

    #[test]
    fn failure_names_the_seed_and_its_replay() {
        let fail = |panics: bool| {
            let body = |seed| match seed {
                7 if panics => panic!("went wrong"),
                7 => Err("went wrong"),
                _ => Ok(()),
            };
            run(Some(7), 1, body).unwrap_err()
        };
        for message in [fail(true), fail(false)] {
            let (first, second) = message.split_once('\n').unwrap();
            assert_eq!(first, "seed 0x0000000000000007 failed: went wrong");
            assert!(second.starts_with("replay: GDS_SEED=0x0000000000000007 cargo test "));
            assert!(
                second.ends_with("failure_names_the_seed_and_its_replay"),
                "{second}"
            );
        }
    }

    #[test]
    fn printed_numbers_are_accepted_as_input() {
        assert_eq!(parse("0x000000000000002a"), Some(42));
        assert_eq!(parse(" 42 "), Some(42));
        assert_eq!(parse("0xffff_ffff_ffff_ffff"), Some(u64::MAX));
        assert_eq!(parse("forty"), None);
    }
}
