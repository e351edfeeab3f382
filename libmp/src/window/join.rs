//! Making a window with all ranks: each rank sends its record to every other, as a control message.

use gdsync::gpu::MemoryKind;

use super::targets::Targets;
use crate::error::{Error, Kind, Result, time};
use crate::path::Path;
use crate::region::Memory;
use crate::two_sided::engine::Engine;
use crate::two_sided::{Peer, State, join};
use crate::wire::control::Control;

const MAKE: &str = "make window";

impl Engine {
    /// A window with `memory` of this rank, and with none of other ranks yet.
    ///
    /// # Errors
    /// As [`Targets::new`].
    pub fn new_window(&self, memory: &Memory) -> Result<Targets> {
        let window = Targets::new(&self.paths, self.size, memory)?;
        let mut state = self.lock();
        state.device_windows |= memory.region().kind() == MemoryKind::Device;
        state.released.look_at(memory);
        drop(state);
        Ok(window)
    }

    /// Adds the memory of the rank that made the record. Returns the rank.
    ///
    /// # Errors
    /// `Protocol` for bytes that are not a record; `Invalid` for a rank outside the job; `Busy` if
    /// the rank's memory is known; `Timeout` if the path to the rank is not chosen in time.
    pub fn attach_window(&self, window: &Targets, record: &[u8]) -> Result<u32> {
        let (rank, block) = Targets::named(record)?;
        self.await_answer("attach window", rank, || {
            let state = &mut *self.lock();
            Ok(state.outbox.lost().is_some() || self.introduce(state, rank))
        })?;
        // A record that the application passes comes without a descriptor.
        let ways = match self.paths.ways(rank) {
            [Path::Ipc, queues] => [queues; 2],
            ways => ways,
        };
        window.add(ways, rank, &block).map(|()| rank)
    }

    /// Adds the memory of all ranks to a window, which each of them makes with this call. `named`
    /// gets the window's number before this rank sends its record. `what`: the object and the
    /// function that makes it, for texts.
    ///
    /// # Errors
    /// `PeerFailed` or `Missing`, naming a rank that was given up or did not take part within the
    /// context's timeout; `BootstrapLost`.
    pub fn join_window(
        &self,
        window: &Targets,
        [object, function]: [&str; 2],
        named: impl FnOnce(&mut State, u64) -> Result<()>,
    ) -> Result<()> {
        let deadline = self.host().now() + self.config.timeout;
        let unknown = self.await_paths(self.others(), deadline);
        let number = self.name_window(&mut self.lock(), window, named)?;
        window.add_own(self.rank)?;
        let mut answer = Ok(unknown);
        self.wait(deadline, &mut || {
            self.progress();
            answer = self.absent(&mut self.lock(), window, number);
            !matches!(&answer, Ok(missing) if !missing.is_empty())
        });
        let missing = answer?;
        let Some(first) = missing.first() else {
            return Ok(());
        };
        let what = format!(
            "rank {} did not make the {object} within {} (Builder::timeout); call {function} on all \
             ranks, in the same order",
            join(&missing),
            time(self.config.timeout)
        );
        Err(Error::new(MAKE, Kind::Missing, what).with_rank(*first))
    }

    fn others(&self) -> impl Iterator<Item = u32> {
        let me = self.rank;
        (0..self.size).filter(move |rank| *rank != me)
    }

    /// Numbers a window, and sends its record to the other ranks.
    fn name_window(
        &self,
        state: &mut State,
        window: &Targets,
        named: impl FnOnce(&mut State, u64) -> Result<()>,
    ) -> Result<u64> {
        let number = state.windows;
        state.windows += 1;
        for rank in self.others() {
            let peer = state.peers.make(rank);
            if let Some(peer) = peer.filter(|peer| !peer.is_here()) {
                return Err(peer.error(MAKE));
            }
        }
        if let Some(why) = state.outbox.lost() {
            let what = format!(
                "the bootstrap no longer reaches the other ranks ({why}); use windows that exist, \
                 or exchange Window::record by messages"
            );
            return Err(Error::new(MAKE, Kind::BootstrapLost, what));
        }
        named(state, number)?;
        let rank = self.rank;
        for other in self.others() {
            let block = window.memory.keys().records(self.paths.ways(other))?;
            let message = Control::Window {
                number,
                rank,
                block,
            };
            self.send_control(state, other, vec![message]);
        }
        Ok(number)
    }

    /// Adds the memory of the ranks that have named it. Returns the ranks that have not.
    fn absent(&self, state: &mut State, window: &Targets, number: u64) -> Result<Vec<u32>> {
        let mut absent = Vec::new();
        for rank in self.others().filter(|rank| !window.has(*rank)) {
            let peer = state.peers.get_mut(rank);
            match peer.and_then(|peer| peer.windows.remove(&number)) {
                Some(block) => window.add(self.paths.ways(rank), rank, &block)?,
                None => absent.push(rank),
            }
        }
        let gone = |rank: &u32| state.peers.get(*rank).filter(|peer| !peer.is_here());
        match absent
            .iter()
            .find_map(gone)
            .map(|peer: &Peer| peer.error(MAKE))
        {
            Some(e) => Err(e),
            None => Ok(absent),
        }
    }
}
