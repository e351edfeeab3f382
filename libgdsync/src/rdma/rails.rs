//! Several NICs and ports of one GPU: lanes.
//!
//! A lane is a device, which is one port of one NIC. Memory is registered with all lanes at once;
//! the record of it, which peers get, has a key for each. A queue pair is of one lane, and says in
//! its address of which, so that whatever is prepared on it takes the right keys of both sides.
//! Lanes share nothing but the GPU: when one fails the others go on.

use std::time::Duration;

use super::verbs::{Device, Mr, Pd, Qp, QpConfig, Sge};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Gpu, Region};
use crate::nic::{Access, LANES, RemoteMemory};

/// One to [`LANES`] devices of one GPU, in an order that their peers learn from records. Clones
/// are the same devices.
///
/// ```
/// # fn main() -> gdsync::Result<()> {
/// use gdsync::gpu::MemoryKind;
/// use gdsync::rdma::{Access, Device, Lanes, QpConfig, Work};
///
/// let gpu = gdsync::Gpu::soft()?;
/// let lanes = Lanes::of(vec![Device::emulated(&gpu)?, Device::emulated(&gpu)?])?;
/// let pd = lanes.alloc_pd()?;
/// let memory = pd.register(&gpu.alloc(MemoryKind::Pinned, 4096)?, Access::ALL)?;
/// let there = memory.remote(); // the peer's, in earnest
/// for lane in 0..lanes.count() {
///     let (mut a, mut b) = (
///         pd.create_qp(lane, &QpConfig::default())?,
///         pd.create_qp(lane, &QpConfig::default())?,
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
pub struct Lanes {
    devices: Vec<Device>,
}

impl Lanes {
    /// These devices, the first of which is lane 0. They may be of different makers and
    /// providers, and one may be of several `Lanes`.
    ///
    /// # Errors
    /// `Invalid` if they are none or more than [`LANES`]; `Foreign` if they are of several GPUs.
    pub fn of(devices: Vec<Device>) -> Result<Lanes> {
        const OPERATION: &str = "join lanes";
        if devices.is_empty() || devices.len() > LANES {
            let what = format!("{} devices", devices.len());
            return Err(Error::new(OPERATION, Kind::Invalid, what).limit(LANES));
        }
        let gpu = devices[0].gpu();
        if let Some(other) = devices.iter().find(|device| !device.gpu().is(gpu)) {
            let what = format!("{other:?} beside {:?}", devices[0]);
            return Err(Error::new(OPERATION, Kind::Foreign, what));
        }
        Ok(Lanes { devices })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.devices.len()
    }

    /// Their devices, by lane.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The GPU that they are of.
    pub fn gpu(&self) -> &Gpu {
        self.devices[0].gpu()
    }

    /// Makes a protection domain of every lane.
    ///
    /// # Errors
    /// As [`Device::alloc_pd`].
    pub fn alloc_pd(&self) -> Result<LanesPd> {
        let domains = (0..).zip(&self.devices);
        let pds = domains.map(|(lane, device)| device.alloc_pd_of(lane));
        Ok(LanesPd {
            pds: pds.collect::<Result<_>>()?,
        })
    }

    /// [`Device::close`] for each lane, all within `limit`.
    ///
    /// # Errors
    /// As [`Device::close`], of the first lane that is not done; the others were closed.
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
}

/// A protection domain of every lane, made by [`Lanes::alloc_pd`]. Clones are the same ones.
#[derive(Clone, Debug)]
pub struct LanesPd {
    pds: Vec<Pd>,
}

impl LanesPd {
    /// The protection domains, by lane.
    pub fn pds(&self) -> &[Pd] {
        &self.pds
    }

    /// Registers a whole region with every lane.
    ///
    /// # Errors
    /// As [`Pd::register`], of the first lane that refuses; no other keeps it then.
    pub fn register(&self, region: &Region, access: Access) -> Result<LanesMr> {
        let mrs = self.pds.iter().map(|pd| pd.register(region, access));
        Ok(LanesMr {
            mrs: mrs.collect::<Result<_>>()?,
        })
    }

    /// Makes a queue pair of `lane`. Its peer may be of any lane.
    ///
    /// # Errors
    /// `Invalid` if there is no such lane; as [`Pd::create_qp`].
    pub fn create_qp(&self, lane: usize, config: &QpConfig) -> Result<Qp> {
        let pd = self.pds.get(lane).ok_or_else(|| {
            let what = format!("lane {lane} of {}", self.pds.len());
            Error::new("create queue pair", Kind::Invalid, what).limit(self.pds.len() - 1)
        })?;
        pd.create_qp(config)
    }
}

/// A region that was registered with every lane, by [`LanesPd::register`]. Clones are the same
/// registrations.
#[derive(Clone, Debug)]
pub struct LanesMr {
    mrs: Vec<Mr>,
}

impl LanesMr {
    /// The registrations, by lane.
    pub fn mrs(&self) -> &[Mr] {
        &self.mrs
    }

    /// The memory.
    pub fn region(&self) -> &Region {
        self.mrs[0].region()
    }

    /// The `len` bytes at `offset`, for requests on `qp`, by the registration with its lane.
    /// Bounds are checked when a request is prepared.
    ///
    /// # Errors
    /// `Foreign` if `qp` is not of the protection domains that the region was registered with.
    pub fn sge(&self, qp: &Qp, offset: u64, len: u32) -> Result<Sge<'_>> {
        let mr = self.mrs.get(usize::from(qp.pd().lane()));
        let mr = mr.filter(|mr| mr.is_of(qp.pd())).ok_or_else(|| {
            let what = format!("{self:?} with {qp:?}");
            Error::new("name memory", Kind::Foreign, what)
        })?;
        Ok(mr.sge(offset, len))
    }

    /// The record by which a peer names it, with the key of every lane.
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
