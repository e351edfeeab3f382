//! The verbs of rdma-core: [`Ibverbs`], the table of libibverbs.so.1.
//!
//! Some verbs are no symbols of the library but inline functions of its header, which call the
//! provider through the context. They are methods of the table here.

pub mod consts;
mod inline;
pub mod types;
mod work;

use std::ffi::{c_char, c_int, c_uint, c_void};
use types::*;

crate::dl_api! {
    /// The functions of libibverbs.
    ///
    /// Required is what rdma-core 28 has and gdsync cannot do without.
    ///
    /// # Safety
    /// Every function is as its manual page has it; pointers must be valid, objects alive.
    pub struct Ibverbs("verbs") {
        sonames: ["libibverbs.so.1"],
        env: "GDS_IBVERBS_LIB",
        required {
            /// The devices that are present; null and `errno` if there is no telling.
            "IBVERBS_1.1" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
            /// Frees a list, not the devices that are open.
            "IBVERBS_1.1" fn ibv_free_device_list(list: *mut *mut ibv_device);
            /// A device's name.
            "IBVERBS_1.1" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
            /// A device's GUID, big-endian.
            "IBVERBS_1.1" fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
            /// Opens a device; null and `errno` if it cannot be.
            "IBVERBS_1.1" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
            /// Closes a device on which nothing is left.
            "IBVERBS_1.1" fn ibv_close_device(context: *mut ibv_context) -> c_int;
            /// A port as programs of old know it; see [`Ibverbs::query_port`].
            "IBVERBS_1.1" fn ibv_query_port(
                context: *mut ibv_context,
                port: u8,
                attr: *mut c_void,
            ) -> c_int;
            /// One GID of a port.
            "IBVERBS_1.1" fn ibv_query_gid(
                context: *mut ibv_context,
                port: u8,
                index: c_int,
                gid: *mut [u8; 16],
            ) -> c_int;
            /// One partition key of a port, big-endian; 0, or -1.
            "IBVERBS_1.1" fn ibv_query_pkey(
                context: *mut ibv_context,
                port: u8,
                index: c_int,
                pkey: *mut u16,
            ) -> c_int;
            /// The next asynchronous event of a context; -1 and `errno` if there is none to be had.
            "IBVERBS_1.1" fn ibv_get_async_event(
                context: *mut ibv_context,
                event: *mut ibv_async_event,
            ) -> c_int;
            /// Says that an event was handled. The object that it names cannot end before.
            "IBVERBS_1.1" fn ibv_ack_async_event(event: *mut ibv_async_event);
            /// Makes a protection domain.
            "IBVERBS_1.1" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
            /// Ends a protection or parent domain.
            "IBVERBS_1.1" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
            /// Registers memory under addresses from `iova` on.
            "IBVERBS_1.7" fn ibv_reg_mr_iova(
                pd: *mut ibv_pd,
                addr: *mut c_void,
                length: usize,
                iova: u64,
                access: c_int,
            ) -> *mut ibv_mr;
            /// Ends a registration.
            "IBVERBS_1.1" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
            /// What a device is like.
            "IBVERBS_1.1" fn ibv_query_device(
                context: *mut ibv_context,
                attr: *mut ibv_device_attr,
            ) -> c_int;
            /// Makes a channel for completion events; null and `errno` if it cannot.
            "IBVERBS_1.0" fn ibv_create_comp_channel(
                context: *mut ibv_context,
            ) -> *mut ibv_comp_channel;
            /// Ends a channel that no completion queue uses.
            "IBVERBS_1.0" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
            /// Waits for an event; -1 and `errno` if there is none to be had.
            "IBVERBS_1.1" fn ibv_get_cq_event(
                channel: *mut ibv_comp_channel,
                cq: *mut *mut ibv_cq,
                cq_context: *mut *mut c_void,
            ) -> c_int;
            /// Says that events were handled. A completion queue cannot end before.
            "IBVERBS_1.1" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint);
            /// Makes a completion queue; null and `errno` if it cannot.
            "IBVERBS_1.1" fn ibv_create_cq(
                context: *mut ibv_context,
                cqe: c_int,
                cq_context: *mut c_void,
                channel: *mut ibv_comp_channel,
                comp_vector: c_int,
            ) -> *mut ibv_cq;
            /// Makes a queue pair; null and `errno` if it cannot.
            "IBVERBS_1.1" fn ibv_create_qp(
                pd: *mut ibv_pd,
                attr: *mut ibv_qp_init_attr,
            ) -> *mut ibv_qp;
            /// Ends a completion queue.
            "IBVERBS_1.1" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
            /// Makes an address handle; null and `errno` if it cannot.
            "IBVERBS_1.1" fn ibv_create_ah(
                pd: *mut ibv_pd,
                attr: *mut ibv_ah_attr,
            ) -> *mut ibv_ah;
            /// Ends an address handle.
            "IBVERBS_1.1" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
            /// Sets a queue pair.
            "IBVERBS_1.1" fn ibv_modify_qp(
                qp: *mut ibv_qp,
                attr: *mut ibv_qp_attr,
                mask: c_int,
            ) -> c_int;
            /// What a queue pair is set to; 0, or an errno.
            "IBVERBS_1.1" fn ibv_query_qp(
                qp: *mut ibv_qp,
                attr: *mut ibv_qp_attr,
                mask: c_int,
                init_attr: *mut ibv_qp_init_attr,
            ) -> c_int;
            /// Ends a queue pair.
            "IBVERBS_1.1" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        }
        optional {
            /// One entry of a port's table of GIDs, with its type.
            "IBVERBS_1.11" fn _ibv_query_gid_ex(
                context: *mut ibv_context,
                port: u32,
                index: u32,
                entry: *mut ibv_gid_entry,
                flags: u32,
                entry_size: usize,
            ) -> c_int;
            /// Registers memory of another device by a dma-buf.
            "IBVERBS_1.12" fn ibv_reg_dmabuf_mr(
                pd: *mut ibv_pd,
                offset: u64,
                length: usize,
                iova: u64,
                fd: c_int,
                access: c_int,
            ) -> *mut ibv_mr;
            /// Has registered memory stay where the NIC has it when the process forks; nothing to
            /// do where the kernel copies such memory for the child. An errno if it cannot. To be
            /// called before anything is registered.
            "IBVERBS_1.1" fn ibv_fork_init() -> c_int;
            /// What a status of a completion means, a static string.
            "IBVERBS_1.1" fn ibv_wc_status_str(status: c_uint) -> *const c_char;
        }
    }
}
