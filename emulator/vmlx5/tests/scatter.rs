//! Small payloads in completion entries (inline scatter): there if requested, otherwise in memory,
//! never in both.

mod rig;

use mlx5_prm::cqe::Cqe64;
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Atomic, SendWqe, Sge, WqeFlags};
use rig::shared::SharedQueue;
use rig::*;
use vmlx5::*;

const LENGTHS: [usize; 8] = [0, 1, 7, 8, 31, 32, 33, 5000];

fn config(service: Service, requester: bool, responder: bool) -> EndConfig {
    EndConfig {
        service,
        scatter: Scatter {
            requester,
            responder,
        },
        ..EndConfig::default()
    }
}

/// The payload in an entry that is marked as containing it.
fn held(cqe: &Cqe64) -> Option<Vec<u8>> {
    let bytes = cqe.to_bytes();
    let len = cqe.byte_cnt.get() as usize;
    cqe.scattered().then(|| bytes[..len].to_vec())
}

const UNTOUCHED: u8 = 0xee;

#[test]
fn small_sends_are_scattered_inline() {
    for service in [Service::Rc, Service::Uc] {
        for asked in [false, true] {
            let (mut world, mut a, mut b) =
                World::joined(config(service, false, false), config(service, false, asked));
            for (i, len) in LENGTHS.into_iter().enumerate() {
                let bytes = pattern(i as u64, len);
                a.put(0, &bytes);
                b.put(0, &vec![UNTOUCHED; len]);
                let index = b.post_recv(&[b.sge(0, 3), b.sge(3, 8000)]);
                a.run(
                    &mut world,
                    &SendWqe {
                        opcode: SendOpcode::SEND_IMM,
                        imm: [9, 8, 7, 6],
                        ..send(&[a.sge(0, len as u32)])
                    },
                );
                let cqe = b.recv.poll().unwrap();
                assert_ok(&cqe, CqeOpcode::RESP_SEND_IMM, index);
                assert_eq!(cqe.imm_inval_pkey, [9, 8, 7, 6]);
                assert_eq!(cqe.byte_cnt.get() as usize, len);
                if asked && (1..=32).contains(&len) {
                    assert_eq!(held(&cqe), Some(bytes));
                    assert_eq!(b.get(0, len), vec![UNTOUCHED; len]);
                } else {
                    assert_eq!(held(&cqe), None, "{len} bytes");
                    assert_eq!(cqe.to_bytes()[..32], [0; 32]);
                    assert_eq!(b.get(0, len), bytes);
                }
            }
        }
    }
}

#[test]
fn writes_are_never_scattered_inline() {
    let (mut world, mut a, mut b) =
        World::joined(EndConfig::default(), config(Service::Rc, true, true));
    a.put(0, b"written");
    let index = b.post_recv(&[]);
    a.run(
        &mut world,
        &write(b.remote(0), &[a.sge(0, 7)]).changed(|s| s.opcode = SendOpcode::RDMA_WRITE_IMM),
    );
    let cqe = b.recv.poll().unwrap();
    assert_ok(&cqe, CqeOpcode::RESP_WR_IMM, index);
    assert_eq!((held(&cqe), b.get(0, 7)), (None, b"written".to_vec()));
}

#[test]
fn shared_receives_are_scattered_inline() {
    let mut world = World::new(2);
    let mut queue = SharedQueue::new(&mut world.nics[1], 2);
    let shared = config(Service::Rc, false, true).changed(|c| c.srq = Some(queue.srqn));
    let (mut a, mut b) = world.pair(EndConfig::default(), shared);
    queue.post(&[queue.sge(0, 64)]);
    a.put(0, b"shared");
    a.run(&mut world, &send(&[a.sge(0, 6)]));
    let cqe = b.recv.poll().unwrap();
    assert_ok(&cqe, CqeOpcode::RESP_SEND, 0);
    assert_eq!(held(&cqe), Some(b"shared".to_vec()));
    assert_eq!(queue.get(0, 6), [0; 6]);
}

#[test]
fn inline_scatter_still_checks_the_receive() {
    type Bad = fn(&End) -> Sge;
    let cases: [(Bad, Syndrome); 2] = [
        (|b| b.sge(0, 5), Syndrome::LOCAL_LENGTH),
        (
            |b| b.sge(0, 8).changed(|s| s.lkey = b.keys.lkey ^ 1),
            Syndrome::LOCAL_PROT,
        ),
    ];
    for (bad, why) in cases {
        let (mut world, mut a, mut b) =
            World::joined(EndConfig::default(), config(Service::Rc, false, true));
        let index = b.post_recv(&[bad(&b)]);
        a.run(&mut world, &send(&[a.sge(0, 6)]));
        let cqe = b.recv.poll().unwrap();
        assert_err(&cqe, CqeOpcode::RESP_ERR, index, why);
        assert_eq!(cqe.to_bytes()[..32], [0; 32]);
    }
}

#[test]
fn small_reads_and_atomics_are_scattered_inline() {
    for asked in [false, true] {
        let (mut world, mut a, b) =
            World::joined(config(Service::Rc, asked, false), EndConfig::default());
        for (i, len) in LENGTHS.into_iter().enumerate() {
            for signaled in [true, false] {
                let bytes = pattern(i as u64, len);
                b.put(0, &bytes);
                a.put(0, &vec![UNTOUCHED; len]);
                let flags = WqeFlags::default().changed(|w| w.signaled = signaled);
                let first = len.min(1) as u32;
                // A NOP has no packets: the next entry gets its packet numbers.
                a.prepare(&nop());
                let index = a.prepare(&SendWqe {
                    flags,
                    ..read(
                        b.remote(0),
                        &[a.sge(0, first), a.sge(1, len as u32 - first)],
                    )
                });
                let last = a.prepare(&nop());
                a.ring();
                world.settle();
                assert_eq!(a.send.poll().unwrap().to_bytes()[..32], [0; 32]);
                let inline = asked && signaled && (1..=32).contains(&len);
                if signaled {
                    let cqe = a.send.poll().unwrap();
                    assert_ok(&cqe, CqeOpcode::REQ, index);
                    assert_eq!(held(&cqe), inline.then(|| bytes.clone()), "{len} bytes");
                }
                let cqe = a.send.poll().unwrap();
                assert_ok(&cqe, CqeOpcode::REQ, last);
                assert_eq!(held(&cqe), None);
                let there = if inline { vec![UNTOUCHED; len] } else { bytes };
                assert_eq!(a.get(0, len), there, "{len} bytes, signaled {signaled}");
            }
        }
        b.put64(64, 0x1122_3344_5566_7788);
        a.put64(0, 1);
        let add = Atomic::FetchAdd { add: 1 };
        let index = a.run(&mut world, &atomic(b.remote(64), add, &[a.sge(0, 8)]));
        let cqe = a.send.poll().unwrap();
        assert_ok(&cqe, CqeOpcode::REQ, index);
        let was = 0x1122_3344_5566_7788_u64;
        let there = if asked { 1 } else { was };
        assert_eq!((a.get64(0), b.get64(64)), (there, was + 1));
        assert_eq!(held(&cqe), asked.then(|| was.to_ne_bytes().to_vec()));
    }
}

/// With loss, duplication and reordering, each entry has the bytes of its own operation.
#[test]
fn inline_scatter_matches_its_operation_on_an_unreliable_wire() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::new(2);
        world.set_faults(&bad_wire(seed, [0.1, 0.1, 0.1]));
        let both = config(Service::Rc, true, true).changed(|c| (c.retry_cnt, c.timeout) = (7, 8));
        let (mut a, mut b) = world.pair(both.clone(), both);
        let bytes = pattern(seed, 4096);
        a.put(0, &bytes);
        b.put(0, &bytes);
        let (mut asked, mut received) = (Vec::new(), Vec::new());
        for i in 0..12_u64 {
            let (at, len) = (rng.u64(..4000), rng.u32(1..40));
            let to = a.sge(8192 + i * 64, len);
            if rng.bool() {
                a.prepare(&read(b.remote(at), &[to]));
                asked.push(Some((at, len, i)));
            } else {
                b.post_recv(&[b.sge(8192 + i * 64, 64)]);
                a.prepare(&send(&[a.sge(at, len)]));
                asked.push(None);
                received.push((at, len, i));
            }
        }
        a.ring();
        world.outlast();
        let check = |end: &End, cqe: &Cqe64, (at, len, i): (u64, u32, u64)| {
            assert!(!cqe.opcode().is_error(), "seed {seed}");
            let (at, len) = (at as usize, len as usize);
            let got = held(cqe).unwrap_or_else(|| end.get(8192 + i * 64, len));
            assert_eq!(got, bytes[at..at + len], "seed {seed}");
            assert_eq!(cqe.scattered(), len <= 32);
        };
        for what in asked {
            let cqe = a.send.poll().unwrap();
            match what {
                Some(what) => check(&a, &cqe, what),
                None => assert!(!cqe.scattered()),
            }
        }
        for what in received {
            let cqe = b.recv.poll().unwrap();
            check(&b, &cqe, what);
        }
    }
}
