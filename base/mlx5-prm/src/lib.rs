//! The ConnectX (mlx5) formats as data: the entries that a host writes into a work queue, the
//! entries that the NIC writes into a completion queue, and the doorbells between them.
//!
//! This crate does not touch memory that is shared with a device. Encoders return segments of 16
//! bytes, and parsers read a private copy. A value for a plain store of a CPU or GPU is returned as
//! the integer to store. The host library and the virtual NIC therefore share one description of
//! the formats, and each can be tested without the other.
//!
//! - [`wqe`]: work queue entries (WQE) of send and receive queues, encoded and parsed.
//! - [`cqe`]: completion queue entries (CQE), their owner bit, the word that a stream waits for.
//! - [`doorbell`]: doorbell records, doorbells, the layout of a UAR page.
//! - [`opcode`], [`syndrome`]: the codes in them. Codes stay integers: an unknown code of a newer
//!   device keeps its number and has no name.
//!
//! Every field is big-endian on the wire. Functions that return a value *to be stored* mean a store
//! by a little-endian machine, and their documentation states it. Every GPU and every supported
//! host is little-endian.
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
