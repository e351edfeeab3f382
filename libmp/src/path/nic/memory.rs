//! Memory for devices: registrations of this rank, keys of a peer.

use std::fmt;
use std::time::Duration;

use gdsync::gpu::Region;
use gdsync::rdma::{Mr, RemoteMemory, RemoteSpan, Sge};

use crate::error::{Error, Result};
use crate::path::Path;
use crate::wire::record::Place;

/// A registration. Clones refer to the same registration.
#[derive(Clone)]
pub(crate) struct Keys {
    pub(super) mr: Mr,
    /// The path of its device.
    pub(super) path: Path,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mr.fmt(f)
    }
}

impl Keys {
    /// The path of its device.
    #[inline]
    pub fn path(&self) -> Path {
        self.path
    }

    /// The memory itself.
    #[inline]
    pub fn region(&self) -> &Region {
        self.mr.region()
    }

    /// The encoded name of the memory, for peers.
    pub fn to_bytes(&self) -> [u8; RemoteMemory::LEN] {
        self.mr.remote().to_bytes()
    }

    /// The remote keys with which a peer writes there, by rail.
    pub fn rkeys(&self) -> [Option<u32>; 4] {
        self.mr.remote().rkeys
    }

    /// `len` bytes at `offset`, as the source of a put.
    #[inline]
    pub fn piece(&self, offset: usize, len: usize) -> Piece<'_> {
        Piece(self.mr.sge(offset as u64, len as u32))
    }

    /// Returns the buffer that the memory was made from; see [`Mr::into_vec`].
    pub fn into_vec(self, limit: Duration) -> Result<Vec<u8>, (Keys, Error)> {
        let Keys { mr, path } = self;
        let taken = mr.into_vec(limit);
        taken.map_err(|(mr, e)| (Keys { mr, path }, e.into()))
    }

    /// The local key, which identifies the registration.
    #[cfg(test)]
    pub fn id(&self) -> u32 {
        self.mr.lkey()
    }
}

/// The source of a put: bytes of this rank's memory.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a>(pub(super) Sge<'a>);

/// Memory of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    memory: RemoteMemory,
    path: Path,
}

impl Remote {
    /// Decodes the memory that a peer has named for `path`.
    ///
    /// # Errors
    /// `Protocol` if the bytes are invalid.
    pub fn read(path: Path, bytes: &[u8]) -> Result<Remote> {
        let memory = RemoteMemory::from_bytes(bytes)?;
        Ok(Remote { memory, path })
    }

    /// The path of the peer's device.
    pub fn path(&self) -> Path {
        self.path
    }

    /// Its address.
    pub fn addr(&self) -> u64 {
        self.memory.addr
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.memory.len
    }

    /// The `len` bytes at `offset`.
    #[inline]
    pub fn span(&self, offset: usize, len: usize) -> Result<Span> {
        Ok(Span(self.memory.span(offset as u64, len as u64)?))
    }
}

/// The destination of a put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span(pub(super) RemoteSpan);

impl Span {
    /// The destination of a rendezvous message: the memory of its receive.
    pub fn of(place: &Place) -> Result<Span> {
        let Place { addr, keys: rkeys } = *place;
        let memory = RemoteMemory::default().addr(addr).len(0).rkeys(rkeys);
        Ok(Span(memory.span(0, 0)?))
    }

    /// The destination that is this many bytes further.
    pub fn behind(mut self, bytes: u64) -> Span {
        self.0.addr = self.0.addr.wrapping_add(bytes);
        self
    }
}
