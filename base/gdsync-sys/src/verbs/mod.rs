//! The verbs of rdma-core: [`Ibverbs`], the table of libibverbs.so.1.
//!
//! Some verbs are not symbols of the library but inline functions of its header, which call the
//! provider through the context. Here they are methods of the table.

pub mod consts;
mod inline;
pub mod types;
mod work;

use std::ffi::{c_char, c_int, c_uint, c_void};
use types::*;

crate::dl_api! {
    /// The functions of libibverbs.
    ///
    /// Required functions are those that gdsync needs and that rdma-core 28 has.
    ///
    /// # Safety
    /// The manual page of each function applies; pointers must be valid, and objects alive.
    pub struct Ibverbs("verbs") {
        sonames: ["libibverbs.so.1"],
        env: "GDS_IBVERBS_LIB",
        required {
            /// The devices that are present; returns null and sets `errno` on failure.
            "IBVERBS_1.1" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
            /// Frees a list of devices; open devices stay open.
            "IBVERBS_1.1" fn ibv_free_device_list(list: *mut *mut ibv_device);
            /// The name of a device.
            "IBVERBS_1.1" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
            /// The GUID of a device, big-endian.
            "IBVERBS_1.1" fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
            /// Opens a device; returns null and sets `errno` on failure.
            "IBVERBS_1.1" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
            /// Closes a device that has no objects left.
            "IBVERBS_1.1" fn ibv_close_device(context: *mut ibv_context) -> c_int;
            /// The port attributes in the layout of old programs; see [`Ibverbs::query_port`].
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
            /// One partition key of a port, big-endian; returns 0 or -1.
            "IBVERBS_1.1" fn ibv_query_pkey(
                context: *mut ibv_context,
                port: u8,
                index: c_int,
                pkey: *mut u16,
            ) -> c_int;
            /// Reads the next asynchronous event of a context; returns -1 and sets `errno` on
            /// failure.
            "IBVERBS_1.1" fn ibv_get_async_event(
                context: *mut ibv_context,
                event: *mut ibv_async_event,
            ) -> c_int;
            /// Acknowledges an event. The object in the event cannot be destroyed before.
            "IBVERBS_1.1" fn ibv_ack_async_event(event: *mut ibv_async_event);
            /// Creates a protection domain (PD).
            "IBVERBS_1.1" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
            /// Destroys a protection domain or a parent domain.
            "IBVERBS_1.1" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
            /// Registers memory as an MR whose addresses start at `iova`.
            "IBVERBS_1.7" fn ibv_reg_mr_iova(
                pd: *mut ibv_pd,
                addr: *mut c_void,
                length: usize,
                iova: u64,
                access: c_int,
            ) -> *mut ibv_mr;
            /// Deregisters an MR.
            "IBVERBS_1.1" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
            /// The attributes of a device.
            "IBVERBS_1.1" fn ibv_query_device(
                context: *mut ibv_context,
                attr: *mut ibv_device_attr,
            ) -> c_int;
            /// Creates a completion channel; returns null and sets `errno` on failure.
            "IBVERBS_1.0" fn ibv_create_comp_channel(
                context: *mut ibv_context,
            ) -> *mut ibv_comp_channel;
            /// Destroys a completion channel that no CQ uses.
            "IBVERBS_1.0" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
            /// Waits for a completion event; returns -1 and sets `errno` on failure.
            "IBVERBS_1.1" fn ibv_get_cq_event(
                channel: *mut ibv_comp_channel,
                cq: *mut *mut ibv_cq,
                cq_context: *mut *mut c_void,
            ) -> c_int;
            /// Acknowledges completion events. The CQ cannot be destroyed before.
            "IBVERBS_1.1" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint);
            /// Creates a CQ; returns null and sets `errno` on failure.
            "IBVERBS_1.1" fn ibv_create_cq(
                context: *mut ibv_context,
                cqe: c_int,
                cq_context: *mut c_void,
                channel: *mut ibv_comp_channel,
                comp_vector: c_int,
            ) -> *mut ibv_cq;
            /// Creates a QP; returns null and sets `errno` on failure.
            "IBVERBS_1.1" fn ibv_create_qp(
                pd: *mut ibv_pd,
                attr: *mut ibv_qp_init_attr,
            ) -> *mut ibv_qp;
            /// Destroys a CQ.
            "IBVERBS_1.1" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
            /// Creates an address handle (AH); returns null and sets `errno` on failure.
            "IBVERBS_1.1" fn ibv_create_ah(
                pd: *mut ibv_pd,
                attr: *mut ibv_ah_attr,
            ) -> *mut ibv_ah;
            /// Destroys an address handle.
            "IBVERBS_1.1" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
            /// Modifies the attributes of a QP.
            "IBVERBS_1.1" fn ibv_modify_qp(
                qp: *mut ibv_qp,
                attr: *mut ibv_qp_attr,
                mask: c_int,
            ) -> c_int;
            /// The attributes of a QP; returns 0 or an errno.
            "IBVERBS_1.1" fn ibv_query_qp(
                qp: *mut ibv_qp,
                attr: *mut ibv_qp_attr,
                mask: c_int,
                init_attr: *mut ibv_qp_init_attr,
            ) -> c_int;
            /// Destroys a QP.
            "IBVERBS_1.1" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        }
        optional {
            /// One entry of a port's GID table, with its type.
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
            /// Protects registered memory against copy-on-write when the process forks. It does
            /// nothing if the kernel copies registered memory for the child. Returns an errno on
            /// failure. Call it before the first registration.
            "IBVERBS_1.1" fn ibv_fork_init() -> c_int;
            /// The description of a completion status, a static string.
            "IBVERBS_1.1" fn ibv_wc_status_str(status: c_uint) -> *const c_char;
        }
    }
}
