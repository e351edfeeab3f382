//! The benchmark's kernels, as the host launches them: one turn of a rank, and a load that computes.

use anyhow::{Context, Result, bail};
use gdsync::gpu::{Dims, Kernel, KernelImage, MemoryKind, Region};
use gdsync::{Gpu, Stream};
use zerocopy::{Immutable, IntoBytes};

use crate::pattern;

/// Means: nothing to verify, write, stamp or corrupt.
const NONE: u64 = 0;
const NOWHERE: u64 = u64::MAX;

/// Parameters of `mpbench_turn`, see `device/mpbench_turn.cu`.
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
#[repr(C)]
pub struct Turn {
    arrived: u64,
    expect: u64,
    leaving: u64,
    tag: u64,
    bytes: u64,
    tally: u64,
    stamp: u64,
    flip: u64,
}

impl Turn {
    /// A turn over payloads of `bytes`, which does nothing yet.
    pub fn new(bytes: u64, tally: &Tally) -> Turn {
        Turn {
            arrived: NONE,
            expect: 0,
            leaving: NONE,
            tag: 0,
            bytes,
            tally: tally.0.addr().0,
            stamp: NONE,
            flip: NOWHERE,
        }
    }

    /// Verifies the payload at `offset` of `region`.
    #[must_use]
    pub fn verify(mut self, region: &Region, offset: u64, tag: u64) -> Turn {
        self.arrived = region.addr().0 + offset;
        self.expect = tag;
        self
    }

    /// Writes a payload at `offset` of `region`.
    #[must_use]
    pub fn write(mut self, region: &Region, offset: u64, tag: u64) -> Turn {
        self.leaving = region.addr().0 + offset;
        self.tag = tag;
        self
    }

    /// Stores the time in the 64-bit word at `offset` of `region`.
    #[must_use]
    pub fn stamp(mut self, region: &Region, offset: u64) -> Turn {
        self.stamp = region.addr().0 + offset;
        self
    }

    /// Flips one bit of what it writes, at byte `offset`.
    #[must_use]
    pub fn spoil(mut self, offset: u64) -> Turn {
        self.flip = offset;
        self
    }
}

/// The module of all kernels.
pub static KERNELS: KernelImage = gdsync::kernel_image!("mpbench_kernels");

/// Launches turns.
pub struct Turns {
    kernel: Kernel,
    /// Whether a thread is a fiber of the soft GPU, so that fewer threads do more each.
    fibers: bool,
}

impl Turns {
    /// Loads the kernel on `gpu`. Must be called before its streams wait.
    pub fn new(gpu: &Gpu) -> Result<Turns> {
        Ok(Turns {
            kernel: gpu.load(&KERNELS)?.kernel("mpbench_turn")?,
            fibers: gpu.is_software(),
        })
    }

    /// The grid and block of a turn.
    fn dims(&self, bytes: u64) -> Dims {
        let (stretch, most, threads) = match self.fibers {
            true => (64 << 10, 4, 1),
            false => (8 << 10, 256, 256),
        };
        // With a small payload, every thread still has a word.
        let threads = threads.min(bytes.div_ceil(8).next_multiple_of(32)).max(1);
        let blocks = bytes.div_ceil(stretch).clamp(1, most);
        Dims::linear(blocks as u32, threads as u32)
    }

    /// Enqueues a turn.
    ///
    /// # Safety
    /// The regions that the turn names must live until the stream has run it, and no other code may
    /// rely on the memory that it overwrites.
    pub unsafe fn launch(&self, stream: &Stream, turn: &Turn) -> Result<()> {
        // SAFETY: the caller's promise; the kernel touches nothing but what the turn names.
        unsafe { stream.launch(&self.kernel, self.dims(turn.bytes), turn)? };
        Ok(())
    }
}

/// Parameters of `mpbench_compute`, see `device/mpbench_compute.cu`.
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
#[repr(C)]
struct Compute {
    sums: u64,
    rounds: u64,
}

/// Launches a kernel that computes in registers.
pub struct Computes {
    kernel: Kernel,
    dims: Dims,
    rounds: u64,
    sums: Region,
}

impl Computes {
    /// Loads the kernel, which has `blocks` blocks of 256 threads (of one thread on a software GPU),
    /// of which each computes `rounds` steps. Must be called before a stream of `gpu` waits.
    pub fn new(gpu: &Gpu, blocks: u32, rounds: u64) -> Result<Computes> {
        let threads = if gpu.is_software() { 1 } else { 256 };
        Ok(Computes {
            kernel: gpu.load(&KERNELS)?.kernel("mpbench_compute")?,
            dims: Dims::linear(blocks, threads),
            rounds,
            sums: gpu.alloc(MemoryKind::Device, 4 * (blocks * threads) as usize)?,
        })
    }

    /// Enqueues the kernel.
    ///
    /// # Safety
    /// This object must live until the stream has run it.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        let compute = Compute {
            sums: self.sums.addr().0,
            rounds: self.rounds,
        };
        // SAFETY: each thread stores one word of `sums`, which lives by the caller's promise.
        unsafe { stream.launch(&self.kernel, self.dims, &compute)? };
        Ok(())
    }

    /// Compares the results of the first and of the last thread with the host's, after the stream
    /// is done.
    pub fn check(&self) -> Result<()> {
        let last = self.dims.grid[0] * self.dims.block[0] - 1;
        for thread in [0, last] {
            let mut bytes = [0; 4];
            self.sums.read(4 * thread as usize, &mut bytes)?;
            let (got, right) = (u32::from_ne_bytes(bytes), sum(thread, self.rounds));
            if got != right {
                bail!("thread {thread} of the kernel computed {got}, not {right}");
            }
        }
        Ok(())
    }
}

/// What a thread of `mpbench_compute` computes.
fn sum(thread: u32, rounds: u64) -> u32 {
    let step = |x: u32, round: u64| (x ^ round as u32).wrapping_mul(0x2c1b_3c6d);
    let chain = |start: u32| (0..rounds).fold(start, step);
    (0..4).fold(0, |sum: u32, n| sum.wrapping_add(chain(thread + n)))
}

/// Results of verification, summed over all turns since the last read.
pub struct Tally(Region);

/// Bytes of `mpbench::Tally`: bytes verified, bytes wrong, offset of the first wrong byte.
const TALLY: usize = 24;

impl Tally {
    /// An empty tally.
    pub fn new(gpu: &Gpu) -> Result<Tally> {
        // In memory that supports atomic additions.
        let tally = Tally(gpu.alloc(MemoryKind::Device, TALLY)?);
        tally.clear()?;
        Ok(tally)
    }

    fn clear(&self) -> Result<()> {
        let mut bytes = [0; TALLY];
        bytes[16..].copy_from_slice(&NOWHERE.to_ne_bytes());
        Ok(self.0.write(0, &bytes)?)
    }

    /// Reads and resets the tally after the stream is done: `expected` bytes must have been
    /// verified, and none may be wrong.
    pub fn take(&self, expected: u64) -> Result<()> {
        let mut bytes = [0; TALLY];
        self.0.read(0, &mut bytes)?;
        let word = |i: usize| {
            let (words, _) = bytes.as_chunks::<8>();
            u64::from_ne_bytes(words[i])
        };
        let (verified, wrong, first) = (word(0), word(1), word(2));
        self.clear().context("clearing the tally")?;
        if wrong != 0 {
            let (message, sender) = pattern::untag(first >> 32);
            let offset = first & u64::from(u32::MAX);
            bail!(
                "{wrong} wrong bytes among {verified}: the first is byte {offset} of message \
                 {message} from rank {sender}"
            );
        }
        if verified != expected {
            bail!("{verified} bytes were verified, {expected} should have been");
        }
        Ok(())
    }
}

/// Times that turns have stored, one word each.
pub struct Stamps(pub Region);

impl Stamps {
    /// Room for `count` times, in memory that the kernel's stores reach fast.
    pub fn new(gpu: &Gpu, count: usize) -> Result<Stamps> {
        Ok(Stamps(gpu.alloc(MemoryKind::Device, 8 * count)?))
    }

    /// The differences between consecutive times of the first `count`, in nanoseconds.
    pub fn gaps(&self, count: usize) -> Result<Vec<u64>> {
        let mut bytes = vec![0; 8 * count];
        self.0.read(0, &mut bytes)?;
        let (stamps, _) = bytes.as_chunks::<8>();
        let stamps: Vec<u64> = stamps.iter().map(|b| u64::from_ne_bytes(*b)).collect();
        if !stamps.is_sorted() || stamps[0] == 0 {
            bail!("the GPU's clock went back, or a kernel did not stamp");
        }
        Ok(stamps.windows(2).map(|w| w[1] - w[0]).collect())
    }
}

const _: () = assert!(size_of::<Turn>() == 64 && size_of::<Compute>() == 16);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Runs a turn on a soft GPU and waits for it.
    fn run(stream: &Stream, turn: &Turn) {
        // SAFETY: every test keeps its regions until it ends.
        unsafe {
            Turns::new(stream.gpu())
                .unwrap()
                .launch(stream, turn)
                .unwrap()
        };
        assert!(stream.synchronize(Duration::from_secs(60)).unwrap());
    }

    #[test]
    fn kernel_writes_the_pattern_of_the_host_and_finds_every_wrong_byte() {
        let gpu = Gpu::soft().unwrap();
        let stream = gpu.stream().unwrap();
        let tally = Tally::new(&gpu).unwrap();
        // One word, ragged, one block, several blocks, several blocks and ragged.
        for len in [8usize, 13, 4096, 256 << 10, (128 << 10) + 5] {
            let region = gpu.alloc(MemoryKind::Device, len).unwrap();
            let mut got = vec![0; len];
            run(
                &stream,
                &Turn::new(len as u64, &tally).write(&region, 0, 77),
            );
            region.read(0, &mut got).unwrap();
            assert!(got == pattern::bytes(77, len), "{len} bytes");
            let verify = Turn::new(len as u64, &tally).verify(&region, 0, 77);
            run(&stream, &verify);
            tally.take(len as u64).unwrap();
            for at in [0, len / 2, len - 1] {
                region.write(at, &[got[at] ^ 0x40]).unwrap();
                run(&stream, &verify);
                let e = tally.take(len as u64).unwrap_err().to_string();
                assert!(e.contains("1 wrong bytes"), "{e}");
                assert!(
                    e.contains(&format!("byte {at} of message 38 from rank 1")),
                    "{e}"
                );
                region.write(at, &got[at..=at]).unwrap();
            }
            // A spoiled payload differs in one byte, a payload of another tag in nearly all.
            run(
                &stream,
                &Turn::new(len as u64, &tally)
                    .write(&region, 0, 77)
                    .spoil(len as u64 - 1),
            );
            run(&stream, &verify);
            assert!(
                tally
                    .take(len as u64)
                    .unwrap_err()
                    .to_string()
                    .contains("1 wrong")
            );
            run(
                &stream,
                &Turn::new(len as u64, &tally).write(&region, 0, 78),
            );
            run(&stream, &verify);
            assert!(tally.take(len as u64).is_err());
        }
    }

    #[test]
    fn missing_verification_is_an_error() {
        let gpu = Gpu::soft().unwrap();
        let e = Tally::new(&gpu).unwrap().take(8).unwrap_err().to_string();
        assert_eq!(e, "0 bytes were verified, 8 should have been");
    }

    #[test]
    fn every_thread_computes_what_the_host_does() {
        let gpu = Gpu::soft().unwrap();
        let stream = gpu.stream().unwrap();
        let computes = Computes::new(&gpu, 5, 100).unwrap();
        assert!(computes.check().is_err(), "no thread has stored its sum");
        // SAFETY: it lives until the stream is done.
        unsafe { computes.launch(&stream).unwrap() };
        assert!(stream.synchronize(Duration::from_secs(60)).unwrap());
        computes.check().unwrap();
    }

    #[test]
    fn stamp_is_the_time() {
        let gpu = Gpu::soft().unwrap();
        let stream = gpu.stream().unwrap();
        let (tally, stamps) = (
            Tally::new(&gpu).unwrap(),
            gpu.alloc(MemoryKind::Pinned, 16).unwrap(),
        );
        let word = |i: usize| stamps.word64(8 * i).unwrap().load().unwrap();
        run(&stream, &Turn::new(8, &tally).stamp(&stamps, 0));
        run(&stream, &Turn::new(8, &tally).stamp(&stamps, 8));
        assert!(word(0) > 0 && word(1) > word(0), "{} {}", word(0), word(1));
    }
}
