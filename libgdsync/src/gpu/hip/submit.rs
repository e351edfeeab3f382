//! Memory operations as calls of the HIP runtime, one for each. `hipStreamBatchMemOp` of newer releases
//! is not used: a kernel executes its operations in any order, and its waits have no masks.

use gdsync_sys::hip::types::hipStream_t;
use gdsync_sys::hip::{Hip, consts};

use crate::error::{Error, Kind, Result};
use crate::gpu::driver::{Called, Context, Handle, call};
use crate::memop::{Condition, DevicePtr, Op, Width};

/// The maximum number of operations of one submission; see `WaitLimits::SUBMISSIONS`.
pub(super) const BATCH: usize = 8;

fn wait_flags(condition: Condition) -> u32 {
    match condition {
        Condition::Geq => consts::hipStreamWaitValueGte,
        Condition::Eq => consts::hipStreamWaitValueEq,
        Condition::And => consts::hipStreamWaitValueAnd,
        Condition::Nor => consts::hipStreamWaitValueNor,
    }
}

/// Whether HIP has the operation.
fn is_known(op: &Op) -> bool {
    matches!(op, Op::Write { .. } | Op::Wait { flush: false, .. })
}

/// Enqueues the write of a word.
///
/// # Safety
/// The stream is live, and the address is in memory of the device.
pub(super) unsafe fn write(
    hip: &Hip,
    stream: hipStream_t,
    width: Width,
    at: DevicePtr,
    value: u64,
) -> Called {
    let at = at.0 as *mut _;
    match width {
        Width::Bits32 => call!(hip.hipStreamWriteValue32(stream, at, value as u32, 0)),
        Width::Bits64 => call!(hip.hipStreamWriteValue64(stream, at, value, 0)),
    }
}

/// Enqueues one operation; `None`: HIP lacks it.
///
/// # Safety
/// As [`write`].
unsafe fn one(hip: &Hip, stream: hipStream_t, op: &Op) -> Option<Called> {
    match *op {
        Op::Write {
            width, at, value, ..
        } => {
            // SAFETY: the caller's promise.
            Some(unsafe { write(hip, stream, width, at, value) })
        }
        Op::Wait {
            width,
            at,
            value,
            mask,
            condition,
            flush: false,
        } => {
            let (at, flags) = (at.0 as *mut _, wait_flags(condition));
            Some(match width {
                Width::Bits32 => {
                    let (value, mask) = (value as u32, mask as u32);
                    call!(hip.hipStreamWaitValue32(stream, at, value, flags, mask))
                }
                Width::Bits64 => call!(hip.hipStreamWaitValue64(stream, at, value, flags, mask)),
            })
        }
        Op::Wait { .. } | Op::Flush | Op::Copy { .. } | Op::Fence => None,
    }
}

/// Enqueues operations in their order.
///
/// # Errors
/// `Unsupported` for an operation that HIP lacks; then none is enqueued. If the runtime refuses one,
/// the earlier ones stay enqueued.
///
/// # Safety
/// As [`write`].
pub(super) unsafe fn submit(
    hip: &Hip,
    context: &Context,
    stream: Handle,
    ops: &[Op],
) -> Result<()> {
    const OPERATION: &str = "submit batch";
    if let Some(op) = ops.iter().find(|op| !is_known(op)) {
        let what = format!("HIP does not support the operation {op:?}");
        return Err(Error::new(OPERATION, Kind::Unsupported, what));
    }
    let _app = context.enter_to_enqueue()?;
    for op in ops {
        // SAFETY: the caller's promise.
        if let Some(enqueued) = unsafe { one(hip, stream.cast(), op) } {
            context.check(enqueued, OPERATION)?;
        }
    }
    Ok(())
}
