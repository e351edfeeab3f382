//! The library, the look-up of its functions, and the check of the enums that it returns.

use std::ffi::{CStr, CString, OsString, c_int};
use std::sync::OnceLock;

use libloading::Library;

use crate::generated::CUresult;

/// The file that is opened unless `GDS_CUDA_LIB` names another. `libcuda.so` is not used, because
/// it may be the stub of a toolkit.
const SONAME: &str = "libcuda.so.1";

/// The library, after the first use. It is never closed, because drivers do not support that well.
static LIBRARY: OnceLock<Result<Library, CString>> = OnceLock::new();

fn library() -> &'static Result<Library, CString> {
    LIBRARY.get_or_init(|| {
        let file = std::env::var_os("GDS_CUDA_LIB").unwrap_or_else(|| OsString::from(SONAME));
        if file.is_empty() {
            // With an empty path, the linker would open the program itself.
            return Err(c"GDS_CUDA_LIB is empty, which names no library".to_owned());
        }
        // SAFETY: a program that uses this crate accepts that the library's initialisers run.
        unsafe { Library::new(&file) }.map_err(|error| {
            // The source of the error contains the loader's text.
            let why = match std::error::Error::source(&error) {
                Some(source) => format!("{error}: {source}"),
                None => error.to_string(),
            };
            let why = format!("{}: {why}", file.display()).replace('\0', "");
            CString::new(why).unwrap_or_default()
        })
    })
}

/// The reason for which the library could not be opened; `None` if it is open.
pub fn absent() -> Option<&'static CStr> {
    library().as_ref().err().map(CString::as_c_str)
}

/// Returns the function `name`.
///
/// # Errors
/// The result to return in place of the function's.
///
/// # Safety
/// `F` is a pointer to a C function with the signature of `name` (with its final 0).
pub(crate) unsafe fn function<F: Copy>(name: &[u8]) -> Result<F, CUresult> {
    let Ok(library) = library() else {
        return Err(CUresult::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED);
    };
    // SAFETY: the caller's promise.
    match unsafe { library.get::<F>(name) } {
        Ok(symbol) => Ok(*symbol),
        Err(_) => Err(CUresult::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND),
    }
}

/// A closed enum of the API and its numbers.
///
/// # Safety
/// The type has four bytes, and every number in `NUMBERS` is a value of the enum.
pub(crate) unsafe trait Listed: Copy {
    /// The numbers that the enum lists.
    const NUMBERS: &'static [c_int];

    /// The value for a number.
    fn of(number: c_int) -> Option<Self> {
        let listed = Self::NUMBERS.contains(&number);
        // SAFETY: the trait's promise.
        listed.then(|| unsafe { std::mem::transmute_copy(&number) })
    }
}

/// Converts a number that the library returned as a result.
pub(crate) fn result(number: c_int) -> CUresult {
    CUresult::of(number).unwrap_or(CUresult::CUDA_ERROR_UNKNOWN)
}

/// Checks the enum that a call with this `result` may have stored through `at`.
///
/// # Safety
/// `at` is null, or it is a valid pointer if `result` is a success, and the call has stored a
/// number through it.
pub(crate) unsafe fn look<E: Listed>(result: CUresult, at: *mut E) -> CUresult {
    if result != CUresult::CUDA_SUCCESS || at.is_null() {
        return result;
    }
    let at = at.cast::<c_int>();
    // SAFETY: the pointer is valid by the caller's promise, and the value is read as the integer
    // that C uses.
    if E::NUMBERS.contains(&unsafe { at.read() }) {
        return result;
    }
    // SAFETY: as above.
    unsafe { at.write(E::NUMBERS[0]) };
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

/// Defines each function of the list: looks it up once, calls it, and checks its result and the
/// enums that it stores through the arguments in `listed(..)`.
macro_rules! driver {
    ($($(#[listed($($out:ident),*)])? fn $name:ident($($arg:ident: $ty:ty,)*);)*) => {$(
        pub unsafe fn $name($($arg: $ty),*) -> CUresult {
            type Function = unsafe extern "C" fn($($ty),*) -> std::ffi::c_int;
            static FUNCTION: std::sync::OnceLock<Result<Function, CUresult>> =
                std::sync::OnceLock::new();
            let name = concat!(stringify!($name), "\0").as_bytes();
            // SAFETY: the type is the header's.
            match FUNCTION.get_or_init(|| unsafe { crate::driver::function(name) }) {
                Err(result) => *result,
                Ok(function) => {
                    // SAFETY: the caller keeps the function's rules.
                    let result = crate::driver::result(unsafe { function($($arg),*) });
                    // SAFETY: a successful call has stored a number where the caller requested one.
                    $($(let result = unsafe { crate::driver::look(result, $out) };)*)?
                    result
                }
            }
        }
    )*};
}

/// Asserts the size and the alignment of each type of the list.
macro_rules! layouts {
    ($($name:ident: $size:literal, $align:literal;)*) => {$(
        const _: () = assert!(size_of::<$name>() == $size && align_of::<$name>() == $align);
    )*};
}

/// Lists the numbers of each enum.
macro_rules! listed {
    ($($name:ident: $($number:literal)*;)*) => {$(
        const _: () = assert!(size_of::<$name>() == 4);
        // SAFETY: the size of four bytes is asserted; the numbers are those of the enum.
        unsafe impl crate::driver::Listed for $name {
            const NUMBERS: &'static [std::ffi::c_int] = &[$($number as i64 as std::ffi::c_int),*];
        }
    )*};
}
