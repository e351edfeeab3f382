//! The program's memory, reached without trust: what is not there is a fault of the NIC's access
//! and not of the process.
//!
//! All accesses are made by a few routines of assembly that use no stack. A fault in one of them
//! is turned into its return; a fault anywhere else goes to the handler that the program
//! installed. Where that cannot be, with sanitizers for one, memory is reached by system calls
//! (`VMLX5_GUARD=syscall`).

use std::arch::global_asm;
use std::sync::Arc;
use std::sync::OnceLock;

use rustix::io::Errno;
use vmlx5_core::{Dma, DmaFault};

use crate::config::Guard;
use crate::mapping::Mapping;
use crate::sys::{self, syscall};

// Every routine returns a value in rax, and in rdx whether it faulted. None of them touches the
// stack, so that a fault at any of their instructions may go on at `vmlx5_guard_fault`.
global_asm!(
    ".pushsection .text.vmlx5_guard,\"ax\",@progbits",
    ".hidden vmlx5_guard_begin",
    ".globl vmlx5_guard_begin",
    "vmlx5_guard_begin:",
    // Copies rdx bytes, a multiple of 16, from rsi to rdi, in ascending order.
    ".hidden vmlx5_guard_copy",
    ".globl vmlx5_guard_copy",
    "vmlx5_guard_copy:",
    "mov rcx, rdx",
    "shr rcx, 6",
    "jz 3f",
    "2:",
    "movdqu xmm0, [rsi]",
    "movdqu xmm1, [rsi + 16]",
    "movdqu xmm2, [rsi + 32]",
    "movdqu xmm3, [rsi + 48]",
    "movdqu [rdi], xmm0",
    "movdqu [rdi + 16], xmm1",
    "movdqu [rdi + 32], xmm2",
    "movdqu [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "dec rcx",
    "jnz 2b",
    "3:",
    "mov rcx, rdx",
    "and rcx, 48",
    "jz 5f",
    "4:",
    "movdqu xmm0, [rsi]",
    "movdqu [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "sub rcx, 16",
    "jnz 4b",
    "5:",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_load8",
    ".globl vmlx5_guard_load8",
    "vmlx5_guard_load8:",
    "movzx eax, byte ptr [rdi]",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_load16",
    ".globl vmlx5_guard_load16",
    "vmlx5_guard_load16:",
    "movzx eax, word ptr [rdi]",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_load32",
    ".globl vmlx5_guard_load32",
    "vmlx5_guard_load32:",
    "mov eax, dword ptr [rdi]",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_load64",
    ".globl vmlx5_guard_load64",
    "vmlx5_guard_load64:",
    "mov rax, qword ptr [rdi]",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_store8",
    ".globl vmlx5_guard_store8",
    "vmlx5_guard_store8:",
    "mov byte ptr [rdi], sil",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_store16",
    ".globl vmlx5_guard_store16",
    "vmlx5_guard_store16:",
    "mov word ptr [rdi], si",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_store32",
    ".globl vmlx5_guard_store32",
    "vmlx5_guard_store32:",
    "mov dword ptr [rdi], esi",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_store64",
    ".globl vmlx5_guard_store64",
    "vmlx5_guard_store64:",
    "mov qword ptr [rdi], rsi",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_swap64",
    ".globl vmlx5_guard_swap64",
    "vmlx5_guard_swap64:",
    "mov rax, rsi",
    "xchg qword ptr [rdi], rax",
    "xor edx, edx",
    "ret",
    // Stores rdx where rsi was.
    ".hidden vmlx5_guard_compare_swap64",
    ".globl vmlx5_guard_compare_swap64",
    "vmlx5_guard_compare_swap64:",
    "mov rax, rsi",
    "lock cmpxchg qword ptr [rdi], rdx",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_fetch_add64",
    ".globl vmlx5_guard_fetch_add64",
    "vmlx5_guard_fetch_add64:",
    "mov rax, rsi",
    "lock xadd qword ptr [rdi], rax",
    "xor edx, edx",
    "ret",
    // Writes a byte as it is.
    ".hidden vmlx5_guard_touch",
    ".globl vmlx5_guard_touch",
    "vmlx5_guard_touch:",
    "lock or byte ptr [rdi], 0",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_fault",
    ".globl vmlx5_guard_fault",
    "vmlx5_guard_fault:",
    "xor eax, eax",
    "mov edx, 1",
    "ret",
    ".hidden vmlx5_guard_end",
    ".globl vmlx5_guard_end",
    "vmlx5_guard_end:",
    ".popsection",
);

/// What a routine returns.
#[repr(C)]
#[derive(Clone, Copy)]
struct Outcome {
    value: u64,
    fault: u64,
}

unsafe extern "C" {
    static vmlx5_guard_begin: u8;
    static vmlx5_guard_fault: u8;
    static vmlx5_guard_end: u8;
    fn vmlx5_guard_copy(to: u64, from: u64, len: u64) -> Outcome;
    fn vmlx5_guard_load8(at: u64) -> Outcome;
    fn vmlx5_guard_load16(at: u64) -> Outcome;
    fn vmlx5_guard_load32(at: u64) -> Outcome;
    fn vmlx5_guard_load64(at: u64) -> Outcome;
    fn vmlx5_guard_store8(at: u64, value: u64) -> Outcome;
    fn vmlx5_guard_store16(at: u64, value: u64) -> Outcome;
    fn vmlx5_guard_store32(at: u64, value: u64) -> Outcome;
    fn vmlx5_guard_store64(at: u64, value: u64) -> Outcome;
    fn vmlx5_guard_swap64(at: u64, value: u64) -> Outcome;
    fn vmlx5_guard_compare_swap64(at: u64, current: u64, new: u64) -> Outcome;
    fn vmlx5_guard_fetch_add64(at: u64, add: u64) -> Outcome;
    fn vmlx5_guard_touch(at: u64) -> Outcome;
}

/// A fault happened.
pub struct Fault;

impl Outcome {
    #[inline]
    fn get(self) -> Result<u64, Fault> {
        if self.fault == 0 {
            Ok(self.value)
        } else {
            Err(Fault)
        }
    }
}

/// How memory is reached; before the start it is not.
static GUARD: OnceLock<Guard> = OnceLock::new();

/// The program's handlers of faults, as it believes them installed.
pub mod handlers {
    use std::mem::MaybeUninit;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// True once faults come to [`super::on_fault`]. Set once before `main`.
    pub static OURS: AtomicBool = AtomicBool::new(false);

    /// A slot for each of the two signals.
    static THEIRS: [Mutex<Option<libc::sigaction>>; 2] = [Mutex::new(None), Mutex::new(None)];

    fn slot(signal: i32) -> &'static Mutex<Option<libc::sigaction>> {
        &THEIRS[usize::from(signal == libc::SIGBUS)]
    }

    /// True of a signal whose handler is ours, whatever the program installs.
    pub fn guarded(signal: i32) -> bool {
        matches!(signal, libc::SIGSEGV | libc::SIGBUS) && OURS.load(Ordering::Relaxed)
    }

    /// The program's action for a signal.
    pub fn get(signal: i32) -> libc::sigaction {
        let theirs = slot(signal).lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: all zeros is the default action without flags and mask.
        theirs.unwrap_or_else(|| unsafe { MaybeUninit::zeroed().assume_init() })
    }

    /// Remembers the program's action for a signal; returns the former.
    pub fn set(signal: i32, action: libc::sigaction) -> libc::sigaction {
        let was = get(signal);
        *slot(signal).lock().unwrap_or_else(|e| e.into_inner()) = Some(action);
        was
    }
}

type Sigaction =
    unsafe extern "C" fn(i32, *const libc::sigaction, *mut libc::sigaction) -> libc::c_int;

/// The C library's `sigaction`.
pub fn real_sigaction() -> Option<Sigaction> {
    static REAL: OnceLock<Option<Sigaction>> = OnceLock::new();
    *REAL.get_or_init(|| {
        // SAFETY: looks up a name; what is found is the C library's function of that name.
        unsafe {
            let found = libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr());
            (!found.is_null()).then(|| std::mem::transmute::<*mut libc::c_void, Sigaction>(found))
        }
    })
}

/// Takes over the signals of faults.
pub fn start(guard: Guard) {
    if guard == Guard::Signal {
        let Some(sigaction) = real_sigaction() else {
            return;
        };
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: a handler that touches nothing but the context it is given, for signals of
            // faults, which come on the faulting thread.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                let mut was: libc::sigaction = std::mem::zeroed();
                sigaction(signal, &action, &mut was);
                handlers::set(signal, was);
            }
        }
        handlers::OURS.store(true, std::sync::atomic::Ordering::Relaxed);
    }
    let _ = GUARD.set(guard);
}

/// A fault: of a guarded access, or of the program's own.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the interrupted context, which outlives the handler.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let rip = &mut registers[libc::REG_RIP as usize];
    let routines = &raw const vmlx5_guard_begin as i64..&raw const vmlx5_guard_end as i64;
    if routines.contains(rip) {
        *rip = &raw const vmlx5_guard_fault as i64;
        return;
    }
    let theirs = handlers::get(signal);
    let handler = theirs.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // Back to what happens without us: the access faults again, and ends the process.
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

/// One piece to be copied by the kernel.
fn by_syscall(number: i64, ours: u64, theirs: u64, len: u64) -> Result<(), Fault> {
    let (ours, theirs) = ([ours, len], [theirs, len]);
    let pid = std::process::id() as usize;
    let args = [
        pid,
        ours.as_ptr() as usize,
        1,
        theirs.as_ptr() as usize,
        1,
        0,
    ];
    // SAFETY: copies between a buffer of the caller's and memory that may be there or not.
    match unsafe { syscall(number, args) } {
        done if done == len as isize => Ok(()),
        _ => Err(Fault),
    }
}

fn kernel_copies() -> bool {
    GUARD.get() == Some(&Guard::Syscall)
}

const READV: i64 = libc::SYS_process_vm_readv;
const WRITEV: i64 = libc::SYS_process_vm_writev;

/// Copies out of the program's memory; aligned pieces of it are read at once.
pub fn read(at: u64, into: &mut [u8]) -> Result<(), Fault> {
    let to = into.as_mut_ptr() as u64;
    if kernel_copies() {
        return by_syscall(READV, to, at, into.len() as u64);
    }
    pieces(at, into.len() as u64, |offset, size| {
        let (from, to) = (at + offset, to + offset);
        // SAFETY: guarded; what is written lies in `into`.
        unsafe {
            if size >= 16 {
                return vmlx5_guard_copy(to, from, size).get().map(drop);
            }
            let value = match size {
                8 => vmlx5_guard_load64(from),
                4 => vmlx5_guard_load32(from),
                2 => vmlx5_guard_load16(from),
                _ => vmlx5_guard_load8(from),
            };
            let bytes = value.get()?.to_le_bytes();
            let into = &mut into[offset as usize..][..size as usize];
            into.copy_from_slice(&bytes[..size as usize]);
        }
        Ok(())
    })
}

/// Copies into the program's memory, in ascending order; aligned pieces of it are written at once.
pub fn write(at: u64, from: &[u8]) -> Result<(), Fault> {
    let source = from.as_ptr() as u64;
    if kernel_copies() {
        return by_syscall(WRITEV, source, at, from.len() as u64);
    }
    pieces(at, from.len() as u64, |offset, size| {
        let to = at + offset;
        let from = &from[offset as usize..][..size as usize];
        let mut bytes = [0; 8];
        if size < 16 {
            bytes[..from.len()].copy_from_slice(from);
        }
        let value = u64::from_le_bytes(bytes);
        // SAFETY: guarded; memory of the program that it gave to the NIC to write to.
        let done = unsafe {
            match size {
                1 => vmlx5_guard_store8(to, value),
                2 => vmlx5_guard_store16(to, value),
                4 => vmlx5_guard_store32(to, value),
                8 => vmlx5_guard_store64(to, value),
                _ => vmlx5_guard_copy(to, from.as_ptr() as u64, size),
            }
        };
        done.get().map(drop)
    })
}

/// The pieces of `at .. at + len`: a multiple of 16 bytes from an address aligned to 8, and
/// aligned ones of 8, 4, 2 or 1 bytes around it.
#[inline]
fn pieces(
    at: u64,
    len: u64,
    mut each: impl FnMut(u64, u64) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut done = 0;
    while done < len {
        let (here, left) = (at + done, len - done);
        let mut size = 8;
        if here & 7 == 0 && left >= 16 {
            size = left & !15;
        } else {
            while here & (size - 1) != 0 || size > left {
                size /= 2;
            }
        }
        each(done, size)?;
        done += size;
    }
    Ok(())
}

/// True if all pages of `at .. at + len` are there; `writable`: and may be written to.
pub fn present(at: u64, len: u64, writable: bool) -> bool {
    const PAGE: u64 = 4096;
    let Some(end) = at.checked_add(len) else {
        return false;
    };
    let mut page = at;
    while page < end {
        let mut byte = [0];
        let there = if writable && !kernel_copies() {
            // SAFETY: guarded; the byte stays as it is, whoever writes it meanwhile.
            unsafe { vmlx5_guard_touch(page).get().is_ok() }
        } else {
            read(page, &mut byte).is_ok()
        };
        if !there {
            return false;
        }
        page = (page & !(PAGE - 1)) + PAGE;
    }
    true
}

/// A span of the program's memory.
pub struct Own {
    pub base: u64,
    pub len: u64,
}

impl Own {
    fn fault(&self, offset: u64, len: u64) -> DmaFault {
        DmaFault {
            offset,
            len,
            limit: self.len,
        }
    }

    #[inline]
    fn at(&self, offset: u64, len: u64, align: u64) -> Result<u64, DmaFault> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let at = self.base.wrapping_add(offset);
        if fits && at & (align - 1) == 0 {
            Ok(at)
        } else {
            Err(self.fault(offset, len))
        }
    }

    /// An aligned word, changed: by `guarded`, or read and written by the kernel.
    fn word(
        &self,
        offset: u64,
        guarded: impl FnOnce(u64) -> Outcome,
        change: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<u64, DmaFault> {
        let at = self.at(offset, 8, 8)?;
        let fault = |_| self.fault(offset, 8);
        if !kernel_copies() {
            return guarded(at).get().map_err(fault);
        }
        let mut bytes = [0; 8];
        read(at, &mut bytes).map_err(fault)?;
        let was = u64::from_ne_bytes(bytes);
        if let Some(new) = change(was) {
            write(at, &new.to_ne_bytes()).map_err(fault)?;
        }
        Ok(was)
    }
}

impl Dma for Own {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        let len = into.len() as u64;
        let at = self.at(offset, len, 1)?;
        read(at, into).map_err(|_| self.fault(offset, len))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DmaFault> {
        let len = from.len() as u64;
        let at = self.at(offset, len, 1)?;
        write(at, from).map_err(|_| self.fault(offset, len))
    }

    // Loads acquire and stores release: on this architecture every load and store does, and the
    // routines are calls that the compiler moves nothing across.
    fn load32(&self, offset: u64) -> Result<u32, DmaFault> {
        let at = self.at(offset, 4, 4)?;
        let mut bytes = [0; 4];
        read(at, &mut bytes).map_err(|_| self.fault(offset, 4))?;
        Ok(u32::from_ne_bytes(bytes))
    }

    fn load64(&self, offset: u64) -> Result<u64, DmaFault> {
        let at = self.at(offset, 8, 8)?;
        let mut bytes = [0; 8];
        read(at, &mut bytes).map_err(|_| self.fault(offset, 8))?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn store32(&self, offset: u64, value: u32) -> Result<(), DmaFault> {
        let at = self.at(offset, 4, 4)?;
        write(at, &value.to_ne_bytes()).map_err(|_| self.fault(offset, 4))
    }

    fn swap64(&self, offset: u64, value: u64) -> Result<u64, DmaFault> {
        // SAFETY: guarded; a word of the program's that it gave to the NIC.
        let swap = |at| unsafe { vmlx5_guard_swap64(at, value) };
        self.word(offset, swap, |_| Some(value))
    }

    fn compare_swap64(&self, offset: u64, current: u64, new: u64) -> Result<u64, DmaFault> {
        // SAFETY: as in `swap64`.
        let swap = |at| unsafe { vmlx5_guard_compare_swap64(at, current, new) };
        self.word(offset, swap, |was| (was == current).then_some(new))
    }

    fn fetch_add64(&self, offset: u64, add: u64) -> Result<u64, DmaFault> {
        // SAFETY: as in `swap64`.
        let increase = |at| unsafe { vmlx5_guard_fetch_add64(at, add) };
        self.word(offset, increase, |was| Some(was.wrapping_add(add)))
    }
}

/// The process as the interface sees it.
pub struct Process;

impl vmlx5_uverbs::User for Process {
    fn memory(&self, addr: u64, len: u64, writable: bool) -> Result<Arc<dyn Dma>, Errno> {
        if present(addr, len, writable) {
            Ok(Arc::new(Own { base: addr, len }))
        } else {
            Err(Errno::FAULT)
        }
    }

    fn dmabuf(
        &self,
        fd: i32,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Arc<dyn Dma>, Errno> {
        crate::mapping::of_descriptor(fd, offset, len, writable)
    }

    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), Errno> {
        read(addr, into).map_err(|_| Errno::FAULT)
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), Errno> {
        write(addr, from).map_err(|_| Errno::FAULT)
    }

    fn doorbell_page(&self) -> Result<vmlx5_uverbs::DoorbellPage, Errno> {
        use rustix::fs::MemfdFlags;
        let file = rustix::fs::memfd_create("vmlx5-uar", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, 4096)?;
        let memory = Arc::new(Mapping::new(&file, 0, 4096, true)?);
        Ok(vmlx5_uverbs::DoorbellPage { file, memory })
    }

    fn ring(&self) {
        crate::engine::ring();
    }
}

/// `sigaction` of the program for a signal of faults.
///
/// # Safety
/// The pointers are null or of actions.
pub unsafe fn program_sigaction(
    signal: i32,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        let was = match new.as_ref() {
            Some(new) => handlers::set(signal, *new),
            None => handlers::get(signal),
        };
        if let Some(old) = old.as_mut() {
            *old = was;
        }
    }
    0
}

/// `errno` for what has no implementation to fall back to.
pub fn missing() -> i32 {
    sys::fail(libc::ENOSYS) as i32
}
