//! Commands with an unwritable answer, and completion channels that programs close, leave no open
//! descriptors. It is the only test in the file because it counts the descriptors of the whole
//! process.

mod rig;

use std::os::fd::{FromRawFd, OwnedFd};

use rig::*;
use rustix::io::Errno;
use vmlx5_uverbs::UarMode;
use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::abi::mlx5;
use vmlx5_uverbs::address::LinkLayer;
use zerocopy::IntoBytes;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn no_descriptor_is_left_of_unanswered_commands_and_closed_channels() {
    let mut rig = Rig::new(LinkLayer::InfiniBand, UarMode::Static);
    let before = descriptors();
    let cmd = mlx5::AllocUcontextReqV2::default().changed(|a| a.total_num_bfregs = 16);
    // The core's answer has no memory; the driver's, after it, has.
    let at = rig.process.memory.addr();
    for response in [at - 8, NOWHERE] {
        let body = [GetContext { response }.as_bytes(), cmd.as_bytes()].concat();
        let result = rig.context.write(&plain(command::GET_CONTEXT, &body, 80));
        assert_eq!(result, Err(Errno::FAULT));
        assert_eq!(descriptors(), before);
    }
    rig.get_context().unwrap();
    assert_eq!(descriptors(), before + 3);
    let response = NOWHERE;
    let body = CreateCompChannel { response };
    let channel = plain(command::CREATE_COMP_CHANNEL, body.as_bytes(), 4);
    assert_eq!(rig.context.write(&channel), Err(Errno::FAULT));
    assert_eq!(descriptors(), before + 3);

    let kept = rig.channel();
    let before = descriptors();
    for round in 0..100 {
        let fd = rig.channel();
        // SAFETY: just created, and no other code owns it.
        drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        // The last channel stays until the next one is created.
        let now = descriptors();
        assert!(now <= before + 2, "round {round}: {now} after {before}");
    }
    // An open channel is still accepted.
    rig.cq(kept as i32);
}
