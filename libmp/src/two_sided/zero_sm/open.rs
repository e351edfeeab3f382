//! How a rank opens a channel of zero-SM messages, and shows memory to its peer.

use super::post::POST;
use crate::error::{Error, Kind, Result, time};
use crate::region::Slice;
use crate::two_sided::engine::Engine;
use crate::two_sided::peer::Need;
use crate::two_sided::spec::On;

impl Engine {
    /// Waits until a channel is open.
    pub(super) fn open_zero_sm(&self, rank: u32, tag: u32, sends: bool) -> Result<()> {
        let mut answer = self.try_open_zero_sm(rank, tag, sends);
        if matches!(answer, Ok(false)) {
            drop(self.ensure(rank, &On::Cpu, Need::Lanes)?);
            let deadline = self.host().now() + self.config.timeout;
            self.wait(deadline, &mut || {
                self.progress();
                answer = self.try_open_zero_sm(rank, tag, sends);
                !matches!(answer, Ok(false))
            });
        }
        if answer? {
            return Ok(());
        }
        let what = format!(
            "rank {rank} did not answer within {} (Builder::timeout); check that it calls progress() if \
             it has Progress::Manual",
            time(self.config.timeout)
        );
        Err(Error::new(POST, Kind::Timeout, what).with_rank(rank))
    }

    fn try_open_zero_sm(&self, rank: u32, tag: u32, sends: bool) -> Result<bool> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let setup = self.setup(&state.lanes);
        let Some(peer) = state.peers.get_mut(rank) else {
            return Ok(false);
        };
        let channels = &mut peer.zero_sm;
        if channels.sends.contains_key(&tag) && sends || channels.is_used(tag) && !sends {
            // Also of a rank that was given up: it may have left a message.
            return Ok(true);
        }
        if !peer.is_here() {
            return Err(peer.error(POST));
        }
        if !peer.is_open(0, Need::Lanes) {
            return Ok(false);
        }
        let mut out = Vec::new();
        let begun = peer.zero_sm.begin(&setup, (tag, sends), &mut out);
        self.send_control(state, rank, out);
        begun
    }

    /// Makes a rank map the memory of a message.
    pub(super) fn show(&self, rank: u32, memory: Option<&Slice>) -> Result<()> {
        let Some(keys) = memory.map(|slice| slice.memory().keys()) else {
            return Ok(());
        };
        if !keys.can_share() {
            let what = "another rank cannot map the memory, which a zero-SM message needs; use memory of \
                        Context::alloc, or call zero_sm(false) on the send and on its receive";
            return Err(Error::new(POST, Kind::Unsupported, what));
        }
        self.await_mapped(rank, keys)
    }
}
