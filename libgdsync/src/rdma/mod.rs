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

mod address;
mod build;
#[cfg(test)]
mod bytes;
pub(crate) mod choice;
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
mod path;
mod post;
mod progress;
mod qp;
mod request;
mod work;

pub use address::{LANES, PortAddress, QpAddress, RemoteMemory, RemoteSpan};
pub use choice::{DeviceOptions, NicChoice, NicName, Provider};
pub(crate) use config::env_choice;
pub use config::{Endpoint, Lowering, QpConfig, Transport};
pub(crate) use core::{Life, Place, QpCore, QpState};
pub use destination::Destination;
pub use device::{Access, Device, Mr, Pd};
pub(crate) use flusher::{FlushFaults, Flushers};
pub use header::GRH;
pub use lanes::{Lanes, LanesMr, LanesPd};
pub use list::{Descriptor, post_on};
pub use path::PathConfig;
pub(crate) use path::{PathSettings, RETRIES};
pub use qp::Qp;
pub use request::{Completion, Field, ReceiveRequest, Received, SendRequest, Source, WaitOptions};
pub use work::{Sge, Work};
