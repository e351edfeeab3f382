//! What a program made with [`cudarc`], handed in to [`gdsync`]: its context, its streams, its
//! device buffers and its page-locked host buffers.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! let context = gdsync_cudarc::open(0)?; // CudaContext::new(0), and never a panic
//! let stream = context.new_stream()?;
//! let buffer = Arc::new(stream.alloc_zeros::<u32>(1024)?);
//!
//! let gpu = gdsync_cudarc::gpu(&context)?;
//! let on = gdsync_cudarc::stream(&gpu, &stream)?; // post sends and waits on it
//! let region = gdsync_cudarc::region(&gpu, &buffer)?; // register it with a device
//! # Ok(())
//! # }
//! ```
//!
//! # Who owns what
//! Streams and device buffers are handed in as an [`Arc`]: the library keeps a share until
//! nothing of it can touch them any more, so memory in flight is never freed, and the program
//! keeps using its own share, for kernels, copies and reading. Page-locked host buffers are
//! handed in by value, because `cudarc` gives out slices of them, and devices may write at any
//! time. Beside each safe function stands an unsafe one that borrows: the caller promises the rest.
//!
//! # Order
//! `cudarc` orders the streams that it knows to use a buffer by events of its own. What gdsync
//! posts is not among that: enqueue the wait for a message on the stream that uses the buffer, or
//! order the streams by an event.
//!
//! # Without CUDA
//! `cudarc` panics when it is called without a libcuda. [`open`] and [`present`] look first; a
//! program that calls one of them before everything else gets an error instead.

mod error;

use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr as _, PinnedHostSlice, ValidAsZeroBits,
};
use gdsync::Gpu;
use gdsync::gpu::{DevicePtr, Region};

use error::cuda;
pub use error::{Error, Result};

/// Whether `cudarc` can be called: it finds a libcuda. Whether there is a GPU is another
/// question, which it answers without a panic.
///
/// # Errors
/// [`Error::Absent`].
pub fn present() -> Result<()> {
    // SAFETY: opening a libcuda runs its initialisers, which is what a caller of cudarc wants.
    match unsafe { cudarc::driver::sys::is_culib_present() } {
        true => Ok(()),
        false => Err(Error::Absent),
    }
}

/// The primary context of GPU `ordinal`, and an error instead of a panic where there is none.
///
/// # Errors
/// [`Error::Absent`] without a libcuda; what CUDA says without such a GPU; gdsync's `Absent` with
/// a libcuda that lacks functions.
pub fn open(ordinal: usize) -> Result<Arc<CudaContext>> {
    present()?;
    // gdsync looks up what it needs at once, cudarc one by one, with a panic for what is missing.
    Gpu::cuda(index(ordinal)?)?;
    cuda("open context", CudaContext::new(ordinal))
}

fn index(ordinal: usize) -> Result<u32> {
    u32::try_from(ordinal).map_err(|_| Error::NoSuchGpu(ordinal))
}

/// The GPU of a primary context ([`CudaContext::new`]). The [`Gpu`] holds on to the primary
/// context by itself, so `context` may go.
///
/// # Errors
/// [`Error::NotPrimary`] for another context; what gdsync says.
pub fn gpu(context: &CudaContext) -> Result<Gpu> {
    match context.is_primary() {
        true => Ok(Gpu::cuda(index(context.ordinal())?)?),
        false => Err(Error::NotPrimary),
    }
}

/// The GPU of any context.
///
/// # Safety
/// The context stays until the [`Gpu`] and everything made of it is gone.
///
/// # Errors
/// What gdsync says.
pub unsafe fn gpu_of(context: &CudaContext) -> Result<Gpu> {
    // SAFETY: a context by its type, which stays by the caller's promise.
    Ok(unsafe { Gpu::cuda_context(context.cu_ctx().cast()) }?)
}

/// A stream of the program, to post on. The library keeps its share of `stream` for as long as
/// the result, or a clone of it, is there; it never synchronises or destroys it.
///
/// # Errors
/// `Invalid` for the default stream; `Foreign` for a stream of another context than `gpu`'s.
pub fn stream(gpu: &Gpu, stream: &Arc<CudaStream>) -> Result<gdsync::Stream> {
    let owner = Box::new(stream.clone());
    // SAFETY: a live stream, which its owner keeps until the library lets go of it.
    Ok(unsafe { gpu.cuda_stream_owned(stream.cu_stream().cast(), owner) }?)
}

/// As [`stream()`], borrowed.
///
/// # Safety
/// `stream` is dropped after the result, every clone of it and everything posted on it.
///
/// # Errors
/// As [`stream()`].
pub unsafe fn stream_of(gpu: &Gpu, stream: &CudaStream) -> Result<gdsync::Stream> {
    // SAFETY: a live stream, which stays by the caller's promise.
    Ok(unsafe { gpu.cuda_stream(stream.cu_stream().cast()) }?)
}

/// A device buffer of the program, as a region that can be registered. The library keeps its
/// share of `buffer` until the region and everything made of it (registrations, work in flight)
/// is gone. Any bytes may arrive in it, hence [`Pod`].
///
/// Waits until the buffer's stream has allocated it, so enqueue no wait there before. Where the
/// GPU has memory pools, `cudarc` allocates from one: such memory cannot be shared by CUDA IPC,
/// and a NIC may not be able to register it.
///
/// # Errors
/// [`Error::Empty`] for a buffer without bytes; `Foreign` for one that is not `gpu`'s; what CUDA
/// says.
pub fn region<T: Pod>(gpu: &Gpu, buffer: &Arc<CudaSlice<T>>) -> Result<Region> {
    let (addr, len) = place(buffer)?;
    let owner = Box::new(buffer.clone());
    // SAFETY: device memory of that length, which its owner keeps until the library lets go.
    Ok(unsafe { gpu.adopt_owned(addr, len, owner) }?)
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
pub unsafe fn region_of<T>(gpu: &Gpu, buffer: &CudaSlice<T>) -> Result<Region> {
    let (addr, len) = place(buffer)?;
    // SAFETY: device memory of that length, which stays by the caller's promise.
    Ok(unsafe { gpu.adopt(addr, len) }?)
}

/// Where a buffer lies, and its bytes, once it is allocated.
fn place<T>(buffer: &CudaSlice<T>) -> Result<(DevicePtr, usize)> {
    if buffer.num_bytes() == 0 {
        return Err(Error::Empty);
    }
    let stream = buffer.stream();
    let addr = buffer.device_ptr(stream).0;
    cuda("wait for the allocation", stream.synchronize())?;
    Ok((DevicePtr(addr), buffer.num_bytes()))
}

/// A page-locked host buffer of the program, as a region. It is read and written through the
/// region from now on, and freed when the region and everything made of it is gone.
///
/// # Errors
/// [`Error::Empty`] for a buffer without bytes; what CUDA says.
pub fn pinned<T: Pod + ValidAsZeroBits>(
    gpu: &Gpu,
    mut buffer: PinnedHostSlice<T>,
) -> Result<Region> {
    let (ptr, len) = host_place(&mut buffer)?;
    // SAFETY: host memory of that length, which only its owner knows from here on, and which
    // that keeps until the library lets go.
    Ok(unsafe { gpu.adopt_owned(DevicePtr(ptr as u64), len, Box::new(buffer)) }?)
}

/// As [`pinned`], borrowed.
///
/// # Safety
/// `buffer` stays as [`region_of`] says, unless [`pinned`] keeps it; no slice of it is in use while
/// devices may write; no code relies on received bytes being a `T`.
///
/// # Errors
/// As [`pinned`].
pub unsafe fn pinned_of<T: ValidAsZeroBits>(
    gpu: &Gpu,
    buffer: &mut PinnedHostSlice<T>,
) -> Result<Region> {
    let (ptr, len) = host_place(buffer)?;
    // SAFETY: host memory of that length, which stays by the caller's promise.
    Ok(unsafe { gpu.adopt(DevicePtr(ptr as u64), len) }?)
}

fn host_place<T: ValidAsZeroBits>(buffer: &mut PinnedHostSlice<T>) -> Result<(*mut u8, usize)> {
    let ptr = cuda("wait for the buffer's copies", buffer.as_mut_ptr())?;
    match buffer.num_bytes() {
        0 => Err(Error::Empty),
        len => Ok((ptr.cast(), len)),
    }
}
