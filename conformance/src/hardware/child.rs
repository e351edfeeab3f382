//! Processes that a trial starts: this program again, with a variable that selects its side.
//! None outlives the trial that started it.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::rig::verdict::{Verdict, ensure};

/// The variable with the side of the trial that a process runs.
const ROLE: &str = "CONFORMANCE_ROLE";
/// The variable with the process that a process ends with.
const PARENT: &str = "CONFORMANCE_PARENT";

/// Makes the process end with this one, however this one ends, from the moment when it calls
/// [`end_with_parent`].
pub fn tie(command: &mut Command) {
    command.env(PARENT, std::process::id().to_string());
}

/// Makes this process end with the one that called [`tie`], if any.
///
/// # Errors
/// That process has ended already, or the kernel refuses the call.
pub fn end_with_parent() -> Verdict {
    let Ok(parent) = std::env::var(PARENT) else {
        return Ok(());
    };
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let now = getppid().map(|pid| pid.as_raw_nonzero().to_string());
    ensure(now.as_deref() == Some(&parent[..]), || {
        "the parent process of this one has ended".to_owned()
    })
}

/// The side of a trial that this process was started for: a name and its arguments.
pub fn role() -> Option<(String, Vec<String>)> {
    let role = std::env::var(ROLE).ok()?;
    let mut words = role.split(' ').map(str::to_owned);
    Some((words.next()?, words.collect()))
}

/// A command that starts this program in a role.
///
/// # Errors
/// The path of the program is unknown.
pub fn command(role: &str, arguments: &[&str]) -> Verdict<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    let words: Vec<&str> = std::iter::once(role)
        .chain(arguments.iter().copied())
        .collect();
    command.env(ROLE, words.join(" "));
    tie(&mut command);
    Ok(command)
}

/// A process that is killed on drop.
#[derive(Debug)]
pub struct Guarded(pub Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a process to its end. Returns its standard output.
///
/// # Errors
/// The process fails, or is killed because it does not end within `limit`; the error contains all
/// its output.
pub fn run(mut command: Command, limit: Duration) -> Verdict<String> {
    fn read(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = pipe.read_to_string(&mut text);
            text
        })
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = Guarded(command.spawn()?);
    let output = read(child.0.stdout.take().ok_or("no standard output")?);
    let errors = read(child.0.stderr.take().ok_or("no standard error")?);
    let start = Instant::now();
    let status = loop {
        let status = child.0.try_wait()?;
        if status.is_some() || start.elapsed() > limit {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    // Kills the process if it still runs.
    drop(child);
    let output = output.join().unwrap_or_default();
    if status.is_some_and(|status| status.success()) {
        return Ok(output);
    }
    let what = match status {
        Some(status) => status.to_string(),
        None => format!("the process did not end within {limit:?}"),
    };
    let errors = errors.join().unwrap_or_default();
    Err(format!("{what}: {}\n{}", errors.trim(), output.trim()).into())
}
