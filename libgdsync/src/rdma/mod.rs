//! What users of verbs hold: devices, protection domains, registrations, queue pairs, requests.
//!
//! A request is *prepared* (its entry is written into the send queue), then *posted* by the
//! CPU or by a stream, or *aborted*. A send queue is a FIFO: posts follow the order of prepare
//! calls, whoever posts. Completions are waited for by the CPU or by a stream; what completes
//! on a stream retires by itself.

mod address;
mod build;
pub(crate) mod choice;
mod config;
mod core;
mod device;
mod field;
mod list;
mod lower;
mod post;
mod progress;
mod qp;
mod request;
mod work;

pub use address::{PortAddress, QpAddress, RemoteMemory, RemoteSpan};
pub use choice::{DeviceOptions, NicChoice, Provider};
pub(crate) use config::env_choice;
pub use config::{Endpoint, Lowering, QpConfig};
pub(crate) use core::{Place, QpCore, QpState};
pub use device::{Access, Device, Mr, Pd};
pub use list::{Descriptor, post_on};
pub use qp::Qp;
pub use request::{Completion, Field, ReceiveRequest, Received, SendRequest, WaitOptions};
pub use work::{Sge, Work};
