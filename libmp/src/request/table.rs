//! The table of a context's requests, and the words that hold their results.
//!
//! An entry lives while its request is unfinished or its handle is held; a sweep of the table
//! removes finished entries without a handle. Each entry has a word in pinned memory, in which a
//! kernel or the library stores for the CPU and for streams how the request ended. A message that the CPU
//! copies in one step stores nothing there before a stream or a kernel reads it.

use gdsync::gpu::{DevicePtr, MemoryKind, Word64};
use gdsync::{Gpu, Status};
use slotmap::{DefaultKey, Key, SlotMap};

use super::entry::{Entry, Handle, Incoming, Operation};
use super::fault::Fault;
use super::one_sided::{Releases, SignalWait};
use super::step::Step;
use crate::error::{Error, Kind, Result};
use crate::kernels::UNKNOWN;
use crate::mutant::{Mutant, on};
use crate::path::{Copier, Report};
use crate::wire::word;

pub(crate) type RequestKey = DefaultKey;

/// Number of entries whose words share a region.
const CHUNK: usize = 512;
/// Maximum number of unfinished requests of a context.
pub(crate) const MAX_REQUESTS: usize = 1 << 16;

/// The table.
pub(crate) struct Table {
    entries: SlotMap<RequestKey, Entry>,
    chunks: Vec<Vec<Word64>>,
    /// By chunk: the words of each entry in device memory; empty before the first receive that needs them.
    reports: Vec<Vec<Ends>>,
    /// Slots of the map that were ever used; the next entry takes one of them or the next slot.
    used: usize,
    /// Sweep when this many entries live.
    sweep_at: usize,
    last_order: u64,
}

/// Two words in device memory in which a kernel stores how a receive ends.
struct Ends {
    words: [Report; 2],
    /// The number of receives that used them.
    uses: u32,
    /// The value of the first one between two receives, or [`UNKNOWN`].
    now: u64,
    /// Blocks of a kernel may still add to the first one: the next receive uses other words.
    retired: bool,
}

impl Ends {
    fn new(words: &[Report; 2]) -> Ends {
        Ends {
            words: words.clone(),
            uses: 0,
            now: 0,
            retired: false,
        }
    }
}

/// The word of [`Ends`] that the kernel stores last, and its value at the end.
pub(crate) struct InDevice {
    /// Reaches `value`, to which the length is added.
    pub word: Word64,
    /// See `word`.
    pub value: u64,
    /// The value of `word` before, or [`UNKNOWN`].
    pub before: u64,
}

/// Clears the word of a released entry for the next request. A store wakes devices, so it is done
/// only if the word is not 0.
fn clear(result: &Word64) {
    // Pinned memory, which the CPU reaches: it cannot fail.
    if result.load().unwrap_or(0) != 0 {
        let _ = result.store(0);
    }
}

fn index(key: RequestKey) -> usize {
    (key.data().as_ffi() & 0xffff_ffff) as usize
}

/// The chunk of the words of an entry, and their index there.
fn place(key: RequestKey) -> (usize, usize) {
    (index(key) / CHUNK, index(key) % CHUNK)
}

impl Table {
    pub fn new() -> Table {
        Table {
            entries: SlotMap::new(),
            chunks: Vec::new(),
            reports: Vec::new(),
            // Slot 0 is never used.
            used: 1,
            sweep_at: 256,
            last_order: 0,
        }
    }

    /// Reserves room for one more entry and for its word.
    ///
    /// # Errors
    /// `QueueFull` with the limit; `Gdsync` if there is no memory for its word.
    #[inline]
    pub fn reserve(&mut self, gpu: &Gpu) -> Result<()> {
        if self.entries.len() >= MAX_REQUESTS {
            let what = "too many requests have not ended or have a handle; wait for requests and \
                        drop their handles";
            let full = Error::new("prepare request", Kind::QueueFull, what);
            return Err(full.with_limit(MAX_REQUESTS, "requests"));
        }
        while self.used >= CHUNK * self.chunks.len() {
            // Under the state's lock, but a waiting stream cannot block it: the library allocates
            // pinned memory in its own CUDA context.
            self.chunks.push(chunk(gpu)?);
        }
        Ok(())
    }

    /// Inserts an entry, whose word is clear, into reserved room.
    #[inline]
    pub fn put(&mut self, entry: Entry) -> RequestKey {
        let key = self.entries.insert(entry);
        self.used = self.used.max(index(key) + 1);
        key
    }

    /// Removes an entry of which nothing was enqueued.
    pub fn withdraw(&mut self, key: RequestKey) {
        self.entries.remove(key);
    }

    /// Whether a sweep is due.
    pub fn is_crowded(&self) -> bool {
        self.entries.len() >= self.sweep_at
    }

    /// Sets the size at which the next sweep is due; called after a sweep.
    pub fn swept(&mut self) {
        self.sweep_at = (2 * self.entries.len()).max(256);
    }

    pub fn get(&self, key: RequestKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub fn get_mut(&mut self, key: RequestKey) -> Option<&mut Entry> {
        self.entries.get_mut(key)
    }

    pub fn receive_mut(&mut self, key: RequestKey) -> Option<&mut Incoming> {
        match &mut self.entries.get_mut(key)?.operation {
            Operation::Receive(receive) => Some(receive),
            _ => None,
        }
    }

    pub fn step_mut(&mut self, key: RequestKey) -> Option<&mut Step> {
        match &mut self.entries.get_mut(key)?.operation {
            Operation::Step(step) => Some(step),
            _ => None,
        }
    }

    pub fn signal_mut(&mut self, key: RequestKey) -> Option<&mut SignalWait> {
        match &mut self.entries.get_mut(key)?.operation {
            Operation::Signal(wait) => Some(wait),
            _ => None,
        }
    }

    /// The waits for signals that streams have not passed.
    pub fn releases(&self) -> Releases {
        let mut waits: Vec<_> = self.iter().collect();
        waits.sort_unstable_by_key(|(_, entry)| entry.order);
        let wait = |(key, entry): (RequestKey, &Entry)| {
            Some((entry.signal()?.clone(), self.result_word(key).clone()))
        };
        Releases(waits.into_iter().filter_map(wait).collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = (RequestKey, &Entry)> {
        self.entries.iter()
    }

    /// Removes a request that has ended, if its word is no longer used.
    pub fn forget(&mut self, key: RequestKey) -> bool {
        let free = self.entries.get_mut(key).is_some_and(|entry| {
            let done = entry.status().is_some() && entry.handle != Handle::Held;
            done && entry.waiters.iter_mut().all(|w| w.passed.is_done())
        });
        if free {
            clear(self.result_word(key));
            self.entries.remove(key);
        }
        free
    }

    /// Writes into `into` the keys of all requests that `advance` may change: those that have not
    /// ended, and those that have ended with a dropped handle.
    pub fn to_advance(&self, into: &mut Vec<RequestKey>) {
        into.clear();
        let open = self
            .entries
            .iter()
            .filter(|(_, e)| e.status().is_none() || e.handle != Handle::Held);
        into.extend(open.map(|(key, _)| key));
    }

    /// Failures that no call has returned.
    pub fn faults(&mut self) -> impl Iterator<Item = (&Fault, &mut bool)> {
        let ends = self.entries.values_mut().map(|entry| &mut entry.end);
        ends.filter_map(|end| Some((end.fault.as_deref()?, &mut end.returned)))
            .filter(|(_, returned)| !**returned)
    }

    /// The next position in the order of posts and waits.
    pub fn next_order(&mut self) -> u64 {
        self.last_order += 1;
        self.last_order
    }

    /// The word that holds the request's result: see [`word::result`].
    pub fn result_word(&self, key: RequestKey) -> &Word64 {
        let (chunk, at) = place(key);
        &self.chunks[chunk][at]
    }

    /// The words in device memory in which a kernel stores how a receive ends. The receive keeps the value
    /// of the first one.
    ///
    /// # Errors
    /// Those of [`Gpu::alloc`].
    pub fn make_report(&mut self, key: RequestKey, copier: &Copier) -> Result<InDevice> {
        let (chunk, at) = place(key);
        if self.reports.len() <= chunk {
            self.reports.resize_with(chunk + 1, Vec::new);
        }
        if self.reports[chunk].is_empty() {
            let all = copier.reports(2 * CHUNK)?;
            self.reports[chunk] = all.as_chunks().0.iter().map(Ends::new).collect();
        }
        let ends = &mut self.reports[chunk][at];
        if ends.retired
            && let Some(words) = copier.reports(2)?.first_chunk()
        {
            *ends = Ends::new(words);
        }
        ends.uses = ends.uses.wrapping_add(1);
        let value = word::ended(ends.uses - u32::from(on(Mutant::StaleEnd)));
        // The kernel also stores to the next word: `Copier::reports` returns words in a row.
        let word = ends.words[0].word().clone();
        let before = std::mem::replace(&mut ends.now, UNKNOWN);
        if let Some(receive) = self.receive_mut(key) {
            receive.ended = Some(value);
        }
        Ok(InDevice {
            word,
            value,
            before,
        })
    }

    /// Notes the value with which a kernel has ended a receive, or retires the words of a receive that the library
    /// ends.
    pub fn note_end(&mut self, key: RequestKey) {
        let Some(([ended, _], value)) = self.report(key) else {
            return;
        };
        let now = ended.load();
        let (chunk, at) = place(key);
        let ends = &mut self.reports[chunk][at];
        match now.wrapping_sub(value) <= word::MAX_LEN {
            true if on(Mutant::ForgottenLength) => ends.now = value,
            true => ends.now = now,
            false => ends.retired = true,
        }
    }

    /// Takes back [`Table::make_report`]: no kernel stores there. The word must not fall behind by more uses
    /// than its comparison spans.
    pub fn withdraw_report(&mut self, key: RequestKey) {
        let Some(receive) = self.receive_mut(key) else {
            return;
        };
        if receive.ended.take().is_none() {
            return;
        }
        let (chunk, at) = place(key);
        if let Some(ends) = self
            .reports
            .get_mut(chunk)
            .and_then(|ends| ends.get_mut(at))
        {
            ends.uses = ends.uses.wrapping_sub(1);
        }
    }

    /// The words of [`Table::make_report`], and the value of the first one, of a receive that has them.
    fn report(&self, key: RequestKey) -> Option<(&[Report; 2], u64)> {
        let value = self.entries.get(key)?.receive()?.ended?;
        let (chunk, at) = place(key);
        let ends = self.reports.get(chunk)?.get(at)?;
        Some((&ends.words, value))
    }

    /// The word and the value that it reaches when a request has ended, for streams.
    pub fn end_word(&mut self, key: RequestKey) -> (&Word64, u64) {
        if self.report(key).is_none() {
            self.keep_in_host(key);
        }
        match self.report(key) {
            Some(([ended, _], value)) => (ended.word(), value),
            None => (self.result_word(key), 1),
        }
    }

    /// The result that a kernel stored for the request; `None` if there is none yet.
    pub fn result(&self, key: RequestKey) -> Option<(Status, u64)> {
        let in_host = || word::parse_result(self.result_word(key).load().unwrap_or(0));
        let Some(([ended, _], value)) = self.report(key) else {
            return in_host();
        };
        // A kernel that ends a receive with a failure stores it in host memory first, by any of its blocks. The other
        // ones may still use the receive until all of them have added to the word in device memory.
        let len = ended.load().wrapping_sub(value);
        let success = (Status::SUCCESS, len);
        (len <= word::MAX_LEN).then(|| in_host().unwrap_or(success))
    }

    /// Stores how a request ended. Only kernels store to the words in device memory: no stream waits for those of a
    /// receive that the library ends.
    pub fn set_result(&self, key: RequestKey, status: Status, len: u64) {
        // Pinned memory, which the CPU reaches: it cannot fail.
        let _ = self.result_word(key).store(word::result(status, len));
    }

    /// Notes that the result is read in host memory, and stores it there if the request has ended without that.
    fn keep_in_host(&mut self, key: RequestKey) {
        if let Some(receive) = self.receive_mut(key) {
            receive.result_in_host = true;
        }
        if let Some(entry) = self.get(key)
            && let Some(status) = entry.status()
            && self.result_word(key).load().unwrap_or(0) == 0
        {
            // A message that the CPU copied in one step has no result here. A word that is not 0 has its result,
            // and keeps it: a send may have failed behind its end.
            self.set_result(key, status, entry.len);
        }
    }

    /// The address of the word that holds the result, for kernels behind a wait.
    pub fn shown_result(&mut self, key: RequestKey) -> DevicePtr {
        if let Some(([_, own], _)) = self.report(key) {
            return own.word().addr();
        }
        self.keep_in_host(key);
        self.result_addr(key)
    }

    /// The address of the result word on the GPU.
    pub fn result_addr(&self, key: RequestKey) -> DevicePtr {
        self.result_word(key).addr()
    }
}

fn chunk(gpu: &Gpu) -> Result<Vec<Word64>> {
    let region = gpu.alloc(MemoryKind::Pinned, CHUNK * 8)?;
    (0..CHUNK).map(|i| Ok(region.word64(i * 8)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::entry::{Common, Incoming};

    fn with_receive() -> (Table, Copier, RequestKey) {
        let gpu = Gpu::soft().unwrap();
        let mut table = Table::new();
        table.reserve(&gpu).unwrap();
        let key = table.put(Entry {
            common: Common::new(1, 2, &[]),
            operation: Operation::Receive(Incoming::default()),
        });
        (table, Copier::new(&gpu, None, false), key)
    }

    /// A block of a kernel has stored a failure, and another one uses the receive still. The words of a receive that
    /// the library ends are not used again.
    #[test]
    fn receive_ends_with_its_last_block() {
        let (mut table, copier, key) = with_receive();
        let report = table.make_report(key, &copier).unwrap();
        assert_eq!(report.before, 0);
        table.set_result(key, Status::TRUNCATED, 9);
        report.word.store(report.value - 1).unwrap();
        assert_eq!(table.result(key), None);
        report.word.store(report.value).unwrap();
        assert_eq!(table.result(key), Some((Status::TRUNCATED, 9)));
        table.note_end(key);
        let next = table.make_report(key, &copier).unwrap();
        assert_eq!(next.before, report.value);
        assert_eq!(next.word.addr().0, report.word.addr().0);
        table.note_end(key);
        let other = table.make_report(key, &copier).unwrap();
        assert_ne!(other.word.addr().0, report.word.addr().0);
        assert_eq!((other.before, other.value), (0, word::ended(1)));
    }

    #[test]
    fn refused_claims_do_not_use_up_the_values_of_a_report() {
        let (mut table, copier, key) = with_receive();
        let make = |table: &mut Table| table.make_report(key, &copier).unwrap().value;
        let first = make(&mut table);
        assert_eq!(table.end_word(key).1, first);
        table.withdraw_report(key);
        table.withdraw_report(key);
        assert_eq!(table.end_word(key).1, 1, "no kernel stores in the report");
        assert_eq!(make(&mut table), first);
        assert_eq!([first, make(&mut table)], [1, 2].map(word::ended));
    }
}
