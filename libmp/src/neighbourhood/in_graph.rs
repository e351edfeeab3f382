//! Steps of a neighbourhood in graphs: a stream that is being captured records the three calls of a step.
//!
//! The numbers of steps, and the words that have them, are of one run. A captured step sends messages of
//! circuits instead (`two_sided/circuits`): one to each neighbour and one from it, of any length, so that
//! the end of a step shows that all neighbours have sent theirs. Data that is not in one piece is packed
//! in memory of its own, because an exchange outside of graphs may be in progress in the other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gdsync::Stream;

use super::by_stream::{READY, WAIT};
use super::exchange::{Calls, Copies, Exchange, Parts};
use super::spec::Neighbour;
use crate::error::Result;
use crate::region::{Memory, Slice};
use crate::two_sided::engine::Engine;
use crate::two_sided::{Captured, Message};

/// The captured steps of a neighbourhood.
pub(super) struct InGraph {
    neighbours: Vec<Neighbour>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: Calls,
    /// What all captured steps use.
    parts: Option<Arc<GraphParts>>,
    /// The receives of the step that is being captured.
    receives: Vec<Captured>,
}

/// What a captured step uses.
struct GraphParts {
    /// The neighbours that are other ranks.
    ports: Vec<GraphPort>,
    pack: Copies,
    unpack: Copies,
    memory: Vec<Memory>,
}

/// The messages of a neighbour.
struct GraphPort {
    rank: u32,
    /// The tags under which this rank sends and receives.
    tags: [u32; 2],
    /// The bytes that are sent, and those that are received; `None`: no bytes.
    data: [Option<Slice>; 2],
}

impl GraphPort {
    fn message(&self, sends: bool) -> Message<'_> {
        let at = usize::from(!sends);
        Message {
            rank: self.rank,
            tag: self.tags[at],
            sends,
            exchange: true,
            memory: self.data[at].as_ref(),
        }
    }
}

impl InGraph {
    pub fn new(neighbours: Vec<Neighbour>) -> InGraph {
        let state = Mutex::default();
        InGraph { neighbours, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GraphParts {
    fn new(engine: &Engine, neighbours: &[Neighbour]) -> Result<GraphParts> {
        let parts = Parts::new(engine, neighbours.to_vec(), false, true)?;
        let [pack, unpack] = parts.moves()?;
        let port = |(one, data): (&Neighbour, [Option<Slice>; 2])| GraphPort {
            rank: one.rank,
            tags: [one.send, one.receive],
            data,
        };
        Ok(GraphParts {
            ports: parts.whole()?.map(port).collect(),
            pack: Copies::new(&engine.gpu, pack)?,
            unpack: Copies::new(&engine.gpu, unpack)?,
            memory: parts.memory(),
        })
    }

    /// Makes the graph keep all memory of the moves.
    fn keep(&self, stream: &Stream) {
        self.memory
            .iter()
            .for_each(|memory| stream.keep(memory.region()));
        let tables = [&self.pack, &self.unpack].into_iter();
        let tables = tables.filter_map(|copies| copies.tables[0].as_ref());
        tables.for_each(|table| stream.keep(&table.memory));
    }
}

impl Engine {
    /// Captures the part of a step in which the memory of the received data may be written.
    pub(super) fn capture_ready(&self, x: &Exchange, stream: &Stream) -> Result<()> {
        let state = &mut *x.in_graph.lock();
        let step = state.calls.may_ready(1)?;
        self.kernels(READY)?;
        let parts = match &state.parts {
            Some(parts) => Arc::clone(parts),
            None => Arc::new(GraphParts::new(self, &x.in_graph.neighbours)?),
        };
        let messages: Vec<_> = parts.ports.iter().map(|port| port.message(false)).collect();
        state.receives = self.capture_all(stream, &messages)?;
        drop(messages);
        state.parts = Some(parts);
        state.calls.ready = step;
        Ok(())
    }

    /// Captures the part of a step that sends.
    pub(super) fn capture_send_to_neighbours(&self, x: &Exchange, stream: &Stream) -> Result<()> {
        let state = &mut *x.in_graph.lock();
        let step = state.calls.may_send()?;
        if let Some(parts) = &state.parts {
            parts.keep(stream);
            self.launch(parts.pack.tables[0].as_ref(), stream)?;
            let messages: Vec<_> = parts.ports.iter().map(|port| port.message(true)).collect();
            self.capture_all(stream, &messages)?;
        }
        state.calls.sent = step;
        state.calls.sender = Some(stream.id());
        Ok(())
    }

    /// Captures the part of a step that waits for the data.
    pub(super) fn capture_wait_for_neighbours(&self, x: &Exchange, stream: &Stream) -> Result<()> {
        let state = &mut *x.in_graph.lock();
        let step = state.calls.may_wait(Some(stream.id()))?;
        self.kernels(WAIT)?;
        self.wait_on_captured(state.receives.iter(), stream)?;
        if let Some(parts) = &state.parts {
            parts.keep(stream);
            self.launch(parts.unpack.tables[0].as_ref(), stream)?;
        }
        state.receives.clear();
        state.calls.waited = step;
        Ok(())
    }
}
