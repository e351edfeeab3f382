//! The driver's call for memory operations without the library, as a baseline.

use anyhow::{Result, ensure};
use gdsync::gpu::{MemoryKind, Region, Stream};
use gdsync_sys::cuda::types::{CUstream, CUstreamBatchMemOpParams};
use gdsync_sys::cuda::{Cuda, consts};

use crate::gpu::{check, driver};

/// Most operations of one call.
const MOST: usize = 64;

/// Calls of `cuStreamBatchMemOp_v2` on a stream, each with the same number of writes.
pub struct Bare {
    cuda: &'static Cuda,
    stream: CUstream,
    /// Keeps the stream alive.
    _owner: Stream,
    /// Keeps the target words alive.
    _words: Region,
    writes: Vec<CUstreamBatchMemOpParams>,
}

impl Bare {
    /// For a CUDA stream; `None` for streams of other runtimes.
    pub fn new(stream: &Stream) -> Result<Option<Bare>> {
        let Some((cuda, raw)) = driver(stream)? else {
            return Ok(None);
        };
        let words = stream.gpu().alloc(MemoryKind::Pinned, 8 * MOST)?;
        // A doorbell record and a doorbell in turn, as a send writes them.
        let write = |i: usize| {
            let at = words.addr().0 + 8 * i as u64;
            match i % 2 {
                0 => {
                    CUstreamBatchMemOpParams::write32(at, 1, consts::CU_STREAM_WRITE_VALUE_DEFAULT)
                }
                _ => {
                    CUstreamBatchMemOpParams::write64(at, 1, consts::CU_STREAM_WRITE_VALUE_DEFAULT)
                }
            }
        };
        Ok(Some(Bare {
            cuda,
            stream: raw,
            writes: (0..MOST).map(write).collect(),
            _words: words,
            _owner: stream.clone(),
        }))
    }

    /// One call of `writes` writes, at most 64.
    pub fn call(&mut self, writes: usize) -> Result<()> {
        ensure!(writes <= MOST, "{writes} writes in a bare call");
        // SAFETY: a live stream of the current context, and so many parameters, which write to
        // words that live as long as this. They are 8 bytes each, aligned.
        let called = unsafe {
            (self.cuda.cuStreamBatchMemOp_v2)(
                self.stream,
                writes as u32,
                self.writes.as_mut_ptr(),
                0,
            )
        };
        check(called)
    }
}
