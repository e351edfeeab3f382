//! Memory that two ranks of one host map for each other, so that copies reach it (`Path::Ipc`).
//!
//! A rank that names memory to a peer sends its descriptor first ([`export`]). The peer maps the
//! memory ([`Shared::open`]), translates the names that follow to its own addresses
//! ([`Shared::translate`]), and answers where it has mapped the memory: only then can a receive
//! write an address of the memory into the peer's words ([`Shared::place`]), which kernels read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

use gdsync::gpu::{Region, SharedMemory};

use super::{Paths, copy};
use crate::error::{Error, Kind, Result};
use crate::mutant::{Mutant, on};
use crate::wire::control::{Control, Export};
use crate::wire::record::{IPC, Place, Record};

/// Maximum number of descriptors and of control messages of a peer that are kept.
const KEPT: usize = 4096;
/// Maximum number of regions of a peer that are mapped.
const REGIONS: usize = 1 << 16;

const MAP: &str = "map memory of peer";

/// Memory of this rank as the peer knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// The peer was sent the descriptor.
    Sent,
    /// The peer has mapped it: the address there, and the peer's key.
    Mapped { addr: u64, key: u32 },
    /// The peer cannot map it.
    Refused,
}

/// Memory of the peer that is mapped here.
struct Opened {
    /// Its address and length at the peer.
    addr: u64,
    len: u64,
    region: Region,
    key: copy::Keys,
}

/// The memory that this rank and one peer share.
#[derive(Default)]
pub(crate) struct Shared {
    /// Memory of this rank, by its key.
    named: BTreeMap<u32, Named>,
    /// Memory of the peer, by the peer's key.
    opened: BTreeMap<u32, Opened>,
    /// The peer's keys of its memory that this rank cannot map.
    refused: BTreeSet<u32>,
    /// Descriptors of the peer that no control message has taken, in their order.
    descriptors: VecDeque<OwnedFd>,
    /// Control messages of the peer that wait for a descriptor, and those behind them.
    held: VecDeque<Control>,
}

/// A descriptor of memory, for a peer, with the message that goes with it. `None`: the memory cannot
/// be shared so that it outlives its owner's handle.
pub(crate) fn export(region: &Region, key: u32) -> Result<Option<(Control, OwnedFd)>> {
    let (host, fd, offset) = match region.share() {
        Ok(SharedMemory::Host { fd, offset, .. }) => (true, fd, offset),
        Ok(SharedMemory::File { fd, offset, .. }) => (false, fd, offset),
        Ok(_) => return Ok(None),
        Err(e) if e.kind() == gdsync::Kind::Unsupported => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let message = Control::Memory(Export {
        key,
        addr: region.addr().0,
        len: region.len() as u64,
        offset,
        host,
    });
    Ok(Some((message, fd)))
}

impl Shared {
    /// What the peer knows of the memory with this key.
    pub fn named(&self, key: u32) -> Option<Named> {
        self.named.get(&key).copied()
    }

    /// Notes that the peer is sent the memory. `false`: it was sent before.
    pub fn name(&mut self, key: u32) -> bool {
        self.named.insert(key, Named::Sent).is_none()
    }

    /// Notes the peer's answer. The memory may have been released since the peer was sent it.
    ///
    /// # Errors
    /// `Protocol` for a second answer.
    pub fn answered(&mut self, key: u32, place: Option<(u64, u32)>) -> Result<()> {
        match self.named.get_mut(&key) {
            None => Ok(()),
            Some(named @ Named::Sent) => {
                *named = place.map_or(Named::Refused, |(addr, key)| Named::Mapped { addr, key });
                Ok(())
            }
            Some(_) => {
                let what = format!("the peer has answered twice for memory {key}");
                Err(Error::new(MAP, Kind::Protocol, what))
            }
        }
    }

    /// Forgets memory of this rank that was released. `true`: the peer was sent it.
    pub fn unname(&mut self, key: u32) -> bool {
        self.named.remove(&key).is_some()
    }

    /// Memory of the peer that is mapped here, by the peer's key.
    pub fn region(&self, key: u32) -> Option<&Region> {
        self.opened.get(&key).map(|opened| &opened.region)
    }

    /// The place of a receive `offset` bytes behind the start of the memory with this key.
    ///
    /// # Errors
    /// `QueueFull` until the peer has mapped the memory; `Unsupported` if it cannot.
    pub fn place(&self, key: u32, offset: u64) -> Result<Place> {
        const OPERATION: &str = "prepare receive";
        let offset = if on(Mutant::MissingOffset) { 0 } else { offset };
        match self.named(key) {
            Some(Named::Mapped { addr, key }) => Ok(Place {
                addr: addr.wrapping_add(offset),
                keys: [Some(key), None, None, None],
            }),
            Some(Named::Refused) => Err(refused(OPERATION)),
            Some(Named::Sent) | None => {
                let what = "the peer has not mapped the memory yet; retry later";
                Err(Error::new(OPERATION, Kind::QueueFull, what))
            }
        }
    }

    /// Keeps a descriptor that has arrived from the peer.
    ///
    /// # Errors
    /// `Protocol` if too many are kept.
    pub fn keep_descriptor(&mut self, fd: OwnedFd) -> Result<()> {
        if self.descriptors.len() >= KEPT {
            return Err(too_many("descriptors"));
        }
        self.descriptors.push_back(fd);
        Ok(())
    }

    /// Returns a control message of the peer that can be handled now, or keeps it until its
    /// descriptor, or that of an earlier message, has arrived.
    ///
    /// # Errors
    /// `Protocol` if too many are kept.
    pub fn admit(&mut self, message: Control) -> Result<Option<Control>> {
        if self.held.is_empty() && self.can_handle(&message) {
            return Ok(Some(message));
        }
        if self.held.len() >= KEPT {
            return Err(too_many("control messages before their descriptors"));
        }
        self.held.push_back(message);
        Ok(None)
    }

    /// The oldest control message that waits, if it can be handled now.
    pub fn next_held(&mut self) -> Option<Control> {
        let can = self
            .held
            .front()
            .is_some_and(|first| self.can_handle(first));
        can.then(|| self.held.pop_front())?
    }

    fn can_handle(&self, message: &Control) -> bool {
        !matches!(message, Control::Memory(_)) || !self.descriptors.is_empty()
    }

    /// Maps memory of the peer with the oldest descriptor, and returns the answer.
    ///
    /// # Errors
    /// `Protocol` for memory that is mapped already, beyond the limit, or without a descriptor.
    pub fn open(&mut self, paths: &Paths, export: &Export) -> Result<Control> {
        if !paths.maps() {
            let what = "the peer shares its memory, and this rank maps none; use the same MP_PATH \
                        on all ranks";
            return Err(Error::new(MAP, Kind::Protocol, what));
        }
        let fd = self.descriptors.pop_front().ok_or_else(|| {
            let what = "the peer named memory without its descriptor";
            Error::new(MAP, Kind::Protocol, what)
        })?;
        let key = export.key;
        if self.opened.contains_key(&key) || self.refused.contains(&key) {
            let what = format!("the peer named memory {key} twice");
            return Err(Error::new(MAP, Kind::Protocol, what));
        }
        if self.opened.len() + self.refused.len() >= REGIONS {
            return Err(too_many("regions"));
        }
        let Export { offset, len, .. } = *export;
        let shared = match export.host {
            true => SharedMemory::Host { fd, offset, len },
            false => SharedMemory::File { fd, offset, len },
        };
        // SAFETY: both are files, which keep the memory.
        let place = match unsafe { paths.gpu().open_shared(&shared) } {
            Ok(region) => {
                let keys = paths.copier.keys();
                let place = (region.addr().0, keys.key(&region));
                let opened = Opened {
                    addr: export.addr,
                    len,
                    region,
                    key: keys,
                };
                self.opened.insert(key, opened);
                Some(place)
            }
            Err(e) => {
                tracing::warn!(target: "mp", "memory of a peer cannot be mapped: {e}");
                self.refused.insert(key);
                None
            }
        };
        Ok(Control::Mapped { key, place })
    }

    /// Unmaps memory of the peer that the peer has released.
    pub fn close(&mut self, key: u32) {
        self.opened.remove(&key);
        self.refused.remove(&key);
    }

    /// Translates the names of this path in a block to addresses of this rank, and removes those of
    /// memory that this rank cannot map: the memory may have a name on another path.
    ///
    /// # Errors
    /// `Protocol` for memory that the peer has not sent, or that does not contain the name's bytes.
    pub fn translate(&self, block: &mut Vec<Record>) -> Result<()> {
        if on(Mutant::ForeignAddress) {
            return Ok(());
        }
        block.retain(|record| {
            !keys_in(std::slice::from_ref(record)).any(|key| self.refused.contains(&key))
        });
        for record in block.iter_mut().filter(|record| record.path == IPC) {
            let named = copy::Remote::read(&record.bytes)?;
            let opened = self.opened.get(&named.key()).ok_or_else(|| {
                let what = "the peer named memory that it has not sent";
                Error::new(MAP, Kind::Protocol, what)
            })?;
            let inside = named.addr() == opened.addr && named.len() == opened.len;
            if !inside {
                let what = "the peer named memory with another address or length than it has sent";
                return Err(Error::new(MAP, Kind::Protocol, what));
            }
            record.bytes = opened.key.to_bytes(&opened.region).to_vec();
        }
        Ok(())
    }
}

/// The keys of this rank's memory that a block names on this path.
pub(crate) fn keys_in(block: &[Record]) -> impl Iterator<Item = u32> + '_ {
    let records = block.iter().filter(|record| record.path == IPC);
    records.filter_map(|record| Some(copy::Remote::read(&record.bytes).ok()?.key()))
}

/// The error for memory that a peer cannot map.
#[cold]
pub(crate) fn refused(operation: &'static str) -> Error {
    let what = "the peer cannot map the memory; use memory of Context::alloc, or set MP_PATH=nic";
    Error::new(operation, Kind::Unsupported, what)
}

#[cold]
fn too_many(what: &str) -> Error {
    let what = format!("the peer has sent too many {what}");
    Error::new(MAP, Kind::Protocol, what).with_limit(KEPT, "descriptors or messages")
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use gdsync::Gpu;
    use gdsync::gpu::MemoryKind;
    use gdsync::rdma::Device;

    use super::*;

    const KEY: u32 = 7;

    fn descriptor() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    fn refused<T>(result: Result<T>) {
        let e = result.err().unwrap();
        assert_eq!(e.kind(), Kind::Protocol, "{e}");
    }

    /// Paths that map memory, and memory that a peer has sent under [`KEY`].
    fn opened() -> (Paths, Shared, Export) {
        let gpu = Gpu::soft().unwrap();
        let paths = Paths::for_test(&Device::emulated(&gpu).unwrap()).with_mapped(2);
        let region = gpu.alloc(MemoryKind::Pinned, 100).unwrap();
        let (message, fd) = export(&region, KEY).unwrap().unwrap();
        let Control::Memory(sent) = message else {
            panic!("{message:?}");
        };
        let mut shared = Shared::default();
        shared.keep_descriptor(fd).unwrap();
        let answer = shared.open(&paths, &sent).unwrap();
        assert!(matches!(
            answer,
            Control::Mapped {
                key: KEY,
                place: Some(_)
            }
        ));
        (paths, shared, sent)
    }

    fn name(addr: u64, len: u64, key: u32) -> Vec<Record> {
        let bytes = [
            &addr.to_le_bytes()[..],
            &len.to_le_bytes(),
            &key.to_le_bytes(),
        ];
        vec![Record::new(IPC, &bytes.concat())]
    }

    #[test]
    fn names_of_memory_that_the_peer_has_not_sent_are_refused() {
        let (_paths, mut shared, sent) = opened();
        let Export { addr, len, .. } = sent;
        let mut good = name(addr, len, KEY);
        shared.translate(&mut good).unwrap();
        assert_ne!(good, name(addr, len, KEY));
        for mut bad in [
            name(addr, len, KEY + 1),
            name(addr, len + 1, KEY),
            name(addr, 0, KEY),
            name(addr + 1, len - 1, KEY),
            vec![Record::new(IPC, &[0; 19])],
        ] {
            refused(shared.translate(&mut bad));
        }
        // Names of other paths are not looked at.
        let mut other = vec![Record::new(9, b"other")];
        shared.translate(&mut other).unwrap();
        shared.close(KEY);
        refused(shared.translate(&mut name(addr, len, KEY)));
    }

    #[test]
    fn memory_that_is_sent_twice_or_without_a_descriptor_is_refused() {
        let (paths, mut shared, sent) = opened();
        refused(shared.open(&paths, &sent));
        shared.keep_descriptor(descriptor()).unwrap();
        refused(shared.open(&paths, &sent));
        // Memory that cannot be mapped is answered.
        shared.keep_descriptor(descriptor()).unwrap();
        let other = Export {
            key: KEY + 1,
            ..sent
        };
        let answer = shared.open(&paths, &other).unwrap();
        assert!(matches!(answer, Control::Mapped { place: None, .. }));
        shared.keep_descriptor(descriptor()).unwrap();
        refused(shared.open(&paths, &other));
        // Its name is removed, until the peer has released it.
        let mut names = [
            name(sent.addr, sent.len, KEY + 1),
            vec![Record::new(9, b"other")],
        ]
        .concat();
        shared.translate(&mut names).unwrap();
        assert_eq!(names, [Record::new(9, b"other")]);
        shared.close(KEY + 1);
        refused(shared.translate(&mut name(sent.addr, sent.len, KEY + 1)));
        // A rank that maps nothing.
        let gpu = Gpu::soft().unwrap();
        let paths = Paths::for_test(&Device::emulated(&gpu).unwrap());
        shared.keep_descriptor(descriptor()).unwrap();
        refused(shared.open(&paths, &other));
    }

    #[test]
    fn control_messages_wait_for_descriptors_in_their_order_and_are_bounded() {
        let (_paths, mut shared, sent) = opened();
        let memory = || Control::Memory(sent);
        assert_eq!(shared.admit(Control::Ping).unwrap(), Some(Control::Ping));
        assert_eq!(shared.admit(memory()).unwrap(), None);
        assert_eq!(shared.admit(Control::Pong).unwrap(), None);
        assert_eq!(shared.next_held(), None);
        shared.keep_descriptor(descriptor()).unwrap();
        assert_eq!(shared.next_held(), Some(memory()));
        assert_eq!(shared.next_held(), Some(Control::Pong));
        assert_eq!(shared.next_held(), None);
        let _taken = shared.descriptors.pop_front();
        for _ in 0..KEPT {
            assert_eq!(shared.admit(memory()).unwrap(), None);
        }
        refused(shared.admit(memory()));
    }

    #[test]
    fn place_is_known_once_the_peer_has_answered() {
        let mut shared = Shared::default();
        assert!(shared.name(KEY) && !shared.name(KEY));
        assert_eq!(shared.place(KEY, 5).unwrap_err().kind(), Kind::QueueFull);
        shared.answered(KEY, Some((1000, 3))).unwrap();
        let place = shared.place(KEY, 5).unwrap();
        assert_eq!((place.addr, place.keys[0]), (1005, Some(3)));
        refused(shared.answered(KEY, None));
        // The answer for memory that was released meanwhile.
        assert!(shared.unname(KEY));
        shared.answered(KEY, Some((1000, 3))).unwrap();
        assert_eq!(shared.named(KEY), None);
        shared.name(KEY);
        shared.answered(KEY, None).unwrap();
        assert_eq!(shared.place(KEY, 5).unwrap_err().kind(), Kind::Unsupported);
    }
}
