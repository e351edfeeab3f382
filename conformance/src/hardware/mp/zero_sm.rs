//! Zero-SM messages between two processes: payloads of lengths on both sides of the eager limit, whichever half
//! is first, for which a stream, another stream or the CPU waits. Then rank 1 is killed in the middle, and the
//! stream of rank 0 continues.

use gdsync::gpu::{MemoryKind, Stream};
use mp::{Bootstrap, Context, Kind, Memory, PathChoice, Request};

use super::launch::{DONE, join, kind_named};
use super::lost::{GOING, kill_second};
use crate::mp::pair::message;
use crate::rig::Runtime;
use crate::rig::limits::time_limit;
use crate::rig::verdict::{Verdict, ensure};

/// The role of a process that is a rank.
pub const ROLE: &str = "mp-zero-sm";

const TAG: u32 = 5;
/// Lengths in bytes of the messages of a round: fewer than a channel has slots.
const LENS: [usize; 9] = [0, 1, 8, 4096, 4097, 65_536, 262_145, 1 << 20, 4 << 20];
/// Number of the first ones that are at most the eager limit.
const SHORT: usize = 4;
/// Rounds of all lengths.
const ROUNDS: usize = 60;
/// Rounds of the short ones: with a GPU for each process, and with processes that share a GPU in turns.
const SHORT_ROUNDS: [usize; 2] = [5000, 500];
/// Bytes behind a receive that no message writes.
const GUARD: usize = 64;

/// The side of the parent process.
///
/// # Errors
/// The failures of the ranks.
pub fn zero_sm(runtime: Runtime, gpus: u32, kind: MemoryKind) -> Verdict {
    kill_second(ROLE, runtime, gpus, kind)
}

/// Runs one rank.
pub fn child_main(arguments: &[String]) -> Verdict {
    let (gpu, bootstrap) = join(arguments)?;
    let more = arguments.last().and_then(|more| more.split_once(':'));
    let (kind, gpus) = more.ok_or("a kind of memory, and GPUs")?;
    let kind = kind_named(kind);
    // Processes that share a GPU run in turns.
    let turns = !gpu.is_software() && gpus == "1";
    let me = bootstrap.rank();
    let ctx = Context::builder()
        .bootstrap(bootstrap)
        .gpu(&gpu)
        .path(PathChoice::Ipc)
        .zero_sm(true)
        .build()?;
    let exchange = Exchange::new(&ctx, kind)?;
    for round in 0..ROUNDS {
        exchange.round(&ctx, round, LENS.len())?;
    }
    for round in 0..SHORT_ROUNDS[usize::from(turns)] {
        exchange.round(&ctx, round, SHORT)?;
    }
    let mut count = 0;
    let failed = loop {
        let round = exchange.enqueue(&ctx, count, SHORT).map(drop);
        let ended = round.and_then(|()| ctx.synchronize(&exchange.streams[0], time_limit()));
        match ended {
            Ok(()) => count += 1,
            Err(failed) => break failed,
        }
        if count == 20 && me == 1 {
            println!("{GOING}");
        }
    };
    let named = (failed.rank(), matches!(failed.kind(), Kind::PeerFailed(_)));
    ensure(named == (Some(1), true), || format!("{failed:?}"))?;
    for stream in &exchange.streams {
        ensure(stream.synchronize(time_limit())?, || {
            "a stream is not released behind the loss".to_owned()
        })?;
    }
    println!("{DONE}");
    Ok(())
}

/// The memory and the streams of a rank.
struct Exchange {
    streams: [Stream; 2],
    /// By message: what is sent, and what is received.
    memory: Vec<[Memory; 2]>,
}

/// The requests of a round.
struct Posted {
    sends: Vec<Request>,
    receives: Vec<Request>,
}

impl Exchange {
    fn new(ctx: &Context, kind: MemoryKind) -> Verdict<Exchange> {
        let pair = |len: &usize| -> mp::Result<[Memory; 2]> {
            let alloc = || ctx.alloc(kind, len + GUARD);
            Ok([alloc()?, alloc()?])
        };
        Ok(Exchange {
            streams: [ctx.gpu().stream()?, ctx.gpu().stream()?],
            memory: LENS.iter().map(pair).collect::<mp::Result<_>>()?,
        })
    }

    /// Enqueues the first `count` messages in both directions, and the waits of one stream for them. Which half a
    /// rank posts first depends on the round.
    fn enqueue(&self, ctx: &Context, round: usize, count: usize) -> mp::Result<Posted> {
        let (me, peer) = (ctx.rank(), 1 - ctx.rank());
        let stream = &self.streams[0];
        let all = || LENS[..count].iter().zip(&self.memory);
        let send = || {
            let each = all().map(|(len, [out, _])| {
                let data = out.slice(0, *len)?;
                ctx.isend_on(stream, peer, TAG, &data)
            });
            each.collect::<mp::Result<Vec<_>>>()
        };
        let receive = || {
            let each = all().map(|(len, [_, into])| {
                let room = into.slice(0, *len)?;
                ctx.irecv_on(stream, peer, TAG, &room)
            });
            each.collect::<mp::Result<Vec<_>>>()
        };
        let receives_first = round % 3 == 2 || (round % 3) as u32 == me;
        let posted = match receives_first {
            true => {
                let receives = receive()?;
                let sends = send()?;
                Posted { sends, receives }
            }
            false => Posted {
                sends: send()?,
                receives: receive()?,
            },
        };
        if round % 4 < 2 {
            ctx.wait_all_on(stream, &posted.receives)?;
            ctx.wait_all_on(stream, &posted.sends)?;
        }
        Ok(posted)
    }

    /// Exchanges the first `count` messages, and compares what arrives.
    fn round(&self, ctx: &Context, round: usize, count: usize) -> Verdict {
        let (me, peer) = (ctx.rank() as usize, 1 - ctx.rank() as usize);
        let bytes = |rank: usize, i: usize| message((round * 16 + i) * 2 + rank, LENS[i]);
        for (i, [out, into]) in self.memory[..count].iter().enumerate() {
            out.write(0, &bytes(me, i))?;
            into.write(0, &vec![0xa5; LENS[i] + GUARD])?;
        }
        let posted = self.enqueue(ctx, round, count)?;
        match round % 4 {
            2 => {
                for request in &posted.receives {
                    request.wait_on(&self.streams[1])?;
                }
                ctx.wait_all_on(&self.streams[1], &posted.sends)?;
            }
            3 => {
                mp::wait_all(&posted.receives, time_limit())?;
                mp::wait_all(&posted.sends, time_limit())?;
            }
            _ => {}
        }
        for stream in &self.streams {
            ctx.synchronize(stream, time_limit())?;
        }
        for (i, [_, into]) in self.memory[..count].iter().enumerate() {
            let mut wanted = bytes(peer, i);
            wanted.resize(LENS[i] + GUARD, 0xa5);
            let mut got = vec![0; wanted.len()];
            into.read(0, &mut got)?;
            let wrong = got.iter().zip(&wanted).filter(|(a, b)| a != b).count();
            ensure(wrong == 0, || {
                let len = LENS[i];
                format!("round {round}, message of {len} bytes: {wrong} bytes are wrong")
            })?;
        }
        // The peer may write the memory of this round only when it is compared.
        let nothing = self.memory[0][0].slice(0, 0)?;
        let pair = [
            ctx.irecv(peer as u32, TAG + 1, &nothing)?,
            ctx.isend(peer as u32, TAG + 1, &nothing)?,
        ];
        mp::wait_all(&pair, time_limit())?;
        Ok(())
    }
}
