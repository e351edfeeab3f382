//! Completion events: when a consumer that asked for one is told.
//!
//! The consumer asks in the second word of the doorbell record: a sequence number, whether only
//! solicited entries count, and how many entries it took. Then it rings the completion register
//! of its page. The word is read after an entry was written and after that register was rung, so
//! whichever comes last finds the other. A word is answered once, and an entry told of once.

use std::sync::Arc;

use mlx5_prm::doorbell;

use crate::dma::Dma;
use crate::object::UarId;

/// The word of a queue that was never armed: no request looks like it.
const NEVER: u32 = !0;
const SOLICITED_ONLY: u32 = 1 << 24;
/// Entries are numbered by 24 bits there.
const NUMBER: u32 = 0xff_ffff;

pub(crate) struct Arm {
    /// The page whose register is rung.
    pub uar: UarId,
    mem: Arc<dyn Dma>,
    /// Where the word is.
    offset: u64,
    /// The word answered last.
    answered: u32,
    /// Number of the first entry that no event told of.
    untold: u32,
    /// Number of the last entry that is solicited, or an error.
    pub solicited: Option<u32>,
    /// An event is in the queue.
    pub telling: bool,
}

impl Arm {
    pub fn new(uar: UarId, mem: &Arc<dyn Dma>, record: u64, start: u32) -> Arm {
        let offset = record + doorbell::ARM as u64;
        // Memory that refuses this is never armed.
        let _ = mem.store32(offset, NEVER);
        Arm {
            uar,
            mem: Arc::clone(mem),
            offset,
            answered: NEVER,
            untold: start,
            solicited: None,
            telling: false,
        }
    }

    /// True if the queue, whose next entry has the number `producer`, is armed and has what was
    /// asked for. Then it is not armed any more.
    pub fn fires(&mut self, producer: u32) -> bool {
        let Ok(word) = self.mem.load32(self.offset) else {
            return false;
        };
        let word = u32::from_be(word);
        if word == self.answered || word == NEVER {
            return false;
        }
        let after = |number: u32| producer.wrapping_sub(number) & NUMBER;
        // A consumer ahead of the producer makes no sense; it waits until it is passed.
        let untaken = match after(word & NUMBER) {
            n if n > NUMBER / 2 => 0,
            n => n,
        };
        let news = after(self.untold).min(untaken);
        let wanted = match self.solicited {
            _ if word & SOLICITED_ONLY == 0 => news > 0,
            Some(last) => (1..=news).contains(&after(last)),
            None => false,
        };
        if wanted {
            self.answered = word;
            self.untold = producer;
        }
        wanted
    }
}
