//! The functions, and their results without a library.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use gdsync_sys::LoadError;

use crate::*;

gdsync_sys::dl_api! {
    /// The library's functions.
    struct Table("verbs") {
        sonames: ["libibverbs.so.1"],
        env: "GDS_IBVERBS_LIB",
        required {
            "IBVERBS_1.1" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
            "IBVERBS_1.1" fn ibv_free_device_list(list: *mut *mut ibv_device);
            "IBVERBS_1.1" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
            "IBVERBS_1.1" fn ibv_get_device_guid(device: *mut ibv_device) -> __be64;
            "IBVERBS_1.1" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
            "IBVERBS_1.1" fn ibv_close_device(context: *mut ibv_context) -> c_int;
            "IBVERBS_1.1" fn ibv_query_port(
                context: *mut ibv_context,
                port: u8,
                attr: *mut _compat_ibv_port_attr,
            ) -> c_int;
            "IBVERBS_1.1" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
            "IBVERBS_1.1" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
            "IBVERBS_1.1" fn ibv_reg_mr(
                pd: *mut ibv_pd,
                addr: *mut c_void,
                length: usize,
                access: c_int,
            ) -> *mut ibv_mr;
            "IBVERBS_1.1" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
            "IBVERBS_1.1" fn ibv_create_cq(
                context: *mut ibv_context,
                cqe: c_int,
                cq_context: *mut c_void,
                channel: *mut ibv_comp_channel,
                comp_vector: c_int,
            ) -> *mut ibv_cq;
            "IBVERBS_1.1" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
            "IBVERBS_1.1" fn ibv_create_qp(
                pd: *mut ibv_pd,
                attr: *mut ibv_qp_init_attr,
            ) -> *mut ibv_qp;
            "IBVERBS_1.1" fn ibv_modify_qp(
                qp: *mut ibv_qp,
                attr: *mut ibv_qp_attr,
                mask: c_int,
            ) -> c_int;
            "IBVERBS_1.1" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        }
        optional {
            "IBVERBS_1.9" fn ibv_get_device_index(device: *mut ibv_device) -> c_int;
            "IBVERBS_1.11" fn _ibv_query_gid_table(
                context: *mut ibv_context,
                entries: *mut ibv_gid_entry,
                max_entries: usize,
                flags: u32,
                entry_size: usize,
            ) -> isize;
        }
    }
}

/// The reason for which the library is absent or lacks functions; `None` if it is usable.
pub fn absent() -> Option<&'static LoadError> {
    Table::get().err()
}

/// Sets `errno` to `number`, and returns it.
fn leave(number: c_int) -> c_int {
    // SAFETY: `errno` of the calling thread.
    unsafe { *libc::__errno_location() = number };
    number
}

/// The result of a function that returns a pointer, without a library.
fn none<T>() -> *mut T {
    leave(libc::ELIBACC);
    null_mut()
}

/// The result of a function that returns an `errno`, without a library.
fn refusal() -> c_int {
    leave(libc::ELIBACC)
}

/// Defines functions of the table, each with its result without a library.
macro_rules! functions {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?, else $answer:expr;
    )*) => { $(
        $(#[$meta])*
        ///
        /// # Safety
        /// As on the manual page: pointers are valid, objects alive.
        pub unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
            match Table::get() {
                // SAFETY: the caller keeps the function's rules.
                Ok(table) => unsafe { (table.$name)($($arg),*) },
                Err(_) => $answer,
            }
        }
    )* };
}

functions! {
    /// Lists the devices that are present; null and `errno` on failure.
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device, else none();
    /// Frees a list, not the devices that are open.
    fn ibv_free_device_list(list: *mut *mut ibv_device), else ();
    /// A device's name.
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char, else none();
    /// A device's GUID, big-endian; 0 if it is not known.
    fn ibv_get_device_guid(device: *mut ibv_device) -> __be64, else {
        leave(libc::ELIBACC);
        0
    };
    /// Opens a device; null and `errno` on failure.
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context, else none();
    /// Closes a device without remaining objects.
    fn ibv_close_device(context: *mut ibv_context) -> c_int, else refusal();
    /// Queries a port for programs of old library versions: the beginning of an [`ibv_port_attr`].
    fn ibv_query_port(
        context: *mut ibv_context,
        port: u8,
        attr: *mut _compat_ibv_port_attr,
    ) -> c_int, else refusal();
    /// Creates a protection domain; null and `errno` on failure.
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd, else none();
    /// Destroys a protection domain.
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int, else refusal();
    /// Registers memory; null and `errno` on failure.
    fn ibv_reg_mr(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr, else none();
    /// Ends a registration.
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int, else refusal();
    /// Creates a completion queue; null and `errno` on failure.
    fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq, else none();
    /// Destroys a completion queue.
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int, else refusal();
    /// Creates a queue pair; null and `errno` on failure.
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp, else none();
    /// Modifies the attributes of a queue pair.
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int,
        else refusal();
    /// Destroys a queue pair.
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int, else refusal();
}

/// The kernel's index of a device; -1 if it has none, or if the library does not report it.
///
/// # Safety
/// As [`ibv_get_device_name`].
pub unsafe fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    match Table::get().map(|table| table.ibv_get_device_index) {
        // SAFETY: the caller keeps the function's rules.
        Ok(Some(function)) => unsafe { function(device) },
        _ => -1,
    }
}

/// The GIDs of all ports of a device: returns their number, or a negative `errno`.
///
/// # Safety
/// As [`ibv_query_port`]; the memory has room for `max_entries` entries of `entry_size` bytes.
pub unsafe fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let missing = |errno| -(leave(errno) as isize);
    match Table::get().map(|table| table._ibv_query_gid_table) {
        // SAFETY: the caller keeps the function's rules.
        Ok(Some(function)) => unsafe { function(context, entries, max_entries, flags, entry_size) },
        Ok(None) => missing(libc::EOPNOTSUPP),
        Err(_) => missing(libc::ELIBACC),
    }
}
