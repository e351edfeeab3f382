use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::*;

#[derive(Clone, Default)]
struct Fake(Rc<Cell<Option<u64>>>);

impl ring::Stamp for Fake {
    fn at(&self) -> Option<Time> {
        self.0.get().map(Time::from_nanos)
    }
}

fn work(stream: u64, posted: u64) -> Event {
    Event {
        track: Track::Stream(stream),
        name: "a \"kernel\"\n".to_owned(),
        kind: "kernel",
        work: "kernel".to_owned(),
        call: 0,
        facts: Facts::default(),
        posted: Time::from_nanos(posted),
        start: Time::from_nanos(posted),
        end: None,
        stamped: true,
    }
}

fn spans(ring: &Ring<Fake>) -> Vec<(u64, Option<u64>)> {
    let ns = |time: Time| time.as_nanos();
    let events = ring.events();
    events.map(|e| (ns(e.start), e.end.map(ns))).collect()
}

#[test]
fn work_starts_when_it_is_posted_and_the_earlier_work_has_ended() {
    let (mut ring, stamps) = (Ring::new(8), [(); 4].map(|()| Fake::default()));
    for (stream, posted, stamp) in [(1, 10, 0), (1, 20, 1), (2, 30, 2), (1, 500, 3)] {
        ring.add(work(stream, posted), Some(stamps[stamp].clone()));
    }
    ring.collect();
    assert_eq!(spans(&ring)[1], (20, None));
    stamps[2].0.set(Some(40));
    stamps[1].0.set(Some(150));
    ring.collect();
    assert_eq!(
        spans(&ring)[1],
        (20, None),
        "the stream has not passed the first"
    );
    stamps[0].0.set(Some(100));
    stamps[3].0.set(Some(490));
    ring.collect();
    let all = [
        (10, Some(100)),
        (100, Some(150)),
        (30, Some(40)),
        (500, Some(500)),
    ];
    assert_eq!(spans(&ring), all, "no duration is negative");
}

#[test]
fn full_ring_drops_the_oldest_events_and_counts_them_by_track() {
    let (mut ring, stamps) = (Ring::new(3), [(); 5].map(|()| Fake::default()));
    for (i, stamp) in stamps.iter().enumerate() {
        ring.add(work(1 + i as u64 % 2, 10 * i as u64), Some(stamp.clone()));
    }
    let dropped: Vec<_> = ring.dropped().iter().map(|(t, n)| (*t, *n)).collect();
    assert_eq!(dropped, [(Track::Stream(1), 1), (Track::Stream(2), 1)]);
    stamps[4].0.set(Some(77));
    ring.collect();
    assert_eq!(
        spans(&ring)[2],
        (40, None),
        "an event of its stream is open before it"
    );
    stamps[2].0.set(Some(60));
    ring.collect();
    let left = [(20, Some(60)), (30, None), (60, Some(77))];
    assert_eq!(spans(&ring), left);
    let header = json::Header {
        rank: 3,
        size: 4,
        gpu: "soft",
        epoch: Duration::from_micros(1),
    };
    let text = json::write(&header, &ring);
    for part in [
        "\"dropped\":{\"stream 1\":1,\"stream 2\":1}",
        "\"name\":\"a \\\"kernel\\\"\\u000a\"",
        "\"ts\":1.020,\"dur\":0.040",
        "\"end\":\"not passed\"",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn file_has_the_rank_in_its_name() {
    let name = |path: &str, name| file_of(Path::new(path), name, 3).display().to_string();
    assert_eq!(name("/tmp/a.json", "mp"), "/tmp/a.3.json");
    assert_eq!(name("a", "mp"), "a.3.json");
    assert_eq!(name("a.b.json", "io/x"), "a.b.io_x.3.json");
}
