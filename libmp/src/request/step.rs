//! Steps of an exchange with neighbours: the words by which the neighbours synchronise, and the
//! record of a step that a stream or the CPU executes.
//!
//! Each peer stores the number of a step into two words of this rank: the *ready word* when this
//! rank may send it the data of the step, the *arrival word* behind its own data. A peer can be
//! several neighbours, which share the words. Successive steps use different words, because the
//! words of two steps may be in flight on different lanes. A step that lacks a word of a peer that
//! was given up has failed: the library stores a value into all words of this peer that releases
//! the waits of this step and of all later ones. It stores the value again if the peer, which was late, has stored
//! a word over it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gdsync::Status;
use gdsync::gpu::Word64;

use crate::path::Put;
use crate::region::Memory;

/// A value of words that releases their waits, more than any number of steps; and the value of [`PeerState::closed`]
/// when the context is dropped. `device/mp_step.cu` has the same values.
const RELEASED: u64 = 1 << 62;
const DROPPED: u64 = 2;

/// The value of a word before the first step: two less than the step that uses it first.
pub(crate) fn before(parity: usize) -> u64 {
    (parity as u64).wrapping_neg()
}

/// The words that a step uses.
pub(crate) fn parity(step: u64) -> usize {
    (step & 1) as usize
}

/// Whether a word has reached a step, as a stream's wait compares them.
pub(crate) fn reached(word: &Word64, step: u64) -> bool {
    word.load().unwrap_or(0).wrapping_sub(step) as i64 >= 0
}

/// The neighbours that are the same other rank.
#[derive(Debug)]
pub(crate) struct PeerState {
    pub rank: u32,
    /// The number of neighbours.
    pub count: u64,
    /// The tags under which this rank sends to the first of them and receives from it.
    pub send: u32,
    pub receive: u32,
    /// The bytes that a step sends to all of them and receives from them.
    pub bytes: [u64; 2],
    /// Its ready words: this rank may send it the data of a step. By parity of the step, as all
    /// arrays of two.
    pub ready: [Word64; 2],
    /// Its arrival words: its data has arrived.
    pub arrived: [Word64; 2],
    /// Not 0: the peer was given up, and kernels of steps write nothing to it. [`DROPPED`]: they wait for none of its
    /// words.
    pub closed: Word64,
    /// The last step whose data a kernel has written to the peer.
    pub left: Word64,
    /// The first step that failed because it was given up, or `u64::MAX`. Relaxed: written and read
    /// under the engine's lock.
    lost: AtomicU64,
}

impl PeerState {
    /// A peer without neighbours; `tags` are those of the first.
    pub fn new(rank: u32, tags: [u32; 2], words: [Word64; 6]) -> PeerState {
        let [even, odd, even_data, odd_data, closed, left] = words;
        PeerState {
            rank,
            count: 0,
            send: tags[0],
            receive: tags[1],
            bytes: [0; 2],
            ready: [even, odd],
            arrived: [even_data, odd_data],
            closed,
            left,
            lost: AtomicU64::new(u64::MAX),
        }
    }

    /// Adds a neighbour, with the bytes that a step sends to it and receives from it.
    pub fn add(&mut self, [sent, received]: [u64; 2]) {
        self.count += 1;
        self.bytes[0] += sent;
        self.bytes[1] += received;
    }

    /// Whether a step failed because the peer was given up.
    pub fn is_lost(&self, step: u64) -> bool {
        step >= self.lost.load(Ordering::Relaxed)
    }

    /// The first step that lacks a word.
    fn first_lacking(&self) -> u64 {
        let words = self.ready.iter().chain(&self.arrived);
        // A word holds the last of its steps; the next is two steps later.
        let next = words.map(|word| word.load().unwrap_or(0).wrapping_add(2));
        next.min().unwrap_or(u64::MAX)
    }

    /// Sets `closed`: kernels that read it later write nothing to the peer.
    pub fn close(&self) {
        // Pinned memory, which the CPU reaches: it cannot fail.
        let _ = self.closed.store(1);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load().unwrap_or(0) != 0
    }

    /// Which word of the peer a step lacks.
    pub fn lacks(&self, step: u64) -> Option<Lacking> {
        let at = parity(step);
        match () {
            () if !reached(&self.ready[at], step) => Some(Lacking::Ready),
            () if !reached(&self.arrived[at], step) => Some(Lacking::Data),
            () => None,
        }
    }

    /// Releases the waits of step `from` and of later steps; `ended`: see [`PeerState::release_waits`].
    fn lose(&self, from: u64, ended: u64) {
        self.lost.store(from, Ordering::Relaxed);
        self.close();
        self.release_waits(ended);
    }

    /// Releases the waits for the words of the peer. A word that the peer stores later ends that. The data of a step
    /// behind `ended` that has arrived can still be unpacked: its word is kept.
    pub fn release_waits(&self, ended: u64) {
        let is_needed = |word: &Word64| reached(word, ended.wrapping_add(1));
        let arrived = self.arrived.iter().filter(|word| !is_needed(word));
        for word in self.ready.iter().chain(arrived) {
            // As above.
            let _ = word.store(RELEASED);
        }
    }
}

/// How a peer is sent the data of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent {
    /// It is not: the peer was lost before.
    Not,
    /// By puts on a lane, of which this is the last.
    Put(u8, Put),
    /// By the kernel of the step.
    Kernel,
}

/// The last step that was sent, and how each peer was sent its data.
#[derive(Debug, Default)]
pub(crate) struct Last {
    pub step: u64,
    pub sent: Vec<Sent>,
}

impl Last {
    /// Whether a kernel sends the data of this step.
    pub fn has_kernel(&self, step: u64) -> bool {
        self.step == step && self.sent.iter().any(|sent| matches!(sent, Sent::Kernel))
    }
}

/// The part of a [`Neighbourhood`](crate::Neighbourhood) that the background work uses: its words.
/// The records of its steps hold it, and it holds all memory that they use.
#[derive(Debug)]
pub(crate) struct ExchangeWords {
    pub peers: Vec<PeerState>,
    /// The last step whose waits a stream has passed.
    pub passed: Word64,
    /// The last step whose data a kernel of a send alone has sent to all peers.
    pub left: Word64,
    /// The last step whose record has ended. Relaxed: written and read under the engine's lock.
    ended: AtomicU64,
    /// Locked under the engine's lock, or while there is none.
    last: Mutex<Last>,
    /// No handle is left. Relaxed: a later round of the background work may find it.
    abandoned: AtomicBool,
    _memory: Vec<Memory>,
}

impl ExchangeWords {
    pub fn new(
        peers: Vec<PeerState>,
        [passed, left]: [Word64; 2],
        memory: Vec<Memory>,
    ) -> ExchangeWords {
        let sent = vec![Sent::Not; peers.len()];
        ExchangeWords {
            peers,
            passed,
            left,
            ended: AtomicU64::new(0),
            last: Mutex::new(Last { step: 0, sent }),
            abandoned: AtomicBool::new(false),
            _memory: memory,
        }
    }

    pub fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a step that was sent end although no call waits for it.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Releases all waits for a peer that was given up, if a step up to `step` lacks one of
    /// its words, or if the put of `step` to it failed.
    pub fn lose(&self, peer: &PeerState, step: u64, unsent: bool) {
        let lacking = peer.first_lacking();
        let from = if unsent { lacking.min(step) } else { lacking };
        if from <= step && !peer.is_lost(from) {
            peer.lose(from, self.ended());
        }
    }

    /// The last step whose record has ended.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Notes that the record of a step ends.
    pub fn end(&self, step: u64) {
        self.ended.fetch_max(step, Ordering::Relaxed);
    }

    /// Releases all waits, for good: a peer that is late does not undo it for kernels.
    pub fn release(&self) {
        for peer in &self.peers {
            peer.lost.store(0, Ordering::Relaxed);
            // As in `PeerState::close`.
            for word in peer.ready.iter().chain(&peer.arrived) {
                let _ = word.store(RELEASED);
            }
            let _ = peer.closed.store(DROPPED);
        }
    }
}

/// The word of a peer that a step lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lacking {
    Ready,
    Data,
}

/// The record of a step: from its send to the end of its wait.
#[derive(Debug)]
pub(crate) struct Step {
    pub words: Arc<ExchangeWords>,
    pub number: u64,
    /// The position of the wait for the data, once it is enqueued.
    pub wait: Option<u64>,
    /// How it ended.
    pub done: Option<Status>,
}

impl Step {
    /// The first peer for whose word a stream waits now.
    pub fn lack(&self) -> Option<(&PeerState, Lacking)> {
        let lacking = |what| {
            let mut peers = self.words.peers.iter();
            let peer = peers.find(|peer| peer.lacks(self.number) == Some(what))?;
            Some((peer, what))
        };
        lacking(Lacking::Ready).or_else(|| lacking(Lacking::Data).filter(|_| self.wait.is_some()))
    }

    /// Whether a stream has passed all waits of the step.
    pub fn is_passed(&self) -> bool {
        self.wait.is_some() && reached(&self.words.passed, self.number)
    }

    /// The first peer because of which the step failed.
    pub fn lost(&self) -> Option<&PeerState> {
        let mut peers = self.words.peers.iter();
        peers.find(|peer| peer.is_lost(self.number))
    }
}

#[cfg(test)]
mod tests {
    use gdsync::Gpu;
    use gdsync::gpu::MemoryKind;

    use super::*;

    fn words() -> Arc<ExchangeWords> {
        let gpu = Gpu::soft().unwrap();
        let memory = gpu.alloc(MemoryKind::Pinned, 128).unwrap();
        let word = |at: usize| memory.word64(8 * at).unwrap();
        let words = [0, 1, 2, 3, 4, 5].map(word);
        for (at, word) in words.iter().enumerate() {
            word.store(if at < 4 { before(at % 2) } else { 0 }).unwrap();
        }
        let steps = [6, 7].map(word);
        steps.iter().for_each(|word| word.store(0).unwrap());
        let peers = vec![PeerState::new(3, [1, 2], words)];
        Arc::new(ExchangeWords::new(peers, steps, Vec::new()))
    }

    #[test]
    fn step_lacks_its_own_words_only() {
        let words = words();
        let peer = &words.peers[0];
        assert_eq!(peer.lacks(1), Some(Lacking::Ready));
        assert_eq!(peer.lacks(2), Some(Lacking::Ready));
        peer.ready[1].store(1).unwrap();
        assert_eq!(peer.lacks(1), Some(Lacking::Data));
        assert_eq!(peer.lacks(2), Some(Lacking::Ready));
        peer.arrived[1].store(1).unwrap();
        assert_eq!(peer.lacks(1), None);
        assert_eq!(peer.lacks(3), Some(Lacking::Ready));
    }

    #[test]
    fn lost_neighbour_fails_the_steps_that_lack_a_word_and_later_ones() {
        for (arrived, unsent, lost) in [([0, 1], false, 2), ([2, 1], false, 3), ([2, 1], true, 2)] {
            let words = words();
            let peer = &words.peers[0];
            for at in [0, 1] {
                peer.ready[at].store(2 - at as u64).unwrap();
                let none = before(at);
                let word = arrived[at];
                peer.arrived[at]
                    .store(if word == 0 { none } else { word })
                    .unwrap();
            }
            words.lose(peer, 2, unsent);
            let failed: Vec<bool> = (1..5).map(|n| peer.is_lost(n)).collect();
            let lost_here = lost <= 2;
            let expected: Vec<bool> = (1..5).map(|n| lost_here && n >= lost).collect();
            assert_eq!(failed, expected, "{arrived:?} {unsent}");
            // The word of a step that has not ended is kept.
            let is_released = || reached(&peer.arrived[0], 1000);
            assert_eq!(is_released(), lost_here && arrived[0] == 0);
            if lost_here {
                words.end(2);
                peer.release_waits(words.ended());
                assert!(is_released());
            }
            assert_eq!(peer.closed.load().unwrap(), u64::from(lost_here));
        }
    }
}
