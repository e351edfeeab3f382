//! Lists whose flushes another party makes for the stream: the CPU, or NICs that READ.
//!
//! A flush belongs behind the last of several consecutive waits, because nothing between them reads
//! memory. There the stream requests the flush, and waits for it.

use std::sync::{Arc, MutexGuard};

use gds_step::Mutex;

use super::{
    Descriptor, Held, Scratch, are_sends_of_one, hold, lower_one, lower_run, lower_sends,
    lower_wait,
};
use crate::error::Result;
use crate::gpu::{Proof, Stream, no_consistency};
use crate::memop::Caps;
use crate::mutant::{self, Mutant};
use crate::rdma::consistency::{Flushers, LoopbackQp, MOST_FLUSHING_NICS, Slot};
use crate::rdma::verbs::Qp;

/// Whether streams of a GPU with these capabilities need another party to flush for them.
pub(super) fn by_others(caps: &Caps) -> bool {
    !(caps.flush || caps.ordered_writes)
}

/// The queue pairs that a list names, followed by those by which NICs flush for it.
pub(super) struct Queues<'a, 'q> {
    given: &'a [&'q mut Qp],
    loops: &'a [Option<MutexGuard<'a, LoopbackQp>>],
}

impl<'a, 'q> Queues<'a, 'q> {
    pub fn of_list(given: &'a [&'q mut Qp]) -> Queues<'a, 'q> {
        Queues { given, loops: &[] }
    }

    /// The queue pairs that the list names.
    pub fn given(&self) -> impl Iterator<Item = &Qp> {
        self.given.iter().map(|qp| &**qp)
    }

    /// All queue pairs.
    pub fn all(&self) -> impl Iterator<Item = &Qp> {
        self.given().chain(self.loops().map(|one| &one.qp))
    }

    /// The index of the queue pair with this number among those that the list names. The search
    /// begins at `from`: most lists name their queue pairs one after the other.
    pub fn find(&self, id: u64, from: usize) -> Option<usize> {
        let (before, behind) = self.given.split_at(from.min(self.given.len()));
        let found = behind.iter().position(|qp| qp.id == id);
        let found = found.map(|at| before.len() + at);
        found.or_else(|| before.iter().position(|qp| qp.id == id))
    }

    pub fn get(&self, queue: usize) -> &Qp {
        match queue.checked_sub(self.given.len()) {
            None => self.given[queue],
            Some(one) => &self.one(one).qp,
        }
    }

    fn loops(&self) -> impl Iterator<Item = &LoopbackQp> {
        self.loops.iter().flatten().map(|one| &**one)
    }

    fn one(&self, one: usize) -> &LoopbackQp {
        self.loops[one].as_deref().expect("one that is used")
    }

    /// Aborts the requests that NICs were to execute and that were not posted.
    pub fn take_back(&self) {
        self.loops().for_each(LoopbackQp::take_back);
    }
}

/// The party that flushes for the stream.
pub(super) enum By<'a> {
    /// The stream itself, if a flush is necessary.
    Stream,
    Cpu(MutexGuard<'a, Slot>),
    Nics,
}

/// Calls `run` with the flushers of `stream`. No other thread has them meanwhile, so that the
/// stream's requests for flushes follow the order of enqueues.
///
/// # Errors
/// `Unsupported` if there is no flusher; the errors of `run`.
pub(super) fn with_flusher(
    stream: &Stream,
    given: &[&mut Qp],
    run: impl FnOnce(&Queues<'_, '_>, By<'_>) -> Result<()>,
) -> Result<()> {
    let (gpu, id) = (stream.gpu(), stream.id());
    if gpu.caps().host_flush {
        let no_nic = || no_consistency("no NIC is open");
        // Kept until the request is enqueued on the stream: the flusher owns the words, and its
        // drop releases the streams that wait for it by then.
        let flusher = Flushers::of(gpu).host().ok_or_else(no_nic)?;
        let slot = flusher.slot(id)?;
        return run(&Queues::of_list(given), By::Cpu(slot.lock()));
    }
    let flushers = Flushers::of(gpu).reads()?;
    let mut owned: [Option<Arc<Mutex<LoopbackQp>>>; MOST_FLUSHING_NICS] =
        [const { None }; MOST_FLUSHING_NICS];
    for (to, flusher) in owned.iter_mut().zip(flushers.iter().flatten()) {
        *to = Some(flusher.of(id)?);
    }
    let loops = owned.each_ref().map(|one| one.as_deref().map(Mutex::lock));
    let loops = &loops;
    run(&Queues { given, loops }, By::Nics)
}

impl Descriptor<'_> {
    /// Whether the operation makes earlier writes of devices visible.
    pub(super) fn flushes(&self) -> bool {
        match self {
            Descriptor::Wait { flush, .. }
            | Descriptor::WaitValue { flush, .. }
            | Descriptor::WaitCount { flush, .. } => *flush,
            Descriptor::Flush => true,
            _ => false,
        }
    }

    /// Whether a later operation may be handled before a flush that was requested earlier.
    fn only_waits(&self) -> bool {
        matches!(
            self,
            Descriptor::Wait { .. }
                | Descriptor::WaitValue { .. }
                | Descriptor::WaitCount { .. }
                | Descriptor::PassedBy { .. }
                | Descriptor::Flush
        )
    }

    /// The operation without its flush, for a flush by another party; `None`: no operation remains.
    fn without_flush(self) -> Option<Self> {
        (!matches!(self, Descriptor::Flush)).then(|| self.flush(false))
    }
}

/// Lowers a whole list.
pub(super) fn lower_all<'q>(
    stream: &Stream,
    queues: &'q Queues<'_, '_>,
    list: &[Descriptor<'_>],
    mut by: By<'_>,
    s: &mut Scratch,
    held: &mut Held<'q>,
) -> Result<()> {
    if matches!(by, By::Stream) {
        let mut runs = list.chunk_by(are_sends_of_one);
        return runs.try_for_each(|run| lower_run(stream, queues, run, s, held));
    }
    let mut wanted = false;
    for descriptor in list {
        if wanted && !descriptor.only_waits() && !mutant::on(Mutant::FlushedLate) {
            flush(stream, queues, &mut by, s, held)?;
            wanted = false;
        }
        wanted |= descriptor.flushes() && !mutant::on(Mutant::DroppedFlush);
        if let Some(plain) = descriptor.without_flush() {
            lower_one(stream, queues, &plain, s, held)?;
        }
    }
    match wanted {
        true => flush(stream, queues, &mut by, s, held),
        false => Ok(()),
    }
}

fn flush<'q>(
    stream: &Stream,
    queues: &'q Queues<'_, '_>,
    by: &mut By<'_>,
    s: &mut Scratch,
    held: &mut Held<'q>,
) -> Result<()> {
    if let By::Cpu(slot) = by {
        slot.ask().into_iter().for_each(|op| s.list.push(op));
        s.proof.get_or_insert(Proof::Idle);
        return Ok(());
    }
    // All NICs get their request before the stream waits for one of them.
    let mut requests = [None; MOST_FLUSHING_NICS];
    for (i, (one, request)) in queues.loops().zip(&mut requests).enumerate() {
        // The request locks its queue pair: no other may be locked.
        *held = None;
        let read = one.prepare()?;
        let queue = queues.given.len() + i;
        let state = hold(queues, queue, held);
        lower_sends(stream, (queue, &one.qp, state), [read].into_iter(), s)?;
        *request = Some(read);
    }
    if mutant::on(Mutant::ReadNotAwaited) {
        return Ok(());
    }
    for (i, read) in requests.into_iter().flatten().enumerate() {
        let queue = queues.given.len() + i;
        let state = hold(queues, queue, held);
        let found = (queue, &queues.one(i).qp, state);
        lower_wait(stream, found, read.into(), false, None, s)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Gpu;
    use crate::gpu::soft::SoftOptions;
    use crate::rdma::verbs::Device;

    /// The last device may be dropped while another thread enqueues: words and queue pairs in use
    /// by an enqueue must outlive it.
    #[test]
    fn flusher_outlives_its_device_during_an_enqueue() {
        for by_cpu in [true, false] {
            let mut options = SoftOptions::default();
            (options.caps.flush, options.caps.host_flush) = (false, by_cpu);
            let live = gds_step::Live::global().unwrap();
            let gpu = Gpu::soft_with(live, options).unwrap();
            let device = Device::emulated(&gpu).unwrap();
            let stream = gpu.stream().unwrap();
            let enqueued = with_flusher(&stream, &[], |_, _| {
                drop(device);
                assert_eq!(Flushers::of(&gpu).host().is_some(), by_cpu);
                assert_eq!(Flushers::of(&gpu).reads().is_ok(), !by_cpu);
                Ok(())
            });
            enqueued.unwrap();
            assert!(Flushers::of(&gpu).host().is_none());
            assert!(Flushers::of(&gpu).reads().is_err());
        }
    }
}
