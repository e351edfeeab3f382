//! Messages of more pieces than a list takes ([`Strided`]). Such a message has one segment, of
//! staging memory: a send is gathered into it when it is posted, by the CPU or by a kernel of its
//! stream, and a receive is scattered from it when its message is taken in.
//!
//! Except on the software GPU, streams also pack single pieces of device memory that go by TCP: the thread of the
//! TCP device would copy them by a copy engine, of which a short copy takes longer than a kernel. Such a
//! receive has staging memory, but is not packed: the kernel that takes its message in copies from there.

use gdsync::Stream;
use gdsync::gpu::MemoryKind;

use super::engine::Engine;
use super::post::POST;
use super::send::total;
use super::spec::{On, Source};
use crate::error::{Error, Kind, Result};
use crate::kernels::{Kernels, Pieces};
use crate::path::{MOST_BYTES, Path};
use crate::region::{Memory, Slice, Strided};
use crate::request::entry::{Common, Segments};

/// Bytes of the word behind the staged message, in which the kernel that takes it in stores how it
/// ended.
const WORD: usize = 8;

/// The bytes of the staged message, rounded up to the word.
fn word_at(len: usize) -> usize {
    len.next_multiple_of(WORD)
}

impl Engine {
    /// The length of a message of pieces, or of segments if `pieces` is `None`.
    pub(super) fn length(
        &self,
        operation: &'static str,
        segments: &[Slice],
        pieces: Option<&Strided>,
    ) -> Result<u64> {
        let Some(pieces) = pieces else {
            return total(&self.paths, operation, segments);
        };
        // Checks the context of the memory.
        total(&self.paths, operation, &[pieces.memory().slice(0, 0)?])?;
        let len = pieces.len() as u64;
        if len > MOST_BYTES {
            let what = format!(
                "{len} bytes in {} pieces are too many for a message",
                pieces.count()
            );
            let error = Error::new(operation, Kind::Invalid, what);
            return Err(error.with_limit(MOST_BYTES, "bytes"));
        }
        Ok(len)
    }

    /// Whether a kernel of the message's stream copies it through staging memory: one piece of at most 256 KiB of
    /// device memory, by TCP.
    pub(super) fn is_staged_by_tcp(
        &self,
        peer: Source,
        on: &On<'_>,
        segments: &[Slice],
        len: u64,
    ) -> Result<bool> {
        /// The thread of the TCP device streams longer messages through the copy engine while it sends and
        /// receives.
        const MOST: u64 = 256 << 10;
        let ([one], Source::Rank(rank)) = (segments, peer) else {
            return Ok(false);
        };
        Ok(self.config.packs.unwrap_or(!self.gpu.is_software())
            && on.stream().is_some()
            && (1..=MOST).contains(&len)
            && one.memory().region().kind() == MemoryKind::Device
            && self.path_to(rank)? == Path::Tcp)
    }

    /// Staging memory for a message of pieces.
    pub(super) fn stage_pieces(&self, pieces: &Strided) -> Result<Memory> {
        self.stage(word_at(pieces.len()) + WORD)
    }

    /// Enqueues the gathering of a send's pieces.
    pub(super) fn gather_on(
        &self,
        stream: &Stream,
        operation: &'static str,
        pieces: &Strided,
        staging: &Memory,
    ) -> Result<()> {
        let params = pieces.gathering(staging.region().addr().0);
        // SAFETY: the entry keeps both memories until the request ends. That is behind this kernel, or the post
        // was refused behind it: gdsync then keeps what is released until streams have run the work enqueued by
        // then. `Strided` has checked that the pieces are in their memory, and the staging memory has room for
        // all of them.
        unsafe { self.kernels(operation)?.strided(stream, &params) }
    }
}

/// The pieces of a message, and the staging memory that it is packed in.
pub(super) fn staged<'r>(
    pieces: Option<&'r Strided>,
    common: &'r Common,
) -> Option<(&'r Strided, &'r Memory)> {
    match &common.segments {
        Segments::One(staging) => Some((pieces?, staging.memory())),
        _ => None,
    }
}

/// Refuses staging memory to which a kernel of another stream may write.
///
/// # Errors
/// `Busy`.
pub(super) fn check_stray(staging: &Memory, stream: Option<u64>) -> Result<()> {
    match staging.stray() {
        Some(of) if stream != Some(of) => {
            let what = format!(
                "a kernel of stream {of} packs the request, and the post behind it was refused; post the request on \
                 that stream, or cancel it"
            );
            Err(Error::new(POST, Kind::Busy, what))
        }
        _ => Ok(()),
    }
}

/// The word in which the kernel that takes a message in stores how the message ended.
pub(super) fn arrival(pieces: &Strided, staging: &Memory) -> u64 {
    staging.region().addr().0 + word_at(pieces.len()) as u64
}

/// Submissions of [`scatter_on`].
pub(super) const SCATTERS: u32 = 2;

/// Maximum bytes of a message that one block of a kernel scatters: more take longer than a second
/// kernel.
const ONE_BLOCK: u64 = 8 << 10;

/// Enqueues the scattering of a receive's message, behind the kernel that took it in; then `result`
/// is stored.
pub(super) fn scatter_on(
    kernels: &Kernels,
    stream: &Stream,
    pieces: &Strided,
    staging: &Memory,
    result: u64,
) -> Result<()> {
    let mut last = Pieces {
        arrival: arrival(pieces, staging),
        result,
        ..pieces.gathering(staging.region().addr().0)
    };
    // SAFETY: as for `gather_on`; the result word belongs to the request.
    unsafe {
        if last.len > ONE_BLOCK {
            kernels.strided(stream, &Pieces { result: 0, ..last })?;
            last.len = 0;
        }
        kernels.strided(stream, &last)
    }
}
