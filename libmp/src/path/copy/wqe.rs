//! WQEs: puts in pinned memory, for kernels. `device/mp_put.cu` has the same layout.

use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, Region, Word32, Word64};

use super::{Copier, Piece, Report, Span};
use crate::error::Result;
use crate::kernels::Patch;
use crate::path::{INLINE, MOST_PIECES};

/// Number of WQEs that are allocated at a time.
pub(super) const BLOCK: usize = 256;
/// Puts of a lane that are prepared or in flight at a time.
pub(super) const MOST: usize = 4096;

/// Offsets in a WQE: the opcode's word, the remote key and address, the number of pieces, the
/// pieces.
const KEY: usize = 4;
const ADDRESS: usize = 8;
const PIECES: usize = 16;
const FIRST: usize = 32;
/// Size of a piece in bytes: length, 4 unused bytes, address.
const PIECE: usize = 16;
/// Bytes of a WQE.
const LEN: usize = FIRST + MOST_PIECES * PIECE;
/// Offset of the captured bytes, after the only piece of that WQE.
const BYTES: usize = LEN - INLINE;
const _: () = assert!(FIRST + PIECE <= BYTES);
/// The opcode field: any opcode except a NOP.
const OPCODE: [u8; 4] = [0, 0, 0, 8];

/// WQEs in one allocation; after them a word for each WQE.
struct Block {
    memory: Region,
    /// By WQE: the serial number up to which its puts are done.
    done: Vec<Word64>,
    /// By WQE: the number of blocks that have done their part of its messages; empty before the first.
    reports: Vec<Report>,
}

/// The WQEs of a lane, in blocks of [`BLOCK`], and the word that stores that the lane failed.
pub(super) struct Wqes {
    gpu: Gpu,
    blocks: Vec<Block>,
    /// Not 0: no further put is executed.
    failed: Word32,
}

impl Wqes {
    pub fn new(gpu: &Gpu) -> Result<Wqes> {
        let mut wqes = Wqes {
            gpu: gpu.clone(),
            blocks: Vec::with_capacity(MOST / BLOCK),
            failed: gpu.alloc(MemoryKind::Pinned, 64)?.word32(0)?,
        };
        wqes.grow()?;
        Ok(wqes)
    }

    /// Adds a block.
    pub fn grow(&mut self) -> Result<()> {
        let words = BLOCK * LEN;
        let memory = self.gpu.alloc(MemoryKind::Pinned, words + 8 * BLOCK)?;
        let word = |at: usize| memory.word64(words + 8 * at);
        let done = (0..BLOCK).map(word).collect::<Result<_, _>>()?;
        let reports = Vec::new();
        self.blocks.push(Block {
            memory,
            done,
            reports,
        });
        Ok(())
    }

    /// The memory of a WQE, and its offset there.
    fn at(&self, at: usize) -> (&Region, usize) {
        (&self.blocks[at / BLOCK].memory, at % BLOCK * LEN)
    }

    pub fn done(&self, at: usize) -> &Word64 {
        &self.blocks[at / BLOCK].done[at % BLOCK]
    }

    /// The report of a WQE, if its block has reports.
    pub fn report(&self, at: usize) -> Option<&Report> {
        self.blocks[at / BLOCK].reports.get(at % BLOCK)
    }

    /// The address of the report of a WQE.
    pub fn make_report(&mut self, at: usize, copier: &Copier) -> Result<u64> {
        let reports = &mut self.blocks[at / BLOCK].reports;
        if reports.is_empty() {
            *reports = copier.reports(BLOCK)?;
        }
        Ok(reports[at % BLOCK].addr())
    }

    pub fn failed(&self) -> &Word32 {
        &self.failed
    }

    /// The memory of the first WQEs.
    #[cfg(test)]
    pub fn memory(&self) -> &Region {
        &self.blocks[0].memory
    }

    /// The WQE's address, for kernels.
    pub fn addr(&self, at: usize) -> u64 {
        let (memory, offset) = self.at(at);
        memory.addr().0 + offset as u64
    }

    /// The captured bytes of a put.
    pub fn captured(&self, at: usize, len: usize) -> Piece<'_> {
        let (region, offset) = self.at(at);
        Piece {
            region,
            offset: offset + BYTES,
            len,
        }
    }

    /// Captures bytes with a put.
    pub fn capture(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let (memory, offset) = self.at(at);
        Ok(memory.write(offset + BYTES, bytes)?)
    }

    /// Writes all fields of a WQE except its pieces.
    pub fn write(&self, at: usize, to: Span, pieces: usize) -> Result<()> {
        let mut head = [0; FIRST];
        head[..KEY].copy_from_slice(&OPCODE);
        head[KEY..ADDRESS].copy_from_slice(&to.key.to_be_bytes());
        head[ADDRESS..PIECES].copy_from_slice(&to.addr.to_be_bytes());
        head[PIECES..PIECES + 4].copy_from_slice(&(pieces as u32).to_ne_bytes());
        let (memory, offset) = self.at(at);
        Ok(memory.write(offset, &head)?)
    }

    /// Writes a piece of a WQE.
    pub fn write_piece(&self, at: usize, index: usize, piece: Piece<'_>) -> Result<()> {
        let mut b = [0; PIECE];
        b[..4].copy_from_slice(&(piece.len as u32).to_be_bytes());
        b[8..].copy_from_slice(&piece.addr().to_be_bytes());
        let (memory, offset) = self.at(at);
        Ok(memory.write(offset + FIRST + index * PIECE, &b)?)
    }

    /// The addresses of the fields that a kernel completes in a put of one piece: the destination
    /// of a `large` put, and length and offset if they are late.
    pub fn patch(&self, at: usize, large: bool, [length, offset]: [bool; 2]) -> Patch {
        let field = |wanted: bool, offset: usize| match wanted {
            true => self.addr(at) + offset as u64,
            false => 0,
        };
        Patch {
            control: self.addr(at),
            remote_address: field(large, ADDRESS),
            remote_key: field(large, KEY),
            length: field(length, FIRST),
            address: field(offset, FIRST + 8),
        }
    }
}
