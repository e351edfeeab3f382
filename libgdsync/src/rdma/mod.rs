//! What users of verbs hold: devices, protection domains, registrations, queue pairs, requests.
//!
//! A request is *prepared* (its entry is written into the send queue), then *posted* by the
//! CPU or by a stream, or *aborted*. A send queue is a FIFO: posts follow the order of prepare
//! calls, whoever posts. Completions are waited for by the CPU or by a stream; what completes
//! on a stream retires by itself.
//!
//! A queue pair is a reliable connection or one of unreliable datagrams ([`Transport`]). A
//! connection is connected with one peer and can do everything; datagrams are sends alone, each to a
//! [`Destination`] of its own.

mod build;
#[cfg(test)]
mod bytes;
mod config;
mod core;
#[cfg(test)]
mod core_tests;
mod destination;
mod device;
mod events;
mod field;
mod flusher;
mod header;
mod lanes;
mod list;
mod locked;
mod lower;
#[cfg(test)]
mod odd_nic;
mod post;
mod progress;
mod proxy;
mod qp;
mod request;
mod watch;
mod work;

pub use crate::nic::{
    Access, DeviceOptions, LANES, NicChoice, NicName, PathConfig, PortAddress, Provider, QpAddress,
    RemoteMemory, RemoteSpan, Transport,
};
pub use config::{Endpoint, Lowering, QpConfig};
use core::{Life, QpCore, QpState};
pub use destination::Destination;
pub use device::{Device, Mr, Pd};
pub use header::GRH;
pub use lanes::{Lanes, LanesMr, LanesPd};
pub use list::{Descriptor, post_on};
pub use qp::Qp;
pub use request::{Completion, Field, ReceiveRequest, Received, SendRequest, Source, WaitOptions};
pub use work::{Sge, Work};
