//! The functions, and what they answer without a library.

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

/// Why there is no library, or none that has what is needed; `None` if there is one.
pub fn absent() -> Option<&'static LoadError> {
    Table::get().err()
}

/// Leaves `errno` as `number`, which it answers.
fn leave(number: c_int) -> c_int {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = number };
    number
}

/// The answer of a function that hands out a pointer, without a library.
fn none<T>() -> *mut T {
    leave(libc::ELIBACC);
    null_mut()
}

/// The answer of a function that answers with an `errno`, without a library.
fn refusal() -> c_int {
    leave(libc::ELIBACC)
}

/// Defines functions of the table, each with its answer without a library.
macro_rules! functions {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?, else $answer:expr;
    )*) => { $(
        $(#[$meta])*
        ///
        /// # Safety
        /// As its manual page has it: pointers are valid, objects alive.
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
    /// The devices that are present; null and `errno` if there is no telling.
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device, else none();
    /// Frees a list, not the devices that are open.
    fn ibv_free_device_list(list: *mut *mut ibv_device), else ();
    /// A device's name.
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char, else none();
    /// A device's GUID, big-endian; 0 if there is no telling.
    fn ibv_get_device_guid(device: *mut ibv_device) -> __be64, else {
        leave(libc::ELIBACC);
        0
    };
    /// Opens a device; null and `errno` if it cannot be.
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context, else none();
    /// Closes a device on which nothing is left.
    fn ibv_close_device(context: *mut ibv_context) -> c_int, else refusal();
    /// A port as programs of old know it: the beginning of an [`ibv_port_attr`].
    fn ibv_query_port(
        context: *mut ibv_context,
        port: u8,
        attr: *mut _compat_ibv_port_attr,
    ) -> c_int, else refusal();
    /// Makes a protection domain; null and `errno` if it cannot.
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd, else none();
    /// Ends a protection domain.
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int, else refusal();
    /// Registers memory; null and `errno` if it cannot.
    fn ibv_reg_mr(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr, else none();
    /// Ends a registration.
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int, else refusal();
    /// Makes a completion queue; null and `errno` if it cannot.
    fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq, else none();
    /// Ends a completion queue.
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int, else refusal();
    /// Makes a queue pair; null and `errno` if it cannot.
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp, else none();
    /// Sets a queue pair.
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int,
        else refusal();
    /// Ends a queue pair.
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int, else refusal();
}

/// The kernel's number of a device; -1 if there is none, or no library that tells.
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

/// The GIDs of all ports of a device: how many there are, or the negative of an `errno`.
///
/// # Safety
/// As [`ibv_query_port`]; there is room for `max_entries` entries of `entry_size` bytes.
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
