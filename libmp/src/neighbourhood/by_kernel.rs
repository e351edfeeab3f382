//! [`ByKernel`]: the parts of a step on a stream with peers whose memory is mapped here. A part is one kernel, or one
//! kernel executes all parts. A kernel waits for the words of the peers itself, copies between the pieces and the
//! peers' memory, and stores the words behind the data, so that the stream needs neither memory operations nor puts.
//!
//! The words and their values are those of all other steps: a peer may execute its half by puts, or by
//! the CPU. A peer that was given up is *closed* before the library releases the waits for it, and
//! before its memory is unmapped: the kernels write nothing to it.

use std::mem::offset_of;

use gdsync::gpu::{Dims, MemoryKind, Region, Word64};
use gdsync::{Gpu, Stream};
use zerocopy::IntoBytes;

use super::by_stream::{Open, Refused, landing, on_stale_ready};
use super::exchange::{Exchange, Move, Parts, Port, Table, WORDS_LEN, moves_table};
use crate::error::Result;
use crate::kernels::{
    Kernels, Pieces, ReadyWord, ReadyWords, StepGate, StepPart, StepParts, WholeStep,
};
use crate::path::{Span, check_gpu};
use crate::region::Strided;
use crate::request::step::{ExchangeWords, PeerState, parity};
use crate::two_sided::engine::Engine;

/// Parts of a peer's memory: where each begins, and its bytes.
type Spans = Vec<(Span, u64)>;

/// The steps of an exchange with peers whose memory is mapped. All arrays of two are by parity.
pub(super) struct ByKernel {
    /// The memory of each peer that kernels write, the words first; `None`: it is not mapped.
    written: Vec<Option<[Spans; 2]>>,
    ready: [ReadyTable; 2],
    /// The data that is sent, and the data that this rank sends to itself.
    send: [StepTable; 2],
    /// The data that is received and unpacked. That of the other peers has arrived when the kernel starts.
    receive: [StepTable; 2],
    /// The moves that pack what the other peers are sent.
    pub pack: [Option<Table>; 2],
    /// Whether one kernel can execute a step: all peers are mapped, and the step unpacks nothing that this rank sends
    /// to itself.
    pub in_one_kernel: bool,
}

struct ReadyTable {
    params: ReadyWords,
    _memory: Region,
}

struct StepTable {
    params: StepParts,
    dims: Dims,
    _memory: Region,
}

impl ByKernel {
    /// `None`: no peer's memory is mapped.
    pub fn new(
        kernels: &Kernels,
        gpu: &Gpu,
        parts: &Parts,
        ports: &[Port],
        words: &ExchangeWords,
    ) -> Result<Option<ByKernel>> {
        let is_mapped = |port: &Port| matches!(port.ready[0], Span::Copy(_));
        let peers = words.peers.iter().zip(ports);
        let mapped: Vec<_> = peers.filter(|(_, port)| is_mapped(port)).collect();
        if mapped.is_empty() {
            return Ok(None);
        }
        let (mut itself, mut pack, mut unpack) = (Vec::new(), Vec::new(), Vec::new());
        parts.move_to_itself(&mut itself)?;
        for (one, staged) in parts.iter() {
            if !mapped.iter().any(|(peer, _)| peer.rank == one.rank) {
                parts.pack(&mut pack, one, staged);
                parts.unpack(&mut unpack, one, staged);
            }
        }
        let table = |parts: Vec<_>, rest: &[Move], at: usize| {
            let rest: Vec<Pieces> = rest.iter().map(|one| one.entry(at)).collect();
            let own = (!rest.is_empty()).then_some((StepPart::default(), rest));
            StepTable::new(kernels, gpu, parts.into_iter().chain(own).collect())
        };
        let send = |at: usize| {
            let part = |(peer, port): &(&PeerState, &Port)| {
                let part = StepPart {
                    word: peer.ready[at].addr().0,
                    closed: peer.closed.addr().0,
                    arrived: port.arrived[at].addr(),
                    left: peer.left.addr().0,
                    ..StepPart::default()
                };
                (part, sent(parts, peer.rank, port, at))
            };
            table(mapped.iter().map(part).collect(), &itself, at)
        };
        let receive = |at: usize| {
            let part = |(peer, _): &(&PeerState, &Port)| {
                let part = StepPart {
                    word: peer.arrived[at].addr().0,
                    closed: peer.closed.addr().0,
                    ..StepPart::default()
                };
                (part, received(parts, peer.rank, at))
            };
            table(mapped.iter().map(part).collect(), &unpack, at)
        };
        let ready = |at: usize| {
            let word = |(peer, port): &(&PeerState, &Port)| ReadyWord {
                closed: peer.closed.addr().0,
                to: port.ready[at].addr(),
            };
            ReadyTable::new(gpu, mapped.iter().map(word).collect())
        };
        let written = |port: &Port| {
            let words = (port.ready[0], WORDS_LEN);
            let data = |at: usize| port.data.iter().map(move |data| (data.to[at], data.len));
            let written = [0, 1].map(|at| [words].into_iter().chain(data(at)).collect());
            is_mapped(port).then_some(written)
        };
        Ok(Some(ByKernel {
            written: ports.iter().map(written).collect(),
            ready: [ready(0)?, ready(1)?],
            send: [send(0)?, send(1)?],
            receive: [receive(0)?, receive(1)?],
            pack: [moves_table(gpu, &pack, 0)?, moves_table(gpu, &pack, 1)?],
            in_one_kernel: unpack.is_empty() && mapped.len() == ports.len(),
        }))
    }

    /// Whether the kernels execute the parts of all peers.
    pub fn has_all(&self) -> bool {
        self.written.iter().all(Option::is_some)
    }

    /// Whether the kernels execute the part of this peer, by its position.
    pub fn has(&self, at: usize) -> bool {
        self.written[at].is_some()
    }

    /// Enqueues the kernel that stores the ready words of a step.
    pub fn ready(&self, kernels: &Kernels, stream: &Stream, step: u64) -> Result<()> {
        let params = ReadyWords {
            step,
            ..self.ready[parity(step)].params
        };
        // SAFETY: the words of the peers are mapped, unless the peer is closed (`Open::by_kernel`). The
        // exchange holds the other memory. Memory that is returned, or unmapped, stays accessible until
        // the stream has run what was enqueued before.
        unsafe { kernels.ready(stream, &params) }
    }

    /// Enqueues the kernel that sends the data of a step.
    pub fn send(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        step: u64,
        words: &ExchangeWords,
    ) -> Result<()> {
        self.send[parity(step)].launch(kernels, stream, [step, awaited(step)], &words.left)
    }

    /// Enqueues the kernel that receives the data of a step.
    pub fn receive(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        step: u64,
        words: &ExchangeWords,
    ) -> Result<()> {
        self.receive[landing(step)].launch(kernels, stream, [step, step], &words.passed)
    }

    /// Enqueues the kernel that executes a whole step.
    pub fn whole_step(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        step: u64,
        words: &ExchangeWords,
    ) -> Result<()> {
        let at = parity(step);
        let (send, receive) = (&self.send[at], &self.receive[landing(step)]);
        let params = WholeStep {
            ready: ReadyWords {
                step,
                ..self.ready[at].params
            },
            send: send.of_step(step, awaited(step), &words.passed),
            receive: receive.of_step(step, step, &words.passed),
        };
        let dims = [send.dims, receive.dims];
        // SAFETY: as for the three kernels.
        unsafe { kernels.whole_step(stream, &params, dims, &words.passed) }
    }
}

/// The value of the ready words that the data of a step waits for.
fn awaited(step: u64) -> u64 {
    match on_stale_ready(step) {
        // The step that used the same word before.
        true => step.wrapping_sub(2),
        false => step,
    }
}

/// The pieces of the data that this rank sends to another one. They are packed there, one behind the other.
fn sent(parts: &Parts, rank: u32, port: &Port, at: usize) -> Vec<Pieces> {
    let same = parts.others().map(|(one, _)| one);
    let same = same.filter(|one| one.rank == rank && one.sends() > 0);
    let mut all = Vec::new();
    for (one, data) in same.zip(&port.data) {
        let mut to = data.to[at].addr();
        for piece in one.sent.iter().filter(|piece| !Strided::is_empty(piece)) {
            all.push(piece.gathering(to));
            to += piece.len() as u64;
        }
    }
    all
}

/// The pieces of the data that a rank sends to this one. Data that arrives at its destination has none.
fn received(parts: &Parts, rank: u32, at: usize) -> Vec<Pieces> {
    let mut all: Vec<Move> = Vec::new();
    for (one, staged) in parts.others().filter(|(one, _)| one.rank == rank) {
        parts.unpack(&mut all, one, staged);
    }
    all.iter().map(|one| one.entry(at)).collect()
}

/// Memory of the GPU with these bytes.
fn uploaded(gpu: &Gpu, bytes: &[u8]) -> Result<Region> {
    let memory = gpu.alloc(MemoryKind::Device, bytes.len())?;
    memory.write(0, bytes)?;
    Ok(memory)
}

impl ReadyTable {
    fn new(gpu: &Gpu, words: Vec<ReadyWord>) -> Result<ReadyTable> {
        let memory = uploaded(gpu, words.as_bytes())?;
        Ok(ReadyTable {
            params: ReadyWords {
                table: memory.addr().0,
                step: 0,
                count: words.len() as u32,
                reserved: 0,
            },
            _memory: memory,
        })
    }
}

impl StepTable {
    /// The memory has the parts, then their gates and one more for all parts, then the pieces.
    fn new(kernels: &Kernels, gpu: &Gpu, all: Vec<(StepPart, Vec<Pieces>)>) -> Result<StepTable> {
        let count = all.len();
        let gates = count * size_of::<StepPart>();
        let from = gates + (count + 1) * size_of::<StepGate>();
        let pieces: usize = all.iter().map(|(_, pieces)| pieces.len()).sum();
        let len = from + pieces * size_of::<Pieces>();
        let memory = gpu.alloc(MemoryKind::Device, len)?;
        let at = |offset: usize| memory.addr().0 + offset as u64;
        let (mut parts, mut table, mut longest) = (Vec::new(), Vec::new(), 0);
        for (i, (mut part, pieces)) in all.into_iter().enumerate() {
            longest = longest.max(kernels.divide(&mut part, &pieces, count));
            part.gate = at(gates + i * size_of::<StepGate>());
            part.pieces = at(from + table.len() * size_of::<Pieces>());
            parts.push(part);
            table.extend(pieces);
        }
        let new_gates = vec![StepGate::default(); count + 1];
        let bytes = [parts.as_bytes(), new_gates.as_bytes(), table.as_bytes()].concat();
        memory.write(0, &bytes)?;
        Ok(StepTable {
            params: StepParts {
                table: at(0),
                step: 0,
                awaited: 0,
                passed: 0,
                ended: at(gates + count * size_of::<StepGate>() + offset_of!(StepGate, ended)),
                count: count as u32,
                shares: parts.iter().map(|part| part.shares).sum(),
            },
            dims: kernels.step_dims(&parts, longest),
            _memory: memory,
        })
    }

    /// The parameters of a step.
    fn of_step(&self, step: u64, awaited: u64, passed: &Word64) -> StepParts {
        StepParts {
            step,
            awaited,
            passed: passed.addr().0,
            ..self.params
        }
    }

    /// Enqueues the kernel, which waits until the words have reached `awaited`, and stores the number of the
    /// step in `passed` when all parts have ended.
    fn launch(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        [step, awaited]: [u64; 2],
        passed: &Word64,
    ) -> Result<()> {
        let params = self.of_step(step, awaited, passed);
        // SAFETY: as for the ready words; the tables name pieces, which `Strided` has checked, library memory
        // with room for all of them, and memory of peers that contains them.
        unsafe { kernels.step(stream, &params, self.dims, passed) }
    }
}

/// What the kernel of a part writes to the peers.
#[derive(Clone, Copy)]
pub(super) enum Writes {
    Ready,
    Data,
    Nothing,
}

impl Open<'_> {
    /// The kernels of an exchange; `None` if those of a mapped peer cannot run at the same time as those of
    /// this rank: they would wait for each other in time slices of one GPU. Closes the peers that are lost.
    ///
    /// # Errors
    /// The lane to a peer fails if the memory that the kernel writes is not mapped any more.
    pub fn by_kernel<'x>(
        &mut self,
        engine: &Engine,
        x: &'x Exchange,
        stream: &Stream,
        (operation, step, writes): (&'static str, u64, Writes),
    ) -> Result<Option<&'x ByKernel>, Refused> {
        let Some(by_kernel) = &x.by_kernel else {
            return Ok(None);
        };
        check_gpu(stream, &engine.gpu, operation).map_err(|e| self.refused(e, false))?;
        for (peer, written) in x.words.peers.iter().zip(&by_kernel.written) {
            let Some(written) = written else {
                continue;
            };
            let Some(lane) = self.lane_to(peer.rank) else {
                peer.close();
                continue;
            };
            if !lane.runs_beside_peer() {
                return Ok(None);
            }
            let spans = match (&written[parity(step)][..], writes) {
                (spans, Writes::Data) => spans,
                (spans, Writes::Ready) => &spans[..1],
                // A peer that has all its data may have released its memory.
                (_, Writes::Nothing) => continue,
            };
            lane.reach(spans)
                .map_err(|e| self.refused(e.of_peer(peer.rank), false))?;
        }
        Ok(Some(by_kernel))
    }
}
