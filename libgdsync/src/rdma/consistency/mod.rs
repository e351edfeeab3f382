//! Makes NIC writes to GPU memory visible to streams if neither the GPU's ordering nor the streams'
//! own flush does: by the CPU ([`host`]) or by a READ of the NIC ([`read`]).
//!
//! Devices own both flushers, but a list finds them by the GPU, because a wait for a word names no
//! device: therefore this layer keeps [`Flushers`] as the companion of each GPU, which does not
//! know their type.

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

/// The maximum number of NICs of one GPU that flush by READs.
pub(super) const MOST_FLUSHING_NICS: usize = 8;

/// The flushers of one GPU. Devices own them, so that they end with the devices.
#[derive(Default)]
pub(crate) struct Flushers(Mutex<Known>);

#[derive(Default)]
struct Known {
    host: Weak<HostFlusher>,
    reads: Vec<Weak<ReadFlusher>>,
    /// Devices whose NIC does not support READ: a READ of another NIC does not push their writes.
    unable: Vec<Weak<FlushFaults>>,
}

impl Flushers {
    /// The flushers of this GPU.
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
    /// `Unsupported` if no NIC is open, or an open NIC has no flusher.
    pub(super) fn reads(&self) -> Result<[Option<Arc<ReadFlusher>>; MOST_FLUSHING_NICS]> {
        let mut out = [const { None }; MOST_FLUSHING_NICS];
        let known = self.0.lock();
        if known.unable.iter().any(|one| one.strong_count() > 0) {
            return Err(no_consistency("an open NIC does not support RDMA READ"));
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
            let what =
                "too many open NICs flush remote writes by RDMA READ; close another one first";
            return Err(Error::new("open device", Kind::Invalid, what)
                .with_limit(MOST_FLUSHING_NICS as u64, "NICs"));
        }
        known.reads.push(Arc::downgrade(read));
        Ok(())
    }
}

/// The flusher that streams of `gpu` need for this NIC; `None`: they need none, or none is
/// possible.
///
/// # Errors
/// `Unsupported` if the environment demands a policy that the NIC does not support.
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
            held.add_counter(fault);
            Ok(Some(held))
        }
        Ok(Consistency::LoopbackRead) => {
            let read = Arc::new(ReadFlusher::new(gpu, nic, watched, fault));
            flushers.add(&read)?;
            Ok(Some(read))
        }
        Err(e) if gpu.wish().is_some() => Err(e.with_owner(nic.name())),
        Err(_) => {
            let mut known = flushers.0.lock();
            known.unable.retain(|one| one.strong_count() > 0);
            known.unable.push(Arc::downgrade(fault));
            Ok(None)
        }
        Ok(_) => Ok(None),
    }
}

/// One object per stream, because streams wait in independent order. It stays locked while work
/// that uses it is being enqueued.
pub(super) struct PerStream<T> {
    known: Mutex<Vec<(u64, Arc<Mutex<T>>)>>,
    /// The number of objects from which on an idle one is reused for another stream.
    keep: usize,
}

impl<T> PerStream<T> {
    pub fn new(keep: usize) -> PerStream<T> {
        PerStream {
            known: Mutex::default(),
            keep,
        }
    }

    /// The object of `stream`: its present one, an `idle` one of another stream, or a new one.
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
            // Handles are made under the lock of the table: a sole handle stays the only one.
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
