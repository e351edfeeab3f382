//! The process as a whole: what is set up at its start, and what a `fork` leaves of it.

use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::sync::Once;

use crate::config::{self, Config, Setup};
use crate::{engine, files, guard, trace, tree};

/// Sets everything up. What goes wrong is said on standard error, and there are no devices.
pub fn start() {
    let config = match Config::from_env() {
        Ok(config) => config,
        Err(why) => return trace::say(format_args!("{why}: no devices")),
    };
    if config.trace {
        trace::turn_on();
    }
    let place = match tree::show(&config) {
        Ok(place) => place,
        Err(why) => return trace::say(format_args!("tree of devices: {why}: no devices")),
    };
    // SAFETY: this runs before `main`, when the process has one thread.
    unsafe { std::env::set_var("SYSFS_PATH", &place) };
    guard::start(config.guard);
    // SAFETY: the functions are safe to call at any time, and stay: the library is not unloaded.
    unsafe {
        libc::pthread_atfork(None, None, Some(forked));
        libc::atexit(ended);
    }
    let tree = place.as_os_str().as_bytes().to_vec();
    config::set_up(Setup { config, tree });
}

/// Names on standard error, once, the devices of the machine's own that are hidden behind the
/// virtual ones. Called when the program lists its devices, so that those that never do are quiet.
pub fn say_what_is_hidden() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let names = real_devices();
        if !names.is_empty() {
            trace::say(format_args!(
                "this machine's own devices are hidden: {}",
                names.join(", ")
            ));
        }
    });
}

/// What the kernel's own directory of devices holds. Read by system calls: for all others that
/// path leads to the tree.
fn real_devices() -> Vec<String> {
    use rustix::fs::{Mode, OFlags, RawDir, open};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = open(c"/sys/class/infiniband", flags, Mode::empty()) else {
        return Vec::new();
    };
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut names = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_string_lossy();
        if !name.starts_with('.') {
            names.push(name.into_owned());
        }
    }
    names.sort();
    names
}

/// In the child of a fork: the parent's device files are dead here, and its engine is not here.
extern "C" fn forked() {
    files::forget();
    engine::forget();
}

/// At the exit: what was sent is on its way before memory goes.
extern "C" fn ended() {
    engine::stop();
}
