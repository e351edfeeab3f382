//! The device's address handles for the destinations of datagrams, by number.
//!
//! An entry of the library's rings names its handle by that number, in place of the GID that a
//! ConnectX's entry has. Numbers are never reused; 64 bits are enough for that. So a number that a
//! stream has overwritten, or kept after its handle was removed, names no handle.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use gdsync_sys::verbs::types::ibv_ah;
use mlx5_prm::wqe::AvSeg;

use crate::provider::ibv::Handle;

/// The handles of a NIC: read for each datagram, changed when destinations are created and
/// destroyed.
#[derive(Default)]
pub(in crate::provider) struct Handles(RwLock<Table>);

#[derive(Default)]
pub(in crate::provider) struct Table {
    by_number: BTreeMap<u64, Handle>,
    next: u64,
}

impl Handles {
    pub fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a handle; returns its number.
    pub fn add(&self, handle: Handle) -> u64 {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let number = table.next;
        table.next += 1;
        table.by_number.insert(number, handle);
        number
    }

    pub fn remove(&self, number: u64) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let handle = table.by_number.remove(&number);
        drop(table);
        drop(handle);
    }
}

impl Table {
    /// The handle that an entry names.
    pub fn find(&self, av: &AvSeg) -> Option<*mut ibv_ah> {
        self.by_number.get(&number(av)).map(Handle::raw)
    }
}

/// The address vector that names the handle with this number.
pub(in crate::provider) fn address(number: u64) -> AvSeg {
    let mut av = AvSeg::infiniband(0, 0, 0, 0);
    av.rgid[..8].copy_from_slice(&number.to_be_bytes());
    av
}

fn number(av: &AvSeg) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = av.rgid;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_number_that_it_was_given() {
        for n in [0, 1, 0x1234_5678_9abc_def0, 1 << 32, u64::MAX] {
            assert_eq!(number(&address(n)), n);
        }
    }
}
