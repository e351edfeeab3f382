//! A host for the NIC's tests: rings and records in plain memory, written with `mlx5-prm`, and a
//! world of NICs on a hub that steps until no component makes progress.
#![allow(dead_code, reason = "each test program uses its part")]

pub mod shared;
mod world;

pub use world::World;

use std::sync::Arc;

use mlx5_prm::cqe::{Cqe64, EntryState, LAST_DWORD_OFFSET, SIZE, classify};
use mlx5_prm::doorbell::{self, BF_OFFSET, BF_SIZE};
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Atomic, Payload, Remote, SendWqe, Sge, WqeFlags, encode_recv};
use vmlx5::fabric::faults::Faults;
use vmlx5::{
    Access, CqAttr, Cqn, Dma, HostMemory, Modify, MrAttr, MrKeys, Mtu, Nic, Path, PdId, QpAttr,
    Qpn, RqAttr, Scatter, Service, SqAttr, Srqn, UarId,
};

/// Sizes and start indices of an [`End`].
#[derive(Clone)]
pub struct EndConfig {
    pub log_sq: u8,
    pub log_rq: u8,
    pub stride: u32,
    pub log_cq: u8,
    pub sq_start: u16,
    pub rq_start: u16,
    pub cq_start: u32,
    pub ignore_overrun: bool,
    pub data: usize,
    pub mr_access: Access,
    pub qp_access: Access,
    pub max_rd_atomic: u8,
    pub service: Service,
    pub mtu: Mtu,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    /// Its completion queues raise events, on its page.
    pub events: bool,
    /// A page to share, instead of a separate one.
    pub uar: Option<UarId>,
    /// A shared receive queue, instead of its own receive queue.
    pub srq: Option<Srqn>,
    pub scatter: Scatter,
    /// Wraps the memory before the NIC gets it.
    pub view: fn(Arc<HostMemory>) -> Arc<dyn Dma>,
}

pub fn all_rights() -> Access {
    Access::LOCAL_WRITE | remote_rights()
}

pub fn remote_rights() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

impl Default for EndConfig {
    fn default() -> EndConfig {
        EndConfig {
            log_sq: 6,
            log_rq: 4,
            stride: 64,
            log_cq: 7,
            sq_start: 0,
            rq_start: 0,
            cq_start: 0,
            ignore_overrun: false,
            data: 1 << 20,
            mr_access: all_rights(),
            qp_access: remote_rights(),
            max_rd_atomic: 4,
            service: Service::Rc,
            mtu: Mtu::B4096,
            timeout: 14,
            retry_cnt: 3,
            rnr_retry: 7,
            min_rnr_timer: 12,
            events: false,
            uar: None,
            srq: None,
            scatter: Scatter::default(),
            view: |mem| mem,
        }
    }
}

/// Returns a value that differs from another in one or more fields.
pub trait Changed: Sized {
    fn changed(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl<T> Changed for T {}

/// A completion queue from its consumer's side.
pub struct CqView {
    pub mem: Arc<HostMemory>,
    pub offset: u64,
    pub record: u64,
    pub log: u8,
    pub next: u32,
    pub cqn: Cqn,
}

impl CqView {
    /// The next entry, if it was written.
    pub fn poll(&mut self) -> Option<Cqe64> {
        let slot = u64::from(self.next & ((1 << self.log) - 1));
        let at = self.offset + slot * SIZE as u64;
        let last = self.mem.load32(at + LAST_DWORD_OFFSET as u64).unwrap();
        if classify(last, self.next, self.log) == EntryState::NotYet {
            return None;
        }
        let mut bytes = [0; SIZE];
        self.mem.read(at, &mut bytes).unwrap();
        self.next = self.next.wrapping_add(1);
        self.mem
            .store32(self.record, doorbell::cq_ci_value(self.next))
            .unwrap();
        Some(Cqe64::from_bytes(bytes))
    }

    pub fn drain(&mut self) -> Vec<Cqe64> {
        std::iter::from_fn(|| self.poll()).collect()
    }
}

/// One queue pair with all its objects, from its host's side.
pub struct End {
    pub nic: usize,
    pub config: EndConfig,
    pub mem: Arc<HostMemory>,
    pub pd: PdId,
    pub uar: UarId,
    pub keys: MrKeys,
    pub qpn: Qpn,
    pub send: CqView,
    pub recv: CqView,
    pub sq_at: u64,
    pub rq_at: u64,
    pub record: u64,
    /// Posted indices.
    pub sq: u16,
    pub rq: u16,
    /// The doorbell value of the last posted entry.
    pub doorbell: u64,
    /// The half of the register that is written next.
    pub half: u64,
    /// Offset of the registered data.
    pub data_at: u64,
}

const PAGE: u64 = 4096;

impl End {
    pub fn new(nic: &mut Nic, index: usize, config: EndConfig) -> End {
        let page = |len: u64| len.next_multiple_of(PAGE);
        let sq_at = PAGE;
        let rq_at = sq_at + page(64 << config.log_sq);
        let scq_at = rq_at + page(u64::from(config.stride) << config.log_rq);
        let rcq_at = scq_at + page(64 << config.log_cq);
        let record = rcq_at + page(64 << config.log_cq);
        let data_at = record + PAGE;
        let mem = Arc::new(HostMemory::new(data_at as usize + config.data));
        let dma = (config.view)(mem.clone());
        let pd = nic.alloc_pd().unwrap();
        let own = |nic: &mut Nic| nic.alloc_uar(dma.clone(), 0).unwrap();
        let uar = config.uar.unwrap_or_else(|| own(nic));
        let mut cq = |offset, record| {
            preset(&mem, offset, config.log_cq, config.cq_start);
            mem.store32(record, doorbell::cq_ci_value(config.cq_start))
                .unwrap();
            let cqn = nic.create_cq(CqAttr {
                record: Some((dma.clone(), record)),
                ignore_overrun: config.ignore_overrun,
                start: config.cq_start,
                owner: 7,
                events: config.events.then_some(uar),
                ..CqAttr::new(dma.clone(), offset, config.log_cq)
            });
            CqView {
                mem: mem.clone(),
                offset,
                record,
                log: config.log_cq,
                next: config.cq_start,
                cqn: cqn.unwrap(),
            }
        };
        let send = cq(scq_at, record + 64);
        let recv = cq(rcq_at, record + 128);
        let keys = nic.reg_mr(MrAttr {
            pd,
            va: mem.addr() + data_at,
            len: config.data as u64,
            access: config.mr_access,
            mem: dma.clone(),
            mem_offset: data_at,
        });
        let sq = SqAttr {
            mem: dma.clone(),
            offset: sq_at,
            log_blocks: config.log_sq,
        };
        let qpn = nic.create_qp(QpAttr {
            recv_cq: recv.cqn,
            rq: config.srq.is_none().then(|| RqAttr {
                mem: dma.clone(),
                offset: rq_at,
                log_entries: config.log_rq,
                stride: config.stride,
            }),
            srq: config.srq,
            uidx: 0x77,
            sq_start: config.sq_start,
            rq_start: config.rq_start,
            owner: 9,
            service: config.service,
            scatter: config.scatter,
            ..QpAttr::new(pd, uar, send.cqn, sq, (dma.clone(), record))
        });
        let end = End {
            nic: index,
            mem,
            pd,
            uar,
            keys: keys.unwrap(),
            qpn: qpn.unwrap(),
            send,
            recv,
            sq_at,
            rq_at,
            record,
            sq: config.sq_start,
            rq: config.rq_start,
            doorbell: 0,
            half: 0,
            data_at,
            config,
        };
        end.reset_records();
        end
    }

    /// The doorbell record with its values at the start of the queue pair.
    pub fn reset_records(&self) {
        let value = |index: u16| doorbell::record_value(index.into());
        self.mem
            .store32(self.record, value(self.config.rq_start))
            .unwrap();
        self.mem
            .store32(self.record + 4, value(self.config.sq_start))
            .unwrap();
    }

    /// The address of a byte of the registered data.
    pub fn addr(&self, at: u64) -> u64 {
        self.mem.addr() + self.data_at + at
    }

    pub fn sge(&self, at: u64, len: u32) -> Sge {
        Sge {
            addr: self.addr(at),
            lkey: self.keys.lkey,
            len,
        }
    }

    pub fn remote(&self, at: u64) -> Remote {
        Remote {
            addr: self.addr(at),
            rkey: self.keys.rkey,
        }
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.mem.write(self.data_at + at, bytes).unwrap();
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mem.read(self.data_at + at, &mut bytes).unwrap();
        bytes
    }

    pub fn put64(&self, at: u64, value: u64) {
        self.put(at, &value.to_ne_bytes());
    }

    pub fn get64(&self, at: u64) -> u64 {
        self.mem.load64(self.data_at + at).unwrap()
    }

    /// Writes an entry into the ring, without record and doorbell.
    pub fn prepare(&mut self, wqe: &SendWqe<'_>) -> u16 {
        let ring = 64_u64 << self.config.log_sq;
        let mut at = u64::from(self.sq) * 64;
        let index = self.sq;
        let encoded = wqe
            .encode(index, self.qpn.0, &mut |segment: &[u8; 16]| {
                self.mem.write(self.sq_at + at % ring, segment).unwrap();
                at += 16;
            })
            .unwrap();
        self.sq = self.sq.wrapping_add(encoded.basic_blocks.into());
        self.doorbell = encoded.doorbell_value();
        index
    }

    /// Writes an entry that does not request a completion, without record and doorbell.
    pub fn quietly(&mut self, wqe: SendWqe<'_>) -> u16 {
        self.prepare(&wqe.changed(|s| s.flags = WqeFlags::default()))
    }

    /// Writes raw segments at the place of the next entry.
    pub fn prepare_raw(&mut self, bytes: &[u8], blocks: u16) {
        let ring = 64_u64 << self.config.log_sq;
        for (i, chunk) in bytes.chunks(16).enumerate() {
            let at = (u64::from(self.sq) * 64 + i as u64 * 16) % ring;
            self.mem.write(self.sq_at + at, chunk).unwrap();
        }
        self.sq = self.sq.wrapping_add(blocks);
        self.doorbell = 1;
    }

    pub fn store_record(&self) {
        let value = doorbell::record_value(self.sq.into());
        self.mem.store32(self.record + 4, value).unwrap();
    }

    pub fn store_doorbell(&mut self) {
        let at = BF_OFFSET as u64 + self.half * BF_SIZE as u64;
        self.half ^= 1;
        self.mem.store64(at, self.doorbell).unwrap();
    }

    pub fn ring(&mut self) {
        self.store_record();
        self.store_doorbell();
    }

    pub fn post(&mut self, wqe: &SendWqe<'_>) -> u16 {
        let index = self.prepare(wqe);
        self.ring();
        index
    }

    pub fn post_recv(&mut self, sges: &[Sge]) -> u16 {
        let index = self.rq;
        let slot = u64::from(index) & ((1 << self.config.log_rq) - 1);
        let stride = self.config.stride;
        let mut at = self.rq_at + slot * u64::from(stride);
        encode_recv(sges, stride as usize, &mut |segment: &[u8; 16]| {
            self.mem.write(at, segment).unwrap();
            at += 16;
        })
        .unwrap();
        self.rq = self.rq.wrapping_add(1);
        let value = doorbell::record_value(self.rq.into());
        self.mem.store32(self.record, value).unwrap();
        index
    }
}

/// The assertions on the next entry of a queue.
impl End {
    /// The send of this index completed.
    #[track_caller]
    pub fn sent(&mut self, index: u16) {
        assert_ok(&self.send.poll().unwrap(), CqeOpcode::REQ, index);
    }

    /// A SEND filled the receive of this index.
    #[track_caller]
    pub fn received(&mut self, index: u16) {
        assert_ok(&self.recv.poll().unwrap(), CqeOpcode::RESP_SEND, index);
    }

    /// The send of this index failed; returns the vendor syndrome.
    #[track_caller]
    pub fn send_failed(&mut self, index: u16, why: Syndrome) -> u8 {
        let entry = self.send.poll().unwrap();
        assert_err(&entry, CqeOpcode::REQ_ERR, index, why);
        entry.as_error().vendor_err
    }

    /// The receive of this index failed; returns the vendor syndrome.
    #[track_caller]
    pub fn recv_failed(&mut self, index: u16, why: Syndrome) -> u8 {
        let entry = self.recv.poll().unwrap();
        assert_err(&entry, CqeOpcode::RESP_ERR, index, why);
        entry.as_error().vendor_err
    }

    /// Posts an entry, and steps until the world has settled.
    pub fn run(&mut self, world: &mut World, wqe: &SendWqe<'_>) -> u16 {
        let index = self.post(wqe);
        world.settle();
        index
    }

    /// Posts an entry, and asserts that it completes.
    #[track_caller]
    pub fn completes(&mut self, world: &mut World, wqe: &SendWqe<'_>) {
        let index = self.run(world, wqe);
        self.sent(index);
    }
}

/// Registers `len` bytes at `offset` of a memory under their own address, with all rights.
pub fn register(nic: &mut Nic, pd: PdId, mem: &Arc<HostMemory>, offset: u64, len: u64) -> MrKeys {
    let keys = nic.reg_mr(MrAttr {
        pd,
        va: mem.addr() + offset,
        len,
        access: all_rights(),
        mem: mem.clone(),
        mem_offset: offset,
    });
    keys.unwrap()
}

/// Marks the entries of a queue as not written, also if the queue starts inside a lap.
pub fn preset(mem: &HostMemory, offset: u64, log: u8, start: u32) {
    for i in 0..1_u32 << log {
        let number = start.wrapping_add(i);
        let slot = u64::from(number & ((1 << log) - 1));
        let mut entry = Cqe64::preset();
        // The inverse of the owner bit in the entry's next lap.
        entry.op_own = entry.op_own & !1 | mlx5_prm::cqe::owner_of_lap(number, log) ^ 1;
        mem.write(offset + slot * SIZE as u64, &entry.to_bytes())
            .unwrap();
    }
}

/// To INIT.
pub fn init(access: Access) -> Modify {
    let (qkey, port) = (0x11, 1);
    Modify::Init { access, qkey, port }
}

/// To RTS, with the default timeouts of an [`EndConfig`].
pub fn rts(sq_psn: u32, max_rd_atomic: u8) -> Modify {
    let config = EndConfig::default();
    Modify::Rts {
        sq_psn,
        max_rd_atomic,
        timeout: config.timeout,
        retry_cnt: config.retry_cnt,
        rnr_retry: config.rnr_retry,
    }
}

/// To RTR.
pub fn rtr(path: Path, rq_psn: u32, max_dest_rd_atomic: u8, min_rnr_timer: u8) -> Modify {
    Modify::Rtr {
        path,
        rq_psn,
        max_dest_rd_atomic,
        min_rnr_timer,
    }
}

pub fn signaled() -> WqeFlags {
    WqeFlags {
        signaled: true,
        ..WqeFlags::default()
    }
}

pub fn fenced() -> WqeFlags {
    WqeFlags {
        fence: true,
        ..signaled()
    }
}

pub fn send<'a>(sges: &'a [Sge]) -> SendWqe<'a> {
    SendWqe {
        opcode: SendOpcode::SEND,
        flags: signaled(),
        payload: Payload::Gather(sges),
        ..SendWqe::default()
    }
}

pub fn write<'a>(remote: Remote, sges: &'a [Sge]) -> SendWqe<'a> {
    SendWqe {
        opcode: SendOpcode::RDMA_WRITE,
        remote: Some(remote),
        ..send(sges)
    }
}

pub fn read<'a>(remote: Remote, sges: &'a [Sge]) -> SendWqe<'a> {
    SendWqe {
        opcode: SendOpcode::RDMA_READ,
        ..write(remote, sges)
    }
}

pub fn atomic<'a>(remote: Remote, op: Atomic, sges: &'a [Sge]) -> SendWqe<'a> {
    SendWqe {
        opcode: op.opcode(),
        atomic: Some(op),
        ..write(remote, sges)
    }
}

/// A SEND that invalidates a key of the receiver.
pub fn send_inv<'a>(rkey: u32, sges: &'a [Sge]) -> SendWqe<'a> {
    send(sges).changed(|s| (s.opcode, s.imm) = (SendOpcode::SEND_INV, rkey.to_be_bytes()))
}

pub fn nop() -> SendWqe<'static> {
    SendWqe {
        opcode: SendOpcode::NOP,
        flags: signaled(),
        ..SendWqe::default()
    }
}

/// A wire that loses, duplicates and reorders frames at these rates.
pub fn bad_wire(seed: u64, [loss, dup, reorder]: [f64; 3]) -> Faults {
    Faults {
        seed,
        loss,
        dup,
        reorder,
        ..Faults::default()
    }
}

/// Asserts that an entry reports success of the given kind for the given index.
#[track_caller]
pub fn assert_ok(cqe: &Cqe64, opcode: CqeOpcode, index: u16) {
    if cqe.opcode().is_error() {
        let e = cqe.as_error();
        panic!(
            "{} {} (vendor {:#x}) instead of {opcode}",
            cqe.opcode(),
            e.reason(),
            e.vendor_err
        );
    }
    assert_eq!((cqe.opcode(), cqe.wqe_counter.get()), (opcode, index));
    assert_eq!(cqe.srqn_uidx.get(), 0x77);
}

/// Asserts that an entry reports this failure for the given index.
#[track_caller]
pub fn assert_err(cqe: &Cqe64, opcode: CqeOpcode, index: u16, why: Syndrome) {
    assert_eq!(cqe.opcode(), opcode, "expected {why}");
    let e = cqe.as_error();
    assert_eq!(
        (e.reason(), e.wqe_counter.get()),
        (why, index),
        "vendor {:#x}",
        e.vendor_err
    );
    assert_ne!(e.vendor_err, 0);
    assert_eq!(e.srqn_uidx.get(), 0x77);
}

/// Bytes with position-dependent values.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
}
