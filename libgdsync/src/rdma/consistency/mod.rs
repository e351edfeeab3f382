//! Makes visible to streams what NICs wrote to GPU memory, where neither the GPU's order nor its
//! streams' own flush does: by the CPU ([`host`]) or by a READ of the NIC's ([`read`]).
//!
//! Both belong to devices, and are found by the GPU, since a wait for a word names no device: so
//! [`Flushers`] are what this layer keeps beside each GPU, which does not know them.

mod host;
mod read;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};

use gds_step::Mutex;

use super::verbs::{FlushFaults, Flusher};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Consistency, Gpu, MemoryKind, no_consistency};
use crate::nic::Nic;

pub(super) use host::{HostFlusher, Slot};
pub(super) use read::{LoopbackQp, ReadFlusher};

/// NICs of one GPU that flush by READs, at most.
pub(super) const MOST_FLUSHING_NICS: usize = 8;

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
    /// Those of this GPU.
    pub(super) fn of(gpu: &Gpu) -> &Flushers {
        gpu.companion()
    }

    /// The flusher by the CPU, if there is a device.
    pub(super) fn host(&self) -> Option<Arc<HostFlusher>> {
        self.0.lock().host.upgrade()
    }

    /// The flushers by READs, one for each NIC.
    ///
    /// # Errors
    /// `Unsupported` if there is none, or a NIC that has none.
    pub(super) fn reads(&self) -> Result<[Option<Arc<ReadFlusher>>; MOST_FLUSHING_NICS]> {
        let mut out = [const { None }; MOST_FLUSHING_NICS];
        let known = self.0.lock();
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
        let mut known = self.0.lock();
        known.reads.retain(|read| read.strong_count() > 0);
        if known.reads.len() == MOST_FLUSHING_NICS {
            let what = "NICs that flush what they write to the GPU by READs";
            return Err(
                Error::new("open device", Kind::Invalid, what).limit(MOST_FLUSHING_NICS as u64)
            );
        }
        known.reads.push(Arc::downgrade(read));
        Ok(())
    }
}

/// What streams of `gpu` need beside this NIC; `None`: nothing, or there is nothing to be had.
///
/// # Errors
/// `Unsupported` if the environment demands what the NIC cannot do.
pub(super) fn flusher(
    gpu: &Gpu,
    nic: &Arc<dyn Nic>,
    watched: bool,
    fault: &Arc<FlushFaults>,
) -> Result<Option<Arc<dyn Flusher>>> {
    let flushers = Flushers::of(gpu);
    match Consistency::choose(MemoryKind::Device, gpu.caps(), nic.reads()) {
        Ok(Consistency::HostFlag) => {
            let mut known = flushers.0.lock();
            let held = known.host.upgrade().unwrap_or_else(|| {
                let made = Arc::new(HostFlusher::new(gpu));
                known.host = Arc::downgrade(&made);
                made
            });
            held.tell(fault);
            Ok(Some(held))
        }
        Ok(Consistency::LoopbackRead) => {
            let read = Arc::new(ReadFlusher::new(gpu, nic, watched, fault));
            flushers.add(&read)?;
            Ok(Some(read))
        }
        Err(e) if gpu.wish().is_some() => Err(e.of(nic.name())),
        Err(_) => {
            let mut known = flushers.0.lock();
            known.unable.retain(|one| one.strong_count() > 0);
            known.unable.push(Arc::downgrade(fault));
            Ok(None)
        }
        Ok(_) => Ok(None),
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
        let mut known = self.known.lock();
        if let Some((_, own)) = known.iter().find(|(of, _)| *of == stream) {
            return Ok(Arc::clone(own));
        }
        if known.len() >= self.keep {
            // Handles are made under the lock of the table: who is the only one stays so.
            let unused = |one: &Arc<Mutex<T>>| Arc::strong_count(one) == 1 && idle(&one.lock());
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
