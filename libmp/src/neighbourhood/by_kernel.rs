//! The parts of a step on a stream with peers whose memory is mapped here: one kernel for each part. It
//! waits for the words of the peers itself, copies between the pieces and the peers' memory, and
//! stores the words behind the data, so that the stream needs neither memory operations nor puts.
//!
//! The words and their values are those of all other steps: a peer may execute its half by puts, or by
//! the CPU. A peer that was given up is *closed* before the library releases the waits for it, and
//! before its memory is unmapped: the kernels write nothing to it.

use gdsync::gpu::{Dims, MemoryKind, Region, Word64};
use gdsync::{Gpu, Stream};
use zerocopy::IntoBytes;

use super::by_stream::{Open, Refused, on_stale_ready};
use super::exchange::{Exchange, Move, Parts, Port, Table, WORDS_LEN, table};
use crate::error::Result;
use crate::kernels::{Kernels, Pieces, ReadyWord, ReadyWords, StepGate, StepPart, StepParts};
use crate::path::{Span, of_gpu};
use crate::region::Strided;
use crate::request::step::{ExchangeWords, PeerState, parity};
use crate::two_sided::engine::Engine;

/// Memory of a peer: where it begins, and its bytes.
type Spans = Vec<(Span, u64)>;

/// The steps of an exchange with peers whose memory is mapped. All arrays of two are by parity.
pub(super) struct ByKernel {
    /// By peer: the memory of it that kernels write, the words first; `None`: it is not mapped.
    reached: Vec<Option<[Spans; 2]>>,
    ready: [ReadyTable; 2],
    /// With the data that this rank sends to itself.
    send: [StepTable; 2],
    /// With all other data that is unpacked, behind the waits of the stream.
    receive: [StepTable; 2],
    /// The moves that pack what the other peers are sent.
    pub pack: [Option<Table>; 2],
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
        let tables = |send: bool, at: usize| {
            let of_peer = |(peer, port): &(&PeerState, &Port)| {
                let part = StepPart {
                    closed: peer.closed.addr().0,
                    ..StepPart::default()
                };
                match send {
                    true => (
                        StepPart {
                            word: peer.ready[at].addr().0,
                            arrived: port.arrived[at].addr(),
                            left: peer.left.addr().0,
                            ..part
                        },
                        sent(parts, peer.rank, port, at),
                    ),
                    false => (
                        StepPart {
                            word: peer.arrived[at].addr().0,
                            ..part
                        },
                        received(parts, peer.rank, at),
                    ),
                }
            };
            let rest = if send { &itself } else { &unpack };
            let rest: Vec<Pieces> = rest.iter().map(|one| one.entry(at)).collect();
            let own = (!rest.is_empty()).then_some((StepPart::default(), rest));
            StepTable::new(
                kernels,
                gpu,
                mapped.iter().map(of_peer).chain(own).collect(),
            )
        };
        let ready = |at: usize| {
            let word = |(peer, port): &(&PeerState, &Port)| ReadyWord {
                closed: peer.closed.addr().0,
                to: port.ready[at].addr(),
            };
            ReadyTable::new(gpu, mapped.iter().map(word).collect())
        };
        let reached = |port: &Port| {
            let words = (port.ready[0], WORDS_LEN);
            let data = |at: usize| port.data.iter().map(move |data| (data.to[at], data.len));
            let reached = [0, 1].map(|at| [words].into_iter().chain(data(at)).collect());
            is_mapped(port).then_some(reached)
        };
        Ok(Some(ByKernel {
            reached: ports.iter().map(reached).collect(),
            ready: [ready(0)?, ready(1)?],
            send: [tables(true, 0)?, tables(true, 1)?],
            receive: [tables(false, 0)?, tables(false, 1)?],
            pack: [table(gpu, &pack, 0)?, table(gpu, &pack, 1)?],
        }))
    }

    /// Whether the kernels execute the parts of all peers.
    pub fn has_all(&self) -> bool {
        self.reached.iter().all(Option::is_some)
    }

    /// Whether the kernels execute the part of this peer, by its position.
    pub fn has(&self, at: usize) -> bool {
        self.reached[at].is_some()
    }

    /// Enqueues the ready words of a step.
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

    /// Enqueues the data of a step that is sent.
    pub fn send(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        step: u64,
        words: &ExchangeWords,
    ) -> Result<()> {
        // The ready word of two steps before is the same word.
        let awaited = if on_stale_ready(step) {
            step.wrapping_sub(2)
        } else {
            step
        };
        self.send[parity(step)].launch(kernels, stream, [step, awaited], &words.left)
    }

    /// Enqueues the data of a step that is received; `landing`: the parity of its memory.
    pub fn receive(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        (step, landing): (u64, usize),
        words: &ExchangeWords,
    ) -> Result<()> {
        self.receive[landing].launch(kernels, stream, [step, step], &words.passed)
    }
}

/// What the neighbours that are a rank are sent: each its pieces, one behind the other.
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

/// What the neighbours that are a rank have sent, if it is not in the memory of their pieces.
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
        memory.write(
            0,
            &bytes_of(&parts, &vec![StepGate::default(); count + 1], &table),
        )?;
        Ok(StepTable {
            params: StepParts {
                table: at(0),
                step: 0,
                awaited: 0,
                passed: 0,
                ended: at(from - size_of::<StepGate>()) + 8,
                count: count as u32,
                shares: parts.iter().map(|part| part.shares).sum(),
            },
            dims: kernels.step_dims(&parts, longest),
            _memory: memory,
        })
    }
}

impl StepTable {
    /// Enqueues a step; its kernel waits until the words have reached `awaited`, and stores the number of
    /// the step in `passed` when all parts have ended.
    fn launch(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        [step, awaited]: [u64; 2],
        passed: &Word64,
    ) -> Result<()> {
        let params = StepParts {
            step,
            awaited,
            passed: passed.addr().0,
            ..self.params
        };
        // SAFETY: as for the ready words; the tables name pieces, which `Strided` has checked, library memory
        // with room for all of them, and memory of peers that contains them.
        unsafe { kernels.step(stream, &params, self.dims, passed) }
    }
}

fn bytes_of(parts: &[StepPart], gates: &[StepGate], pieces: &[Pieces]) -> Vec<u8> {
    [parts.as_bytes(), gates.as_bytes(), pieces.as_bytes()].concat()
}

/// What the kernel of a part writes to the peers.
#[derive(Clone, Copy)]
pub(super) enum Writes {
    Ready,
    Data,
    Nothing,
}

impl Open<'_> {
    /// The kernels of an exchange, if those of all mapped peers run beside the kernels of this rank:
    /// else they would wait in time slices of one GPU. Closes the peers that are lost, or whose memory that
    /// the kernel writes is not mapped any more.
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
        of_gpu(stream, &engine.gpu, operation).map_err(|e| self.refused(e, false))?;
        for (peer, reached) in x.words.peers.iter().zip(&by_kernel.reached) {
            let Some(reached) = reached else {
                continue;
            };
            let Some(lane) = self.lane_to(peer.rank) else {
                peer.close();
                continue;
            };
            if !lane.runs_beside_peer() {
                return Ok(None);
            }
            let spans = match (&reached[parity(step)][..], writes) {
                (spans, Writes::Data) => spans,
                (spans, Writes::Ready) => &spans[..1],
                // The peer may have all that it needs, and have released its memory.
                (_, Writes::Nothing) => continue,
            };
            lane.reach(spans)
                .map_err(|e| self.refused(e.of_peer(peer.rank), false))?;
        }
        Ok(Some(by_kernel))
    }
}
