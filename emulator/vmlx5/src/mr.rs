//! Memory regions: the bytes that a key names, and the access rights on them.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::BitOr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use mlx5_prm::wqe::Sge;

use crate::dma::Dma;
use crate::error::{NicError, Object, vendor};
use crate::object::PdId;

/// Rights on a memory region, or of the remote end of a queue pair. The values are those of verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// The NIC may read for local work; this needs no right.
    pub const NONE: Access = Access(0);
    /// Local work may write.
    pub const LOCAL_WRITE: Access = Access(1);
    /// The remote end may write.
    pub const REMOTE_WRITE: Access = Access(2);
    /// The remote end may read.
    pub const REMOTE_READ: Access = Access(4);
    /// The remote end may do atomics.
    pub const REMOTE_ATOMIC: Access = Access(8);

    const ALL: u32 = 15;

    /// Rights from their bits.
    ///
    /// # Errors
    /// A bit is no access right; the error contains the bit.
    pub const fn from_bits(bits: u32) -> Result<Access, u32> {
        if bits & !Access::ALL == 0 {
            Ok(Access(bits))
        } else {
            Err(bits & !Access::ALL)
        }
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns true if every right of `other` is included.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// The attributes of a region to register.
#[derive(Clone)]
pub struct MrAttr {
    /// Its protection domain.
    pub pd: PdId,
    /// The address of its first byte in work queue entries.
    pub va: u64,
    /// Its length in bytes; not zero.
    pub len: u64,
    /// The access rights.
    pub access: Access,
    /// The memory that contains its bytes.
    pub mem: Arc<dyn Dma>,
    /// Offset of its first byte in that memory.
    pub mem_offset: u64,
}

/// The keys of a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MrKeys {
    /// The local key.
    pub lkey: u32,
    /// The remote key.
    pub rkey: u32,
}

pub(crate) struct Mr {
    /// Zero after an invalidation.
    key: Cell<u32>,
    pub attr: MrAttr,
}

/// Keys are (slot + `BASE`) << 8
/// generation: none of them is 0 or the key that ends a receive list.
const BASE: u32 = 0x100;

pub(crate) struct MrTable {
    log_max: u8,
    slots: Vec<(u8, Option<Mr>)>,
    free: VecDeque<u32>,
}

/// A vendor syndrome for an invalid key.
pub(crate) type KeyFault = u8;

impl MrTable {
    pub fn new(log_max: u8) -> MrTable {
        MrTable {
            log_max: log_max.min(20),
            slots: Vec::new(),
            free: VecDeque::new(),
        }
    }

    /// Number of regions.
    pub fn count(&self) -> usize {
        self.slots.iter().filter(|(_, mr)| mr.is_some()).count()
    }

    pub fn register(&mut self, attr: MrAttr) -> Result<MrKeys, NicError> {
        let object = Object::Mr;
        let access = attr.access;
        let remote = Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0;
        if access.0 & remote != 0 && !access.contains(Access::LOCAL_WRITE) {
            return Err(NicError::Access {
                object,
                access: access.0,
                why: "remote write and atomics need local write",
            });
        }
        let limit = attr.mem.len();
        let fits = attr
            .mem_offset
            .checked_add(attr.len)
            .is_some_and(|end| end <= limit);
        if attr.len == 0 || !fits || attr.va.checked_add(attr.len - 1).is_none() {
            return Err(NicError::Span {
                object,
                offset: attr.mem_offset,
                len: attr.len,
                align: 1,
                limit,
            });
        }
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None if self.slots.len() < 1 << self.log_max => {
                self.slots.push((0, None));
                self.slots.len() as u32 - 1
            }
            None => {
                return Err(NicError::Full {
                    object,
                    limit: 1 << self.log_max,
                });
            }
        };
        let (generation, place) = &mut self.slots[slot as usize];
        let key = (slot + BASE) << 8 | u32::from(*generation);
        *place = Some(Mr {
            key: Cell::new(key),
            attr,
        });
        Ok(MrKeys {
            lkey: key,
            rkey: key,
        })
    }

    pub fn deregister(&mut self, key: u32) -> Result<Mr, NicError> {
        let unknown = NicError::Unknown {
            object: Object::Mr,
            number: key,
        };
        let slot = (key >> 8).checked_sub(BASE).ok_or(unknown.clone())?;
        let entry = self.slots.get_mut(slot as usize);
        let (generation, place) = entry.ok_or(unknown.clone())?;
        // An invalidated region can be removed too.
        if *generation != key as u8 || place.is_none() {
            return Err(unknown);
        }
        *generation = generation.wrapping_add(1);
        self.free.push_back(slot);
        place.take().ok_or(unknown)
    }

    /// Invalidates the key of a region; the owner must still remove the region.
    ///
    /// # Errors
    /// The reason why the key is invalid, as a vendor syndrome.
    pub fn invalidate(&self, pd: PdId, key: u32) -> Result<(), KeyFault> {
        let mr = self.of_key(key).ok_or(vendor::KEY_UNKNOWN)?;
        if mr.attr.pd != pd {
            return Err(vendor::KEY_DOMAIN);
        }
        mr.key.set(0);
        Ok(())
    }

    #[inline]
    fn of_key(&self, key: u32) -> Option<&Mr> {
        let slot = (key >> 8).checked_sub(BASE)?;
        let mr = self.slots.get(slot as usize)?.1.as_ref()?;
        (mr.key.get() == key).then_some(mr)
    }

    /// The memory of `len` bytes at `va` under `key`, and their offset in it.
    #[inline]
    pub fn find(
        &self,
        pd: PdId,
        key: u32,
        need: Access,
        va: u64,
        len: u64,
    ) -> Result<(&dyn Dma, u64), KeyFault> {
        let mr = &self.of_key(key).ok_or(vendor::KEY_UNKNOWN)?.attr;
        if mr.pd != pd {
            return Err(vendor::KEY_DOMAIN);
        }
        if !mr.access.contains(need) {
            return Err(vendor::KEY_ACCESS);
        }
        match va.checked_sub(mr.va) {
            Some(into) if into <= mr.len && len <= mr.len - into => {
                Ok((&*mr.mem, mr.mem_offset + into))
            }
            _ => Err(vendor::KEY_RANGE),
        }
    }

    /// Checks the pieces that the first `len` bytes of a list touch.
    pub fn check(
        &self,
        pd: PdId,
        need: Access,
        sges: impl Iterator<Item = Sge>,
        mut len: u64,
    ) -> Result<(), KeyFault> {
        for sge in sges {
            if len == 0 {
                break;
            }
            let here = len.min(u64::from(sge.len));
            self.find(pd, sge.lkey, need, sge.addr, here)?;
            len -= here;
        }
        Ok(())
    }

    /// Writes `bytes` at byte `skip` of a scatter list. `last`: these are the last bytes of a
    /// message, so the last word is written last.
    pub fn scatter(
        &self,
        pd: PdId,
        sges: &[Sge],
        mut skip: u64,
        mut bytes: &[u8],
        last: bool,
    ) -> Result<(), KeyFault> {
        for sge in sges {
            if bytes.is_empty() {
                return Ok(());
            }
            let len = u64::from(sge.len);
            if skip >= len {
                skip -= len;
                continue;
            }
            let here = (len - skip).min(bytes.len() as u64);
            let need = Access::LOCAL_WRITE;
            let (mem, offset) = self.find(pd, sge.lkey, need, sge.addr.wrapping_add(skip), here)?;
            let (now, later) = bytes.split_at(here as usize);
            write(mem, offset, now, last && later.is_empty())?;
            bytes = later;
            skip = 0;
        }
        if bytes.is_empty() {
            Ok(())
        } else {
            Err(vendor::LENGTH)
        }
    }
}

/// Writes part of a message. A CPU may poll the last byte of a message: if these are the `last`
/// bytes, the aligned word that ends them becomes visible after all others, and after all earlier
/// messages as well, since a short message may announce a long one.
#[inline]
pub(crate) fn write(mem: &dyn Dma, offset: u64, bytes: &[u8], last: bool) -> Result<(), KeyFault> {
    let fault = |_| vendor::MEMORY;
    if !last || bytes.is_empty() {
        return mem.write(offset, bytes).map_err(fault);
    }
    let end = offset + bytes.len() as u64;
    let tail = ((end - 1) & !7).max(offset);
    let (body, word) = bytes.split_at((tail - offset) as usize);
    if !body.is_empty() {
        mem.write(offset, body).map_err(fault)?;
    }
    // Pairs with the poller's acquire load of the last byte, which guards the bytes before it.
    fence(Ordering::Release);
    mem.write(tail, word).map_err(fault)
}
