//! The verbs that are inline functions in the header of libibverbs.

use std::ffi::c_int;
use std::mem::offset_of;

use super::Ibverbs;
use super::consts::VERBS_ABI_IS_EXTENDED;
use super::types::*;

/// The extended context around `context`, if it has the field at byte `offset`.
///
/// # Safety
/// `context` is an open context of this library.
unsafe fn extended(context: *mut ibv_context, offset: usize) -> Option<*mut verbs_context> {
    // SAFETY: an open context, as the caller says.
    let mark = unsafe { (*context).abi_compat };
    if mark != VERBS_ABI_IS_EXTENDED {
        return None;
    }
    let around = context
        .wrapping_byte_sub(offset_of!(verbs_context, context))
        .cast::<verbs_context>();
    // SAFETY: `abi_compat` marks the end of an extended context; `sz` is directly before this
    // context in every extended context.
    let known = unsafe { (&raw const (*around).sz).read() };
    (known >= size_of::<verbs_context>() - offset).then_some(around)
}

/// Returns the function of the provider, if it has one.
macro_rules! function {
    ($context:expr, $field:ident) => {{
        let around = extended($context, offset_of!(verbs_context, $field));
        around.and_then(|around| (&raw const (*around).$field).read())
    }};
}

impl Ibverbs {
    /// The attributes of a port; returns 0 or an errno.
    ///
    /// # Safety
    /// `context` is an open context of this library, and `attr` is valid for a write.
    pub unsafe fn query_port(
        &self,
        context: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: as the caller promises; the older function fills the beginning of `attr` only.
        unsafe {
            attr.write(ibv_port_attr::default());
            match function!(context, query_port) {
                Some(query) => query(context, port, attr, size_of::<ibv_port_attr>()),
                None => (self.ibv_query_port)(context, port, attr.cast()),
            }
        }
    }

    /// Creates a thread domain; returns null and sets `errno` on failure. `None`: the provider has
    /// no thread domains.
    ///
    /// # Safety
    /// `context` is an open context of this library.
    pub unsafe fn alloc_td(
        &self,
        context: *mut ibv_context,
        mut attr: ibv_td_init_attr,
    ) -> Option<*mut ibv_td> {
        // SAFETY: as the caller promises.
        unsafe { function!(context, alloc_td).map(|alloc| alloc(context, &mut attr)) }
    }

    /// Destroys a thread domain; returns 0 or an errno.
    ///
    /// # Safety
    /// `td` is a thread domain of `context`, and no object uses it.
    pub unsafe fn dealloc_td(&self, context: *mut ibv_context, td: *mut ibv_td) -> c_int {
        // SAFETY: as the caller promises.
        let dealloc = unsafe { function!(context, dealloc_td) };
        // SAFETY: as the caller promises.
        dealloc.map_or(libc::EOPNOTSUPP, |dealloc| unsafe { dealloc(td) })
    }

    /// Creates a parent domain; returns null and sets `errno` on failure. `None`: the provider has
    /// no parent domains. [`ibv_dealloc_pd`](Ibverbs::ibv_dealloc_pd) destroys it.
    ///
    /// # Safety
    /// `context` is an open context of this library, and the objects and functions in `attr` live
    /// as long as the parent domain.
    pub unsafe fn alloc_parent_domain(
        &self,
        context: *mut ibv_context,
        mut attr: ibv_parent_domain_init_attr,
    ) -> Option<*mut ibv_pd> {
        // SAFETY: as the caller promises.
        unsafe { function!(context, alloc_parent_domain).map(|alloc| alloc(context, &mut attr)) }
    }

    /// Polls up to `entries` completions; returns their number, or a negative number on failure.
    ///
    /// # Safety
    /// `cq` is a live CQ of this library, and `wc` is valid for writes of `entries` completions.
    pub unsafe fn poll_cq(&self, cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
        // SAFETY: as the caller promises; a live object names its context.
        unsafe {
            let function = (*(*cq).context).ops.poll_cq;
            function.map_or(-libc::EOPNOTSUPP, |poll| poll(cq, entries, wc))
        }
    }

    /// Arms the CQ: the next completion raises an event. Returns 0 or an errno.
    ///
    /// # Safety
    /// `cq` is a live CQ of this library.
    pub unsafe fn req_notify_cq(&self, cq: *mut ibv_cq, solicited_only: bool) -> c_int {
        // SAFETY: as the caller promises; a live object names its context.
        unsafe {
            let function = (*(*cq).context).ops.req_notify_cq;
            function.map_or(libc::EOPNOTSUPP, |arm| arm(cq, solicited_only.into()))
        }
    }

    /// Posts send requests; returns 0 or an errno.
    ///
    /// # Safety
    /// `qp` is a live QP of this library, `wr` is a list of requests with their SGEs, and inline
    /// data are readable. The device itself refuses memory that the keys do not cover.
    pub unsafe fn post_send(&self, qp: *mut ibv_qp, wr: *mut ibv_send_wr) -> c_int {
        let mut bad = std::ptr::null_mut();
        // SAFETY: as the caller promises; a live object names its context.
        unsafe {
            let function = (*(*qp).context).ops.post_send;
            function.map_or(libc::EOPNOTSUPP, |post| post(qp, wr, &mut bad))
        }
    }

    /// Posts receives; returns 0 or an errno.
    ///
    /// # Safety
    /// As [`post_send`](Ibverbs::post_send).
    pub unsafe fn post_recv(&self, qp: *mut ibv_qp, wr: *mut ibv_recv_wr) -> c_int {
        let mut bad = std::ptr::null_mut();
        // SAFETY: as the caller promises; a live object names its context.
        unsafe {
            let function = (*(*qp).context).ops.post_recv;
            function.map_or(libc::EOPNOTSUPP, |post| post(qp, wr, &mut bad))
        }
    }
}
