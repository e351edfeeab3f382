//! The process as a whole: what is set up at its start, and what a `fork` leaves of it.

use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use crate::config::Config;
use crate::{engine, files, guard, trace, tree};

/// What was set up, once it was.
static SETUP: OnceLock<Setup> = OnceLock::new();

/// What is fixed at the start.
pub struct Setup {
    pub config: Config,
    /// Where the tree is, without a slash at the end.
    pub tree: Vec<u8>,
}

/// What was set up; nothing before the start, or if something was wrong then.
pub fn setup() -> Option<&'static Setup> {
    SETUP.get()
}

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
    let _ = SETUP.set(Setup { config, tree });
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
