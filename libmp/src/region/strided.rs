//! [`Strided`]: pieces of a memory at equal distances, as one message.

use std::fmt;

use super::{Memory, Slice};
use crate::error::{Error, Kind, Result};
use crate::kernels::Pieces;
use crate::path::MOST_PIECES;

/// Pieces of one length at equal distances in a [`Memory`], as `MPI_Type_vector`: a column, every
/// other row, or a face of a box. A message is sent from it or received into it
/// ([`SendOp::strided`](crate::SendOp::strided), [`RecvOp::strided`](crate::RecvOp::strided)).
///
/// [`Memory::strided`] makes one, and [`repeated`](Strided::repeated) repeats it at a second
/// distance. Up to 30 pieces are one scatter/gather list. More are packed in pinned memory, of the
/// length of the message, that the context keeps for later messages: by a kernel of the stream that
/// posts the send or waits for the receive, or by the CPU for requests of the CPU. The CPU copies
/// one piece after the other, and other calls of the context wait meanwhile: post messages of many
/// pieces of GPU memory on a stream.
///
/// ```
/// # use std::time::Duration;
/// # use mp::{Context, bootstrap::Local, gdsync::Gpu};
/// use mp::gdsync::gpu::MemoryKind;
/// # let alone = Local::ranks(1).remove(0);
/// # let ctx = Context::builder().bootstrap(alone).gpu(&Gpu::soft()?).build()?;
/// # let (left, right) = (0, 0);
///
/// // A box of 32 x 40 x 50 numbers, x fastest, with one ghost cell on each side.
/// let (word, nx, ny, nz) = (size_of::<f64>(), 34, 42, 52);
/// let field = ctx.alloc(MemoryKind::Device, word * nx * ny * nz)?;
/// let at = |x, y, z| word * (x + nx * (y + ny * z));
/// // A face normal to x: 40 numbers of each of 50 planes.
/// let face = |x| field.strided(at(x, 1, 1), word, word * nx, 40)?.repeated(word * nx * ny, 50);
///
/// let stream = ctx.gpu().stream()?;
/// let (edge, ghost) = (face(32)?, face(0)?);
/// ctx.sendrecv_on(&stream, (right, 7, &edge), (left, 7, &ghost))?;
/// ctx.synchronize(&stream, Duration::from_secs(10))?;
/// assert_eq!((edge.len(), edge.count()), (word * 40 * 50, 40 * 50));
/// # Ok::<(), mp::Error>(())
/// ```
#[derive(Clone)]
pub struct Strided {
    memory: Memory,
    /// The offset of the first piece, and the length of each, in bytes.
    offset: usize,
    block: usize,
    /// The pieces of a row, then the rows. Merged with the block, and with each other, where they
    /// are contiguous.
    row: Level,
    plane: Level,
    /// All pieces, if they fit a list.
    pieces: Vec<Slice>,
}

/// A repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    stride: usize,
    count: usize,
}

const ONCE: Level = Level {
    stride: 0,
    count: 1,
};

impl fmt::Debug for Strided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Strided {
            memory,
            offset,
            block,
            row,
            plane,
            ..
        } = self;
        write!(
            f,
            "{} pieces of {block} bytes, from {offset} on",
            self.count()
        )?;
        for level in [row, plane].into_iter().filter(|level| **level != ONCE) {
            write!(f, ", {} every {} bytes", level.count, level.stride)?;
        }
        write!(f, ", of {memory:?}")
    }
}

/// One piece: all bytes of the slice.
impl From<&Slice> for Strided {
    fn from(slice: &Slice) -> Strided {
        let (count, pieces) = match slice.len() {
            0 => (0, Vec::new()),
            _ => (1, vec![slice.clone()]),
        };
        Strided {
            memory: slice.memory().clone(),
            offset: slice.offset(),
            block: slice.len(),
            row: Level { count, ..ONCE },
            plane: ONCE,
            pieces,
        }
    }
}

impl From<&Strided> for Strided {
    fn from(strided: &Strided) -> Strided {
        strided.clone()
    }
}

impl Memory {
    /// `count` pieces of `block_len` bytes, the first at byte `offset` and each `stride` bytes
    /// behind the one before. [`Strided`] has an example.
    ///
    /// # Errors
    /// `Invalid` if a piece exceeds the memory or overlaps the next.
    pub fn strided(
        &self,
        offset: usize,
        block_len: usize,
        stride: usize,
        count: usize,
    ) -> Result<Strided> {
        let row = Level { stride, count };
        Strided::new(self, offset, block_len, row, ONCE)
    }
}

impl Strided {
    /// These pieces `count` times, each time `stride` bytes behind the time before: the rows of one
    /// plane, repeated for each plane of a box.
    ///
    /// # Errors
    /// `Invalid` if a piece exceeds the memory, or overlaps a repeated one; also if the pieces have
    /// two distances already.
    pub fn repeated(&self, stride: usize, count: usize) -> Result<Strided> {
        if self.plane != ONCE {
            let what = format!("{self:?} have two distances already; send several messages");
            return Err(Error::new(SLICE, Kind::Invalid, what).with_limit(2u32, "distances"));
        }
        let plane = Level { stride, count };
        Strided::new(&self.memory, self.offset, self.block, self.row, plane)
    }

    fn new(
        memory: &Memory,
        offset: usize,
        block: usize,
        row: Level,
        plane: Level,
    ) -> Result<Strided> {
        check(memory, offset, block, row, plane)?;
        let (block, row, plane) = merged(block, row, plane);
        let mut strided = Strided {
            memory: memory.clone(),
            offset,
            block,
            row,
            plane,
            pieces: Vec::new(),
        };
        if strided.count() <= MOST_PIECES {
            let pieces = strided.offsets().map(|at| memory.slice(at, block));
            strided.pieces = pieces.collect::<Result<_>>()?;
        }
        Ok(strided)
    }

    /// All bytes of a slice as one piece, without the list.
    pub(crate) fn whole(slice: &Slice) -> Strided {
        Strided {
            memory: slice.memory().clone(),
            offset: slice.offset(),
            block: slice.len(),
            row: ONCE,
            plane: ONCE,
            pieces: Vec::new(),
        }
    }

    /// The memory that contains the pieces.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The length of a message of all pieces, in bytes.
    pub fn len(&self) -> usize {
        self.block * self.count()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of pieces; pieces without a gap between them count as one.
    pub fn count(&self) -> usize {
        self.row.count * self.plane.count
    }

    /// All pieces, if they fit a list; else none.
    pub(crate) fn pieces(&self) -> &[Slice] {
        &self.pieces
    }

    /// Whether the pieces do not fit a list.
    pub(crate) fn is_long(&self) -> bool {
        self.count() > MOST_PIECES
    }

    /// The address of the first piece, and the length of each.
    fn first(&self) -> (u64, u64) {
        let addr = self.memory.region().addr().0 + self.offset as u64;
        (addr, self.block as u64)
    }

    /// The distance of pieces, their number in a row, and the distance of rows.
    fn strides(&self) -> (u64, u32, u64) {
        // A row of a message of at most 1 GiB has fewer pieces than that.
        let rows = u32::try_from(self.row.count).unwrap_or(u32::MAX);
        (self.row.stride as u64, rows, self.plane.stride as u64)
    }

    /// The offsets of the pieces in the memory.
    fn offsets(&self) -> impl Iterator<Item = usize> {
        let Strided {
            offset, row, plane, ..
        } = *self;
        (0..plane.count).flat_map(move |i| {
            (0..row.count).map(move |j| offset + i * plane.stride + j * row.stride)
        })
    }

    /// Copies all pieces to the bytes of `packed` from `start` on, by the CPU.
    pub(crate) fn gather(&self, packed: &Memory, start: usize) -> Result<()> {
        self.each(self.len(), |own, at, buffer| {
            self.memory.read(own, buffer)?;
            packed.write(start + at, buffer)
        })
    }

    /// Copies `len` bytes of `packed` from `start` on to the first pieces, by the CPU.
    pub(crate) fn scatter(&self, packed: &Memory, start: usize, len: u64) -> Result<()> {
        self.each(len as usize, |own, at, buffer| {
            packed.read(start + at, buffer)?;
            self.memory.write(own, buffer)
        })
    }

    /// The parameters of a kernel that gathers the pieces to the bytes at `packed`.
    pub(crate) fn gathering(&self, packed: u64) -> Pieces {
        let ((first, mut block), (row, rows, plane)) = (self.first(), self.strides());
        if self.count() == 1 {
            // No piece follows, so only the addresses limit the width of the words that are moved.
            block = block.next_multiple_of(16);
        }
        Pieces {
            first,
            packed,
            len: self.len() as u64,
            block,
            row,
            plane,
            arrival: 0,
            result: 0,
            rows,
            scatters: 0,
        }
    }

    /// Calls `copy` for the first `len` bytes, with their offsets in the memory and in a packed
    /// message, and a buffer of their length.
    fn each(
        &self,
        len: usize,
        mut copy: impl FnMut(usize, usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        /// Bytes of the buffer, and of that for longer pieces: a copy engine takes microseconds for each copy.
        const SHORT: usize = 4096;
        const MOST: usize = 1 << 20;
        let (mut short, mut long) = ([0; SHORT], Vec::new());
        let buffer = match self.block.min(len) {
            ..=SHORT => &mut short[..],
            most => {
                long.resize(most.min(MOST), 0);
                &mut long
            }
        };
        let mut at = 0;
        for piece in self.offsets() {
            let mut from = 0;
            while from < self.block {
                let n = buffer.len().min(self.block - from).min(len - at);
                if n == 0 {
                    return Ok(());
                }
                copy(piece + from, at, &mut buffer[..n])?;
                from += n;
                at += n;
            }
        }
        Ok(())
    }
}

const SLICE: &str = "slice memory";

/// The bytes from the first to the last of pieces of `one` bytes; `None` if they overflow.
fn extent(one: usize, level: Level) -> Option<usize> {
    match level.count.checked_sub(1) {
        Some(steps) => steps.checked_mul(level.stride)?.checked_add(one),
        None => Some(0),
    }
}

/// # Errors
/// `Invalid` if the pieces exceed the memory, or if they may overlap.
fn check(memory: &Memory, offset: usize, block: usize, row: Level, plane: Level) -> Result<()> {
    let whole = extent(block, row).and_then(|row| extent(row, plane));
    let end = whole.and_then(|whole| whole.checked_add(offset));
    if end.is_none_or(|end| end > memory.len()) {
        let what = format!(
            "{} x {} pieces of {block} bytes from {offset} on, every {} and {} bytes, exceed \
             {memory:?}",
            row.count, plane.count, row.stride, plane.stride
        );
        let error = Error::new(SLICE, Kind::Invalid, what);
        return Err(error.with_limit(memory.len(), "bytes"));
    }
    // Each level repeats the pieces of the other behind their end, or between each other.
    let apart = |one: usize, a: Level, b: Level| {
        let behind = |one, level: Level| level.count <= 1 || level.stride >= one;
        behind(one, a) && extent(one, a).is_some_and(|row| behind(row, b))
    };
    if !apart(block, row, plane) && !apart(block, plane, row) {
        let what = format!(
            "{} x {} pieces of {block} bytes, every {} and {} bytes, overlap; use larger \
             distances",
            row.count, plane.count, row.stride, plane.stride
        );
        return Err(Error::new(SLICE, Kind::Invalid, what));
    }
    Ok(())
}

/// The same bytes in the same order with the fewest pieces and levels.
fn merged(mut block: usize, mut row: Level, mut plane: Level) -> (usize, Level, Level) {
    if block == 0 || row.count == 0 || plane.count == 0 {
        return (0, Level { count: 0, ..ONCE }, ONCE);
    }
    for _ in 0..2 {
        if row.count == 1 {
            (row, plane) = (plane, ONCE);
        }
        if row.stride == block && row.count > 0 {
            (block, row) = (block * row.count, ONCE);
        }
    }
    if row.stride.checked_mul(row.count) == Some(plane.stride) && plane != ONCE {
        (row.count, plane) = (row.count * plane.count, ONCE);
    }
    (block, row, plane)
}

#[cfg(test)]
mod tests {
    use gdsync::Gpu;
    use gdsync::rdma::Device;
    use proptest::prelude::*;

    use super::*;
    use crate::path::{Paths, Rights};

    const LEN: usize = 512;

    /// The offsets of all bytes, in the order of the message; `None`: one exceeds the memory.
    fn bytes(offset: usize, block: usize, row: Level, plane: Level) -> Option<Vec<usize>> {
        let mut all = Vec::new();
        for (i, j) in (0..plane.count).flat_map(|i| (0..row.count).map(move |j| (i, j))) {
            let at = offset + i * plane.stride + j * row.stride;
            all.extend(at..at + block);
        }
        all.iter().all(|at| *at < LEN).then_some(all)
    }

    fn config() -> ProptestConfig {
        ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(4000)
        }
    }

    fn level() -> impl Strategy<Value = Level> {
        (0..70usize, 0..12usize).prop_map(|(stride, count)| Level { stride, count })
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn pieces_are_those_of_the_loops_and_overlaps_are_refused(
            offset in 0..80usize,
            block in 0..20usize,
            (row, plane) in (level(), level()),
        ) {
            thread_local! {
                static MEMORY: Memory = {
                    let paths = Paths::for_test(&Device::emulated(&Gpu::soft().unwrap()).unwrap());
                    Memory::new(paths.pinned(LEN, Rights::All).unwrap())
                };
            }
            let expected = bytes(offset, block, row, plane);
            let overlap = expected.as_ref().is_some_and(|all| {
                let mut once = all.clone();
                once.sort_unstable();
                once.dedup();
                once.len() < all.len()
            });
            let made = MEMORY.with(|memory| Strided::new(memory, offset, block, row, plane));
            match made {
                Ok(strided) => {
                    let all = expected.expect("inside the memory");
                    prop_assert!(!overlap);
                    prop_assert_eq!(strided.len(), all.len());
                    let pieces: Vec<_> = strided.offsets().collect();
                    let bytes = pieces.iter().flat_map(|at| *at..at + strided.block);
                    prop_assert!(bytes.eq(all));
                    prop_assert_eq!(pieces.len(), strided.count());
                    let listed = if strided.is_long() { 0 } else { pieces.len() };
                    prop_assert_eq!(strided.pieces().len(), listed);
                }
                // Rows that are neither behind nor between each other are refused without overlap.
                Err(_) => {
                    let nested = row.stride >= block && row.stride * row.count <= plane.stride;
                    let whole = expected.is_none_or(|all| all.is_empty());
                    prop_assert!(whole || overlap || !nested, "refused");
                }
            }
        }
    }
}
