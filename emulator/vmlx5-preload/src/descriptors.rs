//! The functions of the C library that close and duplicate descriptors, interposed so that it is
//! known which of them are device files.

use std::ffi::c_int;

use crate::files::{self, File};
use crate::guard;
use crate::interpose::next;
use crate::sys::{result, syscall};

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    files::remove(fd);
    // SAFETY: what the caller asked for.
    result(unsafe { syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) }) as c_int
}

/// A new descriptor of an open file is one of ours if the old one is.
fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && new != old {
        files::remove(new);
        if let Some(File::Ours(context)) = files::find(old) {
            files::insert(new, context);
        }
    }
    new
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(old: c_int) -> c_int {
    // SAFETY: what the caller asked for.
    let new = unsafe { syscall(libc::SYS_dup, [old as usize, 0, 0, 0, 0, 0]) };
    duplicated(old, result(new) as c_int)
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    let args = [old as usize, new as usize, 0, 0, 0, 0];
    // SAFETY: what the caller asked for.
    duplicated(
        old,
        result(unsafe { syscall(libc::SYS_dup2, args) }) as c_int,
    )
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    let args = [old as usize, new as usize, flags as usize, 0, 0, 0];
    // SAFETY: what the caller asked for.
    duplicated(
        old,
        result(unsafe { syscall(libc::SYS_dup3, args) }) as c_int,
    )
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    const CLOEXEC: c_int = 1 << 2;
    if flags & CLOEXEC == 0 && first <= last {
        files::remove_range(first, last);
    }
    let args = [first as usize, last as usize, flags as usize, 0, 0, 0];
    // SAFETY: what the caller asked for.
    result(unsafe { syscall(libc::SYS_close_range, args) }) as c_int
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    type Closefrom = unsafe extern "C" fn(c_int);
    files::remove_range(first.max(0) as u32, u32::MAX);
    if let Some(closefrom) = next!(closefrom as Closefrom) {
        // SAFETY: the caller's promise.
        unsafe { closefrom(first) };
    }
}

macro_rules! controls {
    ($($name:ident)*) => {$(
        /// The third argument is always there: passed on as it came, it is not looked at where
        /// the command has none.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, command: c_int, argument: usize) -> c_int {
            type Control = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;
            let Some(control) = next!($name as Control) else {
                return guard::missing();
            };
            // SAFETY: the caller's promise.
            let done = unsafe { control(fd, command, argument) };
            if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
                return duplicated(fd, done);
            }
            done
        }
    )*};
}

controls! { fcntl fcntl64 }
