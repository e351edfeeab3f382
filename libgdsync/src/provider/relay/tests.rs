//! A relay between rings that the library's code fills and a device that the test controls. [`threads`] tests
//! the thread of a NIC.

mod threads;

use std::collections::VecDeque;
use std::ptr::NonNull;

use gdsync_sys::verbs::consts::*;
use mlx5_prm::cqe::{Cqe64, EntryState, classify};
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::wqe::{SendWqe, Sge, encode_recv};

use super::entries::Kind;
use super::*;

const QPN: u32 = 0x42;
const BLOCKS: usize = 16;
const SLOTS: usize = 8;
const STRIDE: usize = 64;
const LOG: u8 = 5;

/// The calls that the device got.
#[derive(Default)]
struct Fake {
    sends: VecDeque<(u64, c_int)>,
    receives: VecDeque<u64>,
    done: VecDeque<ibv_wc>,
    /// Number of requests that the device accepts.
    room: usize,
    refusal: c_int,
    failed: bool,
    gone: bool,
}

impl Fake {
    fn finish(&mut self, status: c_int) {
        let (wr_id, _) = self.sends.pop_front().expect("a send is there");
        self.done.push_back(ibv_wc {
            wr_id,
            status,
            ..ibv_wc::default()
        });
    }

    fn fill(&mut self, status: c_int) {
        let wr_id = self.receives.pop_front().expect("a receive is there");
        self.done.push_back(ibv_wc {
            wr_id,
            status,
            opcode: IBV_WC_RECV,
            byte_len: 3,
            ..ibv_wc::default()
        });
    }
}

impl Queues for Fake {
    fn post_send(&mut self, wr: &mut ibv_send_wr) -> c_int {
        if self.refusal != 0 {
            return self.refusal;
        }
        if self.sends.len() == self.room {
            return libc::ENOMEM;
        }
        self.sends.push_back((wr.wr_id, wr.opcode));
        0
    }
    fn post_recv(&mut self, wr: &mut ibv_recv_wr) -> c_int {
        self.receives.push_back(wr.wr_id);
        0
    }
    fn poll(&mut self, into: &mut [ibv_wc]) -> usize {
        let n = into.len().min(self.done.len());
        for (to, wc) in into.iter_mut().zip(self.done.drain(..n)) {
            *to = wc;
        }
        n
    }
    fn to_error(&mut self) -> bool {
        self.failed = true;
        !self.gone
    }
}

/// Memory that is kept until the process ends.
fn memory(len: usize) -> Mapped {
    let words = Box::leak(vec![0_u64; len / 8].into_boxed_slice());
    // SAFETY: never freed, and only used by the value that is made here.
    unsafe { Mapped::new(NonNull::from(words).cast(), len) }
}

struct Rig {
    relay: Relay<Fake>,
    rings: Rings,
    /// Blocks, receives.
    posted: (u32, u32),
}

impl Rig {
    fn new(start: u32, limits: Limits) -> Rig {
        let entries = |kind| {
            let ring = memory(64 << LOG);
            for i in 0..1_u32 << LOG {
                // Not written yet, in any lap.
                let stale = 1 ^ mlx5_prm::cqe::owner_of_lap(start + i, LOG);
                let at = (start + i) as usize % (1 << LOG);
                ring.store32(64 * at + 60, u32::from(0xf0 | stale) << 24);
            }
            Entries {
                ring,
                log: LOG,
                kind,
                qpn: QPN,
                next: start,
            }
        };
        let send = memory(BLOCKS * BASIC_BLOCK);
        let rings = Rings {
            qpn: QPN,
            start,
            record: memory(8),
            send,
            send_memory: translate::RingMemory {
                addr: 0x1000,
                len: send.len() as u64,
                lkey: 1,
            },
            recv: memory(SLOTS * STRIDE),
            stride: STRIDE,
            send_entries: entries(Kind::Send),
            recv_entries: entries(Kind::Receive),
        };
        let fake = Fake {
            room: 1000,
            ..Fake::default()
        };
        let mut relay = Relay::new(fake, rings, limits);
        relay.up();
        let posted = (start, start);
        let rig = Rig {
            relay,
            rings,
            posted,
        };
        rig.ring();
        rig
    }

    fn ring(&self) {
        let (sends, receives) = self.posted;
        let record = &self.rings.record;
        record.store32(doorbell::SND, doorbell::record_value(sends));
        record.store32(doorbell::RCV, doorbell::record_value(receives));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let at = self.posted.0 as usize % BLOCKS * BASIC_BLOCK;
        self.rings.send.write(at, bytes);
        self.posted.0 += (bytes.len() / BASIC_BLOCK) as u32;
        self.ring();
    }

    fn wqe(&self, opcode: SendOpcode, signaled: bool) -> [u8; 64] {
        let mut bytes = [0; 64];
        let wqe = SendWqe {
            opcode,
            flags: WqeFlags {
                signaled,
                ..WqeFlags::default()
            },
            ..SendWqe::default()
        };
        let mut sink = mlx5_prm::wqe::SliceSink::new(&mut bytes);
        wqe.encode(self.posted.0 as u16, QPN, &mut sink)
            .expect("it can be encoded");
        bytes
    }

    fn send(&mut self, opcode: SendOpcode, signaled: bool) {
        let bytes = self.wqe(opcode, signaled);
        self.bytes(&bytes);
    }

    fn receive(&mut self) {
        let mut bytes = [0; STRIDE];
        let sge = Sge {
            addr: 1,
            lkey: 2,
            len: 3,
        };
        let mut sink = mlx5_prm::wqe::SliceSink::new(&mut bytes);
        encode_recv(&[sge], STRIDE, &mut sink).expect("it can be encoded");
        let at = self.posted.1 as usize % SLOTS * STRIDE;
        self.rings.recv.write(at, &bytes);
        self.posted.1 += 1;
        self.ring();
    }

    fn run(&mut self) {
        while self.relay.advance() {}
    }

    /// The device completes its oldest send, and the relay polls the completion.
    fn finish(&mut self, status: c_int) {
        self.relay.queues.finish(status);
        self.run();
    }

    /// The device completes its oldest receive, and the relay polls the completion.
    fn fill(&mut self, status: c_int) {
        self.relay.queues.fill(status);
        self.run();
    }

    /// Posts `n` signaled sends.
    fn post_sends(&mut self, n: usize) {
        (0..n).for_each(|_| self.send(SendOpcode::SEND, true));
    }

    /// The counter of an entry, and the syndrome if it failed; `None`: not written.
    fn entry(&self, kind: Kind, position: u32) -> Option<(u16, Option<Syndrome>)> {
        let entries = match kind {
            Kind::Send => &self.rings.send_entries,
            Kind::Receive => &self.rings.recv_entries,
        };
        let mut bytes = [0; 64];
        let at = position as usize % (1 << LOG) * 64;
        entries.ring.read(at, &mut bytes);
        let entry = Cqe64::from_bytes(bytes);
        assert!(entry.opcode() == CqeOpcode::INVALID || entry.qpn() == QPN);
        let counter = entry.wqe_counter.get();
        match classify(entry.last_dword(), position, LOG) {
            EntryState::NotYet => None,
            EntryState::Success(_) => Some((counter, None)),
            EntryState::Error(_) => Some((counter, Some(entry.as_error().reason()))),
        }
    }

    fn sends(&self, from: u32) -> Vec<(u16, Option<Syndrome>)> {
        (from..).map_while(|p| self.entry(Kind::Send, p)).collect()
    }

    fn receives(&self, from: u32) -> Vec<(u16, Option<Syndrome>)> {
        (from..)
            .map_while(|p| self.entry(Kind::Receive, p))
            .collect()
    }
}

const LIMITS: Limits = Limits {
    sends: 4,
    receives: 4,
    send_sges: 4,
    recv_sges: 4,
    inline: 64,
};
const FLUSH: Option<Syndrome> = Some(Syndrome::WR_FLUSH);

/// Many laps, with NOPs, which are reported in their turn.
#[test]
fn entries_are_in_order_for_signaled_requests() {
    for start in [0, 5, u32::from(u16::MAX) - 3] {
        let mut rig = Rig::new(start, LIMITS);
        let mut reported = start;
        for _ in 0..40 {
            let first = rig.posted.0;
            rig.send(SendOpcode::SEND, false);
            rig.send(SendOpcode::NOP, true);
            rig.send(SendOpcode::SEND, true);
            rig.run();
            assert_eq!(rig.relay.queues.sends.len(), 2);
            assert_eq!(rig.sends(reported), []);
            rig.finish(IBV_WC_SUCCESS);
            let nop = (first + 1) as u16;
            assert_eq!(rig.sends(reported), [(nop, None)]);
            rig.finish(IBV_WC_SUCCESS);
            assert_eq!(
                rig.sends(reported),
                [(nop, None), (nop.wrapping_add(1), None)]
            );
            reported += 2;
        }
    }
}

#[test]
fn device_gets_no_more_requests_than_its_limit() {
    for (limit, room) in [(4, 1000), (1000, 4)] {
        let limits = Limits {
            sends: limit,
            ..LIMITS
        };
        let mut rig = Rig::new(0, limits);
        rig.relay.queues.room = room;
        rig.post_sends(10);
        for reported in 1..=10 {
            rig.run();
            assert_eq!(rig.relay.queues.sends.len(), 4.min(11 - reported));
            rig.finish(IBV_WC_SUCCESS);
            assert_eq!(rig.sends(0).len(), reported);
        }
        assert!(!rig.relay.queues.failed);
    }
}

#[test]
fn after_a_failure_everything_is_flushed_in_order() {
    let mut rig = Rig::new(0, LIMITS);
    for i in 0..8 {
        rig.send(SendOpcode::SEND, i % 2 == 1);
    }
    rig.receive();
    rig.receive();
    rig.run();
    rig.relay.queues.finish(IBV_WC_SUCCESS);
    rig.finish(IBV_WC_REM_ACCESS_ERR);
    assert!(rig.relay.queues.failed);
    let access = Some(Syndrome::REMOTE_ACCESS);
    // The first was not signaled and succeeded. Two are still at the device.
    assert_eq!(rig.sends(0), [(1, access)]);
    rig.relay.queues.finish(IBV_WC_WR_FLUSH_ERR);
    rig.relay.queues.finish(IBV_WC_WR_FLUSH_ERR);
    // One more, which was posted when the device had room again.
    while !rig.relay.queues.sends.is_empty() {
        rig.relay.queues.finish(IBV_WC_WR_FLUSH_ERR);
    }
    rig.run();
    let rest = (2..8).map(|counter| (counter, FLUSH));
    let all: Vec<_> = [(1, access)].into_iter().chain(rest).collect();
    assert_eq!(rig.sends(0), all);
    // Receives of this side have not failed yet; the device flushes them.
    assert_eq!(rig.receives(0), []);
    rig.relay.queues.fill(IBV_WC_WR_FLUSH_ERR);
    rig.relay.queues.fill(IBV_WC_WR_FLUSH_ERR);
    rig.receive();
    rig.send(SendOpcode::NOP, true);
    rig.run();
    assert_eq!(rig.receives(0), [(0, FLUSH), (1, FLUSH), (2, FLUSH)]);
    assert_eq!(rig.sends(7), [(8, FLUSH)]);
    assert!(rig.relay.queues.sends.is_empty() && rig.relay.queues.receives.is_empty());
}

/// An invalid entry fails when its turn comes, as on a NIC, and puts the queue in error.
#[test]
fn invalid_entry_is_an_error_entry() {
    let good = |rig: &Rig| rig.wqe(SendOpcode::SEND, true);
    type Spoil = fn(&mut [u8; 64]);
    let spoils: [(&str, Spoil); 7] = [
        ("no size", |b| b[7] = 0),
        ("a size that is none", |b| b[7] = 0xff),
        ("longer than what was posted", |b| b[7] = 40),
        ("another index", |b| b[2] ^= 1),
        ("another queue pair", |b| b[6] ^= 1),
        ("an unknown opcode", |b| b[3] = 0x7f),
        ("zeros", |b| *b = [0; 64]),
    ];
    for (what, spoil) in spoils {
        let mut rig = Rig::new(0, LIMITS);
        rig.send(SendOpcode::SEND, true);
        let mut bytes = good(&rig);
        spoil(&mut bytes);
        rig.bytes(&bytes);
        rig.send(SendOpcode::SEND, true);
        rig.run();
        assert_eq!(rig.relay.queues.sends.len(), 1, "{what}");
        assert_eq!(rig.sends(0), [], "{what}");
        rig.finish(IBV_WC_SUCCESS);
        let bad = (1, Some(Syndrome::LOCAL_QP_OP));
        assert_eq!(rig.sends(0), [(0, None), bad, (2, FLUSH)], "{what}");
        assert!(rig.relay.queues.failed, "{what}");
    }
}

#[test]
fn request_refused_by_the_device_is_an_error_entry() {
    let mut rig = Rig::new(0, LIMITS);
    rig.relay.queues.refusal = libc::EINVAL;
    rig.send(SendOpcode::SEND, false);
    rig.run();
    assert_eq!(rig.sends(0), [(0, Some(Syndrome::LOCAL_QP_OP))]);
    assert!(rig.relay.queues.failed);
}

#[test]
fn receives_are_posted_up_to_the_index_in_the_record() {
    let mut rig = Rig::new(0, LIMITS);
    for _ in 0..6 {
        rig.receive();
    }
    rig.run();
    assert_eq!(rig.relay.queues.receives.len(), 4);
    for i in 0..6 {
        rig.fill(IBV_WC_SUCCESS);
        assert_eq!(rig.receives(i), [(i as u16, None)]);
    }
    // A failed receive is an error of the queue pair.
    rig.receive();
    rig.run();
    rig.fill(IBV_WC_LOC_LEN_ERR);
    assert_eq!(rig.receives(6), [(6, Some(Syndrome::LOCAL_LENGTH))]);
    assert!(rig.relay.queues.failed);
}

#[test]
fn relay_awaits_announced_posts_of_streams() {
    for start in [0, u32::from(u16::MAX) - 1] {
        let mut rig = Rig::new(start, LIMITS);
        assert!(!rig.relay.awaits());
        rig.relay.expect(start + 2, start + 1);
        rig.post_sends(2);
        rig.run();
        assert!(rig.relay.awaits());
        rig.receive();
        // Posted, and not read.
        assert!(rig.relay.awaits());
        rig.run();
        assert!(!rig.relay.awaits());
        // The CPU posts more.
        rig.send(SendOpcode::SEND, true);
        rig.run();
        assert!(!rig.relay.awaits());
        rig.relay.down();
        assert!(!rig.relay.awaits());
    }
}

/// Completions of a former connection are ignored.
#[test]
fn relay_ignores_completions_of_a_former_connection() {
    let mut rig = Rig::new(0, LIMITS);
    rig.post_sends(2);
    rig.run();
    rig.relay.down();
    rig.finish(IBV_WC_SUCCESS);
    assert_eq!(rig.sends(0), []);
    rig.relay.queues.sends.clear();
    rig.posted = (0, 0);
    rig.send(SendOpcode::SEND, true);
    rig.relay.up();
    rig.run();
    assert_eq!(rig.sends(0), []);
    rig.finish(IBV_WC_SUCCESS);
    assert_eq!(rig.sends(0), [(0, None)]);
    assert_eq!(rig.relay.positions(), (1, 0));
}

/// The completions of a relay that goes down leave their room in the device's completion queue to
/// the next connection.
#[test]
fn relay_that_goes_down_drains_the_completion_queue() {
    let mut rig = Rig::new(0, LIMITS);
    for _ in 0..BATCH + 1 {
        rig.relay.queues.done.push_back(ibv_wc::default());
    }
    rig.relay.down();
    assert_eq!(rig.relay.queues.done.len(), 0);
}

/// A queue of the greatest length that streams are going to fill.
#[test]
fn relay_awaits_up_to_the_longest_queue() {
    for start in [0, 7, u32::from(u16::MAX)] {
        let mut rig = Rig::new(start, LIMITS);
        rig.relay.expect(start.wrapping_add(1 << 15), start);
        assert!(rig.relay.awaits());
        rig.relay.expect(start, start.wrapping_add(1 << 15));
        assert!(rig.relay.awaits());
    }
}

#[test]
fn relay_awaits_nothing_however_much_the_cpu_posts() {
    let mut rig = Rig::new(0, LIMITS);
    for _ in 0..(1 << 16) + 1 {
        rig.send(SendOpcode::SEND, false);
        rig.run();
        assert!(!rig.relay.awaits());
        rig.finish(IBV_WC_SUCCESS);
    }
}

/// Without an earlier report of the loss, a failure reveals it: the device refuses the change to
/// the error state.
#[test]
fn lost_device_found_by_a_failure_fails_all_requests() {
    let mut rig = Rig::new(0, LIMITS);
    rig.relay.queues.gone = true;
    rig.post_sends(2);
    rig.run();
    rig.relay.fail();
    rig.run();
    let gone = Some(translate::UNNAMED);
    assert_eq!(rig.sends(0), [(0, gone), (1, FLUSH)]);
}

/// The requests at the device fail, the oldest for its own reason; the others are flushed.
#[test]
fn lost_device_fails_all_requests() {
    let mut rig = Rig::new(0, LIMITS);
    rig.post_sends(6);
    rig.receive();
    rig.receive();
    rig.run();
    rig.finish(IBV_WC_SUCCESS);
    rig.relay.lose();
    rig.run();
    let gone = Some(translate::UNNAMED);
    let flushed = (2..6).map(|counter| (counter, FLUSH));
    let all: Vec<_> = [(0, None), (1, gone)].into_iter().chain(flushed).collect();
    assert_eq!(rig.sends(0), all);
    assert_eq!(rig.receives(0), [(0, gone), (1, FLUSH)]);
    // Requests that are posted from now on are flushed too.
    rig.send(SendOpcode::SEND, true);
    rig.receive();
    rig.run();
    assert_eq!(rig.sends(6), [(6, FLUSH)]);
    assert_eq!(rig.receives(2), [(2, FLUSH)]);
}

/// For any bytes in the rings and any record: no more entries than requests, and an end.
#[test]
fn any_bytes_in_the_rings_terminate() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..300 {
        let mut rig = Rig::new(0, LIMITS);
        for ring in [rig.rings.send, rig.rings.recv] {
            for at in (0..ring.len()).step_by(4) {
                ring.store32(at, random.u32(..));
            }
        }
        if random.bool() {
            let bytes = rig.wqe(SendOpcode::SEND, true);
            rig.rings.send.write(0, &bytes);
        }
        rig.posted = (random.u32(1..=BLOCKS as u32), random.u32(0..=SLOTS as u32));
        rig.ring();
        for _ in 0..100 {
            rig.run();
            while !rig.relay.queues.sends.is_empty() {
                rig.relay.queues.finish(IBV_WC_SUCCESS);
            }
            while !rig.relay.queues.receives.is_empty() {
                rig.relay.queues.fill(IBV_WC_WR_FLUSH_ERR);
            }
        }
        assert!(!rig.relay.advance());
        let (sends, receives) = rig.relay.positions();
        assert!(sends <= rig.posted.0 && receives <= rig.posted.1);
    }
}
