//! A futex that wakes a device thread, also from another process.
//!
//! The sleeper announces that it will sleep, checks once more for work, then sleeps. The ringer
//! writes its data, then checks for an announced sleep. Both execute a sequentially consistent
//! fence between the two steps. At least one of them therefore observes the other, and no wake-up
//! is lost.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;

use protocol::AWAKE;

const PAGE: usize = 4096;

/// The protocol without the futex. It is generic over the word, so that a model checker runs the
/// same lines.
mod protocol {
    use std::sync::atomic::Ordering;

    use crate::Word;

    pub const AWAKE: u32 = 0;
    pub const ASLEEP: u32 = 1;
    /// Asleep, and `stored` does not wake it.
    pub const ASLEEP_TO_STORES: u32 = 2;

    /// The ringer's step, after its stores. `true`: the caller must wake the sleeper.
    #[inline]
    pub fn ring<W: Word<Value = u32>>(word: &W) -> bool {
        // Pairs with the fence in `announce`: either the sleeper's second check observes the
        // caller's stores, or the load below does not observe AWAKE.
        W::fence(Ordering::SeqCst);
        // The exchange elects one waker among several ringers.
        word.load(Ordering::Relaxed) != AWAKE && word.swap(AWAKE, Ordering::Relaxed) != AWAKE
    }

    /// As `ring`, but does not wake a sleeper that ignores stores.
    #[inline]
    pub fn stored<W: Word<Value = u32>>(word: &W) -> bool {
        // Pairs with the fence in `announce`, as in `ring`.
        W::fence(Ordering::SeqCst);
        word.load(Ordering::Relaxed) == ASLEEP
            && word
                .compare_exchange(ASLEEP, AWAKE, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// The sleeper's step, after a second check that found it in a state that no store ends. It
    /// changes nothing if a ringer has ended the announcement.
    #[inline]
    pub fn ignore_stores<W: Word<Value = u32>>(word: &W) {
        let order = Ordering::Relaxed;
        let _ = word.compare_exchange(ASLEEP, ASLEEP_TO_STORES, order, order);
    }

    /// The sleeper's step, before its second check. After it the sleeper may wait as long as the
    /// word is not AWAKE.
    #[inline]
    pub fn announce<W: Word<Value = u32>>(word: &W) {
        word.store(ASLEEP, Ordering::Relaxed);
        // Pairs with the fences in `ring` and `stored`.
        W::fence(Ordering::SeqCst);
    }

    /// Ends the announcement. Data written before a ring is visible after the fence of the next
    /// `announce` at the latest.
    #[inline]
    pub fn rise<W: Word<Value = u32>>(word: &W) {
        word.store(AWAKE, Ordering::Relaxed);
    }
}

/// A wake-up word in shared memory: one sleeper, and any number of ringers in any process that maps
/// it.
#[derive(Debug)]
pub struct Bell {
    page: NonNull<AtomicU32>,
    fd: OwnedFd,
}

/// A bell could not be created or opened.
#[derive(Debug)]
pub struct BellError {
    what: &'static str,
    source: rustix::io::Errno,
}

impl std::fmt::Display for BellError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bell: {}", self.what)
    }
}

impl std::error::Error for BellError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

// SAFETY: the page is shared memory that lives as long as the bell, and is only accessed
// through an atomic word.
unsafe impl Send for Bell {}
// SAFETY: as above.
unsafe impl Sync for Bell {}

impl Bell {
    /// Creates a bell in a memory page that only it uses.
    ///
    /// # Errors
    /// The kernel returned no memory file or no mapping.
    pub fn new() -> Result<Bell, BellError> {
        let fail = |what| move |source| BellError { what, source };
        let fd =
            rustix::fs::memfd_create("gds-bell", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .map_err(fail("memfd_create"))?;
        rustix::fs::ftruncate(&fd, PAGE as u64).map_err(fail("ftruncate"))?;
        // A peer that could shrink the file could make our loads fault.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(fail("seal"))?;
        Bell::map(fd)
    }

    /// Opens the bell of another process, by the descriptor that [`Bell::fd`] gave there.
    ///
    /// # Errors
    /// The descriptor is not a sealed memory file of one page, or cannot be mapped.
    pub fn open(fd: OwnedFd) -> Result<Bell, BellError> {
        let fail = |what| move |source| BellError { what, source };
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(fail("not a memory file"))?;
        let size = rustix::fs::fstat(&fd).map_err(fail("fstat"))?.st_size;
        if !seals.contains(SealFlags::SHRINK) || size != PAGE as i64 {
            return Err(BellError {
                what: "not a sealed page",
                source: rustix::io::Errno::INVAL,
            });
        }
        Bell::map(fd)
    }

    fn map(fd: OwnedFd) -> Result<Bell, BellError> {
        // SAFETY: a new mapping of one page, at an address the kernel chooses.
        let page = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }
        .map_err(|source| BellError {
            what: "mmap",
            source,
        })?;
        let page = NonNull::new(page.cast()).ok_or(BellError {
            what: "mmap",
            source: rustix::io::Errno::NOMEM,
        })?;
        Ok(Bell { page, fd })
    }

    /// The memory file. Pass it to the processes that ring this bell.
    pub fn fd(&self) -> impl AsFd + '_ {
        self.fd.as_fd()
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: `page` is a live mapping of at least four aligned bytes, shared and
        // accessed only atomically; a sealed file cannot shrink below it.
        unsafe { self.page.as_ref() }
    }

    /// Wakes the sleeper if there is one. Call it after the stores that the sleeper must observe.
    #[inline]
    pub fn ring(&self) {
        if protocol::ring(self.word()) {
            self.wake();
        }
    }

    /// As [`ring`](Bell::ring), but does not wake a sleeper that [ignores
    /// stores](Bell::ignore_stores).
    #[inline]
    pub fn stored(&self) {
        if protocol::stored(self.word()) {
            self.wake();
        }
    }

    /// Within the check of [`nap`](Bell::nap), after its loads: only a [`ring`](Bell::ring) ends
    /// the sleep that follows.
    pub fn ignore_stores(&self) {
        protocol::ignore_stores(self.word());
    }

    #[cold]
    fn wake(&self) {
        // If the wake-up fails, the sleeper wakes at its timeout, so no error is reported.
        let _ = futex::wake(self.word(), futex::Flags::empty(), 1);
    }

    /// Sleeps for at most `limit`, unless `work_waits` returns `true`. `work_waits` is called once,
    /// after the sleep is announced. Only one thread may sleep on a bell.
    pub fn sleep(&self, limit: Duration, mut work_waits: impl FnMut() -> bool) {
        self.nap(|| (!work_waits()).then_some(limit));
    }

    /// As [`sleep`](Bell::sleep), with a time limit from the last check. `look` is called once,
    /// after the sleep is announced. It returns `None` if there is work, or else the longest time
    /// to sleep (`Duration::MAX`: until a ring).
    pub fn nap(&self, look: impl FnOnce() -> Option<Duration>) {
        protocol::announce(self.word());
        if let Some(limit) = look() {
            let limit = (limit != Duration::MAX).then(|| futex::Timespec {
                tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(limit.subsec_nanos()),
            });
            // Only this thread changes a value other than AWAKE into another one.
            let asleep = self.word().load(Ordering::Relaxed);
            if asleep != AWAKE {
                // Woken, timed out or interrupted: in each case the caller checks for work again.
                let _ = futex::wait(self.word(), futex::Flags::empty(), asleep, limit.as_ref());
            }
        }
        protocol::rise(self.word());
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map` and no reference into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), PAGE) };
    }
}

#[cfg(test)]
mod tests;
