//! The interposed functions of the C library that close and duplicate descriptors. Through them the
//! library tracks the descriptors of its device files.

use std::ffi::c_int;

use crate::files::{self, File};
use crate::guard;
use crate::interpose::interpose;
use crate::sys::{next, result, syscall};

/// A duplicate of a descriptor of a device file refers to the same device file.
fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && new != old {
        files::remove(new);
        if let Some(File::Ours(context)) = files::find(old) {
            files::insert(new, context);
        }
    }
    new
}

unsafe fn close_all(first: u32, last: u32, flags: c_int) -> c_int {
    const CLOEXEC: c_int = 1 << 2;
    if flags & CLOEXEC == 0 && first <= last {
        files::remove_range(first, last);
    }
    let args = [first as usize, last as usize, flags as usize];
    // SAFETY: the request of the caller of `close_range`.
    result(unsafe { syscall(libc::SYS_close_range, args) }) as c_int
}

type Closefrom = unsafe extern "C" fn(c_int);
type Control = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;

/// `next` is the next library's function. The third argument is always passed on unchanged; a
/// command without a third argument ignores it.
unsafe fn control(next: Option<Control>, fd: c_int, command: c_int, argument: usize) -> c_int {
    let Some(next) = next else {
        return guard::missing();
    };
    // SAFETY: the promise of the caller of `fcntl`.
    let done = unsafe { next(fd, command, argument) };
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return duplicated(fd, done);
    }
    done
}

interpose! {
    close: fn(fd: c_int) -> c_int = {
        files::remove(fd);
        result(syscall(libc::SYS_close, [fd as usize])) as c_int
    };
    dup: fn(old: c_int) -> c_int =
        duplicated(old, result(syscall(libc::SYS_dup, [old as usize])) as c_int);
    dup2: fn(old: c_int, new: c_int) -> c_int =
        duplicated(old, result(syscall(libc::SYS_dup2, [old as usize, new as usize])) as c_int);
    dup3: fn(old: c_int, new: c_int, flags: c_int) -> c_int = {
        let args = [old as usize, new as usize, flags as usize];
        duplicated(old, result(syscall(libc::SYS_dup3, args)) as c_int)
    };
    close_range: fn(first: u32, last: u32, flags: c_int) -> c_int = close_all(first, last, flags);
    closefrom: fn(first: c_int) -> () = {
        files::remove_range(first.max(0) as u32, u32::MAX);
        if let Some(closefrom) = next!(closefrom as Closefrom) {
            closefrom(first);
        }
    };
    fcntl: fn(fd: c_int, command: c_int, argument: usize) -> c_int =
        control(next!(fcntl as Control), fd, command, argument);
    fcntl64: fn(fd: c_int, command: c_int, argument: usize) -> c_int =
        control(next!(fcntl64 as Control), fd, command, argument);
}
