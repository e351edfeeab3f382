//! What users of verbs hold: its objects (`verbs`), lists for streams (`list`), the visibility of what
//! NICs write (`consistency`), a device with both (`on_nic`), several NICs and ports (`rails`).
//!
//! A request is *prepared* (its entry is written into the send queue), then *posted* by the
//! CPU or by a stream, or *aborted*. A send queue is a FIFO: posts follow the order of prepare
//! calls, whoever posts. Completions are waited for by the CPU or by a stream; what completes
//! on a stream retires by itself.
//!
//! A queue pair is a reliable connection or one of unreliable datagrams ([`Transport`]). A
//! connection is connected with one peer and can do everything; datagrams are sends alone, each to a
//! [`Destination`] of its own.

mod consistency;
mod list;
mod on_nic;
mod rails;
#[cfg(test)]
mod tests;
mod verbs;

pub use crate::nic::{
    Access, DeviceOptions, NicChoice, PortAddress, Provider, QpAddress, RAILS, RemoteMemory,
    RemoteSpan, Transport,
};
pub use list::{Descriptor, post_on};
pub use rails::{Rails, RailsMr};
pub use verbs::{
    Completion, Destination, Device, Doorbell, Field, GRH, Lowering, Mr, Pd, Qp, QpConfig,
    ReceiveRequest, Received, SendRequest, Sge, Source, Work,
};
