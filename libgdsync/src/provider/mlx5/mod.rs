//! A ConnectX by rdma-core: libibverbs and libmlx5, opened at run time.
//!
//! libmlx5 makes the objects, in memory of ours; then CPU, streams and kernels write its rings
//! and ring its doorbells themselves. [`context`] has the libraries and opened NICs, [`port`]
//! the choice of NIC, port and identifier, [`qp`] how a queue pair is made, [`doorbell`]
//! where it is rung, [`memory`] how memory is registered, [`path`] what it is set to on its way
//! to a peer, [`handle`] how datagrams find one.

mod context;
mod doorbell;
mod events;
mod handle;
mod memory;
pub(super) mod path;
mod port;
mod qp;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use gds_step::Time;
use gdsync_sys::verbs::consts;
use gdsync_sys::verbs::types::{ibv_mr, ibv_pd};

pub(super) use self::context::{Context, check, is_gone, refused_last};
use self::doorbell::Doorbells;
pub(crate) use self::handle::Handle;
use self::memory::Memory;
pub(super) use self::path::Change;
use self::port::Port;
use self::qp::QpParts;
use crate::error::{Error, Kind, Result};
use crate::gpu::{Gpu, Region};
use crate::nic::{
    Access, Ah, AhAttr, Layout, MrKeys, Nic, NicChoice, PathConfig, PathSettings, PdId,
    PortAddress, Provider, QpAddress, QpMade, QpObjects, QpRings, RETRIES, Report,
};
use crate::status::Status;

/// What opening is called in errors.
const OPEN: &str = "open mlx5 device";

/// Pages of the host, which queues have to begin with.
const PAGE: usize = 4096;

/// An object of the library's. It may be used by any thread.
#[derive(Clone, Copy, Debug)]
struct Object<T>(*mut T);

// SAFETY: libibverbs may be called from any thread with any of its objects.
unsafe impl<T> Send for Object<T> {}

/// The tables of what is alive.
#[derive(Default)]
struct Alive {
    pds: BTreeMap<PdId, Object<ibv_pd>>,
    next_pd: u32,
    ahs: BTreeMap<u64, Handle>,
    next_ah: u64,
    /// By local key.
    mrs: BTreeMap<u32, Object<ibv_mr>>,
    /// By number. A change of state may take seconds: it locks its queue pair, not the tables.
    qps: BTreeMap<u32, Arc<Mutex<Option<QpParts>>>>,
}

/// One port of a NIC.
pub(crate) struct Mlx5Nic {
    gpu: Gpu,
    context: &'static Context,
    port: Port,
    name: String,
    alive: Mutex<Alive>,
    doorbells: Doorbells,
    /// Said how the GPU's memory is registered, if not by dma-bufs.
    told: Once,
}

impl Mlx5Nic {
    pub fn open(gpu: &Gpu, nic: Option<&NicChoice>) -> Result<Mlx5Nic> {
        Mlx5Nic::choose(gpu, nic, true)
    }

    /// As [`Mlx5Nic::open`], of any maker. It makes no queue pairs.
    pub fn open_any(gpu: &Gpu, nic: Option<&NicChoice>) -> Result<Mlx5Nic> {
        Mlx5Nic::choose(gpu, nic, false)
    }

    /// The ports that [`Mlx5Nic::open`], if `direct`, or [`Mlx5Nic::open_any`] may choose
    /// among: those that are active, of the NICs nearest to the GPU.
    pub fn near(gpu: &Gpu, direct: bool) -> Result<Vec<NicChoice>> {
        port::near(gpu, direct)
    }

    fn choose(gpu: &Gpu, nic: Option<&NicChoice>, direct: bool) -> Result<Mlx5Nic> {
        let (context, port) = port::choose(gpu, nic, direct)?;
        Ok(Mlx5Nic {
            gpu: gpu.clone(),
            context,
            port,
            name: format!("{}:{}", context.name, port.number),
            alive: Mutex::default(),
            doorbells: Doorbells::default(),
            told: Once::new(),
        })
    }

    pub(super) fn context(&self) -> &'static Context {
        self.context
    }

    pub(super) fn port_used(&self) -> &Port {
        &self.port
    }

    fn alive(&self) -> MutexGuard<'_, Alive> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pd(&self, id: PdId, operation: &'static str) -> Result<*mut ibv_pd> {
        let gone = || Error::new(operation, Kind::Foreign, format!("{id:?}"));
        self.alive().pds.get(&id).map(|pd| pd.0).ok_or_else(gone)
    }

    /// From RESET to INIT, where queue pairs are from the start: receives may be posted there, and
    /// a change to RESET, for which libmlx5 zeroes the doorbell record, is made by
    /// [`Nic::reset_qp`] alone.
    fn init(&self, qp: &QpParts, operation: &'static str) -> Result<()> {
        let to_init = path::init(&self.port, qp.access, qp.transport, qp.pkey);
        qp.modify(to_init, operation)
    }

    /// Where in the port's table the partition key of these settings is.
    pub(super) fn pkey_index(&self, path: &PathSettings) -> Result<u16> {
        port::pkey_index(self.context, self.port.number, path.pkey)
    }

    /// From INIT to ready to receive, then to send. As [`Nic::connect_qp`].
    fn bring_up(&self, qpn: u32, steps: [Change; 2], operation: &'static str) -> Result<()> {
        let [to_receive, to_send] = steps;
        self.modify(qpn, operation, |qp| {
            qp.modify(to_receive, operation)?;
            // Messages may have arrived already: a return to INIT would lose them.
            qp.modify(to_send, operation).map_err(|e| {
                let what = format!("queue pair {qpn:#x}: {e}");
                Error::new(operation, Kind::Failed(Status::CLOSED), what).source(e)
            })
        })
    }

    /// An address handle for a port.
    pub(super) fn handle(&self, pd: PdId, to: &AhAttr) -> Result<Handle> {
        let attr = path::ah_attr(&self.port, to, &PathConfig::default().resolve()?)?;
        let pd = self.pd(pd, "name destination")?;
        // SAFETY: a protection domain of this context, which destinations hold.
        unsafe { Handle::make(self.context, pd, attr) }
    }

    /// Calls `change` with a queue pair, which is not destroyed during the call.
    fn modify<R>(
        &self,
        qpn: u32,
        operation: &'static str,
        change: impl FnOnce(&QpParts) -> Result<R>,
    ) -> Result<R> {
        let gone = || Error::new(operation, Kind::WrongState, format!("queue pair {qpn:#x}"));
        let qp = self.alive().qps.get(&qpn).cloned().ok_or_else(gone)?;
        let parts = qp.lock().unwrap_or_else(PoisonError::into_inner);
        change(parts.as_ref().ok_or_else(gone)?)
    }
}

impl Nic for Mlx5Nic {
    fn provider(&self) -> Provider {
        Provider::Mlx5
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn node(&self) -> u64 {
        self.context.guid
    }

    fn port(&self) -> Option<PortAddress> {
        Some(self.port.address)
    }

    fn layout(&self) -> Layout {
        Layout {
            align: PAGE,
            most_pieces: 64,
            takes_uar: false,
            device_queues: false,
        }
    }

    fn alloc_pd(&self) -> Result<PdId> {
        let verbs = self.context.verbs();
        // SAFETY: an open context.
        let pd = unsafe { (verbs.ibv_alloc_pd)(self.context.raw()) };
        if pd.is_null() {
            return Err(refused_last("allocate pd", &self.name));
        }
        let mut alive = self.alive();
        let id = PdId(alive.next_pd);
        alive.next_pd += 1;
        alive.pds.insert(id, Object(pd));
        Ok(id)
    }

    fn dealloc_pd(&self, id: PdId) {
        let Some(pd) = self.alive().pds.remove(&id) else {
            return;
        };
        // SAFETY: made by `alloc_pd`, and taken from the table by us alone. Registrations and
        // queue pairs hold it, so it is in use by nobody.
        let answer = unsafe { (self.context.verbs().ibv_dealloc_pd)(pd.0) };
        if answer != 0 {
            tracing::warn!(target: "gdsync", "deallocate pd of {}: {answer}", self.name);
        }
    }

    fn reg_mr(&self, pd: PdId, region: &Region, access: Access) -> Result<MrKeys> {
        const OPERATION: &str = "register memory";
        let pd = self.pd(pd, OPERATION)?;
        let memory = Memory {
            nic: &self.name,
            verbs: self.context.verbs(),
            pd,
            region,
            rights: path::rights(access) as i32,
        };
        let mr = memory.register(&self.told)?;
        // SAFETY: a live registration.
        let keys = unsafe {
            MrKeys {
                lkey: (*mr).lkey,
                rkey: (*mr).rkey,
            }
        };
        self.alive().mrs.insert(keys.lkey, Object(mr));
        Ok(keys)
    }

    fn dereg_mr(&self, keys: MrKeys) {
        let Some(mr) = self.alive().mrs.remove(&keys.lkey) else {
            return;
        };
        // SAFETY: made by `reg_mr`, and taken from the table by us alone.
        let answer = unsafe { (self.context.verbs().ibv_dereg_mr)(mr.0) };
        if answer != 0 {
            tracing::warn!(target: "gdsync", "end registration of {}: {answer}", self.name);
        }
    }

    fn holds(&self, _: &Region) -> usize {
        0
    }

    fn create_qp(&self, pd: PdId, rings: &QpRings<'_>) -> Result<QpMade> {
        const OPERATION: &str = "create queue pair";
        if rings.start != 0 {
            let what = format!("a first index of {}, which is the NIC's own", rings.start);
            return Err(Error::new(OPERATION, Kind::Unsupported, what));
        }
        let pd = self.pd(pd, OPERATION)?;
        let pkey = self.pkey_index(&rings.path)?;
        // SAFETY: a protection domain of this context; queue pairs hold their memory, and take
        // these objects down before they let go of it.
        let (parts, qpn, register) =
            unsafe { QpParts::make(self.context, pd, rings, pkey, self.layout())? };
        self.init(&parts, OPERATION)?;
        // SAFETY: mapped until the process ends, as contexts stay open.
        let (held, register) = unsafe { self.doorbells.get(&self.gpu, register)? };
        let events = &self.context.events;
        events.add(
            qpn,
            parts.objects(),
            self.port.number,
            rings.retry_time(RETRIES),
        );
        let parts = Arc::new(Mutex::new(Some(parts)));
        self.alive().qps.insert(qpn, parts);
        Ok(QpMade {
            objects: QpObjects { qpn, start: 0 },
            doorbell: Some((held, register)),
        })
    }

    fn connect_qp(&self, qpn: u32, psn: u32, peer: &QpAddress) -> Result<()> {
        const OPERATION: &str = "connect";
        let settings = self.modify(qpn, OPERATION, |qp| Ok(qp.path))?;
        let to_receive = path::ready_to_receive(&self.port, peer, &settings)?;
        let to_send = path::ready_to_send(psn, &settings);
        self.bring_up(qpn, [to_receive, to_send], OPERATION)
    }

    fn activate_qp(&self, qpn: u32, psn: u32, _qkey: u32) -> Result<()> {
        self.bring_up(qpn, path::active(psn), "activate")
    }

    fn create_ah(&self, pd: PdId, to: &AhAttr) -> Result<Ah> {
        let handle = self.handle(pd, to)?;
        let av = handle.address_vector()?;
        let mut alive = self.alive();
        let id = alive.next_ah;
        alive.next_ah += 1;
        alive.ahs.insert(id, handle);
        Ok(Ah { id, av })
    }

    fn destroy_ah(&self, id: u64) {
        let handle = self.alive().ahs.remove(&id);
        // Outside the lock.
        drop(handle);
    }

    fn modify_to_error(&self, qpn: u32) -> bool {
        const OPERATION: &str = "modify to error";
        let done = self.modify(qpn, OPERATION, |qp| {
            qp.modify(path::plain(consts::IBV_QPS_ERR), OPERATION)
        });
        let Err(e) = done else { return true };
        tracing::warn!(target: "gdsync", "{e}");
        !is_gone(&e)
    }

    fn reset_qp(&self, qpn: u32) -> Result<()> {
        const OPERATION: &str = "reset queue pair";
        if let Report::Lost(status) = self.report(qpn, Time::ZERO) {
            // The NIC has not counted the entries that the library wrote.
            let what = format!("queue pair {qpn:#x}: make another one");
            return Err(Error::new(OPERATION, Kind::Failed(status), what));
        }
        self.modify(qpn, OPERATION, |qp| {
            qp.modify(path::plain(consts::IBV_QPS_RESET), OPERATION)?;
            self.init(qp, OPERATION).map_err(|e| {
                let what = format!("queue pair {qpn:#x}: {e}");
                Error::new(OPERATION, Kind::Failed(Status::CLOSED), what).source(e)
            })
        })?;
        self.context.forget_reports(qpn);
        Ok(())
    }

    fn read_events(&self, now: Time) {
        self.context.read_events(now);
    }

    fn reports(&self) -> u32 {
        self.context.events.changes()
    }

    fn report(&self, qpn: u32, now: Time) -> Report {
        self.context.events.of(qpn, now)
    }

    fn lose_qp(&self, qpn: u32) -> bool {
        const OPERATION: &str = "give up queue pair";
        if !self.context.events.is_lost() {
            let reset = path::plain(consts::IBV_QPS_RESET);
            if let Err(e) = self.modify(qpn, OPERATION, |qp| qp.modify(reset, OPERATION)) {
                tracing::warn!(target: "gdsync", "{e}");
            }
        }
        false
    }

    fn cq_indices(&self, _: &QpObjects) -> Result<Option<(u64, u64)>> {
        Ok(None)
    }

    fn destroy_qp(&self, objects: &QpObjects) {
        self.context.events.forget(objects.qpn);
        let qp = self.alive().qps.remove(&objects.qpn);
        // Without the lock of the tables, and after a change of state that is in progress.
        if let Some(qp) = qp {
            drop(qp.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
