//! RDMA verbs: NICs, memory regions, queue pairs, requests, and lists of descriptors for streams.
//!
//! A program opens a [`Device`], allocates a [`Pd`], registers memory ([`Mr`]) and creates queue
//! pairs ([`Qp`]), as with verbs. A request ([`Work`]) is *prepared* (its entry is written into the
//! send queue), then *posted* by the CPU ([`Qp::post`]) or by a stream ([`Qp::post_on`]), or
//! *aborted*. A send queue is a FIFO: posts follow the order of the prepare calls, whether the CPU
//! or a stream posts. The CPU ([`Qp::wait`]) or a stream ([`Descriptor::wait`]) waits for a
//! completion; a request that completes on a stream is retired automatically.
//!
//! A queue pair has a transport ([`Transport`]): reliable connection or unreliable datagrams. A
//! connection has one peer and supports every operation; a datagram queue pair supports only sends,
//! and each send names its [`Destination`].
//!
//! In the sources: the objects (`verbs`), descriptor lists (`list`), the visibility of NIC writes
//! (`consistency`), a device with all of them (`on_nic`), several NICs and ports (`rails`).

mod consistency;
mod list;
mod on_nic;
mod rails;
#[cfg(test)]
mod tests;
mod verbs;

pub use crate::nic::{
    Access, DeviceOptions, NicChoice, PortAddress, Provider, QpAddress, RAILS, RemoteMemory,
    RemoteSpan, TcpOptions, Transport,
};
pub use list::{Descriptor, Word, WordRef, post_on};
pub use rails::{Rails, RailsMr};
pub use verbs::{
    Completion, Destination, Device, Doorbell, Field, GRH, Lowering, Mr, Pd, Qp, QpConfig,
    ReceiveRequest, Received, SendRequest, Sge, Source, Work,
};
