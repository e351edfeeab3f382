//! ConnectX (mlx5) formats as data: what a host writes into a work queue, what the NIC writes
//! into a completion queue, and how the one tells the other.
//!
//! Nothing here touches memory shared with a device. Encoders hand out segments of 16 bytes,
//! parsers read a private copy, and everything that is stored with a plain CPU or GPU store
//! comes as the integer to store. So the host library and the virtual NIC share one description
//! of the formats, and either can be tested without the other.
//!
//! - [`wqe`]: work queue entries (WQE) of send and receive queues, both ways.
//! - [`cqe`]: completion queue entries (CQE), their owner bit, the word a stream waits for.
//! - [`doorbell`]: doorbell records, doorbells, the layout of a UAR page.
//! - [`opcode`], [`syndrome`]: the codes in them. Codes stay integers: what a newer device
//!   reports is kept as it is and has a name only if it is known.
//!
//! Every field is big-endian on the wire. Functions that give a value *to be stored* mean a
//! store by a little-endian machine, as every GPU and every supported host is; they say so.
//!
//! ```
//! use mlx5_prm::opcode::SendOpcode;
//! use mlx5_prm::wqe::{Payload, Remote, SendWqe, Sge, SliceSink, WqeFlags};
//!
//! let sge = [Sge { addr: 0x7f00_0000_1000, lkey: 0x101, len: 4096 }];
//! let write = SendWqe {
//!     opcode: SendOpcode::RDMA_WRITE,
//!     flags: WqeFlags { signaled: true, ..WqeFlags::default() },
//!     remote: Some(Remote { addr: 0x7f11_0000_0000, rkey: 0x202 }),
//!     payload: Payload::Gather(&sge),
//!     ..SendWqe::default()
//! };
//! let mut ring = [0; 64];
//! let mut sink = SliceSink::new(&mut ring);
//! let encoded = write.encode(7, 0x1001, &mut sink)?;
//! assert_eq!(sink.finish()?, 48);
//! assert_eq!((encoded.ds, encoded.basic_blocks), (3, 1));
//! assert_eq!(encoded.doorbell, ring[..8]);
//! # Ok::<(), mlx5_prm::wqe::FormatError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
mod table;

pub mod cqe;
pub mod doorbell;
pub mod opcode;
pub mod syndrome;
pub mod wqe;
