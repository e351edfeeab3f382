//! Memory as paths address it: [`Keys`] and [`Piece`] of this rank's memory, [`Remote`] and
//! [`Span`] of memory that a peer has named.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gdsync::gpu::Region;

use super::tcp::Second;
use super::{Path, Rights, Shared, copy, export, nic};
use crate::error::{Error, Kind, Result};
use crate::wire::record::{IPC, Place, Record};

/// The keys of this rank's memory. Those of the first device are made with the memory, because it
/// reaches nearly every peer; the others on first use. Clones refer to the same keys.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    nic: nic::Keys,
    copy: copy::Keys,
    late: Arc<Late>,
}

/// What is found or made on first use.
#[derive(Debug)]
struct Late {
    /// Whether other ranks of this host can map the memory.
    shared: OnceLock<bool>,
    /// The registration with the TCP device beside a NIC.
    tcp: OnceLock<nic::Keys>,
    second: Second,
    rights: Rights,
}

impl Late {
    fn new(second: &Second, rights: Rights) -> Arc<Late> {
        Arc::new(Late {
            shared: OnceLock::new(),
            tcp: OnceLock::new(),
            second: second.clone(),
            rights,
        })
    }
}

impl Keys {
    pub(super) fn new(
        nic: nic::Keys,
        copier: &copy::Copier,
        second: &Second,
        rights: Rights,
    ) -> Keys {
        Keys {
            nic,
            copy: copier.keys(),
            late: Late::new(second, rights),
        }
    }

    /// The keys of the first device.
    pub(super) fn nic(&self) -> &nic::Keys {
        &self.nic
    }

    /// The keys of the device whose queue pairs are `path`.
    ///
    /// # Errors
    /// `Unsupported` if this rank has no such device; errors of gdsync.
    #[inline]
    pub(super) fn queues(&self, path: Path) -> Result<&nic::Keys> {
        if path == self.nic.path() {
            return Ok(&self.nic);
        }
        match self.late.tcp.get() {
            Some(keys) if path == Path::Tcp => Ok(keys),
            _ => self.register(path),
        }
    }

    #[cold]
    fn register(&self, path: Path) -> Result<&nic::Keys> {
        let Late {
            tcp,
            second,
            rights,
            ..
        } = &*self.late;
        let keys = second.of(path)?.register(self.region(), *rights)?;
        Ok(tcp.get_or_init(|| keys))
    }

    /// The memory itself.
    pub fn region(&self) -> &Region {
        self.nic.region()
    }

    /// The record that names the memory to a peer on `path`.
    ///
    /// # Errors
    /// Errors of gdsync if the device of the path refuses the memory.
    pub fn record(&self, path: Path) -> Result<Record> {
        let kind = path.record();
        Ok(match path {
            Path::Nic | Path::Tcp => Record::new(kind, &self.queues(path)?.to_bytes()),
            Path::Local | Path::Ipc => Record::new(kind, &self.copy.to_bytes(self.region())),
        })
    }

    /// The records that name the memory for one-sided operations to a peer on `path`, whose queue
    /// pairs are `queues`. Memory that a peer on [`Path::Ipc`] cannot map has none for that path.
    ///
    /// # Errors
    /// As [`Keys::record`].
    pub fn records(&self, [path, queues]: [Path; 2]) -> Result<Vec<Record>> {
        let paths: &[Path] = match path {
            Path::Ipc if self.can_share() => &[queues, path],
            Path::Ipc => &[queues],
            _ => &[path],
        };
        paths.iter().map(|path| self.record(*path)).collect()
    }

    /// The records that name the memory for one-sided operations to peers of all paths but
    /// [`Path::Ipc`].
    pub fn all_records(&self) -> Vec<Record> {
        let first = self.nic.path();
        let tcp = self.late.second.is_likely() && first != Path::Tcp;
        let paths = [Some(first), tcp.then_some(Path::Tcp), Some(Path::Local)];
        let paths = paths.into_iter().flatten();
        // A device that refuses the memory leaves its record out.
        paths.filter_map(|path| self.record(path).ok()).collect()
    }

    /// Whether other ranks of this host can map the memory, and keep it mapped when it is released.
    pub fn can_share(&self) -> bool {
        let shares = || matches!(export(self.region(), 0), Ok(Some(_)));
        *self.late.shared.get_or_init(shares)
    }

    /// Makes the key of copies, of memory that the application has registered.
    pub(super) fn note(&self) {
        self.copy.note(self.region());
    }

    /// The key of copies, which peers of this host know the memory by.
    pub fn copy_key(&self) -> u32 {
        self.copy.key(self.region())
    }

    /// The place that a receive at `addr` writes to its sender, which has mapped `shared`.
    pub fn place(&self, path: Path, addr: u64, shared: &Shared) -> Result<Place> {
        let keys = match path {
            Path::Nic | Path::Tcp => self.queues(path)?.rkeys(),
            Path::Local => self.copy.rkeys(self.region()),
            Path::Ipc => return shared.place(self.copy_key(), addr - self.region().addr().0),
        };
        match keys[0] {
            Some(_) => Ok(Place { addr, keys }),
            None => {
                let what = "the memory has no key for the first NIC";
                Err(Error::new("prepare receive", Kind::Invalid, what))
            }
        }
    }

    /// `len` bytes at `offset`, as the source of a put.
    #[inline]
    pub fn piece(&self, offset: usize, len: usize) -> Piece<'_> {
        Piece {
            keys: self,
            offset,
            len,
        }
    }

    /// Returns the buffer that the memory was made from; see [`gdsync::rdma::Mr::into_vec`].
    pub fn into_vec(self, limit: Duration) -> Result<Vec<u8>, (Keys, Error)> {
        let Keys { nic, copy, late } = self;
        copy.forget();
        // Another registration would keep the memory. It is made anew if the buffer is not returned.
        let again = Late::new(&late.second, late.rights);
        drop(late);
        let taken = nic.into_vec(limit);
        taken.map_err(|(nic, e)| {
            let late = again;
            (Keys { nic, copy, late }, e)
        })
    }

    /// The local key, which identifies the registration.
    #[cfg(test)]
    pub fn id(&self) -> u32 {
        self.nic.id()
    }
}

/// The source of a put: bytes of this rank's memory.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    keys: &'a Keys,
    offset: usize,
    pub(super) len: usize,
}

impl<'a> Piece<'a> {
    /// Its length in bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// The piece by its registration with the device whose queue pairs are `path`.
    #[inline]
    pub(super) fn nic(self, path: Path) -> Result<nic::Piece<'a>> {
        Ok(self.keys.queues(path)?.piece(self.offset, self.len))
    }

    /// The piece as the destination of a get by a copy.
    #[inline]
    pub(super) fn copy_span(self) -> copy::Span {
        self.keys.copy.span(self.keys.region(), self.offset)
    }

    #[inline]
    pub(super) fn copy(self) -> copy::Piece<'a> {
        copy::Piece {
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
    Copy(copy::Remote),
}

impl Remote {
    /// Decodes memory of `len` bytes that a peer on `path` has named.
    ///
    /// # Errors
    /// `Protocol` if no record is for this path, or its bytes are invalid or have another length.
    pub fn read(path: Path, records: &[Record], len: usize) -> Result<Remote> {
        let remote = Remote::any(path, records)?;
        let named = remote.len();
        if named != len as u64 {
            let what =
                format!("the peer announced memory of {named} bytes in place of {len} bytes");
            return Err(Error::new("open channel", Kind::Protocol, what));
        }
        Ok(remote)
    }

    /// Decodes memory of any length that a peer on `path` has named.
    ///
    /// # Errors
    /// `Protocol` if no record is for this path, or its bytes are invalid.
    pub fn any(path: Path, records: &[Record]) -> Result<Remote> {
        let bytes = Record::find(records, path.record())?;
        Ok(match path {
            Path::Nic | Path::Tcp => Remote::Nic(nic::Remote::read(path, bytes)?),
            Path::Local | Path::Ipc => Remote::Copy(copy::Remote::read(bytes)?),
        })
    }

    /// The path of one-sided operations on memory that a peer on `path`, whose queue pairs are
    /// `queues`, has named: `queues` if it has no name for [`Path::Ipc`].
    pub fn path([path, queues]: [Path; 2], records: &[Record]) -> Path {
        match path {
            Path::Ipc if Record::find(records, IPC).is_err() => queues,
            path => path,
        }
    }

    /// The key of mapped memory; `None` for memory that a device writes.
    pub fn copy_key(&self) -> Option<u32> {
        match self {
            Remote::Nic(_) => None,
            Remote::Copy(remote) => Some(remote.key()),
        }
    }

    /// Its address.
    pub fn addr(&self) -> u64 {
        match self {
            Remote::Nic(remote) => remote.addr(),
            Remote::Copy(remote) => remote.addr(),
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Remote::Nic(remote) => remote.len(),
            Remote::Copy(remote) => remote.len(),
        }
    }

    /// The `len` bytes at `offset`.
    #[inline]
    pub fn span(&self, offset: usize, len: usize) -> Result<Span> {
        Ok(match self {
            Remote::Nic(remote) => Span::Nic(remote.span(offset, len)?),
            Remote::Copy(remote) => Span::Copy(remote.span(offset, len)?),
        })
    }
}

/// The destination of a put.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    Nic(nic::Span),
    Copy(copy::Span),
}

impl Span {
    /// The address, for kernels; 0 for memory that a device writes.
    pub fn addr(&self) -> u64 {
        match self {
            Span::Nic(_) => 0,
            Span::Copy(span) => span.addr(),
        }
    }

    /// The destination of a rendezvous message: the memory of its receive, on `path`.
    pub fn of(path: Path, place: &Place) -> Result<Span> {
        Ok(match path {
            Path::Nic | Path::Tcp => Span::Nic(nic::Span::of(place)?),
            Path::Local | Path::Ipc => Span::Copy(copy::Span::of(place)?),
        })
    }

    /// The destination that is this many bytes further.
    pub fn behind(self, bytes: u64) -> Span {
        match self {
            Span::Nic(span) => Span::Nic(span.behind(bytes)),
            Span::Copy(span) => Span::Copy(span.behind(bytes)),
        }
    }
}
