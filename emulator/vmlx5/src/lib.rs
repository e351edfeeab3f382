//! A virtual ConnectX: a NIC in software that reads real mlx5 work queue entries from rings in
//! memory, executes them, writes real completion entries, and exchanges frames with other NICs of
//! its kind over a [`fabric`].
//!
//! A [`Nic`] is a step machine ([`gds_step::Machine`]): it has no thread and no clock, and
//! allocates nothing per message. Its control operations (PDs, MRs, UARs, CQs, QPs of reliable and
//! unreliable connections and of datagrams, with their states) are plain methods. A step executes
//! its data path:
//!
//! 1. The NIC reads and clears every doorbell register in use. Where a doorbell was written, it
//!    reads from the doorbell records of the page's queue pairs how far their send queues extend.
//! 2. The NIC handles frames from other NICs: it places payloads, uses receives, and writes
//!    entries.
//! 3. Queue pairs take turns to answer, and to send announced work in order.
//!
//! The NIC reaches memory only through [`Dma`], so rings, records and payloads may be in any
//! memory: in [`HostMemory`], or in a software GPU that makes writes visible late.
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
//! // One NIC, and one page for each of doorbells, ring, completions, records, data.
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
//! // Connect the queue pair to itself.
//! let (path, access) = (Path::to(nic.node(), qpn), Access::REMOTE_WRITE);
//! nic.modify_qp(qpn, Modify::Init { access, qkey: 0, port: 1 })?;
//! nic.modify_qp(qpn, Modify::Rtr { path, rq_psn: 0, max_dest_rd_atomic: 1, min_rnr_timer: 12 })?;
//! let (timeout, retry_cnt, rnr_retry) = (14, 7, 7);
//! nic.modify_qp(qpn, Modify::Rts { sq_psn: 0, max_rd_atomic: 1, timeout, retry_cnt, rnr_retry })?;
//!
//! // Write a work queue entry, the doorbell record and the doorbell.
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
//! # Rules specific to this NIC
//! - A doorbell without a change of the record has no effect, and a record without a doorbell has
//!   no effect. Any bit in the page's register counts, so a doorbell may be two 32-bit stores. The
//!   NIC always reads the entry from the ring, never from the doorbell.
//! - An entry must contain its own index and queue pair number.
//! - A SEND with invalidation invalidates the key of any region of the receiver's domain, on both
//!   sides; the owner must still remove the region. The receive fails if the key belongs to another
//!   domain.
//! - A shared receive queue also raises its limit event if fewer receives are posted when the limit
//!   is set. A queue with an invalid record or list is in error: the next queue pair that takes a
//!   receive from it goes into ERR.
//! - Packets have the size of the path's MTU and are numbered. One frame carries up to 32 KiB of
//!   packets.
//! - A NIC that is not [`strict`](NicConfig::strict) sends an RNR NAK to requesters of a queue pair
//!   that is not connected yet, as of one without a receive, and sends a hint when the wait is
//!   over. A strict NIC sends neither before RTR, and no hint later; timeouts end the wait.
//! - An armed completion queue raises one event for entries that its consumer did not take and that
//!   no event reported before. A queue that is armed again before the consumer takes the entries
//!   waits for further entries.
//! - A queue pair that goes into ERR or RESET, is destroyed, or loses its link does not notify its
//!   peers: it does not answer. Outstanding work of its peers ends with `TRANSPORT_RETRY` after
//!   `retry_cnt` + 1 timeouts.
//! - A datagram waits for room on a link as long as a packet waits at a switch, about one second,
//!   and is then dropped. A datagram is also dropped if it finds no receive, if its queue key, port
//!   or partition do not match, or if no NIC has its address. A receive that is too small for the
//!   datagram is the receiver's error.
//! - Reads and atomics keep their order among themselves; a later write may overtake a read, unless
//!   it is fenced.
//!
//! # What a test on this NIC proves
//! It proves the use of formats, indices, owner bits, doorbells and records, the rights and bounds
//! of memory, the order of completions, error entries from their real causes and the flush after
//! them. In short, it proves that a host drives the device by its rules.
//!
//! It proves nothing outside those rules. A load here is not a PCIe read: posted writes, write
//! combining and the order of a real bus are only as adverse as the [`Dma`] makes them. Packets of
//! one frame are lost or delayed together. The driver supplies the time, and message rates are
//! those of this code, not of a device. The NIC does not support multicast, memory windows, inline
//! receives, BlueFlame writes of whole entries, or the queue pair numbers of a real device.

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

/// Decodes bytes from other processes, for the fuzzer only.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::fabric::greeting::{Greeting, Received, receive};
    pub use crate::fabric::ring::{MIN_RING, Reader, Refused, Region, Writer};
    use crate::{FrameError, FrameHeader};

    /// Checks the header of a frame and returns its contents.
    ///
    /// # Errors
    /// The reason why the header is invalid.
    pub fn recode(header: &FrameHeader, payload: usize) -> Result<FrameHeader, FrameError> {
        header.decode(payload).map(|frame| frame.encode(payload))
    }
}
