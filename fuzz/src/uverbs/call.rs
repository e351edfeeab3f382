//! Runs commands, and checks their results.

use std::ops::Range;

use rustix::io::Errno;
use vmlx5::Population;

use super::Scene;
use super::shadow::Effect;
use crate::input::Input;

/// A command, and its effect if it is not changed.
pub struct Command {
    pub bytes: Vec<u8>,
    pub effect: Effect,
}

/// Most words of answers that are kept.
const WORDS: usize = 64;

/// Where a command's answers may be written.
fn room(bytes: &[u8]) -> Range<u64> {
    let word = |at: usize| {
        bytes
            .get(at..at + 2)
            .map_or(0, |b| u64::from(u16::from_ne_bytes([b[0], b[1]])))
    };
    let extended = bytes.get(3).is_some_and(|b| b & 0x80 != 0);
    let at = bytes
        .get(8..16)
        .map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("eight")));
    let len = match extended {
        true => (word(6) + word(18)) * 8,
        false => word(6) * 4,
    };
    at..at.saturating_add(len)
}

impl Scene {
    /// Writes a command to the file, possibly after changing it.
    pub fn carry_out(&mut self, command: Command, input: &mut Input<'_>) {
        let Command { mut bytes, effect } = command;
        let effect = match input.byte() {
            n @ 0xd0.. => {
                spoil(n, &mut bytes, input);
                Effect::Unknown
            }
            _ => effect,
        };
        let allowed = room(&bytes);
        self.rig.process.answers.lock().expect("one thread").clear();
        let before = self.population();
        let done = self.rig.context.write(&bytes);
        if let Ok(len) = done {
            assert_eq!(len, bytes.len());
        }
        let words = self.answers(Some(allowed));
        self.judge(before, done.map(drop), effect, &words);
    }

    /// The answer as words; it must be in the memory that the command gave.
    pub fn answers(&mut self, allowed: Option<Range<u64>>) -> Vec<u32> {
        let answers = std::mem::take(&mut *self.rig.process.answers.lock().expect("one thread"));
        let mut words: Vec<(u64, u32)> = Vec::new();
        for (at, bytes) in answers {
            if let Some(allowed) = &allowed {
                let end = at + bytes.len() as u64;
                assert!(
                    allowed.start <= at && end <= allowed.end,
                    "{at:#x} to {end:#x} are written as an answer, but the command gave {allowed:x?}"
                );
            }
            let four = bytes.chunks_exact(4).enumerate();
            words.extend(four.map(|(i, b)| {
                let word = u32::from_ne_bytes(b.try_into().expect("four"));
                (at + 4 * i as u64, word)
            }));
        }
        words.sort_by_key(|&(at, _)| at);
        let words: Vec<u32> = words.into_iter().map(|(_, word)| word).collect();
        self.possible_descriptors
            .extend(words.iter().filter(|&&word| word < 1 << 16));
        self.words.extend(words.iter().take(4));
        let old = self.words.len().saturating_sub(WORDS);
        self.words.drain(..old);
        words
    }

    /// A refused command must create nothing; the effect of an accepted one is recorded.
    pub fn judge(
        &mut self,
        before: Population,
        done: Result<(), Errno>,
        effect: Effect,
        words: &[u32],
    ) {
        let now = self.population();
        match done {
            Ok(()) => self.shadow.done(effect, words),
            Err(why) => {
                let no_more = now.pds <= before.pds
                    && now.mrs <= before.mrs
                    && now.cqs <= before.cqs
                    && now.qps <= before.qps
                    && now.srqs <= before.srqs;
                assert!(no_more, "refused ({why}), and {before:?} became {now:?}");
                if why == Errno::BUSY {
                    self.shadow.busy(&effect);
                } else if now != before {
                    // The command was executed, but its answer could not be written.
                    self.shadow.done(Effect::Unknown, &[]);
                }
            }
        }
    }
}

/// Changes bytes of a command, or their number.
fn spoil(how: u8, bytes: &mut Vec<u8>, input: &mut Input<'_>) {
    match how & 3 {
        0 | 1 => {
            for _ in 0..=how >> 2 & 3 {
                let at = usize::from(input.next::<u16>()) % bytes.len();
                bytes[at] ^= input.byte();
            }
        }
        2 => {
            let len = bytes.len() * usize::from(input.byte()) / 256;
            bytes.truncate(len.next_multiple_of(4));
        }
        _ => {
            let more = usize::from(input.byte() & 31) * 4;
            bytes.extend_from_slice(input.bytes(more));
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
    }
    // In most cases the header has the right length.
    let extended = bytes.get(3).is_some_and(|b| b & 0x80 != 0);
    if how & 4 == 0 && bytes.len() >= 8 && !extended {
        let len = (bytes.len() / 4) as u16;
        bytes[4..6].copy_from_slice(&len.to_ne_bytes());
    }
}
