//! Processor time of each thread of this process. Benchmarks use it to show which threads ran.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The processor time a thread has used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadTime {
    /// The kernel's id of the thread.
    pub tid: u32,
    /// The thread's name, at most 15 bytes: `gds-device`, `gds-watch`, `gds-cpu`, or a name that
    /// the application has set.
    pub name: String,
    /// User and system time since the thread started. Exact to a nanosecond while the thread
    /// sleeps, to a scheduler tick while it runs.
    pub cpu: Duration,
}

/// The processor time of every thread of this process, in the order of their ids.
///
/// ```
/// use gds_step::{Live, thread_times};
///
/// let live = Live::global()?;
/// let times = thread_times()?;
/// assert!(times.iter().any(|t| t.name == "gds-device"));
/// # drop(live);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The kernel has no `/proc/self/task`, or neither `schedstat` nor `stat` in it.
pub fn thread_times() -> io::Result<Vec<ThreadTime>> {
    let mut times = Vec::new();
    for entry in fs::read_dir("/proc/self/task")? {
        let entry = entry?;
        match thread_time(&entry.path()) {
            Ok(time) => times.push(time),
            // The thread ended after the listing.
            Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == ESRCH => {}
            Err(e) => return Err(e),
        }
    }
    times.sort_by_key(|t| t.tid);
    Ok(times)
}

const ESRCH: Option<i32> = Some(rustix::io::Errno::SRCH.raw_os_error());

fn thread_time(task: &Path) -> io::Result<ThreadTime> {
    let tid = task
        .file_name()
        .and_then(|n| n.to_str())
        .and_then(|n| n.parse().ok());
    let name = fs::read_to_string(task.join("comm"))?.trim_end().to_owned();
    let cpu = match fs::read_to_string(task.join("schedstat")) {
        Ok(text) => from_schedstat(&text),
        // A kernel without scheduler statistics.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            from_stat(&fs::read_to_string(task.join("stat"))?)
        }
        Err(e) => return Err(e),
    };
    match (tid, cpu) {
        (Some(tid), Some(cpu)) => Ok(ThreadTime { tid, name, cpu }),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: not the statistics of a thread", task.display()),
        )),
    }
}

/// `schedstat`: nanoseconds run, nanoseconds waited, slices.
fn from_schedstat(text: &str) -> Option<Duration> {
    let ns = text.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(ns))
}

/// `stat`: fields 14 and 15 are user and system time in clock ticks. The second field is the
/// name in parentheses and may hold anything, parentheses too.
fn from_stat(text: &str) -> Option<Duration> {
    let mut after_name = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    let user: u64 = after_name.nth(11)?.parse().ok()?;
    let system: u64 = after_name.next()?.parse().ok()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_nanos(
        (user + system) * 1_000_000_000 / per_second,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_of_the_kernel_are_parsed() {
        assert_eq!(
            from_schedstat("1234567 89 10\n"),
            Some(Duration::from_nanos(1_234_567))
        );
        assert_eq!(from_schedstat(""), None);
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 30 20 0 0 20 0 3 0 100 0";
        let ticks = rustix::param::clock_ticks_per_second();
        assert_eq!(
            from_stat(stat),
            Some(Duration::from_nanos(50 * 1_000_000_000 / ticks))
        );
        assert_eq!(from_stat("7 (a"), None);
    }

    #[test]
    fn thread_with_work_has_processor_time() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let worker = std::thread::Builder::new()
            .name("tt-worker".into())
            .spawn(move || {
                let mut x = 1u64;
                for i in 0..20_000_000u64 {
                    x = std::hint::black_box(x.wrapping_mul(31) ^ i);
                }
                ready.send(x).unwrap();
                // Both files must still be there while the thread only waits.
                let _ = stopped.recv();
            });
        is_ready.recv().unwrap();
        let of = || {
            thread_times()
                .unwrap()
                .into_iter()
                .find(|t| t.name == "tt-worker")
                .unwrap()
        };
        // Twenty million dependent multiplications take longer than a millisecond anywhere.
        assert!(of().cpu > Duration::from_millis(1), "{:?}", of());
        drop(stop);
        worker.unwrap().join().unwrap();
    }
}
