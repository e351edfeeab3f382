//! Messages in graphs between two processes: each replay moves the payloads that its ranks have just
//! written, of lengths on both sides of each protocol's limit, and mixes with messages outside of graphs.
//! Then rank 1 is killed in the middle of replays, and the stream of rank 0 continues.

use gdsync::gpu::{Graph, MemoryKind, Stream};
use mp::{Bootstrap, Context, Kind, Memory, PathChoice, Slice};

use super::launch::{DONE, join, kind_named};
use super::lost::{GOING, kill_second};
use crate::mp::pair::message;
use crate::rig::Runtime;
use crate::rig::limits::time_limit;
use crate::rig::verdict::{Verdict, ensure};

/// The role of a process that is a rank.
pub const ROLE: &str = "mp-graphs";

const TAG: u32 = 5;
/// Eager messages, rooms of software GPUs and of others, and the memory of the receive.
const LENS: [usize; 10] = [0, 1, 8, 4096, 4097, 7001, 65_536, 262_144, 262_145, 1 << 20];
/// Replays of all lengths, and of the short ones.
const LONG: usize = 50;
const SHORT: [usize; 2] = [10_000, 1000];
/// Replays between two messages outside of graphs.
const BETWEEN: usize = 10;

/// The side of the parent process.
///
/// # Errors
/// The failures of the ranks.
pub fn graphs(runtime: Runtime, gpus: u32, kind: MemoryKind) -> Verdict {
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
        .build()?;
    Exchange::capture(&ctx, &LENS, kind)?.replays(&ctx, LONG)?;
    let short = Exchange::capture(&ctx, &LENS[..5], kind)?;
    short.replays(&ctx, SHORT[usize::from(turns)])?;
    let mut count = 0;
    let failed = loop {
        short.graph.launch(&short.stream)?;
        match ctx.synchronize(&short.stream, time_limit()) {
            Ok(()) => count += 1,
            Err(failed) => break failed,
        }
        if count == 20 && me == 1 {
            println!("{GOING}");
        }
    };
    let named = (failed.rank(), matches!(failed.kind(), Kind::PeerFailed(_)));
    ensure(named == (Some(1), true), || format!("{failed:?}"))?;
    for _ in 0..3 {
        short.graph.launch(&short.stream)?;
    }
    ensure(short.stream.synchronize(time_limit())?, || {
        "a replay behind the loss does not end".to_owned()
    })?;
    println!("{DONE}");
    Ok(())
}

/// A graph with a message of each length in both directions.
struct Exchange {
    lens: Vec<usize>,
    stream: Stream,
    graph: Graph,
    /// By message: what is sent, and what is received.
    memory: Vec<[Memory; 2]>,
    /// The same, of messages outside of the graph.
    beside: [Memory; 2],
}

impl Exchange {
    fn capture(ctx: &Context, lens: &[usize], kind: MemoryKind) -> Verdict<Exchange> {
        let stream = ctx.gpu().stream()?;
        let peer = 1 - ctx.rank();
        let pair = |len: usize| -> mp::Result<[Memory; 2]> {
            Ok([ctx.alloc(kind, len + 64)?, ctx.alloc(kind, len + 64)?])
        };
        let memory: Vec<_> = lens
            .iter()
            .map(|len| pair(*len))
            .collect::<mp::Result<_>>()?;
        let slices = |side: usize| -> mp::Result<Vec<Slice>> {
            let each = lens.iter().zip(&memory);
            each.map(|(len, pair)| pair[side].slice(0, *len)).collect()
        };
        let (out, into) = (slices(0)?, slices(1)?);
        stream.begin_capture()?;
        let send = || {
            let all = out
                .iter()
                .map(|data| ctx.isend_on(&stream, peer, TAG, data));
            all.collect::<mp::Result<Vec<_>>>()
        };
        let receive = || {
            let all = into
                .iter()
                .map(|room| ctx.irecv_on(&stream, peer, TAG, room));
            all.collect::<mp::Result<Vec<_>>>()
        };
        let (sends, receives) = match ctx.rank() {
            0 => (send()?, receive()?),
            _ => {
                let receives = receive()?;
                (send()?, receives)
            }
        };
        for request in &sends {
            request.wait_on(&stream)?;
        }
        ctx.wait_all_on(&stream, &receives)?;
        drop((sends, receives));
        Ok(Exchange {
            graph: stream.end_capture()?,
            beside: pair(64)?,
            lens: lens.to_vec(),
            stream,
            memory,
        })
    }

    fn replays(&self, ctx: &Context, count: usize) -> Verdict {
        let (me, peer) = (ctx.rank() as usize, 1 - ctx.rank() as usize);
        for replay in 0..count {
            let bytes =
                |rank: usize, i: usize, len: usize| message((replay * 16 + i) * 2 + rank, len);
            for (i, (len, [out, into])) in self.lens.iter().zip(&self.memory).enumerate() {
                out.write(0, &bytes(me, i, *len))?;
                into.write(0, &vec![0xa5; len + 64])?;
            }
            let outside = match replay % BETWEEN == 0 {
                true => {
                    self.beside[0].write(0, &bytes(me, 15, 64))?;
                    let [out, into] = [0, 1].map(|side| self.beside[side].slice(0, 64));
                    let got = ctx.irecv_on(&self.stream, peer as u32, TAG, &into?)?;
                    drop(ctx.isend_on(&self.stream, peer as u32, TAG, &out?)?);
                    Some(got)
                }
                false => None,
            };
            self.graph.launch(&self.stream)?;
            if let Some(got) = &outside {
                got.wait_on(&self.stream)?;
            }
            ctx.synchronize(&self.stream, time_limit())?;
            let same = |memory: &Memory, wanted: &[u8], what: &str| -> Verdict {
                let mut got = vec![0; wanted.len()];
                memory.read(0, &mut got)?;
                let wrong = got.iter().zip(wanted).filter(|(a, b)| a != b).count();
                ensure(wrong == 0, || {
                    format!(
                        "replay {replay}, {what}: {wrong} of {} bytes are wrong",
                        got.len()
                    )
                })
            };
            for (i, (len, [_, into])) in self.lens.iter().zip(&self.memory).enumerate() {
                let mut wanted = bytes(peer, i, *len);
                wanted.resize(len + 64, 0xa5);
                same(into, &wanted, &format!("{len} bytes"))?;
            }
            if outside.is_some() {
                same(
                    &self.beside[1],
                    &bytes(peer, 15, 64),
                    "outside of the graph",
                )?;
            }
        }
        Ok(())
    }
}
