//! Passes objects of a program that uses [`cust`] to [`gdsync`]: its context, its streams, its
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
//! # Ownership
//! The program passes streams and device buffers as an [`Arc`]. The library keeps its reference
//! until none of its operations can access them, so memory in flight is never freed. The program
//! continues to use its own reference, for kernels, copies and reads. It passes page-locked host
//! buffers by value, because `cust` gives out slices of them, and devices may write at any time.
//! Each safe function has an unsafe counterpart that borrows: there the caller guarantees the
//! lifetime.
//!
//! # Building
//! `cust` builds without a CUDA installation if the workspace has the patch of
//! `interop/cust-patch`; this crate does not need the patch.

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

/// The GPU of a context of `cust`, which is the primary context of its device. The [`Gpu`] retains
/// the primary context, so `context` may be dropped.
///
/// # Errors
/// The errors of CUDA, or of gdsync: `Absent` without a usable libcuda.
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

/// The device of `context`; the current context is the same before and after.
fn device_of(context: &Context) -> Result<Device> {
    cuda("push context", ContextStack::push(context))?;
    let device = CurrentContext::get_device();
    cuda("pop context", ContextStack::pop())?;
    cuda("get the context's device", device)
}

/// The GPU of any context, for example one that `cust`'s legacy API or another library made.
///
/// # Safety
/// The context lives until the [`Gpu`] and everything made from it is dropped.
///
/// # Errors
/// As [`gpu`].
pub unsafe fn gpu_of<C: ContextHandle>(context: &C) -> Result<Gpu> {
    // SAFETY: a context by its type; it lives by the caller's promise.
    Ok(unsafe { Gpu::cuda_context(context.get_inner().cast()) }?)
}

/// A stream of the program, to post operations on. The library keeps its reference to `stream`
/// while the result or a clone of it exists. It never synchronises or destroys the stream.
///
/// # Errors
/// `Foreign` if the stream belongs to another context than `gpu`.
pub fn stream(gpu: &Gpu, stream: Arc<Stream>) -> Result<gdsync::Stream> {
    let raw = stream.as_inner().cast();
    // SAFETY: a live stream, which its owner keeps until the library releases it.
    Ok(unsafe { gpu.cuda_stream_owned(raw, Box::new(stream)) }?)
}

/// As [`stream()`], for a borrowed stream.
///
/// # Safety
/// `stream` is dropped after the result, every clone of it and every operation posted on it.
///
/// # Errors
/// As [`stream()`].
pub unsafe fn stream_of(gpu: &Gpu, stream: &Stream) -> Result<gdsync::Stream> {
    // SAFETY: a live stream, which lives by the caller's promise.
    Ok(unsafe { gpu.cuda_stream(stream.as_inner().cast()) }?)
}

/// A device buffer of the program, as a region that can be registered. The library keeps its
/// reference to `buffer` until the region and everything made from it (registrations, work in
/// flight) is gone. Messages can store any bytes in it, therefore `T` is [`Pod`].
///
/// # Errors
/// [`Error::Empty`] for a buffer without bytes; `Foreign` for a buffer of another GPU than `gpu`.
pub fn region<T: DeviceCopy + Pod + Send + Sync>(
    gpu: &Gpu,
    buffer: Arc<DeviceBuffer<T>>,
) -> Result<Region> {
    let (addr, len) = place(&buffer)?;
    // SAFETY: device memory of that length, which its owner keeps until the library releases it.
    Ok(unsafe { gpu.adopt_owned(addr, len, Box::new(buffer)) }?)
}

/// As [`region()`], for a borrowed buffer.
///
/// # Safety
/// `buffer` lives as long as anything can reach the region: handles, registrations, requests in
/// flight, and streams with enqueued operations. The library holds a region beyond the caller's
/// last handle, so this function is for buffers that live until the process ends; [`region()`]
/// keeps all others. No code relies on received bytes being a `T`.
///
/// # Errors
/// As [`region()`].
pub unsafe fn region_of<T: DeviceCopy>(gpu: &Gpu, buffer: &DeviceBuffer<T>) -> Result<Region> {
    let (addr, len) = place(buffer)?;
    // SAFETY: device memory of that length, which lives by the caller's promise.
    Ok(unsafe { gpu.adopt(addr, len) }?)
}

/// The address of a buffer and its length in bytes.
fn place<T: DeviceCopy>(buffer: &DeviceBuffer<T>) -> Result<(DevicePtr, usize)> {
    match buffer.len() * size_of::<T>() {
        0 => Err(Error::Empty),
        len => Ok((DevicePtr(buffer.as_device_ptr().as_raw()), len)),
    }
}

/// A page-locked host buffer of the program, as a region. From now on it is read and written
/// through the region. It is freed when the region and everything made from it is gone.
///
/// # Errors
/// [`Error::Empty`] for a buffer without bytes; `Foreign` if `gpu` is not a GPU of CUDA.
pub fn pinned<T: DeviceCopy + Pod + Send>(
    gpu: &Gpu,
    mut buffer: LockedBuffer<T>,
) -> Result<Region> {
    let (ptr, len) = host_place(&mut buffer)?;
    // SAFETY: host memory of that length; from here on only its owner accesses it, and the owner
    // keeps it until the library releases it.
    Ok(unsafe { gpu.adopt_owned(DevicePtr(ptr as u64), len, Box::new(HostOwner(buffer))) }?)
}

/// Keeps a page-locked buffer; no code reads the buffer through this.
struct HostOwner<T: DeviceCopy>(#[allow(dead_code)] LockedBuffer<T>);

// SAFETY: any thread may free page-locked memory, and the elements may move to that thread.
unsafe impl<T: DeviceCopy + Send> Send for HostOwner<T> {}
// SAFETY: a reference to it has no operations.
unsafe impl<T: DeviceCopy> Sync for HostOwner<T> {}

/// As [`pinned`], for a borrowed buffer.
///
/// # Safety
/// `buffer` lives as [`region_of`] requires, unless [`pinned`] keeps it; no slice of it is in use
/// while devices may write; no code relies on received bytes being a `T`.
///
/// # Errors
/// As [`pinned`].
pub unsafe fn pinned_of<T: DeviceCopy>(gpu: &Gpu, buffer: &mut LockedBuffer<T>) -> Result<Region> {
    let (ptr, len) = host_place(buffer)?;
    // SAFETY: host memory of that length, which lives by the caller's promise.
    Ok(unsafe { gpu.adopt(DevicePtr(ptr as u64), len) }?)
}

fn host_place<T: DeviceCopy>(buffer: &mut LockedBuffer<T>) -> Result<(*mut u8, usize)> {
    let slice = buffer.as_mut_slice();
    match size_of_val(slice) {
        0 => Err(Error::Empty),
        len => Ok((slice.as_mut_ptr().cast(), len)),
    }
}
