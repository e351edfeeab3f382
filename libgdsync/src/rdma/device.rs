//! Devices, protection domains, registrations.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gds_step::{Lane, Machine, MachineId, Shared, Step};

use super::proxy::{Proxy, ProxyList};
use super::watch::{FlushFaults, WatchList, Watcher};
use super::{Life, Qp, QpConfig, QpCore, Sge};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Consistency, Gpu, MemoryKind, Region};
use crate::nic::{Access, LANES, MrKeys, Nic, PdId, Provider, RemoteMemory};

/// A NIC, opened for one GPU. Clones are the same device.
///
/// When the last handle on a device and on all that was made from it is gone, what is still in
/// flight is given up: streams that wait for it pass, with [`Status::CLOSED`](crate::Status) in the
/// error words. [`Device::close`] waits for it instead.
#[derive(Clone)]
pub struct Device(pub(super) Arc<DeviceInner>);

pub(super) struct DeviceInner {
    gpu: Gpu,
    nic: Arc<dyn Nic>,
    /// What would have been better, and why it cannot be used.
    passed_over: Vec<String>,
    watch: WatchList,
    watcher: Shared<Watcher>,
    /// `None`: the caller steps the watcher.
    attached: Option<MachineId>,
    proxies: ProxyList,
    /// Attached with the first queue pair that wants one.
    proxy: OnceLock<MachineId>,
    flusher: Option<Arc<dyn Flusher>>,
    flushes: Flushes,
}

/// What makes visible to streams what a device's NIC writes, kept as long as the device.
pub(super) trait Flusher: Send + Sync {
    /// One visit of the queue pairs that are its own.
    fn progress(&self) -> bool {
        false
    }
}

/// What queue pairs have to do with flushes for streams.
#[derive(Clone)]
pub(crate) struct Flushes {
    /// How those that the device relies on have gone.
    pub fault: Arc<FlushFaults>,
    /// Whether its queue pairs are those by which a NIC flushes, and raise that.
    pub raises: bool,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {:?}", self.name(), self.0.gpu)
    }
}

impl Device {
    /// A device on the same NIC whose queue pairs flush for those of another, which `fault` is
    /// of. With nobody but the caller to step its watcher, or `watched` as others are.
    pub(super) fn beside(
        gpu: &Gpu,
        nic: &Arc<dyn Nic>,
        watched: bool,
        fault: &Arc<FlushFaults>,
    ) -> Device {
        let name = watched.then(|| format!("{}.flush", nic.name()));
        let flushes = Flushes {
            fault: Arc::clone(fault),
            raises: true,
        };
        let watch = WatchList::default();
        let nic = Arc::clone(nic);
        Device::assemble(gpu, nic, Vec::new(), name, watch, None, flushes)
    }

    /// `watched`: what its watcher is called, if it has one of its own.
    pub(super) fn assemble(
        gpu: &Gpu,
        nic: Arc<dyn Nic>,
        passed_over: Vec<String>,
        watched: Option<String>,
        watch: WatchList,
        flusher: Option<Arc<dyn Flusher>>,
        flushes: Flushes,
    ) -> Device {
        let host = gpu.host();
        let proxies = ProxyList::default();
        let name = watched.clone().unwrap_or_default();
        let watcher = Watcher::new(watch.clone(), Arc::clone(&nic), name);
        let watcher = Shared::new(watcher);
        let attached = watched.map(|_| host.attach(Lane::Watch, Box::new(watcher.clone())));
        Device(Arc::new(DeviceInner {
            gpu: gpu.clone(),
            nic,
            passed_over,
            watch,
            watcher,
            attached,
            proxies,
            proxy: OnceLock::new(),
            flusher,
            flushes,
        }))
    }

    /// One visit of all queue pairs, as the watcher makes it. `true`: something was done.
    pub fn progress(&self) -> bool {
        let now = self.0.gpu.host().now();
        let busy = self.0.watcher.with(|watcher| watcher.step(now)) == Step::Progress;
        let flusher = self.0.flusher.as_ref();
        busy | flusher.is_some_and(|flusher| flusher.progress())
    }

    /// The provider and the NIC, for people: `emulated nic0`.
    pub fn name(&self) -> String {
        format!("{} {}", self.0.nic.provider(), self.0.nic.name())
    }

    /// Who drives it; never [`Provider::Auto`].
    pub fn provider(&self) -> Provider {
        self.0.nic.provider()
    }

    /// The providers that [`Provider::Auto`] would rather have taken, each with the reason why
    /// it could not be.
    pub fn passed_over(&self) -> &[String] {
        &self.0.passed_over
    }

    /// The GPU it was opened for.
    pub fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    /// How a stream that has passed a wait with a flush comes to see what the NIC wrote to memory
    /// of `kind` before: by what GPU and NIC can do, or what `GDS_CONSISTENCY` says.
    ///
    /// # Errors
    /// `Unsupported` if there is no way: waits that ask for a flush are then refused, and payload
    /// that streams consume belongs into pinned memory.
    pub fn consistency(&self, kind: MemoryKind) -> Result<Consistency> {
        Consistency::choose(kind, self.0.gpu.caps(), self.nic().reads()).map_err(|e| e.of(self))
    }

    /// Whether WRITEs of a peer's queue pair into this device's registrations become visible in the
    /// order in which they were posted. True for the virtual NIC without the fault `ooo` and for the
    /// kernel's soft-RoCE. False for any other NIC: if the fabric spreads packets over several
    /// paths, it may place them as they arrive.
    pub fn keeps_write_order(&self) -> bool {
        self.nic().keeps_order()
    }

    /// Whether its queue pairs do RDMA READs.
    pub fn reads(&self) -> bool {
        self.nic().reads()
    }

    pub(crate) fn nic(&self) -> &Arc<dyn Nic> {
        &self.0.nic
    }

    pub(super) fn flushes(&self) -> &Flushes {
        &self.0.flushes
    }

    pub(super) fn watch(&self) -> &WatchList {
        &self.0.watch
    }

    /// Has the proxy serve a queue pair.
    pub(super) fn serve_by_proxy(&self, core: Arc<QpCore>) {
        self.0.proxies.add(core);
        self.0.proxy.get_or_init(|| {
            let proxy = Proxy::new(
                self.0.proxies.clone(),
                format!("{}.proxy", self.nic().name()),
            );
            self.0.gpu.host().attach(Lane::Proxy, Box::new(proxy))
        });
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// `System` if the device has none left.
    pub fn alloc_pd(&self) -> Result<Pd> {
        self.alloc_pd_of(0)
    }

    /// As [`Device::alloc_pd`], for a device that is this one of several [`Lanes`](super::Lanes).
    pub(super) fn alloc_pd_of(&self, lane: u8) -> Result<Pd> {
        let id = self.nic().alloc_pd()?;
        let nic = Arc::clone(self.nic());
        Ok(Pd {
            inner: Arc::new(PdInner { nic, id, lane }),
            device: self.clone(),
        })
    }

    /// Waits, at most `limit`, until everything posted on queue pairs that were dropped has
    /// completed and every stream has passed its waits on them. On return, the NIC has
    /// destroyed the queue pairs that no stream ever rang for; it destroys the others when the
    /// streams have passed their doorbells.
    ///
    /// # Errors
    /// `Timeout`, naming how many queue pairs are still in flight or still held. They stay
    /// watched; the call may be repeated.
    pub fn close(&self, limit: Duration) -> Result<()> {
        let host = self.0.gpu.host();
        let deadline = host.now() + limit;
        let dropped = || {
            let mut open = self.watch().open();
            open.retain(|core| core.is(Life::Closing));
            open
        };
        if host.wait_until(Some(deadline), &mut || dropped().is_empty()) {
            return Ok(());
        }
        let open = dropped();
        let names: Vec<String> = open
            .iter()
            .map(|core| format!("{:#x}", core.qpn()))
            .collect();
        let what = format!(
            "{} queue pairs not finished: {}",
            open.len(),
            names.join(", ")
        );
        Err(Error::new("close device", Kind::Timeout, what))
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        let host = self.gpu.host();
        if let Some(watcher) = self.attached {
            host.detach(watcher);
        }
        if let Some(proxy) = self.proxy.get() {
            host.detach(*proxy);
        }
        for core in self.watch.open() {
            core.abandon();
        }
    }
}

/// A protection domain: registrations and queue pairs of one work together.
#[derive(Clone)]
pub struct Pd {
    inner: Arc<PdInner>,
    device: Device,
}

/// Shared with registrations, which requests in flight keep alive: it must not hold the device,
/// whose end gives up what is in flight.
pub(crate) struct PdInner {
    nic: Arc<dyn Nic>,
    id: PdId,
    /// Where its keys stand in records.
    lane: u8,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        self.nic.dealloc_pd(self.id);
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pd {} of {:?}", self.inner.id.0, self.device)
    }
}

impl Pd {
    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn inner(&self) -> &Arc<PdInner> {
        &self.inner
    }

    pub(super) fn id(&self) -> PdId {
        self.inner.id
    }

    /// Which of several [`Lanes`](super::Lanes) it is of; 0 if it was made by a device alone.
    pub fn lane(&self) -> u8 {
        self.inner.lane
    }

    /// Registers a whole region with the NIC.
    ///
    /// # Errors
    /// `Foreign` for memory of another GPU, `System` if the NIC refuses.
    pub fn register(&self, region: &Region, access: Access) -> Result<Mr> {
        let device = self.device();
        if !region.gpu().is(device.gpu()) {
            return Err(Error::new(
                "register memory",
                Kind::Foreign,
                format!("{region:?} with {device:?}"),
            ));
        }
        let nic = Arc::clone(device.nic());
        let keys = nic.reg_mr(self.id(), region, access)?;
        Ok(Mr(Arc::new(MrInner {
            nic,
            pd: Arc::clone(&self.inner),
            region: region.clone(),
            access,
            keys,
        })))
    }

    /// Makes a queue pair.
    ///
    /// # Errors
    /// `Invalid` for sizes out of range, `System` if device or memory refuse.
    pub fn create_qp(&self, config: &QpConfig) -> Result<Qp> {
        Qp::create(self, config)
    }
}

/// A region that was registered with a NIC. Clones are the same registration, which ends when
/// the last clone and the last request in flight that names it are gone.
#[derive(Clone)]
pub struct Mr(Arc<MrInner>);

pub(crate) struct MrInner {
    nic: Arc<dyn Nic>,
    pd: Arc<PdInner>,
    region: Region,
    access: Access,
    keys: MrKeys,
}

impl Drop for MrInner {
    fn drop(&mut self) {
        self.nic.dereg_mr(self.keys);
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MrInner { keys, region, .. } = &*self.0;
        write!(f, "registration {:#x} of {region:?}", keys.lkey)
    }
}

impl Mr {
    /// What ends with this handle, if it is the last.
    pub(super) fn into_last(self) -> Option<MrInner> {
        Arc::into_inner(self.0)
    }

    /// The memory.
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// What it permits.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// The key by which requests of this side name it.
    pub fn lkey(&self) -> u32 {
        self.0.keys.lkey
    }

    /// The `len` bytes at `offset`, as a request names them. Checked when it is prepared.
    pub fn sge(&self, offset: u64, len: u32) -> Sge<'_> {
        Sge {
            mr: self,
            offset,
            len,
        }
    }

    /// Ends the registration, and the region behind it, if this is their last handle and no
    /// request in flight names them.
    ///
    /// # Errors
    /// The registration itself, if something else still uses it or its region.
    pub fn try_close(mut self) -> Result<(), Mr> {
        let last = Arc::get_mut(&mut self.0).is_some_and(|inner| {
            let own = 1 + inner.nic.holds(&inner.region);
            inner.region.handles() <= own
        });
        if last { Ok(()) } else { Err(self) }
    }

    /// Ends the registration and gives the buffer back that [`Gpu::adopt_vec`] took, once nothing
    /// else can reach it: as [`Region::into_vec`], which also waits until this is the last handle
    /// on the registration and no request in flight names it.
    ///
    /// # Errors
    /// The registration as well: `Timeout`, naming what still reaches the memory, or `Invalid` if
    /// it was not made of a buffer.
    pub fn into_vec(self, limit: Duration) -> Result<Vec<u8>, (Mr, Error)> {
        let region = &self.0.region;
        let host = region.gpu().host();
        let deadline = host.now() + limit;
        let alone = || Arc::strong_count(&self.0) == 1;
        let settled = region.check_buffer().and_then(|()| {
            if !host.wait_until(Some(deadline), &mut || alone()) {
                let others = Arc::strong_count(&self.0).saturating_sub(1);
                let what =
                    format!("{self:?}: {others} other handles or requests in flight hold it");
                return Err(Error::new("give buffer back", Kind::Timeout, what));
            }
            region.settle(self.0.nic.holds(region), deadline)
        });
        match settled {
            Ok(()) => {
                let region = region.clone();
                // Ends the registration: peers do not reach the memory any more.
                drop(self);
                // SAFETY: made of a buffer, as checked, and no other handle exists since.
                Ok(unsafe { region.release() })
            }
            Err(e) => Err((self, e)),
        }
    }

    /// The record by which a peer names it.
    pub fn remote(&self) -> RemoteMemory {
        let mut rkeys = [None; LANES];
        rkeys[usize::from(self.0.pd.lane)] = Some(self.0.keys.rkey);
        RemoteMemory {
            addr: self.0.region.addr().0,
            len: self.0.region.len() as u64,
            rkeys,
        }
    }

    /// Whether it belongs to this protection domain.
    pub fn is_of(&self, pd: &Pd) -> bool {
        Arc::ptr_eq(&self.0.pd, &pd.inner)
    }
}
