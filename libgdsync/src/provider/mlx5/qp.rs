//! A queue pair that libmlx5 creates in memory of the library.
//!
//! libmlx5 asks the allocator of a parent domain for memory; the allocator returns the places that
//! the library laid out for the GPU's streams. A separate thread domain gives each queue pair a
//! doorbell register that no other queue pair uses. The library then queries the result by
//! `mlx5dv_init_obj` and compares it. After that only the library writes the rings, and calls
//! libmlx5 to change states only.

use std::ffi::c_void;
use std::ptr::NonNull;

use gds_step::Mutex;
use gdsync_sys::mlx5::*;
use gdsync_sys::verbs::consts::*;
use gdsync_sys::verbs::types::*;
use mlx5_prm::wqe::{BASIC_BLOCK, SEGMENT};

use crate::error::{Error, Kind, Result};
use crate::gpu::Region;
use crate::nic::{Access, Layout, PathSettings, QpRings, Transport};
use crate::provider::ibv::path::{self, Change};
use crate::provider::ibv::{Context, check, missing, refusal, refused_last};
use crate::ring::cq::ENTRY;

const CREATE: &str = "create queue pair";

/// Memory for the next object of a kind.
#[derive(Clone, Copy, Debug)]
struct Offer {
    kind: u64,
    at: usize,
    len: usize,
}

/// The memory that the allocator of one parent domain offers.
#[derive(Debug, Default)]
struct Offers(Mutex<Vec<Offer>>);

impl Offers {
    fn set(&self, offers: &[Offer]) {
        let mut held = self.0.lock();
        held.clear();
        held.extend_from_slice(offers);
    }

    /// The memory for an object; `None` if it does not fit.
    fn take(&self, kind: u64, len: usize, align: usize) -> Option<usize> {
        let mut held = self.0.lock();
        let fits = |o: &Offer| o.kind == kind && len <= o.len && o.at.is_multiple_of(align.max(1));
        let found = held.iter().position(fits)?;
        Some(held.swap_remove(found).at)
    }
}

/// The allocator. The provider allocates doorbell records of completion queues itself: they are
/// unused.
unsafe extern "C" fn allocate(
    _: *mut ibv_pd,
    offers: *mut c_void,
    size: usize,
    align: usize,
    kind: u64,
) -> *mut c_void {
    // SAFETY: the data that the parent domain was created with, which outlive it.
    let offers = unsafe { &*offers.cast::<Offers>() };
    match offers.take(kind, size, align) {
        Some(at) => at as *mut c_void,
        None if kind == MLX5DV_RES_TYPE_DBR => IBV_ALLOCATOR_USE_DEFAULT,
        None => {
            // libmlx5 reports this errno to its caller.
            // SAFETY: the errno of this thread.
            unsafe { *libc::__errno_location() = libc::ENOMEM };
            std::ptr::null_mut()
        }
    }
}

/// The library owns the memory and frees it after the queue pair.
unsafe extern "C" fn free(_: *mut ibv_pd, _: *mut c_void, _: *mut c_void, _: u64) {}

/// The objects that libmlx5 made for one queue pair, destroyed in order.
pub(super) struct QpParts {
    context: &'static Context,
    qp: *mut ibv_qp,
    /// The completion queues of sends and of receives.
    cqs: [*mut ibv_cq; 2],
    domain: *mut ibv_pd,
    threads: *mut ibv_td,
    offers: Box<Offers>,
    pub access: Access,
    pub transport: Transport,
    pub path: PathSettings,
    /// The index of its partition key in the port's table.
    pub pkey: u16,
}

// SAFETY: libibverbs may be called from any thread with any of its objects.
unsafe impl Send for QpParts {}

impl Drop for QpParts {
    fn drop(&mut self) {
        let verbs = self.context.verbs();
        let mut failed = Vec::new();
        let mut done = |what: &str, answer: i32| {
            if answer != 0 {
                failed.push(format!("{what}: {answer}"));
            }
        };
        // SAFETY: objects of this context, each made once and destroyed once, users first.
        unsafe {
            if !self.qp.is_null() {
                done("queue pair", (verbs.ibv_destroy_qp)(self.qp));
            }
            for cq in self.cqs.into_iter().filter(|cq| !cq.is_null()) {
                done("completion queue", (verbs.ibv_destroy_cq)(cq));
            }
            if !self.domain.is_null() {
                done("parent domain", (verbs.ibv_dealloc_pd)(self.domain));
            }
            if !self.threads.is_null() {
                done(
                    "thread domain",
                    verbs.dealloc_td(self.context.raw(), self.threads),
                );
            }
        }
        if !failed.is_empty() {
            let name = &self.context.name;
            let what = failed.join(", ");
            tracing::warn!(target: "gdsync", "destroy queue pair of {name}: {what}");
        }
    }
}

/// Direct verbs. A NIC of this provider is not opened without them.
fn direct() -> Result<&'static Mlx5> {
    Mlx5::get().map_err(missing)
}

/// The CPU's address of an offset in a region.
fn address(region: &Region, offset: u64) -> Result<usize> {
    Ok(region.mapped()?.as_ptr() as usize + offset as usize)
}

impl QpParts {
    /// A queue pair, its number, and its doorbell register, which is mapped until the process
    /// ends.
    ///
    /// # Safety
    /// `pd` is a protection domain of `context`, and the memory of `rings` outlives this.
    pub unsafe fn make(
        context: &'static Context,
        pd: *mut ibv_pd,
        rings: &QpRings<'_>,
        pkey: u16,
        layout: Layout,
    ) -> Result<(QpParts, u32, NonNull<u8>)> {
        let mut parts = QpParts {
            context,
            qp: std::ptr::null_mut(),
            cqs: [std::ptr::null_mut(); 2],
            domain: std::ptr::null_mut(),
            threads: std::ptr::null_mut(),
            offers: Box::default(),
            access: rings.access,
            transport: rings.transport,
            path: rings.path,
            pkey,
        };
        // SAFETY: the caller's promise.
        unsafe { parts.make_domain(pd)? };
        for (i, (region, offset, log)) in [rings.send_cq, rings.recv_cq].into_iter().enumerate() {
            parts.cqs[i] = parts.make_cq(address(region, offset)?, 1 << log, layout)?;
        }
        let (qpn, register) = parts.make_qp(rings, layout)?;
        Ok((parts, qpn, register))
    }

    /// # Safety
    /// `pd` is a protection domain of this context.
    unsafe fn make_domain(&mut self, pd: *mut ibv_pd) -> Result<()> {
        let verbs = self.context.verbs();
        // SAFETY: an open context.
        let threads = unsafe { verbs.alloc_td(self.context.raw(), ibv_td_init_attr::default()) };
        self.threads = threads.unwrap_or(std::ptr::null_mut());
        if self.threads.is_null() {
            let why = std::io::Error::last_os_error();
            let name = &self.context.name;
            tracing::info!(target: "gdsync", "{name}: queue pairs share doorbells: {why}");
        }
        let attr = ibv_parent_domain_init_attr {
            pd,
            td: self.threads,
            comp_mask: IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
                | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
            alloc: Some(allocate),
            free: Some(free),
            pd_context: (&raw const *self.offers).cast_mut().cast(),
        };
        // SAFETY: both domains are of this context; the offers outlive the parent domain.
        let domain = unsafe { verbs.alloc_parent_domain(self.context.raw(), attr) };
        let domain = domain.ok_or_else(|| {
            let what = format!(
                "the provider of {} does not support parent domains; update rdma-core",
                self.context.name
            );
            Error::new(CREATE, Kind::Unsupported, what)
        })?;
        if domain.is_null() {
            return Err(refused_last(CREATE, "ibv_alloc_parent_domain"));
        }
        self.domain = domain;
        Ok(())
    }

    fn make_cq(&self, at: usize, entries: u32, layout: Layout) -> Result<*mut ibv_cq> {
        let mlx5 = direct()?;
        let len = entries as usize * ENTRY;
        self.offers.set(&[Offer {
            kind: MLX5DV_RES_TYPE_CQ,
            at,
            len: len.next_multiple_of(layout.align),
        }]);
        let mut attr = ibv_cq_init_attr_ex {
            // The provider makes room for one more entry, and rounds up.
            cqe: entries - 1,
            cq_context: std::ptr::null_mut(),
            channel: std::ptr::null_mut(),
            comp_vector: 0,
            wc_flags: 0,
            comp_mask: IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD,
            flags: IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
            parent_domain: self.domain,
        };
        let mut own = mlx5dv_cq_init_attr {
            comp_mask: MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE,
            cqe_size: ENTRY as u16,
            ..mlx5dv_cq_init_attr::default()
        };
        // SAFETY: an open context and its parent domain; the offered memory is free.
        let cq = unsafe { (mlx5.mlx5dv_create_cq)(self.context.raw(), &mut attr, &mut own) };
        if cq.is_null() {
            let call = format!("mlx5dv_create_cq for {entries} entries");
            return Err(refused_last(CREATE, &call));
        }
        let guard = CqGuard(self.context, cq);
        // SAFETY: a live completion queue.
        let out = unsafe { mlx5.cq(cq) }
            .map_err(|answer| refusal(answer, CREATE, "mlx5dv_init_obj of the completion queue"))?;
        let is = (out.buf as usize, out.cqe_cnt, out.cqe_size as usize);
        if is != (at, entries, ENTRY) {
            let what = format!(
                "libmlx5 placed the completion queue at {is:x?} in place of {:x?} (address, entries, \
                 bytes of an entry)",
                (at, entries, ENTRY)
            );
            return Err(Error::new(CREATE, Kind::Unsupported, what));
        }
        std::mem::forget(guard);
        Ok(cq)
    }

    /// Creates the queue pair itself; returns its number and its doorbell register.
    fn make_qp(&mut self, rings: &QpRings<'_>, layout: Layout) -> Result<(u32, NonNull<u8>)> {
        let (ring, recv_at, entries, stride) = rings.recv_ring;
        let (_, send_at, blocks) = rings.send_ring;
        let recv = address(ring, recv_at)?;
        let send = address(ring, send_at)?;
        let record = address(rings.record.0, rings.record.1)?;
        let bytes = blocks as usize * BASIC_BLOCK + (entries * stride) as usize;
        let offers = [
            Offer {
                kind: MLX5DV_RES_TYPE_QP,
                at: recv,
                len: bytes.next_multiple_of(layout.grain(bytes)),
            },
            Offer {
                kind: MLX5DV_RES_TYPE_DBR,
                at: record,
                len: 8,
            },
        ];
        // libmlx5 computes the number of blocks for a number of requests, with its longest request:
        // three or four blocks for each, rounded up to a power of two.
        let guesses = [4, 3, 2, 6, 8, 1].map(|each| (blocks / each).max(1));
        let mut refusal = None;
        for requests in guesses {
            self.offers.set(&offers);
            let out = match self.try_qp(requests, entries, stride) {
                Ok(out) => out,
                Err(e) => {
                    refusal.get_or_insert(e);
                    continue;
                }
            };
            let wanted = (send, blocks, BASIC_BLOCK, recv, entries, stride, record);
            let is = (
                out.sq.buf as usize,
                out.sq.wqe_cnt,
                out.sq.stride as usize,
                out.rq.buf as usize,
                out.rq.wqe_cnt,
                out.rq.stride,
                out.dbrec as usize,
            );
            if is == wanted {
                let none = || {
                    let what = "libmlx5 returned no doorbell register for the queue pair";
                    Error::new(CREATE, Kind::Unsupported, what)
                };
                let register = NonNull::new(out.bf_reg.cast::<u8>()).ok_or_else(none)?;
                // SAFETY: a live queue pair.
                return Ok((unsafe { (*self.qp).qp_num }, register));
            }
            let what = format!(
                "libmlx5 placed the queues at {is:x?} in place of {wanted:x?} (address, entries and \
                 stride of the send queue and of the receive queue, doorbell record)"
            );
            refusal = Some(Error::new(CREATE, Kind::Unsupported, what));
            let qp = std::mem::replace(&mut self.qp, std::ptr::null_mut());
            self.take_back(qp)?;
        }
        let none = || Error::new(CREATE, Kind::System, "libmlx5 created no queue pair");
        Err(refusal.unwrap_or_else(none))
    }

    fn try_qp(&mut self, requests: u32, entries: u32, stride: u32) -> Result<mlx5dv_qp> {
        let mlx5 = direct()?;
        let mut attr = ibv_qp_init_attr_ex {
            qp_context: std::ptr::null_mut(),
            send_cq: self.cqs[0],
            recv_cq: self.cqs[1],
            srq: std::ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: requests,
                max_recv_wr: entries,
                max_send_sge: 1,
                max_recv_sge: stride / SEGMENT as u32,
                max_inline_data: 0,
            },
            qp_type: match self.transport {
                Transport::Rc => IBV_QPT_RC,
                Transport::Ud { .. } => IBV_QPT_UD,
            },
            sq_sig_all: 0,
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd: self.domain,
            xrcd: std::ptr::null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: std::ptr::null_mut(),
            rx_hash_conf: ibv_rx_hash_conf {
                rx_hash_function: 0,
                rx_hash_key_len: 0,
                rx_hash_key: std::ptr::null_mut(),
                rx_hash_fields_mask: 0,
            },
            source_qpn: 0,
            send_ops_flags: 0,
        };
        let mut own = mlx5dv_qp_init_attr {
            comp_mask: MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
            // With this scatter, a small message would be in its completion entry, and not in the
            // memory where a stream looks for it after its wait.
            create_flags: MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
            ..mlx5dv_qp_init_attr::default()
        };
        // SAFETY: an open context, its objects; the offered memory is free.
        let qp = unsafe { (mlx5.mlx5dv_create_qp)(self.context.raw(), &mut attr, &mut own) };
        if qp.is_null() {
            let call = format!("mlx5dv_create_qp for {requests} sends and {entries} receives");
            return Err(refused_last(CREATE, &call));
        }
        // SAFETY: a live queue pair.
        let out = unsafe { mlx5.qp(qp) }
            .map_err(|answer| refusal(answer, CREATE, "mlx5dv_init_obj of the queue pair"));
        if out.is_err() {
            self.take_back(qp)?;
            return out;
        }
        self.qp = qp;
        out
    }

    /// Destroys a queue pair with another layout than the wanted one.
    fn take_back(&self, qp: *mut ibv_qp) -> Result<()> {
        // SAFETY: a new queue pair without users.
        let gone = unsafe { (self.context.verbs().ibv_destroy_qp)(qp) };
        check(
            gone,
            CREATE,
            "ibv_destroy_qp of a queue pair with another layout",
        )
    }

    /// The addresses of the queue pair and its completion queues, as events name them.
    pub fn objects(&self) -> Vec<usize> {
        let cqs = self.cqs.iter().map(|cq| *cq as usize);
        cqs.chain([self.qp as usize]).collect()
    }

    /// Changes the state of the queue pair.
    pub fn modify(&self, change: Change, operation: &'static str) -> Result<()> {
        let (mut attr, mask) = change;
        // SAFETY: a live queue pair.
        let answer = unsafe { (self.context.verbs().ibv_modify_qp)(self.qp, &mut attr, mask) };
        let call = format!("ibv_modify_qp to {}", path::state_name(attr.qp_state));
        check(answer, operation, &call)
    }
}

/// A completion queue that is destroyed because it cannot be used.
struct CqGuard(&'static Context, *mut ibv_cq);

impl Drop for CqGuard {
    fn drop(&mut self) {
        // SAFETY: a new completion queue without users. The first error is the one that is
        // reported.
        let _ = unsafe { (self.0.verbs().ibv_destroy_cq)(self.1) };
    }
}
