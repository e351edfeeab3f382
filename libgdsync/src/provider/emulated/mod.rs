//! The virtual ConnectX as a provider: only this module uses the crate `vmlx5`. [`nodes`] addresses
//! its datagrams, [`span`] is memory as it accesses it, `soft` is a software GPU's memory.

mod errors;
mod nodes;
mod options;
#[cfg(feature = "soft")]
mod soft;
mod span;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gds_step::Live;
use gds_step::{Awaits, Bell, Host, Machine, MachineId, Shared, Step, Thread, Time};
use vmlx5::fabric::shm::{ShmConfig, ShmFabric};

use self::errors::refused;
use self::nodes::Nodes;
use self::options::faults_of_environment;
pub use self::options::{EmulatedOptions, Faults, Hub};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Gpu, Region};
use crate::nic::{
    Access, Ah, AhAttr, Events, Layout, MrKeys, Nic, PathSettings, PdId, PortAddress, Provider,
    QpAddress, QpMade, QpObjects, QpRings, RETRIES, Report, Transport,
};
use crate::status::Status;

/// Numbers the virtual NICs of this process, for their names. Relaxed: only uniqueness matters.
static NEXT_NIC: AtomicU32 = AtomicU32::new(0);

/// Number of READs and atomics that one queue pair keeps outstanding.
const MAX_RD_ATOMIC: u8 = 16;

/// The one partition that virtual NICs are members of, with the bit of a full member.
const PARTITION: u16 = 0xffff;
const MEMBER: u16 = 0x8000;

/// The NIC's objects of one queue pair.
struct Owned {
    access: Access,
    path: PathSettings,
    send_cq: vmlx5::Cqn,
    recv_cq: vmlx5::Cqn,
    uar: vmlx5::UarId,
}

/// A virtual NIC whose events are read when it is stepped.
struct Stepped {
    nic: vmlx5::Nic,
    events: Arc<Events>,
    /// Whether the GPU is a software GPU.
    soft: bool,
}

impl Deref for Stepped {
    type Target = vmlx5::Nic;

    fn deref(&self) -> &vmlx5::Nic {
        &self.nic
    }
}

impl DerefMut for Stepped {
    fn deref_mut(&mut self) -> &mut vmlx5::Nic {
        &mut self.nic
    }
}

impl Stepped {
    #[cold]
    fn take_events(&mut self, now: Time) {
        use vmlx5::Event as E;
        while let Some(event) = self.nic.next_event() {
            match event {
                // The NIC flushes outstanding requests after any event.
                E::QpFatal { qpn, .. } => {
                    self.events.qp(qpn.0, Report::Closed(Status::QP_FATAL));
                }
                E::QpRequest { qpn, .. } => {
                    self.events.qp(qpn.0, Report::Closed(Status::PEER_REQUEST));
                }
                E::QpAccess { qpn, .. } => {
                    self.events.qp(qpn.0, Report::Closed(Status::PEER_ACCESS));
                }
                E::CqError { cq, .. } => {
                    self.events.cq(cq.0 as usize);
                }
                E::DeviceFatal => {
                    self.events.lose();
                }
                E::Port { port, up } => self.events.port(port, up, now),
                _ => {}
            }
        }
    }
}

impl Machine for Stepped {
    fn step(&mut self, now: Time) -> Step {
        let step = self.nic.step(now);
        if self.nic.has_events() {
            self.take_events(now);
        }
        step
    }

    fn name(&self) -> String {
        self.nic.name()
    }

    /// The streams of a software GPU run on the thread that steps the NIC.
    fn awaits(&self) -> Awaits {
        match self.soft {
            true => Awaits::Rings,
            false => self.nic.awaits(),
        }
    }
}

/// One virtual NIC and the driver that steps it.
pub(crate) struct EmulatedNic {
    nic: Shared<Stepped>,
    events: Arc<Events>,
    machine: MachineId,
    host: Arc<dyn Host>,
    name: String,
    node: vmlx5::fabric::NodeId,
    /// Whether WRITEs are placed in order.
    in_order: bool,
    /// The queue pairs by number.
    qps: Mutex<BTreeMap<u32, Owned>>,
    pds: Mutex<BTreeMap<PdId, vmlx5::PdId>>,
}

impl EmulatedNic {
    pub fn open(gpu: &Gpu, options: EmulatedOptions) -> Result<EmulatedNic> {
        const OPERATION: &str = "open emulated device";
        let name = format!("nic{}", NEXT_NIC.fetch_add(1, Ordering::Relaxed));
        let fabric: Box<dyn vmlx5::fabric::Fabric> = match options.hub {
            Some(hub) => Box::new(hub.port()),
            None => {
                let fail = |call: &str, e: &dyn fmt::Display| {
                    let what = format!("{call} failed: {e}");
                    Error::new(OPERATION, Kind::System, what)
                };
                let live = Live::global().map_err(|e| fail("start of the device thread", &e))?;
                let fd = live.bell().fd();
                let fd = std::os::fd::AsFd::as_fd(&fd)
                    .try_clone_to_owned()
                    .map_err(|e| fail("dup of the wake-up descriptor", &e))?;
                let bell =
                    Bell::open(fd).map_err(|e| fail("open of the wake-up descriptor", &e))?;
                let fabric = ShmFabric::open(ShmConfig::default(), Arc::new(bell))
                    .map_err(|e| fail("open of the shared-memory fabric", &e))?;
                Box::new(fabric)
            }
        };
        let node = fabric.node();
        let config = vmlx5::NicConfig {
            name: name.clone(),
            ..vmlx5::NicConfig::default()
        };
        let mut nic = vmlx5::Nic::new(config, fabric);
        nic.set_resolver(Arc::new(Nodes::new(node)));
        let faults = match options.faults {
            Some(faults) => Some(faults),
            None => faults_of_environment()?,
        };
        let in_order = faults.as_ref().is_none_or(|faults| faults.ooo == 0.0);
        if let Some(faults) = faults {
            nic.set_faults(faults);
        }
        let events = Arc::new(Events::default());
        let nic = Shared::new(Stepped {
            nic,
            events: Arc::clone(&events),
            soft: gpu.is_software(),
        });
        let host = Arc::clone(gpu.host());
        let machine = host.attach(Thread::Device, Box::new(nic.clone()));
        Ok(EmulatedNic {
            nic,
            events,
            machine,
            host,
            name,
            node,
            in_order,
            qps: Mutex::default(),
            pds: Mutex::default(),
        })
    }

    fn qps(&self) -> MutexGuard<'_, BTreeMap<u32, Owned>> {
        self.qps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pds(&self) -> MutexGuard<'_, BTreeMap<PdId, vmlx5::PdId>> {
        self.pds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes through several states. If that fails, the queue pair returns to the first state,
    /// from which the call may be repeated.
    fn modify(&self, qpn: u32, states: &[vmlx5::Modify], operation: &'static str) -> Result<()> {
        let id = vmlx5::Qpn(qpn);
        self.nic
            .with(|nic| {
                let done = states.iter().try_for_each(|to| nic.modify_qp(id, *to));
                if done.is_err() {
                    let _ = nic.modify_qp(id, vmlx5::Modify::Reset);
                }
                done
            })
            .map_err(|e| refused(operation, e))?;
        self.host.ring();
        Ok(())
    }

    fn pd(&self, id: PdId, operation: &'static str) -> Result<vmlx5::PdId> {
        let gone = || {
            let what = format!("PD {} does not belong to {}", id.0, self.name);
            Error::new(operation, Kind::Foreign, what)
        };
        self.pds().get(&id).copied().ok_or_else(gone)
    }
}

impl Nic for EmulatedNic {
    fn provider(&self) -> Provider {
        Provider::Emulated
    }

    fn layout(&self) -> Layout {
        Layout {
            align: 64,
            most_pieces: usize::MAX,
            takes_uar: true,
            reads_doorbell: true,
            device_queues: true,
        }
    }

    fn port(&self) -> Option<PortAddress> {
        None
    }

    fn keeps_order(&self) -> bool {
        self.in_order
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn node(&self) -> u64 {
        self.node.0
    }

    fn alloc_pd(&self) -> Result<PdId> {
        let pd = self
            .nic
            .with(|nic| nic.alloc_pd())
            .map_err(|e| refused("allocate protection domain", e))?;
        let id = PdId(pd.number());
        self.pds().insert(id, pd);
        Ok(id)
    }

    fn dealloc_pd(&self, id: PdId) {
        // Registrations and queue pairs hold the domain, so it has no users left.
        if let Some(pd) = self.pds().remove(&id) {
            let _ = self.nic.with(|nic| nic.dealloc_pd(pd));
        }
    }

    fn reg_mr(&self, pd: PdId, region: &Region, access: Access) -> Result<MrKeys> {
        let attr = vmlx5::MrAttr {
            pd: self.pd(pd, "register memory")?,
            va: region.addr().0,
            len: region.len() as u64,
            access: rights(access),
            mem: span::of(region),
            mem_offset: 0,
        };
        let keys = self
            .nic
            .with(|nic| nic.reg_mr(attr))
            .map_err(|e| refused("register memory", e))?;
        Ok(MrKeys {
            lkey: keys.lkey,
            rkey: keys.rkey,
        })
    }

    fn holds(&self, region: &Region) -> usize {
        usize::from(span::holds(region))
    }

    fn dereg_mr(&self, keys: MrKeys) {
        // The key belongs to this NIC and is returned once: the NIC has no reason to refuse.
        let _ = self.nic.with(|nic| nic.dereg_mr(keys.lkey));
    }

    fn create_qp(&self, pd: PdId, rings: &QpRings<'_>) -> Result<QpMade> {
        let pd = self.pd(pd, "create queue pair")?;
        if let Some(pkey) = rings.path.pkey.filter(|pkey| pkey | MEMBER != PARTITION) {
            let what = format!(
                "{} is not a member of partition {pkey:#06x} (GDS_PKEY, QpConfig::pkey); use \
                 {PARTITION:#06x}",
                self.name
            );
            return Err(Error::new("create queue pair", Kind::Unsupported, what));
        }
        let fail = |e| refused("create queue pair", e);
        let start = rings.start;
        let cq = |(region, offset, log_entries): (&Region, u64, u8)| vmlx5::CqAttr {
            start,
            ..vmlx5::CqAttr::new(span::of(region), offset, log_entries)
        };
        let (send_cq, recv_cq) = (cq(rings.send_cq), cq(rings.recv_cq));
        let (uar_mem, uar_offset) = (span::of(rings.uar.0), rings.uar.1);
        let sq = vmlx5::SqAttr {
            mem: span::of(rings.send_ring.0),
            offset: rings.send_ring.1,
            log_blocks: rings.send_ring.2.trailing_zeros() as u8,
        };
        let rq = vmlx5::RqAttr {
            mem: span::of(rings.recv_ring.0),
            offset: rings.recv_ring.1,
            log_entries: rings.recv_ring.2.trailing_zeros() as u8,
            stride: rings.recv_ring.3,
        };
        let record = (span::of(rings.record.0), rings.record.1);
        let attr = |pd, uar, send_cq, recv_cq| vmlx5::QpAttr {
            recv_cq,
            rq: Some(rq),
            service: match rings.transport {
                Transport::Rc => vmlx5::Service::Rc,
                Transport::Ud { .. } => vmlx5::Service::Ud,
            },
            sq_start: start as u16,
            rq_start: start as u16,
            ..vmlx5::QpAttr::new(pd, uar, send_cq, sq, record)
        };
        let objects = self.nic.with(|nic| {
            let uar = nic.alloc_uar(uar_mem, uar_offset)?;
            let mut cqs = Vec::with_capacity(2);
            let made = [send_cq, recv_cq].into_iter().try_for_each(|cq| {
                cqs.push(nic.create_cq(cq)?);
                Ok(())
            });
            let made = made.and_then(|()| nic.create_qp(attr(pd, uar, cqs[0], cqs[1])));
            match made {
                Ok(qpn) => {
                    let owned = Owned {
                        access: rings.access,
                        path: rings.path,
                        send_cq: cqs[0],
                        recv_cq: cqs[1],
                        uar,
                    };
                    Ok((qpn.0, owned))
                }
                Err(e) => {
                    // No object is bound to the queues that were made before.
                    for cq in cqs {
                        let _ = nic.destroy_cq(cq);
                    }
                    let _ = nic.free_uar(uar);
                    Err(e)
                }
            }
        });
        let (qpn, owned) = objects.map_err(fail)?;
        let cqs = [owned.send_cq, owned.recv_cq].map(|cq| cq.0 as usize);
        self.events
            .add(qpn, cqs.into(), 1, rings.retry_time(RETRIES));
        self.qps().insert(qpn, owned);
        Ok(QpMade {
            objects: QpObjects { qpn, start },
            doorbell: None,
        })
    }

    fn connect_qp(&self, qpn: u32, psn: u32, peer: &QpAddress) -> Result<()> {
        if peer.port.is_some() {
            let what = "the peer is not on a virtual NIC that is linked into its process; this \
                        virtual NIC reaches no other NIC";
            return Err(Error::new("connect", Kind::Invalid, what));
        }
        let owned = self.qps().get(&qpn).map(|qp| (qp.access, qp.path));
        let gone = || {
            let what = format!("QP {qpn:#x} does not exist any more");
            Error::new("connect", Kind::WrongState, what)
        };
        let (access, path) = owned.ok_or_else(gone)?;
        let states = [
            vmlx5::Modify::Init {
                access: remote_rights(access),
                qkey: 0,
                port: 1,
            },
            vmlx5::Modify::Rtr {
                path: vmlx5::Path::to(vmlx5::fabric::NodeId(peer.node), vmlx5::Qpn(peer.qpn)),
                rq_psn: peer.psn,
                max_dest_rd_atomic: MAX_RD_ATOMIC,
                min_rnr_timer: path.rnr_timer,
            },
            vmlx5::Modify::Rts {
                sq_psn: psn,
                max_rd_atomic: MAX_RD_ATOMIC,
                timeout: path.ack_timeout,
                retry_cnt: path.retry_count.unwrap_or(RETRIES),
                rnr_retry: path.rnr_retry,
            },
        ];
        self.modify(qpn, &states, "connect")
    }

    fn activate_qp(&self, qpn: u32, psn: u32, qkey: u32) -> Result<()> {
        let (access, port) = (vmlx5::Access::NONE, 1);
        let states = [
            vmlx5::Modify::Init { access, qkey, port },
            vmlx5::Modify::UdRtr,
            vmlx5::Modify::UdRts { sq_psn: psn },
        ];
        self.modify(qpn, &states, "activate")
    }

    fn create_ah(&self, _: PdId, to: &AhAttr) -> Result<Ah> {
        let AhAttr::Node(node) = to else {
            let what = "the destination is not on a virtual NIC that is linked into its process; \
                        this virtual NIC reaches no other NIC";
            return Err(Error::new("create destination", Kind::Invalid, what));
        };
        let av = nodes::address(vmlx5::fabric::NodeId(*node));
        Ok(Ah { id: 0, av })
    }

    fn destroy_ah(&self, _: u64) {}

    fn modify_to_error(&self, qpn: u32) -> bool {
        let id = vmlx5::Qpn(qpn);
        self.nic.with(|nic| {
            // Receives may be posted before a connection, in state RESET, from which the way to
            // ERR leads over INIT. From any other state the first step is refused.
            let access = vmlx5::Access::NONE;
            let (qkey, port) = (0, 1);
            let _ = nic.modify_qp(id, vmlx5::Modify::Init { access, qkey, port });
            let _ = nic.modify_qp(id, vmlx5::Modify::Error);
        });
        self.host.ring();
        true
    }

    fn reset_qp(&self, qpn: u32) -> Result<()> {
        self.nic
            .with(|nic| nic.modify_qp(vmlx5::Qpn(qpn), vmlx5::Modify::Reset))
            .map_err(|e| refused("reset queue pair", e))?;
        self.events.reset(qpn);
        Ok(())
    }

    fn reports(&self) -> u32 {
        self.events.changes()
    }

    fn report(&self, qpn: u32, now: Time) -> Report {
        self.events.of(qpn, now)
    }

    fn lose_qp(&self, qpn: u32) -> bool {
        // The NIC writes no more entries.
        let reset = vmlx5::Modify::Reset;
        let _ = self.nic.with(|nic| nic.modify_qp(vmlx5::Qpn(qpn), reset));
        false
    }

    fn cq_indices(&self, objects: &QpObjects) -> Result<Option<(u64, u64)>> {
        let cqs = self
            .qps()
            .get(&objects.qpn)
            .map(|qp| (qp.send_cq, qp.recv_cq));
        let Some((send_cq, recv_cq)) = cqs else {
            return Ok(None);
        };
        self.nic
            .with(|nic| {
                let send = nic.query_cq(send_cq)?.producer;
                let recv = nic.query_cq(recv_cq)?.producer;
                Ok(Some((u64::from(send), u64::from(recv))))
            })
            .map_err(|e| refused("query completion queues", e))
    }

    fn destroy_qp(&self, objects: &QpObjects) {
        let owned = self.qps().remove(&objects.qpn);
        self.events.forget(objects.qpn);
        // In this order no object has users when it is destroyed; only this NIC uses the objects.
        self.nic.with(|nic| {
            let _ = nic.destroy_qp(vmlx5::Qpn(objects.qpn));
            if let Some(owned) = owned {
                let _ = nic.destroy_cq(owned.send_cq);
                let _ = nic.destroy_cq(owned.recv_cq);
                let _ = nic.free_uar(owned.uar);
            }
        });
        self.host.ring();
    }
}

impl Drop for EmulatedNic {
    fn drop(&mut self) {
        self.host.detach(self.machine);
    }
}

fn rights(access: Access) -> vmlx5::Access {
    let mut out = vmlx5::Access::NONE;
    for (ours, theirs) in [
        (Access::LOCAL_WRITE, vmlx5::Access::LOCAL_WRITE),
        (Access(2), vmlx5::Access::REMOTE_WRITE),
        (Access::REMOTE_READ, vmlx5::Access::REMOTE_READ),
        (Access(8), vmlx5::Access::REMOTE_ATOMIC),
    ] {
        if access.permits(ours) {
            out = out | theirs;
        }
    }
    out
}

fn remote_rights(access: Access) -> vmlx5::Access {
    rights(Access(access.0 & !1))
}

#[cfg(test)]
mod tests {
    use vmlx5::fabric::hub::Hub;

    use super::*;
    use crate::gpu::MemoryKind;

    /// Queues of 16 entries in one region.
    fn rings(region: &Region, blocks: u32, recv_log: u8) -> QpRings<'_> {
        QpRings {
            uar: (region, 0),
            record: (region, 4096),
            recv_ring: (region, 8192, 16, 64),
            send_ring: (region, 12288, blocks),
            send_cq: (region, 16384, 5),
            recv_cq: (region, 20480, recv_log),
            access: Access::ALL,
            start: 0,
            transport: Transport::Rc,
            path: crate::nic::PathConfig::default().resolve().unwrap(),
        }
    }

    #[test]
    fn a_queue_pair_that_cannot_be_made_leaves_nothing_behind() {
        let gpu = Gpu::soft().unwrap();
        let options =
            EmulatedOptions::default().hub(Hub::new(vmlx5::fabric::hub::HubConfig::default()));
        let nic = EmulatedNic::open(&gpu, options).unwrap();
        let region = gpu.alloc(MemoryKind::Pinned, 24576).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let population = || nic.nic.with(|nic| nic.population());
        let before = population();
        // The send queue, or the second completion queue, is outside its memory.
        for (blocks, recv_log) in [(1 << 14, 5), (16, 16)] {
            let refused = nic.create_qp(pd, &rings(&region, blocks, recv_log));
            assert_eq!(refused.err().map(|e| e.kind()), Some(Kind::Invalid));
            assert_eq!(population(), before);
        }
        let made = nic.create_qp(pd, &rings(&region, 16, 5)).unwrap();
        nic.destroy_qp(&made.objects);
        assert_eq!(population(), before);
    }
}
