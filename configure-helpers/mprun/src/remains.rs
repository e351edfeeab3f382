//! Processes that ranks left running, which became children of this process.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

/// Kills and reaps every child of this process, until there is none or `limit` has passed. Must be
/// called after all ranks have been reaped.
pub fn sweep(limit: Duration) {
    let end = Instant::now() + limit;
    loop {
        // When a child ends, its children become children of this process: repeat until there is
        // none.
        for child in children() {
            // The child is not reaped, so the process id is still valid.
            let _ = kill_process(child, Signal::KILL);
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        if matches!(wait(WaitOptions::NOHANG), Err(rustix::io::Errno::CHILD)) {
            return;
        }
        if Instant::now() >= end {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The children of all threads of this process.
fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let lists = tasks.flatten().map(|task| task.path().join("children"));
    let text = lists.filter_map(|list| fs::read_to_string(list).ok());
    let text = text.collect::<Vec<_>>().join(" ");
    let numbers = text.split_whitespace().filter_map(|n| n.parse().ok());
    numbers.filter_map(Pid::from_raw).collect()
}
