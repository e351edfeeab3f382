//! Who runs where: the thread that is measured on a processor of its own, all others of this
//! process together on another one, so that what one of them has written or read is equally far.

use std::io;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// Two processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pins {
    /// Of the thread that is measured.
    pub own: usize,
    /// Of all others.
    pub others: usize,
}

fn only(processor: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(processor);
    set
}

impl Pins {
    /// The first two that this thread may use; `None` if there is but one.
    pub fn choose() -> Result<Option<Pins>> {
        let may = sched_getaffinity(None).context("asking for this thread's processors")?;
        let mut all = (0..CpuSet::MAX_CPU).filter(|processor| may.is_set(*processor));
        let (own, others) = (all.next(), all.next());
        Ok(own.zip(others).map(|(own, others)| Pins { own, others }))
    }

    /// Puts all threads there are where they belong. Those that are started later begin where
    /// their maker is.
    pub fn apply(self) -> Result<()> {
        let me = gettid();
        for task in std::fs::read_dir("/proc/self/task").context("listing threads")? {
            let name = task?.file_name();
            let id = name.to_str().and_then(|name| name.parse().ok());
            let id = id.and_then(Pid::from_raw);
            let id = id.with_context(|| format!("a thread called {name:?}"))?;
            let processor = if id == me { self.own } else { self.others };
            match sched_setaffinity(Some(id), &only(processor)) {
                // It has ended meanwhile.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(e) => {
                    let what = format!("thread {name:?} on processor {processor}");
                    return Err(io::Error::from(e)).context(what);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn this_thread_is_alone_and_the_others_are_together() {
        let before = sched_getaffinity(None).unwrap();
        let Some(pins) = Pins::choose().unwrap() else {
            assert_eq!(before.count(), 1);
            return;
        };
        let (end, over) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let other = std::thread::spawn(move || {
            tell.send(gettid()).unwrap();
            _ = over.recv();
        });
        let id = told.recv().unwrap();
        pins.apply().unwrap();
        assert_eq!(sched_getaffinity(None).unwrap(), only(pins.own));
        assert_eq!(sched_getaffinity(Some(id)).unwrap(), only(pins.others));
        assert_ne!(pins.own, pins.others);
        drop(end);
        other.join().unwrap();
        // As other tests expect them.
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let id = task.unwrap().file_name().to_str().unwrap().parse().unwrap();
            _ = sched_setaffinity(Pid::from_raw(id), &before);
        }
    }
}
