//! [`Local`]: the bootstrap of ranks of one process (threads, or fibers of a simulation), with an
//! inbox each.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::inbox::Inbox;
use super::{Bootstrap, check, duplicate, full, gone, lock, too_many};
use crate::error::Result;

/// One rank of a job whose ranks are threads of this process: for tests, examples, and a process
/// with several GPUs.
///
/// It starts no thread, never waits and reads no clock: what arrives depends only on the order of
/// the calls. When the value is dropped, the rank is gone.
///
/// ```
/// use mp::Context;
/// use mp::bootstrap::Local;
/// use mp::gdsync::Gpu;
///
/// std::thread::scope(|threads| {
///     for job in Local::ranks(4) {
///         threads.spawn(move || {
///             let gpu = Gpu::soft().unwrap(); // each rank has a GPU
///             let ctx = Context::builder().bootstrap(job).gpu(&gpu).build().unwrap();
///             assert_eq!(ctx.size(), 4);
///         });
///     }
/// });
/// ```
pub struct Local {
    rank: u32,
    job: u64,
    /// Indexed by rank. None once the rank is gone.
    inboxes: Arc<[Mutex<Option<Inbox>>]>,
}

fn next_job() -> u64 {
    /// The number of the last job. Relaxed: the numbers only need to differ.
    static JOBS: AtomicU64 = AtomicU64::new(0);
    1 + JOBS.fetch_add(1, Ordering::Relaxed)
}

impl Local {
    /// Creates the `size` ranks of a new job, in the order of their numbers.
    pub fn ranks(size: u32) -> Vec<Arc<dyn Bootstrap>> {
        Local::ranks_of(next_job(), size)
    }

    /// Creates the `size` ranks of the job with number `job`, for programs that need the same
    /// numbers in every run.
    pub fn ranks_of(job: u64, size: u32) -> Vec<Arc<dyn Bootstrap>> {
        let inboxes = (0..size).map(|_| Mutex::new(Some(Inbox::default())));
        let inboxes = inboxes.collect::<Arc<[_]>>();
        (0..size)
            .map(|rank| {
                let inboxes = Arc::clone(&inboxes);
                Arc::new(Local { rank, job, inboxes }) as Arc<dyn Bootstrap>
            })
            .collect()
    }

    fn inbox(&self, rank: u32) -> MutexGuard<'_, Option<Inbox>> {
        lock(&self.inboxes[rank as usize])
    }
}

impl Bootstrap for Local {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.inboxes.len() as u32
    }

    fn job(&self) -> u64 {
        self.job
    }

    fn send(&self, to: u32, topic: u64, message: &[u8]) -> Result<()> {
        check(self.size(), to, message)?;
        let mut inbox = self.inbox(to);
        let inbox = inbox.as_mut().ok_or_else(|| gone(to))?;
        if !inbox.has_room(self.rank, message.len()) {
            return Err(full(to));
        }
        inbox.push(self.rank, topic, message.to_vec());
        Ok(())
    }

    fn receive(&self, topic: u64) -> Result<Option<(u32, Vec<u8>)>> {
        Ok(self.inbox(self.rank).as_mut().and_then(|i| i.take(topic)))
    }

    fn forget(&self, topic: u64) {
        if let Some(inbox) = self.inbox(self.rank).as_mut() {
            inbox.forget(topic);
        }
    }

    fn is_forgotten(&self, topic: u64) -> bool {
        let inbox = self.inbox(self.rank);
        inbox.as_ref().is_some_and(|i| i.is_forgotten(topic))
    }

    fn gone(&self, rank: u32) -> bool {
        rank < self.size() && self.inbox(rank).is_none()
    }

    fn host(&self, rank: u32) -> Option<u64> {
        (rank < self.size()).then_some(0)
    }

    fn send_fd(&self, to: u32, topic: u64, fd: BorrowedFd<'_>) -> Result<()> {
        check(self.size(), to, &[])?;
        let fd = duplicate(fd)?;
        let mut inbox = self.inbox(to);
        let inbox = inbox.as_mut().ok_or_else(|| gone(to))?;
        if !inbox.has_room_for_fd() {
            return Err(too_many(to));
        }
        // The inbox returns the descriptor if its topic is forgotten; the drop closes it.
        drop(inbox.push_fd(self.rank, topic, fd));
        Ok(())
    }

    fn receive_fd(&self, topic: u64) -> Result<Option<(u32, OwnedFd)>> {
        let mut inbox = self.inbox(self.rank);
        Ok(inbox.as_mut().and_then(|i| i.take_fd(topic)))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // Unreceived messages are dropped after the lock is released.
        let left = self.inbox(self.rank).take();
        drop(left);
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local")
            .field("rank", &self.rank)
            .field("size", &self.size())
            .field("job", &self.job)
            .finish()
    }
}
