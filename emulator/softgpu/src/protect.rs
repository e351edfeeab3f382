//! Memory protection keys: host code that accesses device memory faults.
//!
//! A key marks pages; a register of each thread selects the keys that the thread may use. The
//! kernel starts every thread with access to key 0 only. Pages under our key are therefore not
//! accessible until a [`DeviceAccess`] guard opens them on the thread that executes a kernel. One
//! key serves the whole process. If CPU or kernel has no keys, device memory is accessible.

use std::ffi::c_void;
use std::sync::OnceLock;

/// The key of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key(u32);

impl Key {
    /// The key, allocated on the first call; `None` if the system has none (left).
    pub(crate) fn get() -> Option<Key> {
        static KEY: OnceLock<Option<Key>> = OnceLock::new();
        *KEY.get_or_init(|| {
            if !register::available() {
                return None;
            }
            // SAFETY: takes no pointers; denies the calling thread access to the new key.
            let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0_u64, PKEY_DISABLE_ACCESS) };
            u32::try_from(key).ok().map(Key)
        })
    }

    /// Puts a mapping under the key, readable and writable for threads with access to the key.
    ///
    /// # Safety
    /// The pages are a mapping of the caller's own, and no code relies on plain access to them.
    pub(crate) unsafe fn protect(self, ptr: *mut c_void, len: usize) -> rustix::io::Result<()> {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        // SAFETY: the caller owns the mapping.
        let rc =
            unsafe { libc::syscall(libc::SYS_pkey_mprotect, ptr, len, prot, u64::from(self.0)) };
        if rc == 0 {
            Ok(())
        } else {
            let errno = std::io::Error::last_os_error().raw_os_error();
            Err(rustix::io::Errno::from_raw_os_error(
                errno.unwrap_or(libc::EINVAL),
            ))
        }
    }
}

/// The access-disable right of a key, as `pkey_alloc` takes it.
const PKEY_DISABLE_ACCESS: u64 = 1;

/// While the guard lives, its thread may access device memory.
#[derive(Debug)]
pub(crate) struct DeviceAccess {
    before: u32,
    key: Option<Key>,
    /// The register belongs to a thread, so the guard must stay on that thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl DeviceAccess {
    /// Opens memory under `key` to this thread; does nothing without a key.
    #[inline]
    pub(crate) fn enable(key: Option<Key>) -> DeviceAccess {
        let mut before = 0;
        if let Some(Key(n)) = key {
            before = register::read();
            // Two bits per key: access disabled, writes disabled.
            register::write(before & !(0b11 << (2 * n)));
        }
        DeviceAccess {
            before,
            key,
            _thread: std::marker::PhantomData,
        }
    }
}

impl Drop for DeviceAccess {
    #[inline]
    fn drop(&mut self) {
        if self.key.is_some() {
            register::write(self.before);
        }
    }
}

/// The register of key rights (PKRU).
#[cfg(target_arch = "x86_64")]
mod register {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;

    /// Whether CPU and operating system have keys (CPUID leaf 7, ECX bit 4: OSPKE).
    pub(super) fn available() -> bool {
        __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).ecx & (1 << 4) != 0
    }

    #[inline]
    pub(super) fn read() -> u32 {
        let rights: u32;
        // SAFETY: called only where a key was allocated, so OSPKE is set and the instruction
        // exists; it reads a register and clears EDX.
        unsafe {
            asm!("rdpkru", in("ecx") 0, out("eax") rights, out("edx") _, options(nomem, nostack));
        }
        rights
    }

    #[inline]
    pub(super) fn write(rights: u32) {
        // SAFETY: as for `read`; ECX and EDX must be zero. Memory accesses are not moved across,
        // as the block is not marked `nomem`.
        unsafe {
            asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0, options(nostack));
        }
    }
}

/// Other CPUs: this crate supports no keys there.
#[cfg(not(target_arch = "x86_64"))]
mod register {
    pub(super) fn available() -> bool {
        false
    }
    pub(super) fn read() -> u32 {
        0
    }
    pub(super) fn write(_rights: u32) {}
}
