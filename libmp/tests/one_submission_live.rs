//! Calls for many requests on real threads, on streams that hold few submissions.

mod common;

use common::*;
use gds_step::Live;
use gdsync::Gpu;
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use gdsync::rdma::QpConfig;
use mp::{Builder, Context, Memory, NicOptions, Request, SendOp};

/// Submissions that a stream holds before it blocks the caller.
const BOUND: usize = 64;

fn bounded(builder: Builder) -> Builder {
    let options = SoftOptions::default().stream_bound(BOUND);
    let gpu = Gpu::soft_with(Live::global().unwrap(), options).unwrap();
    let queues = QpConfig::default().send_blocks(2048);
    let nic = NicOptions::default().queues(queues);
    builder.gpu(&gpu).depth(512).nic(nic)
}

/// `count` messages of `len` bytes in each direction, posted and waited for by streams.
fn exchange(ctx: &Context, kind: MemoryKind, count: usize, len: usize) {
    let (rank, peer) = (ctx.rank(), 1 - ctx.rank());
    let stream = ctx.gpu().stream().unwrap();
    let [out, into]: [Memory; 2] = [0, 1].map(|_| ctx.alloc(kind, count * len).unwrap());
    for i in 0..count {
        out.write(i * len, &pattern(rank, i, len)).unwrap();
    }
    let recv = |i| {
        let slice = into.slice(i * len, len).unwrap();
        ctx.irecv(peer, 1, &slice).unwrap()
    };
    let recvs: Vec<Request> = (0..count).map(recv).collect();
    // The receives of the peer are posted: a send that finds none takes more submissions.
    let note = ctx.alloc(MemoryKind::Pinned, 16).unwrap();
    let [mine, theirs] = [0, 8].map(|at| note.slice(at, 8).unwrap());
    let met = [
        ctx.irecv(peer, 2, &theirs).unwrap(),
        ctx.isend(peer, 2, &mine).unwrap(),
    ];
    mp::wait_all(&met, LIMIT).unwrap();
    let send = |i| {
        let slice = out.slice(i * len, len).unwrap();
        ctx.prepare_send(&SendOp::from((peer, 1, &slice))).unwrap()
    };
    let sends: Vec<Request> = (0..count).map(send).collect();
    let waits = ctx.gpu().stream().unwrap();
    ctx.wait_all_on(&waits, &recvs).unwrap();
    for some in sends.chunks(100) {
        ctx.post_all_on(&stream, some).unwrap();
    }
    for stream in [&waits, &stream] {
        ctx.synchronize(stream, LIMIT).unwrap();
    }
    for requests in [&recvs, &sends] {
        mp::wait_all(requests, LIMIT).unwrap();
    }
    for i in 0..count {
        assert!(
            read(&into, i * len, len) == pattern(peer, i, len),
            "message {i}"
        );
    }
}

#[test]
fn streams_exchange_more_messages_than_they_hold_submissions() {
    for count in [100, 300] {
        ranks_with(2, bounded, move |ctx| {
            for kind in [MemoryKind::Pinned, MemoryKind::Device] {
                for len in [40, 6000] {
                    exchange(&ctx, kind, count, len);
                }
            }
        });
    }
}
