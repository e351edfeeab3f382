//! A HIP GPU that is lost in the middle of a list, of a wait, of a copy: errors are typed and carry the
//! code, no call hangs, and dropping the remaining objects reports nothing.

mod common;
mod standin;

use common::*;
use gdsync::gpu::Condition;
use standin::{Control, Variant, inside, until};

/// HIP's code for a kernel that failed.
const LAUNCH_FAILURE: i32 = 719;

#[test]
fn each_later_call_says_that_the_gpu_is_lost() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let stream = gpu.stream().unwrap();
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let gate = memory.word32(0).unwrap();
    let wait = gdsync::rdma::Descriptor::wait_value(&gate, Condition::Eq, 1);
    post_on(&stream, &mut [], &[wait]).unwrap();
    until("the stream waits", || control.waiting() == 1);
    control.lose_device(LAUNCH_FAILURE, 0);
    let lost = |error: gdsync::Error| {
        assert_eq!(error.kind(), Kind::DeviceLost, "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("719") && text.contains("restart the process"),
            "{text}"
        );
    };
    lost(stream.is_idle().unwrap_err());
    let word = memory.word32(4).unwrap();
    let write = write32(&word, 1);
    lost(post_on(&stream, &mut [], &[write]).unwrap_err());
    lost(gpu.alloc(MemoryKind::Device, 64).unwrap_err());
    lost(gpu.stream().unwrap_err());
    lost(gpu.alloc(MemoryKind::Pinned, 1 << 20).unwrap_err());
}

/// The device is lost at each operation of a list in turn.
#[test]
fn a_list_that_loses_the_gpu_ends() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let stream = gpu.stream().unwrap();
    let memory = gpu.alloc(MemoryKind::Pinned, 256).unwrap();
    let words: Vec<_> = (0..12).map(|i| memory.word32(8 * i).unwrap()).collect();
    let list: Vec<_> = words.iter().map(|word| write32(word, 5)).collect();
    control.lose_device(LAUNCH_FAILURE, 4);
    // The call may have returned before the loss.
    let posted = post_on(&stream, &mut [], &list);
    let mut error = posted.err();
    until("the loss is seen", || {
        error = error.take().or_else(|| stream.is_idle().err());
        error.is_some()
    });
    assert_eq!(error.unwrap().kind(), Kind::DeviceLost);
    assert_eq!(words[11].load().unwrap(), 0);
}
