//! Copies between host and device memory, independent of the application's streams, on a stream of
//! the library's context.
//!
//! The driver writes few bytes by the engine that runs kernels, not by a copy engine. While a
//! kernel of the application's context spins, this write waits milliseconds for its time slice.
//! Copies of several rows always use a copy engine, and memory operations use neither engine.
//! Therefore the library writes few bytes as two rows and single words.

use std::time::{Duration, Instant};

use super::calls::{Called, Handle, INVALID_VALUE, MISSING, NOT_READY};
use super::context::Context;
use crate::error::{Error, Kind, Result};
use gds_step::Mutex;

/// Bytes of the staging buffer, and the maximum of one copy.
const STAGE: usize = 1 << 20;

/// From this size in bytes on, the driver uses a copy engine (measured: 32 KiB).
const LARGE: usize = 32 << 10;

/// The time limit of a copy. A copy engine that exceeds it is stuck, or busy with work that never
/// ends.
const LIMIT: Duration = Duration::from_secs(10);

/// A stream of the library's context, with pinned staging memory.
#[derive(Default)]
pub(crate) struct Engine(Mutex<Option<Stage>>);

struct Stage {
    stream: Handle,
    memory: *mut u8,
}

// SAFETY: a handle of the driver, and memory that only the holder of the lock accesses.
unsafe impl Send for Stage {}

/// The direction of a copy.
enum Direction<'a> {
    Out(&'a mut [u8]),
    In(&'a [u8]),
}

impl Engine {
    /// Makes the engine of `context`, which must outlive the engine.
    pub fn new(context: &Context) -> Result<Engine> {
        const OPERATION: &str = "create copy engine";
        let _own = context.enter_own()?;
        let (mut stream, mut memory) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: creates objects of the current context, the library's.
        unsafe {
            let made = context.driver.stream_create(&mut stream, true);
            context.check(made, OPERATION)?;
            let made = context.driver.host_alloc(&mut memory, STAGE);
            context.check(made, OPERATION)?;
        }
        let stage = Stage {
            stream,
            memory: memory.cast(),
        };
        Ok(Engine(Mutex::new(Some(stage))))
    }

    /// Copies bytes out of device memory.
    ///
    /// # Safety
    /// The memory is valid on this device.
    pub unsafe fn read(&self, context: &Context, at: u64, into: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy(context, at, Direction::Out(into)) }
    }

    /// Copies bytes into device memory. They are visible to the GPU when the call returns.
    ///
    /// # Safety
    /// As [`Engine::read`].
    pub unsafe fn write(&self, context: &Context, at: u64, from: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy(context, at, Direction::In(from)) }
    }

    unsafe fn copy(&self, context: &Context, at: u64, mut direction: Direction<'_>) -> Result<()> {
        const OPERATION: &str = "copy device memory";
        let _own = context.enter_own()?;
        let mut guard = self.0.lock();
        let Some(stage) = guard.take() else {
            let what = format!(
                "an earlier copy of {} did not end; restart the process",
                context.name()
            );
            return Err(Error::new(OPERATION, Kind::System, what));
        };
        let driver = context.driver;
        let len = match &direction {
            Direction::Out(into) => into.len(),
            Direction::In(from) => from.len(),
        };
        for done in (0..len).step_by(STAGE) {
            let part = (len - done).min(STAGE);
            let here = at + done as u64;
            // SAFETY: the staging buffer has room for `part`, and the lock reserves it for this
            // thread; the caller promises the device range.
            let copied = unsafe {
                match &direction {
                    Direction::Out(_) => driver.copy_out(stage.memory, here, part, stage.stream),
                    Direction::In(from) => {
                        stage.memory.copy_from(from[done..].as_ptr(), part);
                        stage.put(context, here, part)
                    }
                }
            };
            // The buffer must be unused before the next part: if `finish` fails, it is not used
            // again.
            finish(context, stage.stream, OPERATION)?;
            if let Err(e) = context.check(copied, OPERATION) {
                *guard = Some(stage);
                return Err(e);
            }
            if let Direction::Out(into) = &mut direction {
                // SAFETY: the copy into the staging buffer is done, and no other thread writes the
                // buffer.
                unsafe { into[done..].as_mut_ptr().copy_from(stage.memory, part) };
            }
        }
        *guard = Some(stage);
        Ok(())
    }

    /// Zeroes device memory.
    ///
    /// # Safety
    /// The memory is valid on this device.
    pub unsafe fn zero(&self, context: &Context, at: u64, len: usize) -> Result<()> {
        const OPERATION: &str = "zero device memory";
        let _own = context.enter_own()?;
        let guard = self.0.lock();
        let Some(stage) = &*guard else {
            let what = format!(
                "an earlier copy of {} did not end; restart the process",
                context.name()
            );
            return Err(Error::new(OPERATION, Kind::System, what));
        };
        // SAFETY: the caller's promise.
        let set = unsafe { context.driver.zero(at, len, stage.stream) };
        context.check(set, OPERATION)?;
        finish(context, stage.stream, OPERATION)
    }
}

impl Stage {
    /// Enqueues the copy of the staged bytes to `at`. Each aligned word of 4 or 8 bytes is written
    /// as a whole, in order of ascending addresses.
    ///
    /// # Safety
    /// `len` bytes are staged and valid at `at`.
    unsafe fn put(&self, context: &Context, at: u64, len: usize) -> Called {
        let driver = context.driver;
        let plain = |to: u64, done: usize, len: usize| {
            // SAFETY: the staged bytes from `done` on are copied to their part of the caller's range.
            unsafe { driver.copy_in(to, self.memory.add(done), len, self.stream) }
        };
        if len >= LARGE {
            return plain(at, 0, len);
        }
        let mut done = 0;
        let mut last = Called::DONE;
        while done < len {
            let here = at + done as u64;
            let left = len - done;
            // SAFETY: as above.
            let (enqueued, step) = unsafe {
                let from = self.memory.add(done);
                if here.is_multiple_of(8) && left >= 16 {
                    let step = left / 16 * 16;
                    let rows = self.two_rows(context, from, here, step);
                    if rows.code == MISSING {
                        return plain(here, done, left);
                    }
                    (rows, step)
                } else if here.is_multiple_of(8) && left >= 8 {
                    let value = from.cast::<u64>().read_unaligned();
                    (self.word(context, from, (here, value), 8), 8)
                } else if here.is_multiple_of(4) && left >= 4 {
                    let value = from.cast::<u32>().read_unaligned();
                    (self.word(context, from, (here, value.into()), 4), 4)
                } else {
                    // At most three bytes are left, which need a plain copy.
                    let step = left.min(4 - (here % 4) as usize);
                    (plain(here, done, step), step)
                }
            };
            if !enqueued.is_ok() {
                return enqueued;
            }
            last = enqueued;
            done += step;
        }
        last
    }

    /// Enqueues the write of one word, staged at `from`: its address and value. Memory of an
    /// application's pool accepts no memory operations from this context; it is written by a copy.
    ///
    /// # Safety
    /// The address is in valid device memory, and the word is staged.
    unsafe fn word(
        &self,
        context: &Context,
        from: *const u8,
        (to, value): (u64, u64),
        len: usize,
    ) -> Called {
        let driver = context.driver;
        // SAFETY: the caller's promise.
        unsafe {
            let written = driver.write_word(self.stream, to, value, len);
            match written.code {
                INVALID_VALUE => driver.copy_in(to, from, len, self.stream),
                _ => written,
            }
        }
    }

    /// Enqueues a copy of `len` bytes, a multiple of 16, as two rows that are adjacent at the
    /// destination and separate at the source.
    ///
    /// # Safety
    /// `len` bytes, fewer than [`LARGE`], are staged at `from`.
    unsafe fn two_rows(&self, context: &Context, from: *mut u8, to: u64, len: usize) -> Called {
        let half = len / 2;
        let pitch = STAGE / 2;
        // SAFETY: with so few staged bytes, the second half of the staging buffer is unused and has
        // room for them.
        unsafe {
            from.add(pitch).copy_from(from.add(half), half);
            context
                .driver
                .copy_two_rows(to, from, pitch, half, self.stream)
        }
    }
}

/// Waits until a stream of the library has run its copies.
///
/// # Errors
/// `Timeout` after [`LIMIT`]; errors of the driver.
pub(super) fn finish(context: &Context, stream: Handle, operation: &'static str) -> Result<()> {
    let start = Instant::now();
    loop {
        // SAFETY: a live stream of the library.
        let asked = unsafe { context.driver.stream_query(stream) };
        match asked.code {
            NOT_READY if start.elapsed() < LIMIT => std::hint::spin_loop(),
            NOT_READY => {
                let what = format!("{} did not finish a copy within {LIMIT:?}", context.name());
                return Err(Error::new(operation, Kind::Timeout, what));
            }
            _ => return context.check(asked, operation),
        }
    }
}
