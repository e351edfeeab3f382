//! How payload that a NIC wrote to GPU memory becomes visible to streams: gdsync's choice for the
//! capabilities of the GPU.

use gdsync::gpu::{Consistency, MemoryKind};

use crate::Report;
use crate::uses::{ERROR, PAYLOAD, Use, caps, setting};

/// The policy, and its reason.
pub(crate) fn policy(report: &Report) -> Use {
    let (caps, whose) = caps(report);
    let variable = Consistency::VARIABLE;
    let word = setting(report, variable.name);
    let set = format!("{}={word}", variable.name);
    let Some((_, wish)) = variable.meaning(word) else {
        return Use::new(PAYLOAD, ERROR, format!("{set}, but {}", variable.known()));
    };
    let kept = Consistency::restrict_to(wish, caps).and_then(|caps| {
        // Every NIC that is not virtual supports READ.
        Consistency::choose(MemoryKind::Device, &caps, true)
    });
    let (choice, why) = match kept {
        Err(_) => {
            return Use::new(
                PAYLOAD,
                ERROR,
                format!("{set}, which {whose} does not support"),
            );
        }
        Ok(Consistency::Ordered) => (
            "nothing: NIC writes reach the GPU in order",
            format!("{whose} guarantees the order"),
        ),
        Ok(Consistency::Flush) => (
            "waits that flush",
            format!("streams of {whose} can flush, and the order of NIC writes is not guaranteed"),
        ),
        Ok(Consistency::HostFlag) => (
            "flushes by the CPU: after its wait, a stream writes a word that requests one",
            format!(
                "{whose} does not guarantee the order of NIC writes, and its streams cannot flush"
            ),
        ),
        Ok(_) => (
            "READs by the NIC: after its wait, a stream writes the doorbell of a READ",
            format!(
                "{whose} does not guarantee the order of NIC writes, and neither its streams nor \
                 the CPU can flush"
            ),
        ),
    };
    Use::new(PAYLOAD, choice, if wish.is_some() { set } else { why })
}
