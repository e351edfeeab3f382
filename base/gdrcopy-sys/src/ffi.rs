//! The C interface of libgdrapi 2.x: the table of its functions, its types and its constants.

use std::ffi::{c_int, c_uint, c_ulong, c_void};

/// The object behind a [`gdr_t`].
#[repr(C)]
#[derive(Debug)]
pub struct gdr {
    _opaque: [u8; 0],
}

/// An open library.
#[allow(non_camel_case_types)]
pub type gdr_t = *mut gdr;

/// A handle of pinned device memory.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct gdr_mh_t {
    /// Private to the library.
    pub h: c_ulong,
}

/// The description of pinned memory.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct gdr_info_v2_t {
    /// The device address of the first pinned byte.
    pub va: u64,
    /// The length of the pinned memory in bytes.
    pub mapped_size: u64,
    /// The page size of the GPU in bytes.
    pub page_size: u32,
    /// Deprecated.
    pub tm_cycles: u64,
    /// Deprecated.
    pub cycles_per_ms: u32,
    /// Bit 0: the memory is mapped; bit 1: the mapping is write-combined.
    pub bits: c_uint,
    /// `GDR_MAPPING_TYPE_*`.
    pub mapping_type: c_uint,
}

/// The page size by which the library pins: 64 KiB.
pub const GPU_PAGE_SIZE: u64 = 1 << 16;

/// Not mapped.
pub const GDR_MAPPING_TYPE_NONE: c_uint = 0;
/// Mapped write-combined.
pub const GDR_MAPPING_TYPE_WC: c_uint = 1;
/// Mapped cached.
pub const GDR_MAPPING_TYPE_CACHING: c_uint = 2;
/// Mapped as device memory of the CPU architecture: uncached and ordered.
pub const GDR_MAPPING_TYPE_DEVICE: c_uint = 3;

/// Maps through PCIe, even on a machine with a coherent link.
pub const GDR_PIN_FLAG_FORCE_PCIE: u32 = 1;

const _: () = {
    use std::mem::{offset_of, size_of};

    assert!(size_of::<gdr_mh_t>() == 8);
    assert!(size_of::<gdr_info_v2_t>() == 48);
    assert!(offset_of!(gdr_info_v2_t, mapped_size) == 8);
    assert!(offset_of!(gdr_info_v2_t, page_size) == 16);
    assert!(offset_of!(gdr_info_v2_t, tm_cycles) == 24);
    assert!(offset_of!(gdr_info_v2_t, cycles_per_ms) == 32);
    assert!(offset_of!(gdr_info_v2_t, bits) == 36);
    assert!(offset_of!(gdr_info_v2_t, mapping_type) == 40);
};

gdsync_sys::dl_api! {
    /// The functions of libgdrapi. Those that return an integer return 0 or an errno.
    ///
    /// # Safety
    /// No two functions of the table may run at the same time, with any arguments.
    pub struct Gdrapi("GDRCopy") {
        sonames: ["libgdrapi.so.2"],
        env: "GDS_GDRAPI_LIB",
        required {
            /// Opens the driver. Returns null on failure.
            fn gdr_open() -> gdr_t;
            /// Closes the driver.
            fn gdr_close(g: gdr_t) -> c_int;
            /// Pins device memory; both tokens are 0.
            fn gdr_pin_buffer(
                g: gdr_t,
                address: c_ulong,
                size: usize,
                p2p_token: u64,
                va_space: u32,
                handle: *mut gdr_mh_t,
            ) -> c_int;
            /// Unpins device memory.
            fn gdr_unpin_buffer(g: gdr_t, handle: gdr_mh_t) -> c_int;
            /// Whether the driver revoked the memory while it was pinned.
            fn gdr_get_callback_flag(g: gdr_t, handle: gdr_mh_t, flag: *mut c_int) -> c_int;
            /// The description of pinned memory.
            fn gdr_get_info_v2(g: gdr_t, handle: gdr_mh_t, info: *mut gdr_info_v2_t) -> c_int;
            /// Maps pinned memory.
            fn gdr_map(g: gdr_t, handle: gdr_mh_t, pointer: *mut *mut c_void, size: usize) -> c_int;
            /// Unmaps pinned memory.
            fn gdr_unmap(g: gdr_t, handle: gdr_mh_t, pointer: *mut c_void, size: usize) -> c_int;
            /// Copies into a mapping, then executes a store fence.
            fn gdr_copy_to_mapping(
                handle: gdr_mh_t,
                to: *mut c_void,
                from: *const c_void,
                size: usize,
            ) -> c_int;
            /// Copies out of a mapping.
            fn gdr_copy_from_mapping(
                handle: gdr_mh_t,
                to: *mut c_void,
                from: *const c_void,
                size: usize,
            ) -> c_int;
            /// The library's version.
            fn gdr_runtime_get_version(major: *mut c_int, minor: *mut c_int);
            /// The kernel driver's version.
            fn gdr_driver_get_version(g: gdr_t, major: *mut c_int, minor: *mut c_int) -> c_int;
        }
        optional {
            /// Pins with `GDR_PIN_FLAG_*`; since 2.5.
            fn gdr_pin_buffer_v2(
                g: gdr_t,
                address: c_ulong,
                size: usize,
                flags: u32,
                handle: *mut gdr_mh_t,
            ) -> c_int;
            /// Maps with one `GDR_MAP_FLAG_*`; since 2.5.
            fn gdr_map_v2(
                g: gdr_t,
                handle: gdr_mh_t,
                pointer: *mut *mut c_void,
                size: usize,
                flags: c_int,
            ) -> c_int;
            /// The value of one `GDR_ATTR_*` of the library; since 2.5.
            fn gdr_get_attribute(g: gdr_t, attribute: c_uint, value: *mut c_int) -> c_int;
        }
    }
}
