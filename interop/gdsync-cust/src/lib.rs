//! What a program made with [`cust`], handed in to [`gdsync`]: its context, its streams, its
//! device buffers and its page-locked host buffers.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use cust::prelude::*;
//!
//! let context = cust::quick_init()?;
//! let stream = Arc::new(Stream::new(StreamFlags::NON_BLOCKING, None)?);
//! let buffer = Arc::new(DeviceBuffer::<u32>::zeroed(1024)?);
//!
//! let gpu = gdsync_cust::gpu(&context)?;
//! let on = gdsync_cust::stream(&gpu, stream.clone())?; // post sends and waits on it
//! let region = gdsync_cust::region(&gpu, buffer.clone())?; // register it with a device
//! # Ok(())
//! # }
//! ```
//!
//! # Who owns what
//! Streams and device buffers are handed in as an [`Arc`]: the library keeps its share until
//! nothing of it can touch them any more, so memory in flight is never freed, and the program
//! keeps using its own share, for kernels, copies and reading. Page-locked host buffers are
//! handed in by value, because `cust` gives out slices of them, and devices may write at any time.
//! Beside each safe function stands an unsafe one that borrows: the caller promises the rest.
//!
//! # Building
//! `cust` builds without a CUDA installation where the workspace has the patch of
//! `interop/cust-patch`; nothing here needs it.

mod error;

use std::sync::Arc;

use bytemuck::Pod;
use cust::context::legacy::{ContextStack, CurrentContext};
use cust::context::{Context, ContextHandle};
use cust::device::Device;
use cust::memory::{DeviceBuffer, DeviceCopy, LockedBuffer};
use cust::stream::Stream;
use gdsync::Gpu;
use gdsync::gpu::{DevicePtr, Region};

use error::cuda;
pub use error::{Error, Result};

/// The GPU of a context of `cust`, which is the primary context of its device. The [`Gpu`] holds
/// on to the primary context by itself, so `context` may go.
///
/// # Errors
/// What CUDA says, or gdsync: `Absent` without a libcuda that it can use.
pub fn gpu(context: &Context) -> Result<Gpu> {
    let device = device_of(context)?;
    for index in 0..cuda("count devices", Device::num_devices())? {
        if cuda("get device", Device::get_device(index))?.as_raw() == device.as_raw() {
            return Ok(Gpu::cuda(index)?);
        }
    }
    Err(Error::Cuda {
        operation: "find the device of a context",
        source: cust::error::CudaError::InvalidDevice,
    })
}

/// The device of `context`, whatever context is current before and after.
fn device_of(context: &Context) -> Result<Device> {
    cuda("push context", ContextStack::push(context))?;
    let device = CurrentContext::get_device();
    cuda("pop context", ContextStack::pop())?;
    cuda("get the context's device", device)
}

/// The GPU of any context: one that `cust`'s legacy API made, or that somebody else did.
///
/// # Safety
/// The context stays until the [`Gpu`] and everything made of it is gone.
///
/// # Errors
/// As [`gpu`].
pub unsafe fn gpu_of<C: ContextHandle>(context: &C) -> Result<Gpu> {
    // SAFETY: a context by its type, which stays by the caller's promise.
    Ok(unsafe { Gpu::cuda_context(context.get_inner().cast()) }?)
}

/// A stream of the program, to post on. The library keeps its share of `stream` for as long as
/// the result, or a clone of it, is there; it never synchronises or destroys it.
///
/// # Errors
/// `Foreign` if it is a stream of another context than `gpu`'s.
pub fn stream(gpu: &Gpu, stream: Arc<Stream>) -> Result<gdsync::Stream> {
    let raw = stream.as_inner().cast();
    // SAFETY: a live stream, which its owner keeps until the library lets go of it.
    Ok(unsafe { gpu.cuda_stream_owned(raw, Box::new(stream)) }?)
}

/// As [`stream()`], borrowed.
///
/// # Safety
/// `stream` is dropped after the result, every clone of it and everything posted on it.
///
/// # Errors
/// As [`stream()`].
pub unsafe fn stream_of(gpu: &Gpu, stream: &Stream) -> Result<gdsync::Stream> {
    // SAFETY: a live stream, which stays by the caller's promise.
    Ok(unsafe { gpu.cuda_stream(stream.as_inner().cast()) }?)
}

/// A device buffer of the program, as a region that can be registered. The library keeps its
/// share of `buffer` until the region and everything made of it (registrations, work in flight)
/// is gone. Any bytes may arrive in it, hence [`Pod`].
///
/// # Errors
/// [`Error::Empty`] for a buffer without bytes; `Foreign` for one that is not `gpu`'s.
pub fn region<T: DeviceCopy + Pod + Send + Sync>(
    gpu: &Gpu,
    buffer: Arc<DeviceBuffer<T>>,
) -> Result<Region> {
    let (addr, len) = place(&buffer)?;
    // SAFETY: device memory of that length, which its owner keeps until the library lets go.
    Ok(unsafe { gpu.adopt_owned(addr, len, Box::new(buffer)) }?)
}

/// As [`region()`], borrowed.
///
/// # Safety
/// `buffer` stays as long as anything can reach the region: handles, registrations, requests in
/// flight, and streams with enqueued operations. The library holds a region beyond the caller's
/// last handle, so this is for buffers that stay until the process ends; [`region()`] keeps any
/// other. No code relies on received bytes being a `T`.
///
/// # Errors
/// As [`region()`].
pub unsafe fn region_of<T: DeviceCopy>(gpu: &Gpu, buffer: &DeviceBuffer<T>) -> Result<Region> {
    let (addr, len) = place(buffer)?;
    // SAFETY: device memory of that length, which stays by the caller's promise.
    Ok(unsafe { gpu.adopt(addr, len) }?)
}

/// Where a buffer lies, and its bytes.
fn place<T: DeviceCopy>(buffer: &DeviceBuffer<T>) -> Result<(DevicePtr, usize)> {
    match buffer.len() * size_of::<T>() {
        0 => Err(Error::Empty),
        len => Ok((DevicePtr(buffer.as_device_ptr().as_raw()), len)),
    }
}

/// A page-locked host buffer of the program, as a region. It is read and written through the
/// region from now on, and freed when the region and everything made of it is gone.
///
/// # Errors
/// [`Error::Empty`] for a buffer without bytes; `Foreign` if `gpu` is not one of CUDA.
pub fn pinned<T: DeviceCopy + Pod + Send>(
    gpu: &Gpu,
    mut buffer: LockedBuffer<T>,
) -> Result<Region> {
    let (ptr, len) = host_place(&mut buffer)?;
    // SAFETY: host memory of that length, which only its owner knows from here on, and which
    // that keeps until the library lets go.
    Ok(unsafe { gpu.adopt_owned(DevicePtr(ptr as u64), len, Box::new(HostOwner(buffer))) }?)
}

/// Keeps a page-locked buffer; nobody reads it through this.
struct HostOwner<T: DeviceCopy>(#[allow(dead_code)] LockedBuffer<T>);

// SAFETY: page-locked memory may be freed by any thread, and its elements may move to it.
unsafe impl<T: DeviceCopy + Send> Send for HostOwner<T> {}
// SAFETY: nothing can be done with a reference to it.
unsafe impl<T: DeviceCopy> Sync for HostOwner<T> {}

/// As [`pinned`], borrowed.
///
/// # Safety
/// `buffer` stays as [`region_of`] says, unless [`pinned`] keeps it; no slice of it is in use while
/// devices may write; no code relies on received bytes being a `T`.
///
/// # Errors
/// As [`pinned`].
pub unsafe fn pinned_of<T: DeviceCopy>(gpu: &Gpu, buffer: &mut LockedBuffer<T>) -> Result<Region> {
    let (ptr, len) = host_place(buffer)?;
    // SAFETY: host memory of that length, which stays by the caller's promise.
    Ok(unsafe { gpu.adopt(DevicePtr(ptr as u64), len) }?)
}

fn host_place<T: DeviceCopy>(buffer: &mut LockedBuffer<T>) -> Result<(*mut u8, usize)> {
    let slice = buffer.as_mut_slice();
    match size_of_val(slice) {
        0 => Err(Error::Empty),
        len => Ok((slice.as_mut_ptr().cast(), len)),
    }
}
