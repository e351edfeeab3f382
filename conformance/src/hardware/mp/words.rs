//! Waits for words of registered memory, by the CPU and by streams: each condition against words on
//! both sides of its limit, of 32 and 64 bits. libmp's streams compared `EQ` and `AND` as `GEQ`, its
//! CPU `EQ` as *less or equal* and ready words without a wrap; the words here differ in these cases.

use std::time::Duration;

use gdsync::gpu::{
    Condition::{And, Eq, Geq, Nor},
    MemoryKind,
};
use mp::bootstrap::Local;
use mp::{Context, Kind, Slice};

use super::run::gpu_of;
use crate::rig::Runtime;
use crate::rig::limits::time_limit;
use crate::rig::verdict::{Verdict, ensure};

/// Waits for a word of `len` bytes in memory of this kind.
///
/// # Errors
/// The first wait that passes too early, or not at all.
pub fn words(runtime: Runtime, kind: MemoryKind, len: usize) -> Verdict {
    let alone = Local::ranks(1).remove(0);
    let gpu = gpu_of(runtime, 0, 1)?;
    let ctx = Context::builder().bootstrap(alone).gpu(&gpu).build()?;
    let memory = ctx.alloc(kind, 64)?;
    let word = memory.slice(8, len)?;
    let max = u64::MAX >> (64 - 8 * len);
    let top = max ^ max >> 1;
    for (condition, value, misses, meets) in [
        (Geq, 5, 4, 5),
        (Geq, 5, 4, 6),
        // Cyclic: 1 follows the greatest value, and half of all values are less.
        (Geq, max, max - 1, 1),
        (Geq, 1, max, 2),
        (Geq, 0, top, top - 1),
        (Eq, 5, 6, 5),
        (Eq, 5, 4, 5),
        (Eq, 0, max, 0),
        (Eq, max, 0, max),
        (And, 0b10, 0b1101, 0b10),
        (And, 0b110, 0b1000, 0b100),
        (And, top, top - 1, top | 1),
        (And, max, 0, top),
        (Nor, 1, max - 1, 2),
        (Nor, 0, max, max - 1),
        (Nor, max - 1, 1, 0),
        (Nor, top, top - 1, top - 2),
    ] {
        let case = format!("{} bits, {condition:?} {value:#x}", 8 * len);
        store(&ctx, &word, misses)?;
        let early = ctx.wait_value(None, &word, condition, value, Duration::ZERO);
        let early = early.err().map(|e| e.kind());
        ensure(early == Some(Kind::Timeout), || {
            format!("{case}: the CPU does not wait while the word is {misses:#x}: {early:?}")
        })?;
        let stream = ctx.gpu().stream()?;
        ctx.wait_value_on(&stream, None, &word, condition, value)?;
        // Stored once more: the stream looks at it again.
        store(&ctx, &word, misses)?;
        ensure(!stream.synchronize(Duration::from_millis(2))?, || {
            format!("{case}: the stream does not wait while the word is {misses:#x}")
        })?;
        store(&ctx, &word, meets)?;
        ctx.wait_value(None, &word, condition, value, time_limit())?;
        ensure(stream.synchronize(time_limit())?, || {
            format!("{case}: the stream waits while the word is {meets:#x}")
        })?;
    }
    for (condition, value) in [(And, 0), (Nor, max)] {
        let refused = [
            ctx.wait_value(None, &word, condition, value, time_limit()),
            ctx.wait_value_on(&ctx.gpu().stream()?, None, &word, condition, value),
        ];
        for refused in refused {
            let kind = refused.err().map(|e| e.kind());
            ensure(kind == Some(Kind::Invalid), || {
                format!("{condition:?} {value:#x}: {kind:?}")
            })?;
        }
    }
    ctx.close(time_limit())?;
    Ok(())
}

/// Stores the word by a stream, and waits for it.
fn store(ctx: &Context, word: &Slice, value: u64) -> Verdict {
    let stream = ctx.gpu().stream()?;
    ctx.write_value_on(&stream, word, value)?;
    ctx.synchronize(&stream, time_limit())?;
    Ok(())
}
