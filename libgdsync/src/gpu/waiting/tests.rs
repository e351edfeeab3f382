//! The limits of blocks: streams of a software GPU, with the limits of a GPU of 132 multiprocessors.

use std::time::Duration;

use super::*;
use crate::Gpu;
use crate::gpu::soft::SoftOptions;
use crate::gpu::{Condition, MemoryKind, Region};
use crate::rdma::{Descriptor, post_on};

const LAUNCH: &str = "launch kernel";

/// Streams of a software GPU, with the limits of a GPU of 132 multiprocessors.
struct Rig {
    waiting: Waiting,
    streams: Vec<Stream>,
    /// The word that shows that a stream has passed its waits.
    words: Region,
}

impl Rig {
    fn new() -> Rig {
        let live = gds_step::Live::global().unwrap();
        let gpu = Gpu::soft_with(live, SoftOptions::default().channels(8)).unwrap();
        Rig {
            waiting: Waiting::new(Some(WaitLimits {
                channels: 8,
                setting: "nothing",
                streams: 6,
                submissions: Some(900),
                multiprocessors: Some(132),
            })),
            streams: (0..7).map(|_| gpu.stream().unwrap()).collect(),
            words: gpu.alloc(MemoryKind::Pinned, 64).unwrap(),
        }
    }

    fn limited(&self, stream: usize, dims: Dims, waits: bool) -> (Dims, Option<Held<'_>>) {
        let of = &self.streams[stream];
        self.waiting.share(of, LAUNCH, dims, waits).unwrap()
    }

    /// The blocks of a flexible kernel that waits, on a stream that stays busy.
    fn share(&self, stream: usize, blocks: u32) -> u32 {
        let of = &self.streams[stream];
        let wanted = Dims::linear(blocks, 1).flexible();
        let (dims, held) = self.limited(stream, wanted, true);
        let word = self.words.word64(8 * stream).unwrap();
        let proof = Some(Proof::by_word(&word, 1));
        self.waiting.admit(of, LAUNCH, 1, proof).unwrap();
        // An idle stream does not wait.
        word.store(0).unwrap();
        let gate = self.words.word64(56).unwrap();
        let wait = [Descriptor::wait_value(&gate, Condition::Geq, 1)];
        post_on(of, &mut [], &wait).unwrap();
        drop(held);
        dims.grid[0]
    }

    fn pass(&self, stream: usize) {
        self.words.word64(8 * stream).unwrap().store(1).unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.words.word64(56).unwrap().store(1).unwrap();
        for stream in &self.streams {
            assert!(stream.synchronize(Duration::from_secs(60)).unwrap());
        }
    }
}

#[test]
fn blocks_of_two_kernels_of_each_waiting_stream_leave_multiprocessors_free() {
    let rig = Rig::new();
    let given: Vec<u32> = (0..6).map(|stream| rig.share(stream, 1000)).collect();
    assert_eq!(given, [48, 10, 3, 1, 1, 1]);
    assert!(2 * given.iter().sum::<u32>() < 132);
    let dims = Dims::linear(1, 1);
    let refused = rig.waiting.share(&rig.streams[6], LAUNCH, dims, true);
    assert_eq!(refused.map(drop).unwrap_err().kind(), Kind::TooManyWaits);
}

#[test]
fn kernels_of_few_blocks_leave_more_to_the_other_streams() {
    let rig = Rig::new();
    let given = [rig.share(0, 1), rig.share(1, 32), rig.share(2, 32)];
    assert_eq!(given, [1, 32, 23]);
    // What a stream has been given, it keeps while it waits.
    let given = [rig.share(1, 32), rig.share(2, 32), rig.share(0, 4)];
    assert_eq!(given, [32, 23, 4]);
}

#[test]
fn blocks_of_a_stream_that_has_passed_its_waits_are_given_to_others() {
    let rig = Rig::new();
    assert_eq!([rig.share(0, 48), rig.share(1, 48)], [48, 10]);
    rig.pass(0);
    // It asks again after some launches.
    for _ in 0..AGAIN {
        assert_eq!(rig.share(1, 48), 10);
    }
    assert_eq!(rig.share(1, 48), 48);
}

#[test]
fn stream_counts_as_waiting_from_its_share_to_its_launch() {
    let rig = Rig::new();
    let wanted = Dims::linear(48, 1).flexible();
    let (given, held) = rig.limited(0, wanted, true);
    assert_eq!(given.grid, [48, 1, 1]);
    // The stream is idle.
    assert_eq!(rig.share(1, 48), 10);
    drop(held);
    assert_eq!(rig.share(2, 48), 40);
}

#[test]
fn each_task_of_a_list_has_a_block() {
    let rig = Rig::new();
    rig.share(0, 48);
    let list = Dims::linear(8, 1).grid([8, 20, 1]).flexible();
    let (given, _held) = rig.limited(1, list, true);
    assert_eq!(given.grid, [1, 20, 1]);
    // All 20 blocks are recorded: (120 - 2 * 47 - 2 * 19) is not positive.
    assert_eq!(rig.share(2, 48), 1);
}

#[test]
fn kernel_that_is_not_flexible_is_recorded_and_not_limited() {
    let rig = Rig::new();
    let dims = Dims::linear(60, 1);
    let (given, _held) = rig.limited(0, dims, true);
    assert_eq!(given, dims);
    assert_eq!(rig.share(1, 48), 1);
}

#[test]
fn stream_that_does_not_wait_gets_all_blocks() {
    let rig = Rig::new();
    rig.share(0, 48);
    let wanted = Dims::linear(500, 1).flexible();
    let (given, held) = rig.limited(1, wanted, false);
    assert!(given == wanted && held.is_none());
}

#[test]
fn graph_gets_the_blocks_of_a_stream_that_waits_alone() {
    let rig = Rig::new();
    rig.share(0, 48);
    let blocks = |dims: Dims| rig.waiting.share_of_graph(dims).grid;
    assert_eq!(blocks(Dims::linear(500, 1).flexible()), [48, 1, 1]);
    assert_eq!(blocks(Dims::linear(5, 1).flexible()), [5, 1, 1]);
    assert_eq!(blocks(Dims::linear(500, 1)), [500, 1, 1]);
}

/// Streams launch kernels of any size and pass their waits in any order.
#[test]
fn resident_blocks_are_fewer_than_multiprocessors_in_any_program() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let rig = Rig::new();
        let mut most = [0; 6];
        for _ in 0..200 {
            let stream = rng.usize(..6);
            if rng.u8(..4) == 0 {
                rig.pass(stream);
                most[stream] = 0;
                continue;
            }
            let wanted = 1 << rng.u32(..8);
            let given = rig.share(stream, wanted);
            assert!((1..=wanted).contains(&given));
            most[stream] = most[stream].max(given);
            let resident = 2 * most.iter().sum::<u32>();
            assert!(resident < 132, "seed {seed}: {most:?}");
        }
    }
}

#[test]
fn gpu_without_multiprocessors_gives_all_blocks() {
    let gpu = Gpu::soft().unwrap();
    let (stream, wanted) = (gpu.stream().unwrap(), Dims::linear(1000, 1).flexible());
    let (given, held) = gpu.waiting().share(&stream, LAUNCH, wanted, true).unwrap();
    assert!(given == wanted && held.is_none());
}
