//! Verbs descriptors as GPU stream memory operations.
//!
//! A GPU application enqueues its messages on the stream that runs its kernels. A work request
//! is *prepared* by the CPU (its entry is written into the send queue of a queue pair), and
//! then *posted on a stream*: two memory operations of the stream write the doorbell record
//! and the doorbell, others wait for the completion entry. After the operations are enqueued, the
//! CPU does nothing more for the message.
//!
//! ```
//! use std::time::Duration;
//!
//! use gdsync::gpu::MemoryKind;
//! use gdsync::rdma::{Access, Descriptor, Device, QpConfig, Work};
//! use gdsync::Gpu;
//!
//! # fn main() -> gdsync::Result<()> {
//! let gpu = Gpu::soft()?; // a software GPU and a virtual NIC: they run anywhere
//! let pd = Device::emulated(&gpu)?.alloc_pd()?; // `Device::from_env` takes the best NIC here
//! let (mut a, mut b) = (pd.create_qp(&QpConfig::default())?, pd.create_qp(&QpConfig::default())?);
//! a.connect(&b.address())?;
//! b.connect(&a.address())?;
//! let memory = pd.register(&gpu.alloc(MemoryKind::Device, 64)?, Access::ALL)?;
//! let stream = gpu.stream()?;
//!
//! let recv = b.prepare_receive(&[memory.sge(32, 32)])?;
//! b.post_receive(recv)?;
//! memory.region().write(0, b"hello, stream")?;
//! let send = a.prepare(&Work::send(&[memory.sge(0, 13)]).signaled())?;
//! a.post_on(&stream, &[Descriptor::Send(send), Descriptor::wait(send)])?;
//! b.post_on(&stream, &[Descriptor::wait_flushed(recv)])?;
//!
//! assert!(stream.synchronize(Duration::from_secs(10))?);
//! assert_eq!(b.received(recv)?.len, 13);
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//! - [`gpu`]: GPUs, streams, memory that GPU, NIC and CPU share.
//! - [`rdma`]: devices, registrations, queue pairs, requests, lists of descriptors.
//!
//! # Order
//! A send queue is a FIFO. Requests are posted in the order in which they were prepared, by the
//! CPU or by any stream; any other order is an error of kind [`Kind::OutOfOrder`]. If another
//! stream posted last, the stream that posts next waits until the other one has written the
//! doorbell record. Within one stream all operations run in order; every doorbell is fenced against
//! the earlier writes of the stream.
//!
//! # Completion
//! A stream passes a wait only when the request has completed *with success*. Requests that
//! complete on a stream retire without a further call, for any lifetime of the queue. Queues are
//! bounded; a full queue is an error ([`Kind::QueueFull`]) or, with the calls that end in
//! `_within`, a bounded wait.
//!
//! # Errors
//! When a request fails, its queue pair enters the error state and all later requests are flushed.
//! A watcher stores the status of each request and the queue pair's error word. After that it
//! releases the streams that wait for these requests. So neither the CPU nor a stream nor a kernel
//! hangs or takes a failure for success: after a wait, [`Qp::error_word`](rdma::Qp::error_word) is
//! 0 unless a request failed. A peer that does not answer is an error too, after the time limit of
//! [`QpConfig::timeout`](rdma::QpConfig) or of the wait.
//!
//! # Threads
//! Everything is `Send`. GPUs, streams, memory, devices and registrations are `Sync`; a queue pair
//! has one owner, since its calls take `&mut self`. Each device has a background thread, its
//! watcher, which visits the device's queue pairs about once a millisecond; the software devices
//! have their own threads, and so has the CPU thread that writes doorbells for streams, where it is
//! used.
//!
//! # Features
//! `soft` is the software GPU and `emulated` the virtual NIC in the process, both on by default.
//! Without them (`default-features = false`) a program carries no emulator and is built without a
//! C++ compiler. A setting that names an emulator is an error then ([`Kind::Unsupported`]), and the
//! types and functions of the emulators do not exist: `gpu::soft`, `Gpu::soft`, `EmulatedOptions`,
//! `Device::emulated` and related ones. `serde`, off by default, makes
//! [`QpAddress`](rdma::QpAddress), [`PortAddress`](rdma::PortAddress) and
//! [`RemoteMemory`](rdma::RemoteMemory) values of serde.
//!
//! # Environment
//! `GDS_TRACE`, `GDS_LOWER`, `GDS_CONSISTENCY`, `GDS_PROVIDER`, `GDS_DOORBELL`, `GDS_NIC`,
//! `GDS_FAULTS`, the settings of a queue pair's path ([`QpConfig`](rdma::QpConfig)) and the paths of
//! libraries: see `docs/env.md`.

/// The library's decisions as functions over facts, for programs that report on a machine.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod decide {
    pub use crate::env::Variable;
    pub use crate::gpu::{
        GpuName, SOFT_CAPS, auto_goes_on, cuda_caps, cuda_refusal, driver_too_old, wait_limits,
    };
    pub use crate::nic::{NicName, first_that_works};
    pub use crate::provider::ibv::nearest_first;
}
mod env;
mod error;
pub mod gpu;
/// Internals for the tests and experiments of this repository. They may change with every version.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    pub use crate::kernels::*;
    pub use crate::memop::{Batch, Op, Width};
}
#[cfg_attr(not(feature = "internals"), allow(dead_code))]
mod kernels;
/// The rank of this process, read from a launcher's variables.
pub mod launcher {
    pub use gdsync_sys::launcher::rank;
}
#[cfg_attr(not(feature = "internals"), allow(dead_code))]
mod memop;
#[doc(hidden)]
pub mod mutant;
mod nic;
mod open;
mod options;
mod provider;
pub mod rdma;
mod ring;
mod status;
// Unit tests use the steps of the integration tests too; these name the crate from outside.
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
#[cfg(test)]
extern crate self as gdsync;
#[cfg(test)]
mod testing;
#[cfg(test)]
#[path = "../tests/virtual_nic/mod.rs"]
mod virtual_nic;

pub use error::{Error, Kind, Result};
pub use gpu::{Gpu, Stream};
#[cfg(feature = "emulated")]
pub use provider::emulated::EmulatedOptions;
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub use ring::cq::preset_byte;
pub use status::Status;

/// The guarantees of the section on threads.
const _: () = {
    const fn send<T: Send>() {}
    const fn shared<T: Send + Sync>() {}
    shared::<Gpu>();
    shared::<Stream>();
    shared::<gpu::Event>();
    shared::<gpu::Kernel>();
    shared::<gpu::Module>();
    shared::<gpu::Region>();
    shared::<gpu::Span>();
    shared::<gpu::Word32>();
    shared::<gpu::Word64>();
    shared::<memop::Batch>();
    shared::<rdma::Destination>();
    shared::<rdma::Device>();
    shared::<rdma::Rails>();
    shared::<rdma::RailsMr>();
    shared::<rdma::Mr>();
    shared::<rdma::Pd>();
    // Values: requests, their results, options and errors.
    shared::<Error>();
    #[cfg(feature = "emulated")]
    shared::<EmulatedOptions>();
    shared::<gpu::SharedMemory>();
    #[cfg(feature = "soft")]
    shared::<gpu::soft::SoftOptions>();
    shared::<rdma::Completion>();
    shared::<rdma::Descriptor<'_>>();
    shared::<rdma::DeviceOptions>();
    shared::<rdma::QpAddress>();
    shared::<rdma::QpConfig>();
    shared::<rdma::ReceiveRequest>();
    shared::<rdma::RemoteMemory>();
    shared::<rdma::SendRequest>();
    shared::<rdma::Work<'_>>();
    // A queue pair has one owner and may move between threads.
    send::<rdma::Qp>();
};
