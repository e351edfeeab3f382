//! How streams come to see payload that a NIC wrote to GPU memory: what gdsync's
//! `Device::consistency` comes to, concluded from facts.

use crate::Report;
use crate::uses::{ERROR, PAYLOAD, Use, chosen, on_cuda};

/// What a GPU can do about it.
struct Can {
    ordered: bool,
    flush: bool,
    host: bool,
}

/// The choices, in the order in which they are tried.
const ORDERED: &str = "nothing: the GPU sees a NIC's writes in their order";
const FLUSH: &str = "waits that flush";
const HOST: &str = "flushes by the CPU: a stream asks for one behind its wait, by a word";
const READ: &str = "READs by the NIC: a stream rings for one behind its wait";

/// The policy, and why that.
pub(crate) fn policy(report: &Report) -> Use {
    let (can, whose) = match chosen(report).filter(|_| on_cuda(report)) {
        Some(gpu) => (
            Can {
                ordered: gpu.writes_ordering >= 100,
                flush: gpu.memory_operations.flush,
                host: gpu.host_flush,
            },
            format!("GPU {}", gpu.index),
        ),
        None => (
            Can {
                ordered: false,
                flush: true,
                host: true,
            },
            "the software GPU".to_owned(),
        ),
    };
    let (choice, because) = match report.variables.get("GDS_CONSISTENCY").map(String::as_str) {
        None | Some("auto") => by_itself(&can, &whose),
        Some(wish) => {
            let kept = match wish {
                "ordered" => Some((ORDERED, can.ordered)),
                "flush" => Some((FLUSH, can.flush)),
                "host" => Some((HOST, can.host)),
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
    Use {
        purpose: PAYLOAD,
        choice: choice.into(),
        because,
    }
}

fn by_itself(can: &Can, whose: &str) -> (&'static str, String) {
    match can {
        Can { ordered: true, .. } => (ORDERED, format!("{whose} promises it")),
        Can { flush: true, .. } => (
            FLUSH,
            format!("streams of {whose} can, and no order is promised"),
        ),
        Can { host: true, .. } => (
            HOST,
            format!("{whose} promises no order, and its streams cannot flush"),
        ),
        _ => (
            READ,
            format!("{whose} promises no order, and neither its streams nor the CPU can flush"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_goes_before_flushes_and_the_nic_comes_last() {
        for bits in 0..8_u32 {
            let has = |bit: u32| bits & bit != 0;
            let can = Can {
                ordered: has(4),
                flush: has(2),
                host: has(1),
            };
            let expected = match bits {
                4.. => ORDERED,
                2.. => FLUSH,
                1 => HOST,
                _ => READ,
            };
            assert_eq!(by_itself(&can, "it").0, expected);
        }
    }
}
