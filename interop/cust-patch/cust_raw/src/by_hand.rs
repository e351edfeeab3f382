//! Functions that are more than a call: error texts, which must exist without the library, and
//! descriptors, in which the library returns enums.

#![allow(non_snake_case, missing_docs, clippy::missing_safety_doc)]

use std::ffi::{CStr, c_char, c_int};
use std::ptr::addr_of_mut;

use crate::driver::{absent, look};
use crate::generated::*;

/// The library's functions, with its own signatures.
#[allow(missing_docs)]
mod raw {
    use super::*;

    // The descriptors of textures and surfaces are only passed as pointers.
    driver! {
        fn cuGetErrorString(error: c_int, text: *mut *const c_char,);
        fn cuGetErrorName(error: c_int, text: *mut *const c_char,);
        fn cuArrayGetDescriptor_v2(to: *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray,);
        fn cuArray3DGetDescriptor_v2(to: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray,);
        fn cuTexObjectGetResourceDesc(to: *mut CUDA_RESOURCE_DESC, object: CUtexObject,);
        fn cuSurfObjectGetResourceDesc(to: *mut CUDA_RESOURCE_DESC, object: CUsurfObject,);
        fn cuTexObjectGetResourceViewDesc(to: *mut CUDA_RESOURCE_VIEW_DESC, object: CUtexObject,);
    }
}

/// Stores the library's text for `error`, or a text of this crate if the library has none: a caller
/// that prints an error always gets a text.
///
/// # Safety
/// `to` is null or valid.
unsafe fn text(
    function: unsafe fn(c_int, *mut *const c_char) -> CUresult,
    error: CUresult,
    to: *mut *const c_char,
    unknown: &'static CStr,
) -> CUresult {
    if to.is_null() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    let mut found = std::ptr::null();
    // SAFETY: a valid place for the address of a text that is never freed.
    let result = unsafe { function(error as c_int, &mut found) };
    if result != CUresult::CUDA_SUCCESS || found.is_null() {
        let ours = match error {
            CUresult::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND => c"libcuda lacks the function",
            _ => unknown,
        };
        found = absent().unwrap_or(ours).as_ptr();
    }
    // SAFETY: the pointer is valid by the caller's promise.
    unsafe { to.write(found) };
    CUresult::CUDA_SUCCESS
}

pub unsafe fn cuGetErrorString(error: CUresult, pStr: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe {
        text(
            raw::cuGetErrorString,
            error,
            pStr,
            c"the driver has no text for this error",
        )
    }
}

pub unsafe fn cuGetErrorName(error: CUresult, pStr: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { text(raw::cuGetErrorName, error, pStr, c"CUDA_ERROR_UNKNOWN") }
}

/// Defines functions that fill a descriptor with enums in the named fields.
macro_rules! descriptor {
    ($($name:ident($to:ident: *mut $Desc:ty, $object:ident: $Object:ty) {$($place:expr),*})*) => {$(
        pub unsafe fn $name($to: *mut $Desc, $object: $Object) -> CUresult {
            // SAFETY: the caller's promise.
            let result = unsafe { raw::$name($to, $object) };
            if result != CUresult::CUDA_SUCCESS {
                return result;
            }
            // SAFETY: a successful call has filled the descriptor; no field is read as an enum.
            $(let result = unsafe { look(result, addr_of_mut!($place)) };)*
            result
        }
    )*};
}

descriptor! {
    cuArrayGetDescriptor_v2(to: *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray) {
        (*to).Format
    }
    cuArray3DGetDescriptor_v2(to: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray) {
        (*to).Format
    }
    cuTexObjectGetResourceViewDesc(to: *mut CUDA_RESOURCE_VIEW_DESC, object: CUtexObject) {
        (*to).format
    }
}

/// Checks the enums of a resource descriptor: its type, and the format if it has one.
///
/// # Safety
/// If `result` is a success, `to` is valid and filled.
unsafe fn look_at_resource(result: CUresult, to: *mut CUDA_RESOURCE_DESC) -> CUresult {
    if result != CUresult::CUDA_SUCCESS {
        return result;
    }
    // SAFETY: the descriptor is filled; the type is checked as a number before it is read as an
    // enum, and the type selects the member of the union that is filled.
    unsafe {
        let result = look(result, addr_of_mut!((*to).resType));
        match addr_of_mut!((*to).resType).read() {
            _ if result != CUresult::CUDA_SUCCESS => result,
            CUresourcetype::CU_RESOURCE_TYPE_LINEAR => {
                look(result, addr_of_mut!((*to).res.linear.format))
            }
            CUresourcetype::CU_RESOURCE_TYPE_PITCH2D => {
                look(result, addr_of_mut!((*to).res.pitch2D.format))
            }
            _ => result,
        }
    }
}

pub unsafe fn cuTexObjectGetResourceDesc(
    pResDesc: *mut CUDA_RESOURCE_DESC,
    texObject: CUtexObject,
) -> CUresult {
    // SAFETY: the caller's promise; a successful call has filled the descriptor.
    unsafe {
        look_at_resource(
            raw::cuTexObjectGetResourceDesc(pResDesc, texObject),
            pResDesc,
        )
    }
}

pub unsafe fn cuSurfObjectGetResourceDesc(
    pResDesc: *mut CUDA_RESOURCE_DESC,
    surfObject: CUsurfObject,
) -> CUresult {
    // SAFETY: the caller's promise; a successful call has filled the descriptor.
    unsafe {
        look_at_resource(
            raw::cuSurfObjectGetResourceDesc(pResDesc, surfObject),
            pResDesc,
        )
    }
}
