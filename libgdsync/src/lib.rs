//! RDMA verbs on GPU streams: work requests and completions become memory operations of a stream.
//!
//! A GPU application enqueues its messages on the stream that runs its kernels. The CPU *prepares*
//! a work request: it writes the entry (WQE) into the send queue of a queue pair (QP). The request
//! is then *posted on a stream*: two memory operations of the stream write the doorbell record and
//! the doorbell of the NIC, and others wait for the completion entry (CQE). After these operations
//! are enqueued, the CPU does nothing more for the message.
//!
//! This program runs on any machine: a stream of a software GPU sends 13 bytes from one queue pair
//! of a virtual NIC to another.
//!
//! ```
//! use std::time::Duration;
//!
//! use gdsync::gpu::MemoryKind;
//! use gdsync::rdma::{Access, Descriptor, Device, QpConfig, Work};
//! use gdsync::Gpu;
//!
//! fn main() -> gdsync::Result<()> {
//!     let gpu = Gpu::soft()?; // `Gpu::from_env` takes a CUDA or HIP GPU if there is one
//!     let device = Device::emulated(&gpu)?; // `Device::from_env` takes an RDMA NIC
//!     let pd = device.alloc_pd()?;
//!     let mut a = pd.create_qp(&QpConfig::default())?;
//!     let mut b = pd.create_qp(&QpConfig::default())?;
//!     a.connect(&b.address())?; // an address is 64 bytes, sent to the peer by any means
//!     b.connect(&a.address())?;
//!     let memory = pd.register(&gpu.alloc(MemoryKind::Device, 64)?, Access::ALL)?;
//!     let stream = gpu.stream()?;
//!
//!     let recv = b.prepare_receive(&[memory.sge(32, 32)])?;
//!     b.post_receive(recv)?;
//!     memory.region().write(0, b"hello, stream")?;
//!     let send = a.prepare(&Work::send(&[memory.sge(0, 13)]).signaled())?;
//!     a.post_on(&stream, &[Descriptor::Send(send), Descriptor::wait(send)])?;
//!     b.post_on(&stream, &[Descriptor::wait_flushed(recv)])?;
//!     // A kernel that is enqueued here finds the 13 bytes at offset 32.
//!
//!     assert!(stream.synchronize(Duration::from_secs(10))?);
//!     assert_eq!(b.received(recv)?.len, 13);
//!     Ok(())
//! }
//! ```
//!
//! # Map
//!
//! | module [`gpu`] | what it is |
//! | --- | --- |
//! | [`Gpu`] | one GPU of a runtime: allocates memory, creates and adopts streams, loads kernels |
//! | [`Stream`], [`Event`](gpu::Event) | a stream of the application, and a position in it |
//! | [`Region`](gpu::Region), [`MemoryKind`](gpu::MemoryKind) | memory that GPU, NIC and CPU share; its location |
//! | [`Span`](gpu::Span), [`Word32`](gpu::Word32), [`Word64`](gpu::Word64), [`DevicePtr`](gpu::DevicePtr) | parts of a region, and an address on the GPU |
//! | [`SharedMemory`](gpu::SharedMemory) | a handle by which another process opens GPU memory |
//! | [`KernelImage`](gpu::KernelImage), [`Module`](gpu::Module), [`Kernel`](gpu::Kernel), [`Dims`](gpu::Dims) | kernels of the application: compiled by the crate `gdsync-build`, loaded, launched |
//! | [`Condition`](gpu::Condition), [`Caps`](gpu::Caps), [`Consistency`](gpu::Consistency) | conditions of waits; what the streams of a GPU can do; how NIC writes become visible |
//! | [`gpu::soft`] | the options of a software GPU, and its own types |
//!
//! | module [`rdma`] | what it is |
//! | --- | --- |
//! | [`Device`](rdma::Device), [`DeviceOptions`](rdma::DeviceOptions), [`Provider`](rdma::Provider), [`NicChoice`](rdma::NicChoice) | one port of a NIC, opened for a GPU; the choice of NIC and provider |
//! | [`Pd`](rdma::Pd), [`Mr`](rdma::Mr), [`Sge`](rdma::Sge), [`Access`](rdma::Access) | protection domains, memory regions and their parts, access rights |
//! | [`Qp`](rdma::Qp), [`QpConfig`](rdma::QpConfig), [`Transport`](rdma::Transport) | queue pairs: reliable connections or datagrams |
//! | [`Work`](rdma::Work), [`SendRequest`](rdma::SendRequest), [`ReceiveRequest`](rdma::ReceiveRequest) | a work request, and the handles of prepared requests |
//! | [`Completion`](rdma::Completion), [`Received`](rdma::Received) | what a stream or the CPU waits for; the result of a receive |
//! | [`Descriptor`](rdma::Descriptor), [`Word`](rdma::Word), [`post_on`](rdma::post_on) | one action of a stream; the words that it names; a list of actions in one submission |
//! | [`Field`](rdma::Field) | a field of a prepared WQE that a stream or kernel may change |
//! | [`QpAddress`](rdma::QpAddress), [`RemoteMemory`](rdma::RemoteMemory), [`RemoteSpan`](rdma::RemoteSpan) | the records that two peers exchange before they communicate |
//! | [`Destination`](rdma::Destination), [`Source`](rdma::Source), [`GRH`](rdma::GRH) | datagrams: to which queue pair, from which one, the header before the data |
//! | [`Rails`](rdma::Rails), [`RailsMr`](rdma::RailsMr) | several NICs and ports of one GPU |
//! | [`Doorbell`](rdma::Doorbell), [`Lowering`](rdma::Lowering) | which side writes the doorbell; memory operations or kernels |
//!
//! | in the root | what it is |
//! | --- | --- |
//! | [`Error`], [`Kind`], [`Result`] | the error of every call of this crate |
//! | [`Status`] | the outcome of a request, as the CPU, streams and kernels read it |
//! | [`EmulatedOptions`], [`Faults`], [`Hub`] | the options of a virtual NIC: faults of packets, and the fabric of one process |
//! | [`launcher`] | the rank of this process in its job |
//!
//! # Choosing a GPU and a NIC
//! [`Gpu::from_env`] takes the first runtime that has a usable GPU: CUDA, HIP, the software GPU;
//! `GDS_GPU` overrides that. [`Gpu::open`] takes a name (`cuda:1`). [`Gpu::cuda_context`] takes the
//! context of an application that uses CUDA already; [`Gpu::cuda_stream`] then adopts its streams,
//! and [`Gpu::adopt`] its memory.
//!
//! [`Device::from_env`](rdma::Device::from_env) takes the first provider that works; `GDS_PROVIDER`
//! and `GDS_NIC` override that:
//!
//! 1. [`Device::mlx5`](rdma::Device::mlx5): a ConnectX. The stream writes the doorbell of the NIC.
//! 2. [`Device::verbs`](rdma::Device::verbs): any NIC. A stream posts its requests to a CPU thread,
//!    and the thread posts them to the NIC.
//! 3. [`Device::emulated`](rdma::Device::emulated): a virtual ConnectX in this process. It reaches
//!    the processes of its host.
//!
//! Both peers must use the same kind: a virtual NIC in the process reaches no other NIC.
//! [`Rails::from_env`](rdma::Rails::from_env) opens several NICs. `mlx5` and `verbs` have run over
//! a virtual ConnectX, `verbs` also over soft-RoCE; neither has run on a physical NIC.
//! `docs/paths.md` describes each choice.
//!
//! # Order
//! A send queue is a FIFO. Requests are posted in the order in which they were prepared, by the
//! CPU or by any stream; any other order is an error of kind [`Kind::OutOfOrder`]. If another
//! stream posted last, the stream that posts next waits until the other one has written the
//! doorbell record. Within one stream all operations run in order; every doorbell is fenced against
//! the earlier writes of the stream.
//!
//! # Completion
//! A stream passes a wait by itself only when the request has completed *with success*; after a
//! failure the library releases the stream. A request for which a stream waits retires without a
//! further call, however many requests pass through the queue. Queues are bounded; a full queue is
//! an error ([`Kind::QueueFull`]) or, with the calls that end in `_within`, a bounded wait. A NIC's
//! write to GPU memory can become visible later than its completion entry: a wait for received data
//! is a [`Descriptor::wait_flushed`](rdma::Descriptor::wait_flushed).
//!
//! # Errors
//! When a request fails, its queue pair enters the error state and all later requests are flushed.
//! A watcher stores the status of each request and the queue pair's error word. After that it
//! releases the streams that wait for these requests. So neither the CPU nor a stream nor a kernel
//! hangs or takes a failure for success: after a wait, the error word
//! ([`Qp::error_word`](rdma::Qp::error_word)) is 0 unless a request failed. A peer that does not
//! answer is an error too, after the time limit of
//! [`QpConfig::timeout`](field@rdma::QpConfig::timeout) or of the wait.
//!
//! # Threads
//! Every type is `Send`. GPUs, streams, memory, devices and registrations are `Sync`; a queue pair
//! has one owner, because its calls take `&mut self`. Each device has a background thread, its
//! watcher, which visits the queue pairs of the device about once a millisecond. Software devices
//! have threads that execute them. A CPU thread that writes doorbells for streams starts with the
//! first queue pair that uses it.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! | --- | --- | --- |
//! | `soft` | on | the software GPU: [`Gpu::soft`], [`gpu::soft`]; its kernels need a C++ compiler |
//! | `emulated` | on | the virtual NIC in the process: [`Device::emulated`](rdma::Device::emulated), [`EmulatedOptions`], [`Faults`], [`Hub`] |
//! | `serde` | off | the traits of serde for [`QpAddress`](rdma::QpAddress), [`PortAddress`](rdma::PortAddress) and [`RemoteMemory`](rdma::RemoteMemory) |
//!
//! Without `soft` and `emulated` (`default-features = false`) a program contains no emulator and is
//! built without a C++ compiler. A setting that names an emulator is then an error
//! ([`Kind::Unsupported`]), and the types and functions of the emulators do not exist. The other
//! features are for the tests of this repository.
//!
//! # Environment
//! `GDS_GPU`, `GDS_PROVIDER`, `GDS_NIC`, `GDS_GID_INDEX`, `GDS_DOORBELL`, `GDS_VERBS_THREAD`,
//! `GDS_LOWER`, `GDS_CONSISTENCY`, `GDS_TRACE`, `GDS_FAULTS`, the settings of a queue pair's path
//! ([`QpConfig`](rdma::QpConfig)) and the paths of libraries: `docs/env.md` describes each. A
//! setting in code overrides the variable. An invalid value is an error of kind [`Kind::Invalid`].

#![deny(
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::missing_safety_doc
)]

/// The library's decisions as functions over facts, for programs that report on a machine.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod decide {
    pub use crate::env::Variable;
    pub use crate::gpu::{
        GpuName, SOFT_CAPS, auto_goes_on, cuda_caps, cuda_refusal, driver_too_old,
        hip_architecture, hip_caps, hip_refusal, hip_runtime_refusal, wait_limits,
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
    /// The bytes of a connection of the provider `tcp`.
    pub mod tcp {
        pub use crate::provider::tcp::protocol::*;
    }
}
#[cfg_attr(not(feature = "internals"), allow(dead_code))]
mod kernels;
/// The rank of this process in its job, as its launcher set it in the environment.
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
pub use provider::emulated::{EmulatedOptions, Faults, Hub};
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
