//! The memory of messages: buffers of each kind, bytes that distinguish one message from another,
//! and the value of bytes that have not been written.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, Region};
use mp::{Context, Memory};

use crate::rig::limits::time_limit;
use crate::rig::verdict::{Verdict, ensure};

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// Device memory of the GPU.
    Device,
    /// Host memory that the library allocates.
    Pinned,
    /// A vector of the application, adopted by the library.
    Pageable,
    /// Registered memory of the application.
    Registered,
}

/// A buffer of one kind.
#[derive(Debug)]
pub struct Buffer {
    memory: Memory,
    kind: BufferKind,
    lent: Option<Lent>,
}

impl Buffer {
    /// A buffer of at least `len` bytes.
    pub fn new(ctx: &Context, kind: BufferKind, len: usize) -> Verdict<Buffer> {
        let mut lent = None;
        let memory = match kind {
            BufferKind::Device => ctx.alloc(MemoryKind::Device, len)?,
            BufferKind::Pinned => ctx.alloc(MemoryKind::Pinned, len)?,
            BufferKind::Pageable => ctx.adopt_vec(vec![0; len]).map_err(|(_, e)| e)?,
            BufferKind::Registered => {
                let foreign = lent.insert(Lent::new(len));
                // SAFETY: the memory stays to the end of the process, and `give_back` returns it
                // for other uses only after the registration is gone.
                unsafe { ctx.register_host(foreign.at as *mut u8, len)? }
            }
        };
        Ok(Buffer { memory, kind, lent })
    }

    /// The buffer.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Frees it, which must succeed: all operations on it have ended.
    pub fn give_back(self, ctx: &Context) -> Verdict {
        let Buffer { memory, kind, lent } = self;
        if kind == BufferKind::Pageable {
            // The background thread releases requests that were dropped, a moment later.
            let mut left = Some(memory);
            let host = ctx.gpu().host();
            let deadline = host.now() + time_limit();
            while host.now() < deadline
                && let Some(memory) = left.take()
            {
                ctx.progress();
                let taken = memory.into_vec(Duration::from_millis(1));
                left = taken.err().map(|(memory, _)| memory);
            }
            return ensure(left.is_none(), || format!("{left:?} cannot be taken back"));
        }
        drop(memory);
        if let Some(lent) = lent {
            lent.give_back();
        }
        Ok(())
    }
}

/// Memory of the application that stays to the end of the process, because streams and drivers may
/// still access it, and that is used again.
#[derive(Debug)]
struct Lent {
    at: usize,
    len: usize,
}

static POOL: Mutex<Vec<Lent>> = Mutex::new(Vec::new());

impl Lent {
    fn new(len: usize) -> Lent {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = pool.iter().position(|lent| lent.len >= len);
        match fits {
            Some(fits) => pool.swap_remove(fits),
            None => Lent {
                at: Box::leak(vec![0_u8; len].into_boxed_slice()).as_mut_ptr() as usize,
                len,
            },
        }
    }

    fn give_back(self) {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        pool.push(self);
    }
}

/// Value of bytes that have not been written.
pub const POISON: u8 = 0xee;

/// Number of offsets where a message's bytes may begin in [`Ink::bytes`].
pub const WINDOWS: usize = 1 << 16;

/// The contents of slots: each message is a window, at its own offset, of a long row of random
/// bytes.
#[derive(Clone, Debug)]
pub struct Ink {
    /// The row.
    pub bytes: Arc<Vec<u8>>,
    /// A copy of the row that streams can access.
    pub row: Region,
    /// A slot of poison that streams can access.
    pub poison: Region,
}

impl Ink {
    /// Ink for slots of `slot` bytes; the row is the same on every rank.
    pub fn new(gpu: &Gpu, slot: usize) -> Verdict<Ink> {
        let mut rng = fastrand::Rng::with_seed(0x1d8e_4e27_c47d_124f);
        let mut bytes = vec![0; WINDOWS + slot];
        rng.fill(&mut bytes);
        let row = gpu.alloc(MemoryKind::Pinned, bytes.len())?;
        row.write(0, &bytes)?;
        let poison = gpu.alloc(MemoryKind::Pinned, slot)?;
        poison.write(0, &vec![POISON; slot])?;
        Ok(Ink {
            bytes: Arc::new(bytes),
            row,
            poison,
        })
    }
}
