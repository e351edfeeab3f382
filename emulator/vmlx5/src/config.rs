//! How a NIC is made.

/// How a NIC is made: its name and its limits, as powers of two unless said otherwise.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Its name in traces: `nic0`.
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
    /// Most reads and atomics outstanding per queue pair and direction; a plain number.
    pub max_rd_atomic: u8,
    /// Bytes of the ring for queue pairs that talk to this same NIC; a plain number.
    pub loopback_bytes: usize,
    /// How many ports it has, at most 32; a plain number. All lead to the same fabric.
    pub ports: u8,
    /// As a device does it: silence to whom is not ready to receive, and nothing but clocks
    /// ends a wait. Else the NIC tells requesters to wait for queue pairs that are not
    /// connected yet, and tells them when they, or a receive, are there.
    pub strict: bool,
    /// The numbers that its queue pairs may have; `None`: all of 24 bits.
    pub qpn: Option<QpnSpace>,
    /// The partition key that datagrams carry, and must match to be received: the low 15 bits
    /// the same, the highest set in one of the two at least. Connections carry none.
    pub pkey: u16,
}

/// The numbers of one NIC's queue pairs among those of others that pass for the same device:
/// `base` and those after it, 2 to the power of `bits` of them. As long as there are numbers
/// that were never given, these are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpnSpace {
    /// The first number; a multiple of 2 to the power of `bits`, not zero.
    pub base: u32,
    /// How many bits count the queue pairs.
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
