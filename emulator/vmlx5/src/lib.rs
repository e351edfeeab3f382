//! A virtual ConnectX: a NIC in software that reads real mlx5 work queue entries from rings in
//! memory, carries them out, writes real completion entries, and talks to other such NICs over
//! a [`fabric`].
//!
//! A [`Nic`] is a step machine ([`gds_step::Machine`]): no thread, no clock, no allocation per
//! message. Its control operations (PDs, MRs, UARs, CQs, QPs of reliable and unreliable
//! connections and of datagrams, with their states) are plain methods; its data path is what a step does:
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
//! let cqn = nic.create_cq(CqAttr::new(mem.clone(), cq, 4))?;
//! let ring = SqAttr { mem: mem.clone(), offset: sq, log_blocks: 4 };
//! let qpn = nic.create_qp(QpAttr::new(pd, uar, cqn, ring, (mem, record)))?;
//!
//! // Connected to itself.
//! let (path, access) = (Path::to(nic.node(), qpn), Access::REMOTE_WRITE);
//! nic.modify_qp(qpn, Modify::Init { access, qkey: 0, port: 1 })?;
//! nic.modify_qp(qpn, Modify::Rtr { path, rq_psn: 0, max_dest_rd_atomic: 1, min_rnr_timer: 12 })?;
//! let (timeout, retry_cnt, rnr_retry) = (14, 7, 7);
//! nic.modify_qp(qpn, Modify::Rts { sq_psn: 0, max_rd_atomic: 1, timeout, retry_cnt, rnr_retry })?;
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
//! - A SEND with invalidation takes the key of any region of the receiver's domain out of use, on
//!   both sides; the region must still be removed. The receive of one with another key fails.
//! - A shared receive queue tells of its limit also when fewer receives are posted as it is set.
//!   One whose record or list cannot be right is in error: who takes from it next goes into ERR.
//! - Packets are of the path's MTU and numbered; up to 32 KiB of them travel as one frame.
//! - A NIC that is not [`strict`](NicConfig::strict) tells requesters to wait for a queue pair
//!   that is not connected yet, as for one without a receive, and tells them when the wait is
//!   over. A strict one is silent there, and leaves waits to the clocks.
//! - An armed completion queue tells, once, of entries beyond what its consumer took of which no
//!   event told before; so one that is armed again before they are taken waits for others.
//! - Nobody tells that a queue pair went into ERR or RESET, was destroyed, or lay behind a link
//!   that was lost: it is silent, and what others have outstanding there ends by
//!   `TRANSPORT_RETRY` after `retry_cnt` + 1 times their timeout.
//! - A datagram waits for room on a link as long as a packet does at a switch, a second, and is
//!   lost then; so is every one that finds no receive, another queue key, port or partition,
//!   or an address that is nobody's. A receive too small for it is the receiver's error.
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
//! makes them. Packets of one frame share its fate. Time is the driver's, and rates are this
//! code's, not a device's. Not there at all: multicast, memory
//! windows, inline receives, BlueFlame writes of whole entries, queue pair numbers of a real
//! device's making.

mod arm;
mod attr;
mod config;
mod cq;
mod dma;
mod engine;
mod error;
mod event;
pub mod fabric;
mod frame;
mod mr;
#[doc(hidden)]
pub mod mutant;
mod nic;
mod object;
mod qp;
mod route;
mod sq;
mod srq;
mod table;
mod timer;
mod wire;

pub use attr::{AttrChange, Modify, Mtu, Path, QpAttr, QpInfo, RqAttr, Scatter, Service, SqAttr};
pub use config::{NicConfig, QpnSpace};
pub use cq::{CqAttr, CqFailure, CqInfo};
pub use dma::{Dma, DmaFault, HostMemory};
pub use error::{NicError, Object, vendor};
pub use event::Event;
pub use frame::{FrameError, FrameHeader, Kind, MAX_MESSAGE, MAX_PAYLOAD, nak};
pub use mr::{Access, MrAttr, MrKeys};
pub use nic::{Nic, NicStats, Population};
pub use object::{Cqn, PdId, QpState, Qpn, Srqn, UarId};
pub use route::{Resolve, Route, RouteHeader};
pub use srq::{SrqAttr, SrqInfo};
pub use timer::{ack_timeout, rnr_delay};

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
