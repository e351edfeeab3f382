//! Memory as paths know it: the keys of this rank's, and what a peer has named.

use std::time::Duration;

use gdsync::gpu::Region;

use super::{Path, local, nic};
use crate::error::{Error, Kind, Result};
use crate::wire::record::{LOCAL, NIC, Place, Record};

/// The keys of memory of this rank's: the NIC's, made with the memory, as nearly every peer is
/// reached by it, and the one of this rank itself, made when it is needed. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    nic: nic::Keys,
    local: local::Keys,
}

impl Keys {
    pub(super) fn new(nic: nic::Keys, local: &local::Local) -> Keys {
        let local = local.keys();
        Keys { nic, local }
    }

    pub(super) fn nic(&self) -> &nic::Keys {
        &self.nic
    }

    /// The memory itself.
    pub fn region(&self) -> &Region {
        self.nic.region()
    }

    /// The memory, as a peer that is reached by `path` names it.
    pub fn record(&self, path: Path) -> Record {
        match path {
            Path::Nic => Record::new(NIC, &self.nic.to_bytes()),
            Path::Local => Record::new(LOCAL, &self.local.to_bytes(self.region())),
        }
    }

    /// The memory from `addr` on, as a receive names it to its sender.
    pub fn place(&self, path: Path, addr: u64) -> Result<Place> {
        let keys = match path {
            Path::Nic => self.nic.remote(),
            Path::Local => self.local.remote(self.region()),
        };
        match keys[0] {
            Some(_) => Ok(Place { addr, keys }),
            None => {
                let what = "memory without a key for the first NIC";
                Err(Error::new("name receive", Kind::Invalid, what))
            }
        }
    }

    /// `len` bytes at `offset`, to be put.
    #[inline]
    pub fn piece(&self, offset: usize, len: usize) -> Piece<'_> {
        Piece {
            keys: self,
            offset,
            len,
        }
    }

    /// The buffer that the memory was made of; see [`gdsync::rdma::Mr::into_vec`].
    pub fn into_vec(self, limit: Duration) -> Result<Vec<u8>, (Keys, Error)> {
        let Keys { nic, local } = self;
        local.forget();
        let taken = nic.into_vec(limit);
        taken.map_err(|(nic, e)| (Keys { nic, local }, e))
    }

    /// What names the registration.
    #[cfg(test)]
    pub fn id(&self) -> u32 {
        self.nic.id()
    }
}

/// Bytes that are put: some of this rank's memory.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    keys: &'a Keys,
    offset: usize,
    len: usize,
}

impl<'a> Piece<'a> {
    #[inline]
    pub(super) fn nic(self) -> nic::Piece<'a> {
        self.keys.nic.piece(self.offset, self.len)
    }

    #[inline]
    pub(super) fn local(self) -> local::Piece<'a> {
        local::Piece {
            region: self.keys.region(),
            offset: self.offset,
            len: self.len,
        }
    }
}

/// Memory of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remote {
    Nic(nic::Remote),
    Local(local::Remote),
}

impl Remote {
    /// That of `len` bytes which a peer that is reached by `path` has named.
    ///
    /// # Errors
    /// `Protocol` if it was not named for this path, not understood, or has another length.
    pub fn read(path: Path, records: &[Record], len: usize) -> Result<Remote> {
        let remote = match path {
            Path::Nic => Remote::Nic(nic::Remote::read(Record::find(records, NIC)?)?),
            Path::Local => Remote::Local(local::Remote::read(Record::find(records, LOCAL)?)?),
        };
        let named = match &remote {
            Remote::Nic(remote) => remote.len(),
            Remote::Local(remote) => remote.len,
        };
        if named != len as u64 {
            let what = format!("memory of {named} bytes");
            return Err(Error::new("open channel", Kind::Protocol, what).with_limit(len));
        }
        Ok(remote)
    }

    /// The `len` bytes at `offset`.
    #[inline]
    pub fn span(&self, offset: usize, len: usize) -> Result<Span> {
        Ok(match self {
            Remote::Nic(remote) => Span::Nic(remote.span(offset, len)?),
            Remote::Local(remote) => Span::Local(remote.span(offset, len)?),
        })
    }
}

/// Where bytes are put.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    Nic(nic::Span),
    Local(local::Span),
}

impl Span {
    /// Where a receive lies whose rank is reached by `path`.
    pub fn of(path: Path, place: &Place) -> Result<Span> {
        Ok(match path {
            Path::Nic => Span::Nic(nic::Span::of(place)?),
            Path::Local => Span::Local(local::Span::of(place)),
        })
    }

    /// So many bytes behind it.
    pub fn behind(self, bytes: u64) -> Span {
        match self {
            Span::Nic(span) => Span::Nic(span.behind(bytes)),
            Span::Local(span) => Span::Local(span.behind(bytes)),
        }
    }
}
