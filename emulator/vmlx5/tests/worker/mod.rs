//! Random work of three connections, and an oracle that predicts the final memory: every operation
//! is executed exactly once, in order, and completes in order.
#![allow(dead_code, reason = "each test program uses its part")]

use std::time::Duration;

use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::wqe::{Atomic, Payload, SendWqe, WqeFlags};
use vmlx5::Mtu;

use crate::rig::*;

/// One queue pair's part in `random_work`.
struct Worker {
    a: End,
    b: End,
    /// The kinds of operations.
    posted: Vec<Op>,
    indices: Vec<u16>,
    sends: usize,
    completed: usize,
    received: usize,
}

#[derive(Clone, Copy)]
struct Op {
    code: SendOpcode,
    len: usize,
    signaled: bool,
    /// Returns true if it works on the words that all operations share, not on its own slot.
    shared: bool,
}

const SLOT: u64 = 40_000;
const OPS: usize = 60;

impl Worker {
    /// Posts one more operation; each has its own slot of memory at both ends.
    fn post(&mut self, rng: &mut fastrand::Rng) {
        let i = self.posted.len();
        let in_flight = self.a.sq.wrapping_sub(self.completed_block());
        if i == OPS || in_flight > 50 {
            return;
        }
        let slot = SLOT * i as u64;
        let (a, b) = (&mut self.a, &self.b);
        let mut len = [0, 1, 8, 200, 33_000][rng.usize(..5)];
        let flags = WqeFlags {
            // The last one is signaled, so that the test detects the end.
            signaled: i == OPS - 1 || rng.bool(),
            fence: rng.u8(..4) == 0,
            solicited: rng.bool(),
        };
        let cut = rng.usize(..=len);
        let sges = [
            a.sge(slot, cut as u32),
            a.sge(slot + cut as u64, (len - cut) as u32),
        ];
        let eight = [a.sge(slot, 8)];
        let at = b.remote(slot);
        let bytes = a.get(slot, len);
        let inline = [&bytes[..]];
        // All operations write to one word, and add to the next.
        let words = [b.remote(SLOT * OPS as u64), b.remote(SLOT * OPS as u64 + 8)];
        let mut shared = false;
        let mut wqe = match rng.u8(..10) {
            8 => {
                (shared, len) = (true, 8);
                write(words[0], &eight)
            }
            9 => {
                shared = true;
                atomic(words[1], Atomic::FetchAdd { add: 1 }, &eight)
            }
            0 | 1 => send(&sges),
            2 => write(at, &sges),
            3 => read(at, &sges),
            4 => atomic(at, Atomic::FetchAdd { add: 5 }, &eight),
            5 => atomic(
                at,
                Atomic::CompareSwap {
                    compare: b.get64(slot),
                    swap: 3,
                },
                &eight,
            ),
            6 => write(at, &sges).changed(|s| s.opcode = SendOpcode::RDMA_WRITE_IMM),
            _ => nop(),
        };
        if wqe.atomic.is_some() {
            len = 8;
        } else if len <= 200
            && !shared
            && rng.bool()
            && wqe.opcode != SendOpcode::RDMA_READ
            && wqe.opcode != SendOpcode::NOP
        {
            wqe.payload = Payload::Inline(&inline);
        }
        let index = a.prepare(&SendWqe { flags, ..wqe });
        if rng.bool() || i == OPS - 1 {
            a.ring();
        }
        self.posted.push(Op {
            code: wqe.opcode,
            len,
            signaled: flags.signaled,
            shared,
        });
        self.indices.push(index);
    }

    fn completed_block(&self) -> u16 {
        let start = self.a.config.sq_start;
        self.indices
            .get(self.completed)
            .copied()
            .unwrap_or(if self.indices.is_empty() {
                start
            } else {
                self.a.sq
            })
    }

    fn receives(&self) -> Vec<(usize, SendOpcode, usize)> {
        let with = |op| op == SendOpcode::SEND || op == SendOpcode::RDMA_WRITE_IMM;
        let all = self.posted.iter().enumerate();
        all.filter(|(_, p)| with(p.code))
            .map(|(i, p)| (i, p.code, p.len))
            .collect()
    }

    fn poll(&mut self) {
        while let Some(cqe) = self.a.send.poll() {
            while !self.posted[self.completed].signaled {
                self.completed += 1;
            }
            assert_ok(&cqe, CqeOpcode::REQ, self.indices[self.completed]);
            assert_eq!(cqe.send_opcode(), self.posted[self.completed].code);
            self.completed += 1;
        }
        while let Some(cqe) = self.b.recv.poll() {
            let (i, op, len) = self.receives()[self.received];
            let kind = if op == SendOpcode::SEND {
                CqeOpcode::RESP_SEND
            } else {
                CqeOpcode::RESP_WR_IMM
            };
            assert_ok(
                &cqe,
                kind,
                self.b.config.rq_start.wrapping_add(self.received as u16),
            );
            assert_eq!(cqe.byte_cnt.get() as usize, len, "operation {i}");
            self.received += 1;
        }
    }
}

/// Sends, writes, reads and atomics of three connections in a world of three NICs, with receives
/// that are posted late, near the wraps of all indices.
pub fn random_work(seed: u64, mut world: World, config: EndConfig) -> World {
    let mut rng = fastrand::Rng::with_seed(seed);
    let config = EndConfig {
        sq_start: 0xffe0,
        rq_start: 0xfffa,
        cq_start: 0xff_fff0,
        log_cq: 6,
        data: SLOT as usize * (OPS + 1),
        ..config
    };
    let mut workers = Vec::new();
    for (x, y) in [(0, 1), (1, 2), (2, 2)] {
        let config = config.clone().changed(|c| {
            (c.mtu, c.max_rd_atomic) = (Mtu::from_verbs(rng.u8(1..=5)).unwrap(), rng.u8(1..=4))
        });
        let a = world.end(x, config.clone());
        let b = world.end(y, config.clone());
        world.connect(&a, &b);
        a.put(0, &pattern(seed, config.data));
        b.put(0, &pattern(!seed, config.data));
        workers.push(Worker {
            a,
            b,
            posted: Vec::new(),
            indices: Vec::new(),
            sends: 0,
            completed: 0,
            received: 0,
        });
    }
    let before: Vec<_> = workers
        .iter()
        .map(|w| (w.a.get(0, w.a.config.data), w.b.get(0, w.b.config.data)))
        .collect();
    for turn in 0.. {
        assert!(turn < 100_000, "seed {seed} does not finish");
        let i = rng.usize(..workers.len());
        let w = &mut workers[i];
        if rng.u8(..3) == 0 {
            w.post(&mut rng);
        }
        // Receives use the slot of the operation that they are for.
        let receives = w.receives();
        if w.sends < receives.len() && w.sends - w.received < 16 && rng.u8(..3) == 0 {
            let slot = SLOT * receives[w.sends].0 as u64;
            let pieces = [w.b.sge(slot, 10), w.b.sge(slot + 10, SLOT as u32 - 10)];
            w.b.post_recv(&pieces);
            w.sends += 1;
        }
        if !world.step() {
            world.jump();
        }
        workers.iter_mut().for_each(Worker::poll);
        if workers.iter().all(|w| w.completed == OPS) {
            break;
        }
    }
    world.pass(Duration::from_millis(500));
    for (w, (a, b)) in workers.iter_mut().zip(before) {
        w.poll();
        assert_eq!(w.completed, OPS, "seed {seed}");
        assert_eq!(w.received, w.receives().len(), "seed {seed}");
        let word =
            |bytes: &[u8], at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        let words = SLOT as usize * OPS;
        let (mut last, mut count) = (word(&b, words), word(&b, words + 8));
        for (
            i,
            &Op {
                code, len, shared, ..
            },
        ) in w.posted.iter().enumerate()
        {
            let slot = SLOT as usize * i;
            let range = slot..slot + SLOT as usize;
            let (mut at_a, mut at_b) = (a[range.clone()].to_vec(), b[range.clone()].to_vec());
            let was = word(&at_b, 0);
            match code {
                SendOpcode::NOP => {}
                SendOpcode::RDMA_WRITE if shared => last = word(&at_a, 0),
                SendOpcode::ATOMIC_FA if shared => {
                    at_a[..8].copy_from_slice(&count.to_ne_bytes());
                    count = count.wrapping_add(1);
                }
                SendOpcode::RDMA_READ => at_a[..len].copy_from_slice(&at_b[..len]),
                SendOpcode::ATOMIC_FA => {
                    at_a[..8].copy_from_slice(&at_b[..8]);
                    at_b[..8].copy_from_slice(&was.wrapping_add(5).to_ne_bytes());
                }
                SendOpcode::ATOMIC_CS => {
                    at_a[..8].copy_from_slice(&at_b[..8]);
                    at_b[..8].copy_from_slice(&3_u64.to_ne_bytes());
                }
                _ => at_b[..len].copy_from_slice(&at_a[..len]),
            }
            assert!(
                w.a.get(slot as u64, SLOT as usize) == at_a,
                "operation {i} {code} of seed {seed}"
            );
            assert!(
                w.b.get(slot as u64, SLOT as usize) == at_b,
                "operation {i} {code} of seed {seed}"
            );
        }
        assert_eq!(w.b.get64(words as u64), last, "seed {seed}");
        assert_eq!(w.b.get64(words as u64 + 8), count, "seed {seed}");
    }
    world
}
