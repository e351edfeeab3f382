//! Memory that this rank shares with ranks of its host, for `Path::Ipc`: when it is sent, and the
//! wait until a peer has mapped the memory of a large receive. `path::ipc` has the state.

use gdsync::Status;
use gdsync::gpu::Region;

use super::engine::Engine;
use super::peer::{Cause, Need, Peer};
use super::spec::{On, RecvOp, Source};
use super::state::{State, not_connected};
use crate::error::{Error, Kind, Result, time};
use crate::path::{Keys, Named, Path, export, keys_in, refused};
use crate::region::{Memory, Slice};
use crate::wire::control::Control;

const SHARE: &str = "share memory";

impl Engine {
    /// Puts a message into the outbox, behind the descriptors of the memory that it names.
    pub(super) fn send_shared(&self, state: &mut State, rank: u32, message: Control) -> Result<()> {
        for key in message.blocks().into_iter().flat_map(keys_in) {
            if let Some(region) = self.paths.copier().region(key) {
                self.send_memory(state, rank, key, &region)?;
            }
        }
        state.outbox.push(rank, vec![message]);
        Ok(())
    }

    /// Puts the descriptor of memory into the outbox, if the peer was not sent it before. `false`:
    /// the memory cannot be shared.
    fn send_memory(&self, state: &mut State, rank: u32, key: u32, region: &Region) -> Result<bool> {
        let none = || not_connected(SHARE, rank);
        let peer = state.peers.get_mut(rank).ok_or_else(none)?;
        if peer.link.shared.named(key).is_some() {
            return Ok(true);
        }
        let Some((message, fd)) = export(region, key)? else {
            return Ok(false);
        };
        peer.link.shared.name(key);
        state.outbox.push_with(rank, message, fd);
        Ok(true)
    }

    /// The staging memory of a large receive: also made if the sender may be a rank of this host
    /// that cannot map the memory of the receive. Unless the CPU posts the receive now, a sender
    /// that is named has mapped the memory to which it will copy.
    pub(super) fn shared_staging(
        &self,
        spec: &RecvOp<'_>,
        post: bool,
        staging: Option<Memory>,
        len: usize,
    ) -> Result<Option<Memory>> {
        let applies = match spec.from {
            Source::Rank(rank) => self.path_to(rank)? == Path::Ipc,
            Source::Any => self.paths.maps(),
        };
        if !applies {
            return Ok(staging);
        }
        let own = spec.segments.first().map(Slice::memory);
        let staging = match (staging, own) {
            (None, Some(own)) if !own.keys().can_share() => Some(self.stage(len)?),
            (staging, _) => staging,
        };
        let by_cpu = post && spec.on.stream().is_none();
        if let (Source::Rank(rank), Some(memory)) = (spec.from, staging.as_ref().or(own))
            && !by_cpu
        {
            self.await_mapped(rank, memory.keys())?;
        }
        Ok(staging)
    }

    /// The path to `rank`, which is connected if the choice needs it: the receive needs it, too.
    pub(super) fn path_to(&self, rank: u32) -> Result<Path> {
        if rank < self.size && self.paths.chosen(rank).is_none() {
            let connected = self.ensure(rank, &On::Cpu, Need::Lanes);
            connected.map(drop).map_err(|e| e.of_peer(rank))?;
        }
        Ok(self.paths.to(rank))
    }

    /// Sends memory to `rank`, and waits until the rank has mapped it.
    pub(super) fn await_mapped(&self, rank: u32, keys: &Keys) -> Result<()> {
        let key = keys.copy_key();
        if self.is_mapped(rank, key)? {
            return Ok(());
        }
        self.begin_sharing(rank, keys)?;
        let mut mapped = Ok(false);
        let deadline = self.host().now() + self.config.timeout;
        self.wait(deadline, &mut || {
            self.progress();
            mapped = self.is_mapped(rank, key);
            !matches!(mapped, Ok(false))
        });
        if mapped? {
            return Ok(());
        }
        let what = format!(
            "rank {rank} did not map the memory of the receive within {} (Builder::timeout); check \
             that it calls progress() if it has Progress::Manual",
            time(self.config.timeout)
        );
        Err(Error::new(SHARE, Kind::Timeout, what).with_rank(rank))
    }

    fn is_mapped(&self, rank: u32, key: u32) -> Result<bool> {
        let state = self.lock();
        let Some(peer) = state.peers.get(rank) else {
            return Ok(false);
        };
        // A message that a lost peer left needs no memory of the receive.
        if !peer.is_here() {
            return Ok(true);
        }
        match peer.link.shared.named(key) {
            Some(Named::Mapped { .. }) => Ok(true),
            Some(Named::Refused) => Err(refused(SHARE).with_rank(rank)),
            _ => Ok(false),
        }
    }

    /// Sends memory to `rank`.
    #[cold]
    fn begin_sharing(&self, rank: u32, keys: &Keys) -> Result<()> {
        let (mut state, _) = self.ensure(rank, &On::Cpu, Need::Lanes)?;
        self.offer(&mut state, rank, keys)
    }

    /// Sends memory that the application has registered to all ranks that can map it. A rank that
    /// cannot is an error of the receives that need it.
    pub(crate) fn announce(&self, memory: &Memory) {
        if !self.paths.maps() || !memory.keys().can_share() {
            return;
        }
        let mut state = self.lock();
        let maps = |peer: &&Peer| self.paths.to(peer.rank) == Path::Ipc;
        let open = |peer: &&Peer| peer.is_open(0, Need::Lanes);
        let peers = state.peers.here().filter(maps).filter(open);
        let ranks: Vec<u32> = peers.map(|peer| peer.rank).collect();
        for rank in ranks {
            let _ = self.offer(&mut state, rank, memory.keys());
        }
    }

    /// Sends all memory that the application has registered to a rank that was connected.
    pub(super) fn announce_all(&self, state: &mut State, rank: u32) -> Result<()> {
        if self.paths.to(rank) == Path::Ipc {
            for (key, region) in self.paths.copier().registered() {
                self.send_memory(state, rank, key, &region)?;
            }
            self.send_control(state, rank, Vec::new());
        }
        Ok(())
    }

    /// Sends memory to `rank`, and does not wait.
    pub(super) fn offer(&self, state: &mut State, rank: u32, keys: &Keys) -> Result<()> {
        let key = keys.copy_key();
        match self.send_memory(state, rank, key, keys.region())? {
            true => {
                self.send_control(state, rank, Vec::new());
                Ok(())
            }
            false => Err(refused(SHARE).with_rank(rank)),
        }
    }

    /// Takes the descriptors that have arrived. `true`: there was one.
    pub(super) fn receive_descriptors(&self, state: &mut State) -> Result<bool> {
        let mut any = false;
        while let Some((rank, fd)) = self.bootstrap.receive_fd(self.topic)? {
            any = true;
            let Some(peer) = state.peers.make(rank).filter(|peer| peer.is_here()) else {
                continue;
            };
            if let Err(e) = peer.link.shared.keep_descriptor(fd) {
                self.give_up(
                    state,
                    rank,
                    Status::BAD_RESPONSE,
                    Cause::Protocol(e.sentence()),
                );
            }
        }
        Ok(any)
    }

    /// Informs the peers of memory that was released.
    pub(super) fn release_shared(&self, state: &mut State) {
        if !self.paths.maps() {
            return;
        }
        for key in self.paths.copier().released() {
            let has = |peer: &mut Peer| {
                (peer.link.shared.unname(key) && peer.is_here()).then_some(peer.rank)
            };
            let ranks: Vec<u32> = state.peers.iter_mut().filter_map(has).collect();
            for rank in ranks {
                self.send_control(state, rank, vec![Control::Released { key }]);
            }
        }
    }
}
