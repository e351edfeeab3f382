//! Doorbell registers in the sight of a GPU's streams.
//!
//! libmlx5 hands a register out again when its queue pair is gone, perhaps to another device of
//! this process, while the GPU knows memory once. So a NIC keeps what it registered, and NICs for
//! the same GPU share it.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use gds_step::Mutex;

use crate::error::Result;
use crate::gpu::{Gpu, Mapped, Region, WeakRegion};
use crate::nic::SharedAddr;

/// Bytes of a doorbell.
const LEN: usize = 8;

/// What any NIC of this process has registered, by register; for several GPUs, several.
static ALL: Mutex<BTreeMap<usize, Vec<WeakRegion>>> = Mutex::new(BTreeMap::new());

/// What one NIC has registered, by register.
#[derive(Default)]
pub(super) struct Doorbells(Mutex<BTreeMap<usize, Region>>);

impl Doorbells {
    /// The register for the streams of `gpu` and for the CPU, and what keeps it in their sight.
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
    /// Under the lock, so that nobody registers what is not yet taken back.
    fn drop(&mut self) {
        let _all = ALL.lock();
        let own = self.0.get_mut();
        own.clear();
    }
}
