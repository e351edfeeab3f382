//! The library, the look-up of its functions, and the check of what it hands out.

use std::ffi::{CStr, CString, OsString, c_int};
use std::sync::OnceLock;

use libloading::Library;

use crate::generated::CUresult;

/// The file that is opened unless `GDS_CUDA_LIB` names another. Not `libcuda.so`, which may be
/// the stub of a toolkit.
const SONAME: &str = "libcuda.so.1";

/// The library, once somebody asked for it. It is never closed: drivers do not take it well.
static LIBRARY: OnceLock<Result<Library, CString>> = OnceLock::new();

fn library() -> &'static Result<Library, CString> {
    LIBRARY.get_or_init(|| {
        let file = std::env::var_os("GDS_CUDA_LIB").unwrap_or_else(|| OsString::from(SONAME));
        if file.is_empty() {
            // The linker would hand out the program itself.
            return Err(c"GDS_CUDA_LIB is empty, which names no library".to_owned());
        }
        // SAFETY: running the library's initialisers is what the program asks for by using it.
        unsafe { Library::new(&file) }.map_err(|error| {
            // The loader's own words are in the source.
            let why = match std::error::Error::source(&error) {
                Some(source) => format!("{error}: {source}"),
                None => error.to_string(),
            };
            let why = format!("{}: {why}", file.display()).replace('\0', "");
            CString::new(why).unwrap_or_default()
        })
    })
}

/// Why the library is not here, or `None` if it is.
pub fn absent() -> Option<&'static CStr> {
    library().as_ref().err().map(CString::as_c_str)
}

/// The function `name`.
///
/// # Errors
/// The result to return in its place.
///
/// # Safety
/// `F` is a pointer to a C function as `name` (with its final 0) is one.
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

/// A closed enum of the API, with its numbers.
///
/// # Safety
/// Four bytes, and every number in `NUMBERS` is one of the enum's.
pub(crate) unsafe trait Listed: Copy {
    /// The numbers it lists.
    const NUMBERS: &'static [c_int];

    /// The value of a number.
    fn of(number: c_int) -> Option<Self> {
        let listed = Self::NUMBERS.contains(&number);
        // SAFETY: the trait's promise.
        listed.then(|| unsafe { std::mem::transmute_copy(&number) })
    }
}

/// A result as the library returned it.
pub(crate) fn result(number: c_int) -> CUresult {
    CUresult::of(number).unwrap_or(CUresult::CUDA_ERROR_UNKNOWN)
}

/// Looks at the enum that a call that ended with `result` may have stored through `at`.
///
/// # Safety
/// `at` is null or, if `result` is a success, a valid pointer through which a number has been
/// stored.
pub(crate) unsafe fn look<E: Listed>(result: CUresult, at: *mut E) -> CUresult {
    if result != CUresult::CUDA_SUCCESS || at.is_null() {
        return result;
    }
    let at = at.cast::<c_int>();
    // SAFETY: valid by the caller's promise, and read as the integer that C knows.
    if E::NUMBERS.contains(&unsafe { at.read() }) {
        return result;
    }
    // SAFETY: as above.
    unsafe { at.write(E::NUMBERS[0]) };
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

/// Defines each function of the list: looked up once, called, its result and what it hands out
/// in the arguments `listed(..)` checked.
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
                    // SAFETY: a success has stored a number where the caller wants one.
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

/// Says which numbers each enum of the list has.
macro_rules! listed {
    ($($name:ident: $($number:literal)*;)*) => {$(
        const _: () = assert!(size_of::<$name>() == 4);
        // SAFETY: four bytes, asserted; the numbers are the enum's own.
        unsafe impl crate::driver::Listed for $name {
            const NUMBERS: &'static [std::ffi::c_int] = &[$($number as i64 as std::ffi::c_int),*];
        }
    )*};
}
