//! [`Device`]: an open NIC with its watcher and, if a queue pair uses it, the CPU thread that
//! writes doorbells.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gds_step::{Machine, MachineId, Shared, Step, Thread, Time};

use super::cpu_thread::CpuThread;
use super::watch::{FlushFaults, WatchList, Watcher};
use super::{Life, Pd, QpCore};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Consistency, Gpu, MemoryKind};
use crate::nic::{Nic, Provider};

/// One port of a NIC, opened for one GPU: the verbs device context. A clone is the same device.
///
/// [`Device::from_env`] opens the NIC that suits the GPU best. A background thread, the watcher,
/// visits all queue pairs of the device about once a millisecond: it detects errors and timeouts,
/// and releases the streams that wait for failed requests.
///
/// ```
/// use gdsync::rdma::{Device, DeviceOptions, Provider};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// let options = DeviceOptions::default().provider(Provider::Emulated); // or `Device::emulated`
/// let device = Device::open_with(&gpu, &options)?;
/// assert_eq!(device.provider().to_string(), "emulated");
/// println!("{device:?}, not {:?}", device.passed_over()); // empty: a provider was named
/// # Ok(())
/// # }
/// ```
///
/// When the last handle on a device and on all objects made from it is dropped, work in flight is
/// cancelled: streams that wait for it continue, with [`Status::CLOSED`](crate::Status::CLOSED) in
/// the error words. [`Device::close`] waits for that work instead.
#[derive(Clone)]
pub struct Device(pub(in crate::rdma) Arc<DeviceInner>);

pub(in crate::rdma) struct DeviceInner {
    gpu: Gpu,
    nic: Arc<dyn Nic>,
    /// The providers that `Auto` prefers, each with the reason why it could not be used.
    passed_over: Vec<String>,
    watch: WatchList,
    watcher: Shared<Watcher>,
    /// `None`: the caller steps the watcher.
    attached: Option<MachineId>,
    rung_for: WatchList,
    /// Attached with the first queue pair that uses it.
    cpu_thread: OnceLock<MachineId>,
    flusher: Option<Arc<dyn Flusher>>,
    flushes: Flushes,
}

/// An object that makes the NIC writes of a device visible to streams, kept as long as the device.
pub(in crate::rdma) trait Flusher: Send + Sync {
    /// Visits its queue pairs once.
    fn progress(&self) -> bool {
        false
    }
}

/// The relation of queue pairs to flushes for streams.
#[derive(Clone)]
pub(crate) struct Flushes {
    /// The failures of the flushes that the device relies on.
    pub fault: Arc<FlushFaults>,
    /// Whether its queue pairs are those by which a NIC flushes, so that their failures raise
    /// `fault`.
    pub raises: bool,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {:?}", self.name(), self.0.gpu)
    }
}

impl Device {
    /// A device on the same NIC whose queue pairs flush for those of another device, to which
    /// `fault` belongs. The caller steps its watcher, unless `watched` gives it a thread, as for
    /// other devices.
    pub(in crate::rdma) fn beside(
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

    /// `watched`: the name of its watcher, if it has its own.
    pub(in crate::rdma) fn assemble(
        gpu: &Gpu,
        nic: Arc<dyn Nic>,
        passed_over: Vec<String>,
        watched: Option<String>,
        watch: WatchList,
        flusher: Option<Arc<dyn Flusher>>,
        flushes: Flushes,
    ) -> Device {
        let host = gpu.host();
        let rung_for = WatchList::default();
        let name = watched.clone().unwrap_or_default();
        let watcher = Watcher::new(watch.clone(), Arc::clone(&nic), name);
        let watcher = Shared::new(watcher);
        let attached = watched.map(|_| host.attach(Thread::Watch, Box::new(watcher.clone())));
        Device(Arc::new(DeviceInner {
            gpu: gpu.clone(),
            nic,
            passed_over,
            watch,
            watcher,
            attached,
            rung_for,
            cpu_thread: OnceLock::new(),
            flusher,
            flushes,
        }))
    }

    /// Visits all queue pairs once, as the watcher does: for a device that was opened without a
    /// watcher ([`DeviceOptions::watched`](field@crate::rdma::DeviceOptions::watched)). `true`:
    /// some work was done. Does not block.
    pub fn progress(&self) -> bool {
        let now = self.0.gpu.host().now();
        let busy = self.0.watcher.with(|watcher| watcher.step(now)) == Step::Progress;
        let flusher = self.0.flusher.as_ref();
        busy | flusher.is_some_and(|flusher| flusher.progress())
    }

    /// Waits until `condition` holds (returns `true`) or the deadline of the host's clock has passed
    /// (returns `false`), as [`Env::wait_until`](gds_step::Env::wait_until) of the GPU's host does. With
    /// [`Provider::Tcp`] the calling thread does the work of the CPU thread meanwhile, which spares the
    /// change of threads for each message, and data of a peer end its sleep.
    pub fn wait_until(&self, deadline: Option<Time>, condition: &mut dyn FnMut() -> bool) -> bool {
        let host = self.0.gpu.host();
        self.nic().wait_until(&**host, deadline, condition)
    }

    /// The provider and the NIC as text for reports: `emulated nic0`.
    pub fn name(&self) -> String {
        format!("{} {}", self.0.nic.provider(), self.0.nic.name())
    }

    /// The provider that drives the NIC; never [`Provider::Auto`].
    pub fn provider(&self) -> Provider {
        self.0.nic.provider()
    }

    /// The providers that [`Provider::Auto`] prefers to this one, each with the reason why it could
    /// not be used.
    pub fn passed_over(&self) -> &[String] {
        &self.0.passed_over
    }

    /// The GPU for which the device was opened.
    pub fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    /// The policy that makes NIC writes to memory of `kind` visible to a stream that has passed a
    /// wait with a flush: by the capabilities of GPU and NIC, or by `GDS_CONSISTENCY`.
    ///
    /// # Errors
    /// `Unsupported` if no policy is possible: waits with a flush are then refused, and payload for
    /// streams must be in pinned memory.
    pub fn consistency(&self, kind: MemoryKind) -> Result<Consistency> {
        Consistency::choose(kind, self.0.gpu.caps(), self.nic().reads())
            .map_err(|e| e.with_owner(self))
    }

    /// Whether WRITEs of a peer's queue pair into this device's registrations become visible in the
    /// order in which they were posted. True for the virtual NIC without the fault `ooo` and for
    /// the kernel's soft-RoCE. False for any other NIC: if the fabric spreads packets over several
    /// paths, the NIC may place them in the order of arrival.
    pub fn keeps_write_order(&self) -> bool {
        self.nic().keeps_order()
    }

    /// Whether its queue pairs support RDMA READ. False only for a NIC of [`Device::verbs`] that
    /// reports 0 outstanding READs (`max_qp_rd_atom`, `max_qp_init_rd_atom`).
    pub fn reads(&self) -> bool {
        self.nic().reads()
    }

    pub(crate) fn nic(&self) -> &Arc<dyn Nic> {
        &self.0.nic
    }

    pub(in crate::rdma) fn flushes(&self) -> &Flushes {
        &self.0.flushes
    }

    pub(in crate::rdma) fn watch(&self) -> &WatchList {
        &self.0.watch
    }

    /// Adds a queue pair to those that the CPU thread serves.
    pub(in crate::rdma) fn serve_by_cpu_thread(&self, core: Arc<QpCore>) {
        self.0.rung_for.add(core);
        self.0.cpu_thread.get_or_init(|| {
            let cpu_thread = CpuThread::new(
                self.0.rung_for.clone(),
                format!("{}.cpu", self.nic().name()),
            );
            self.0.gpu.host().attach(Thread::Cpu, Box::new(cpu_thread))
        });
    }

    /// Allocates a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    /// `System` if the device has no free protection domain.
    pub fn alloc_pd(&self) -> Result<Pd> {
        self.alloc_pd_of(0)
    }

    /// As [`Device::alloc_pd`], for a device that is rail `rail` of several
    /// [`Rails`](crate::rdma::Rails).
    pub(in crate::rdma) fn alloc_pd_of(&self, rail: u8) -> Result<Pd> {
        Pd::new(self, rail)
    }

    /// Waits, blocking the CPU for at most `limit`, until all work posted on dropped queue pairs
    /// has completed and every stream has passed its waits on them. On return, the NIC has
    /// destroyed the queue pairs whose doorbell no stream ever wrote; it destroys the others when
    /// the streams have passed their doorbells.
    ///
    /// # Errors
    /// `Timeout`, with the number of queue pairs that are still in flight or still held. The
    /// watcher keeps visiting them; the caller may repeat the call.
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
            "{} queue pairs still have work in flight after {limit:?}: QP {}",
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
        if let Some(cpu_thread) = self.cpu_thread.get() {
            host.detach(*cpu_thread);
        }
        for core in self.watch.open() {
            core.abandon();
        }
    }
}
