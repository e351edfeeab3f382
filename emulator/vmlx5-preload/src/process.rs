//! The process as a whole: the setup at its start, and the changes at a `fork`.

use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::sync::Once;

use crate::config::{self, Config, Setup};
use crate::{engine, files, guard, trace, tree};

/// Sets up the library. On an error it writes a message to standard error, and there are no
/// devices.
pub fn start() {
    let config = match Config::from_env() {
        Ok(config) => config,
        Err(why) => return trace::print(format_args!("{why}: no devices")),
    };
    if config.trace {
        trace::turn_on();
    }
    let place = match tree::show(&config) {
        Ok(place) => place,
        Err(why) => return trace::print(format_args!("tree of devices: {why}: no devices")),
    };
    // SAFETY: this runs before `main`, when the process has one thread.
    unsafe { std::env::set_var("SYSFS_PATH", &place) };
    guard::start(config.guard);
    // SAFETY: the functions may be called at any time, and stay loaded: the library is not
    // unloaded.
    unsafe {
        libc::pthread_atfork(None, None, Some(forked));
        libc::atexit(ended);
    }
    let tree = place.as_os_str().as_bytes().to_vec();
    config::set_up(Setup { config, tree });
}

/// Writes to standard error, once, the names of the machine's real devices that the virtual ones
/// hide. It is called when the program lists its devices, so that other programs write nothing.
pub fn report_hidden_devices() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let names = real_devices();
        if !names.is_empty() {
            trace::print(format_args!(
                "this machine's own devices are hidden: {}",
                names.join(", ")
            ));
        }
    });
}

/// The content of the kernel's own directory of devices. Read by system calls: for all other
/// callers that path leads to the tree.
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

/// Called in the child of a fork: the parent's device files are unusable here, and its engine does
/// not exist.
extern "C" fn forked() {
    files::forget();
    engine::forget();
}

/// Called at the exit: sends pending messages before the memory is unmapped.
extern "C" fn ended() {
    engine::stop();
}
