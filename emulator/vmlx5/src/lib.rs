//! A virtual ConnectX: a NIC in software that reads real mlx5 work queue entries from rings in
//! memory, carries them out, writes real completion entries, and talks to other such NICs over
//! a [`fabric`].
//!
//! A [`Nic`] is a step machine ([`gds_step::Machine`]): no thread, no clock, no allocation per
//! message. Its control operations (PDs, MRs, UARs, CQs, reliable connected QPs with their
//! states) are plain methods; its data path is what a step does:
//!
//! 1. every doorbell register in use is emptied; where one was rung, the doorbell records of
//!    the page's queue pairs say how far their send queues go;
//! 2. frames from other NICs are taken: payloads are placed, receives used up, entries written;
//! 3. queue pairs take turns at answering, and at sending what was rung, in order.
//!
//! Memory is reached only through [`Dma`], so rings, records and payloads may lie anywhere: in
//! [`HostMemory`], or in a software GPU that lets them become visible late.
//!
//! ```
//! use std::sync::Arc;
//! use gds_step::{Machine, Time};
//! use mlx5_prm::doorbell::{self, BF_OFFSET};
//! use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
//! use mlx5_prm::wqe::{Payload, Remote, SendWqe, SliceSink, WqeFlags};
//! use vmlx5::fabric::hub::Hub;
//! use vmlx5::*;
//!
//! // One NIC, and a page each for: doorbells, ring, completions, records, data.
//! let hub = Hub::new(Default::default());
//! let mut nic = Nic::new(NicConfig::default(), Box::new(hub.port()));
//! let host = Arc::new(HostMemory::new(5 * 4096));
//! let mem: Arc<dyn Dma> = host.clone();
//! let (sq, cq, record, data) = (4096, 8192, 12288, 16384);
//!
//! let pd = nic.alloc_pd()?;
//! let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
//! let mr = MrAttr { pd, va: 0x7000, len: 4096, access, mem: mem.clone(), mem_offset: data };
//! let keys = nic.reg_mr(mr)?;
//! let uar = nic.alloc_uar(mem.clone(), 0)?;
//! let (log_entries, start) = (4, 0);
//! let cqn = nic.create_cq(CqAttr {
//!     mem: mem.clone(), offset: cq, log_entries, record: None, ignore_overrun: true, start,
//! })?;
//! let qpn = nic.create_qp(QpAttr {
//!     pd, uar, send_cq: cqn, recv_cq: cqn,
//!     sq: SqAttr { mem: mem.clone(), offset: sq, log_blocks: 4 },
//!     rq: None, record: (mem, record), uidx: 0, sq_start: 0, rq_start: 0,
//! })?;
//!
//! // Connected to itself.
//! let (remote, access) = (nic.node(), Access::REMOTE_WRITE);
//! nic.modify_qp(qpn, Modify::Init { access })?;
//! nic.modify_qp(qpn, Modify::Rtr { remote, remote_qpn: qpn, rq_psn: 0, max_dest_rd_atomic: 1 })?;
//! nic.modify_qp(qpn, Modify::Rts { sq_psn: 0, max_rd_atomic: 1 })?;
//!
//! // A work queue entry, the doorbell record, the doorbell.
//! let write = SendWqe {
//!     opcode: SendOpcode::RDMA_WRITE,
//!     flags: WqeFlags { signaled: true, ..WqeFlags::default() },
//!     remote: Some(Remote { addr: 0x7010, rkey: keys.rkey }),
//!     payload: Payload::Inline(&[b"hello"]),
//!     ..SendWqe::default()
//! };
//! let mut entry = [0; 64];
//! let encoded = write.encode(0, qpn.0, &mut SliceSink::new(&mut entry)).unwrap();
//! host.write(sq, &entry)?;
//! host.store32(record + doorbell::SND as u64, encoded.record_value(0))?;
//! host.store64(BF_OFFSET as u64, encoded.doorbell_value())?;
//!
//! while nic.step(Time::ZERO) == gds_step::Step::Progress {}
//! let mut written = [0; 5];
//! host.read(data + 0x10, &mut written)?;
//! assert_eq!(&written, b"hello");
//! let mut op_own = [0];
//! host.read(cq + 63, &mut op_own)?;
//! assert_eq!(CqeOpcode(op_own[0] >> 4), CqeOpcode::REQ);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # This engine's own rules
//! - A doorbell without a change of the record does nothing, nor does a record without a
//!   doorbell. Any bit in the page's register counts, so a doorbell may be two 32-bit stores.
//!   The entry is always read from the ring, never from the doorbell.
//! - An entry must carry its own index and queue pair number.
//! - A SEND, or a WRITE with immediate, that finds no receive waits at its sender, with all that
//!   was posted behind it, until a receive is posted; likewise what is sent to a queue pair
//!   that is not ready yet.
//! - A queue pair that goes into ERR or RESET, or is destroyed, ends what the other end has
//!   outstanding by `TRANSPORT_RETRY`, as its silence would in the end. So does a lost link.
//! - Reads and atomics keep their order among themselves; a later write may overtake a read,
//!   unless it is fenced.
//!
//! # What passing here proves, and what not
//! It proves the use of formats, indices, owner bits, doorbells and records, the rights and
//! bounds of memory, the order of completions, error entries from their real causes and the
//! flush after them: in short, that a host drives the device by its rules.
//!
//! It proves nothing of what is outside those rules. A load here is not a PCIe read: posted
//! writes, write combining and the order of a real bus are only as adverse as the [`Dma`]
//! makes them. There are no packets, so no loss, no retransmission, and no timers: a peer that
//! is silent is waited for without end. Time is the driver's, and rates are this code's, not a
//! device's. Not there at all: UC and UD, shared receive queues, completion events, memory
//! windows, inline receives, BlueFlame writes of whole entries, queue pair numbers of a real
//! device's making.

mod cq;
mod dma;
mod engine;
mod error;
pub mod fabric;
mod frame;
mod mr;
mod nic;
mod qp;
mod requester;
mod responder;
mod sq;
mod table;
mod wire;

pub use cq::{CqAttr, CqFailure, CqInfo, Cqn};
pub use dma::{Dma, DmaFault, HostMemory};
pub use error::{NicError, Object, vendor};
pub use frame::{FrameError, FrameHeader, Kind, MAX_MESSAGE, MAX_PAYLOAD};
pub use mr::{Access, MrAttr, MrKeys, PdId};
pub use nic::{Nic, NicConfig, NicStats, QpnSpace, UarId};
pub use qp::{Modify, QpAttr, QpInfo, QpState, Qpn, RqAttr, SqAttr};

/// What takes bytes of other processes, for the fuzzer alone.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::fabric::greeting::{Greeting, Heard, receive};
    pub use crate::fabric::ring::{MIN_RING, Reader, Refused, Region, Writer};
    use crate::{FrameError, FrameHeader};

    /// What a header of a frame says once it was checked.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn recode(header: &FrameHeader, payload: usize) -> Result<FrameHeader, FrameError> {
        header.decode(payload).map(|frame| frame.encode(payload))
    }
}
