//! Messages in graphs, on the threads and the GPU of the machine: captured once, moved by each replay.
//! `conformance` plays them under random schedules.

mod common;

use std::time::Duration;

use common::pattern;
use gdsync::Stream;
use gdsync::gpu::{Graph, MemoryKind};
use mp::{Builder, Context, Memory, PathChoice, Request};

const LIMIT: Duration = Duration::from_secs(60);

fn mapped(builder: Builder) -> Builder {
    builder.path(PathChoice::Ipc)
}

/// Whether a rank captures its sends or its receives first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Sends,
    Receives,
}

/// The messages of one graph: one of each length in both directions, all under one tag.
struct Exchange {
    lens: Vec<usize>,
    stream: Stream,
    graph: Graph,
    /// What is sent, and what is received, one message behind the other.
    out: Memory,
    into: Memory,
}

/// Offsets of messages of these lengths, and the sum.
fn offsets(lens: &[usize]) -> (Vec<usize>, usize) {
    let mut sum = 0;
    let at = lens.iter().map(|len| {
        let at = sum;
        sum += len.next_multiple_of(16) + 16;
        at
    });
    (at.collect(), sum)
}

impl Exchange {
    fn capture(ctx: &Context, lens: &[usize], tag: u32, first: First) -> Exchange {
        let (at, sum) = offsets(lens);
        let stream = ctx.gpu().stream().unwrap();
        let peer = 1 - ctx.rank();
        let out = ctx.alloc(MemoryKind::Device, sum).unwrap();
        let into = ctx.alloc(MemoryKind::Device, sum).unwrap();
        let send = |i: usize| {
            let data = out.slice(at[i], lens[i]).unwrap();
            ctx.isend_on(&stream, peer, tag, &data).unwrap()
        };
        let receive = |i: usize| {
            let room = into.slice(at[i], lens[i]).unwrap();
            ctx.irecv_on(&stream, peer, tag, &room).unwrap()
        };
        stream.begin_capture().unwrap();
        let all = 0..lens.len();
        let (sends, receives): (Vec<Request>, Vec<Request>) = match first {
            First::Sends => (all.clone().map(send).collect(), all.map(receive).collect()),
            First::Receives => {
                let receives = all.clone().map(receive).collect();
                (all.map(send).collect(), receives)
            }
        };
        match first {
            First::Sends => ctx.wait_all_on(&stream, &receives).unwrap(),
            First::Receives => receives.iter().for_each(|r| r.wait_on(&stream).unwrap()),
        }
        sends.iter().for_each(|s| s.wait_on(&stream).unwrap());
        drop((sends, receives));
        let graph = stream.end_capture().unwrap();
        Exchange {
            lens: lens.to_vec(),
            stream,
            graph,
            out,
            into,
        }
    }

    /// Replays the graph, and compares what arrives.
    fn replay(&self, ctx: &Context, round: usize) {
        let (at, sum) = offsets(&self.lens);
        let (me, peer) = (ctx.rank(), 1 - ctx.rank());
        for (i, len) in self.lens.iter().enumerate() {
            self.out
                .write(at[i], &pattern(me, round * 64 + i, *len))
                .unwrap();
        }
        self.into.write(0, &vec![0xa5; sum]).unwrap();
        self.graph.launch(&self.stream).unwrap();
        ctx.synchronize(&self.stream, LIMIT).unwrap();
        let mut wanted = vec![0xa5; sum];
        for (i, len) in self.lens.iter().enumerate() {
            wanted[at[i]..][..*len].copy_from_slice(&pattern(peer, round * 64 + i, *len));
        }
        let mut got = vec![0; sum];
        self.into.read(0, &mut got).unwrap();
        let wrong = got.iter().zip(&wanted).filter(|(a, b)| a != b).count();
        assert_eq!(wrong, 0, "rank {me}: wrong bytes in replay {round}");
    }
}

/// Lengths around the limits of the protocols: eager messages, rooms, and the memory of the receive.
const LENS: [usize; 9] = [
    0,
    1,
    8,
    4096,
    4097,
    6 << 10,
    (6 << 10) + 1,
    256 << 10,
    1 << 20,
];

fn first_of(rank: u32) -> First {
    match rank {
        0 => First::Sends,
        _ => First::Receives,
    }
}

#[test]
fn replays_move_messages_of_all_lengths() {
    common::ranks_with(2, mapped, |ctx| {
        let exchange = Exchange::capture(&ctx, &LENS, 7, first_of(ctx.rank()));
        for round in 0..20 {
            exchange.replay(&ctx, round);
        }
    });
}

/// Between the replays, the ranks exchange messages outside of graphs under the same tag.
#[test]
fn ten_thousand_replays_mix_with_messages_outside_of_graphs() {
    const REPLAYS: usize = 10_000;
    common::ranks_with(2, mapped, |ctx| {
        let (me, peer) = (ctx.rank(), 1 - ctx.rank());
        let exchange = Exchange::capture(&ctx, &[8, 0, 4096, 7000], 7, first_of(me));
        let memory = ctx.alloc(MemoryKind::Device, 128).unwrap();
        let (out, into) = (memory.slice(0, 64).unwrap(), memory.slice(64, 64).unwrap());
        for round in 0..REPLAYS {
            memory.write(0, &pattern(me, round * 64 + 63, 64)).unwrap();
            let stream = &exchange.stream;
            let got = ctx.irecv_on(stream, peer, 7, &into).unwrap();
            drop(ctx.isend_on(stream, peer, 7, &out).unwrap());
            if round % 2 == 0 {
                got.wait_on(stream).unwrap();
            }
            exchange.replay(&ctx, round);
            got.wait(LIMIT).unwrap();
            assert!(common::read(&memory, 64, 64) == pattern(peer, round * 64 + 63, 64));
        }
    });
}
