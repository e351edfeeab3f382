//! Streams that are behind when a neighbour by mapped memory is lost: its late words stop no stream, and its data that
//! has arrived is unpacked.

#[path = "common/sim.rs"]
mod sim;

use gdsync::Stream;
use gdsync::gpu::MemoryKind;
use mp::{Context, Memory, Neighbour, Neighbourhood, PathChoice};
use sim::gate::Gate;
use sim::{LIMIT, Rank, peer_failed, play, secs, step_on};

/// Bytes that a rank sends to each other one.
const LEN: usize = 64;
/// Room for what is received from a rank: strided pieces.
const ROOM: usize = 2 * LEN;

/// A rank's exchange with some other ranks: what is sent to all, then by rank what is received.
struct Part {
    ctx: Context,
    halo: Neighbourhood,
    field: Memory,
    stream: Stream,
}

impl Part {
    fn new(rank: &Rank, others: &[u32], limit: u64) -> Part {
        let ctx = rank.open(|b| b.path(PathChoice::Ipc).timeout(secs(limit)));
        let field = ctx.alloc(MemoryKind::Device, 4 * ROOM).unwrap();
        let all = others.iter().map(|&other| {
            let received = field.strided((1 + other as usize) * ROOM, 1, 2, LEN);
            Neighbour::new(other, 10 * rank.me + other, 10 * other + rank.me)
                .send(&field.slice(0, LEN).unwrap())
                .receive(received.unwrap())
        });
        Part {
            halo: ctx.neighbourhood().neighbours(all).build().unwrap(),
            stream: ctx.gpu().stream().unwrap(),
            field,
            ctx,
        }
    }

    fn write(&self, byte: u8) {
        self.field.write(0, &[byte; LEN]).unwrap();
    }

    fn step(&self, whole: bool) {
        step_on(&self.halo, &self.stream, whole).unwrap();
    }

    fn play(&self, whole: bool) {
        self.step(whole);
        self.ctx.synchronize(&self.stream, LIMIT).unwrap();
    }

    fn check(&self, from: u32, byte: u8) {
        let mut got = [0; ROOM];
        self.field
            .read((1 + from as usize) * ROOM, &mut got)
            .unwrap();
        assert!(
            got.iter().step_by(2).all(|one| *one == byte),
            "from rank {from}: {got:?}"
        );
    }
}

/// Rank 1 stores the ready word of a step when rank 0 has given it up, or has dropped its context. `enqueue`: the steps
/// that rank 0 enqueues, of which some are behind its gate.
fn late_word(whole: bool, enqueue: fn(&Part, bool, &Gate), drops: bool) {
    play(1, 2, move |rank| {
        let part = Part::new(rank, &[1 - rank.me], 3);
        let gate = Gate::new(part.ctx.gpu());
        part.play(whole);
        rank.barrier();
        if rank.me == 1 {
            gate.hold(&part.stream);
            part.halo.ready_on(&part.stream).unwrap();
            rank.barrier();
            rank.barrier();
            gate.open();
            let _ = part.stream.synchronize(LIMIT);
            rank.barrier();
            rank.barrier();
            return;
        }
        enqueue(&part, whole, &gate);
        rank.barrier();
        let Part {
            ctx, halo, stream, ..
        } = part;
        drop(halo);
        let ctx = (!drops).then_some(ctx);
        if !drops {
            // Until rank 1 is given up.
            rank.pass(secs(10));
        }
        rank.barrier();
        rank.barrier();
        // The word is stored.
        gate.open();
        assert!(stream.synchronize(secs(20)).unwrap(), "the stream hangs");
        drop(ctx);
        rank.barrier();
    });
}

#[test]
fn late_word_does_not_stop_the_stream_of_a_dropped_context() {
    for whole in [false, true] {
        let enqueue = |part: &Part, whole, gate: &Gate| {
            gate.hold(&part.stream);
            (0..4).for_each(|_| part.step(whole));
        };
        late_word(whole, enqueue, true);
    }
}

#[test]
fn late_word_does_not_stop_a_step_without_its_wait() {
    for whole in [false, true] {
        let enqueue = |part: &Part, whole, gate: &Gate| {
            part.step(whole); // fails
            gate.hold(&part.stream);
            part.step(whole);
            part.halo.ready_on(&part.stream).unwrap();
            part.halo.send_on(&part.stream).unwrap();
        };
        late_word(whole, enqueue, false);
    }
}

/// Rank 1 leaves behind a step that rank 2 delays on rank 0.
#[test]
fn data_of_a_rank_that_has_left_is_unpacked() {
    for whole in [false, true] {
        play(1, 3, move |rank| {
            let others: &[u32] = if rank.me == 0 { &[1, 2] } else { &[0] };
            let part = Part::new(rank, others, 60);
            for step in 1..3 {
                part.write(10 * step + rank.me as u8);
                if (rank.me, step) == (2, 2) {
                    rank.pass(secs(1));
                }
                part.play(whole);
                if step == 1 {
                    rank.barrier();
                }
            }
            if rank.me == 0 {
                part.check(1, 21);
                part.check(2, 22);
            }
            if rank.me == 1 {
                drop(part);
            }
            rank.barrier();
        });
    }
}

/// The step behind it fails: the wait for it is released, and the data of this one is unpacked still.
#[test]
fn data_that_has_arrived_is_unpacked_although_the_next_step_fails() {
    play(1, 2, |rank| {
        let part = Part::new(rank, &[1 - rank.me], 3);
        part.write(1);
        part.play(false);
        rank.barrier();
        part.write(2);
        if rank.me == 1 {
            part.play(false);
            drop(part);
            rank.barrier();
            rank.barrier();
            return;
        }
        let gate = Gate::new(part.ctx.gpu());
        part.halo.ready_on(&part.stream).unwrap();
        part.halo.send_on(&part.stream).unwrap();
        gate.hold(&part.stream);
        part.halo.wait_on(&part.stream).unwrap();
        part.step(false);
        rank.barrier();
        // Until rank 1 is given up.
        rank.pass(secs(1));
        gate.open();
        let e = part.ctx.synchronize(&part.stream, LIMIT).unwrap_err();
        peer_failed(&e, 1);
        assert_eq!(e.number(), Some(3), "{e}");
        part.check(1, 2);
        rank.barrier();
    });
}
