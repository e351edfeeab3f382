//! The configuration of a NIC.

/// The configuration of a NIC: its name and its limits. A limit is a logarithm to base 2 unless its
/// description states another unit.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// The name of the NIC in traces: `nic0`.
    pub name: String,
    /// Most protection domains.
    pub log_max_pd: u8,
    /// Most memory regions.
    pub log_max_mr: u8,
    /// Most doorbell pages.
    pub log_max_uar: u8,
    /// Most completion queues.
    pub log_max_cq: u8,
    /// Most queue pairs.
    pub log_max_qp: u8,
    /// Most shared receive queues.
    pub log_max_srq: u8,
    /// Most entries of a completion queue.
    pub max_log_cq: u8,
    /// Most basic blocks of a send queue, at most 2^15.
    pub max_log_sq: u8,
    /// Most entries of a receive queue, shared or not, at most 2^15.
    pub max_log_rq: u8,
    /// Most reads and atomics outstanding per queue pair and direction; not a logarithm.
    pub max_rd_atomic: u8,
    /// Bytes of the loopback ring, for queue pairs of this NIC that are connected to each other;
    /// not a logarithm.
    pub loopback_bytes: usize,
    /// Number of ports, at most 32; not a logarithm. All ports lead to the same fabric.
    pub ports: u8,
    /// Behaves as a device does: a queue pair before RTR does not answer, and only timeouts end a
    /// wait. Otherwise the NIC sends an RNR NAK to requesters of a queue pair that is not connected
    /// yet, and sends them a hint when the queue pair, or a receive, is ready.
    pub strict: bool,
    /// The numbers that its queue pairs may have; `None`: all numbers of 24 bits.
    pub qpn: Option<QpnSpace>,
    /// The partition key of datagrams. A datagram is received if the low 15 bits of both keys are
    /// equal and the highest bit is set in at least one of them. Connections carry no partition
    /// key.
    pub pkey: u16,
}

/// The range of queue pair numbers of one NIC, if several NICs appear as one device: 2 to the power
/// of `bits` numbers from `base` on. The NIC assigns unused numbers before it reuses one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpnSpace {
    /// The first number; a multiple of 2 to the power of `bits`, not zero.
    pub base: u32,
    /// Logarithm of the number of queue pair numbers.
    pub bits: u8,
}

impl Default for NicConfig {
    fn default() -> NicConfig {
        NicConfig {
            name: "nic".into(),
            log_max_pd: 8,
            log_max_mr: 16,
            log_max_uar: 10,
            log_max_cq: 12,
            log_max_qp: 12,
            log_max_srq: 10,
            max_log_cq: 22,
            max_log_sq: 15,
            max_log_rq: 15,
            max_rd_atomic: 16,
            loopback_bytes: 1 << 20,
            ports: 1,
            strict: false,
            qpn: None,
            pkey: 0xffff,
        }
    }
}
