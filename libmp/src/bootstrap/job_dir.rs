//! The private directory in which ranks of one host meet by default.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;

use super::JOIN;
use super::secret::number_of;
use super::slot::{any_rank_lives, private};
use crate::error::{Error, Kind, Result};

/// A job directory without a living rank is removed if it was not modified for this long.
const LEFT_OVER: Duration = Duration::from_secs(24 * 3600);

/// The private directory of the job of this name on this host.
///
/// # Errors
/// `Absent` if no suitable place exists; `Invalid` if the directory belongs to another user.
pub(super) fn path_of(name: &str) -> Result<PathBuf> {
    let above = runtime()?;
    remove_left_over(&above);
    let job = number_of("place", &[name.as_bytes()]);
    Ok(above.join(format!("mp-{job:016x}")))
}

/// A directory that belongs to this user alone and does not survive a reboot.
fn runtime() -> Result<PathBuf> {
    // All ranks of a job have the same value of this variable.
    if let Some(path) = std::env::var_os("XDG_RUNTIME_DIR")
        && Path::new(&path).is_dir()
        && private(Path::new(&path)).is_ok()
    {
        return Ok(path.into());
    }
    let user = rustix::process::geteuid().as_raw();
    let mut why = None;
    for above in [Path::new("/dev/shm"), &std::env::temp_dir()] {
        let path = above.join(format!("mp-{user}"));
        match private(&path) {
            Ok(()) => return Ok(path),
            // Fails here: another user must not redirect the job by taking the preferred directory.
            Err(e) if e.kind() == Kind::Invalid => return Err(e),
            Err(e) => why = Some(e),
        }
    }
    let what = "no private directory can be created in /dev/shm or the temporary directory; set \
                MP_STORE to file:///directory";
    let error = Error::new(JOIN, Kind::Absent, what);
    Err(match why {
        Some(why) => error.with_source(why),
        None => error,
    })
}

/// Removes the directories of jobs that were killed.
fn remove_left_over(above: &Path) {
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let ours = name.to_str().and_then(|name| name.strip_prefix("mp-"));
        let ours = ours.is_some_and(|job| job.len() == 16);
        let changed = entry.metadata().and_then(|data| data.modified());
        let old = changed.is_ok_and(|t| t.elapsed().is_ok_and(|age| age > LEFT_OVER));
        if ours && old && !any_rank_lives(&entry.path()) {
            // Another rank may be removing it at the same time; both outcomes are fine.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A name that processes of the same parent share: the parent's process number and start time.
pub(super) fn name_of_parent() -> String {
    let parent = Pid::as_raw(rustix::process::getppid());
    let stat = fs::read_to_string(format!("/proc/{parent}/stat")).unwrap_or_default();
    // The program's name, in brackets, may contain any character; the start time is the 20th field
    // after it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let started = fields.split_whitespace().nth(19).unwrap_or_default();
    format!("parent.{parent}.{started}")
}

/// Registers `leave`, to be called when this process ends normally.
pub(super) fn at_exit(leave: extern "C" fn()) {
    // SAFETY: `leave` takes nothing, returns nothing and may be called at any time once.
    // A failed registration is harmless: a later rank removes the files.
    let _ = unsafe { libc::atexit(leave) };
}
