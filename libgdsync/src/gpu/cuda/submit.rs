//! Translation of memory operations into parameters of the driver.

use std::mem::MaybeUninit;

use gdsync_sys::cuda::types::CUstreamBatchMemOpParams as Params;
use gdsync_sys::cuda::{Cuda, consts};

use crate::error::{Error, Kind, Result};
use crate::gpu::driver::{Context, Handle, call};
use crate::memop::{Condition, Op, Width};

/// The maximum number of operations of one call: the driver's documentation says fewer than 256.
pub(super) const BATCH: usize = 255;

fn wait_flags(condition: Condition, flush: bool) -> u32 {
    let condition = match condition {
        Condition::Geq => consts::CU_STREAM_WAIT_VALUE_GEQ,
        Condition::Eq => consts::CU_STREAM_WAIT_VALUE_EQ,
        Condition::And => consts::CU_STREAM_WAIT_VALUE_AND,
        Condition::Nor => consts::CU_STREAM_WAIT_VALUE_NOR,
    };
    if flush {
        condition | consts::CU_STREAM_WAIT_VALUE_FLUSH
    } else {
        condition
    }
}

/// Translates one operation. Every write by this version of the call is fenced, even where no fence
/// is needed: the driver refuses the flag that would omit it.
#[inline]
fn translate(op: &Op) -> Option<Params> {
    const FENCED: u32 = consts::CU_STREAM_WRITE_VALUE_DEFAULT;
    Some(match *op {
        Op::Write {
            width, at, value, ..
        } => match width {
            Width::Bits32 => Params::write32(at.0, value as u32, FENCED),
            Width::Bits64 => Params::write64(at.0, value, FENCED),
        },
        Op::Wait {
            width,
            at,
            value,
            mask,
            condition,
            flush,
        } if mask == width.all() => match width {
            Width::Bits32 => Params::wait32(at.0, value as u32, wait_flags(condition, flush)),
            Width::Bits64 => Params::wait64(at.0, value, wait_flags(condition, flush)),
        },
        Op::Flush => Params::flush_remote_writes(),
        Op::Wait { .. } | Op::Copy { .. } | Op::Fence => return None,
    })
}

/// Most submissions have at most this many operations: a smaller array of parameters uses a page of
/// stack less.
const FEW: usize = 16;

/// Enqueues at most [`BATCH`] operations.
///
/// # Safety
/// The stream is a live one of the application's context.
pub(super) unsafe fn submit(
    cuda: &Cuda,
    context: &Context,
    stream: Handle,
    ops: &[Op],
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        match ops.len() {
            0..=FEW => submit_up_to::<FEW>(cuda, context, stream, ops),
            _ => submit_up_to::<BATCH>(cuda, context, stream, ops),
        }
    }
}

unsafe fn submit_up_to<const N: usize>(
    cuda: &Cuda,
    context: &Context,
    stream: Handle,
    ops: &[Op],
) -> Result<()> {
    const OPERATION: &str = "submit batch";
    let mut params = [const { MaybeUninit::<Params>::uninit() }; N];
    if ops.len() > N {
        let what = format!("{} operations do not fit into one submission", ops.len());
        return Err(
            Error::new(OPERATION, Kind::Unsupported, what).with_limit(N as u64, "operations")
        );
    }
    for (param, op) in params.iter_mut().zip(ops) {
        let Some(translated) = translate(op) else {
            let what = format!("CUDA does not support the operation {op:?}");
            return Err(Error::new(OPERATION, Kind::Unsupported, what));
        };
        param.write(translated);
    }
    let _app = context.enter_to_enqueue()?;
    // SAFETY: the first `ops.len()` parameters are initialised; the driver copies them before it
    // returns. The caller promises a live stream.
    let (params, count) = (params.as_mut_ptr().cast(), ops.len() as u32);
    let enqueued = call!(cuda.cuStreamBatchMemOp_v2(stream.cast(), count, params, 0));
    context.check(enqueued, OPERATION)
}
