//! Completion channels that programs make and close one after the other leave no descriptors
//! behind. It counts those of the process, so it is the only test here.

mod rig;

use std::os::fd::{FromRawFd, OwnedFd};

use rig::Rig;
use vmlx5_uverbs::UarMode;
use vmlx5_uverbs::address::LinkLayer;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn closed_channels_leave_nothing_behind() {
    let mut rig = Rig::new(LinkLayer::InfiniBand, UarMode::Dynamic);
    rig.get_context().unwrap();
    let kept = rig.channel();
    let before = descriptors();
    for round in 0..100 {
        let fd = rig.channel();
        // SAFETY: just made, and nobody else's.
        drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        // The last one's, until there is another.
        let now = descriptors();
        assert!(now <= before + 2, "round {round}: {now} after {before}");
    }
    // One that is open is known still.
    rig.cq(kept as i32);
}
