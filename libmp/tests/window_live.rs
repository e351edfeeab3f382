//! Windows on real threads: ranks that put, get, count and signal to each other at once, by the CPU
//! and by streams. `GDS_GPU` names the GPU.

mod common;

use common::*;
use gdsync::gpu::{Condition, MemoryKind};
use mp::bootstrap::Local;
use mp::{Context, Window};

const ROUNDS: u64 = 30;
const ROOM: usize = 10_000;

/// Puts to the right and takes from the left, by the CPU or on a stream, at once, prepared, and
/// without a request; reads back what it has put; counts in a word of rank 0.
fn ring(ctx: &Context, window: &Window, by_stream: bool) {
    let (rank, size) = (ctx.rank(), ctx.size());
    let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
    let stream = ctx.gpu().stream().unwrap();
    let data = ctx.alloc(MemoryKind::Pinned, 2 * ROOM).unwrap();
    let old = ctx.alloc(MemoryKind::Pinned, 8).unwrap().all();
    // Each way has words of its own.
    let words = ROOM + 24 * usize::from(by_stream);
    let (signal, ack, counter) = (words, words + 8, words + 16);
    for round in 1..=ROUNDS {
        let len = [1, 100, 4096, ROOM][round as usize % 4];
        let payload = pattern(rank, round as usize, len);
        data.write(0, &payload).unwrap();
        let from = data.slice(0, len).unwrap();
        let into = data.slice(ROOM, len).unwrap();
        let geq = Condition::Geq;
        let odd = round % 2 == 1;
        if by_stream {
            match odd {
                true => {
                    let put = window.prepare_put(right, 0, &from).unwrap();
                    let then = window.prepare_signal(right, signal, round).unwrap();
                    ctx.post_all_on(&stream, &[put, then]).unwrap();
                }
                false => {
                    let put = window.put_signal_on(&stream, right, 0, &from, signal, round);
                    drop(put.unwrap());
                }
            }
            let get = window.get_on(&stream, right, 0, &into).unwrap();
            get.wait_on(&stream).unwrap();
            let wait = window.wait_signal_on(&stream, left, signal, geq, round);
            wait.unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
        } else {
            match odd {
                true => {
                    window.put_nbi(right, 0, &from).unwrap();
                    window.fence(right).unwrap();
                    let word = round.to_le_bytes();
                    window.put_inline(right, signal, &word).unwrap();
                }
                false => {
                    let put = window.put_signal(right, 0, &from, signal, round);
                    drop(put.unwrap());
                }
            }
            let get = window.get(right, 0, &into).unwrap();
            let wait = window.wait_signal(left, signal, geq, round, LIMIT);
            wait.unwrap();
            get.wait(LIMIT).unwrap();
        }
        assert!(read(&data, ROOM, len) == payload, "get in round {round}");
        let got = read(window.memory(), 0, len);
        assert!(got == pattern(left, round as usize, len), "round {round}");
        if rank != 0 {
            let add = window.fetch_add(0, counter, 1, &old).unwrap();
            add.wait(LIMIT).unwrap();
        }
        // The left may write the next bytes.
        drop(window.signal(left, ack, round).unwrap());
        window.wait_signal(right, ack, geq, round, LIMIT).unwrap();
    }
    if rank == 0 {
        let all = ROUNDS * u64::from(size - 1);
        window
            .wait_signal(right, counter, Condition::Eq, all, LIMIT)
            .unwrap();
    }
}

#[test]
fn ranks_put_get_signal_and_count_at_once() {
    for kind in [MemoryKind::Pinned, MemoryKind::Device] {
        ranks(3, move |ctx| {
            let memory = ctx.alloc(kind, ROOM + 48).unwrap();
            let window = ctx.window(&memory).unwrap();
            for by_stream in [false, true] {
                ring(&ctx, &window, by_stream);
            }
            // Other ranks may count still.
            let last = ctx.window(&memory).unwrap();
            ctx.close(LIMIT).unwrap();
            drop((window, last));
        });
    }
}

/// Windows are made by all ranks at once, many times, and their memory is returned.
#[test]
fn windows_are_made_and_dropped() {
    ranks(4, |ctx| {
        for i in 0..20_u8 {
            let memory = ctx.adopt_vec(vec![0; 64]).map_err(|(_, e)| e).unwrap();
            let window = ctx.window(&memory).unwrap();
            let data = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
            data.write(0, &[i; 8]).unwrap();
            let to = (ctx.rank() + 1) % ctx.size();
            drop(window.put(to, 8, &data.all()).unwrap());
            window.quiet(LIMIT).unwrap();
            // The windows of all ranks exist, so the puts of all ranks are in memory.
            drop(ctx.window(&memory).unwrap());
            assert_eq!(read(&memory, 8, 8), [i; 8]);
            drop(window);
            let buffer = memory.into_vec(LIMIT).map_err(|(_, e)| e).unwrap();
            assert_eq!(buffer[8..16], [i; 8]);
        }
    });
}

/// Streams that wait for several values of one word continue when the context is dropped.
#[test]
fn dropping_the_context_releases_streams_at_one_word() {
    for kind in [MemoryKind::Pinned, MemoryKind::Device] {
        for _ in 0..20 {
            let gpu = gpu();
            let alone = Local::ranks(1).remove(0);
            let ctx = Context::builder().bootstrap(alone).gpu(&gpu);
            let ctx = ctx.build().unwrap();
            let window = ctx.expose(&ctx.alloc(kind, 64).unwrap()).unwrap();
            let streams = [(); 2].map(|()| gpu.stream().unwrap());
            for value in 1..4 {
                for stream in &streams {
                    let waits = window.wait_signal_on(stream, 0, 0, Condition::Eq, value);
                    waits.unwrap();
                }
            }
            drop((window, ctx));
            for stream in &streams {
                assert!(stream.synchronize(LIMIT).unwrap());
            }
        }
    }
}
