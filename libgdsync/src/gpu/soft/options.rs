//! The options of a software GPU, and the environment variables of their defaults.

use softgpu::Weak;

use crate::env::Variable;
use crate::gpu::SOFT_CAPS;
use crate::memop::Caps;
use crate::options::setters;

/// The options of a software GPU, for [`Gpu::soft_with`](crate::Gpu::soft_with) (feature `soft`). The
/// defaults correspond to a current GPU under CUDA: 64-bit memory operations, NOR and flush, no masks,
/// 255 operations per submission. `GDS_SOFT_CAPS=hip` makes [`SoftOptions::hip`] the defaults.
///
/// ```
/// use gdsync::gpu::soft::SoftOptions;
///
/// let narrow = SoftOptions::default().caps.memops64(false);
/// let options = SoftOptions::default().caps(narrow).channels(4);
/// assert_eq!((options.caps.batch_limit, options.channels), (255, 4));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SoftOptions {
    /// The capabilities of its streams.
    pub caps: Caps,
    /// The maximum number of submissions on one stream, 1 to 1,048,576; a further submission blocks
    /// the caller. Default: 1024.
    pub stream_bound: usize,
    /// The number of hardware channels, at least 1: the number of waiting streams at which all
    /// other streams block. The library permits one waiting stream fewer. Default: 8.
    pub channels: usize,
    /// Deliberately weak memory ordering, with its seed, to find missing fences and flushes;
    /// `None`: no weakening, the default.
    pub weak: Option<Weak>,
    /// The threads of a warp: 32, as on CUDA, or 64, as on most GPUs of AMD. `None`: those of the variable
    /// `GDS_SOFT_WARP`, else 32.
    pub warp: Option<u32>,
}

setters! { SoftOptions {
    caps: Caps,
    stream_bound: usize,
    channels: usize,
} optional {
    weak: Weak,
    warp: u32,
} }

pub(super) const WARP: Variable<u32> = Variable {
    name: "GDS_SOFT_WARP",
    former_name: None,
    words: &[("32", 32), ("64", 64)],
    former_words: &[],
};

/// The runtime to which the defaults correspond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Like {
    Cuda,
    Hip,
}

pub(super) const LIKE: Variable<Like> = Variable {
    name: "GDS_SOFT_CAPS",
    former_name: None,
    words: &[("cuda", Like::Cuda), ("hip", Like::Hip)],
    former_words: &[],
};

impl SoftOptions {
    /// Options that correspond to a GPU under HIP: masks, no flush, waits that compare unsigned
    /// numbers, word operations in graphs by kernels, 4 channels.
    pub fn hip() -> SoftOptions {
        SoftOptions {
            caps: SOFT_CAPS
                .mask(true)
                .cyclic(false)
                .flush(false)
                .captures(false),
            channels: 4,
            ..SoftOptions::cuda()
        }
    }

    /// Options that correspond to a current GPU under CUDA.
    pub fn cuda() -> SoftOptions {
        SoftOptions {
            caps: SOFT_CAPS,
            stream_bound: 1024,
            channels: 8,
            weak: None,
            warp: None,
        }
    }
}

impl Default for SoftOptions {
    /// An invalid `GDS_SOFT_CAPS` counts as unset here; the call that opens the GPU refuses it.
    fn default() -> SoftOptions {
        match LIKE.read() {
            Ok(Like::Hip) => SoftOptions::hip(),
            Ok(Like::Cuda) | Err(_) => SoftOptions::cuda(),
        }
    }
}
