//! Passes objects of a program that uses [`cudarc`] to [`gdsync`]: its context, its streams, its
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
//! # Ownership
//! The program passes streams and device buffers as an [`Arc`]. The library keeps its reference
//! until none of its operations can access them, so memory in flight is never freed. The program
//! continues to use its own reference, for kernels, copies and reads. It passes page-locked host
//! buffers by value, because `cudarc` gives out slices of them, and devices may write at any time.
//! Each safe function has an unsafe counterpart that borrows: there the caller guarantees the
//! lifetime.
//!
//! # Order
//! `cudarc` orders the streams that use a buffer by events of its own. These events do not cover
//! operations that gdsync posts: enqueue the wait for a message on the stream that uses the buffer,
//! or order the streams by an event.
//!
//! # Without CUDA
//! `cudarc` panics when it is called without a libcuda. [`open`] and [`present`] check first; a
//! program that calls one of them before any other function gets an error instead.

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

/// Whether `cudarc` can be called because it finds a libcuda. `cudarc` itself reports the absence
/// of a GPU without a panic.
///
/// # Errors
/// [`Error::Absent`].
pub fn present() -> Result<()> {
    // SAFETY: opening a libcuda runs its initialisers, which a caller of cudarc accepts.
    match unsafe { cudarc::driver::sys::is_culib_present() } {
        true => Ok(()),
        false => Err(Error::Absent),
    }
}

/// Opens the primary context of GPU `ordinal`; returns an error, not a panic, if CUDA is absent.
///
/// # Errors
/// [`Error::Absent`] without a libcuda; the error of CUDA if the GPU does not exist; gdsync's
/// `Absent` if libcuda lacks functions.
pub fn open(ordinal: usize) -> Result<Arc<CudaContext>> {
    present()?;
    // gdsync looks up all functions at once; cudarc looks up each at its use, and panics if it is
    // missing.
    Gpu::cuda(index(ordinal)?)?;
    cuda("open context", CudaContext::new(ordinal))
}

fn index(ordinal: usize) -> Result<u32> {
    u32::try_from(ordinal).map_err(|_| Error::NoSuchGpu(ordinal))
}

/// The GPU of a primary context ([`CudaContext::new`]). The [`Gpu`] retains the primary context, so
/// `context` may be dropped.
///
/// # Errors
/// [`Error::NotPrimary`] for another context; the errors of gdsync.
pub fn gpu(context: &CudaContext) -> Result<Gpu> {
    match context.is_primary() {
        true => Ok(Gpu::cuda(index(context.ordinal())?)?),
        false => Err(Error::NotPrimary),
    }
}

/// The GPU of any context.
///
/// # Safety
/// The context lives until the [`Gpu`] and everything made from it is dropped.
///
/// # Errors
/// The errors of gdsync.
pub unsafe fn gpu_of(context: &CudaContext) -> Result<Gpu> {
    // SAFETY: a context by its type; it lives by the caller's promise.
    Ok(unsafe { Gpu::cuda_context(context.cu_ctx().cast()) }?)
}

/// A stream of the program, to post operations on. The library keeps its reference to `stream`
/// while the result or a clone of it exists. It never synchronises or destroys the stream.
///
/// # Errors
/// `Invalid` for the default stream; `Foreign` for a stream of another context than `gpu`'s.
pub fn stream(gpu: &Gpu, stream: &Arc<CudaStream>) -> Result<gdsync::Stream> {
    let owner = Box::new(stream.clone());
    // SAFETY: a live stream, which its owner keeps until the library releases it.
    Ok(unsafe { gpu.cuda_stream_owned(stream.cu_stream().cast(), owner) }?)
}

/// As [`stream()`], for a borrowed stream.
///
/// # Safety
/// `stream` is dropped after the result, every clone of it and every operation posted on it.
///
/// # Errors
/// As [`stream()`].
pub unsafe fn stream_of(gpu: &Gpu, stream: &CudaStream) -> Result<gdsync::Stream> {
    // SAFETY: a live stream, which lives by the caller's promise.
    Ok(unsafe { gpu.cuda_stream(stream.cu_stream().cast()) }?)
}

/// A device buffer of the program, as a region that can be registered. The library keeps its
/// reference to `buffer` until the region and everything made from it (registrations, work in
/// flight) is gone. Messages can store any bytes in it, therefore `T` is [`Pod`].
///
/// The function waits until the buffer's stream has allocated it: do not enqueue a wait on that
/// stream before. If the GPU has memory pools, `cudarc` allocates from one. CUDA IPC cannot share
/// memory of a pool, and a NIC may not be able to register it.
///
/// # Errors
/// [`Error::Empty`] for a buffer without bytes; `Foreign` for a buffer of another GPU than `gpu`;
/// the errors of CUDA.
pub fn region<T: Pod>(gpu: &Gpu, buffer: &Arc<CudaSlice<T>>) -> Result<Region> {
    let (addr, len) = place(buffer)?;
    let owner = Box::new(buffer.clone());
    // SAFETY: device memory of that length, which its owner keeps until the library releases it.
    Ok(unsafe { gpu.adopt_owned(addr, len, owner) }?)
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
pub unsafe fn region_of<T>(gpu: &Gpu, buffer: &CudaSlice<T>) -> Result<Region> {
    let (addr, len) = place(buffer)?;
    // SAFETY: device memory of that length, which lives by the caller's promise.
    Ok(unsafe { gpu.adopt(addr, len) }?)
}

/// The address of a buffer and its length in bytes, once it is allocated.
fn place<T>(buffer: &CudaSlice<T>) -> Result<(DevicePtr, usize)> {
    if buffer.num_bytes() == 0 {
        return Err(Error::Empty);
    }
    let stream = buffer.stream();
    let addr = buffer.device_ptr(stream).0;
    cuda("wait for the allocation", stream.synchronize())?;
    Ok((DevicePtr(addr), buffer.num_bytes()))
}

/// A page-locked host buffer of the program, as a region. From now on it is read and written
/// through the region. It is freed when the region and everything made from it is gone.
///
/// # Errors
/// [`Error::Empty`] for a buffer without bytes; the errors of CUDA.
pub fn pinned<T: Pod + ValidAsZeroBits>(
    gpu: &Gpu,
    mut buffer: PinnedHostSlice<T>,
) -> Result<Region> {
    let (ptr, len) = host_place(&mut buffer)?;
    // SAFETY: host memory of that length; from here on only its owner accesses it, and the owner
    // keeps it until the library releases it.
    Ok(unsafe { gpu.adopt_owned(DevicePtr(ptr as u64), len, Box::new(buffer)) }?)
}

/// As [`pinned`], for a borrowed buffer.
///
/// # Safety
/// `buffer` lives as [`region_of`] requires, unless [`pinned`] keeps it; no slice of it is in use
/// while devices may write; no code relies on received bytes being a `T`.
///
/// # Errors
/// As [`pinned`].
pub unsafe fn pinned_of<T: ValidAsZeroBits>(
    gpu: &Gpu,
    buffer: &mut PinnedHostSlice<T>,
) -> Result<Region> {
    let (ptr, len) = host_place(buffer)?;
    // SAFETY: host memory of that length, which lives by the caller's promise.
    Ok(unsafe { gpu.adopt(DevicePtr(ptr as u64), len) }?)
}

fn host_place<T: ValidAsZeroBits>(buffer: &mut PinnedHostSlice<T>) -> Result<(*mut u8, usize)> {
    let ptr = cuda("wait for the buffer's copies", buffer.as_mut_ptr())?;
    match buffer.num_bytes() {
        0 => Err(Error::Empty),
        len => Ok((ptr.cast(), len)),
    }
}
