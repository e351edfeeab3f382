//! Ranks on GPUs whose streams compare unsigned numbers, as those of HIP do: messages, collective
//! calls and signals at the wraps of their numbers.

#[path = "common/sim.rs"]
mod sim;

use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{Condition, MemoryKind};
use mp::{Builder, Op, PathChoice};
use sim::{LIMIT, exchange_on, play};

/// Numbers of the first message: shortly before the fields' wraps, and before half their ranges, where
/// signs change.
const STARTS: [u64; 6] = [
    (1 << 15) - 3,
    (1 << 16) - 3,
    (1 << 24) - 3,
    (1 << 31) - 3,
    (1 << 32) - 3,
    (1 << 48) - 3,
];

fn check(start: u64, path: PathChoice) {
    play(1, 2, move |rank| {
        let place = rank.place(SoftOptions::hip(), true);
        let build = |b: Builder| b.path(path).depth(2).start(start);
        let ctx = rank.open_at(&place, build);
        assert!(!ctx.gpu().caps().cyclic);
        let stream = ctx.gpu().stream().unwrap();
        for _ in 0..4 {
            exchange_on(&ctx, rank.peer(), 7, &stream);
        }
        let mut all = ctx.collectives(8).unwrap();
        let data = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        for call in 0..4_u64 {
            let own = call + u64::from(rank.me);
            data.write(0, &own.to_ne_bytes()).unwrap();
            all.all_reduce_on::<u64>(&stream, &data.all(), Op::Sum)
                .unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            let mut sum = [0; 8];
            data.read(0, &mut sum).unwrap();
            assert_eq!(u64::from_ne_bytes(sum), 2 * call + 1);
        }
        rank.barrier();
    });
}

#[test]
fn messages_by_nic_arrive_at_the_wraps_of_their_numbers() {
    STARTS
        .iter()
        .for_each(|start| check(*start, PathChoice::Nic));
}

#[test]
fn messages_by_mapped_memory_arrive_at_the_wraps_of_their_numbers() {
    STARTS
        .iter()
        .for_each(|start| check(*start, PathChoice::Ipc));
}

/// The condition of a word of the application stays cyclic, as on the CPU.
#[test]
fn stream_and_cpu_agree_about_words_of_the_application() {
    play(1, 1, |rank| {
        let ctx = rank.open_at(&rank.place(SoftOptions::hip(), true), |b| b);
        let stream = ctx.gpu().stream().unwrap();
        let memory = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        for (bytes, sign) in [(4, 1u64 << 31), (8, 1 << 63)] {
            let word = memory.slice(0, bytes).unwrap();
            let all = sign | (sign - 1);
            for value in [0, 1, sign - 1, sign, sign + 1, all] {
                let early = value.wrapping_sub(1) & all;
                let late = value.wrapping_add(sign - 1) & all;
                for at in [value, late] {
                    memory.write(0, &early.to_ne_bytes()).unwrap();
                    ctx.wait_value_on(&stream, None, &word, Condition::Geq, value)
                        .unwrap();
                    rank.pass(sim::millis(1));
                    assert!(!stream.is_idle().unwrap(), "{value:#x} at {early:#x}");
                    memory.write(0, &at.to_ne_bytes()).unwrap();
                    assert!(stream.synchronize(LIMIT).unwrap(), "{value:#x} at {at:#x}");
                    ctx.wait_value(None, &word, Condition::Geq, value, LIMIT)
                        .unwrap();
                }
            }
        }
        rank.barrier();
    });
}
