//! A ConnectX by rdma-core: libibverbs and libmlx5, opened at run time.
//!
//! libmlx5 creates the objects, in memory of the library; then CPU, streams and kernels write the
//! rings and doorbells themselves. [`qp`] creates a queue pair, [`doorbell`] maps its doorbell;
//! everything else is as for any NIC ([`ibv`](super::ibv)).

mod doorbell;
mod qp;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use gds_step::{Mutex, Time};
use gdsync_sys::mlx5::{MLX5DV_OBJ_AH, Mlx5, mlx5dv_ah, mlx5dv_obj};
use gdsync_sys::verbs::consts;
use mlx5_prm::wqe::{AvSeg, SEGMENT};

use self::doorbell::Doorbells;
use self::qp::QpParts;
use super::ibv::path::{self, Change};
use super::ibv::{Handle, IbvPort, check, is_gone, missing};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Gpu, Region};
use crate::nic::{
    Access, Ah, AhAttr, Layout, MrKeys, Nic, NicChoice, PdId, PortAddress, Provider, QpAddress,
    QpMade, QpObjects, QpRings, RETRIES, Report,
};
use crate::status::Status;

/// Size of a host page in bytes; queues begin on a page.
const PAGE: usize = 4096;

/// The tables of live objects.
#[derive(Default)]
struct Alive {
    ahs: BTreeMap<u64, Handle>,
    next_ah: u64,
    /// The queue pairs by number. A change of state may take seconds: it locks its queue pair, not
    /// the tables.
    qps: BTreeMap<u32, Arc<Mutex<Option<QpParts>>>>,
}

/// One port of a NIC.
pub(crate) struct Mlx5Nic {
    gpu: Gpu,
    base: IbvPort,
    alive: Mutex<Alive>,
    doorbells: Doorbells,
}

impl Mlx5Nic {
    pub fn open(gpu: &Gpu, nic: Option<&NicChoice>) -> Result<Mlx5Nic> {
        Ok(Mlx5Nic {
            gpu: gpu.clone(),
            base: IbvPort::open(gpu, nic, true)?,
            alive: Mutex::default(),
            doorbells: Doorbells::default(),
        })
    }

    /// From RESET to INIT, in which queue pairs begin: receives may be posted there. Only
    /// [`Nic::reset_qp`] makes the change to RESET, for which libmlx5 zeroes the doorbell record.
    fn init(&self, qp: &QpParts, operation: &'static str) -> Result<()> {
        let to_init = path::init(self.base.port(), qp.access, qp.transport, qp.pkey);
        qp.modify(to_init, operation)
    }

    /// From INIT to ready to receive, then to ready to send. As [`Nic::connect_qp`].
    fn bring_up(&self, qpn: u32, steps: [Change; 2], operation: &'static str) -> Result<()> {
        let [to_receive, to_send] = steps;
        self.modify(qpn, operation, |qp| {
            qp.modify(to_receive, operation)?;
            // Messages may have arrived already: a return to INIT would lose them.
            qp.modify(to_send, operation).map_err(|e| {
                let what = format!("QP {qpn:#x} is in error because {}", e.reason());
                Error::new(operation, Kind::Failed(Status::CLOSED), what).with_source(e)
            })
        })
    }

    /// Calls `change` with a queue pair, which is not destroyed during the call.
    fn modify<R>(
        &self,
        qpn: u32,
        operation: &'static str,
        change: impl FnOnce(&QpParts) -> Result<R>,
    ) -> Result<R> {
        let gone = || {
            let what = format!("QP {qpn:#x} does not exist any more");
            Error::new(operation, Kind::WrongState, what)
        };
        let qp = self.alive.lock().qps.get(&qpn).cloned().ok_or_else(gone)?;
        let parts = qp.lock();
        change(parts.as_ref().ok_or_else(gone)?)
    }
}

impl Nic for Mlx5Nic {
    fn provider(&self) -> Provider {
        Provider::Mlx5
    }

    fn name(&self) -> &str {
        self.base.name()
    }

    fn node(&self) -> u64 {
        self.base.context().guid
    }

    fn port(&self) -> Option<PortAddress> {
        self.base.address()
    }

    fn layout(&self) -> Layout {
        Layout {
            align: PAGE,
            most_pieces: 64,
            takes_uar: false,
            reads_doorbell: true,
            device_queues: false,
        }
    }

    fn alloc_pd(&self) -> Result<PdId> {
        self.base.alloc_pd()
    }

    fn dealloc_pd(&self, id: PdId) {
        self.base.dealloc_pd(id);
    }

    fn reg_mr(&self, pd: PdId, region: &Region, access: Access) -> Result<MrKeys> {
        self.base.reg_mr(pd, region, access)
    }

    fn dereg_mr(&self, keys: MrKeys) {
        self.base.dereg_mr(keys);
    }

    fn holds(&self, _: &Region) -> usize {
        0
    }

    fn create_qp(&self, pd: PdId, rings: &QpRings<'_>) -> Result<QpMade> {
        const OPERATION: &str = "create queue pair";
        if rings.start != 0 {
            let what = format!(
                "the first index of the queues cannot be {}: libmlx5 starts them at 0",
                rings.start
            );
            return Err(Error::new(OPERATION, Kind::Unsupported, what));
        }
        let pd = self.base.pd(pd, OPERATION)?;
        let pkey = self.base.pkey_index(&rings.path)?;
        // SAFETY: a protection domain of this context; queue pairs hold their memory, and destroy
        // these objects before they release it.
        let (parts, qpn, register) =
            unsafe { QpParts::make(self.base.context(), pd, rings, pkey, self.layout())? };
        self.init(&parts, OPERATION)?;
        // SAFETY: mapped until the process ends, as contexts stay open.
        let (held, register) = unsafe { self.doorbells.get(&self.gpu, register)? };
        let events = &self.base.context().events;
        events.add(
            qpn,
            parts.objects(),
            self.base.port().number,
            rings.retry_time(RETRIES),
        );
        let parts = Arc::new(Mutex::new(Some(parts)));
        self.alive.lock().qps.insert(qpn, parts);
        Ok(QpMade {
            objects: QpObjects { qpn, start: 0 },
            doorbell: Some((held, register)),
        })
    }

    fn connect_qp(&self, qpn: u32, psn: u32, peer: &QpAddress) -> Result<()> {
        const OPERATION: &str = "connect";
        let settings = self.modify(qpn, OPERATION, |qp| Ok(qp.path))?;
        let to_receive = path::ready_to_receive(self.base.port(), peer, &settings)?;
        let to_send = path::ready_to_send(psn, &settings);
        self.bring_up(qpn, [to_receive, to_send], OPERATION)
    }

    fn activate_qp(&self, qpn: u32, psn: u32, _qkey: u32) -> Result<()> {
        self.bring_up(qpn, path::active(psn), "activate")
    }

    fn create_ah(&self, pd: PdId, to: &AhAttr) -> Result<Ah> {
        let handle = self.base.handle(pd, to)?;
        let av = address_vector(&handle)?;
        let mut alive = self.alive.lock();
        let id = alive.next_ah;
        alive.next_ah += 1;
        alive.ahs.insert(id, handle);
        Ok(Ah { id, av })
    }

    fn destroy_ah(&self, id: u64) {
        let handle = self.alive.lock().ahs.remove(&id);
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
            let what = format!("QP {qpn:#x} is lost on the NIC; create a new queue pair");
            return Err(Error::new(OPERATION, Kind::Failed(status), what));
        }
        self.modify(qpn, OPERATION, |qp| {
            qp.modify(path::plain(consts::IBV_QPS_RESET), OPERATION)?;
            self.init(qp, OPERATION).map_err(|e| {
                let what = format!("QP {qpn:#x} is in error because {}", e.reason());
                Error::new(OPERATION, Kind::Failed(Status::CLOSED), what).with_source(e)
            })
        })?;
        self.base.context().forget_reports(qpn);
        Ok(())
    }

    fn read_events(&self, now: Time) {
        self.base.context().read_events(now);
    }

    fn reports(&self) -> u32 {
        self.base.context().events.changes()
    }

    fn report(&self, qpn: u32, now: Time) -> Report {
        self.base.report(qpn, now)
    }

    fn lose_qp(&self, qpn: u32) -> bool {
        const OPERATION: &str = "release lost queue pair";
        if !self.base.context().events.is_lost() {
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
        self.base.context().events.forget(objects.qpn);
        let qp = self.alive.lock().qps.remove(&objects.qpn);
        // Without the lock of the tables, and after a change of state that is in progress.
        if let Some(qp) = qp {
            drop(qp.lock().take());
        }
    }
}

/// The address vector of the port in a ConnectX's entries, without the remote queue pair number and
/// its key.
fn address_vector(handle: &Handle) -> Result<AvSeg> {
    let mut out = mlx5dv_ah {
        av: std::ptr::null_mut(),
        comp_mask: 0,
    };
    let mut question = mlx5dv_obj::default();
    question.ah.object = handle.raw();
    question.ah.out = &mut out;
    let mlx5 = Mlx5::get().map_err(missing)?;
    // SAFETY: a live address handle of a NIC for direct verbs, and memory to write to.
    let answer = unsafe { (mlx5.mlx5dv_init_obj)(&mut question, MLX5DV_OBJ_AH) };
    check(
        answer,
        "create destination",
        "mlx5dv_init_obj of the address handle",
    )?;
    let av = out.av.cast::<[[u8; SEGMENT]; AvSeg::SEGMENTS]>();
    // SAFETY: the library's own memory, of this length, valid as long as the handle.
    Ok(AvSeg::from_bytes(unsafe { av.read() }))
}
