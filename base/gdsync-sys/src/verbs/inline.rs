//! The verbs that the header of libibverbs has inline.

use std::ffi::c_int;
use std::mem::offset_of;

use super::Ibverbs;
use super::consts::VERBS_ABI_IS_EXTENDED;
use super::types::*;

/// The extended context that `context` is the end of, if it has the field that begins `offset`
/// bytes into it.
///
/// # Safety
/// `context` is an open one of the library's.
unsafe fn extended(context: *mut ibv_context, offset: usize) -> Option<*mut verbs_context> {
    // SAFETY: an open context, as the caller says.
    let mark = unsafe { (*context).abi_compat };
    if mark != VERBS_ABI_IS_EXTENDED {
        return None;
    }
    let around = context
        .wrapping_byte_sub(offset_of!(verbs_context, context))
        .cast::<verbs_context>();
    // SAFETY: the mark says that an extended context ends with this one; `sz` lies directly
    // before it in all of them.
    let known = unsafe { (&raw const (*around).sz).read() };
    (known >= size_of::<verbs_context>() - offset).then_some(around)
}

/// A function of the provider's, if it has it.
macro_rules! function {
    ($context:expr, $field:ident) => {{
        let around = extended($context, offset_of!(verbs_context, $field));
        around.and_then(|around| (&raw const (*around).$field).read())
    }};
}

impl Ibverbs {
    /// What a port is like; 0, or an errno.
    ///
    /// # Safety
    /// `context` is an open one of this library's, `attr` valid for a write.
    pub unsafe fn query_port(
        &self,
        context: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: as the caller promises; the older function fills the beginning alone.
        unsafe {
            attr.write(ibv_port_attr::default());
            match function!(context, query_port) {
                Some(query) => query(context, port, attr, size_of::<ibv_port_attr>()),
                None => (self.ibv_query_port)(context, port, attr.cast()),
            }
        }
    }

    /// Makes a thread domain; null and `errno` if there is none to be had. `None`: the provider
    /// knows no such.
    ///
    /// # Safety
    /// `context` is an open one of this library's.
    pub unsafe fn alloc_td(
        &self,
        context: *mut ibv_context,
        mut attr: ibv_td_init_attr,
    ) -> Option<*mut ibv_td> {
        // SAFETY: as the caller promises.
        unsafe { function!(context, alloc_td).map(|alloc| alloc(context, &mut attr)) }
    }

    /// Ends a thread domain; 0, or an errno.
    ///
    /// # Safety
    /// `td` is one of `context`'s, used by nothing.
    pub unsafe fn dealloc_td(&self, context: *mut ibv_context, td: *mut ibv_td) -> c_int {
        // SAFETY: as the caller promises.
        let dealloc = unsafe { function!(context, dealloc_td) };
        // SAFETY: as the caller promises.
        dealloc.map_or(libc::EOPNOTSUPP, |dealloc| unsafe { dealloc(td) })
    }

    /// Makes a parent domain; null and `errno` if it cannot be. `None`: the provider knows no
    /// such. [`ibv_dealloc_pd`](Ibverbs::ibv_dealloc_pd) ends it.
    ///
    /// # Safety
    /// `context` is an open one of this library's, and what `attr` names lives as long as the
    /// parent domain.
    pub unsafe fn alloc_parent_domain(
        &self,
        context: *mut ibv_context,
        mut attr: ibv_parent_domain_init_attr,
    ) -> Option<*mut ibv_pd> {
        // SAFETY: as the caller promises.
        unsafe { function!(context, alloc_parent_domain).map(|alloc| alloc(context, &mut attr)) }
    }

    /// Takes up to `entries` completions; answers how many, or a number below 0.
    ///
    /// # Safety
    /// `cq` is a live one of this library's, `wc` valid for writes of so many.
    pub unsafe fn poll_cq(&self, cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
        // SAFETY: as the caller promises; a live object names its context.
        unsafe {
            let function = (*(*cq).context).ops.poll_cq;
            function.map_or(-libc::EOPNOTSUPP, |poll| poll(cq, entries, wc))
        }
    }

    /// Has the next completion raise an event; 0, or an errno.
    ///
    /// # Safety
    /// `cq` is a live one of this library's.
    pub unsafe fn req_notify_cq(&self, cq: *mut ibv_cq, solicited_only: bool) -> c_int {
        // SAFETY: as the caller promises; a live object names its context.
        unsafe {
            let function = (*(*cq).context).ops.req_notify_cq;
            function.map_or(libc::EOPNOTSUPP, |arm| arm(cq, solicited_only.into()))
        }
    }

    /// Posts sends; 0, or an errno.
    ///
    /// # Safety
    /// `qp` is a live one of this library's, `wr` a list of requests, each with its data; inline
    /// data are readable. What keys do not cover the device refuses by itself.
    pub unsafe fn post_send(&self, qp: *mut ibv_qp, wr: *mut ibv_send_wr) -> c_int {
        let mut bad = std::ptr::null_mut();
        // SAFETY: as the caller promises; a live object names its context.
        unsafe {
            let function = (*(*qp).context).ops.post_send;
            function.map_or(libc::EOPNOTSUPP, |post| post(qp, wr, &mut bad))
        }
    }

    /// Posts receives; 0, or an errno.
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
