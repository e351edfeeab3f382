//! Neighbourhoods among other work of their stream, and neighbourhoods that are dropped while their
//! stream is behind.

#[path = "common/sim.rs"]
mod sim;

use gdsync::gpu::MemoryKind;
use mp::{Context, Memory, NULL_RANK, Neighbour, Neighbourhood};
use sim::gate::Gate;
use sim::{LIMIT, Rank, SMALL, STEP_WAYS, pair, slice, step_on};

const LEN: usize = 100;
const PIECES: usize = 40;

/// A neighbour that receives behind what it sends, in more pieces than the NIC gathers.
fn one(memory: &Memory, rank: u32, tags: [u32; 2]) -> Neighbour {
    let piece = |at| memory.strided(at, 1, 2, PIECES).unwrap();
    Neighbour::new(rank, tags[0], tags[1])
        .send(piece(0))
        .receive(piece(LEN))
}

fn build(rank: &Rank, ctx: &Context, memory: &Memory, double: bool, own: bool) -> Neighbourhood {
    let with = match own {
        true => [one(memory, rank.me, [7, 7]), one(memory, NULL_RANK, [1, 1])],
        false => [
            one(memory, rank.peer(), [8, 8]),
            one(memory, NULL_RANK, [1, 1]),
        ],
    };
    ctx.neighbourhood()
        .neighbours(with)
        .double_buffered(double)
        .build()
        .unwrap()
}

fn check(memory: &Memory, byte: u8) {
    let mut got = [0; 2 * PIECES];
    memory.read(LEN, &mut got).unwrap();
    let expected: Vec<u8> = (0..2 * PIECES)
        .map(|i| if i % 2 == 0 { byte } else { 0 })
        .collect();
    assert_eq!(got[..], expected[..]);
}

#[test]
fn step_may_have_any_number_of_messages_between_its_calls() {
    for own in [false, true] {
        pair(
            |b| b,
            move |rank, ctx| {
                let stream = ctx.gpu().stream().unwrap();
                let memory = ctx.alloc(MemoryKind::Device, 2 * LEN).unwrap();
                let halo = build(rank, ctx, &memory, false, own);
                let messages = || {
                    for _ in 0..100 {
                        let recv = ctx
                            .irecv_on(&stream, rank.peer(), 1, &slice(ctx, SMALL))
                            .unwrap();
                        let send = ctx
                            .isend_on(&stream, rank.peer(), 1, &slice(ctx, SMALL))
                            .unwrap();
                        ctx.wait_all_on(&stream, &[recv, send]).unwrap();
                    }
                    assert!(stream.synchronize(LIMIT).unwrap());
                };
                for step in 1..4 {
                    memory.write(0, &[step; LEN]).unwrap();
                    halo.ready_on(&stream).unwrap();
                    messages();
                    halo.send_on(&stream).unwrap();
                    messages();
                    halo.wait_on(&stream).unwrap();
                    messages();
                    check(&memory, step);
                }
                rank.barrier();
            },
        );
    }
}

#[test]
fn neighbourhood_may_be_dropped_while_its_stream_is_behind() {
    let cases = [(false, false), (true, false), (false, true), (true, true)];
    let all = cases
        .into_iter()
        .flat_map(|case| STEP_WAYS.map(|way| (case, way)));
    for ((double, own), (path, whole)) in all {
        pair(
            move |b| b.path(path),
            move |rank, ctx| {
                let stream = ctx.gpu().stream().unwrap();
                let memory = ctx.alloc(MemoryKind::Device, 2 * LEN).unwrap();
                memory.write(0, &[9; LEN]).unwrap();
                for _ in 0..3 {
                    let halo = build(rank, ctx, &memory, double, own);
                    let gate = Gate::new(ctx.gpu());
                    for step in 0..3 {
                        step_on(&halo, &stream, whole).unwrap();
                        if step == 0 {
                            assert!(stream.synchronize(LIMIT).unwrap());
                            gate.hold(&stream);
                        }
                    }
                    drop(halo);
                    // What was returned is used for other data.
                    let others: Vec<_> = (0..20)
                        .map(|_| {
                            let other = ctx.alloc(MemoryKind::Device, 1 << 12).unwrap();
                            other.write(0, &[0xff; 1 << 12]).unwrap();
                            other
                        })
                        .collect();
                    gate.open();
                    assert!(stream.synchronize(LIMIT).unwrap());
                    check(&memory, 9);
                    for other in others {
                        let mut bytes = [0; 1 << 12];
                        other.read(0, &mut bytes).unwrap();
                        assert!(bytes.iter().all(|byte| *byte == 0xff));
                    }
                }
                ctx.close(LIMIT).unwrap();
                rank.barrier();
            },
        );
    }
}
