//! Doorbell registers that are mapped for a GPU's streams.
//!
//! libmlx5 reuses a register after its queue pair is destroyed, perhaps for another device of this
//! process, while the GPU can register memory only once. So a NIC keeps its registrations of
//! doorbells, and NICs for the same GPU share them.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use gds_step::Mutex;

use crate::error::Result;
use crate::gpu::{Gpu, Mapped, Region, WeakRegion};
use crate::nic::SharedAddr;

/// Bytes of a doorbell.
const LEN: usize = 8;

/// The registrations of all NICs of this process, by register; one for each GPU.
static ALL: Mutex<BTreeMap<usize, Vec<WeakRegion>>> = Mutex::new(BTreeMap::new());

/// The registrations of one NIC, by register.
#[derive(Default)]
pub(super) struct Doorbells(Mutex<BTreeMap<usize, Region>>);

impl Doorbells {
    /// The register for the streams of `gpu` and for the CPU, and the region that keeps it mapped
    /// for them.
    ///
    /// # Safety
    /// `register` is a doorbell of a NIC, mapped until the process ends.
    pub unsafe fn get(&self, gpu: &Gpu, register: NonNull<u8>) -> Result<(Region, SharedAddr)> {
        let at = register.as_ptr() as usize;
        let mut all = ALL.lock();
        let known = all.entry(at).or_default();
        known.retain(|region| region.upgrade().is_some());
        let found = known
            .iter()
            .filter_map(WeakRegion::upgrade)
            .find(|r| r.gpu().is(gpu));
        let region = match found {
            Some(region) => region,
            None => {
                // SAFETY: as the caller promises.
                let region = unsafe { gpu.register_host(register.as_ptr(), LEN)? };
                known.push(region.downgrade());
                region
            }
        };
        let mut own = self.0.lock();
        own.insert(at, region.clone());
        let at = SharedAddr {
            // SAFETY: as the caller promises; only stored to, atomically.
            cpu: unsafe { Mapped::write_combining(register, LEN) },
            gpu: region.addr(),
        };
        Ok((region, at))
    }
}

impl Drop for Doorbells {
    /// Under the lock, so that no thread registers a region before its registration is removed.
    fn drop(&mut self) {
        let _all = ALL.lock();
        let own = self.0.get_mut();
        own.clear();
    }
}
