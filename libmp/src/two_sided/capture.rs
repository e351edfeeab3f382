//! Sends, receives and waits of streams that are being captured into a graph: each becomes at most one
//! kernel of the graph, which moves one message of a circuit at each replay.

use std::sync::atomic::{AtomicU64, Ordering};

use gdsync::gpu::DevicePtr;
use gdsync::{Status, Stream};

use super::circuits::{Alarm, CAPTURE, CircuitId, PLACE_AT, rooms};
use super::engine::Engine;
use super::null::NULL_RANK;
use super::peer::{Need, Peer};
use super::send::total;
use super::spec::{On, RecvOp, SendOp, SizeSource, Source};
use super::state::{State, not_connected};
use super::wait::WAIT_ON;
use crate::error::{Error, Kind, Result, time};
use crate::kernels::{End, ReplayCopy, ReplayPlace, ReplayTake, ReplayWrite};
use crate::mutant::{Mutant, on};
use crate::path::Path;
use crate::region::Slice;
use crate::request::table::RequestKey;

/// What a call that sends or receives has made.
pub(crate) enum Started {
    /// A row of the table.
    Listed(RequestKey),
    /// A part of a graph.
    Captured(Box<Captured>),
}

/// A captured send or receive.
pub(crate) struct Captured {
    /// The stream that it was captured on.
    stream: u64,
    /// The kernel that takes the message in, and its circuit. A send, or a receive with the null rank, ends
    /// with its kernel or at once.
    take: Option<(ReplayTake, u32, CircuitId)>,
    /// The address of the result of the last replay.
    result: DevicePtr,
    /// The stream of which the graph waits for the receive; 0: none yet. Relaxed: the word alone is used.
    waiter: AtomicU64,
}

/// A message to capture.
pub(crate) struct Message<'a> {
    pub rank: u32,
    pub tag: u32,
    pub sends: bool,
    /// It belongs to a step of a neighbourhood.
    pub exchange: bool,
    /// Its memory, if it has bytes.
    pub memory: Option<&'a Slice>,
}

impl Message<'_> {
    fn len(&self) -> u64 {
        self.memory.map_or(0, |slice| slice.len() as u64)
    }
}

/// The kernels of a message.
enum Node {
    Write(ReplayWrite),
    Copy(ReplayCopy),
    Receive(ReplayTake, Option<ReplayPlace>),
}

impl Engine {
    /// Captures a send.
    pub(super) fn capture_send(
        &self,
        stream: &Stream,
        spec: &SendOp<'_>,
        post: bool,
    ) -> Result<Captured> {
        let plain = matches!(spec.size, SizeSource::Segments) && spec.packed.is_none();
        self.check_capture(
            post,
            plain,
            spec.segments.len(),
            spec.timeout.is_some(),
            stream,
        )?;
        if spec.to == NULL_RANK {
            return Ok(self.captured_at_once(stream));
        }
        total(&self.paths, CAPTURE, spec.segments)?;
        self.capture(
            stream,
            Message {
                rank: spec.to,
                tag: spec.tag,
                sends: true,
                exchange: false,
                memory: spec.segments.first(),
            },
        )
    }

    /// A captured message with the null rank.
    fn captured_at_once(&self, stream: &Stream) -> Captured {
        Captured {
            stream: stream.id(),
            take: None,
            result: self.null_result.addr(),
            waiter: AtomicU64::new(0),
        }
    }

    /// Captures a receive.
    pub(super) fn capture_recv(
        &self,
        stream: &Stream,
        spec: &RecvOp<'_>,
        post: bool,
    ) -> Result<Captured> {
        self.check_capture(
            post,
            spec.packed.is_none(),
            spec.segments.len(),
            spec.timeout.is_some(),
            stream,
        )?;
        let rank = match spec.from {
            Source::Rank(NULL_RANK) => return Ok(self.captured_at_once(stream)),
            Source::Rank(rank) => rank,
            Source::Any => {
                return Err(unsupported(
                    stream,
                    "a receive from any rank needs the CPU; name the rank",
                ));
            }
        };
        total(&self.paths, CAPTURE, spec.segments)?;
        self.capture(
            stream,
            Message {
                rank,
                tag: spec.tag,
                sends: false,
                exchange: false,
                memory: spec.segments.first(),
            },
        )
    }

    /// Refuses what a graph cannot contain.
    fn check_capture(
        &self,
        post: bool,
        plain: bool,
        segments: usize,
        limited: bool,
        stream: &Stream,
    ) -> Result<()> {
        let why = match (post, plain && segments <= 1, limited) {
            (false, ..) => "a request is prepared and posted by one call there, as isend_on does",
            (_, false, _) => "a message has one segment there, and its length is fixed",
            (.., true) => "a message has the time limit of the context there (Builder::timeout)",
            _ => return self.kernels(CAPTURE).map(drop),
        };
        Err(unsupported(stream, why))
    }

    fn capture(&self, stream: &Stream, message: Message<'_>) -> Result<Captured> {
        let none = || not_connected(CAPTURE, message.rank);
        self.capture_all(stream, std::slice::from_ref(&message))?
            .pop()
            .ok_or_else(none)
    }

    /// Captures messages: receives show their memory, and sends are one kernel if their lines have room.
    ///
    /// # Errors
    /// As [`Context::isend_on`](crate::Context::isend_on), for the first message that is refused: then none is
    /// captured, unless the runtime refuses a kernel.
    pub(crate) fn capture_all(
        &self,
        stream: &Stream,
        messages: &[Message<'_>],
    ) -> Result<Vec<Captured>> {
        self.kernels(CAPTURE)?;
        stream.check_recordable(CAPTURE)?;
        let mut ids = Vec::with_capacity(messages.len());
        let captured = messages
            .iter()
            .try_for_each(|message| {
                let opened = self.open_message(stream, message, &mut ids);
                opened.map_err(|e| e.with_rank(message.rank))
            })
            .and_then(|()| self.record_all(stream, messages, &ids));
        if captured.is_err() {
            let mut state = self.lock();
            for (message, id) in messages.iter().zip(&ids).rev() {
                if let Some(peer) = state.peers.get_mut(message.rank) {
                    peer.circuits.give_back(*id);
                }
            }
        }
        captured
    }

    /// Opens the circuit of a message, and appends it to `ids`.
    fn open_message(
        &self,
        stream: &Stream,
        message: &Message<'_>,
        ids: &mut Vec<CircuitId>,
    ) -> Result<()> {
        let rank = message.rank;
        self.open_path(rank, stream)?;
        let id = {
            let mut state = self.lock();
            let peer = state.peers.get_mut(rank);
            let peer = peer.ok_or_else(|| not_connected(CAPTURE, rank))?;
            let (sends, tag) = (message.sends, message.tag);
            peer.circuits.reserve(sends, tag, message.exchange)
        };
        ids.push(id);
        self.open_circuit(rank, id, message.len())?;
        let room = {
            let state = self.lock();
            let circuit = state
                .peers
                .get(rank)
                .and_then(|peer| peer.circuits.open(id));
            circuit.map_or(0, |(circuit, _)| circuit.bytes)
        };
        match message.memory.filter(|_| !message.sends) {
            // The sender copies to it.
            Some(slice) if message.len() > room => self.await_mapped(rank, slice.memory().keys()),
            _ => Ok(()),
        }
    }

    /// Connects to a rank, and checks that memory of the two ranks is mapped.
    fn open_path(&self, rank: u32, stream: &Stream) -> Result<()> {
        drop(self.ensure(rank, &On::Cpu, Need::Lanes)?);
        let (path, reason) = match self.paths.chosen(rank) {
            Some((Path::Ipc, _)) => return Ok(()),
            Some((path, reason)) => (*path, reason.to_string()),
            None => (Path::Nic, "no path is chosen".to_owned()),
        };
        let why = format!(
            "the path to rank {rank} is {path:?} ({reason}), and a graph contains only messages between \
             two ranks of a host by mapped memory; set MP_PATH=ipc, or enqueue the message on a stream \
             between two graphs"
        );
        Err(unsupported(stream, &why))
    }

    /// Waits until both ends of a circuit are made.
    fn open_circuit(&self, rank: u32, id: CircuitId, len: u64) -> Result<()> {
        self.await_answer(CAPTURE, rank, || self.try_open_circuit(rank, id, len))
    }

    fn try_open_circuit(&self, rank: u32, id: CircuitId, len: u64) -> Result<bool> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let from = self.setup(&state.lanes).circuits();
        let peer = state.peers.get_mut(rank);
        let peer = peer.ok_or_else(|| not_connected(CAPTURE, rank))?;
        if !peer.is_here() {
            return Err(peer.error(CAPTURE));
        }
        let mut out = Vec::new();
        let begun = peer.circuits.begin(from, id, len, &mut out);
        let open = peer.circuits.open(id).is_some();
        self.send_control(state, rank, out);
        begun.map(|()| open)
    }

    /// Records the kernels of messages whose circuits are open.
    fn record_all(
        &self,
        stream: &Stream,
        messages: &[Message<'_>],
        ids: &[CircuitId],
    ) -> Result<Vec<Captured>> {
        let kernels = self.kernels(CAPTURE)?;
        let mut state = self.lock();
        let (mut writes, mut copies, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut captured = Vec::with_capacity(ids.len());
        for (message, id) in messages.iter().zip(ids) {
            let peer = state.peers.get(message.rank);
            let peer = peer.ok_or_else(|| not_connected(CAPTURE, message.rank))?;
            let mut receive = None;
            match self.node(peer, *id, message)? {
                Node::Write(params) => writes.push(params),
                Node::Copy(params) => copies.push(params),
                Node::Receive(take, place) => {
                    receive = Some((take, message.rank, *id));
                    places.extend(place);
                }
            }
            captured.push(Captured {
                stream: stream.id(),
                take: receive,
                result: peer.circuits.result_addr(*id),
                waiter: AtomicU64::new(0),
            });
        }
        // SAFETY: the words belong to circuits, and the payloads to regions that they keep. The graph keeps the
        // memory of the circuits, the mappings of the peers' memory, and the payloads. Receives come first,
        // and messages that wait for a receive come last.
        unsafe {
            for params in &places {
                kernels.replay_place(stream, params)?;
            }
            kernels.replay_write(stream, &writes)?;
            for params in &copies {
                kernels.replay_copy(stream, params)?;
            }
        }
        for (message, id) in messages.iter().zip(ids) {
            if let Some(peer) = state.peers.get_mut(message.rank) {
                let kept = message.memory.map(|slice| slice.memory().clone());
                peer.circuits.capture(*id, kept);
                peer.circuits.keep(*id, stream);
            }
        }
        stream.keep(self.error.region());
        Ok(captured)
    }

    /// The kernels of a message whose circuit is open.
    fn node(&self, peer: &Peer, id: CircuitId, message: &Message<'_>) -> Result<Node> {
        let kernels = self.kernels(CAPTURE)?;
        let none = || not_connected(CAPTURE, message.rank);
        let (circuit, theirs) = peer.circuits.open(id).ok_or_else(none)?;
        let len = message.len();
        let addr = message.memory.map_or(0, Slice::addr);
        let end = |shares: u32| End {
            words: circuit.memory.addr(0),
            alarm: peer.circuits.alarm().map_or(0, Alarm::addr),
            error: self.error.addr().0,
            limit: u64::try_from(self.config.timeout.as_nanos()).unwrap_or(u64::MAX),
            shares: shares.into(),
        };
        if !id.sends {
            let shown = message.memory.filter(|_| len > circuit.bytes);
            let shown = shown.filter(|_| !on(Mutant::MissingPlace));
            let place = shown.map(|slice| -> Result<ReplayPlace> {
                let (keys, at) = (slice.memory().keys(), slice.offset() as u64);
                Ok(ReplayPlace {
                    end: end(1),
                    place: theirs.addr + PLACE_AT,
                    to: peer.link.shared.place(keys.copy_key(), at)?.addr,
                })
            });
            let take = ReplayTake {
                end: end(kernels.shares_of_flag(len.min(circuit.bytes))),
                rooms: rooms(circuit.shared_addr(), circuit.bytes),
                bytes: circuit.bytes,
                to: addr,
                capacity: len,
                credit: theirs.addr,
            };
            return Ok(Node::Receive(take, place.transpose()?));
        }
        if len > theirs.bytes {
            return Ok(Node::Copy(ReplayCopy {
                end: end(kernels.shares_of_direct(len, u64::MAX)),
                place: circuit.shared_addr() + PLACE_AT,
                from: addr,
                len,
                rooms: rooms(theirs.addr, theirs.bytes),
            }));
        }
        let end = end(kernels.shares_of_flag(len));
        let credit = match on(Mutant::UncreditedReplay) {
            true => end.words,
            false => circuit.shared_addr(),
        };
        Ok(Node::Write(ReplayWrite {
            end,
            credit,
            from: addr,
            len,
            rooms: rooms(theirs.addr, theirs.bytes),
        }))
    }

    /// Makes a graph wait for captured messages, of the stream that is being captured.
    pub(crate) fn wait_on_captured<'r>(
        &self,
        requests: impl Iterator<Item = &'r Captured> + Clone,
        stream: &Stream,
    ) -> Result<()> {
        if !stream.gpu().is(&self.gpu) {
            let what = format!("{stream:?} does not belong to {:?}", self.gpu);
            return Err(Error::new(
                WAIT_ON,
                Kind::Gdsync(gdsync::Kind::Foreign),
                what,
            ));
        }
        if !stream.is_capturing()? {
            return Err(of_graph(WAIT_ON));
        }
        stream.check_recordable(WAIT_ON)?;
        let mut tasks = Vec::new();
        let state = self.lock();
        for request in requests.clone() {
            if let Some((params, rank, id)) = request.waits_on(stream)? {
                tasks.push(params);
                if let Some(peer) = state.peers.get(rank) {
                    peer.circuits.keep(id, stream);
                }
            }
        }
        if tasks.is_empty() {
            return Ok(());
        }
        // SAFETY: as for sends.
        unsafe { self.kernels(WAIT_ON)?.replay_take(stream, &tasks) }?;
        for request in requests {
            request.waiter.store(stream.id(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// The failure of replays that ended without their messages, once.
    pub(super) fn replay_error(&self, operation: &'static str, take: bool) -> Option<Error> {
        let state = self.lock();
        let failed = |peer: &&Peer| {
            let alarm = peer.circuits.alarm();
            alarm.is_some_and(|alarm| alarm.has_failed(take))
        };
        let peer = state.peers.iter().find(failed)?;
        if !peer.is_here() {
            return Some(peer.error(operation));
        }
        let rank = peer.rank;
        let what = format!("rank {rank} has stored an invalid message of a graph");
        Some(Error::new(operation, Kind::Protocol, what).with_rank(rank))
    }

    /// Gives up the ranks for which a replay has waited too long.
    pub(super) fn late_replays(&self, state: &mut State) {
        let late = |peer: &&Peer| {
            let alarm = peer.circuits.alarm();
            alarm.is_some_and(|alarm| alarm.is_late())
        };
        let ranks: Vec<u32> = state
            .peers
            .here()
            .filter(late)
            .map(|peer| peer.rank)
            .collect();
        for rank in ranks {
            let text = format!(
                "a graph has waited {} (Builder::timeout) for a message of rank {rank} or for its receive; \
                 check that both ranks launch their graphs equally often",
                time(self.config.timeout)
            );
            self.give_up(
                state,
                rank,
                Status::TIMEOUT,
                super::peer::Cause::Other(text),
            );
        }
    }
}

impl Captured {
    /// The address of the result of the last replay.
    pub fn result(&self) -> DevicePtr {
        self.result
    }

    /// The kernel that `stream` needs to wait for it.
    ///
    /// # Errors
    /// `Unsupported` if another stream waits, or should: gdsync cannot order streams of a capture.
    fn waits_on(&self, stream: &Stream) -> Result<Option<(ReplayTake, u32, CircuitId)>> {
        let (waiter, own) = (self.waiter.load(Ordering::Relaxed), stream.id());
        match (&self.take, waiter) {
            (None, _) if self.stream == own => Ok(None),
            (Some(_), other) if other == own => Ok(None),
            // The kernels of another graph would be in no order with the one that names the receive.
            (Some(take), 0) if self.stream == own => Ok(Some(*take)),
            (None, _) => Err(unsupported(
                stream,
                "only the stream that captured a send waits for it; order other streams behind that one",
            )),
            (Some(_), _) => Err(unsupported(
                stream,
                "only the stream that captured a receive waits for it; order other streams behind that one",
            )),
        }
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        let missing = self.take.is_some() && self.waiter.load(Ordering::Relaxed) == 0;
        if missing {
            tracing::warn!(
                target: "mp",
                "a captured receive was dropped without a captured wait: no replay takes its messages in"
            );
        }
    }
}

/// The error of a call of the CPU for a captured message.
#[cold]
pub(crate) fn of_graph(operation: &'static str) -> Error {
    let what = "the message belongs to a graph, and moves at each replay; call wait_on with the stream \
                that is being captured, and synchronize the stream on which the graph is launched";
    Error::new(operation, Kind::Unsupported, what)
}

#[cold]
fn unsupported(stream: &Stream, why: &str) -> Error {
    let what = format!("{stream:?} is being captured into a graph: {why}");
    Error::new(CAPTURE, Kind::Unsupported, what)
}
