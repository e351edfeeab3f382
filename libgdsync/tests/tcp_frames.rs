//! A peer of the job that breaks the rules of frames: its queue pair ends with an error, what is
//! behind the fault has no effect, no memory changes that the peer may not write, and the memory that
//! the process uses is bounded.

mod common;
#[allow(dead_code, reason = "a part is used here")]
#[path = "../../libmp/tests/common/heap.rs"]
mod heap;
mod tcp_rig;

use std::net::Shutdown;
use std::sync::{Mutex, MutexGuard};

use common::*;
use gdsync::internals::tcp::{Claim, HEAD, Head, Kind as Frame, MOST, Verdict};
use gdsync_sys::verbs::consts::{IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR};
use heap::{Counting, Held};
use tcp_rig::speaker::{self, Speaker, claim_to};
use tcp_rig::*;

#[global_allocator]
static HEAP: Counting = Counting;

/// Tests run one after the other: they count the memory of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// READs and atomics that a peer may have outstanding.
const FETCHES: usize = 16;
/// Most bytes that a flood may add to the memory of the process.
const GROWTH: i64 = 192 * 1024;
/// What the memory of the queue pair contains.
const CONTENT: [u8; 8] = *b"contents";

const REQUESTS: [Frame; 8] = [
    Frame::Write,
    Frame::WriteImm,
    Frame::Send,
    Frame::SendImm,
    Frame::SendInvalidate,
    Frame::Read,
    Frame::CompareSwap,
    Frame::FetchAdd,
];

/// A queue pair whose peer is the test.
struct Rig {
    side: Side,
    /// Memory of the same domain that the peer may not access.
    private: Mr,
    /// Memory of another domain.
    foreign: Mr,
    encrypted: bool,
}

impl Rig {
    fn new(encrypted: bool) -> Rig {
        let gpu = Gpu::soft().unwrap();
        let device = device(&gpu, encrypted);
        // The system ends no connection because its peer does not read.
        let side = Side::new(&device, &limited(&QpConfig::default().ack_timeout(0), None));
        let private = memory(side.qp.pd(), MemoryKind::Pinned, MEMORY, Access::LOCAL_READ);
        let other = device.alloc_pd().unwrap();
        let foreign = memory(&other, MemoryKind::Pinned, MEMORY, Access::ALL);
        let rig = Rig {
            side,
            private,
            foreign,
            encrypted,
        };
        for mem in rig.memory() {
            let content = CONTENT.repeat(MEMORY / CONTENT.len());
            mem.region().write(0, &content).unwrap();
        }
        rig
    }

    fn memory(&self) -> [&Mr; 3] {
        [&self.side.mem, &self.private, &self.foreign]
    }

    /// Asserts that all memory has its first contents.
    fn unchanged(&self, what: &str) {
        for mem in self.memory() {
            let bytes: [u8; MEMORY] = mem.region().bytes(0);
            let same = bytes.chunks_exact(8).all(|word| word == CONTENT);
            assert!(same, "{what}");
        }
    }

    /// A new connection, which the device uses: a request of it, to which the peer owes an answer.
    fn meet(&mut self) -> (Speaker, SendRequest) {
        let qp = &mut self.side.qp;
        qp.fail(Status::CANCELLED);
        qp.quiet(LIMIT).unwrap();
        qp.reset().unwrap();
        qp.connect(&speaker::address()).unwrap();
        let there = qp.address();
        let claim = Claim {
            encrypted: self.encrypted,
            ..claim_to(&there)
        };
        let (mut speaker, verdict) = Speaker::greet(socket(&there), KEY, &claim);
        assert_eq!(verdict, Some(Verdict::Welcome));
        speaker.stream.set_write_timeout(Some(LIMIT)).unwrap();
        // Without a first frame of the peer the device sends nothing.
        assert!(speaker.frame(Head::new(Frame::Ack, 0), &[]));
        let (mem, span) = (&self.side.mem, self.side.mem.remote().span(0, 8).unwrap());
        let write = qp.start(&Work::write(&[mem.sge(0, 8)], span));
        let mut payload = [0; 8];
        assert_eq!(speaker.answer().unwrap().kind, Frame::Write);
        assert!(speaker.hear(&mut payload) && payload == CONTENT);
        (speaker, write)
    }

    /// Posts a receive, and reads until the device announces it.
    fn receive(&mut self, speaker: &mut Speaker) -> ReceiveRequest {
        let receive = self.side.qp.receive(&[self.side.mem.sge(0, 8)]);
        while speaker.head().unwrap().receives == 0 {}
        receive
    }

    /// A READ of the device, which the peer has got.
    fn read(&mut self, speaker: &mut Speaker) -> SendRequest {
        let (mem, span) = (&self.side.mem, self.side.mem.remote().span(0, 8).unwrap());
        let read = self.side.qp.start(&Work::read(&[mem.sge(0, 8)], span));
        assert_eq!(speaker.answer().unwrap().kind, Frame::Read);
        read
    }

    /// A request of this kind that the device accepts, with its payload. It leaves the memory as it
    /// is.
    fn request(&self, kind: Frame) -> (Head, Vec<u8>) {
        let remote = self.side.mem.remote();
        let head = Head {
            addr: remote.addr,
            rkey: remote.rkeys[0].unwrap(),
            ..Head::new(kind, 8)
        };
        let payload = match kind {
            Frame::Read => Vec::new(),
            Frame::CompareSwap | Frame::FetchAdd => vec![0; 16],
            _ => CONTENT.to_vec(),
        };
        (head.used(), payload)
    }

    /// Asserts that the request of the device ends with the error of a connection that is broken.
    fn broken(&mut self, write: SendRequest, what: &str) {
        let status = end(&mut self.side.qp, write, what);
        assert_eq!(status, Status::TRANSPORT_RETRY, "{what}");
        self.unchanged(what);
    }
}

fn bytes_of((head, payload): &(Head, Vec<u8>)) -> Vec<u8> {
    [&head.encode()[..], payload].concat()
}

/// Sends these frames `times`, or until the device ends the connection or the test is `done`. The
/// memory of the process does not grow meanwhile.
fn flood(
    speaker: &mut Speaker,
    frames: &[u8],
    times: usize,
    what: &str,
    mut done: impl FnMut() -> bool,
) {
    let before = Held::now().bytes;
    for count in 0..times {
        if done() || !speaker.say(frames) {
            return;
        }
        if count % 64 == 0 {
            let growth = Held::now().bytes - before;
            assert!(growth < GROWTH, "{what}: {growth} bytes");
        }
    }
}

#[test]
fn a_peer_that_reads_no_answers_ends_its_connection() {
    let _alone = alone();
    for encrypted in [false, true] {
        let mut rig = Rig::new(encrypted);
        for (kind, len) in [
            (Frame::Read, 0),
            (Frame::Read, 8),
            (Frame::Read, 2048),
            (Frame::Read, MEMORY as u32),
            (Frame::FetchAdd, 8),
        ] {
            let what = format!("{kind:?} of {len} bytes, encrypted: {encrypted}");
            let (speaker, write) = &mut rig.meet();
            let (head, payload) = rig.request(kind);
            let head = Head { len, ..head };
            let frame = bytes_of(&(head, payload));
            let done = || !matches!(rig.side.qp.poll(*write), Ok(None));
            flood(speaker, &frame.repeat(FETCHES), 100_000, &what, done);
            rig.broken(*write, &what);
        }
    }
}

/// In a record, which a queue pair opens as a whole.
#[test]
fn a_peer_may_have_sixteen_fetches_outstanding() {
    let _alone = alone();
    let mut rig = Rig::new(true);
    for kind in [Frame::Read, Frame::FetchAdd] {
        let frame = bytes_of(&rig.request(kind));
        let (mut speaker, write) = rig.meet();
        for _ in 0..10 {
            assert!(speaker.say(&frame.repeat(FETCHES)));
            for _ in 0..FETCHES {
                let mut answer = [0; 8];
                let head = speaker.answer().unwrap();
                assert_eq!((head.kind, head.len), (Frame::Response, 8));
                assert!(speaker.hear(&mut answer) && answer == CONTENT);
            }
        }
        assert_eq!(rig.side.qp.poll(write).unwrap(), None);
        assert!(speaker.say(&frame.repeat(FETCHES + 1)));
        rig.broken(write, "one too many");
    }
}

/// The last count arrives.
#[test]
fn a_peer_may_read_the_count_of_its_requests_late() {
    let _alone = alone();
    const COUNT: usize = 2000;
    for encrypted in [false, true] {
        let mut rig = Rig::new(encrypted);
        let (mut speaker, write) = rig.meet();
        let nothing = Head::new(Frame::Write, 0).encode();
        for _ in 0..COUNT {
            assert!(speaker.say(&nothing));
        }
        while speaker.head().unwrap().ack < COUNT as u64 {}
        let all = Head {
            ack: 1,
            ..Head::new(Frame::Ack, 0)
        };
        assert!(speaker.frame(all, &[]));
        assert_eq!(end(&mut rig.side.qp, write, "counted"), Status::SUCCESS);
    }
}

/// Requests that the queue pair refuses: it says so, and ends.
#[test]
fn requests_beyond_the_rights_of_the_peer_are_refused() {
    let _alone = alone();
    let mut rig = Rig::new(false);
    let key = |mr: &Mr| mr.remote().rkeys[0].unwrap();
    let own = rig.side.mem.remote();
    let (at, own) = (own.addr, key(&rig.side.mem));
    let [private, foreign] = [&rig.private, &rig.foreign].map(|mr| (mr.remote().addr, key(mr)));
    let end = at + MEMORY as u64;
    let access = IBV_WC_REM_ACCESS_ERR;
    let mut cases = Vec::new();
    for kind in [
        Frame::Write,
        Frame::WriteImm,
        Frame::Read,
        Frame::CompareSwap,
        Frame::FetchAdd,
    ] {
        for (what, addr, rkey) in [
            ("a former key", at, own ^ 1),
            ("a key that does not exist", at, 0x1234_5600 | own & 0xff),
            ("the greatest key", at, u32::MAX),
            ("no key", at, 0),
            ("a key without rights", private.0, private.1),
            ("the key of another domain", foreign.0, foreign.1),
            ("the key of other memory", foreign.0, own),
            ("an offset before the memory", at - 8, own),
            ("an offset before and in the memory", at - 4, own),
            ("an offset at the end", end, own),
            ("an offset in front of the end", end - 4, own),
            ("an address that wraps", u64::MAX - 3, own),
            ("the last address", u64::MAX, own),
            ("address 0", 0, own),
        ] {
            cases.push((kind, what, addr, rkey, 8, access));
        }
        match kind {
            Frame::CompareSwap | Frame::FetchAdd => {
                let odd = (kind, "half a word", at + 4, own, 8, IBV_WC_REM_INV_REQ_ERR);
                cases.push(odd);
            }
            _ => {
                cases.push((kind, "more than the memory", at, own, 4097, access));
                cases.push((kind, "the greatest length", at, own, MOST, access));
                let far = u64::MAX - u64::from(MOST) + 1;
                cases.push((kind, "a length that wraps", far, own, MOST, access));
            }
        }
    }
    for (kind, what, addr, rkey, len, syndrome) in cases {
        let what = format!("{kind:?}: {what}");
        let (mut speaker, write) = rig.meet();
        let receive = rig.receive(&mut speaker);
        let head = Head {
            addr,
            rkey,
            ..Head::new(kind, len)
        };
        // What is behind a refused request has no effect.
        let behind = Head {
            addr: at,
            rkey: own,
            ..Head::new(Frame::Write, 8)
        };
        let payload = [[0xee; 16].as_slice(), &behind.encode(), &[0xee; 8]].concat();
        speaker.frame(head, &payload);
        let answer = speaker.answer().unwrap();
        assert_eq!(answer.kind, Frame::Refuse, "{what}");
        assert_eq!(i32::from(answer.syndrome), syndrome, "{what}");
        assert_eq!(speaker.answer(), None, "{what}");
        rig.broken(write, &what);
        let status = tcp_rig::end(&mut rig.side.qp, receive, &what);
        assert_eq!(status, Status::FLUSHED, "{what}");
    }
}

#[test]
fn a_message_longer_than_its_receive_is_refused() {
    let _alone = alone();
    let mut rig = Rig::new(false);
    for len in [9, 4096, MOST] {
        let (mut speaker, write) = rig.meet();
        let receive = rig.receive(&mut speaker);
        speaker.frame(Head::new(Frame::Send, len), &[0xee; 64]);
        let answer = speaker.answer().unwrap();
        assert_eq!(answer.kind, Frame::Refuse);
        assert_eq!(i32::from(answer.syndrome), IBV_WC_REM_INV_REQ_ERR);
        let status = end(&mut rig.side.qp, receive, "too long");
        assert_eq!(status, Status::LOCAL_LENGTH, "{len}");
        rig.broken(write, "too long");
    }
}

/// Frames that no peer sends end the connection.
#[test]
fn frames_that_break_a_rule_end_the_connection() {
    let _alone = alone();
    for encrypted in [false, true] {
        let mut rig = Rig::new(encrypted);
        let ack = |ack| Head {
            ack,
            ..Head::new(Frame::Ack, 0)
        };
        let mut cases = vec![
            ("an answer without a request", Head::new(Frame::Response, 8)),
            ("an empty one", Head::new(Frame::Response, 0)),
            ("a count of requests that were not sent", ack(2)),
            ("the greatest count", ack(u64::MAX)),
            ("a long WRITE", Head::new(Frame::Write, MOST + 1)),
            (
                "a READ beyond the greatest length",
                Head::new(Frame::Read, u32::MAX),
            ),
            ("an atomic of 4 bytes", Head::new(Frame::FetchAdd, 4)),
            ("an atomic of 16 bytes", Head::new(Frame::CompareSwap, 16)),
            ("counts with data", Head::new(Frame::Ack, 1)),
        ];
        for kind in REQUESTS.into_iter().filter(|kind| kind.takes_receive()) {
            cases.push(("a message without a receive", Head::new(kind, 0)));
            cases.push(("a long message without one", Head::new(kind, MOST)));
        }
        let mut cases: Vec<_> = cases
            .into_iter()
            .map(|(what, head)| (what.to_owned(), head.encode()))
            .collect();
        for kind in [0, 12, 13, 0x7f, 0x80, 0xff] {
            let mut head = Head::new(Frame::Ack, 0).encode();
            head[0] = kind;
            cases.push((format!("kind {kind}"), head));
        }
        for at in [1, 4, 8, 15, 16, 19, 20, 23] {
            let mut head = Head::new(Frame::Ack, 0).encode();
            head[at] = 1;
            cases.push((format!("byte {at} of counts"), head));
        }
        for (what, head) in cases {
            let behind = bytes_of(&rig.request(Frame::Write));
            let (mut speaker, write) = rig.meet();
            let hostile = [&head[..], &behind[..HEAD], &[0xee; 8]].concat();
            speaker.say(&hostile);
            rig.broken(write, &what);
        }
    }
}

#[test]
fn counts_never_go_back() {
    let _alone = alone();
    let mut rig = Rig::new(false);
    let (mut speaker, write) = rig.meet();
    let ack = |ack| Head {
        ack,
        ..Head::new(Frame::Ack, 0)
    };
    assert!(speaker.frame(ack(1), &[]));
    assert_eq!(end(&mut rig.side.qp, write, "counted"), Status::SUCCESS);
    let read = rig.read(&mut speaker);
    assert!(speaker.frame(ack(0), &[]));
    rig.broken(read, "a count that goes back");
}

/// The answer to a READ of 8 bytes.
#[test]
fn answers_of_another_length_end_the_connection() {
    let _alone = alone();
    let mut rig = Rig::new(false);
    for len in [0, 7, 9, 4096, MOST] {
        let (mut speaker, write) = rig.meet();
        let read = rig.read(&mut speaker);
        speaker.frame(Head::new(Frame::Response, len), &[0xee; 32]);
        rig.broken(write, "an answer of another length");
        let status = end(&mut rig.side.qp, read, "an answer of another length");
        assert_eq!(status, Status::FLUSHED);
    }
}

/// What the peer sends behind its refusal arrives with it, and is not executed.
#[test]
fn nothing_behind_a_refusal_is_executed() {
    let _alone = alone();
    let mut rig = Rig::new(true);
    for kind in REQUESTS {
        let what = format!("{kind:?} behind a refusal");
        let (head, _) = rig.request(kind);
        let (mut speaker, write) = rig.meet();
        let receive = rig.receive(&mut speaker);
        let refusal = Head {
            syndrome: IBV_WC_REM_ACCESS_ERR as u8,
            // The device's count of its requests goes on to 1.
            ack: 0,
            ..Head::new(Frame::Refuse, 0)
        };
        let behind = Head { ack: 1, ..head };
        speaker.say(&[&refusal.encode()[..], &behind.encode(), &[1; 16]].concat());
        let status = end(&mut rig.side.qp, write, &what);
        assert_eq!(status, Status::REMOTE_ACCESS, "{what}");
        let status = end(&mut rig.side.qp, receive, &what);
        assert_eq!(status, Status::FLUSHED, "{what}");
        rig.unchanged(&what);
        assert_eq!(speaker.answer(), None, "{what}");
    }
}

/// The peer ends its bytes behind each byte of a request of each kind.
#[test]
fn frames_may_be_cut_behind_each_byte() {
    let _alone = alone();
    for encrypted in [false, true] {
        let mut rig = Rig::new(encrypted);
        for kind in REQUESTS {
            let (head, payload) = rig.request(kind);
            let frame = bytes_of(&(head, vec![0xee; payload.len()]));
            for cut in 0..frame.len() {
                let what = format!("{kind:?} cut behind byte {cut}");
                let (mut speaker, write) = rig.meet();
                let receive = rig.receive(&mut speaker);
                assert!(cut == 0 || speaker.say(&frame[..cut]));
                speaker.stream.shutdown(Shutdown::Write).unwrap();
                rig.broken(write, &what);
                // A READ has no bytes behind its head, and no frame takes its receive before its end.
                rig.side.qp.fail(Status::CANCELLED);
                let status = end(&mut rig.side.qp, receive, &what);
                assert!(LOST.contains(&status), "{what}: {status}");
            }
        }
    }
}

/// A connection whose first frame is invalid was not used: the queue pair takes another one.
#[test]
fn a_first_frame_that_breaks_a_rule_leaves_the_queue_pair_to_its_peer() {
    let _alone = alone();
    let mut rig = Rig::new(false);
    rig.side.qp.connect(&speaker::address()).unwrap();
    for _ in 0..100 {
        let mut speaker = Speaker::to(&rig.side);
        speaker.say(&[0xff; HEAD]);
        assert_eq!(speaker.answer(), None);
    }
    let mut speaker = Speaker::to(&rig.side);
    let (head, _) = rig.request(Frame::Read);
    assert!(speaker.frame(head, &[]));
    assert_eq!(speaker.answer().unwrap().kind, Frame::Response);
}

/// Bytes that are no record of the peer.
#[test]
fn records_that_break_a_rule_end_the_connection() {
    use std::io::Write as _;
    let _alone = alone();
    let mut rig = Rig::new(true);
    for (what, bytes) in [
        ("an empty record", [0; 64]),
        ("a record of the greatest length", [0xff; 64]),
        (
            "a forged record",
            [&[8, 0, 0, 0][..], &[7; 60]].concat().try_into().unwrap(),
        ),
    ] {
        let (mut speaker, write) = rig.meet();
        speaker.stream.write_all(&bytes).unwrap();
        rig.broken(write, what);
    }
}

#[test]
fn records_of_one_byte_use_no_memory() {
    let _alone = alone();
    let mut rig = Rig::new(true);
    let (mut speaker, _) = rig.meet();
    let remote = rig.side.mem.remote();
    let head = Head {
        addr: remote.addr,
        rkey: remote.rkeys[0].unwrap(),
        ..Head::new(Frame::Write, MEMORY as u32)
    };
    let content = CONTENT.repeat(MEMORY / CONTENT.len());
    let frame = [&head.encode()[..], &content].concat();
    let before = Held::now().bytes;
    for _ in 0..10 {
        for byte in &frame {
            assert!(speaker.say(&[*byte]));
        }
        let growth = Held::now().bytes - before;
        assert!(growth < GROWTH, "{growth} bytes");
    }
    while speaker.head().unwrap().ack < 10 {}
    rig.unchanged("bytes one by one");
}
