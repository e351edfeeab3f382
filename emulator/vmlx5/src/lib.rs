//! vmlx5
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
pub use nic::{Nic, NicConfig, NicStats, UarId};
pub use qp::{Modify, QpAttr, QpInfo, QpState, Qpn, RqAttr, SqAttr};
