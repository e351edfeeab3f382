//! Completion events: when an armed completion queue raises one.
//!
//! The consumer arms the queue in the second word of the doorbell record: a sequence number,
//! whether only solicited entries count, and how many entries the consumer took. Then the consumer
//! writes the completion register of its page. The NIC reads the word after it writes an entry and
//! after a write of that register, so the later of the two finds the earlier one. Each word raises
//! at most one event, and an event reports each entry at most once.

use std::sync::Arc;

use mlx5_prm::doorbell;

use crate::dma::Dma;
use crate::object::UarId;

/// The word of a queue that was never armed: no valid request has this value.
const NEVER: u32 = !0;
const SOLICITED_ONLY: u32 = 1 << 24;
/// The word holds the low 24 bits of an entry's number.
const NUMBER: u32 = 0xff_ffff;

pub(crate) struct Arm {
    /// The page whose completion register the consumer writes.
    pub uar: UarId,
    mem: Arc<dyn Dma>,
    /// The offset of the word.
    offset: u64,
    /// The last word that raised an event.
    answered: u32,
    /// Number of the first entry that no event reported.
    unreported: u32,
    /// Number of the last entry that is solicited or an error.
    pub solicited: Option<u32>,
    /// The event queue contains an event of this completion queue.
    pub telling: bool,
}

impl Arm {
    pub fn new(uar: UarId, mem: &Arc<dyn Dma>, record: u64, start: u32) -> Arm {
        let offset = record + doorbell::ARM as u64;
        // A queue whose memory refuses the access is never armed.
        let _ = mem.store32(offset, NEVER);
        Arm {
            uar,
            mem: Arc::clone(mem),
            offset,
            answered: NEVER,
            unreported: start,
            solicited: None,
            telling: false,
        }
    }

    /// Returns true if the queue is armed and the request is met; `producer` is the number of its
    /// next entry. The queue is then no longer armed.
    pub fn fires(&mut self, producer: u32) -> bool {
        let Ok(word) = self.mem.load32(self.offset) else {
            return false;
        };
        let word = u32::from_be(word);
        if word == self.answered || word == NEVER {
            return false;
        }
        let after = |number: u32| producer.wrapping_sub(number) & NUMBER;
        // A consumer ahead of the producer is invalid; it counts no entry until the producer passes
        // it.
        let untaken = match after(word & NUMBER) {
            n if n > NUMBER / 2 => 0,
            n => n,
        };
        let unseen = after(self.unreported).min(untaken);
        let wanted = match self.solicited {
            _ if word & SOLICITED_ONLY == 0 => unseen > 0,
            Some(last) => (1..=unseen).contains(&after(last)),
            None => false,
        };
        if wanted {
            self.answered = word;
            self.unreported = producer;
        }
        wanted
    }
}
