//! A process of the tests: an arena of memory, a device, and commands made of structures.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test uses a part of the rig"
)]

mod commands;

pub use commands::{Command, extended, plain};

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gds_step::{Machine, Shared, Step, Time};
use rustix::io::Errno;
use vmlx5::fabric::hub::Hub;
use vmlx5::{Dma, DmaFault, HostMemory, Nic, NicConfig};
use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::abi::mlx5;
use vmlx5_uverbs::address::{Fabric, LinkLayer};
use vmlx5_uverbs::{Context, Device, DeviceConfig, DoorbellPage, UarMode, User};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A value that differs from another in a field or two.
pub trait Changed: Sized {
    fn changed(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl<T> Changed for T {}

/// The length of the arena in bytes; the first page is never allocated.
pub const ARENA: usize = 1 << 20;

/// The memory of a process. Addresses are those of the arena; all others fault.
pub struct Process {
    pub memory: Arc<HostMemory>,
    /// Addresses from here on are unmapped. Relaxed: tests have one thread.
    pub end: Arc<AtomicU64>,
    /// Doorbell pages that were allocated, from the arena's end down. Relaxed, as `end`.
    pages: AtomicU64,
    /// The answers since the last read: address and bytes.
    pub answers: Mutex<Vec<(u64, Vec<u8>)>>,
}

/// A part of the arena.
struct Window {
    of: Arc<HostMemory>,
    at: u64,
    len: u64,
    /// The NIC has requested to write there.
    writable: bool,
    /// As the process's.
    end: Arc<AtomicU64>,
}

impl Window {
    /// A write of the NIC to memory that it requested for reading is a defect of the interface.
    fn changes(&self) {
        assert!(self.writable, "the NIC writes where it was to read");
    }
}

macro_rules! delegate {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty $(, $changes:ident)?;)*) => {$(
        fn $name(&self, offset: u64, $($arg: $type),*) -> $result {
            $(self.$changes();)?
            if offset >= self.len || self.at + offset >= self.end.load(Ordering::Relaxed) {
                let (len, limit) = (0, self.len);
                return Err(DmaFault { offset, len, limit });
            }
            self.of.$name(self.at + offset, $($arg),*)
        }
    )*};
}

impl Dma for Window {
    fn len(&self) -> u64 {
        self.len
    }

    delegate! {
        read(into: &mut [u8]) -> Result<(), DmaFault>;
        write(from: &[u8]) -> Result<(), DmaFault>, changes;
        load32() -> Result<u32, DmaFault>;
        load64() -> Result<u64, DmaFault>;
        store32(value: u32) -> Result<(), DmaFault>, changes;
        swap64(value: u64) -> Result<u64, DmaFault>, changes;
        compare_swap64(current: u64, new: u64) -> Result<u64, DmaFault>, changes;
        fetch_add64(add: u64) -> Result<u64, DmaFault>, changes;
    }
}

impl Process {
    fn page(&self, number: u64) -> u64 {
        ARENA as u64 - 4096 * (number % MAX_PAGES + 1)
    }

    fn offset(&self, addr: u64, len: u64) -> Result<u64, Errno> {
        let offset = addr.checked_sub(self.memory.addr()).ok_or(Errno::FAULT)?;
        let end = offset.checked_add(len).ok_or(Errno::FAULT)?;
        if end <= self.end.load(Ordering::Relaxed) {
            Ok(offset)
        } else {
            Err(Errno::FAULT)
        }
    }
}

impl User for Process {
    fn memory(&self, addr: u64, len: u64, writable: bool) -> Result<Arc<dyn Dma>, Errno> {
        let at = self.offset(addr, len)?;
        let of = Arc::clone(&self.memory);
        let end = Arc::clone(&self.end);
        Ok(Arc::new(Window {
            of,
            at,
            len,
            writable,
            end,
        }))
    }

    fn dmabuf(
        &self,
        fd: i32,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Arc<dyn Dma>, Errno> {
        match fd {
            FILE if offset + len > FILE_LEN => Err(Errno::INVAL),
            FILE => self.memory(self.memory.addr() + offset, len, writable),
            GPU => Err(Errno::OPNOTSUPP),
            _ => Err(Errno::BADF),
        }
    }

    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), Errno> {
        let at = self.offset(addr, into.len() as u64)?;
        self.memory.read(at, into).map_err(|_| Errno::FAULT)
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), Errno> {
        let at = self.offset(addr, from.len() as u64)?;
        let answers = self.answers.lock();
        answers.expect("one thread").push((addr, from.to_vec()));
        self.memory.write(at, from).map_err(|_| Errno::FAULT)
    }

    fn doorbell_page(&self) -> Result<DoorbellPage, Errno> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("page", flags)?;
        rustix::fs::ftruncate(&file, 4096)?;
        // The tests ring in the NIC's view of it.
        let of = Arc::clone(&self.memory);
        let at = self.page(self.pages.fetch_add(1, Ordering::Relaxed));
        let len = 4096;
        // The NIC's mapping, which stays when the process unmaps the page.
        let end = Arc::new(AtomicU64::new(ARENA as u64));
        let memory = Arc::new(Window {
            of,
            at,
            len,
            writable: true,
            end,
        });
        Ok(DoorbellPage { file, memory })
    }

    fn ring(&self) {}
}

/// A process with a device.
pub struct Rig {
    pub process: Arc<Process>,
    pub device: Arc<Device>,
    pub nic: Shared<Nic>,
    pub context: Context,
    now: Time,
    /// The next free byte of the arena.
    free: u64,
}

/// The maximal number of doorbell pages of a test.
pub const MAX_PAGES: u64 = 16;

/// Descriptors of a file, whose memory is the arena's first bytes, and of an object that cannot be
/// mapped.
pub const FILE: i32 = 77;
pub const FILE_LEN: u64 = 64 << 10;
pub const GPU: i32 = 79;

/// An address without memory.
pub const NOWHERE: u64 = 0x10;

/// The fabric of all tests.
pub fn fabric(link: LinkLayer) -> Fabric {
    Fabric {
        name: "test".into(),
        devices: 1,
        ports: 1,
        link,
    }
}

impl Rig {
    pub fn new(link: LinkLayer, uar: UarMode) -> Rig {
        let fabric = fabric(link);
        let hub = Hub::new(Default::default());
        let port = hub.port_of(fabric.node(0, 0));
        let config = NicConfig::default().changed(|n| n.qpn = Some(Fabric::qpns(0)));
        let nic = Shared::new(Nic::new(config, Box::new(port)));
        let process = Arc::new(Process {
            memory: Arc::new(HostMemory::new(ARENA)),
            end: Arc::new(AtomicU64::new(ARENA as u64)),
            pages: AtomicU64::new(0),
            answers: Mutex::default(),
        });
        let config = DeviceConfig {
            fabric,
            index: 0,
            uar,
        };
        let user = Arc::clone(&process) as Arc<dyn User>;
        let device = Device::new(config, nic.clone(), user);
        Rig {
            context: device.open(),
            device,
            nic,
            process,
            now: Time::ZERO,
            free: 4096,
        }
    }

    /// A device with static pages, on InfiniBand, after the first command.
    pub fn open() -> Rig {
        let mut rig = Rig::new(LinkLayer::InfiniBand, UarMode::Static);
        rig.get_context().unwrap();
        rig
    }

    /// Room in the arena, aligned to pages; its address.
    pub fn room(&mut self, len: usize) -> u64 {
        let at = self.free;
        self.free += len.next_multiple_of(4096) as u64;
        assert!(self.free <= ARENA as u64 - 4096 * MAX_PAGES);
        self.process.memory.addr() + at
    }

    /// The arena is empty again.
    pub fn forget_room(&mut self) {
        self.free = 4096;
        self.process.pages.store(0, Ordering::Relaxed);
    }

    pub fn read<T: FromBytes + IntoBytes + Default>(&self, addr: u64) -> T {
        let mut value = T::default();
        self.process.read(addr, value.as_mut_bytes()).unwrap();
        value
    }

    /// A command whose input starts with the address of the answer; `(answer, driver's answer)`.
    pub fn call<C: Command>(&mut self, input: &C, driver: &[u8]) -> Answer<C::Resp, C::Own> {
        let at = self.process.memory.addr();
        let mut body = input.as_bytes().to_vec();
        body[..8].copy_from_slice(&at.to_ne_bytes());
        body.extend_from_slice(driver);
        let out = size_of::<C::Resp>() + size_of::<C::Own>();
        self.context.write(&plain(C::NUMBER, &body, out))?;
        let driver_at = at + size_of::<C::Resp>() as u64;
        Ok((self.read(at), self.read(driver_at)))
    }

    /// A command without an answer.
    pub fn run(&self, command: u32, input: &(impl IntoBytes + Immutable)) -> Result<usize, Errno> {
        self.context.write(&plain(command, input.as_bytes(), 0))
    }

    /// An ioctl of attributes `(id, length, data)`, in the arena's first page; the address of it.
    pub fn ioctl(&self, object: u16, method: u16, attrs: &[(u16, u16, u64)]) -> Result<u64, Errno> {
        let hdr = IoctlHdr {
            length: (24 + 16 * attrs.len()) as u16,
            object_id: object,
            method_id: method,
            num_attrs: attrs.len() as u16,
            ..Default::default()
        };
        let mut bytes = hdr.as_bytes().to_vec();
        for &(attr_id, len, data) in attrs {
            let attr = IoctlAttr {
                attr_id,
                len,
                flags: 1,
                attr_data: 0,
                data,
            };
            bytes.extend_from_slice(attr.as_bytes());
        }
        let at = self.process.memory.addr();
        self.process.memory.write(0, &bytes).unwrap();
        self.context.ioctl(at).map(|()| at)
    }

    pub fn read_bytes(&self, addr: u64) -> [u8; 64] {
        let mut bytes = [0; 64];
        self.process.read(addr, &mut bytes).unwrap();
        bytes
    }

    pub fn get_context(&mut self) -> Answer<GetContextResp, mlx5::AllocUcontextResp> {
        self.call(&GetContext::default(), first_driver(0).as_bytes())
    }

    pub fn pd(&mut self) -> u32 {
        let input = AllocPd::default();
        self.call(&input, &[]).unwrap().0.pd_handle
    }

    pub fn mr(&mut self, pd: u32, at: u64, len: u64, access: u32) -> Result<RegMrResp, Errno> {
        let input = RegMr {
            start: at,
            length: len,
            hca_va: at,
            pd_handle: pd,
            access_flags: access,
            ..Default::default()
        };
        self.call(&input, &[]).map(|(mr, _)| mr)
    }

    pub fn channel(&mut self) -> u32 {
        let input = CreateCompChannel::default();
        self.call(&input, &[]).unwrap().0.fd
    }

    /// A completion queue of 15 entries, preset as the library does.
    pub fn cq(&mut self, channel: i32) -> Cq {
        let (buf, db) = (self.room(1024), self.room(8));
        for entry in 0..16 {
            self.process.write(buf + entry * 64 + 63, &[0xf0]).unwrap();
        }
        let input = CreateCq {
            user_handle: 0xc0ffee,
            cqe: 15,
            comp_channel: channel,
            ..Default::default()
        };
        let driver = cq_driver(buf, db);
        let (resp, own) = self.call(&input, driver.as_bytes()).unwrap();
        assert_eq!(resp.cqe, 15);
        Cq {
            handle: resp.cq_handle,
            cqn: own.cqn,
            buf,
            db,
        }
    }

    pub fn destroy_cq(&mut self, handle: u32) -> Result<DestroyCqResp, Errno> {
        let input = DestroyCq::default().changed(|d| d.cq_handle = handle);
        self.call(&input, &[]).map(|(resp, _)| resp)
    }

    /// A queue pair with four receives of 64 bytes and four blocks of sends.
    pub fn qp(&mut self, pd: u32, cq: &Cq) -> Result<Qp, Errno> {
        self.qp_of(2, pd, cq)
    }

    /// A QP of any kind, as verbs number them.
    pub fn qp_of(&mut self, kind: u8, pd: u32, cq: &Cq) -> Result<Qp, Errno> {
        let input = qp_input(pd, cq.handle).changed(|c| c.init.qp_type = kind);
        self.make_qp(&input, |_| ()).map(|(qp, _)| qp)
    }

    /// A QP with the given input, and with a change of the driver's input.
    pub fn make_qp(
        &mut self,
        input: &CreateQp,
        change: impl FnOnce(&mut mlx5::CreateQp),
    ) -> Result<(Qp, CreateQpResp), Errno> {
        let (buf, db) = (self.room(512), self.room(8));
        let driver = qp_driver(buf, db).changed(change);
        let (resp, own) = self.call(input, driver.as_bytes())?;
        let qp = Qp {
            handle: resp.qp_handle,
            qpn: resp.qpn,
            bfreg: own.bfreg_index,
            // The buffer contains the receives first, unless the QP uses another receive queue.
            sends: buf + if input.init.is_srq == 0 { 256 } else { 0 },
            receives: buf,
            db,
        };
        Ok((qp, resp))
    }

    pub fn destroy_qp(&mut self, handle: u32) -> Result<(), Errno> {
        let input = DestroyQp::default().changed(|d| d.qp_handle = handle);
        self.call(&input, &[]).map(drop)
    }

    pub fn query_qp(&mut self, handle: u32) -> Result<QueryQpResp, Errno> {
        let input = QueryQp::default().changed(|q| q.qp_handle = handle);
        self.call(&input, &[]).map(|(resp, _)| resp)
    }

    /// Modifications that connect a queue pair with another.
    pub fn ways(&self, qp: u32, remote: u32) -> [ModifyQp; 3] {
        use attr::*;
        let base = ModifyQp {
            qp_handle: qp,
            port_num: 1,
            qp_access_flags: 0xf,
            ..Default::default()
        };
        [
            ModifyQp {
                attr_mask: STATE | PKEY_INDEX | PORT | ACCESS_FLAGS,
                qp_state: 1,
                ..base
            },
            ModifyQp {
                attr_mask: STATE
                    | AV
                    | PATH_MTU
                    | DEST_QPN
                    | RQ_PSN
                    | MAX_DEST_RD_ATOMIC
                    | MIN_RNR_TIMER,
                qp_state: 2,
                path_mtu: 3,
                dest_qp_num: remote,
                rq_psn: 7,
                max_dest_rd_atomic: 1,
                min_rnr_timer: 12,
                dest: QpDest::default().changed(|q| (q.dlid, q.port_num) = (1, 1)),
                ..base
            },
            ModifyQp {
                attr_mask: STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
                qp_state: 3,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                sq_psn: 7,
                max_rd_atomic: 1,
                ..base
            },
        ]
    }

    pub fn connect(&self, qp: &Qp, remote: &Qp) {
        for way in self.ways(qp.handle, remote.qpn) {
            self.run(command::MODIFY_QP, &way).unwrap();
        }
    }

    /// Steps the NIC until it has no work.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            self.now = self.now + std::time::Duration::from_micros(1);
            let step = self.nic.step(self.now);
            self.device.turn();
            if step != Step::Progress {
                return;
            }
        }
        panic!("the NIC finds no end");
    }

    /// Rings: a value into the first register of every page.
    pub fn ring(&self) {
        self.ring_at(0x800);
    }

    /// Rings the register at `offset` of every page.
    pub fn ring_at(&self, offset: u64) {
        for page in 0..MAX_PAGES {
            let at = self.process.page(page) + offset;
            self.process.memory.store64(at, 1).unwrap();
        }
    }
}

/// A copy of a descriptor that this process identifies by its number.
pub fn copy(fd: u32) -> OwnedFd {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let process = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    pidfd_getfd(process, fd as i32, PidfdGetfdFlags::empty()).unwrap()
}

/// The content of an event file, without waiting.
pub fn messages(fd: u32) -> Vec<Vec<u8>> {
    let fd = copy(fd);
    let mut all = Vec::new();
    let mut bytes = [0; 64];
    let flags = rustix::net::RecvFlags::DONTWAIT;
    while let Ok((len, _)) = rustix::net::recv(fd.as_fd(), &mut bytes[..], flags) {
        all.push(bytes[..len].to_vec());
    }
    all
}

/// The delivered events: owner and type.
pub fn delivered(rig: &mut Rig, file: u32) -> Vec<(u64, u32)> {
    rig.settle();
    let of = |m: Vec<u8>| {
        let event = AsyncEventDesc::read_from_bytes(&m).unwrap();
        assert_eq!(event.reserved, 0);
        (event.element, event.event_type)
    };
    messages(file).into_iter().map(of).collect()
}

pub type Answer<A, D> = Result<(A, D), Errno>;

pub struct Cq {
    pub handle: u32,
    pub cqn: u32,
    pub buf: u64,
    pub db: u64,
}

#[derive(Default)]
pub struct Qp {
    pub handle: u32,
    pub qpn: u32,
    pub bfreg: u32,
    pub sends: u64,
    pub receives: u64,
    pub db: u64,
}

/// Random numbers, from the seed `GDS_SEED` if there is one.
pub fn random() -> fastrand::Rng {
    let seed = std::env::var("GDS_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("GDS_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// The driver's input of the first command of a current library.
pub fn first_driver(flags: u32) -> mlx5::AllocUcontextReqV2 {
    mlx5::AllocUcontextReqV2 {
        total_num_bfregs: 16,
        num_low_latency_bfregs: 4,
        max_cqe_version: 1,
        lib_caps: 3,
        flags,
        ..Default::default()
    }
}

pub fn cq_driver(buf: u64, db: u64) -> mlx5::CreateCq {
    mlx5::CreateCq {
        buf_addr: buf,
        db_addr: db,
        cqe_size: 64,
        ..Default::default()
    }
}

pub fn qp_input(pd: u32, cq: u32) -> CreateQp {
    CreateQp {
        init: QpInit {
            pd_handle: pd,
            send_cq_handle: cq,
            recv_cq_handle: cq,
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            qp_type: 2,
            ..Default::default()
        },
        ..Default::default()
    }
}

pub fn qp_driver(buf: u64, db: u64) -> mlx5::CreateQp {
    mlx5::CreateQp {
        buf_addr: buf,
        db_addr: db,
        sq_wqe_count: 4,
        rq_wqe_count: 4,
        rq_wqe_shift: 6,
        ..Default::default()
    }
}
