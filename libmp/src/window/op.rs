//! Puts, gets, signals and atomics as the application gives them: their checks, their work on a
//! lane, posted by the CPU or a stream, at once or later, and the request that shows their completion.

use std::ffi::CStr;

use gdsync::{Status, Stream};

use super::targets::{Target, Targets, WORD};
use crate::error::{Error, Kind, Result};
use crate::kernels::MOST_CHUNKS;
use crate::mutant::{self, Mutant};
use crate::path::{Atomic, Batch, INLINE, List, MOST_BYTES, Put, Span};
use crate::region::Slice;
use crate::request::entry::{Common, Entry, Operation, Poster, Segments};
use crate::request::one_sided::Action;
use crate::request::table::RequestKey;
use crate::request::transfer::{Transfer, TransferState, UsedLanes, Work};
use crate::trace::Facts;
use crate::two_sided::engine::Engine;
use crate::two_sided::{NULL_RANK, Need, On, State, not_connected};

/// What an operation does with the memory of a rank.
#[derive(Clone, Copy)]
pub(crate) enum Access<'a> {
    /// Copies `from` there; then stores a word, if there is one: its offset and its value.
    Put {
        from: &'a Slice,
        signal: Option<(u64, u64)>,
    },
    /// Copies `from` there, without a request.
    PutNbi { from: &'a Slice },
    /// Stores bytes there that are copied now, without a request.
    Inline { bytes: &'a [u8] },
    /// Copies to `into`.
    Get { into: &'a Slice },
    /// Stores a word after all earlier puts.
    Signal { value: u64 },
    /// Changes a word; `old` receives its old value.
    Atomic { old: &'a Slice, atomic: Atomic },
    /// Reads a word into `into`, after all earlier puts.
    Quiet { into: &'a Slice },
}

impl<'a> Access<'a> {
    pub fn put(from: &'a Slice) -> Access<'a> {
        let signal = None;
        Access::Put { from, signal }
    }

    pub fn put_signal(from: &'a Slice, offset: usize, value: u64) -> Access<'a> {
        let signal = Some((offset as u64, value));
        Access::Put { from, signal }
    }
}

/// An operation on the memory of a rank, as the application gives it.
#[derive(Clone, Copy)]
pub(crate) struct WindowOp<'a> {
    pub rank: u32,
    pub offset: u64,
    pub access: Access<'a>,
    pub on: On<'a>,
}

impl<'a> WindowOp<'a> {
    /// An operation at byte `offset` of the window of `rank`.
    pub fn new(rank: u32, offset: usize, access: Access<'a>, on: On<'a>) -> WindowOp<'a> {
        WindowOp {
            rank,
            offset: offset as u64,
            access,
            on,
        }
    }

    fn action(&self) -> Action {
        match &self.access {
            Access::Put { .. } | Access::PutNbi { .. } | Access::Inline { .. } => Action::Put,
            Access::Get { .. } => Action::Get,
            Access::Signal { .. } => Action::Signal,
            Access::Atomic { atomic, .. } => match atomic {
                Atomic::FetchAdd(_) => Action::FetchAdd,
                Atomic::CompareSwap { .. } => Action::CompareSwap,
            },
            Access::Quiet { .. } => Action::Quiet,
        }
    }

    /// Its name in errors.
    fn name(&self) -> &'static str {
        match self.action() {
            Action::Put => "put",
            Action::Get => "get",
            Action::Signal => "signal",
            Action::FetchAdd => "fetch-add",
            Action::CompareSwap => "compare-swap",
            Action::Quiet => "quiet",
            Action::Exchange => "exchange",
            Action::Collective(call) => call.name(),
            wait => super::signal::name(wait),
        }
    }

    /// Whether it is a put that stores a signal behind its payload.
    fn signals(&self) -> bool {
        matches!(
            self.access,
            Access::Put {
                signal: Some(_),
                ..
            }
        )
    }

    /// The name of its call, for observers.
    pub fn call(&self) -> &'static CStr {
        match self.action() {
            Action::Put => match self.access {
                Access::PutNbi { .. } => c"put_nbi",
                Access::Inline { .. } => c"put_inline",
                _ => c"put",
            },
            Action::Get => c"get",
            Action::Signal => c"signal",
            Action::FetchAdd => c"fetch_add",
            Action::CompareSwap => c"compare_swap",
            _ => c"quiet",
        }
    }

    /// What observers of the call show.
    pub fn facts(&self) -> Facts {
        Facts {
            peer: Some(self.rank),
            tag: None,
            bytes: Some(self.len() as u64),
            stream: self.on.stream().map(Stream::id),
        }
    }

    /// The memory of this rank.
    fn slice(&self) -> Option<&Slice> {
        match self.access {
            Access::Put { from, .. } | Access::PutNbi { from } => Some(from),
            Access::Get { into } | Access::Quiet { into } => Some(into),
            Access::Atomic { old, .. } => Some(old),
            Access::Inline { .. } | Access::Signal { .. } => None,
        }
    }

    /// The memory that its request keeps: of this rank, which is the target as well if the
    /// operation is to the rank itself.
    fn memory(&self, engine: &Engine, window: &Targets) -> Segments {
        let slice = self.slice().cloned();
        match self.rank == engine.rank {
            false => slice.map_or(Segments::None, Segments::One),
            true => Segments::Many(slice.into_iter().chain([window.memory.all()]).collect()),
        }
    }

    /// The length of its transfer in bytes.
    fn len(&self) -> usize {
        match self.access {
            Access::Inline { bytes } => bytes.len(),
            _ => self.slice().map_or(WORD, Slice::len),
        }
    }

    /// Checks the memory of this rank, and the stream.
    fn check(&self, engine: &Engine) -> Result<()> {
        let (operation, len) = (self.name(), self.len());
        let refuse = |what: String| Err(Error::new(operation, Kind::Invalid, what));
        if let Some(slice) = self.slice() {
            let paths = &engine.paths;
            paths.check(operation, slice.memory().keys(), slice)?;
            if let Access::Atomic { .. } = self.access
                && len != WORD
            {
                return refuse(format!(
                    "the former value of the word has 8 bytes, and its slice is {slice:?}"
                ));
            }
            let most = MOST_CHUNKS as u64 * MOST_BYTES;
            if len as u64 > most {
                let what = format!("{len} bytes are too many for one operation; use several");
                return Err(Error::new(operation, Kind::Invalid, what).with_limit(most, "bytes"));
            }
        }
        if let Access::Inline { bytes } = self.access
            && bytes.len() > INLINE
        {
            let what = format!("{len} bytes are too many for an inline put; use a put");
            let error = Error::new(operation, Kind::Invalid, what);
            return Err(error.with_limit(INLINE, "bytes"));
        }
        self.on.check(&engine.gpu, operation)
    }

    /// Checks the operation against the window, and returns its work there.
    fn work(&self, engine: &Engine, target: &Target) -> Result<Work> {
        let (operation, len) = (self.name(), self.len());
        let is_word = matches!(self.access, Access::Signal { .. } | Access::Atomic { .. });
        let span = target.span(operation, self.rank, (self.offset, len), is_word)?;
        if matches!(self.access, Access::Get { .. } | Access::Quiet { .. })
            && matches!(span, Span::Nic(_))
            && !engine.paths.reads(target.path())
        {
            let what = "the NIC of this rank executes no READ, which a get and a quiet need";
            return Err(Error::new(operation, Kind::Unsupported, what));
        }
        Ok(match self.access {
            Access::Put { signal, .. } => {
                let word = |(offset, value)| -> Result<_> {
                    let at = target.span("signal", self.rank, (offset, WORD), true)?;
                    Ok((at, value))
                };
                Work::Put {
                    to: span,
                    signal: signal.map(word).transpose()?,
                }
            }
            Access::PutNbi { .. } | Access::Inline { .. } => Work::Put {
                to: span,
                signal: None,
            },
            Access::Get { .. } | Access::Quiet { .. } => Work::Get { from: span },
            Access::Signal { value } => Work::Signal { to: span, value },
            Access::Atomic { atomic, .. } => Work::Atomic {
                word: target.atomic(self.offset)?,
                atomic,
            },
        })
    }

    /// Prepares its work and posts it. Returns its last put.
    fn post<const N: usize>(
        &self,
        mut batch: Batch<'_, N>,
        work: Work,
        stream: Option<&Stream>,
    ) -> Result<Option<Put>> {
        match (self.access, work) {
            (Access::Inline { bytes }, Work::Put { to, .. }) if batch.mixes(to) => {
                batch.announce(bytes, to)?;
            }
            (Access::Inline { bytes }, Work::Put { to, .. }) => {
                batch.put_bytes(bytes, to)?;
            }
            (Access::PutNbi { from }, Work::Put { to, .. }) if !batch.mixes(to) => {
                for (chunk, at) in from.chunks(from.len() as u64, to) {
                    batch.put([chunk].into_iter(), at)?;
                }
            }
            _ => work.prepare(&mut batch, self.slice())?,
        }
        post_batch(batch, stream)
    }

    /// Posts its work on a lane. Returns its last put.
    fn post_on_lane(
        &self,
        state: &mut State,
        target: &Target,
        work: Work,
        lane: u8,
    ) -> Result<Option<Put>> {
        let none = || not_connected(self.name(), self.rank);
        let peer = state.peers.get_mut(self.rank).ok_or_else(none)?;
        if !peer.can_post(lane, Need::Lanes) {
            return Err(peer.error(self.name()));
        }
        let (ends, stream) = (peer.link.lane(lane).ok_or_else(none)?, self.on.stream());
        let last = match self.len() as u64 > MOST_BYTES {
            false => self.post(Batch::short(ends), work, stream)?,
            true => self.post(Batch::new(ends), work, stream)?,
        };
        target.lanes.add(lane);
        Ok(last)
    }

    /// The fields of its request; `memory`: what the request keeps.
    fn common(&self, memory: Segments) -> Common {
        Common {
            number: self.offset,
            len: self.len() as u64,
            segments: memory,
            ..Common::new(self.rank, 0, &[])
        }
    }

    fn operation(&self, state: TransferState) -> Operation {
        Operation::Transfer(Transfer {
            action: self.action(),
            signals: self.signals(),
            state,
        })
    }
}

/// Posts a batch, whole or not at all. Returns its last put.
fn post_batch<const N: usize>(
    mut batch: Batch<'_, N>,
    stream: Option<&Stream>,
) -> Result<Option<Put>> {
    let last = batch.all().last();
    if let Err(e) = batch.order(stream) {
        batch.undo();
        return Err(e);
    }
    let Some(stream) = stream else {
        return batch.post().map(Some);
    };
    let mut list = List::<N>::new();
    list.put(batch.all());
    if let Err(e) = list.post(stream, Some(batch.lane())) {
        batch.undo();
        return Err(e);
    }
    Ok(last)
}

impl Engine {
    /// Posts an operation on the memory of a rank. Returns its request, whose handle is held.
    pub fn transfer(&self, window: &Targets, op: &WindowOp<'_>) -> Result<RequestKey> {
        let operation = op.name();
        op.check(self)?;
        if op.rank == NULL_RANK {
            return self.no_transfer(window, op);
        }
        let target = window.of(operation, op.rank)?;
        let work = op.work(self, target)?;
        let (guard, lane) = self.ensure(op.rank, &op.on, Need::Lanes)?;
        let mut locked = Some(guard);
        let posted = self.with_room(|| {
            let mut guard = locked.take().unwrap_or_else(|| self.lock());
            let state = &mut *guard;
            self.sweep_if_crowded(state);
            let order = state.requests.next_order();
            state.requests.reserve(&self.gpu)?;
            let last = op.post_on_lane(state, target, work, lane)?;
            let stream = op.on.stream();
            let common = Common {
                poster: Poster {
                    lane,
                    stream: stream.map(Stream::downgrade),
                },
                order,
                ..op.common(op.memory(self, window))
            };
            let done = TransferState::Done(Status::SUCCESS);
            let operation = op.operation(last.map_or(done, TransferState::InFlight));
            Ok(state.requests.put(Entry { common, operation }))
        });
        posted.map_err(|e| e.of_peer(op.rank))
    }

    /// Posts a put without a request: the queue pair keeps its memory until it is complete.
    pub fn put_nbi(&self, window: &Targets, op: &WindowOp<'_>) -> Result<()> {
        op.check(self)?;
        if op.rank == NULL_RANK {
            return Ok(());
        }
        let target = window.of(op.name(), op.rank)?;
        let work = op.work(self, target)?;
        let (guard, lane) = self.ensure(op.rank, &op.on, Need::Lanes)?;
        let mut locked = Some(guard);
        let posted = self.with_room(|| {
            let state = &mut *locked.take().unwrap_or_else(|| self.lock());
            op.post_on_lane(state, target, work, lane)?;
            if let Some(peer) = state.peers.get_mut(op.rank) {
                peer.counts.puts += 1;
                peer.counts.bytes_out += op.len() as u64;
            }
            Ok(())
        });
        posted.map_err(|e| e.of_peer(op.rank))
    }

    /// The request of an operation on the null rank, which has ended.
    #[cold]
    fn no_transfer(&self, window: &Targets, op: &WindowOp<'_>) -> Result<RequestKey> {
        let key = self.prepare_transfer(window, op)?;
        self.post(key).map(|()| key)
    }

    /// Prepares an operation on the memory of a rank, which the CPU or a stream posts later. Returns
    /// its request, whose handle is held. Its puts are made when it is posted.
    pub fn prepare_transfer(&self, window: &Targets, op: &WindowOp<'_>) -> Result<RequestKey> {
        let operation = op.name();
        op.check(self)?;
        if op.rank == NULL_RANK {
            let nothing = || (Segments::None, (Work::Nothing, UsedLanes::default()));
            return self.put_prepared(op, nothing);
        }
        let len = op.len() as u64;
        if len > MOST_BYTES {
            let what = format!("{len} bytes are too many for one prepared operation; use several");
            let error = Error::new(operation, Kind::Invalid, what);
            return Err(error.with_limit(MOST_BYTES, "bytes"));
        }
        let target = window.of(operation, op.rank)?;
        let work = op.work(self, target)?;
        let opened = self.ensure(op.rank, &op.on, Need::Lanes);
        drop(opened.map_err(|e| e.of_peer(op.rank))?);
        self.put_prepared(op, || {
            let memory = op.memory(self, window);
            (memory, (work, target.lanes.clone()))
        })
    }

    /// Makes the request of an operation that is not posted.
    fn put_prepared(
        &self,
        op: &WindowOp<'_>,
        prepared: impl Fn() -> (Segments, (Work, UsedLanes)),
    ) -> Result<RequestKey> {
        self.with_room(|| {
            let mut guard = self.lock();
            let state = &mut *guard;
            self.sweep_if_crowded(state);
            state.requests.reserve(&self.gpu)?;
            let (memory, (work, lanes)) = prepared();
            let common = op.common(memory);
            let operation = op.operation(TransferState::Prepared(work, lanes));
            Ok(state.requests.put(Entry { common, operation }))
        })
    }

    /// Orders later puts of `on` to `rank` after its earlier ones.
    pub fn fence(&self, window: &Targets, rank: u32, on: &On<'_>) -> Result<()> {
        const OPERATION: &str = "fence";
        on.check(&self.gpu, OPERATION)?;
        if rank == NULL_RANK || mutant::on(Mutant::MissingFence) {
            return Ok(());
        }
        let target = window.of(OPERATION, rank)?;
        let start = target.span(OPERATION, rank, (0, WORD), false)?;
        let fenced = self.with_room(|| {
            let mut guard = self.lock();
            let state = &mut *guard;
            let lane = self.lane_to(state, rank, on);
            // The lane has the puts of all windows; nothing was posted on one that is not open.
            let peer = state.peers.get_mut(rank);
            let Some(peer) = peer.filter(|peer| peer.is_open(lane, Need::Lanes)) else {
                return Ok(());
            };
            if !peer.is_here() {
                return Err(peer.error(OPERATION));
            }
            let Some(ends) = peer.link.lane(lane) else {
                return Ok(());
            };
            let mut batch = Batch::short(ends);
            batch.fence(start)?;
            let needed = batch.all().next().is_some();
            match needed {
                true => post_batch(batch, on.stream()).map(drop),
                false => Ok(()),
            }
        });
        fenced.map_err(|e| e.of_peer(rank))
    }

    /// Posts a READ behind all puts of `on`, to each rank that it has put to, and passes each
    /// request to `each`.
    ///
    /// # Errors
    /// The first error, after all ranks were tried.
    pub fn quiet(
        &self,
        window: &Targets,
        on: On<'_>,
        mut each: impl FnMut(RequestKey),
    ) -> Result<()> {
        let into = &window.scratch.all();
        let mut asked = Ok(());
        for (rank, target) in window.all() {
            let lane = self.lane_to(&mut self.lock(), rank, &on);
            if !target.lanes.has(lane) || mutant::on(Mutant::QuietAtOnce) {
                continue;
            }
            let op = WindowOp {
                rank,
                offset: 0,
                access: Access::Quiet { into },
                on,
            };
            match self.transfer(window, &op) {
                Ok(key) => each(key),
                Err(e) => asked = asked.and(Err(e)),
            }
        }
        asked
    }
}
