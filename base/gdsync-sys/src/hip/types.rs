//! The types of HIP, HSA and HIPRTC. Where releases differ, the type's documentation names them.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// An opaque object of a library, identified by its address.
macro_rules! opaque {
    ($($(#[$meta:meta])* $handle:ident -> $object:ident;)*) => { $(
        #[doc = concat!("What a [`", stringify!($handle), "`] points to.")]
        #[repr(C)]
        #[derive(Debug)]
        pub struct $object {
            _opaque: [u8; 0],
        }

        $(#[$meta])*
        pub type $handle = *mut $object;
    )* };
}

opaque! {
    /// A stream of a device. Null is the default stream.
    hipStream_t -> ihipStream_t;
    /// An event.
    hipEvent_t -> ihipEvent_t;
    /// A module: loaded code.
    hipModule_t -> ihipModule_t;
    /// A kernel of a module.
    hipFunction_t -> ihipModuleSymbol_t;
    /// A graph, the result of a capture.
    hipGraph_t -> ihipGraph;
    /// A node of a graph: one operation.
    hipGraphNode_t -> hipGraphNode;
    /// A graph that streams can launch.
    hipGraphExec_t -> hipGraphExec;
    /// Physical memory made by `hipMemCreate`.
    hipMemGenericAllocationHandle_t -> ihipMemGenericAllocationHandle;
    /// A program of HIPRTC.
    hiprtcProgram -> _hiprtcProgram;
}

/// A device, by its ordinal.
pub type hipDevice_t = c_int;
/// An address in device memory, or in host memory that the device accesses.
pub type hipDeviceptr_t = *mut c_void;
/// `hipDeviceAttribute*`.
pub type hipDeviceAttribute_t = c_uint;
/// `HIP_POINTER_ATTRIBUTE_*`.
pub type hipPointer_attribute = c_uint;
/// `hipMemcpy*`, the direction of a copy.
pub type hipMemcpyKind = c_uint;
/// `hipStreamCaptureStatus*`.
pub type hipStreamCaptureStatus = c_uint;
/// `hipStreamCaptureMode*`.
pub type hipStreamCaptureMode = c_uint;
/// `hipMemHandleType*`.
pub type hipMemAllocationHandleType = c_uint;
/// `hipMemRangeHandleType*`.
pub type hipMemRangeHandleType = c_uint;
/// `hipMemAllocationGranularity*`.
pub type hipMemAllocationGranularity_flags = c_uint;
/// The return code of HIPRTC; 0 is success.
pub type hiprtcResult = c_uint;
/// The return code of HSA; 0 is success.
pub type hsa_status_t = c_uint;

/// The UUID of a device. AMD's are 16 printable characters.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct hipUUID {
    /// The bytes.
    pub bytes: [u8; 16],
}

/// The IPC handle of a device allocation, for another process of the host.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct hipIpcMemHandle_t {
    /// The bytes to send to the other process.
    pub reserved: [u8; 64],
}

/// What HIP knows about an address.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct hipPointerAttribute_t {
    /// The kind of memory. The numbers changed with HIP 6: see [`memory_kind`](Self::memory_kind).
    pub memory_type: c_uint,
    /// The ordinal of the device.
    pub device: c_int,
    /// The address that the device uses; null if it has none.
    pub device_pointer: *mut c_void,
    /// The address that the CPU uses; null if it has none.
    pub host_pointer: *mut c_void,
    /// 1 for managed memory.
    pub is_managed: c_int,
    /// The flags of the allocation.
    pub allocation_flags: c_uint,
}

/// The kind of memory at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Pinned or registered memory of the host.
    Host,
    /// Memory of a device.
    Device,
    /// Any other: managed memory, an array, memory that is not registered.
    Other,
}

impl hipPointerAttribute_t {
    /// The kind of memory, as HIP 6 and later number it.
    pub const fn memory_kind(&self) -> MemoryKind {
        match self.memory_type {
            1 => MemoryKind::Host,
            2 => MemoryKind::Device,
            _ => MemoryKind::Other,
        }
    }
}

/// The properties of a device that have no attribute, as `hipGetDevicePropertiesR0600` writes them.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy)]
pub struct hipDeviceProp_tR0600 {
    /// Properties that also have an attribute.
    pub before: [u8; 1160],
    /// The name of the architecture with its features, such as `gfx942:sramecc+:xnack-`.
    pub gcn_arch_name: [c_char; 256],
    /// More properties.
    pub between: [u8; 16],
    /// The register whose write flushes the device's HDP cache of remote writes; null if none.
    pub hdp_mem_flush: *mut c_uint,
    /// The register whose write flushes HDP for register writes; null if none.
    pub hdp_reg_flush: *mut c_uint,
    /// The remaining properties.
    pub after: [u8; 24],
}

/// The location of physical memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct hipMemLocation {
    /// `hipMemLocationType*`.
    pub kind: c_uint,
    /// The ordinal of the device.
    pub id: c_int,
}

/// The properties of an allocation of `hipMemCreate`, as HIP 6 and 7 lay them out.
///
/// HIP 5.2 exports the functions too, with another layout. Ask for
/// `hipDeviceAttributeVirtualMemoryManagementSupported` before any of them is called.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct hipMemAllocationProp {
    /// `hipMemAllocationType*`.
    pub kind: c_uint,
    /// `hipMemHandleType*`.
    pub requested_handle_type: hipMemAllocationHandleType,
    /// The location.
    pub location: hipMemLocation,
    /// Null on Linux.
    pub win32_handle_meta_data: *mut c_void,
    /// Compression: 0 for none.
    pub compression_type: u8,
    /// 1 if RDMA devices access the memory.
    pub gpu_direct_rdma_capable: u8,
    /// 0.
    pub usage: u16,
}

/// The access rights of one device to mapped memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct hipMemAccessDesc {
    /// The device.
    pub location: hipMemLocation,
    /// `hipMemAccessFlagsProt*`.
    pub flags: c_uint,
}

// Layouts that no header of HIP 5.2 has: those of HIP 6 and 7 on 64-bit Linux.
const _: () = {
    use std::mem::{offset_of, size_of};

    assert!(size_of::<hipDeviceProp_tR0600>() == 1472);
    assert!(offset_of!(hipDeviceProp_tR0600, gcn_arch_name) == 1160);
    assert!(offset_of!(hipDeviceProp_tR0600, hdp_mem_flush) == 1432);
    assert!(size_of::<hipMemAllocationProp>() == 32);
    assert!(offset_of!(hipMemAllocationProp, location) == 8);
    assert!(offset_of!(hipMemAllocationProp, win32_handle_meta_data) == 16);
    assert!(offset_of!(hipMemAllocationProp, compression_type) == 24);
    assert!(offset_of!(hipMemAllocationProp, gpu_direct_rdma_capable) == 25);
    assert!(size_of::<super::HipResult>() == 4);
};
