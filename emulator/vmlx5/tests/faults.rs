//! Faults as text, and ports that go down by plan.

mod rig;

use std::time::Duration;

use gds_step::Time;
use proptest::prelude::*;
use rig::*;
use vmlx5::fabric::faults::{Faults, FaultsWhy};
use vmlx5::*;

const MS: Duration = Duration::from_millis(1);

fn at(time: Duration) -> Time {
    Time::ZERO + time
}

fn times() -> impl Strategy<Value = Duration> {
    let unit = prop_oneof![
        Just(1_u64),
        Just(1000),
        Just(1_000_000),
        Just(1_000_000_000)
    ];
    (0..10_000_u64, unit).prop_map(|(n, unit)| Duration::from_nanos(n * unit))
}

fn spans() -> impl Strategy<Value = std::ops::Range<Duration>> {
    (times(), times())
        .prop_map(|(a, b)| a.min(b)..a.max(b))
        .prop_filter("a span is not empty", |span| !span.is_empty())
}

fn windows() -> impl Strategy<Value = std::ops::Range<Time>> {
    spans().prop_map(|span| at(span.start)..at(span.end))
}

prop_compose! {
    fn any_faults()(
        seed: u64,
        rates in prop::array::uniform4(prop_oneof![Just(0.0), Just(1.0), 0.0..1.0]),
        delay in prop::option::of(spans()),
        deaf in prop::collection::vec(windows(), 0..3),
        die in prop::option::of(times()),
        fatal in prop::option::of(times()),
        port_down in prop::collection::vec((1_u8..=32, windows()), 0..3),
    ) -> Faults {
        let [loss, dup, reorder, ooo] = rates;
        let delay = delay.unwrap_or_default();
        let die_at = die.map(at);
        let fatal_at = fatal.map(at);
        Faults { seed, loss, dup, reorder, ooo, delay, deaf, die_at, fatal_at, port_down }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn printed_faults_parse_to_the_same_faults(faults in any_faults()) {
        let text = faults.to_string();
        prop_assert_eq!(text.parse::<Faults>(), Ok(faults), "{}", text);
    }

    #[test]
    fn any_text_parses_or_names_its_invalid_word(text in "[a-z0-9=.:, ]{0,40}|(loss=|down=1:|delay=|,|1s|\\.\\.|0\\.5){0,8}") {
        if let Err(error) = text.parse::<Faults>() {
            let words: Vec<&str> = text.split(',').map(str::trim).collect();
            prop_assert!(words.contains(&error.word.as_str()), "{}", error);
        }
    }
}

#[test]
fn invalid_words_are_refused_with_their_reason() {
    let text = "loss=0.01, dup=0.02,reorder=1,ooo=0.5,delay=20us..2ms,seed=7,die=3s,fatal=4s,deaf=1s..2s,\
                deaf=5s..6s,down=2:10ms..1s";
    let faults: Faults = text.parse().unwrap();
    let expected = Faults {
        seed: 7,
        loss: 0.01,
        dup: 0.02,
        reorder: 1.0,
        ooo: 0.5,
        delay: MS / 50..2 * MS,
        deaf: vec![at(1000 * MS)..at(2000 * MS), at(5000 * MS)..at(6000 * MS)],
        die_at: Some(at(3000 * MS)),
        fatal_at: Some(at(4000 * MS)),
        port_down: vec![(2, at(10 * MS)..at(1000 * MS))],
    };
    assert_eq!(faults, expected);
    let text = "seed=7,loss=0.01,dup=0.02,reorder=1,ooo=0.5,delay=20us..2ms,deaf=1s..2s,deaf=5s..6s,\
                die=3s,fatal=4s,down=2:10ms..1s";
    assert_eq!(faults.to_string(), text);
    for (word, why) in [
        ("lost=0.01", FaultsWhy::Name),
        ("loss", FaultsWhy::Name),
        ("loss=0.3", FaultsWhy::Twice),
        ("dup=1.1", FaultsWhy::Rate),
        ("dup=-0", FaultsWhy::Rate),
        ("dup=NaN", FaultsWhy::Rate),
        ("seed=-1", FaultsWhy::Seed),
        ("die=3", FaultsWhy::Time),
        ("die=s", FaultsWhy::Time),
        ("die=18446744074s", FaultsWhy::Time),
        ("delay=20us", FaultsWhy::Span),
        ("delay=2ms..2ms", FaultsWhy::Span),
        ("deaf=1s..", FaultsWhy::Time),
        ("down=1s..2s", FaultsWhy::Port),
        ("down=0:1s..2s", FaultsWhy::Port),
        ("down=33:1s..2s", FaultsWhy::Port),
    ] {
        let error = format!("loss=0.1,{word}").parse::<Faults>().unwrap_err();
        assert_eq!((error.word.as_str(), error.why), (word, why));
        assert!(error.to_string().contains(word), "{error}");
    }
    // Without a seed in the text, each parse draws a new one.
    let seeds = ["", "loss=0"].map(|text| text.parse::<Faults>().unwrap().seed);
    assert_ne!(seeds[0], seeds[1]);
}

/// Two overlapping windows count as one, retries carry work across it, and events report all
/// changes.
#[test]
fn port_is_down_in_the_planned_periods() {
    let (mut world, mut a, b) = World::connected();
    let start = Duration::from_nanos(world.now);
    let port_down = vec![
        (1, at(start + 10 * MS)..at(start + 40 * MS)),
        (1, at(start + 30 * MS)..at(start + 60 * MS)),
        // This port does not exist.
        (2, at(start)..at(start + 90 * MS)),
    ];
    world.nics[1].set_faults(Faults {
        port_down,
        ..Faults::default()
    });
    let event = |world: &mut World| world.nics[1].next_event();
    world.pass(9 * MS);
    assert_eq!((event(&mut world), world.nics[1].port(1)), (None, Ok(true)));
    world.pass(2 * MS);
    assert_eq!(event(&mut world), Some(Event::Port { port: 1, up: false }));
    assert_eq!(world.nics[1].port(1), Ok(false));
    a.post(&write(b.remote(0), &[a.sge(0, 8)]));
    world.pass(45 * MS);
    assert_eq!(
        (event(&mut world), world.nics[1].port(1)),
        (None, Ok(false))
    );
    assert!(a.send.poll().is_none());
    // The retries are 67 ms apart, so the next one is after the port is up.
    world.pass(5 * MS);
    assert_eq!(event(&mut world), Some(Event::Port { port: 1, up: true }));
    world.pass(70 * MS);
    a.sent(0);
    assert_eq!((event(&mut world), world.nics[1].port(1)), (None, Ok(true)));
}
