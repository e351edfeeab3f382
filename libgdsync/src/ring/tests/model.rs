//! The completion and watcher protocols under a model checker: the shipped [`CompletionRing`],
//! [`Fault`] and wait sequences over loom's atomics. Loom tries every interleaving of NIC, stream,
//! watcher and CPU that the memory model allows.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use mlx5_prm::cqe::{self, ErrCqe, Failure};
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;

use crate::memop::{Batch, Caps, DevicePtr, Op, completion};
use crate::ring::cq::ENTRY;
use crate::ring::fault::{Fault, StatusSink, due};
use crate::ring::fifo::Fifo;
use crate::ring::{CompletionRing, Poster, RingMemory};
use crate::status::Status;

/// Ring memory made of loom's words. Only the words that a test names are atomic objects of
/// the model (it has room for few); the others are constants.
#[derive(Clone)]
struct Words(Arc<Vec<(usize, AtomicU32)>>);

impl Words {
    fn new(offsets: &[usize]) -> Words {
        Words(Arc::new(
            offsets.iter().map(|o| (*o, AtomicU32::new(0))).collect(),
        ))
    }

    fn at(&self, offset: usize) -> Option<&AtomicU32> {
        self.0.iter().find(|(o, _)| *o == offset).map(|(_, w)| w)
    }
}

impl RingMemory for Words {
    fn store_segment(&self, offset: usize, segment: &[u8; 16]) {
        for (i, word) in segment.chunks_exact(4).enumerate() {
            if let Some(w) = self.at(offset + 4 * i) {
                w.store(
                    u32::from_le_bytes(word.try_into().unwrap()),
                    Ordering::Relaxed,
                );
            }
        }
    }
    fn load_segment(&self, offset: usize) -> [u8; 16] {
        let mut s = [0; 16];
        for (i, word) in s.chunks_exact_mut(4).enumerate() {
            let value = self
                .at(offset + 4 * i)
                .map_or(0, |w| w.load(Ordering::Relaxed));
            word.copy_from_slice(&value.to_le_bytes());
        }
        s
    }
    fn load32(&self, offset: usize) -> u32 {
        self.at(offset)
            .map_or(u32::MAX, |w| w.load(Ordering::Acquire))
    }
    fn store32(&self, offset: usize, value: u32) {
        if let Some(w) = self.at(offset) {
            w.store(value, Ordering::Release);
        }
    }
}

/// The capabilities of a runtime like CUDA.
const CAPS: Caps = Caps {
    mask: false,
    ..Caps::FULL
};

struct Publish {
    status: Arc<AtomicU32>,
}

impl StatusSink for Publish {
    fn publish(&mut self, _ticket: u64, status: Status) {
        self.status.store(status.0, Ordering::Relaxed);
    }
}

/// The stream's front end executes the waits for a position: one after the other, each until it
/// passes.
fn stream_waits(ring: &CompletionRing<Words>, entries: &Words, position: u64) {
    let spot = ring.spot(position);
    let entry = completion::Entry {
        word: DevicePtr(spot.offset as u64),
        owner: spot.owner,
        first_lap: spot.first_lap,
        send: true,
        flush: false,
    };
    let mut batch = Batch::new();
    completion::push(&mut batch, &entry, &CAPS);
    for op in batch.ops() {
        let Op::Wait {
            width,
            at,
            value,
            mask,
            condition,
            ..
        } = *op
        else {
            unreachable!("only waits")
        };
        while !condition.holds(width, entries.load32(at.0 as usize).into(), value, mask) {
            thread::yield_now();
        }
    }
}

fn last(position: u64) -> usize {
    (position as usize & 7) * ENTRY + cqe::LAST_DWORD_OFFSET
}

fn ring(entries: &Words, passed: &Words) -> CompletionRing<Words> {
    CompletionRing::new(entries.clone(), passed.clone(), 3, 0)
}

/// A stream that has passed a completion sees the payload. Its mark lets the CPU give the entry's
/// quarter to the NIC again: the stream never sees the later lap's entry.
#[test]
fn a_passed_completion_carries_its_payload_and_is_reused_only_then() {
    loom::model(|| {
        // Positions 0 and 1 are the first quarter; their words, and the mark, are modelled.
        let entries = Words::new(&[last(0), last(1)]);
        let passed = Words::new(&[0]);
        let payload = Arc::new(AtomicU32::new(0));
        let mut cq = ring(&entries, &passed);
        for ticket in 0..4 {
            assert_eq!(cq.reserve(ticket).unwrap(), ticket);
        }
        let waiter = cq.waiter(1).unwrap();
        cq.note_wait(waiter, 1);
        cq.commit_mark(waiter);
        let stream = {
            let (cq, entries, passed, payload) = (
                positions(),
                entries.clone(),
                passed.clone(),
                payload.clone(),
            );
            thread::spawn(move || {
                stream_waits(&cq, &entries, 1);
                assert_eq!(
                    payload.load(Ordering::Relaxed),
                    7,
                    "the payload of this completion"
                );
                passed.store32(0, 1);
            })
        };
        // The NIC: two successes in order, the payload before the second.
        let success = |p: u64| cqe::last_dword(CqeOpcode::REQ, 0, 0, p as u16);
        entries.store32(last(0), success(0));
        payload.store(7, Ordering::Relaxed);
        entries.store32(last(1), success(1));
        // The CPU requests a position in the third quarter, and the NIC's next work for it changes
        // the payload.
        if cq.reserve(4).is_ok() {
            assert_eq!(passed.load32(0), 1, "reused before the stream had passed");
            payload.store(8, Ordering::Relaxed);
        }
        stream.join().unwrap();
    });
}

/// Positions and their tests for another thread, without memory: a second ring over the same words
/// would preset them again.
fn positions() -> CompletionRing<Words> {
    let blank = Words::new(&[]);
    CompletionRing::new(blank.clone(), blank, 3, 0)
}

const BODY: [usize; 3] = [48, 52, 56];

fn error_entry(write: impl Fn(usize, u32)) {
    let failure = Failure {
        opcode: CqeOpcode::REQ_ERR,
        syndrome: Syndrome::REMOTE_ACCESS,
        ..Failure::default()
    };
    let bytes = ErrCqe::new(&failure, 0).to_bytes();
    for o in [BODY[0], BODY[1], BODY[2], last(0)] {
        write(o, u32::from_le_bytes(bytes[o..o + 4].try_into().unwrap()));
    }
}

/// Writes an entry as a NIC does: the body in any order, the last dword after it.
fn write_error(entries: &Words) {
    error_entry(|o, word| match o {
        o if o == last(0) => entries.store32(o, word),
        o => entries.at(o).unwrap().store(word, Ordering::Relaxed),
    });
}

/// One signaled request in flight at position 0.
fn one_in_flight(entries: &Words) -> (CompletionRing<Words>, Fifo<()>) {
    let mut cq = ring(entries, &Words::new(&[0]));
    let mut fifo: Fifo<()> = Fifo::new(4, 0);
    let position = cq.reserve(0).unwrap();
    fifo.push(1, 3, Some(position), |()| ());
    fifo.post(0, Poster::Stream(1)).unwrap();
    (cq, fifo)
}

/// A stream stalls at an error entry until the watcher has stored the status; then it continues and
/// sees the status.
#[test]
fn a_stream_released_by_the_watcher_sees_the_status() {
    loom::model(|| {
        let entries = Words::new(&[last(0), BODY[0], BODY[1], BODY[2]]);
        let status = Arc::new(AtomicU32::new(0));
        let (mut cq, mut fifo) = one_in_flight(&entries);
        let stream = {
            let (cq, entries, status) = (positions(), entries.clone(), status.clone());
            thread::spawn(move || {
                stream_waits(&cq, &entries, 0);
                assert_eq!(status.load(Ordering::Relaxed), Status::REMOTE_ACCESS.0);
            })
        };
        write_error(&entries);
        let mut sink = Publish { status };
        assert!(Fault::default().tick(&mut fifo, &mut cq, None, &mut sink));
        stream.join().unwrap();
    });
}

/// A watcher that visits while the NIC writes an error entry sees the whole entry or none of it.
#[test]
fn the_watcher_never_reads_half_an_error_entry() {
    loom::model(|| {
        let entries = Words::new(&[last(0), BODY[0], BODY[1], BODY[2]]);
        let (mut cq, mut fifo) = one_in_flight(&entries);
        let nic = {
            let entries = entries.clone();
            thread::spawn(move || write_error(&entries))
        };
        let status = Arc::new(AtomicU32::new(0));
        let mut sink = Publish {
            status: status.clone(),
        };
        let mut fault = Fault::default();
        for _ in 0..2 {
            fault.tick(&mut fifo, &mut cq, None, &mut sink);
            if let Some(first) = fault.first() {
                assert_eq!(first, Status::REMOTE_ACCESS);
                assert_eq!(status.load(Ordering::Relaxed), Status::REMOTE_ACCESS.0);
            } else {
                assert_eq!(status.load(Ordering::Relaxed), 0);
            }
        }
        nic.join().unwrap();
    });
}

/// An observer of a flushed request sees the cause too, whichever queue failed.
#[test]
fn flushed_status_is_visible_only_with_its_cause() {
    for cause_is_sent in [true, false] {
        loom::model(move || {
            let words = [Words::new(&[last(0)]), Words::new(&[last(0)])];
            let [(mut send, _), (mut recv, _)] = words.each_ref().map(one_in_flight);
            let nic = {
                let words = words.clone();
                thread::spawn(move || {
                    let (first, second) = if cause_is_sent { (0, 1) } else { (1, 0) };
                    for queue in [first, second] {
                        error_entry(|o, word| {
                            if o == last(0) {
                                words[queue].store32(o, word);
                            }
                        });
                    }
                })
            };
            let (sent, received) = due(&mut send, &mut recv);
            let (cause, flush) = match cause_is_sent {
                true => (sent, received),
                false => (received, sent),
            };
            assert!(cause || !flush);
            nic.join().unwrap();
        });
    }
}
