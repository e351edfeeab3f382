//! Rails: several NICs and ports of one GPU.
//!
//! A rail is a device, which is one port of one NIC. Memory is registered with all rails at once;
//! its record for peers has one key per rail. A queue pair belongs to one rail and names this rail
//! in its address, so that each request uses the keys of the right rail on both sides. Rails share
//! only the GPU: if one rail fails, the others continue.

use std::time::Duration;

use super::verbs::{Device, Mr, Pd, Qp, QpConfig, Sge};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Gpu, Region};
use crate::nic::{Access, RAILS, RemoteMemory};

/// Rails: one to [`RAILS`] devices of one GPU, each with a protection domain. A rail is a device,
/// which is one port of one NIC. The order of the rails is fixed: records for peers contain it. A
/// clone has the same devices and protection domains.
///
/// Memory is registered with all rails at once. A queue pair belongs to one rail; its requests use
/// the keys of the right rail on both sides. Rails share only the GPU: if one fails, the others
/// continue.
///
/// ```
/// # fn main() -> gdsync::Result<()> {
/// use gdsync::gpu::MemoryKind;
/// use gdsync::rdma::{Access, Device, Rails, QpConfig, Work};
///
/// let gpu = gdsync::Gpu::soft()?;
/// let rails = Rails::of(vec![Device::emulated(&gpu)?, Device::emulated(&gpu)?])?;
/// let memory = rails.register(&gpu.alloc(MemoryKind::Pinned, 4096)?, Access::ALL)?;
/// let there = memory.remote(); // in a job, the record of the peer's memory
/// for rail in 0..rails.count() {
///     let (mut a, mut b) = (
///         rails.create_qp(rail, &QpConfig::default())?,
///         rails.create_qp(rail, &QpConfig::default())?,
///     );
///     a.connect(&b.address())?;
///     b.connect(&a.address())?;
///     let (from, to) = ([memory.sge(&a, 0, 8)?], there.span(8, 8)?);
///     let write = a.prepare(&Work::write(&from, to).signaled())?;
///     a.post(write)?;
///     a.wait(write, std::time::Duration::from_secs(10))?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Rails {
    devices: Vec<Device>,
    pds: Vec<Pd>,
}

impl Rails {
    /// Joins these devices; the first one is rail 0. They may be of different makers and providers,
    /// and one device may be in several `Rails`.
    ///
    /// # Errors
    /// `Invalid` for no devices or more than [`RAILS`]; `Foreign` if they are of several GPUs;
    /// other errors as [`Device::alloc_pd`].
    pub fn of(devices: Vec<Device>) -> Result<Rails> {
        const OPERATION: &str = "join rails";
        if devices.is_empty() || devices.len() > RAILS {
            let what = format!("{} devices cannot be rails; give at least 1", devices.len());
            return Err(Error::new(OPERATION, Kind::Invalid, what).with_limit(RAILS, "devices"));
        }
        let gpu = devices[0].gpu();
        if let Some(other) = devices.iter().find(|device| !device.gpu().is(gpu)) {
            let what = format!("{other:?} is not on the GPU of {:?}", devices[0]);
            return Err(Error::new(OPERATION, Kind::Foreign, what));
        }
        let domains = (0..).zip(&devices);
        let pds = domains.map(|(rail, device)| device.alloc_pd_of(rail));
        let pds = pds.collect::<Result<_>>()?;
        Ok(Rails { devices, pds })
    }

    /// The number of rails, 1 to [`RAILS`].
    pub fn count(&self) -> usize {
        self.devices.len()
    }

    /// The devices, by rail.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The GPU of all devices.
    pub fn gpu(&self) -> &Gpu {
        self.devices[0].gpu()
    }

    /// Waits for the work of dropped queue pairs of every rail ([`Device::close`]), at most `limit`
    /// for all rails together.
    ///
    /// # Errors
    /// As [`Device::close`], of the first rail that does not finish; the other rails are closed.
    pub fn close(&self, limit: Duration) -> Result<()> {
        let host = self.gpu().host();
        let deadline = host.now() + limit;
        let mut outcome = Ok(());
        for device in &self.devices {
            let left = deadline.since(host.now());
            outcome = outcome.and(device.close(left));
        }
        outcome
    }

    /// The protection domains, by rail.
    pub fn pds(&self) -> &[Pd] {
        &self.pds
    }

    /// Registers a whole region with the NIC of every rail, as [`Pd::register`] does.
    ///
    /// # Errors
    /// As [`Pd::register`], of the first rail that refuses; no other rail keeps the registration
    /// then.
    pub fn register(&self, region: &Region, access: Access) -> Result<RailsMr> {
        let mrs = self.pds.iter().map(|pd| pd.register(region, access));
        Ok(RailsMr {
            mrs: mrs.collect::<Result<_>>()?,
        })
    }

    /// Creates a queue pair of `rail`, a number from 0 on. Its peer may be of any rail.
    ///
    /// # Errors
    /// `Invalid` for a rail that does not exist; other errors as [`Pd::create_qp`].
    pub fn create_qp(&self, rail: usize, config: &QpConfig) -> Result<Qp> {
        let pd = self.pds.get(rail).ok_or_else(|| {
            let what = format!("rail {rail} does not exist; rails are numbered from 0");
            Error::new("create queue pair", Kind::Invalid, what)
                .with_limit(self.pds.len() - 1, "rails")
        })?;
        pd.create_qp(config)
    }
}

/// A region that [`Rails::register`] registered with every rail. A clone has the same
/// registrations.
#[derive(Clone, Debug)]
pub struct RailsMr {
    mrs: Vec<Mr>,
}

impl RailsMr {
    /// The registrations, by rail.
    pub fn mrs(&self) -> &[Mr] {
        &self.mrs
    }

    /// The memory, which all registrations share.
    pub fn region(&self) -> &Region {
        self.mrs[0].region()
    }

    /// The `len` bytes at byte `offset`, for requests on `qp`, by the registration of its rail. The
    /// bounds are checked when a request is prepared.
    ///
    /// # Errors
    /// `Foreign` if `qp` belongs to none of the protection domains with which the region is
    /// registered.
    pub fn sge(&self, qp: &Qp, offset: u64, len: u32) -> Result<Sge<'_>> {
        let mr = self.mrs.get(usize::from(qp.pd().rail()));
        let mr = mr.filter(|mr| mr.is_of(qp.pd())).ok_or_else(|| {
            let what = format!("{self:?} is not registered in the protection domain of {qp:?}");
            Error::new("address memory", Kind::Foreign, what)
        })?;
        Ok(mr.sge(offset, len))
    }

    /// The record by which a peer accesses the region, with the rkey of every rail.
    pub fn remote(&self) -> RemoteMemory {
        let mut memory = self.mrs[0].remote();
        for mr in &self.mrs[1..] {
            for (key, new) in memory.rkeys.iter_mut().zip(mr.remote().rkeys) {
                *key = key.or(new);
            }
        }
        memory
    }
}
