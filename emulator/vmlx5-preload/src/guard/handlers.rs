//! The signals of faults: our handler, and the handlers that the program has installed in its own
//! view.

use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::routines::{vmlx5_guard_begin, vmlx5_guard_end, vmlx5_guard_fault};
use crate::sys::next;

/// Whether [`on_fault`] receives faults. Set once before `main`.
pub static OURS: AtomicBool = AtomicBool::new(false);

/// A slot for each of the two signals.
static THEIRS: [Mutex<Option<libc::sigaction>>; 2] = [Mutex::new(None), Mutex::new(None)];

fn slot(signal: i32) -> &'static Mutex<Option<libc::sigaction>> {
    &THEIRS[usize::from(signal == libc::SIGBUS)]
}

/// Whether our handler stays installed for a signal when the program installs another.
pub fn guarded(signal: i32) -> bool {
    matches!(signal, libc::SIGSEGV | libc::SIGBUS) && OURS.load(Ordering::Relaxed)
}

/// The program's action for a signal.
pub fn get(signal: i32) -> libc::sigaction {
    let theirs = slot(signal).lock().unwrap_or_else(|e| e.into_inner());
    // SAFETY: all zeros is the default action without flags and mask.
    theirs.unwrap_or_else(|| unsafe { MaybeUninit::zeroed().assume_init() })
}

/// Stores the program's action for a signal; returns the former one.
pub fn set(signal: i32, action: libc::sigaction) -> libc::sigaction {
    let was = get(signal);
    *slot(signal).lock().unwrap_or_else(|e| e.into_inner()) = Some(action);
    was
}

type Sigaction =
    unsafe extern "C" fn(i32, *const libc::sigaction, *mut libc::sigaction) -> libc::c_int;

/// The C library's `sigaction`.
pub fn real_sigaction() -> Option<Sigaction> {
    // SAFETY: the C library's `sigaction` is of that type.
    unsafe { next!(sigaction as Sigaction) }
}

/// Installs our handlers for the signals of faults; returns `false` on failure.
pub fn take_over() -> bool {
    let Some(sigaction) = real_sigaction() else {
        return false;
    };
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the handler accesses only its context argument, for signals of faults, which the
        // faulting thread receives.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            let mut was: libc::sigaction = std::mem::zeroed();
            sigaction(signal, &action, &mut was);
            set(signal, was);
        }
    }
    OURS.store(true, Ordering::Relaxed);
    true
}

/// Handles a fault: of a guarded access, or of the program.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the interrupted context, which outlives the handler.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let rip = &mut registers[libc::REG_RIP as usize];
    let routines = &raw const vmlx5_guard_begin as i64..&raw const vmlx5_guard_end as i64;
    if routines.contains(rip) {
        *rip = &raw const vmlx5_guard_fault as i64;
        return;
    }
    let theirs = get(signal);
    let handler = theirs.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // Restores the default action: the access faults again and ends the process.
        if let Some(sigaction) = real_sigaction() {
            // SAFETY: installs the default action.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                sigaction(signal, &default, std::ptr::null_mut());
            }
        }
    } else if theirs.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the program installed this as a handler with three arguments.
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: the program installed this as a handler with one argument.
        let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
        handler(signal);
    }
}

/// The program's `sigaction` for a signal of faults.
///
/// # Safety
/// The pointers are null or point to actions.
pub unsafe fn program_sigaction(
    signal: i32,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        let was = match new.as_ref() {
            Some(new) => set(signal, *new),
            None => get(signal),
        };
        if let Some(old) = old.as_mut() {
            *old = was;
        }
    }
    0
}
