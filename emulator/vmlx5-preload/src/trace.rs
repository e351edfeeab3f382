//! `VMLX5_TRACE=1`: a line on standard error for every command, and the reasons of failures.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether lines are written. Set once at the start, read relaxed: no other data depend on it.
static ON: AtomicBool = AtomicBool::new(false);

pub fn turn_on() {
    ON.store(true, Ordering::Relaxed);
}

pub fn on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Writes a line if traces are enabled.
pub fn line(text: fmt::Arguments<'_>) {
    if on() {
        print(text);
    }
}

/// Writes a line.
pub fn print(text: fmt::Arguments<'_>) {
    let line = format!("vmlx5[{}]: {text}\n", std::process::id());
    // An error of standard error cannot be reported.
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}
