//! How streams come to see payload that a NIC wrote to GPU memory: what gdsync's
//! `Device::consistency` comes to, concluded from facts.

use crate::Report;
use crate::cuda::Consistency;
use crate::uses::{ERROR, PAYLOAD, Use, chosen, on_cuda};

/// The choices, in the order in which they are tried.
const ORDERED: &str = "nothing: the GPU sees a NIC's writes in their order";
const FLUSH: &str = "waits that flush";
const HOST: &str = "flushes by the CPU: a stream asks for one behind its wait, by a word";
const READ: &str = "READs by the NIC: a stream rings for one behind its wait";

/// The policy, and why that.
pub(crate) fn policy(report: &Report) -> Use {
    let (ordering, flush, host, whose) = match chosen(report).filter(|_| on_cuda(report)) {
        Some(gpu) => (
            gpu.writes_ordering,
            gpu.memory_operations.flush,
            gpu.host_flush,
            format!("GPU {}", gpu.index),
        ),
        None => (0, true, true, "the software GPU".to_owned()),
    };
    let by_itself = Consistency::of(ordering, flush, host);
    let ordered = matches!(
        by_itself,
        Consistency::OrderedForAll | Consistency::OrderedForOwner
    );
    let (choice, because) = match report.variables.get("GDS_CONSISTENCY").map(String::as_str) {
        None | Some("auto") => chosen_by_itself(by_itself, &whose),
        Some(wish) => {
            let kept = match wish {
                "ordered" => Some((ORDERED, ordered)),
                "flush" => Some((FLUSH, flush)),
                "host" => Some((HOST, host)),
                "read" => Some((READ, true)),
                _ => None,
            };
            let set = format!("GDS_CONSISTENCY={wish}");
            match kept {
                Some((choice, true)) => (choice, set),
                Some((_, false)) => (ERROR, format!("{set}, which {whose} cannot keep")),
                None => (
                    ERROR,
                    format!("{set}, and known are auto, flush, ordered, host, read"),
                ),
            }
        }
    };
    Use::new(PAYLOAD, choice, because)
}

fn chosen_by_itself(consistency: Consistency, whose: &str) -> (&'static str, String) {
    match consistency {
        Consistency::OrderedForAll | Consistency::OrderedForOwner => {
            (ORDERED, format!("{whose} promises it"))
        }
        Consistency::FlushByStream => (
            FLUSH,
            format!("streams of {whose} can, and no order is promised"),
        ),
        Consistency::FlushByHost => (
            HOST,
            format!("{whose} promises no order, and its streams cannot flush"),
        ),
        Consistency::ReadByNic => (
            READ,
            format!("{whose} promises no order, and neither its streams nor the CPU can flush"),
        ),
    }
}
