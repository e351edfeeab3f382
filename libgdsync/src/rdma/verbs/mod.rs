//! The verbs objects: devices, protection domains, registrations, queue pairs, requests.
//!
//! [`Qp`] is the owner's handle on a queue pair ([`qp`], [`post`], [`progress`], [`field`]), made
//! by [`build`] from a [`config`]; [`core`] is the part that it shares with the [`watch`]er and
//! with the CPU thread that writes doorbells for streams ([`cpu_thread`]), behind the lock of
//! [`locked`].

mod build;
mod config;
mod core;
mod cpu_thread;
mod destination;
mod device;
mod errors;
mod events;
mod field;
mod header;
mod locked;
mod pd;
mod post;
mod progress;
mod qp;
mod request;
mod watch;
mod work;

pub use config::{Doorbell, Lowering, QpConfig};
use core::Life;
pub(super) use core::{Held, QpCore, QpState, RungBy, Side, Timer};
pub use destination::Destination;
pub use device::Device;
pub(super) use device::{Flusher, Flushes};
pub use header::GRH;
pub(super) use locked::{Locked, let_go};
pub use pd::{Mr, Pd};
pub use qp::Qp;
pub use request::{Completion, Field, ReceiveRequest, Received, SendRequest, Source};
pub(super) use watch::{FlushFaults, WatchList};
pub use work::{Sge, Work};
