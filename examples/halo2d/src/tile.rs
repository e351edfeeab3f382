//! The memory of a tile: two fields with their halos, the buffers, and the transfers of an
//! iteration, computed once.

use mp::gdsync::gpu::MemoryKind;
use mp::{Context, Memory, Result, Slice};
use mp_examples::kernels::{Step, Strip, WORD};

use crate::grid::{Direction, Tile};

/// Longest column, in cells, that is sent or received in place; longer ones use a buffer.
pub const STRIDED_MAX: u32 = 24;

/// A byte pattern that no cell has: it reveals a halo that was not received.
const POISON: u8 = 0xa5;

/// The work of one iteration, with one field as the past and the other as the future.
pub struct Phase {
    /// The parameters of the kernels.
    pub step: Step,
    /// Copies of columns into buffers, before the sends.
    pub pack: Vec<Strip>,
    /// The data of each send, by direction: pieces of memory, in order.
    pub sends: [Vec<Slice>; 4],
    /// The memory of each receive, by the direction in which its message travels.
    pub receives: [Vec<Slice>; 4],
    /// Copies of buffers into columns, after the receives.
    pub unpack: Vec<Strip>,
}

/// The memory of one tile.
pub struct TileMemory {
    width: u32,
    height: u32,
    fields: [Memory; 2],
    /// For each field, a buffer of two columns: one to send, one to receive.
    buffers: [Memory; 2],
}

impl TileMemory {
    /// Allocates memory for a tile, and fills it with [`POISON`].
    ///
    /// # Errors
    /// The errors of allocations.
    pub fn new(ctx: &Context, kind: MemoryKind, tile: &Tile) -> Result<TileMemory> {
        let (width, height) = (tile.width(), tile.height());
        let field = (width as usize + 2) * (height as usize + 2) * WORD;
        // Each column, sent and received, may have a buffer: a long column has one at both ends.
        let buffer = 4 * height as usize * WORD;
        let alloc = |len: usize| {
            let memory = ctx.alloc(kind, len)?;
            memory.write(0, &vec![POISON; len])?;
            Ok::<_, mp::Error>(memory)
        };
        Ok(TileMemory {
            width,
            height,
            fields: [alloc(field)?, alloc(field)?],
            buffers: [alloc(buffer)?, alloc(buffer)?],
        })
    }

    /// All memory, for a caller that must keep it.
    pub fn all(&self) -> [Memory; 4] {
        let [u, v] = self.fields.clone();
        let [a, b] = self.buffers.clone();
        [u, v, a, b]
    }

    /// The offset in bytes of the cell in this column and row of a field; cells of the tile count
    /// from 1.
    fn offset(&self, column: u32, row: u32) -> usize {
        (row as usize * (self.width as usize + 2) + column as usize) * WORD
    }

    /// Writes the tile's cells, row by row, into field `index`.
    ///
    /// # Errors
    /// The errors of writes.
    pub fn write(&self, index: usize, cells: &[u64]) -> Result<()> {
        let mut bytes = vec![0; self.width as usize * WORD];
        for (row, cells) in (1..).zip(cells.chunks(self.width as usize)) {
            for (to, cell) in bytes.chunks_exact_mut(WORD).zip(cells) {
                to.copy_from_slice(&cell.to_ne_bytes());
            }
            self.fields[index].write(self.offset(1, row), &bytes)?;
        }
        Ok(())
    }

    /// Reads the tile's cells, row by row, from field `index`.
    ///
    /// # Errors
    /// The errors of reads.
    pub fn read(&self, index: usize) -> Result<Vec<u64>> {
        let mut cells = Vec::new();
        let mut bytes = vec![0; self.width as usize * WORD];
        for row in 1..=self.height {
            self.fields[index].read(self.offset(1, row), &mut bytes)?;
            let (words, _) = bytes.as_chunks();
            cells.extend(words.iter().copied().map(u64::from_ne_bytes));
        }
        Ok(cells)
    }

    /// The work of an iteration that computes field `1 - past` from field `past`.
    ///
    /// # Errors
    /// None in practice: every piece is inside its memory.
    pub fn phase(&self, past: usize) -> Result<Phase> {
        let (width, height) = (self.width, self.height);
        let strided = height <= STRIDED_MAX;
        let field = &self.fields[past];
        let [from, to] = [past, 1 - past].map(|i| self.fields[i].region().addr());
        let row = |y| {
            let cells = field.slice(self.offset(1, y), width as usize * WORD);
            cells.map(|cells| vec![cells])
        };
        let column = |x| {
            (1..=height)
                .map(|y| field.slice(self.offset(x, y), WORD))
                .collect::<Result<Vec<Slice>>>()
        };
        let mut phase = Phase {
            step: Step::new(from, to, width, height),
            pack: Vec::new(),
            // North and south: rows go from field to field.
            sends: [row(1)?, row(height)?, Vec::new(), Vec::new()],
            receives: [row(height + 1)?, row(0)?, Vec::new(), Vec::new()],
            unpack: Vec::new(),
        };
        let (west, east) = (Direction::West as usize, Direction::East as usize);
        phase.sends[west] = vec![self.pack(past, &mut phase.pack, 1, 0)?];
        phase.receives[east] = vec![self.unpack(past, &mut phase.unpack, 0, 1)?];
        if strided {
            phase.sends[east] = column(width)?;
            phase.receives[west] = column(width + 1)?;
        } else {
            phase.sends[east] = vec![self.pack(past, &mut phase.pack, width, 2)?];
            phase.receives[west] = vec![self.unpack(past, &mut phase.unpack, width + 1, 3)?];
        }
        Ok(phase)
    }

    /// The `index`-th buffer of a field, with room for one column.
    fn buffer(&self, past: usize, index: usize) -> Result<Slice> {
        let len = self.height as usize * WORD;
        self.buffers[past].slice(index * len, len)
    }

    /// Adds a copy of column `x` of a field into a buffer to `copies`, and returns the buffer.
    fn pack(&self, past: usize, copies: &mut Vec<Strip>, x: u32, index: usize) -> Result<Slice> {
        let buffer = self.buffer(past, index)?;
        copies.push(Strip {
            from: self.column(past, x),
            to: address(&buffer),
            from_step: self.width + 2,
            to_step: 1,
            cells: u64::from(self.height),
        });
        Ok(buffer)
    }

    /// Adds a copy of a buffer into column `x` of a field to `copies`, and returns the buffer.
    fn unpack(&self, past: usize, copies: &mut Vec<Strip>, x: u32, index: usize) -> Result<Slice> {
        let buffer = self.buffer(past, index)?;
        copies.push(Strip {
            from: address(&buffer),
            to: self.column(past, x),
            from_step: 1,
            to_step: self.width + 2,
            cells: u64::from(self.height),
        });
        Ok(buffer)
    }

    /// The address of the first cell of the tile's column `x`.
    fn column(&self, past: usize, x: u32) -> u64 {
        self.fields[past].region().addr().0 + self.offset(x, 1) as u64
    }
}

fn address(slice: &Slice) -> u64 {
    slice.memory().region().addr().0 + slice.offset() as u64
}
