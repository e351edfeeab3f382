//! The kernels of a message: what the stream does with it besides the network.
//!
//! Each is one function of C++ in `device/`: compiled to PTX that is part of the library, for
//! CUDA, and by the host compiler, for the soft GPU. Two are for the receiver's half
//! ([`Unpack`]) and the sender's ([`Stamp`]), each in two sizes: what a kernel is launched with is
//! copied, so the usual message has the small one. The third copies what a rank sends to itself
//! ([`Puts`]).

mod params;
#[cfg(test)]
mod tests;

use gdsync::gpu::{Dims, Kernel, KernelImage, Word64};
use gdsync::{Gpu, Stream};

use crate::error::Result;

pub(crate) use params::{MOST_CHUNKS, PUTS, Patch, Puts, SEGMENTS, Segment, Stamp, Unpack};

static IMAGE: KernelImage = gdsync::kernel_image!("mp_kernels");

/// The kernels, loaded on one GPU. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Kernels {
    unpack_1: Kernel,
    unpack_30: Kernel,
    stamp_1: Kernel,
    stamp_16: Kernel,
    put: Kernel,
    unpack: Dims,
    stamp: Dims,
}

impl Kernels {
    /// Those of `gpu`, loaded with its first context: the driver lets loading stand behind waits,
    /// so later contexts must not need it.
    ///
    /// # Errors
    /// Those of [`Gpu::load`].
    pub fn of(gpu: &Gpu) -> Result<Kernels> {
        let module = gpu.load(&IMAGE)?;
        let block = |threads: u32| {
            // One thread of the soft GPU copies as fast as many.
            let most = gpu.dims_for(threads.into()).block[0];
            Dims::linear(1, threads.min(most))
        };
        Ok(Kernels {
            unpack_1: module.kernel("mp_unpack_1")?,
            unpack_30: module.kernel("mp_unpack_30")?,
            stamp_1: module.kernel("mp_stamp_1")?,
            stamp_16: module.kernel("mp_stamp_16")?,
            put: module.kernel("mp_put")?,
            unpack: block(256),
            stamp: block(32),
        })
    }

    /// Enqueues the receiver's half of a message. One that waits for the word says what comes to
    /// which value behind it: `passed`.
    ///
    /// # Safety
    /// Every address in `params` that is not 0 is valid on the stream's GPU until the stream has
    /// run it, for as many bytes as [`Unpack`] says, and nobody relies on what it overwrites. The
    /// segments overlap neither each other nor what is copied from.
    ///
    /// # Errors
    /// Those of [`Stream::launch`] and [`Stream::launch_waiting`].
    #[inline]
    pub unsafe fn unpack<const N: usize>(
        &self,
        stream: &Stream,
        params: &Unpack<N>,
        passed: Option<(&Word64, u64)>,
    ) -> Result<()> {
        const { assert!(N == 1 || N == SEGMENTS) };
        debug_assert!(params.segments as usize <= N);
        debug_assert!(params.waits == 1 || passed.is_none());
        let kernel = if N == 1 {
            &self.unpack_1
        } else {
            &self.unpack_30
        };
        // SAFETY: the kernel accesses what `Unpack` names, which the caller vouches for.
        unsafe {
            match passed {
                None => stream.launch(kernel, self.unpack, params.bytes())?,
                Some(passed) => {
                    stream.launch_waiting(kernel, self.unpack, params.bytes(), passed)?
                }
            }
        }
        Ok(())
    }

    /// Enqueues the sender's half of a message.
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with [`Stamp`]; fields of work requests belong to requests that
    /// no NIC has been told of and that stay prepared until the stream has run this.
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    #[inline]
    pub unsafe fn stamp<const N: usize>(&self, stream: &Stream, params: &Stamp<N>) -> Result<()> {
        const { assert!(N == 1 || N == MOST_CHUNKS) };
        debug_assert!(params.chunks as usize <= N);
        debug_assert!(u64::from(params.chunks).saturating_mul(params.chunk) >= params.size);
        let kernel = if N == 1 {
            &self.stamp_1
        } else {
            &self.stamp_16
        };
        // SAFETY: the kernel accesses what `Stamp` names, which the caller vouches for.
        unsafe { stream.launch(kernel, self.stamp, params.bytes()) }?;
        Ok(())
    }

    /// Enqueues puts of a rank to itself, of at most so many bytes.
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with [`Puts`] and the WQEs that it names.
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    pub unsafe fn put(&self, stream: &Stream, params: &Puts<PUTS>, bytes: u64) -> Result<()> {
        // Blocks do not wait for each other: what comes in an order is one block's.
        let dims = match (params.count, params.done) {
            (1, 0) => stream.gpu().dims_for(bytes / 64),
            _ => self.unpack,
        };
        // SAFETY: the kernel accesses what `Puts` names, which the caller vouches for.
        Ok(unsafe { stream.launch(&self.put, dims, params.bytes()) }?)
    }
}
