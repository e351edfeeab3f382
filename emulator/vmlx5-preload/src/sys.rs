//! System calls without the functions of the C library, which are interposed; and the next
//! library's versions of these functions.

use std::arch::asm;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Executes a system call of at most six arguments. The result is that of the kernel: a negated
/// errno if it is between -4095 and -1.
///
/// # Safety
/// The kernel's use of the arguments must be sound: the caller passes on its own arguments, or
/// ensures it for this call.
#[inline]
pub unsafe fn syscall<const N: usize>(number: i64, args: [usize; N]) -> isize {
    let arg = |n: usize| args.get(n).copied().unwrap_or(0);
    let result: isize;
    // SAFETY: the kernel's calling convention; it changes rcx and r11 besides the result. What
    // the call does to memory is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") arg(0),
            in("rsi") arg(1),
            in("rdx") arg(2),
            in("r10") arg(3),
            in("r8") arg(4),
            in("r9") arg(5),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The C library's return value for a result of the kernel: -1 and `errno`, or the result.
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

/// The function with a name in the libraries after this one, if there is one. Unsafe: the caller
/// vouches for the type of the function.
macro_rules! next {
    ($name:ident as $type:ty) => {{
        static FOUND: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let at = $crate::sys::find_next(&FOUND, concat!(stringify!($name), "\0"));
        std::mem::transmute::<usize, Option<$type>>(at)
    }};
}

pub(crate) use next;

/// The address of a function of the next library, found once and cached; zero if there is none.
/// `name` ends with a zero.
pub fn find_next(found: &AtomicUsize, name: &'static str) -> usize {
    // Relaxed: every look-up has the same result.
    let mut at = found.load(Ordering::Relaxed);
    if at == 0 {
        // SAFETY: looks up a name that ends with a zero.
        at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) } as usize;
        found.store(at, Ordering::Relaxed);
    }
    at
}
