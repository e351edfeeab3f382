//! Any NIC that libibverbs supports, by a CPU thread.
//!
//! Its queue pairs have rings in memory of the library, laid out as a ConnectX has them, so that
//! requests, doorbells, waits and statuses are the same as on a ConnectX. A thread is the NIC of
//! these rings: it posts their entries by `ibv_post_send` and `ibv_post_recv`, and writes the
//! completions that `ibv_poll_cq` returns into the library's completion queues. Rings and thread are
//! those of [`relay`](super::relay); [`queues`] has the device's objects, [`channel`] the events that
//! end the thread's sleep. Ports, registrations and paths are as for any NIC ([`ibv`](super::ibv)).
//! On a software GPU the GPU's thread may do the work of that thread: [`gpu_thread`].

mod channel;
mod gpu_thread;
mod queues;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use gds_step::{MachineId, Mutex, Shared, Time};
use gdsync_sys::verbs::consts::IBV_QPS_RESET;
use gdsync_sys::verbs::types::ibv_device_attr;
use mlx5_prm::wqe::{BASIC_BLOCK, SEGMENT};

use self::channel::Channel;
use self::queues::DeviceQueues;
use super::ibv::IbvPort;
use super::ibv::path::{self, Change};
use super::relay::handles::{self, Handles};
use super::relay::thread::{Common, SPIN, SharedRelay};
use super::relay::{Limits, Relay, Rings, gone};
use crate::error::Result;
use crate::gpu::{Gpu, Region};
use crate::nic::{
    Access, Ah, AhAttr, Layout, MrKeys, Nic, NicChoice, PathSettings, PdId, PortAddress, Provider,
    QpAddress, QpMade, QpObjects, QpRings, Report, Transport,
};

/// The operation of opening, for errors.
const OPEN: &str = "open verbs device";

/// How often the NIC retries if the peer does not answer. To a kernel device, 7 means to retry for
/// ever.
const RETRIES: u8 = 6;

/// The vendor number of the kernel's soft-RoCE (`drivers/infiniband/sw/rxe`). It executes the
/// requests of a queue pair in the order of their packet numbers.
const SOFT_ROCE: u32 = 0xff_ffff;

/// One queue pair.
struct Owned {
    relay: SharedRelay<DeviceQueues>,
    /// The registration of its send ring, for inline data.
    ring: MrKeys,
    path: PathSettings,
}

/// One port of a NIC, and its thread.
pub(crate) struct VerbsNic {
    base: IbvPort,
    attributes: ibv_device_attr,
    common: Arc<Common<Channel>>,
    thread: Option<JoinHandle<()>>,
    /// The machine on the GPU's thread that does the work, if the NIC has no thread.
    machine: Option<MachineId>,
    /// The queue pairs by number.
    qps: Mutex<BTreeMap<u32, Owned>>,
    handles: Arc<Handles>,
}

impl VerbsNic {
    pub fn open(gpu: &Gpu, nic: Option<&NicChoice>) -> Result<VerbsNic> {
        let base = IbvPort::open(gpu, nic, false)?;
        let context = base.context();
        let attributes = queues::attributes(context)?;
        let by_gpu = gpu_thread::wanted(gpu)?;
        let channel = Channel::new(context)?;
        let common = Arc::new(Common::new(
            channel,
            Arc::clone(gpu.host()),
            by_gpu,
            SPIN,
            OPEN,
        )?);
        let start = || common.spawn("gds-verbs", OPEN);
        let thread = (!by_gpu).then(start).transpose()?;
        let machine = by_gpu.then(|| gpu_thread::attach(&common));
        Ok(VerbsNic {
            base,
            attributes,
            common,
            thread,
            machine,
            qps: Mutex::default(),
            handles: Arc::default(),
        })
    }

    fn relay(&self, qpn: u32, operation: &'static str) -> Result<SharedRelay<DeviceQueues>> {
        let qps = self.qps.lock();
        let relay = qps.get(&qpn).map(|qp| qp.relay.clone());
        relay.ok_or_else(|| gone(qpn, operation))
    }

    /// Changes the queue pair from RESET by these steps. If that fails, the queue pair returns to a
    /// state from which the call may be repeated.
    fn bring_up(&self, qpn: u32, steps: [Change; 2], operation: &'static str) -> Result<()> {
        self.relay(qpn, operation)?.with(|relay| {
            let qp = &relay.queues;
            let mut steps = [qp.init].into_iter().chain(steps);
            let up = steps.try_for_each(|step| qp.modify(step, operation));
            match up {
                Ok(()) => {
                    relay.up();
                    // Posts the receives that were posted before; the peer may send from now on.
                    relay.receive();
                }
                Err(_) => {
                    let _ = qp.modify(path::plain(IBV_QPS_RESET), operation);
                }
            }
            up
        })?;
        self.common.ring();
        Ok(())
    }

    /// Number of READs and atomics that a queue pair keeps outstanding, and that it answers, up to
    /// `most`.
    fn reads(&self, most: u8) -> (u8, u8) {
        let within = |limit: i32| u8::try_from(limit).unwrap_or(u8::MAX).min(most);
        let device = &self.attributes;
        (
            within(device.max_qp_init_rd_atom),
            within(device.max_qp_rd_atom),
        )
    }
}

impl Nic for VerbsNic {
    fn provider(&self) -> Provider {
        Provider::Verbs
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
            align: BASIC_BLOCK,
            most_pieces: usize::MAX,
            takes_uar: true,
            reads_doorbell: false,
            // The CPU polls the queues all the time.
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

    fn reads(&self) -> bool {
        let device = &self.attributes;
        device.max_qp_init_rd_atom > 0 && device.max_qp_rd_atom > 0
    }

    fn atomics(&self) -> bool {
        /// `IBV_ATOMIC_NONE`.
        const NONE: i32 = 0;
        self.attributes.atomic_cap != NONE
    }

    fn keeps_order(&self) -> bool {
        self.attributes.vendor_id == SOFT_ROCE
    }

    fn holds(&self, _: &Region) -> usize {
        0
    }

    fn create_qp(&self, pd: PdId, rings: &QpRings<'_>) -> Result<QpMade> {
        const OPERATION: &str = "create queue pair";
        let (.., blocks) = rings.send_ring;
        let (.., slots, stride) = rings.recv_ring;
        let wanted = Limits {
            sends: blocks as usize,
            receives: slots as usize,
            send_sges: 0,
            inline: 0,
            recv_sges: stride as usize / SEGMENT,
        };
        let pkey = self.base.pkey_index(&rings.path)?;
        let port = self.base.port();
        let init = path::init(port, rings.access, rings.transport, pkey);
        let raw = self.base.pd(pd, OPERATION)?;
        // SAFETY: a protection domain of this context, which queue pairs hold, and the channel,
        // which is the NIC's.
        let (queues, qpn, limits) = unsafe {
            DeviceQueues::make(
                self.base.context(),
                raw,
                self.common.source.raw,
                wanted,
                &self.attributes,
                init,
                rings.transport,
            )?
        };
        let objects = queues.objects();
        let mut own = Rings::of(rings, qpn)?;
        let ring = self
            .base
            .reg_mr(pd, rings.send_ring.0, Access::LOCAL_READ)?;
        own.send_memory.lkey = ring.lkey;
        let relay = Relay::new(queues, own, limits);
        let relay = Shared::new(match rings.transport {
            Transport::Rc => relay,
            Transport::Ud { .. } => relay.of_datagrams(Arc::clone(&self.handles)),
        });
        let events = &self.base.context().events;
        events.add(qpn, objects, port.number, rings.retry_time(RETRIES));
        self.common.change(|relays| relays.push(relay.clone()));
        let path = rings.path;
        self.qps.lock().insert(qpn, Owned { relay, ring, path });
        Ok(QpMade {
            objects: QpObjects {
                qpn,
                start: rings.start,
            },
            doorbell: None,
        })
    }

    fn connect_qp(&self, qpn: u32, psn: u32, peer: &QpAddress) -> Result<()> {
        const OPERATION: &str = "connect";
        let port = self.base.port();
        let settings = self
            .qps
            .lock()
            .get(&qpn)
            .map(|qp| qp.path)
            .ok_or_else(|| gone(qpn, OPERATION))?;
        let mut to_receive = path::ready_to_receive(port, peer, &settings)?;
        let mut to_send = path::ready_to_send(psn, &settings);
        let (asked, answered) = self.reads(to_send.0.max_rd_atomic);
        to_receive.0.max_dest_rd_atomic = answered;
        to_send.0.max_rd_atomic = asked;
        to_send.0.retry_cnt = settings.retry_count.unwrap_or(RETRIES);
        self.bring_up(qpn, [to_receive, to_send], OPERATION)
    }

    fn activate_qp(&self, qpn: u32, psn: u32, _qkey: u32) -> Result<()> {
        self.bring_up(qpn, path::active(psn), "activate")
    }

    fn create_ah(&self, pd: PdId, to: &AhAttr) -> Result<Ah> {
        let id = self.handles.add(self.base.handle(pd, to)?);
        let av = handles::address(id);
        Ok(Ah { id, av })
    }

    fn destroy_ah(&self, id: u64) {
        self.handles.remove(id);
    }

    fn modify_to_error(&self, qpn: u32) -> bool {
        // The relay flushes the requests that the device does not flush.
        if let Ok(relay) = self.relay(qpn, "modify to error") {
            relay.with(|relay| relay.fail());
            self.common.ring();
        }
        true
    }

    fn reset_qp(&self, qpn: u32) -> Result<()> {
        const OPERATION: &str = "reset queue pair";
        self.relay(qpn, OPERATION)?.with(|relay| {
            let reset = path::plain(IBV_QPS_RESET);
            relay.queues.modify(reset, OPERATION)?;
            relay.down();
            Ok(())
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
        let lost = self.base.context().events.is_lost();
        if let Ok(relay) = self.relay(qpn, "release lost queue pair") {
            relay.with(|relay| relay.give_up(!lost));
            self.common.ring();
        }
        true
    }

    fn cq_indices(&self, objects: &QpObjects) -> Result<Option<(u64, u64)>> {
        let relay = self.relay(objects.qpn, "query completion queues")?;
        let (send, recv) = relay.with(|relay| relay.positions());
        Ok(Some((send.into(), recv.into())))
    }

    fn destroy_qp(&self, objects: &QpObjects) {
        let Some(owned) = self.qps.lock().remove(&objects.qpn) else {
            return;
        };
        self.base.context().events.forget(objects.qpn);
        // The thread may hold the relay for a while: the relay's contents are released now.
        owned.relay.with(|relay| {
            relay.down();
            relay.queues.destroy();
        });
        self.common
            .change(|relays| relays.retain(|relay| !relay.is(&owned.relay)));
        self.base.dereg_mr(owned.ring);
    }

    fn ring(&self) {
        self.common.ring();
    }

    fn ring_receives(&self, qpn: u32) {
        if let Ok(relay) = self.relay(qpn, "post receive") {
            relay.with(|relay| relay.receive());
        }
    }

    fn expects(&self) -> bool {
        true
    }

    fn expect(&self, qpn: u32, send: u32, recv: u32) {
        if let Ok(relay) = self.relay(qpn, "expect posts") {
            relay.with(|relay| relay.expect(send, recv));
            self.common.ring();
        }
    }
}

impl Drop for VerbsNic {
    fn drop(&mut self) {
        self.common.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported where it happened.
            let _ = thread.join();
        }
        if let Some(machine) = self.machine.take() {
            self.common.host().detach(machine);
        }
        // Queue pairs hold the NIC, so only queue pairs that were never complete remain.
        self.common.change(Vec::clear);
    }
}
