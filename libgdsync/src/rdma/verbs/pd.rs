//! Protection domains and registrations.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Device, Qp, QpConfig, Sge};
use crate::error::{Error, Kind, Result};
use crate::gpu::Region;
use crate::nic::{Access, MrKeys, Nic, PdId, RAILS, RemoteMemory};

/// A protection domain (PD): memory regions and queue pairs of the same domain can be used
/// together. A clone is the same domain.
///
/// ```
/// use gdsync::gpu::MemoryKind;
/// use gdsync::rdma::{Access, Device, QpConfig};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// let pd = Device::emulated(&gpu)?.alloc_pd()?;
/// let region = gpu.alloc(MemoryKind::Device, 4096)?;
/// let mr = pd.register(&region, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
/// let qp = pd.create_qp(&QpConfig::default())?;
/// assert!(mr.is_of(&pd) && mr.is_of(qp.pd()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pd {
    inner: Arc<PdInner>,
    device: Device,
}

/// Shared with registrations, which requests in flight keep alive: it must not hold the device,
/// because the drop of the device cancels work in flight.
pub(crate) struct PdInner {
    nic: Arc<dyn Nic>,
    id: PdId,
    /// The position of its keys in records.
    rail: u8,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        self.nic.dealloc_pd(self.id);
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PD {} of {:?}", self.inner.id.0, self.device)
    }
}

impl Pd {
    pub(super) fn new(device: &Device, rail: u8) -> Result<Pd> {
        let nic = Arc::clone(device.nic());
        let id = nic.alloc_pd()?;
        Ok(Pd {
            inner: Arc::new(PdInner { nic, id, rail }),
            device: device.clone(),
        })
    }

    /// The device of the domain.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(in crate::rdma) fn inner(&self) -> &Arc<PdInner> {
        &self.inner
    }

    pub(in crate::rdma) fn id(&self) -> PdId {
        self.inner.id
    }

    /// The rail of the domain among several [`Rails`](crate::rdma::Rails); 0 if it was made from a
    /// single device.
    pub fn rail(&self) -> u8 {
        self.inner.rail
    }

    /// Registers a whole region with the NIC, with these rights (`ibv_reg_mr`; GPU memory as a
    /// dma-buf, or by `nvidia_peermem`). Peers access it as soon as they have its record,
    /// [`Mr::remote`].
    ///
    /// # Errors
    /// `Foreign` for memory of another GPU; `Unsupported` for GPU memory that the NIC, the kernel
    /// or the driver cannot register; `Invalid` or `System` if the NIC refuses.
    pub fn register(&self, region: &Region, access: Access) -> Result<Mr> {
        let device = self.device();
        if !region.gpu().is(device.gpu()) {
            let what = format!("{region:?} is not on the GPU of {device:?}");
            return Err(Error::new("register memory", Kind::Foreign, what));
        }
        let nic = Arc::clone(device.nic());
        let keys = nic.reg_mr(self.id(), region, access)?;
        let mut rkeys = [None; RAILS];
        rkeys[usize::from(self.rail())] = Some(keys.rkey);
        let remote = RemoteMemory {
            addr: region.addr().0,
            len: region.len() as u64,
            rkeys,
        };
        Ok(Mr(Arc::new(MrInner {
            nic,
            pd: Arc::clone(&self.inner),
            region: region.clone(),
            access,
            keys,
            remote,
        })))
    }

    /// Creates a queue pair, with its completion queues and doorbell record. It must be connected
    /// ([`Qp::connect`]) or activated ([`Qp::activate`]) before it sends.
    ///
    /// # Errors
    /// `Invalid` for a size or setting out of its range, in `config` or in an environment variable,
    /// or for a partition of which the port is not a member; `Unsupported` if the NIC or the GPU
    /// does not support the configuration; `System` if the device or the memory allocation refuses.
    pub fn create_qp(&self, config: &QpConfig) -> Result<Qp> {
        Qp::create(self, config)
    }
}

/// A memory region (MR): memory that is registered with a NIC. A clone is the same registration. It
/// ends when the last clone and the last request in flight that uses it are gone.
///
/// ```
/// use gdsync::gpu::MemoryKind;
/// use gdsync::rdma::{Access, RemoteMemory};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// # let pd = gdsync::rdma::Device::emulated(&gpu)?.alloc_pd()?;
/// let mr = pd.register(&gpu.alloc(MemoryKind::Pinned, 4096)?, Access::ALL)?;
/// let local = mr.sge(64, 16); // for requests of this side: 16 bytes at offset 64
/// let record = mr.remote().to_bytes(); // for the peer: 48 bytes, sent by any means
/// let remote = RemoteMemory::from_bytes(&record)?.span(64, 16)?; // at the peer
/// # assert_eq!((local.offset, remote.addr), (64, mr.region().addr().0 + 64));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Mr(Arc<MrInner>);

pub(crate) struct MrInner {
    nic: Arc<dyn Nic>,
    pd: Arc<PdInner>,
    region: Region,
    access: Access,
    keys: MrKeys,
    /// Stored, because each request to this memory needs it.
    remote: RemoteMemory,
}

impl Drop for MrInner {
    fn drop(&mut self) {
        self.nic.dereg_mr(self.keys);
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MrInner { keys, region, .. } = &*self.0;
        write!(f, "MR {:#x} of {region:?}", keys.lkey)
    }
}

impl Mr {
    /// The inner value, if this is the last handle.
    pub(in crate::rdma) fn into_last(self) -> Option<MrInner> {
        Arc::into_inner(self.0)
    }

    /// The memory.
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// The operations that it permits.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// The local key (lkey), as WQEs of this side contain it.
    pub fn lkey(&self) -> u32 {
        self.0.keys.lkey
    }

    /// The `len` bytes at byte `offset`, as a segment of a request. The bounds are checked when the
    /// request is prepared.
    pub fn sge(&self, offset: u64, len: u32) -> Sge<'_> {
        Sge {
            mr: self,
            offset,
            len,
        }
    }

    /// Ends the registration, and frees its region, if this is the last handle on both and no
    /// request in flight uses them.
    ///
    /// # Errors
    /// The registration itself, if another object still uses it or its region.
    pub fn try_close(mut self) -> Result<(), Mr> {
        let last = Arc::get_mut(&mut self.0).is_some_and(|inner| {
            let own = 1 + inner.nic.holds(&inner.region);
            inner.region.handles() <= own
        });
        if last { Ok(()) } else { Err(self) }
    }

    /// Ends the registration and returns the buffer that [`Gpu::adopt_vec`](crate::Gpu::adopt_vec)
    /// took. The call waits as [`Region::into_vec`] does, and also until this is the last handle on
    /// the registration and no request in flight uses it.
    ///
    /// # Errors
    /// Each error returns the registration unchanged. `Timeout` after `limit`, with what still uses
    /// the memory; `Invalid` if the region was not made from a buffer.
    pub fn into_vec(self, limit: Duration) -> Result<Vec<u8>, (Mr, Error)> {
        let region = &self.0.region;
        let host = region.gpu().host();
        let deadline = host.now() + limit;
        let alone = || Arc::strong_count(&self.0) == 1;
        let settled = region.check_buffer().and_then(|()| {
            if !host.wait_until(Some(deadline), &mut || alone()) {
                let others = Arc::strong_count(&self.0).saturating_sub(1);
                let what = format!(
                    "{others} other handles or requests in flight still use {self:?} after {limit:?}"
                );
                return Err(Error::new("return buffer", Kind::Timeout, what));
            }
            region.settle(self.0.nic.holds(region), deadline)
        });
        match settled {
            Ok(()) => {
                let region = region.clone();
                // Ends the registration: peers cannot access the memory any more.
                drop(self);
                // SAFETY: made from a buffer, as checked, and no other handle was made since.
                Ok(unsafe { region.release() })
            }
            Err(e) => Err((self, e)),
        }
    }

    /// The record by which a peer accesses the memory: address, length and rkey.
    pub fn remote(&self) -> RemoteMemory {
        self.0.remote
    }

    /// Whether it belongs to this protection domain.
    pub fn is_of(&self, pd: &Pd) -> bool {
        Arc::ptr_eq(&self.0.pd, &pd.inner)
    }
}
