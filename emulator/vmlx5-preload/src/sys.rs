//! System calls as they are, without the C library: its functions are the ones that are
//! interposed.

use std::arch::asm;

/// Carries out a system call. The result is what the kernel returned: an error number negated,
/// if it is between -4095 and -1.
///
/// # Safety
/// What the kernel does with the arguments must be sound: the caller passes on what it was
/// called with, or knows the call.
#[inline]
pub unsafe fn syscall(number: i64, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; it changes rcx and r11 besides the result. What
    // the call does to memory is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// What the C library returns for a result of the kernel: -1 and `errno`, or the result.
#[inline]
pub fn result(raw: isize) -> isize {
    if (-4095..0).contains(&raw) {
        fail(-raw as i32)
    } else {
        raw
    }
}

/// Sets `errno`; returns -1.
#[inline]
pub fn fail(errno: i32) -> isize {
    // SAFETY: the C library's `errno` of this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}
