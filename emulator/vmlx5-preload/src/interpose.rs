//! The functions of the C library that are interposed. Each does its work by the system call,
//! or asks the next library for the function of that name, unless a device file is meant.
//!
//! `open` and its like take a mode only if a file is to be made; defined with the mode always
//! there they are called the same way on this architecture.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use libc::{mode_t, off_t, size_t, ssize_t};

use crate::config::{self, Abi};
use crate::files::{self, File};
use crate::sys::{fail, result, syscall};
use crate::{engine, guard, process, trace};

const DEVICE: &[u8] = b"/dev/infiniband/uverbs";
const CLASS: &[u8] = b"/sys/class/infiniband";
const NETLINK_RDMA: c_int = 20;
/// The only ioctl of device files.
const RDMA_VERBS_IOCTL: u64 = 0xc018_1b01;

/// What a path means.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for the length of a call, where nothing may be allocated"
)]
enum Path {
    /// Itself.
    Plain,
    /// A device file.
    Device(u32),
    /// A file of the tree.
    Tree([u8; 512]),
}

impl Path {
    /// # Safety
    /// `path` is a C string.
    unsafe fn of(path: *const c_char) -> Path {
        if path.is_null() {
            return Path::Plain;
        }
        // SAFETY: the caller's promise; no byte after the first difference is looked at.
        let begins = |with: &[u8]| unsafe {
            let mut bytes = with.iter().enumerate();
            bytes.all(|(i, &b)| *path.add(i) as u8 == b)
        };
        let (device, class) = (begins(DEVICE), begins(CLASS));
        if !device && !class {
            return Path::Plain;
        }
        let Some(setup) = config::setup() else {
            return Path::Plain;
        };
        // SAFETY: the caller's promise.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        if device {
            let number = std::str::from_utf8(&path[DEVICE.len()..]).ok();
            let number = number.and_then(|n| n.parse().ok());
            return match number {
                Some(n) if n < setup.config.fabric.devices => Path::Device(n),
                _ => Path::Plain,
            };
        }
        let rest = &path[CLASS.len()..];
        if !(rest.is_empty() || rest.starts_with(b"/") || rest.starts_with(b"_verbs")) {
            return Path::Plain;
        }
        let mut place = [0; 512];
        let below = &path[b"/sys".len()..];
        let len = setup.tree.len() + below.len();
        if len >= place.len() {
            return Path::Plain;
        }
        place[..setup.tree.len()].copy_from_slice(&setup.tree);
        place[setup.tree.len()..len].copy_from_slice(below);
        Path::Tree(place)
    }
}

const NULL: &CStr = c"/dev/null";

/// Opens a path as it is meant.
unsafe fn open_at(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let open = |dir: c_int, path: *const c_char| {
        let args = [
            dir as usize,
            path as usize,
            flags as usize,
            mode as usize,
            0,
            0,
        ];
        // SAFETY: what the caller of `open` asked for, or a path of ours.
        result(unsafe { syscall(libc::SYS_openat, args) }) as c_int
    };
    // SAFETY: the caller of `open` gave a C string.
    match unsafe { Path::of(path) } {
        Path::Plain => open(dir, path),
        Path::Tree(place) => open(libc::AT_FDCWD, place.as_ptr().cast()),
        Path::Device(number) => {
            let context = match engine::device(number) {
                Ok(device) => device.open(),
                Err(errno) => return fail(errno) as c_int,
            };
            let fd = open(libc::AT_FDCWD, NULL.as_ptr());
            if fd >= 0 {
                files::insert(fd, Arc::new(context));
            }
            fd
        }
    }
}

macro_rules! opens {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
        }
    )*};
}

opens! { open open64 }

macro_rules! opens_at {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            dir: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { open_at(dir, path, flags, mode) }
        }
    )*};
}

opens_at! { openat openat64 }

macro_rules! checked_opens {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { open_at(libc::AT_FDCWD, path, flags, 0) }
        }
    )*};
}

checked_opens! { __open_2 __open64_2 }

macro_rules! checked_opens_at {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { open_at(dir, path, flags, 0) }
        }
    )*};
}

checked_opens_at! { __openat_2 __openat64_2 }

/// `newfstatat` on a path as it is meant.
unsafe fn stat_at(dir: c_int, path: *const c_char, at: *mut c_void, flags: c_int) -> c_int {
    // SAFETY: the caller of `stat` gave a C string, and room for the answer.
    let meant = unsafe { Path::of(path) };
    let (dir, path) = match &meant {
        Path::Plain => (dir, path),
        Path::Tree(place) => (libc::AT_FDCWD, place.as_ptr().cast()),
        Path::Device(_) => (libc::AT_FDCWD, NULL.as_ptr()),
    };
    let args = [
        dir as usize,
        path as usize,
        at as usize,
        flags as usize,
        0,
        0,
    ];
    // SAFETY: as above.
    result(unsafe { syscall(libc::SYS_newfstatat, args) }) as c_int
}

macro_rules! stats {
    ($($name:ident($flags:expr))*) => {$(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, at: *mut c_void) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { stat_at(libc::AT_FDCWD, path, at, $flags) }
        }
    )*};
}

stats! {
    stat(0)
    stat64(0)
    lstat(libc::AT_SYMLINK_NOFOLLOW)
    lstat64(libc::AT_SYMLINK_NOFOLLOW)
}

macro_rules! old_stats {
    ($($name:ident($flags:expr))*) => {$(
        /// # Safety
        /// As the C library's, before version 2.33.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(_: c_int, path: *const c_char, at: *mut c_void) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { stat_at(libc::AT_FDCWD, path, at, $flags) }
        }
    )*};
}

old_stats! {
    __xstat(0)
    __xstat64(0)
    __lxstat(libc::AT_SYMLINK_NOFOLLOW)
    __lxstat64(libc::AT_SYMLINK_NOFOLLOW)
}

macro_rules! stats_at {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            dir: c_int,
            path: *const c_char,
            at: *mut c_void,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { stat_at(dir, path, at, flags) }
        }
    )*};
}

stats_at! { fstatat fstatat64 }

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let meant = unsafe { Path::of(path) };
    let path = match &meant {
        Path::Plain => path,
        Path::Tree(place) => place.as_ptr().cast(),
        Path::Device(_) => NULL.as_ptr(),
    };
    let args = [path as usize, mode as usize, 0, 0, 0, 0];
    // SAFETY: as above.
    result(unsafe { syscall(libc::SYS_access, args) }) as c_int
}

/// The function of that name in the libraries after this one.
macro_rules! next {
    ($name:ident as $type:ty) => {{
        static FOUND: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        // Relaxed: the same is found whoever looks.
        let mut at = FOUND.load(std::sync::atomic::Ordering::Relaxed);
        if at == 0 {
            let name = concat!(stringify!($name), "\0");
            // SAFETY: looks up a name that ends with a zero.
            at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) } as usize;
            FOUND.store(at, std::sync::atomic::Ordering::Relaxed);
        }
        // SAFETY: the C library's function of that name has that type.
        (at != 0).then(|| unsafe { std::mem::transmute::<usize, $type>(at) })
    }};
}

pub(crate) use next;

macro_rules! streams {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut c_void {
            type Open = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;
            let Some(open) = next!($name as Open) else {
                guard::missing();
                return std::ptr::null_mut();
            };
            // SAFETY: the caller's promise.
            unsafe {
                match Path::of(path) {
                    Path::Tree(place) => open(place.as_ptr().cast(), mode),
                    _ => open(path, mode),
                }
            }
        }
    )*};
}

streams! { fopen fopen64 }

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut c_void {
    type Open = unsafe extern "C" fn(*const c_char) -> *mut c_void;
    let Some(open) = next!(opendir as Open) else {
        guard::missing();
        return std::ptr::null_mut();
    };
    // SAFETY: the caller's promise.
    unsafe {
        match Path::of(path) {
            Path::Tree(place) => open(place.as_ptr().cast()),
            _ => open(path),
        }
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    match files::find(fd) {
        None => {
            let args = [fd as usize, from as usize, len, 0, 0, 0];
            // SAFETY: what the caller asked for.
            result(unsafe { syscall(libc::SYS_write, args) })
        }
        Some(File::Dead) => fail(libc::EIO),
        Some(File::Ours(context)) => {
            // The longest command has words counted by 16 bits.
            let mut bytes = vec![0; len.min(1 << 20)];
            if guard::read(from as u64, &mut bytes).is_err() {
                return fail(libc::EFAULT);
            }
            let done = context.write(&bytes);
            if trace::on() {
                let word = bytes.first_chunk().map_or(0, |&w| u32::from_ne_bytes(w));
                let name = vmlx5_uverbs::name_of(word);
                trace::line(format_args!("{name}, {len} bytes: {done:?}"));
            }
            match done {
                Ok(done) => done as ssize_t,
                Err(errno) => fail(errno.raw_os_error()),
            }
        }
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: u64, arg: *mut c_void) -> c_int {
    match files::find(fd) {
        None => {
            let args = [fd as usize, request as usize, arg as usize, 0, 0, 0];
            // SAFETY: what the caller asked for.
            result(unsafe { syscall(libc::SYS_ioctl, args) }) as c_int
        }
        Some(File::Dead) => fail(libc::EIO) as c_int,
        // Callers may extend the sign of 32 bits.
        Some(File::Ours(context)) if request as u32 == RDMA_VERBS_IOCTL as u32 => {
            let arg = arg as u64;
            let writes_only = config::setup().is_some_and(|s| s.config.abi == Abi::Write);
            let invoked = if writes_only || trace::on() {
                vmlx5_uverbs::invoked(&engine::Process, arg)
            } else {
                None
            };
            let done = if writes_only && invoked.is_some() {
                // What older kernels say, upon which libraries write.
                Err(rustix::io::Errno::PROTONOSUPPORT)
            } else {
                context.ioctl(arg)
            };
            if let Some(command) = invoked {
                let name = vmlx5_uverbs::name_of(command);
                trace::line(format_args!("{name} by ioctl: {done:?}"));
            } else if trace::on() {
                let mut header = [0; 8];
                let _ = guard::read(arg, &mut header);
                let [_, _, o0, o1, m0, m1, ..] = header;
                let (object, method) = (u16::from_ne_bytes([o0, o1]), u16::from_ne_bytes([m0, m1]));
                trace::line(format_args!("ioctl {object:#x}.{method:#x}: {done:?}"));
            }
            match done {
                Ok(()) => 0,
                Err(errno) => fail(errno.raw_os_error()) as c_int,
            }
        }
        Some(File::Ours(_)) => fail(libc::ENOTTY) as c_int,
    }
}

macro_rules! maps {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            at: *mut c_void,
            len: size_t,
            rights: c_int,
            flags: c_int,
            fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            // SAFETY: the caller's promise.
            unsafe { map(at, len, rights, flags, fd, offset) }
        }
    )*};
}

maps! { mmap mmap64 }

unsafe fn map(
    at: *mut c_void,
    len: size_t,
    rights: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let map = |fd: c_int, offset: off_t| {
        let args = [
            at as usize,
            len,
            rights as usize,
            flags as usize,
            fd as usize,
            offset as usize,
        ];
        // SAFETY: what the caller asked for, of a file of its or of ours.
        result(unsafe { syscall(libc::SYS_mmap, args) }) as *mut c_void
    };
    let file = if flags & libc::MAP_ANONYMOUS != 0 {
        None
    } else {
        files::find(fd)
    };
    match file {
        None => map(fd, offset),
        Some(File::Dead) => fail(libc::EIO) as *mut c_void,
        Some(File::Ours(context)) => {
            let mapping = context.map(offset as u64, len);
            trace::line(format_args!(
                "mmap at {offset:#x}: {:?}",
                mapping.as_ref().map(drop)
            ));
            match mapping {
                Err(errno) => fail(errno.raw_os_error()) as *mut c_void,
                Ok(mapping) => {
                    let fd = std::os::fd::AsRawFd::as_raw_fd(&mapping.file);
                    let at = map(fd, mapping.offset as off_t);
                    if at != libc::MAP_FAILED {
                        let args = [at as usize, len, libc::MADV_DONTFORK as usize, 0, 0, 0];
                        // SAFETY: the new mapping, which a child is not to have, as with a
                        // kernel's.
                        unsafe { syscall(libc::SYS_madvise, args) };
                    }
                    at
                }
            }
        }
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && config::setup().is_some() {
        // Where a kernel has the subsystem it would list its own devices, and none of these.
        process::say_what_is_hidden();
        return fail(libc::EPROTONOSUPPORT) as c_int;
    }
    let args = [domain as usize, kind as usize, protocol as usize, 0, 0, 0];
    // SAFETY: what the caller asked for.
    result(unsafe { syscall(libc::SYS_socket, args) }) as c_int
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if guard::handlers::guarded(signal) {
        // SAFETY: the caller's promise.
        return unsafe { guard::handlers::program_sigaction(signal, new, old) };
    }
    match guard::handlers::real_sigaction() {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(signal, new, old) },
        None => guard::missing(),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    if guard::handlers::guarded(signal) {
        // SAFETY: all zeros is an action without mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_RESTART;
        return guard::handlers::set(signal, action).sa_sigaction;
    }
    type Signal = unsafe extern "C" fn(c_int, usize) -> usize;
    match next!(signal as Signal) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(signal, handler) },
        None => {
            guard::missing();
            libc::SIG_ERR
        }
    }
}
