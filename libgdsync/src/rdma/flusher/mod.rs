//! Makes visible to streams what NICs wrote to GPU memory, where neither the GPU's order nor its
//! streams' own flush does: by the CPU ([`host`]) or by a READ of the NIC's ([`read`]).
//!
//! Both belong to devices, and are found by the GPU, since a wait for a word names no device.

mod host;
mod read;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::{Error, Kind, Result};
use crate::gpu::{Consistency, Gpu, MemoryKind, no_consistency};
use crate::provider::nic::Nic;
use crate::ring::RingMemory;
use crate::status::Status;
use crate::watch::WeakWatchList;

pub(super) use host::{HostFlusher, Slot};
pub(super) use read::{Loop, ReadFlusher};

/// NICs of one GPU that flush by READs, at most.
pub(super) const MOST: usize = 8;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What flushes on one GPU. Owned by devices, so that it ends with them.
#[derive(Default)]
pub(crate) struct Flushers(Mutex<Known>);

#[derive(Default)]
struct Known {
    host: Weak<HostFlusher>,
    reads: Vec<Weak<ReadFlusher>>,
    /// Of devices whose NIC cannot: what they write, no other NIC's READ pushes.
    unable: Vec<Weak<FlushFaults>>,
}

impl Flushers {
    /// The flusher by the CPU, if there is a device.
    pub(super) fn host(&self) -> Option<Arc<HostFlusher>> {
        lock(&self.0).host.upgrade()
    }

    /// The flushers by READs, one for each NIC.
    ///
    /// # Errors
    /// `Unsupported` if there is none, or a NIC that has none.
    pub(super) fn reads(&self) -> Result<[Option<Arc<ReadFlusher>>; MOST]> {
        let mut out = [const { None }; MOST];
        let known = lock(&self.0);
        if known.unable.iter().any(|one| one.strong_count() > 0) {
            return Err(no_consistency("a NIC is open that does no READs"));
        }
        for (to, read) in out
            .iter_mut()
            .zip(known.reads.iter().filter_map(Weak::upgrade))
        {
            *to = Some(read);
        }
        match out[0] {
            Some(_) => Ok(out),
            None => Err(no_consistency("no NIC is open")),
        }
    }

    fn add(&self, read: &Arc<ReadFlusher>) -> Result<()> {
        let mut known = lock(&self.0);
        known.reads.retain(|read| read.strong_count() > 0);
        if known.reads.len() == MOST {
            let what = "NICs that flush what they write to the GPU by READs";
            return Err(Error::new("open device", Kind::Invalid, what).limit(MOST as u64));
        }
        known.reads.push(Arc::downgrade(read));
        Ok(())
    }
}

/// What a device has for its GPU's sake.
pub(super) enum Flusher {
    /// The GPU needs none, or there is none to be had.
    None,
    Host {
        _held: Arc<HostFlusher>,
    },
    Read(Arc<ReadFlusher>),
}

impl Flusher {
    /// What streams of `gpu` need beside this NIC.
    ///
    /// # Errors
    /// `Unsupported` if the environment demands what the NIC cannot do.
    pub fn new(
        gpu: &Gpu,
        nic: &Arc<dyn Nic>,
        watched: bool,
        fault: &Arc<FlushFaults>,
    ) -> Result<Flusher> {
        match Consistency::choose(MemoryKind::Device, gpu.caps(), nic.reads()) {
            Ok(Consistency::HostFlag) => {
                let mut known = lock(&gpu.flushers().0);
                let held = known.host.upgrade().unwrap_or_else(|| {
                    let made = Arc::new(HostFlusher::new(gpu));
                    known.host = Arc::downgrade(&made);
                    made
                });
                held.tell(fault);
                Ok(Flusher::Host { _held: held })
            }
            Ok(Consistency::LoopbackRead) => {
                let read = Arc::new(ReadFlusher::new(gpu, nic, watched, fault));
                gpu.flushers().add(&read)?;
                Ok(Flusher::Read(read))
            }
            Err(e) if gpu.wish().is_some() => Err(e.of(nic.name())),
            Err(_) => {
                let mut known = lock(&gpu.flushers().0);
                known.unable.retain(|one| one.strong_count() > 0);
                known.unable.push(Arc::downgrade(fault));
                Ok(Flusher::None)
            }
            Ok(_) => Ok(Flusher::None),
        }
    }

    /// One visit of the queue pairs that are its own.
    pub fn progress(&self) -> bool {
        match self {
            Flusher::Read(read) => read.progress(),
            _ => false,
        }
    }
}

/// How often flushes have failed that a device relies on. Streams that stand at one are let go, as
/// with any failure, but over bytes that may be old: so it is a failure of every queue pair of
/// the device.
pub(crate) struct FlushFaults {
    /// Counted up, with release, before streams are let go; loaded, with acquire, by whoever
    /// looks at a queue pair.
    count: AtomicU32,
    /// The queue pairs of the device. They hold this, so it does not hold them.
    list: WeakWatchList,
}

impl FlushFaults {
    pub fn new(list: WeakWatchList) -> FlushFaults {
        FlushFaults {
            count: AtomicU32::new(0),
            list,
        }
    }

    /// How often a flush has failed so far.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// A flush has failed: nobody may go on as if it had not.
    pub fn raise(&self) {
        self.count.fetch_add(1, Ordering::Release);
        for core in self.list.open() {
            // The word keeps the first cause.
            let error = &core.places.error.cpu;
            if Status(error.load32(0)) == Status::PENDING {
                error.store32(0, Status::NOT_VISIBLE.0);
            }
        }
    }
}

/// What each stream has for itself, since streams wait in their own order. It is locked as long
/// as something is being enqueued that it is in.
pub(super) struct PerStream<T> {
    known: Mutex<Vec<(u64, Arc<Mutex<T>>)>>,
    /// So many there are before one that is idle is given to another stream.
    keep: usize,
}

impl<T> PerStream<T> {
    pub fn new(keep: usize) -> PerStream<T> {
        PerStream {
            known: Mutex::default(),
            keep,
        }
    }

    /// What `stream` has: its own, another's that is `idle`, or one made now.
    pub fn get(
        &self,
        stream: u64,
        idle: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<Mutex<T>>> {
        let mut known = lock(&self.known);
        if let Some((_, own)) = known.iter().find(|(of, _)| *of == stream) {
            return Ok(Arc::clone(own));
        }
        if known.len() >= self.keep {
            // Handles are made under the lock of the table: who is the only one stays so.
            let unused = |one: &Arc<Mutex<T>>| Arc::strong_count(one) == 1 && idle(&lock(one));
            if let Some((of, one)) = known.iter_mut().find(|(_, one)| unused(one)) {
                *of = stream;
                return Ok(Arc::clone(one));
            }
        }
        let made = Arc::new(Mutex::new(make()?));
        known.push((stream, Arc::clone(&made)));
        Ok(made)
    }
}
