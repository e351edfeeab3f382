//! The consistency policy: how a stream that has passed a completion sees the payload that the NIC
//! wrote to GPU memory before that completion. The library chooses a policy by the capabilities of
//! the GPU and the NIC, or uses the one that `GDS_CONSISTENCY` names.
//!
//! On PCIe, a NIC's write to GPU memory and its later write to host memory take different paths:
//! the completion may become visible while the payload is still in flight.

use std::fmt;

use super::MemoryKind;
use crate::env::Variable;
use crate::error::{Error, Kind, Result};
use crate::memop::Caps;

/// The policy by which a stream that has waited for a completion sees the payload that the NIC
/// wrote before it.
///
/// On PCIe, a NIC's write to GPU memory and its later write of the completion entry to host memory
/// take different paths: the completion may become visible while the payload is still in flight. A
/// wait with a flush ([`Descriptor::wait_flushed`](crate::rdma::Descriptor::wait_flushed)) applies
/// the policy. [`Device::consistency`](crate::rdma::Device::consistency) returns it;
/// `GDS_CONSISTENCY` demands one. Names in capitals are of the CUDA driver API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Consistency {
    /// Nothing: the payload is in host memory, as the completion is.
    NotNeeded,
    /// Nothing: a stream that has seen a NIC's write sees the earlier writes too (CUDA:
    /// `GPU_DIRECT_RDMA_WRITES_ORDERING` of *owner* or more).
    Ordered,
    /// The wait flushes (CUDA: `CAN_FLUSH_REMOTE_WRITES`, `CU_STREAM_WAIT_VALUE_FLUSH`).
    Flush,
    /// Behind the wait the stream requests a flush from the CPU by writing a word. The CPU flushes
    /// (CUDA: `cuFlushGPUDirectRDMAWrites`, where `GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS` has
    /// *host*) and writes another word, for which the stream waits.
    HostFlag,
    /// Behind the wait the NIC reads a word of GPU memory, by a QP connected to itself, and the
    /// stream waits for the completion: on PCIe a read pushes the writes before it.
    LoopbackRead,
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Consistency::NotNeeded => "not needed: the payload is in host memory",
            Consistency::Ordered => "ordered: the GPU sees a NIC's writes in their order",
            Consistency::Flush => "flush: a wait of a stream flushes",
            Consistency::HostFlag => "host: the CPU flushes and writes a word for the stream",
            Consistency::LoopbackRead => "read: the NIC READs GPU memory behind its writes",
        })
    }
}

impl Consistency {
    /// The demanded policy; `None`: the first that the GPU and the NIC support.
    #[doc(hidden)]
    pub const VARIABLE: Variable<Option<Consistency>> = Variable {
        name: "GDS_CONSISTENCY",
        former_name: None,
        words: &[
            ("auto", None),
            ("flush", Some(Consistency::Flush)),
            ("ordered", Some(Consistency::Ordered)),
            ("host", Some(Consistency::HostFlag)),
            ("read", Some(Consistency::LoopbackRead)),
        ],
        former_words: &[],
    };

    /// Chooses the policy for payload in memory of `kind` on a GPU with these capabilities.
    /// `reads`: the NIC can READ from itself. The policies are tried in the order of their cost for
    /// a stream: nothing, a flag of its wait, a flush by the CPU. A READ is last because its effect
    /// follows from the rules of PCIe, and not from a promise of the GPU's maker.
    ///
    /// # Errors
    /// `Unsupported` if the GPU neither orders nor flushes the writes of NICs and the NIC has no
    /// RDMA READ.
    pub fn choose(kind: MemoryKind, caps: &Caps, reads: bool) -> Result<Consistency> {
        Ok(match kind {
            MemoryKind::Pinned => Consistency::NotNeeded,
            MemoryKind::Device if caps.ordered_writes => Consistency::Ordered,
            MemoryKind::Device if caps.flush => Consistency::Flush,
            MemoryKind::Device if caps.host_flush => Consistency::HostFlag,
            MemoryKind::Device if reads => Consistency::LoopbackRead,
            MemoryKind::Device => return Err(no_consistency("the NIC does not support RDMA READ")),
        })
    }

    /// Removes from `caps` the capabilities that [`Consistency::choose`] prefers to the demanded
    /// policy.
    ///
    /// # Errors
    /// `Unsupported` if the GPU does not support the policy. The device of the NIC checks later
    /// whether the NIC supports READ.
    #[doc(hidden)]
    pub fn restrict_to(wish: Option<Consistency>, caps: Caps) -> Result<Caps> {
        let Some(wish) = wish else { return Ok(caps) };
        let only = caps
            .ordered_writes(caps.ordered_writes && wish == Consistency::Ordered)
            .flush(caps.flush && wish == Consistency::Flush)
            .host_flush(caps.host_flush && wish == Consistency::HostFlag);
        match Consistency::choose(MemoryKind::Device, &only, true)? {
            kept if kept == wish => Ok(only),
            _ => {
                let variable = Consistency::VARIABLE.name;
                let what =
                    format!("this GPU does not support {variable} \"{wish}\"; set {variable}=auto");
                Err(Error::new("open GPU", Kind::Unsupported, what))
            }
        }
    }
}

#[cold]
pub(crate) fn no_consistency(why: impl fmt::Display) -> Error {
    let what = format!("the GPU neither orders nor flushes writes of NICs, and {why}");
    Error::new("choose consistency", Kind::Unsupported, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Consistency::*;

    fn caps(ordered_writes: bool, flush: bool, host_flush: bool) -> Caps {
        crate::gpu::soft::SoftOptions::default()
            .caps
            .ordered_writes(ordered_writes)
            .flush(flush)
            .host_flush(host_flush)
    }

    /// Order, flush, flush by the CPU, READ by the NIC: every combination of attributes.
    #[test]
    fn choose_takes_the_cheapest_policy_that_the_attributes_allow() {
        for bits in 0..16_u32 {
            let has = |bit: u32| bits & bit != 0;
            let expected = match bits {
                8.. => Some(Ordered),
                4.. => Some(Flush),
                2.. => Some(HostFlag),
                1 => Some(LoopbackRead),
                0 => None,
            };
            let caps = caps(has(8), has(4), has(2));
            let chosen = Consistency::choose(MemoryKind::Device, &caps, has(1));
            match expected {
                Some(policy) => assert_eq!(chosen.unwrap(), policy, "{bits:04b}"),
                None => assert_eq!(chosen.unwrap_err().kind(), Kind::Unsupported),
            }
            let pinned = Consistency::choose(MemoryKind::Pinned, &caps, has(1));
            assert_eq!(pinned.unwrap(), NotNeeded, "{bits:04b}");
        }
    }

    #[test]
    fn demanded_policy_is_used_or_refused() {
        for bits in 0..8_u32 {
            let has = |bit: u32| bits & bit != 0;
            let real = caps(has(4), has(2), has(1));
            assert_eq!(Consistency::restrict_to(None, real).unwrap(), real);
            for (value, wish, can) in [
                ("ordered", Ordered, has(4)),
                ("flush", Flush, has(2)),
                ("host", HostFlag, has(1)),
                ("read", LoopbackRead, true),
            ] {
                assert_eq!(
                    Consistency::VARIABLE.meaning(value),
                    Some((value, Some(wish)))
                );
                match Consistency::restrict_to(Some(wish), real) {
                    Ok(caps) => {
                        assert!(can, "{bits:03b} {wish:?}");
                        let kept = Consistency::choose(MemoryKind::Device, &caps, true);
                        assert_eq!(kept.unwrap(), wish);
                    }
                    Err(e) => assert!(!can && e.kind() == Kind::Unsupported, "{e}"),
                }
            }
        }
        assert_eq!(Consistency::VARIABLE.meaning("auto"), Some(("auto", None)));
        assert_eq!(Consistency::VARIABLE.meaning("hots"), None);
    }
}
