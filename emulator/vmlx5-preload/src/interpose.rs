//! The interposed functions of the C library. Each executes the system call, or calls the next
//! library's function of that name, unless the call is for a device file.
//!
//! `open` and its variants have a mode argument only if they create a file. Here the mode is always
//! declared; on this architecture such functions are called in the same way.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use libc::{mode_t, off_t, size_t, ssize_t};

use crate::config::{self, Abi};
use crate::files::{self, File};
use crate::sys::{fail, next, result, syscall};
use crate::{engine, guard, process, trace};

/// Defines functions of the C library, each under all the names that it has there.
macro_rules! interpose {
    ($($($name:ident),+: fn $args:tt -> $result:ty = $body:expr;)*) => {$(
        $(interpose! { @one $name $args -> $result = $body })+
    )*};
    (@one $name:ident ($($arg:ident: $type:ty),*) -> $result:ty = $body:expr) => {
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            // SAFETY: the call that the caller requested, with the caller's promise.
            unsafe { $body }
        }
    };
}

pub(crate) use interpose;

const DEVICE: &[u8] = b"/dev/infiniband/uverbs";
const CLASS: &[u8] = b"/sys/class/infiniband";
const NETLINK_RDMA: c_int = 20;
/// The only ioctl of device files.
const RDMA_VERBS_IOCTL: u64 = 0xc018_1b01;

/// The target of a path.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for the length of a call, where nothing may be allocated"
)]
enum Path {
    /// The path itself.
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

/// Opens the target of a path.
unsafe fn open_at(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let open = |dir: c_int, path: *const c_char| {
        let args = [dir as usize, path as usize, flags as usize, mode as usize];
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

/// `newfstatat` on the target of a path.
unsafe fn stat_at(dir: c_int, path: *const c_char, at: *mut c_void, flags: c_int) -> c_int {
    // SAFETY: the caller of `stat` gave a C string, and room for the answer.
    let meant = unsafe { Path::of(path) };
    let (dir, path) = match &meant {
        Path::Plain => (dir, path),
        Path::Tree(place) => (libc::AT_FDCWD, place.as_ptr().cast()),
        Path::Device(_) => (libc::AT_FDCWD, NULL.as_ptr()),
    };
    let args = [dir as usize, path as usize, at as usize, flags as usize];
    // SAFETY: as above.
    result(unsafe { syscall(libc::SYS_newfstatat, args) }) as c_int
}

/// `access` to the target of a path.
unsafe fn access_to(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller of `access` gave a C string.
    let meant = unsafe { Path::of(path) };
    let path = match &meant {
        Path::Plain => path,
        Path::Tree(place) => place.as_ptr().cast(),
        Path::Device(_) => NULL.as_ptr(),
    };
    // SAFETY: as above.
    result(unsafe { syscall(libc::SYS_access, [path as usize, mode as usize]) }) as c_int
}

/// Opens the target of a path, by a function of the next library.
unsafe fn open_by<F>(
    next: Option<F>,
    path: *const c_char,
    open: impl FnOnce(F, *const c_char) -> *mut c_void,
) -> *mut c_void {
    let Some(next) = next else {
        guard::missing();
        return std::ptr::null_mut();
    };
    // SAFETY: the caller's promise.
    match unsafe { Path::of(path) } {
        Path::Tree(place) => open(next, place.as_ptr().cast()),
        _ => open(next, path),
    }
}

type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;
type Opendir = unsafe extern "C" fn(*const c_char) -> *mut c_void;

interpose! {
    open, open64: fn(path: *const c_char, flags: c_int, mode: mode_t) -> c_int =
        open_at(libc::AT_FDCWD, path, flags, mode);
    openat, openat64: fn(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int =
        open_at(dir, path, flags, mode);
    __open_2, __open64_2: fn(path: *const c_char, flags: c_int) -> c_int =
        open_at(libc::AT_FDCWD, path, flags, 0);
    __openat_2, __openat64_2: fn(dir: c_int, path: *const c_char, flags: c_int) -> c_int =
        open_at(dir, path, flags, 0);

    stat, stat64: fn(path: *const c_char, at: *mut c_void) -> c_int =
        stat_at(libc::AT_FDCWD, path, at, 0);
    lstat, lstat64: fn(path: *const c_char, at: *mut c_void) -> c_int =
        stat_at(libc::AT_FDCWD, path, at, libc::AT_SYMLINK_NOFOLLOW);
    fstatat, fstatat64: fn(
        dir: c_int, path: *const c_char, at: *mut c_void, flags: c_int
    ) -> c_int = stat_at(dir, path, at, flags);
    // For versions of the C library before 2.33.
    __xstat, __xstat64: fn(_version: c_int, path: *const c_char, at: *mut c_void) -> c_int =
        stat_at(libc::AT_FDCWD, path, at, 0);
    __lxstat, __lxstat64: fn(_version: c_int, path: *const c_char, at: *mut c_void) -> c_int =
        stat_at(libc::AT_FDCWD, path, at, libc::AT_SYMLINK_NOFOLLOW);

    access: fn(path: *const c_char, mode: c_int) -> c_int = access_to(path, mode);

    fopen: fn(path: *const c_char, mode: *const c_char) -> *mut c_void =
        open_by(next!(fopen as Fopen), path, |fopen, path| fopen(path, mode));
    fopen64: fn(path: *const c_char, mode: *const c_char) -> *mut c_void =
        open_by(next!(fopen64 as Fopen), path, |fopen, path| fopen(path, mode));
    opendir: fn(path: *const c_char) -> *mut c_void =
        open_by(next!(opendir as Opendir), path, |opendir, path| opendir(path));

    mmap, mmap64: fn(
        at: *mut c_void, len: size_t, rights: c_int, flags: c_int, fd: c_int, offset: off_t
    ) -> *mut c_void = map(at, len, rights, flags, fd, offset);
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    match files::find(fd) {
        None => {
            // SAFETY: the call that the caller requested.
            result(unsafe { syscall(libc::SYS_write, [fd as usize, from as usize, len]) })
        }
        Some(File::Dead) => fail(libc::EIO),
        Some(File::Ours(context)) => {
            // The length of a command is in words, counted by 16 bits.
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
            let args = [fd as usize, request as usize, arg as usize];
            // SAFETY: the call that the caller requested.
            result(unsafe { syscall(libc::SYS_ioctl, args) }) as c_int
        }
        Some(File::Dead) => fail(libc::EIO) as c_int,
        // Callers may have extended the sign of 32 bits.
        Some(File::Ours(context)) if request as u32 == RDMA_VERBS_IOCTL as u32 => {
            let arg = arg as u64;
            let writes_only = config::setup().is_some_and(|s| s.config.abi == Abi::Write);
            let invoked = if writes_only || trace::on() {
                vmlx5_uverbs::invoked(&engine::Process, arg)
            } else {
                None
            };
            let done = if writes_only && invoked.is_some() {
                // The error of older kernels, after which libraries write commands.
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
        // SAFETY: the call that the caller requested, of a file of its or of ours.
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
                Ok(page) => {
                    let at = map(page.as_raw_fd(), 0);
                    if at != libc::MAP_FAILED {
                        let args = [at as usize, len, libc::MADV_DONTFORK as usize];
                        // SAFETY: the new mapping, which a child must not inherit, as with a
                        // kernel's device.
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
        // A kernel with the subsystem would list its own devices, and none of these.
        process::report_hidden_devices();
        return fail(libc::EPROTONOSUPPORT) as c_int;
    }
    let args = [domain as usize, kind as usize, protocol as usize];
    // SAFETY: the call that the caller requested.
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
    // SAFETY: the C library's `signal` is of that type.
    match unsafe { next!(signal as Signal) } {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(signal, handler) },
        None => {
            guard::missing();
            libc::SIG_ERR
        }
    }
}
