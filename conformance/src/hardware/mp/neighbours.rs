//! Steps with both neighbours in a ring, with and without the rank itself, of strided pieces. Each rank changes between
//! a stream and the CPU every few steps; even and odd ranks use different ones. On a stream, steps with even
//! numbers are one call.

use gdsync::gpu::MemoryKind;
use mp::{Context, Neighbour};

use crate::mp::pair::message;
use crate::rig::limits::time_limit;
use crate::rig::verdict::{Verdict, ensure};

const STEPS: usize = 24;
/// Steps by a stream before the rank continues by the CPU, and the reverse.
const TURN: usize = 3;

/// Pieces of a message on both sides: the first offset, the length, the distance and the number of each.
const SENT: [[usize; 4]; 2] = [[0, 100, 160, 40], [7000, 4000, 4000, 1]];
const RECEIVED: [[usize; 4]; 2] = [[4, 50, 52, 40], [3000, 3000, 3500, 2]];
/// Bytes of a message.
const LEN: usize = 8000;
/// Room for its pieces.
const ROOM: usize = 12_000;

const LEFTWARDS: u32 = 3;
const RIGHTWARDS: u32 = 4;
const ITSELF: u32 = 5;

/// Runs one rank, with pieces in memory of this kind.
pub fn steps(ctx: &Context, kind: MemoryKind) -> Verdict {
    steps_with(ctx, kind, true)?;
    // Without the rank itself, a call can be one kernel.
    steps_with(ctx, kind, false)?;
    Ok(ctx.close(time_limit())?)
}

fn steps_with(ctx: &Context, kind: MemoryKind, itself: bool) -> Verdict {
    let (limit, me, size) = (time_limit(), ctx.rank(), ctx.size());
    let (right, left) = ((me + 1) % size, (me + size - 1) % size);
    let around = [
        (left, LEFTWARDS, RIGHTWARDS),
        (right, RIGHTWARDS, LEFTWARDS),
        (me, ITSELF, ITSELF),
    ];
    let around = &around[..around.len() - usize::from(!itself)];
    let out = ctx.alloc(kind, around.len() * ROOM)?;
    let into = ctx.alloc(kind, around.len() * ROOM)?;
    let mut neighbours = Vec::new();
    for (i, &(rank, send, receive)) in around.iter().enumerate() {
        let mut one = Neighbour::new(rank, send, receive);
        for [first, len, stride, count] in SENT {
            one = one.send(out.strided(i * ROOM + first, len, stride, count)?);
        }
        for [first, len, stride, count] in RECEIVED {
            one = one.receive(into.strided(i * ROOM + first, len, stride, count)?);
        }
        neighbours.push(one);
    }
    let halo = ctx.neighbourhood().neighbours(neighbours).build()?;
    let stream = ctx.gpu().stream()?;
    for step in 0..STEPS {
        for (i, &(_, tag, _)) in around.iter().enumerate() {
            out.write(i * ROOM, &image(me, tag, step, SENT))?;
        }
        into.write(0, &vec![EMPTY; around.len() * ROOM])?;
        if (step / TURN + me as usize).is_multiple_of(2) {
            if step.is_multiple_of(2) {
                halo.exchange_on(&stream)?;
            } else {
                halo.ready_on(&stream)?;
                halo.send_on(&stream)?;
                halo.wait_on(&stream)?;
            }
            ctx.synchronize(&stream, limit)?;
        } else {
            halo.ready()?;
            halo.send(limit)?;
            halo.wait(limit)?;
        }
        let mut got = vec![0; ROOM];
        for (i, &(rank, _, tag)) in around.iter().enumerate() {
            into.read(i * ROOM, &mut got)?;
            ensure(got == image(rank, tag, step, RECEIVED), || {
                format!("wrong bytes of rank {rank} under tag {tag} in step {step}")
            })?;
        }
    }
    Ok(())
}

/// What is beside the pieces.
const EMPTY: u8 = 0xa5;

/// The message of a rank in a step, in its pieces.
fn image(rank: u32, tag: u32, step: usize, pieces: [[usize; 4]; 2]) -> Vec<u8> {
    let mut image = vec![EMPTY; ROOM];
    let message = message((step * 8 + tag as usize) * 8 + rank as usize, LEN);
    let mut left = &message[..];
    for [first, len, stride, count] in pieces {
        for i in 0..count {
            let at = first + i * stride;
            let (piece, rest) = left.split_at(len);
            image[at..at + len].copy_from_slice(piece);
            left = rest;
        }
    }
    image
}
