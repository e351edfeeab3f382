//! Programs of valid and faulty entries, on reliable and unreliable connections. An oracle predicts
//! the effects of each: its completion, the other end's completion, the states, and every byte of
//! both memories.
//!
//! `GDS_CASES` sets the number of cases of each test.

mod rig;

use std::time::Duration;

use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Atomic, Payload, Remote, WqeFlags};
use proptest::prelude::*;
use rig::*;
use vmlx5::{Dma, QpState, Service};

fn cases() -> ProptestConfig {
    let cases = std::env::var("GDS_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases.unwrap_or(64))
    }
}

/// Each operation has separate bytes at both ends.
const SLOT: u64 = 72 * 1024;
/// Most operations of a program.
const OPS: usize = 12;

const LENGTHS: [usize; 6] = [1, 8, 100, 4096, 40_000, 70_000];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Nop,
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    Add,
    Swap,
}

/// The fault of an operation; ignored if the kind of operation cannot have it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Nothing,
    /// The local key is unknown.
    LocalKey,
    /// The local bytes end past the region.
    LocalRange,
    /// The entry carries another index.
    Index,
    /// The remote key is unknown.
    RemoteKey,
    /// The remote bytes end past the region.
    RemoteRange,
    /// The receive is one byte too short.
    Short,
}

#[derive(Clone, Copy, Debug)]
struct Op {
    kind: Kind,
    len: usize,
    wrong: Wrong,
    signaled: bool,
    fence: bool,
    inline: bool,
}

fn op() -> impl Strategy<Value = Op> {
    use Kind::*;
    let kind = prop::sample::select(vec![
        Nop, Send, SendImm, Write, WriteImm, Read, Add, Swap, Write, Send,
    ]);
    let wrong = prop_oneof![
        12 => Just(Wrong::Nothing),
        1 => Just(Wrong::LocalKey),
        1 => Just(Wrong::LocalRange),
        1 => Just(Wrong::Index),
        2 => Just(Wrong::RemoteKey),
        2 => Just(Wrong::RemoteRange),
        1 => Just(Wrong::Short),
    ];
    let flags = any::<(bool, bool, bool)>();
    let len = prop::sample::select(LENGTHS.to_vec());
    (kind, len, wrong, flags).prop_map(|(kind, len, wrong, (signaled, fence, inline))| Op {
        kind,
        len: if matches!(kind, Add | Swap) { 8 } else { len },
        wrong,
        signaled,
        fence,
        inline,
    })
}

/// The predicted effect of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Done,
    /// It completes without an effect at the other end.
    Lost,
    /// It completes; the receive that it found failed.
    TooLong,
    Failed(Syndrome),
    Flushed,
}

impl Op {
    fn answered(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::Add | Kind::Swap)
    }

    fn remote(&self) -> bool {
        self.answered() || matches!(self.kind, Kind::Write | Kind::WriteImm)
    }

    /// Returns true if it uses a receive of the other end.
    fn receives(&self) -> bool {
        matches!(self.kind, Kind::Send | Kind::SendImm | Kind::WriteImm)
    }

    fn sends(&self) -> bool {
        matches!(self.kind, Kind::Send | Kind::SendImm)
    }

    /// Returns true if the entry contains its payload (inline).
    fn is_inline(&self) -> bool {
        self.inline && self.len <= 100 && !self.answered()
    }

    /// Its effect on a connection without an earlier fault.
    fn fate(&self, service: Service) -> Fate {
        let local = !self.is_inline() && self.kind != Kind::Nop;
        let reliable = service == Service::Rc;
        match self.wrong {
            Wrong::Index => Fate::Failed(Syndrome::LOCAL_QP_OP),
            _ if self.answered() && !reliable => Fate::Failed(Syndrome::LOCAL_QP_OP),
            Wrong::LocalKey | Wrong::LocalRange if local => Fate::Failed(Syndrome::LOCAL_PROT),
            Wrong::RemoteKey | Wrong::RemoteRange if self.remote() => match reliable {
                true => Fate::Failed(Syndrome::REMOTE_ACCESS),
                false => Fate::Lost,
            },
            Wrong::Short if self.sends() => match reliable {
                true => Fate::Failed(Syndrome::REMOTE_INVAL_REQ),
                false => Fate::TooLong,
            },
            _ => Fate::Done,
        }
    }
}

/// The effects of all operations, and whether each end is in error afterwards.
fn fates(ops: &[Op], service: Service) -> (Vec<Fate>, bool, bool) {
    let (mut stopped, mut deaf) = (false, false);
    let fates = ops.iter().map(|op| {
        if stopped {
            return Fate::Flushed;
        }
        match op.fate(service) {
            Fate::Failed(why) => {
                stopped = true;
                deaf |= matches!(why, Syndrome::REMOTE_ACCESS | Syndrome::REMOTE_INVAL_REQ);
                Fate::Failed(why)
            }
            // The other end is in error and drops frames without an answer.
            Fate::Done | Fate::TooLong if deaf && op.kind != Kind::Nop => Fate::Lost,
            Fate::TooLong => {
                deaf = true;
                Fate::TooLong
            }
            fate => fate,
        }
    });
    let fates = fates.collect();
    (fates, stopped, deaf)
}

fn slot(i: usize) -> u64 {
    SLOT * i as u64
}

/// Writes the operation's entry into the ring.
fn prepare(i: usize, op: &Op, a: &mut End, b: &End) -> u16 {
    let end = a.config.data as u64;
    let at = match op.wrong {
        Wrong::LocalRange => end - op.len as u64 + 1,
        _ => slot(i),
    };
    let key = match op.wrong {
        Wrong::LocalKey => 0x4200,
        _ => a.keys.lkey,
    };
    // Two pieces, one of which may be empty.
    let cut = (op.len / 3) as u32;
    let piece = |at, len| a.sge(at, len).changed(|s| s.lkey = key);
    let rest = op.len as u32 - cut;
    let pieces = [piece(at, cut), piece(at + u64::from(cut), rest)];
    let whole = [piece(at, op.len as u32)];
    let to = Remote {
        addr: match op.wrong {
            // Whole words, for atomics.
            Wrong::RemoteRange => {
                b.addr(end - op.len as u64 / 8 * 8) + if op.len < 8 { 1 } else { 8 }
            }
            _ => b.addr(slot(i)),
        },
        rkey: match op.wrong {
            Wrong::RemoteKey => 0x4200,
            _ => b.keys.rkey,
        },
    };
    let bytes = a.get(slot(i), op.len);
    let inline = [&bytes[..]];
    let add = Atomic::FetchAdd { add: 5 };
    let swap = Atomic::CompareSwap {
        compare: b.get64(slot(i)),
        swap: 3,
    };
    let mut wqe = match op.kind {
        Kind::Nop => nop(),
        Kind::Send | Kind::SendImm => send(&pieces),
        Kind::Write | Kind::WriteImm => write(to, &pieces),
        Kind::Read => read(to, &pieces),
        Kind::Add => atomic(to, add, &whole),
        Kind::Swap => atomic(to, swap, &whole),
    };
    match op.kind {
        Kind::SendImm => wqe.opcode = SendOpcode::SEND_IMM,
        Kind::WriteImm => wqe.opcode = SendOpcode::RDMA_WRITE_IMM,
        _ => {}
    }
    if matches!(op.kind, Kind::SendImm | Kind::WriteImm) {
        wqe.imm = [i as u8; 4];
    }
    if op.is_inline() && op.kind != Kind::Nop {
        wqe.payload = Payload::Inline(&inline);
    }
    wqe.flags = WqeFlags {
        signaled: op.signaled,
        fence: op.fence,
        solicited: false,
    };
    let ring = 64_u64 << a.config.log_sq;
    let index = a.prepare(&wqe);
    if op.wrong == Wrong::Index {
        let place = a.sq_at + u64::from(index) * 64 % ring;
        a.mem.write(place + 1, &[!(index >> 8) as u8]).unwrap();
    }
    index
}

/// Runs a program and asserts the effects that the oracle predicts.
fn run(seed: u64, service: Service, ops: &[Op]) {
    let mut world = World::scheduled(2, seed);
    let config = EndConfig {
        service,
        sq_start: 0xfffa,
        rq_start: 0xfffc,
        cq_start: 0xff_fffc,
        data: SLOT as usize * OPS,
        ..EndConfig::default()
    };
    let (mut a, mut b) = world.pair(config.clone(), config);
    for (end, seed) in [(&a, seed), (&b, !seed)] {
        // The period is odd, so that no two slots are equal.
        let some = pattern(seed, 4099);
        let all: Vec<u8> = some.iter().copied().cycle().take(end.config.data).collect();
        end.put(0, &all);
    }
    let (mut of_a, mut of_b) = (a.get(0, a.config.data), b.get(0, b.config.data));
    let (fates, stopped, deaf) = fates(ops, service);

    // Receives: each has the bytes of the operation that will use it.
    let meets = |op: &Op, fate: Fate| {
        let refused = Fate::Failed(Syndrome::REMOTE_INVAL_REQ);
        op.receives() && (matches!(fate, Fate::Done | Fate::TooLong) || fate == refused)
    };
    let all = || ops.iter().zip(&fates).enumerate();
    let met: Vec<usize> = all()
        .filter(|(_, (op, fate))| meets(op, **fate))
        .map(|(i, _)| i)
        .collect();
    for &i in &met {
        let short = ops[i].wrong == Wrong::Short && ops[i].sends();
        let room = ops[i].len as u32 - u32::from(short);
        b.post_recv(&[
            b.sge(slot(i), room / 2),
            b.sge(slot(i) + u64::from(room / 2), room - room / 2),
        ]);
    }
    // Receives that no operation uses.
    b.post_recv(&[b.sge(0, 8)]);

    let indices: Vec<u16> = ops
        .iter()
        .enumerate()
        .map(|(i, op)| prepare(i, op, &mut a, &b))
        .collect();
    a.ring();
    world.pass(Duration::from_millis(100));
    if service == Service::Uc {
        // The other end has not sent a frame.
        assert_eq!(world.nics[1].stats().frames_sent, 0);
        assert_eq!(world.deadline, None);
    }

    // Completions of the sends.
    let mut entries = a.send.drain().into_iter().peekable();
    for (i, (op, &fate)) in all() {
        let index = indices[i];
        let expected = match fate {
            Fate::Failed(why) => Some(why),
            // After a failure, a malformed entry fails as malformed only if it was fetched before.
            Fate::Flushed if op.wrong == Wrong::Index => {
                let next = entries.peek().map(|entry| entry.wqe_counter.get());
                if next != Some(index) {
                    continue;
                }
                Some(Syndrome::WR_FLUSH)
            }
            Fate::Flushed => Some(Syndrome::WR_FLUSH),
            _ if op.signaled => None,
            _ => continue,
        };
        let entry = entries.next().expect("an entry");
        match expected {
            Some(why) => assert_err(&entry, CqeOpcode::REQ_ERR, index, why),
            None => assert_ok(&entry, CqeOpcode::REQ, index),
        }
    }
    assert_eq!(entries.next(), None);

    // Completions of the receives.
    let mut index = b.config.rq_start;
    for &i in &met {
        let entry = b.recv.poll().expect("received");
        if fates[i] == Fate::Done {
            let kind = match ops[i].kind {
                Kind::Send => CqeOpcode::RESP_SEND,
                Kind::SendImm => CqeOpcode::RESP_SEND_IMM,
                _ => CqeOpcode::RESP_WR_IMM,
            };
            assert_ok(&entry, kind, index);
            assert_eq!(entry.byte_cnt.get() as usize, ops[i].len);
        } else {
            assert_err(&entry, CqeOpcode::RESP_ERR, index, Syndrome::LOCAL_LENGTH);
        }
        index = index.wrapping_add(1);
    }
    if deaf {
        let entry = b.recv.poll().expect("flushed");
        assert_err(&entry, CqeOpcode::RESP_ERR, index, Syndrome::WR_FLUSH);
    }
    assert_eq!(b.recv.poll(), None);

    let at_a = match (stopped, service) {
        (false, _) => QpState::Rts,
        (true, Service::Rc) => QpState::Err,
        (true, _) => QpState::Sqe,
    };
    let at_b = if deaf { QpState::Err } else { QpState::Rts };
    assert_eq!((world.state(&a), world.state(&b)), (at_a, at_b));

    for (i, (op, &fate)) in all() {
        if fate != Fate::Done {
            continue;
        }
        let range = SLOT as usize * i..SLOT as usize * i + op.len;
        match op.kind {
            Kind::Nop => {}
            Kind::Read => of_a[range.clone()].copy_from_slice(&of_b[range]),
            Kind::Add | Kind::Swap => {
                of_a[range.clone()].copy_from_slice(&of_b[range.clone()]);
                let was = u64::from_ne_bytes(of_b[range.clone()].try_into().unwrap());
                let new = if op.kind == Kind::Swap {
                    3
                } else {
                    was.wrapping_add(5)
                };
                of_b[range].copy_from_slice(&new.to_ne_bytes());
            }
            _ => of_b[range.clone()].copy_from_slice(&of_a[range]),
        }
    }
    assert!(a.get(0, of_a.len()) == of_a, "the requester's memory");
    assert!(b.get(0, of_b.len()) == of_b, "the responder's memory");
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn reliable_programs_match_the_oracle(seed: u64, ops in prop::collection::vec(op(), 1..OPS)) {
        run(seed, Service::Rc, &ops);
    }

    #[test]
    fn unreliable_programs_match_the_oracle(seed: u64, ops in prop::collection::vec(op(), 1..OPS)) {
        run(seed, Service::Uc, &ops);
    }
}
