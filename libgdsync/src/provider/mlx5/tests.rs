//! A queue pair that libmlx5 itself posts to, for tests that compare its entries with those of this
//! library.
//!
//! It is created as [`qp`](super::qp) creates one, except for its sizes: libmlx5 refuses requests
//! longer than the sizes given at creation. It first sends one message, whose completion shows the
//! mark of its completions. After that, plain memory replaces its doorbell: the NIC gets no
//! doorbell, and the test completes the requests in the NIC's place.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use gdsync_sys::mlx5::*;
use gdsync_sys::verbs::Ibverbs;
use gdsync_sys::verbs::consts::*;
use gdsync_sys::verbs::types::*;
use mlx5_prm::cqe::{self, Cqe64, Success};
use mlx5_prm::doorbell;
use mlx5_prm::opcode::CqeOpcode;

use super::Mlx5Nic;

use crate::gpu::{Gpu, Mapped};
use crate::nic::{Access, AhAttr, Nic as _, PathConfig, PathSettings, QpAddress, Transport};
use crate::provider::ibv::{Context, Handle, check, path};
use crate::ring::RingMemory as _;
use crate::ring::cq::ENTRY;

/// A structure of C with all bytes zero.
///
/// # Safety
/// All zeros are valid: numbers, pointers that may be null, and functions that may be absent.
unsafe fn unset<T>() -> T {
    // SAFETY: the caller's promise.
    unsafe { std::mem::zeroed() }
}

fn settings() -> PathSettings {
    PathConfig::default().resolve().unwrap()
}

/// Bytes of the longest entry, from which libmlx5 computes the length of a ring here.
const LONGEST: u32 = 1024;
/// Most pieces of a request.
const SGES: u32 = 30;
/// Bytes of inline data that fit behind the shortest head of an entry, and of a datagram's entry.
const INLINE: [u32; 2] = [LONGEST - 16 - 4, LONGEST - 64 - 4];

const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;
const IBV_QP_EX_WITH_SEND: u64 = 1 << 2;
const MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS: u64 = 1 << 2;
const MLX5DV_QP_EX_WITH_RAW_WQE: u64 = 1 << 3;

/// The beginning of libibverbs' structure for posting step by step, which contains a queue pair.
#[repr(C)]
struct IbvQpEx {
    _base: [u64; 20],
    _comp_mask: u64,
    wr_id: u64,
    wr_flags: u32,
    _builders: [*mut c_void; 17],
    wr_start: unsafe extern "C" fn(*mut IbvQpEx),
    wr_complete: unsafe extern "C" fn(*mut IbvQpEx) -> i32,
}

/// The beginning of libmlx5's structure, which contains that one.
#[repr(C)]
struct Mlx5dvQpEx {
    _comp_mask: u64,
    _builders: [*mut c_void; 8],
    wr_raw_wqe: unsafe extern "C" fn(*mut Mlx5dvQpEx, *const c_void),
}

/// Plain memory in place of a doorbell register, so that the NIC gets no doorbell. The page is
/// restored at the end, because libmlx5 reuses it.
pub(crate) struct Silence {
    page: *mut c_void,
    aside: *mut c_void,
    /// The register and the bytes behind it in its page.
    pub register: Mapped,
}

impl Silence {
    /// # Safety
    /// No user of the page rings a doorbell of the NIC until this is dropped.
    pub unsafe fn new(register: *mut u8) -> Silence {
        let len = doorbell::PAGE;
        let page: *mut c_void = register.map_addr(|at| at & !(len - 1)).cast();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let plain = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: a free range is mapped; then the page is moved there, and another page is mapped
        // in its place, as the caller allows.
        unsafe {
            let aside = libc::mmap(ptr::null_mut(), len, rights, plain, -1, 0);
            assert_ne!(aside, libc::MAP_FAILED);
            assert_eq!(libc::mremap(page, len, len, fixed, aside), aside);
            let at = libc::mmap(page, len, rights, plain | libc::MAP_FIXED, -1, 0);
            assert_eq!(at, page, "no memory in place of the doorbell");
            let rest = len - (register as usize - page as usize);
            Silence {
                page,
                aside,
                register: Mapped::new(NonNull::new(register).unwrap(), rest),
            }
        }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        let (len, fixed) = (doorbell::PAGE, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        // SAFETY: the original page, moved over the one in its place.
        let at = unsafe { libc::mremap(self.aside, len, len, fixed, self.page) };
        assert_eq!(at, self.page);
    }
}

/// Completions that the test writes in the NIC's place.
#[derive(Clone, Copy)]
pub(crate) struct Completions {
    pub ring: Mapped,
    pub log: u8,
    /// The position to be written next.
    pub next: u32,
}

impl Completions {
    /// Writes a success.
    pub fn put(&mut self, say: &Success) {
        let owner = cqe::owner_of_lap(self.next, self.log);
        let bytes = Cqe64::success(say, owner).to_bytes();
        let at = (self.next as usize & ((1 << self.log) - 1)) * ENTRY;
        let (body, last) = bytes.split_at(cqe::LAST_DWORD_OFFSET);
        self.ring.write(at, body);
        let last = u32::from_le_bytes(last.try_into().unwrap());
        self.ring.store32(at + cqe::LAST_DWORD_OFFSET, last);
        self.next += 1;
    }
}

/// The queue pair of libmlx5; see the module.
pub(crate) struct VendorQp {
    context: &'static Context,
    pd: *mut ibv_pd,
    threads: *mut ibv_td,
    domain: *mut ibv_pd,
    cqs: [*mut ibv_cq; 2],
    qp: *mut ibv_qp,
    transport: Transport,
    /// The handle of its own port, for datagrams.
    own: Option<Handle>,
    /// Completions of sends and of receives.
    pub completions: [Completions; 2],
    /// The mark that the NIC puts into completions.
    uidx: u32,
    pub send_ring: Mapped,
    pub recv_ring: Mapped,
    pub stride: usize,
    pub record: Mapped,
    /// Two neighbouring registers that libmlx5 uses in turn; and the bytes of each.
    registers: Option<Silence>,
    register_len: usize,
}

impl VendorQp {
    fn verbs(&self) -> &'static Ibverbs {
        self.context.verbs()
    }

    /// Makes the queue pair with these numbers of blocks and entries, without doorbells, and with
    /// one message sent.
    pub fn make(
        gpu: &Gpu,
        transport: Transport,
        blocks: u32,
        entries: u32,
        recv_sges: u32,
    ) -> VendorQp {
        let nic = Mlx5Nic::open(gpu, None).unwrap();
        let context = nic.base.context();
        let (verbs, mlx5) = (context.verbs(), Mlx5::get().unwrap());
        // SAFETY: objects of one open context, each checked before it is used.
        unsafe {
            let pd = (verbs.ibv_alloc_pd)(context.raw());
            let threads = verbs.alloc_td(context.raw(), ibv_td_init_attr::default());
            let threads = threads.unwrap();
            assert!(!pd.is_null() && !threads.is_null());
            let attr = ibv_parent_domain_init_attr {
                pd,
                td: threads,
                ..unset()
            };
            let domain = verbs.alloc_parent_domain(context.raw(), attr).unwrap();
            assert!(!domain.is_null());
            let make_cq = || {
                let mut attr = ibv_cq_init_attr_ex {
                    cqe: 63,
                    comp_mask: IBV_CQ_INIT_ATTR_MASK_FLAGS,
                    flags: IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
                    ..unset()
                };
                let mut own = mlx5dv_cq_init_attr {
                    comp_mask: MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE,
                    cqe_size: ENTRY as u16,
                    ..mlx5dv_cq_init_attr::default()
                };
                let cq = (mlx5.mlx5dv_create_cq)(context.raw(), &mut attr, &mut own);
                assert!(!cq.is_null());
                cq
            };
            let cqs = [make_cq(), make_cq()];
            let mut attr = ibv_qp_init_attr_ex {
                send_cq: cqs[0],
                recv_cq: cqs[1],
                cap: ibv_qp_cap {
                    max_send_wr: blocks * 64 / LONGEST,
                    max_recv_wr: entries,
                    max_send_sge: SGES,
                    max_recv_sge: recv_sges,
                    max_inline_data: INLINE[usize::from(transport.is_ud())],
                },
                qp_type: match transport {
                    Transport::Rc => IBV_QPT_RC,
                    Transport::Ud { .. } => IBV_QPT_UD,
                },
                comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                pd: domain,
                send_ops_flags: IBV_QP_EX_WITH_SEND,
                ..unset()
            };
            let mut own = mlx5dv_qp_init_attr {
                comp_mask: MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS
                    | MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
                create_flags: MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
                send_ops_flags: MLX5DV_QP_EX_WITH_RAW_WQE,
                ..mlx5dv_qp_init_attr::default()
            };
            let qp = (mlx5.mlx5dv_create_qp)(context.raw(), &mut attr, &mut own);
            let why = std::io::Error::last_os_error();
            assert!(!qp.is_null(), "queue pair of libmlx5's: {why}");
            let (is, cq_is) = layout(mlx5, qp, cqs);
            assert_eq!((is.sq.wqe_cnt, is.sq.stride), (blocks, 64), "send ring");
            assert_eq!(is.rq.wqe_cnt, entries, "receive ring");
            let mapped = |at: *mut c_void, len: usize| {
                // Valid as long as the queue pair is, and memory of the process.
                Mapped::new(NonNull::new(at.cast()).unwrap(), len)
            };
            let completions = cq_is.map(|is| Completions {
                ring: mapped(is.buf, is.cqe_cnt as usize * ENTRY),
                log: is.cqe_cnt.trailing_zeros() as u8,
                next: 0,
            });
            let mut made = VendorQp {
                context,
                pd,
                threads,
                domain,
                cqs,
                qp,
                transport,
                own: None,
                completions,
                uidx: 0,
                send_ring: mapped(is.sq.buf, blocks as usize * 64),
                recv_ring: mapped(is.rq.buf, (entries * is.rq.stride) as usize),
                stride: is.rq.stride as usize,
                record: mapped(is.dbrec.cast(), 8),
                registers: None,
                register_len: is.bf_size as usize,
            };
            made.connect(&nic);
            made.one_message();
            made.registers = Some(Silence::new(is.bf_reg.cast()));
            made
        }
    }

    /// The address handle of the destination's port, of libmlx5.
    pub fn handle(&self, nic: &Mlx5Nic, to: &AhAttr) -> Handle {
        let attr = path::ah_attr(nic.base.port(), to, &settings()).unwrap();
        // SAFETY: a protection domain of this context, which lives as long as this.
        unsafe { Handle::make(self.context, self.pd, attr).unwrap() }
    }

    /// Connects the queue pair to itself.
    fn connect(&mut self, nic: &Mlx5Nic) {
        let here = QpAddress {
            node: nic.node(),
            qpn: self.qpn(),
            psn: 0,
            gpu: 0,
            process: 0,
            port: nic.port(),
            qkey: None,
            rail: 0,
        };
        let port = nic.base.port();
        let up = match self.transport {
            Transport::Rc => [
                path::ready_to_receive(port, &here, &settings()).unwrap(),
                path::ready_to_send(0, &settings()),
            ],
            Transport::Ud { .. } => path::active(0),
        };
        let steps = [
            path::init(port, Access::ALL, self.transport, 0),
            up[0],
            up[1],
        ];
        for (mut attr, mask) in steps {
            // SAFETY: a live queue pair.
            let answer = unsafe { (self.verbs().ibv_modify_qp)(self.qp, &mut attr, mask) };
            check(answer, "connect", "the queue pair of libmlx5's").unwrap();
        }
        if let (Transport::Ud { .. }, Some(port)) = (self.transport, nic.port()) {
            let to = AhAttr::Port {
                lid: port.lid,
                gid: Some(port.gid),
                service_level: None,
            };
            self.own = Some(self.handle(nic, &to));
        }
    }

    /// Really sends an empty message, or writes one to no address, and reads the mark of its
    /// completion.
    fn one_message(&mut self) {
        let mut request = ibv_send_wr {
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: IBV_SEND_SIGNALED,
            ..no_send()
        };
        if let Some(own) = &self.own {
            request.opcode = IBV_WR_SEND;
            request.wr.ud = ibv_send_ud {
                ah: own.raw(),
                remote_qpn: self.qpn(),
                remote_qkey: 0,
            };
        }
        self.post_send(&mut [request]);
        let start = Instant::now();
        while !self.polled(0) {
            assert!(start.elapsed() < Duration::from_secs(60), "it hangs");
            std::thread::yield_now();
        }
        let mut entry = [0; ENTRY];
        self.completions[0].ring.read(0, &mut entry);
        self.uidx = Cqe64::from_bytes(entry).srqn_uidx.get();
        self.completions[0].next = 1;
    }

    pub fn qpn(&self) -> u32 {
        // SAFETY: a live queue pair.
        unsafe { (*self.qp).qp_num }
    }

    /// Polls one completion, which must be a success.
    fn polled(&self, side: usize) -> bool {
        let mut wc = ibv_wc::default();
        // SAFETY: a live completion queue and room for one.
        let n = unsafe { self.verbs().poll_cq(self.cqs[side], 1, &mut wc) };
        assert!(n >= 0, "poll: {n}");
        assert!(n == 0 || wc.status == 0, "{wc:?}");
        n == 1
    }

    /// Posts requests, with one doorbell.
    pub fn post_send(&self, requests: &mut [ibv_send_wr]) {
        for i in 1..requests.len() {
            requests[i - 1].next = &mut requests[i];
        }
        // SAFETY: a live queue pair, and requests whose inline data are there.
        let answer = unsafe { self.verbs().post_send(self.qp, requests.as_mut_ptr()) };
        assert_eq!(answer, 0, "ibv_post_send");
    }

    pub fn post_recv(&self, sges: &mut [ibv_sge]) {
        let mut request = ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as i32,
        };
        // SAFETY: a live queue pair and a request.
        let answer = unsafe { self.verbs().post_recv(self.qp, &mut request) };
        assert_eq!(answer, 0, "ibv_post_recv");
    }

    /// Posts an entry of these bytes; libmlx5 writes the index itself.
    pub fn post_raw(&self, entry: &[u8]) {
        type ToEx = unsafe extern "C" fn(*mut ibv_qp) -> *mut IbvQpEx;
        type ToOwn = unsafe extern "C" fn(*mut IbvQpEx) -> *mut Mlx5dvQpEx;
        let find = |library: &std::ffi::CStr, name: &std::ffi::CStr| {
            // SAFETY: libraries that are already open, by their names.
            let found = unsafe {
                let open = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
                assert!(!open.is_null(), "{library:?}");
                libc::dlsym(open, name.as_ptr())
            };
            assert!(!found.is_null(), "{name:?}");
            found
        };
        let to_ex = find(c"libibverbs.so.1", c"ibv_qp_to_qp_ex");
        let to_own = find(c"libmlx5.so.1", c"mlx5dv_qp_ex_from_ibv_qp_ex");
        // SAFETY: the functions have these types; the queue pair was made for this kind of posts,
        // so the builders are there; an entry is as long as it says.
        let answer = unsafe {
            let to_ex = std::mem::transmute::<*mut c_void, ToEx>(to_ex);
            let to_own = std::mem::transmute::<*mut c_void, ToOwn>(to_own);
            let ex = to_ex(self.qp);
            let own = to_own(ex);
            ((*ex).wr_start)(ex);
            (*ex).wr_id = 0;
            (*ex).wr_flags = 0;
            ((*own).wr_raw_wqe)(own, entry.as_ptr().cast());
            ((*ex).wr_complete)(ex)
        };
        assert_eq!(answer, 0, "mlx5dv_wr_raw_wqe");
    }

    /// The last doorbell, if there was any since the last call.
    pub fn take_doorbell(&self) -> Option<[u8; 8]> {
        let mut rung = None;
        let registers = &self.registers.as_ref()?.register;
        for half in 0..2 {
            let word = registers.swap64(half * self.register_len, 0);
            if word != 0 {
                assert_eq!(rung, None, "two registers were rung");
                rung = Some(word.to_ne_bytes());
            }
        }
        rung
    }

    /// Completes, in the NIC's place, all sends up to the one whose entry begins at `index`.
    pub fn complete_send(&mut self, index: u16) {
        self.complete(0, CqeOpcode::REQ, index);
    }

    /// Completes the oldest receive.
    pub fn complete_receive(&mut self) {
        self.complete(1, CqeOpcode::RESP_SEND, 0);
    }

    fn complete(&mut self, side: usize, opcode: CqeOpcode, wqe_counter: u16) {
        let say = Success {
            opcode,
            qpn: self.qpn(),
            uidx: self.uidx,
            wqe_counter,
            ..Success::default()
        };
        self.completions[side].put(&say);
        assert!(self.polled(side), "libmlx5 does not see the completion");
    }
}

/// A request with all fields zero.
pub(crate) fn no_send() -> ibv_send_wr {
    // SAFETY: numbers, pointers and a union of both.
    let none = unsafe { unset() };
    ibv_send_wr {
        opcode: IBV_WR_SEND,
        ..none
    }
}

/// The addresses that libmlx5 gave the objects.
///
/// # Safety
/// The objects are alive.
unsafe fn layout(
    mlx5: &Mlx5,
    qp: *mut ibv_qp,
    cqs: [*mut ibv_cq; 2],
) -> (mlx5dv_qp, [mlx5dv_cq; 2]) {
    // SAFETY: live objects, as the caller says.
    unsafe {
        let is = mlx5.qp(qp).expect("mlx5dv_init_obj");
        (is, cqs.map(|cq| mlx5.cq(cq).expect("mlx5dv_init_obj")))
    }
}

impl Drop for VendorQp {
    fn drop(&mut self) {
        let verbs = self.verbs();
        self.registers = None;
        self.own = None;
        // SAFETY: objects of this context, made by `make`, users first.
        let answers = unsafe {
            [
                (verbs.ibv_destroy_qp)(self.qp),
                (verbs.ibv_destroy_cq)(self.cqs[0]),
                (verbs.ibv_destroy_cq)(self.cqs[1]),
                (verbs.ibv_dealloc_pd)(self.domain),
                verbs.dealloc_td(self.context.raw(), self.threads),
                (verbs.ibv_dealloc_pd)(self.pd),
            ]
        };
        if !std::thread::panicking() {
            assert_eq!(answers, [0; 6], "destroyed");
        }
    }
}
