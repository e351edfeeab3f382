//! Collective calls on real threads, thousands in a row, by the CPU and by streams. `GDS_GPU` names
//! the GPU.

mod common;

use common::*;
use gdsync::gpu::MemoryKind;
use mp::{Context, Op};

const CALLS: u64 = 3000;

#[test]
fn thousands_of_calls_have_the_results_of_their_round() {
    for size in [1, 2, 5] {
        ranks(size, |ctx| rank(&ctx));
    }
}

fn rank(ctx: &Context) {
    let (me, size) = (u64::from(ctx.rank()), u64::from(ctx.size()));
    let mut by_cpu = ctx.collectives(64).unwrap();
    let mut by_stream = ctx.collectives(64).unwrap();
    let stream = ctx.gpu().stream().unwrap();
    let memory = ctx.alloc(MemoryKind::Device, 8).unwrap();
    memory.write_slice(0, &[me + 1]).unwrap();
    // Each call multiplies the sum by the number of ranks, modulo 2^64.
    let mut sum = (1..=size).sum::<u64>();
    by_stream
        .all_reduce_on::<u64>(&stream, &memory.all(), Op::Sum)
        .unwrap();
    for round in 1..CALLS {
        // Two objects at once; the stream runs ahead of the CPU, or behind.
        by_stream
            .all_reduce_on::<u64>(&stream, &memory.all(), Op::Sum)
            .unwrap();
        sum = sum.wrapping_mul(size);
        let root = (round % size) as u32;
        let mut data = [me * CALLS + round];
        by_cpu.broadcast(root, &mut data, LIMIT).unwrap();
        assert_eq!(data, [u64::from(root) * CALLS + round]);
        let mut all = vec![0; size as usize];
        by_cpu.all_gather(&[me ^ round], &mut all, LIMIT).unwrap();
        assert!((0..size).all(|rank| all[rank as usize] == rank ^ round));
    }
    ctx.synchronize(&stream, LIMIT).unwrap();
    let mut got = [0];
    memory.read_slice(0, &mut got).unwrap();
    assert_eq!(got, [sum]);
    ctx.close(LIMIT).unwrap();
}
