//! The memory of this rank's ready words: one word for each rank. It is allocated on first use, and
//! its record is sent to a rank when one of the two first uses their words; no call is collective.
//! `window::ready` has the calls.

use std::collections::BTreeSet;

use super::engine::Engine;
use super::state::State;
use crate::error::Result;
use crate::path::Rights;
use crate::region::Memory;
use crate::wire::control::Control;

/// The number under which ranks name the memory of their ready words, among the windows.
pub(crate) const READY: u64 = u64::MAX;
/// Length of a ready word in bytes.
pub(crate) const WORD: usize = 8;

/// The memory of the ready words, and the ranks that have its address and keys.
#[derive(Default)]
pub(crate) struct ReadyMemory {
    memory: Option<Memory>,
    named_to: BTreeSet<u32>,
}

impl Engine {
    /// The number before that of the first ready word: minus the number of the first message, so
    /// that tests of the wrap of numbers also reach that of ready words.
    pub fn ready_start(&self) -> u64 {
        0_u64.wrapping_sub(self.config.start)
    }

    /// The memory of the ready words of this rank.
    ///
    /// # Errors
    /// Errors of gdsync if no memory is available.
    pub fn ready_memory(&self, state: &mut State) -> Result<Memory> {
        if let Some(memory) = &state.ready.memory {
            return Ok(memory.clone());
        }
        let len = WORD * self.size as usize;
        let memory = Memory::new(self.paths.pinned(len, Rights::Words)?);
        for rank in 0..self.size as usize {
            memory
                .region()
                .word64(WORD * rank)?
                .store(self.ready_start())?;
        }
        Ok(state.ready.memory.insert(memory).clone())
    }

    /// Sends the record of this rank's ready words to another rank, once. Before the path is chosen,
    /// it asks the rank; the record is sent by a later call, at the latest when that rank's arrives.
    ///
    /// # Errors
    /// As [`Engine::ready_memory`].
    pub fn name_ready(&self, state: &mut State, to: u32) -> Result<()> {
        if to == self.rank || state.ready.named_to.contains(&to) || !self.introduce(state, to) {
            return Ok(());
        }
        let memory = self.ready_memory(state)?;
        let message = Control::Window {
            number: READY,
            rank: self.rank,
            block: memory.keys().records(self.paths.ways(to))?,
        };
        state.ready.named_to.insert(to);
        self.send_control(state, to, vec![message]);
        Ok(())
    }
}
