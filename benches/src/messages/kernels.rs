//! The kernels of a batch, as the host launches them: one writes what a stream sends and blanks where it
//! receives, the other compares every byte. `device/mpbench_batch.cu` has the layouts too.

use anyhow::Result;
use gdsync::gpu::{Dims, Kernel, MemoryKind, Region};
use gdsync::{Gpu, Stream};
use zerocopy::{Immutable, IntoBytes};

use super::plan::{Batch, RANKS, STREAMS};
use crate::kernel::KERNELS;
use crate::pattern;

/// Means: no bit is flipped, no byte is wrong.
pub const NOWHERE: u64 = u64::MAX;
/// Bytes of a result: bytes compared, bytes wrong, the offset of the first one, the number of the batch.
const RESULT: usize = 32;

/// Parameters of `mpbench_fill`.
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
#[repr(C)]
struct Fill {
    source: u64,
    source_words: u64,
    source_seed: u64,
    target: u64,
    target_words: u64,
    target_seed: u64,
    flip: u64,
}

/// Bytes that are compared with consecutive bytes of one pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub struct Piece {
    pub at: u32,
    pub from: u32,
    pub len: u32,
    pub blank: u32,
    pub seed: u64,
}

/// Parameters of `mpbench_check`.
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
#[repr(C)]
struct Check {
    target: u64,
    pieces: u64,
    count: u64,
    sum: u64,
    result: u64,
    batch: u64,
}

const _: () =
    assert!(size_of::<Fill>() == 56 && size_of::<Piece>() == 24 && size_of::<Check>() == 48);

/// Seeds of patterns: of what a stream sends in a batch, or of the blank where it receives nothing.
fn seed(batch: u64, rank: usize, stream: usize, blank: bool) -> u64 {
    let index = (batch * RANKS as u64 + rank as u64) * STREAMS as u64 + stream as u64;
    pattern::seed(2 * index + u64::from(blank))
}

/// The whole target of a stream, in pieces of at most `most` bytes: the messages, and what is between
/// them.
pub fn pieces(batch: &Batch, (rank, stream): (usize, usize), target: u32, most: u32) -> Vec<Piece> {
    let mut received = batch.received(rank, stream);
    received.sort_unstable_by_key(|i| (batch.messages[*i].into, batch.messages[*i].len));
    let mut pieces = Vec::new();
    let mut add = |(mut at, mut from, mut len): (u32, u32, u32), blank: bool, seed| {
        while len > 0 {
            let part = len.min(most);
            pieces.push(Piece {
                at,
                from,
                len: part,
                blank: blank.into(),
                seed,
            });
            (at, from, len) = (at + part, from + part, len - part);
        }
    };
    let blank = seed(batch.number, rank, stream, true);
    let mut end = 0;
    for message in received.iter().map(|i| &batch.messages[*i]) {
        add((end, end, message.into - end), true, blank);
        let sent = seed(batch.number, message.sender, message.streams[0], false);
        add((message.into, message.from, message.len), false, sent);
        end = message.into + message.len;
    }
    add((end, end, target - end), true, blank);
    pieces
}

/// The kernels.
pub struct Kernels {
    fill: Kernel,
    check: Kernel,
    dims: Dims,
}

impl Kernels {
    /// Loads them on `gpu`. Must be called before its streams wait.
    pub fn new(gpu: &Gpu) -> Result<Kernels> {
        let module = gpu.load(&KERNELS)?;
        Ok(Kernels {
            fill: module.kernel("mpbench_fill")?,
            check: module.kernel("mpbench_check")?,
            // A thread of a software GPU is a fiber. Streams that wait hold some multiprocessors.
            dims: match gpu.is_software() {
                true => Dims::linear(2, 1),
                false => Dims::linear(64, 256),
            },
        })
    }
}

/// What the kernels of a stream use: its source and its target, with their lengths in bytes, and memory
/// for the pieces and results of some batches.
pub struct Area {
    source: (Region, u32),
    target: (Region, u32),
    pieces: Vec<Region>,
    /// Maximum number of bytes of a piece.
    most: u32,
    sum: Region,
    results: Region,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub verified: u64,
    pub wrong: u64,
    /// The lowest offset of a wrong byte, or [`NOWHERE`].
    pub first: u64,
}

impl Area {
    /// With room for `slots` batches of at most `messages` messages.
    pub fn new(
        gpu: &Gpu,
        source: (Region, u32),
        target: (Region, u32),
        (slots, messages): (usize, usize),
    ) -> Result<Area> {
        let most = (target.1 / 512).max(8 << 10);
        let count = 2 * messages + 1 + (target.1 / most) as usize;
        let pieces = || gpu.alloc(MemoryKind::Pinned, count * size_of::<Piece>());
        let sum = gpu.alloc(MemoryKind::Device, RESULT)?;
        sum.write(0, [0, 0, NOWHERE, 0].as_bytes())?;
        Ok(Area {
            source,
            target,
            pieces: (0..slots).map(|_| pieces()).collect::<Result<_, _>>()?,
            most,
            sum,
            results: gpu.alloc(MemoryKind::Pinned, slots * RESULT)?,
        })
    }

    fn slot(&self, batch: u64) -> usize {
        (batch % self.pieces.len() as u64) as usize
    }

    /// Enqueues the writing of source and target for a batch, with one wrong bit at `flip`. `mine`: the rank
    /// and the number of the stream.
    pub fn fill(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        batch: u64,
        mine: (usize, usize),
        flip: u64,
    ) -> Result<()> {
        let fill = Fill {
            source: self.source.0.addr().0,
            source_words: u64::from(self.source.1 / 8),
            source_seed: seed(batch, mine.0, mine.1, false),
            target: self.target.0.addr().0,
            target_words: u64::from(self.target.1 / 8),
            target_seed: seed(batch, mine.0, mine.1, true),
            flip,
        };
        // SAFETY: the regions are freed when the stream has run its work; the messages of the stream's
        // earlier batches have ended in front of the kernel, and those of the next are behind it.
        unsafe { stream.launch(&kernels.fill, kernels.dims, &fill)? };
        Ok(())
    }

    /// Enqueues the comparison of a batch. The result of the batch that had its slot was read.
    pub fn check(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        batch: &Batch,
        mine: (usize, usize),
    ) -> Result<()> {
        let slot = self.slot(batch.number);
        let pieces = pieces(batch, mine, self.target.1, self.most);
        self.pieces[slot].write(0, pieces.as_bytes())?;
        let check = Check {
            target: self.target.0.addr().0,
            pieces: self.pieces[slot].addr().0,
            count: pieces.len() as u64,
            sum: self.sum.addr().0,
            result: self.results.addr().0 + (slot * RESULT) as u64,
            batch: batch.number + 1,
        };
        // SAFETY: the regions are freed when the stream has run its work, and the pieces are in the
        // target.
        unsafe { stream.launch(&kernels.check, kernels.dims, &check)? };
        Ok(())
    }

    /// The result of a batch, when its check has ended.
    pub fn found(&self, batch: u64) -> Result<Option<Found>> {
        let word = |i: usize| {
            let at = self.slot(batch) * RESULT + 8 * i;
            self.results.word64(at)?.load()
        };
        if word(3)? != batch + 1 {
            return Ok(None);
        }
        Ok(Some(Found {
            verified: word(0)?,
            wrong: word(1)?,
            first: word(2)?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::plan::{Choice, Plan};
    use super::*;

    const MINE: (usize, usize) = (1, 0);

    /// A batch of which the messages were copied by hand from the patterns to the target.
    struct Copied {
        batch: Batch,
        choice: Choice,
        stream: Stream,
        kernels: Kernels,
        target: Region,
        area: Area,
    }

    impl Copied {
        fn new() -> Copied {
            let choice = Choice {
                seed: 3,
                messages: 256,
                tags: 2,
                longest: 3000,
                spoil: None,
            };
            let gpu = Gpu::soft().unwrap();
            let stream = gpu.stream().unwrap();
            let kernels = Kernels::new(&gpu).unwrap();
            let [source, target] = [choice.source(), choice.target()]
                .map(|len| (gpu.alloc(MemoryKind::Device, len as usize).unwrap(), len));
            let area = |source: &Region| {
                let source = (source.clone(), choice.source());
                Area::new(&gpu, source, target.clone(), (2, 256)).unwrap()
            };
            let batch = Plan::new(choice).next().unwrap();
            // What the two streams of the sender send.
            let sent = [0, 1].map(|of| {
                let area = area(&source.0);
                let fill = area.fill(&kernels, &stream, 0, (0, of), NOWHERE);
                fill.unwrap();
                assert!(stream.synchronize(Duration::from_secs(60)).unwrap());
                let mut bytes = vec![0; choice.source() as usize];
                source.0.read(0, &mut bytes).unwrap();
                bytes
            });
            let area = area(&source.0);
            area.fill(&kernels, &stream, 0, MINE, NOWHERE).unwrap();
            assert!(stream.synchronize(Duration::from_secs(60)).unwrap());
            for i in batch.received(MINE.0, MINE.1) {
                let m = &batch.messages[i];
                let bytes = &sent[m.streams[0]][m.from as usize..][..m.len as usize];
                target.0.write(m.into as usize, bytes).unwrap();
            }
            Copied {
                target: target.0,
                batch,
                choice,
                stream,
                kernels,
                area,
            }
        }

        fn found(&self) -> Found {
            let check = self
                .area
                .check(&self.kernels, &self.stream, &self.batch, MINE);
            check.unwrap();
            assert!(self.stream.synchronize(Duration::from_secs(60)).unwrap());
            self.area.found(0).unwrap().unwrap()
        }

        /// The result of a check with a wrong byte at an offset.
        fn with_wrong_byte(&self, at: usize) -> Found {
            let mut byte = [0];
            self.target.read(at, &mut byte).unwrap();
            self.target.write(at, &[byte[0] ^ 0x10]).unwrap();
            let found = self.found();
            self.target.write(at, &byte).unwrap();
            found
        }
    }

    #[test]
    fn check_compares_all_bytes_and_finds_each_wrong_one() {
        let copied = Copied::new();
        let all = u64::from(copied.choice.target());
        let right = Found {
            verified: all,
            wrong: 0,
            first: NOWHERE,
        };
        assert_eq!(copied.found(), right);
        let messages = copied.batch.received(MINE.0, MINE.1);
        let messages = messages.iter().map(|i| &copied.batch.messages[*i]);
        for m in messages.filter(|m| m.len > 0) {
            for at in [m.into, m.into + m.len / 2, m.into + m.len - 1] {
                let wrong = Found {
                    verified: all,
                    wrong: 1,
                    first: at.into(),
                };
                assert_eq!(copied.with_wrong_byte(at as usize), wrong);
            }
            // Behind the message, inside the room of its receive or not.
            let behind = (m.into + m.len) as usize;
            if behind < all as usize {
                assert_eq!(copied.with_wrong_byte(behind).wrong, 1);
            }
        }
        assert_eq!(copied.found(), right);
    }

    #[test]
    fn message_that_did_not_arrive_is_wrong_in_every_byte() {
        let copied = Copied::new();
        let fill = |kernels, stream| copied.area.fill(kernels, stream, 0, MINE, NOWHERE);
        fill(&copied.kernels, &copied.stream).unwrap();
        let received = copied.batch.received(MINE.0, MINE.1);
        let bytes = received
            .iter()
            .map(|i| u64::from(copied.batch.messages[*i].len));
        assert_eq!(copied.found().wrong, bytes.sum::<u64>());
    }
}
