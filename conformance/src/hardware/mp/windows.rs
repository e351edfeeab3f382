//! One-sided operations: puts with signals around a ring, at once, prepared and without requests, gets of
//! what was put, a count in one word, and ready words between the rounds.

use gdsync::gpu::{Condition, MemoryKind};
use mp::{Context, Memory};

use crate::rig::limits::time_limit;
use crate::rig::verdict::Verdict;

const ROUNDS: u64 = 24;
const ROOM: usize = 20_000;
/// Lengths of the puts, one after the other.
const LENGTHS: [usize; 5] = [0, 1, 300, 4096, ROOM];
/// Offsets of the words.
const SIGNAL: usize = ROOM;
const COUNTER: usize = ROOM + 8;

/// Runs one rank, whose window is memory of this kind.
pub fn ring(ctx: &Context, kind: MemoryKind, by_stream: bool) -> Verdict {
    let (limit, geq) = (time_limit(), Condition::Geq);
    let (rank, size) = (ctx.rank(), ctx.size());
    let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
    let memory = ctx.alloc(kind, ROOM + 16)?;
    let window = ctx.window(&memory)?;
    let stream = ctx.gpu().stream()?;
    let data = ctx.alloc(kind, 2 * ROOM)?;
    let old = ctx.alloc(MemoryKind::Pinned, 8)?.all();
    for round in 1..=ROUNDS {
        let len = LENGTHS[round as usize % LENGTHS.len()];
        let payload = |rank: u32| vec![rank as u8 * 32 + round as u8; len];
        data.write(0, &payload(rank))?;
        let (from, into) = (data.slice(0, len)?, data.slice(ROOM, len)?);
        let odd = round % 2 == 1;
        if by_stream && odd {
            let put = window.prepare_put_signal(right, 0, &from, SIGNAL, round)?;
            ctx.post_all_on(&stream, &[put])?;
        } else if by_stream {
            drop(window.put_signal_on(&stream, right, 0, &from, SIGNAL, round)?);
        } else if odd {
            window.put_nbi(right, 0, &from)?;
            window.fence(right)?;
            window.put_inline(right, SIGNAL, &round.to_le_bytes())?;
        } else {
            drop(window.put_signal(right, 0, &from, SIGNAL, round)?);
        }
        if by_stream {
            let get = window.get_on(&stream, right, 0, &into)?;
            get.wait_on(&stream)?;
            window.wait_signal_on(&stream, left, SIGNAL, geq, round)?;
            ctx.synchronize(&stream, limit)?;
        } else {
            let get = window.get(right, 0, &into)?;
            window.wait_signal(left, SIGNAL, geq, round, limit)?;
            get.wait(limit)?;
        }
        same(&data, ROOM, &payload(rank), "a get", round)?;
        same(&memory, 0, &payload(left), "a put", round)?;
        if rank != 0 {
            let add = match by_stream {
                true => window.fetch_add_on(&stream, 0, COUNTER, 1, &old)?,
                false => window.fetch_add(0, COUNTER, 1, &old)?,
            };
            add.wait(limit)?;
        }
        // The left may put the next bytes.
        if by_stream {
            ctx.send_ready_on(&stream, left)?;
            ctx.wait_ready_on(&stream, right)?;
        } else {
            ctx.send_ready(left)?;
            ctx.wait_ready(right, limit)?;
        }
    }
    if rank == 0 {
        let all = ROUNDS * u64::from(size - 1);
        window.wait_signal(right, COUNTER, Condition::Eq, all, limit)?;
    }
    // The window is dropped when no rank uses it.
    drop(ctx.window(&memory)?);
    ctx.close(limit)?;
    Ok(())
}

fn same(memory: &Memory, at: usize, expected: &[u8], what: &str, round: u64) -> Verdict {
    let mut bytes = vec![0; expected.len()];
    memory.read(at, &mut bytes)?;
    match bytes == expected {
        true => Ok(()),
        false => Err(format!("wrong bytes of {what} in round {round}").into()),
    }
}
