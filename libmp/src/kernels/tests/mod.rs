//! Tests of the kernels on a soft GPU, against memory with a fixed layout: one region contains all
//! that they access, and every byte of it is compared.

mod collect;
mod direct;
mod flag;
mod put;
mod stamp;
mod step;
mod strided;
mod tasks;
mod unpack;

use std::ops::Range;
use std::time::Duration;

use gds_sim::{Sim, SimConfig};
use gdsync::Status;
use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{MemoryKind, Region};
use proptest::prelude::ProptestConfig;
use softgpu::Weak;

use super::*;

/// Kinds of words, as numbers: the test's own copy of the format.
const EAGER: u64 = 1;
const DIRECT: u64 = 2;
const TOO_LONG: u64 = 3;
const ANNOUNCE: u64 = 4;
const READY: u64 = 5;
const REFUSED: u64 = 6;
const TAKEN: u64 = 7;
const FAILED: u64 = 15;
/// The greatest length that a word can hold.
const MAX_LEN: u64 = (1 << 44) - 1;

/// The value of bytes that no kernel writes.
const GUARD: u8 = 0xa5;
/// Bytes of a bench's memory.
const BYTES: usize = 96 << 10;

/// The credit for a message in device memory.
const fn credit_of(number: u64) -> u64 {
    number << 6
}

const fn word(seq: u64, kind: u64, len: u64) -> u64 {
    (seq & 0xffff) << 48 | kind << 44 | len
}

fn result(status: Status, len: u64) -> u64 {
    u64::from(status.0) << 48 | len
}

/// `GDS_CASES` sets the number of cases of each test.
fn cases() -> ProptestConfig {
    let cases = std::env::var("GDS_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases.unwrap_or(256))
    }
}

/// Numbers of messages whose slot's last message may be before a wrap of a part of the number.
fn numbers_near_wraps() -> impl Iterator<Item = u64> {
    let wraps = [1_u64 << 16, 1 << 32, 1 << 48, 0];
    let near = |wrap: u64| [wrap.wrapping_sub(1), wrap, wrap + 1, wrap + 15, wrap + 16];
    wraps.into_iter().flat_map(near)
}

/// Bytes of the credits that a kernel reads at once.
const CREDITS_LEN: usize = 128;
/// Bytes beside the layout: 64 for the blocks of a launch, then the credits that kernels keep.
const ASIDE: usize = CREDITS_LEN * 128;

/// A stream, its kernels, and memory with its image: the expected content of the memory.
struct Bench {
    kernels: Kernels,
    stream: Stream,
    memory: Region,
    image: Vec<u8>,
    /// Memory that the blocks of a launch use among each other.
    aside: Region,
    /// The offset of the layout: the sum of it and an offset is a place in the memory.
    base: usize,
    // Dropped last: the GPU is one of its devices.
    sim: Sim,
}

impl Bench {
    /// A bench with blocks of this many threads.
    fn new(threads: u32) -> Bench {
        Bench::with(threads, u64::from(threads), None)
    }

    fn with(threads: u32, seed: u64, weak: Option<Weak>) -> Bench {
        let sim = Sim::new(SimConfig::seed(seed));
        let options = SoftOptions::default().weak(weak);
        let gpu = Gpu::soft_with(sim.host(), options).unwrap();
        let mut bench = Bench {
            kernels: Kernels::of(&gpu).unwrap(),
            stream: gpu.stream().unwrap(),
            memory: gpu.alloc(MemoryKind::Device, BYTES).unwrap(),
            image: Vec::new(),
            aside: gpu.alloc(MemoryKind::Device, ASIDE).unwrap(),
            base: 0,
            sim,
        };
        bench.kernels.copying = Dims::linear(1, threads);
        bench.kernels.patching = Dims::linear(1, threads);
        bench.kernels.wide = Dims::linear(1, threads);
        bench.aside.write(0, &[GUARD; ASIDE]).unwrap();
        bench.clear();
        bench
    }

    /// Fills the image with guard bytes.
    fn clear(&mut self) {
        self.image = vec![GUARD; BYTES];
    }

    fn addr(&self, at: usize) -> u64 {
        self.memory.addr().0 + (self.base + at) as u64
    }

    /// What kernel `i` of a sender waits for: the word at `credit` or that at `taken` must have reached
    /// `before`. The credits that it keeps are older.
    fn credit(&self, i: usize, credit: usize, taken: usize, before: u64) -> Credit {
        let credit = self.addr(credit);
        let old = credit_of(before.wrapping_sub(16)).to_le_bytes();
        let at = CREDITS_LEN * (i + 1);
        self.aside.write(at, &old.repeat(CREDITS_LEN / 8)).unwrap();
        Credit {
            credit,
            known: self.aside.addr().0 + at as u64 + credit % CREDITS_LEN as u64,
            taken: self.addr(taken),
            before,
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.image[self.base + at..][..bytes.len()].copy_from_slice(bytes);
    }

    fn put64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    /// Copies the image to the memory.
    fn load(&self) {
        self.memory.write(0, &self.image).unwrap();
    }

    /// Runs all enqueued work of the stream.
    fn run(&self) {
        assert!(self.stream.synchronize(Duration::from_secs(60)).unwrap());
    }

    /// Runs the stream until the word at `at` is not 0, and no further.
    fn run_until(&self, at: usize) {
        let mut seen = || self.read64(at) != 0;
        assert!(self.sim.host().wait_until(None, &mut seen));
    }

    /// Runs the stream until the word at `at` is `value`, and no further.
    fn run_until_is(&self, at: usize, value: u64) {
        let mut seen = || self.read64(at) == value;
        assert!(self.sim.host().wait_until(None, &mut seen));
    }

    /// Whether the stream completes all work within `limit`.
    fn runs_within(&self, limit: Duration) -> bool {
        self.stream.synchronize(limit).unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.memory.read(0, &mut bytes).unwrap();
        bytes
    }

    fn read64(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read(at, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    /// A word of the image.
    fn image_word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.image[self.base + at..][..8].try_into().unwrap())
    }

    /// Stores bytes while the stream runs, in the image as well.
    fn store(&mut self, at: usize, bytes: &[u8]) {
        self.put(at, bytes);
        self.memory.write(at, bytes).unwrap();
    }

    /// Stores a word while the stream runs, in the image as well.
    fn store64(&mut self, at: usize, value: u64) {
        self.store(at, &value.to_le_bytes());
    }

    /// Checks that the memory equals the image.
    fn check(&self, what: &str) {
        self.check_but(&[], what);
    }

    /// Checks that the memory equals the image, except for these 64-bit words.
    fn check_but(&self, words: &[usize], what: &str) {
        let words: Vec<Range<usize>> = words.iter().map(|&at| at..at + 8).collect();
        self.check_outside(&words, what);
    }

    /// Checks that the memory equals the image, except for these ranges.
    fn check_outside(&self, ranges: &[Range<usize>], what: &str) {
        let mut got = self.bytes();
        for range in ranges {
            got[range.clone()].copy_from_slice(&self.image[range.clone()]);
        }
        if got == self.image {
            return;
        }
        let wrong = (0..BYTES).find(|&i| got[i] != self.image[i]);
        if let Some(i) = wrong {
            let from = i & !7;
            panic!(
                "{what}: at {i:#x}: {:02x?} in place of {:02x?}",
                &got[from..from + 16],
                &self.image[from..from + 16]
            );
        }
    }
}

#[test]
fn module_contains_every_kernel_with_its_parameter_size() {
    let ptx = IMAGE.ptx().unwrap();
    let kernels = [
        ("mp_unpack_1", size_of::<Unpack<1>>()),
        ("mp_unpack_30", size_of::<Unpack<SEGMENTS>>()),
        ("mp_unpack_all_8", 8 + 8 * size_of::<Unpack<1>>()),
        ("mp_unpack_all_23", 8 + UNPACKS * size_of::<Unpack<1>>()),
        ("mp_take", size_of::<Unpack<1>>()),
        ("mp_take_all_8", 8 + 8 * size_of::<Unpack<1>>()),
        ("mp_take_all_23", 8 + UNPACKS * size_of::<Unpack<1>>()),
        ("mp_stamp_1", size_of::<Stamp<1>>()),
        ("mp_stamp_16", size_of::<Stamp<MOST_CHUNKS>>()),
        ("mp_stamp_all_8", 8 + 8 * size_of::<Stamp<1>>()),
        ("mp_stamp_all_30", 8 + STAMPS * size_of::<Stamp<1>>()),
        ("mp_put", size_of::<Puts<PUTS>>()),
        ("mp_flag", size_of::<Flag>()),
        ("mp_flag_all_8", 8 + 8 * size_of::<Flag>()),
        ("mp_flag_all_42", 8 + FLAGS * size_of::<Flag>()),
        ("mp_direct", size_of::<Direct>()),
        ("mp_direct_all_8", 8 + 8 * size_of::<Direct>()),
        ("mp_direct_all_25", 8 + DIRECTS * size_of::<Direct>()),
        ("mp_name", size_of::<Name>()),
        ("mp_name_all_8", 8 + 8 * size_of::<Name>()),
        ("mp_name_all_73", 8 + NAMES * size_of::<Name>()),
        ("mp_await", size_of::<Await>()),
        ("mp_relay", size_of::<Relay>()),
        ("mp_replay_write", size_of::<ReplayWrite>()),
        ("mp_replay_write_all_8", 8 + 8 * size_of::<ReplayWrite>()),
        ("mp_replay_write_all_46", 8 + 46 * size_of::<ReplayWrite>()),
        ("mp_replay_place", size_of::<ReplayPlace>()),
        ("mp_replay_copy", size_of::<ReplayCopy>()),
        ("mp_replay_take", size_of::<ReplayTake>()),
        ("mp_replay_take_all_8", 8 + 8 * size_of::<ReplayTake>()),
        ("mp_replay_take_all_42", 8 + 42 * size_of::<ReplayTake>()),
        ("mp_put_all_8", 8 + 8 * size_of::<Puts<PUTS>>()),
        ("mp_put_all_63", 8 + PUT_TASKS * size_of::<Puts<PUTS>>()),
        ("mp_strided", size_of::<Pieces>()),
        ("mp_moves", size_of::<Moves>()),
        ("mp_step", size_of::<StepParts>()),
        ("mp_whole_step", size_of::<WholeStep>()),
        ("mp_ready", size_of::<ReadyWords>()),
        ("mp_collect", size_of::<Collect>()),
    ];
    for (name, size) in kernels {
        let head =
            format!(".visible .entry {name}(\n\t.param .align 8 .b8 {name}_param_0[{size}]\n)");
        assert!(ptx.contains(&head), "{head}");
    }
    assert_eq!(ptx.matches(".entry").count(), kernels.len());
}
