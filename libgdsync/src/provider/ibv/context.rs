//! The libraries and the NICs that they open.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Once;

use gds_step::Mutex;
use gdsync_sys::LoadError;
use gdsync_sys::mlx5::Mlx5;
use gdsync_sys::verbs::Ibverbs;
use gdsync_sys::verbs::types::{ibv_context, ibv_device, ibv_port_attr};

use super::port::Reason;
use crate::error::{Error, Kind, Result};
use crate::nic::{Events, NicName};

/// The operation of opening, for errors.
pub(super) const OPEN: &str = "open NIC";

/// The loaded libraries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Libraries {
    pub verbs: &'static Ibverbs,
    /// For NICs that are used by direct verbs.
    pub mlx5: Option<&'static Mlx5>,
}

impl Libraries {
    /// `direct`: the NIC must support direct verbs.
    pub fn load(direct: bool) -> Result<Libraries> {
        let verbs = Ibverbs::get().map_err(missing)?;
        let mlx5 = match direct {
            true => Some(Mlx5::get().map_err(missing)?),
            false => None,
        };
        Ok(Libraries { verbs, mlx5 })
    }
}

/// `Absent`: the library does not exist. `Unsupported`: the library lacks a function.
pub(in crate::provider) fn missing(e: &LoadError) -> Error {
    let kind = match e {
        LoadError::NotFound { .. } => Kind::Absent,
        _ => Kind::Unsupported,
    };
    Error::new(OPEN, kind, e.to_string()).with_source(e.clone())
}

/// The error of a call that failed with this errno; `call` names the call and its object.
pub(super) fn refused(operation: &'static str, call: &str, errno: i32) -> Error {
    let e = std::io::Error::from_raw_os_error(errno);
    let kind = match errno {
        libc::EINVAL => Kind::Invalid,
        libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT => Kind::Unsupported,
        _ => Kind::System,
    };
    Error::new(operation, kind, format!("{call} failed: {e}")).with_source(e)
}

/// The last error of the operating system, for a call that returned a null pointer.
pub(in crate::provider) fn refused_last(operation: &'static str, call: &str) -> Error {
    let errno = std::io::Error::last_os_error().raw_os_error();
    refused(operation, call, errno.unwrap_or(0))
}

/// Whether an error says that the kernel has taken the device from the process.
pub(in crate::provider) fn is_gone(e: &Error) -> bool {
    let of_system = std::error::Error::source(e).and_then(|e| e.downcast_ref::<std::io::Error>());
    let errno = of_system.and_then(std::io::Error::raw_os_error);
    matches!(errno, Some(libc::EIO | libc::ENODEV))
}

/// The error if libibverbs returns no list of devices: mostly the kernel has no RDMA driver.
fn no_list() -> Error {
    let e = refused_last(OPEN, "ibv_get_device_list");
    match e.kind() {
        Kind::Unsupported => {
            let what = "the kernel has no RDMA drivers; load the driver module of the NIC, for example mlx5_ib";
            Error::new(OPEN, Kind::Absent, what).with_source(e)
        }
        _ => e,
    }
}

/// The error of a result other than 0: an errno, which some functions negate or leave in `errno`.
pub(in crate::provider) fn refusal(answer: i32, operation: &'static str, call: &str) -> Error {
    match answer {
        -1 => refused_last(operation, call),
        errno => refused(operation, call, errno.abs()),
    }
}

/// Checks a result that is a number: 0, or an error as for [`refusal`].
pub(in crate::provider) fn check(answer: i32, operation: &'static str, call: &str) -> Result<()> {
    match answer {
        0 => Ok(()),
        answer => Err(refusal(answer, operation, call)),
    }
}

/// An open NIC. It stays open until the process ends: its doorbells are pages that a stream may
/// still write after the last queue pair is destroyed.
#[derive(Debug)]
pub(in crate::provider) struct Context {
    verbs: &'static Ibverbs,
    raw: NonNull<ibv_context>,
    /// The kernel's name of the NIC.
    pub name: String,
    pub guid: u64,
    /// The NIC's path in sysfs.
    sysfs: PathBuf,
    /// The state that events have reported so far.
    pub events: Events,
    /// Held by the one thread that reads the next report; `false`: events cannot be read.
    pub(super) readable: Mutex<bool>,
}

// SAFETY: libibverbs may be called from any thread with any of its objects.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The NICs opened so far, by name.
static CONTEXTS: Mutex<BTreeMap<String, &'static Context>> = Mutex::new(BTreeMap::new());

impl Context {
    pub fn verbs(&self) -> &'static Ibverbs {
        self.verbs
    }

    pub fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// The NIC's path in sysfs's tree of devices.
    pub fn sysfs_path(&self) -> Option<PathBuf> {
        std::fs::canonicalize(self.sysfs.join("device")).ok()
    }

    /// The attributes of a port; `None` if there is no port with this number.
    pub fn port(&self, number: u8) -> Option<ibv_port_attr> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: an open context and memory to write to.
        let answer = unsafe {
            let verbs = self.verbs;
            verbs.query_port(self.raw(), number, &mut attr)
        };
        (answer == 0).then_some(attr)
    }

    /// # Safety
    /// `device` is from a list of this library.
    unsafe fn open(verbs: &'static Ibverbs, device: *mut ibv_device) -> Result<&'static Context> {
        // SAFETY: a device, as the caller promises; its strings are terminated.
        let (name, sysfs) = unsafe {
            let path = CStr::from_ptr((&raw const (*device).ibdev_path).cast());
            (name(verbs, device), path.to_string_lossy().into_owned())
        };
        let mut open = CONTEXTS.lock();
        // A NIC that failed, or was removed, may have returned.
        if let Some(context) = open.get(&name).filter(|context| !context.events.is_lost()) {
            return Ok(context);
        }
        // SAFETY: as above.
        let (raw, guid) = unsafe {
            (
                (verbs.ibv_open_device)(device),
                (verbs.ibv_get_device_guid)(device),
            )
        };
        let raw = NonNull::new(raw)
            .ok_or_else(|| refused_last(OPEN, &format!("ibv_open_device for {name}")))?;
        let context: &'static Context = Box::leak(Box::new(Context {
            verbs,
            raw,
            name: name.clone(),
            guid: u64::from_be(guid),
            sysfs: Path::new(&sysfs).to_owned(),
            events: Events::default(),
            readable: Mutex::new(true),
        }));
        context.read_without_waiting();
        open.insert(name, context);
        Ok(context)
    }
}

/// Allows the process to fork without losing the NIC's writes. After a fork, a kernel before Linux
/// 5.12 gives the parent a copy of each page that the parent writes to, and the NIC keeps the old
/// page. Later kernels copy registered pages for the child; libibverbs detects that, and then does
/// nothing.
fn allow_fork(verbs: &Ibverbs) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(init) = verbs.ibv_fork_init else {
            return;
        };
        // SAFETY: no memory was registered by this library yet.
        match unsafe { init() } {
            0 => {}
            errno => tracing::warn!(
                target: "gdsync",
                "ibv_fork_init: {}; if this process forks on a kernel before Linux 5.12, what a NIC \
                 writes may be lost",
                std::io::Error::from_raw_os_error(errno.abs())
            ),
        }
    });
}

/// # Safety
/// `device` is from a list of this library.
unsafe fn name(verbs: &Ibverbs, device: *mut ibv_device) -> String {
    // SAFETY: as the caller promises; the name is terminated.
    let name = unsafe { CStr::from_ptr((verbs.ibv_get_device_name)(device)) };
    name.to_string_lossy().into_owned()
}

/// Opens the usable NICs, in libibverbs' order: all, or those that `wanted` names. Also returns,
/// for each other NIC, the reason why it cannot be used.
pub(super) fn all(
    libraries: Libraries,
    wanted: Option<&NicName>,
) -> Result<(Vec<&'static Context>, Vec<Reason>)> {
    let verbs = libraries.verbs;
    allow_fork(verbs);
    let mut count = 0;
    // SAFETY: stores a number.
    let list = unsafe { (verbs.ibv_get_device_list)(&mut count) };
    let first = NonNull::new(list).ok_or_else(no_list)?;
    let count = usize::try_from(count).unwrap_or(0);
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for i in 0..count {
        // SAFETY: the list has so many entries, each a device, until it is freed below.
        unsafe {
            let device = first.add(i).read();
            let name = name(verbs, device);
            let guid = u64::from_be((verbs.ibv_get_device_guid)(device));
            if wanted.is_some_and(|wanted| !wanted.is(&name, guid)) {
                continue;
            }
            if let Some(mlx5) = libraries.mlx5
                && !(mlx5.mlx5dv_is_supported)(device)
            {
                bad.push((
                    Kind::Absent,
                    format!("{name} is not a ConnectX that {mlx5:?} supports"),
                ));
                continue;
            }
            match Context::open(verbs, device) {
                Ok(context) => good.push(context),
                Err(e) => bad.push((e.kind(), e.reason().to_owned())),
            }
        }
    }
    // SAFETY: the list from above; devices that are open stay.
    unsafe { (verbs.ibv_free_device_list)(list) };
    Ok((good, bad))
}
