//! [`Exchange`]: what is fixed when a neighbourhood is built. Memory, addresses and keys on
//! both ranks, and the moves between the pieces and the memory that the NIC uses.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gdsync::Gpu;
use gdsync::gpu::{Dims, MemoryKind, Region};
use zerocopy::IntoBytes;

use super::by_kernel::ByKernel;
use super::in_graph::InGraph;
use super::join::sizes;
use super::spec::{BUILD, Neighbour, check};
use crate::error::{Error, Kind, Result};
use crate::kernels::{Moves, Pieces, moves_of};
use crate::path::{Keys, Path, Remote, Rights, Span};
use crate::region::{Memory, Slice, Strided};
use crate::request::step::{ExchangeWords, PeerState, before};
use crate::request::table::RequestKey;
use crate::two_sided::engine::Engine;
use crate::wire::control::Neighbour as NeighbourRecord;

/// Bytes of a word, and number of words that a peer writes: ready and arrival, by parity of the step.
const WORD: usize = 8;
const WORDS: usize = 4;
/// Bytes of these words.
pub(super) const WORDS_LEN: u64 = (WORDS * WORD) as u64;
/// Number of words behind them that the peer does not write: that it is closed, and the step that it was
/// sent.
const OWN_WORDS: usize = 2;
/// Bytes from the words of one peer to those of the next: a line of the bus, because loads of one line by
/// several blocks of a kernel take turns.
const LINE: usize = 128;
/// Alignment of the bytes of a neighbour in library memory.
const ALIGN: usize = 64;

/// The destinations of this rank's puts at a peer, and the data. The indices are parities of steps.
/// All neighbours that are the same peer share its words: one arrival covers all data.
pub(super) struct Port {
    pub ready: [Span; 2],
    pub arrived: [Span; 2],
    /// The data of each neighbour that is sent any.
    pub data: Vec<Data>,
}

/// The data that a neighbour is sent.
pub(super) struct Data {
    pub to: [Span; 2],
    pub len: u64,
    /// The bytes, which the NIC gathers.
    pub from: Vec<Slice>,
}

/// A copy between pieces and contiguous bytes.
pub(super) struct Move {
    pub pieces: Strided,
    pub packed: Memory,
    /// The offset of the bytes, by parity of the step.
    pub at: [usize; 2],
    pub scatters: bool,
}

impl Move {
    /// Its entry in a table, for a parity.
    pub fn entry(&self, parity: usize) -> Pieces {
        let packed = self.packed.region().addr().0 + self.at[parity] as u64;
        Pieces {
            scatters: self.scatters.into(),
            ..self.pieces.gathering(packed)
        }
    }
}

/// Moves that one kernel executes.
pub(super) struct Table {
    pub params: Moves,
    pub dims: Dims,
    /// The memory of the entries.
    pub memory: Region,
}

/// The moves of a part of a step: for the CPU, and for kernels by parity of the step. Empty tables
/// are `None`.
#[derive(Default)]
pub(super) struct Copies {
    pub moves: Vec<Move>,
    pub tables: [Option<Table>; 2],
}

/// The position of the application in its calls.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The last steps whose ready words, data and waits were posted.
    pub ready: u64,
    pub sent: u64,
    pub waited: u64,
    /// The poster of the last step's data: a stream's number; `None`: the CPU.
    pub sender: Option<u64>,
    /// The record of the last step that was sent.
    pub record: Option<RequestKey>,
    /// Only a part of a call was enqueued.
    pub torn: bool,
}

/// A neighbourhood, as its handle has it.
pub(crate) struct Exchange {
    /// The words of the peers, in the order of `ports`.
    pub words: Arc<ExchangeWords>,
    pub(super) ports: Vec<Port>,
    /// The steps of streams with peers whose memory is mapped; `None`: there are none.
    pub(super) by_kernel: Option<ByKernel>,
    /// Steps that may be ready and not waited for: 2 with double buffering.
    pub(super) ahead: u64,
    pub(super) pack: Copies,
    pub(super) unpack: Copies,
    /// A NIC writes received data to GPU memory, so that a wait flushes.
    pub(super) flushes: bool,
    calls: Mutex<Calls>,
    pub(super) in_graph: InGraph,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.words.abandon();
    }
}

impl Exchange {
    /// The lock of the calls.
    ///
    /// # Errors
    /// `Closed` if a part of an earlier call is missing.
    pub(super) fn calls(&self, operation: &'static str) -> Result<MutexGuard<'_, Calls>> {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        match calls.torn {
            false => Ok(calls),
            true => {
                let what = "the GPU accepted only a part of an earlier call; build the \
                            neighbourhood again";
                Err(Error::new(operation, Kind::Closed, what))
            }
        }
    }

    /// The number of the last step that was sent.
    pub fn step(&self) -> u64 {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.sent
    }
}

/// Library memory that is laid out before it is allocated.
#[derive(Default)]
struct Layout {
    len: usize,
    device: bool,
}

impl Layout {
    /// Room for `len` bytes of these pieces.
    fn add(&mut self, pieces: &[Strided], len: u64) -> usize {
        self.device |= pieces.iter().any(|piece| in_gpu(piece.memory()));
        let at = self.len;
        self.len = (at + len as usize).next_multiple_of(ALIGN);
        at
    }

    fn alloc(&self, engine: &Engine, rights: Rights) -> Result<Memory> {
        let kind = match self.device {
            true => MemoryKind::Device,
            false => MemoryKind::Pinned,
        };
        let region = engine.gpu.alloc(kind, self.len.max(ALIGN))?;
        Ok(Memory::new(engine.paths.register(&region, rights)?))
    }
}

/// The offsets of the data of one neighbour in library memory: `None` if the NIC uses the pieces.
pub(super) struct Staged {
    pub landing: Option<[usize; 2]>,
    pub packing: Option<usize>,
}

/// The neighbours, with the library memory of their data.
pub(super) struct Parts {
    /// The neighbours that are other ranks, those of one rank together, and behind them those that
    /// are this rank itself.
    all: Vec<Neighbour>,
    staged: Vec<Staged>,
    /// Number of neighbours that are other ranks.
    others: usize,
    landing: Memory,
    packing: Memory,
}

impl Parts {
    /// `whole`: all data that is sent to a neighbour is in one piece.
    pub fn new(
        engine: &Engine,
        neighbours: Vec<Neighbour>,
        double: bool,
        whole: bool,
    ) -> Result<Parts> {
        let is_other = |one: &Neighbour| one.rank != engine.rank;
        let (mut all, own): (Vec<_>, Vec<_>) = neighbours.into_iter().partition(is_other);
        let others = all.len();
        all.sort_by_key(|one| one.rank);
        all.extend(own);
        let (mut landing, mut packing) = (Layout::default(), Layout::default());
        let stage = |one: &Neighbour| Staged {
            landing: match one.direct() {
                Some(_) if !double => None,
                _ if one.receives() == 0 => None,
                _ => {
                    let mut add = || landing.add(&one.received, one.receives());
                    let first = add();
                    Some([first, if double { add() } else { first }])
                }
            },
            packing: match is_other(one) && !one.is_gathered(&all[..others], whole) {
                true => Some(packing.add(&one.sent, one.sends())),
                false => None,
            },
        };
        let staged = all.iter().map(stage).collect();
        Ok(Parts {
            staged,
            others,
            landing: landing.alloc(engine, Rights::Write)?,
            packing: packing.alloc(engine, Rights::Source)?,
            all,
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Neighbour, &Staged)> {
        self.all.iter().zip(&self.staged)
    }

    /// The neighbours that are other ranks.
    pub fn others(&self) -> impl Iterator<Item = (&Neighbour, &Staged)> {
        self.iter().take(self.others)
    }

    /// The moves that pack what is sent, and those that unpack what is received.
    ///
    /// # Errors
    /// As [`Parts::move_to_itself`].
    pub fn moves(&self) -> Result<[Vec<Move>; 2]> {
        let (mut pack, mut unpack) = (Vec::new(), Vec::new());
        for (one, staged) in self.iter() {
            self.pack(&mut pack, one, staged);
            self.unpack(&mut unpack, one, staged);
        }
        self.move_to_itself(&mut pack)?;
        Ok([pack, unpack])
    }

    /// Adds the moves that pack what a neighbour is sent.
    pub fn pack(&self, list: &mut Vec<Move>, one: &Neighbour, staged: &Staged) {
        if let Some(at) = staged.packing {
            moves(list, &one.sent, &self.packing, [at; 2], false);
        }
    }

    /// Adds the moves that unpack what a neighbour has sent.
    pub fn unpack(&self, list: &mut Vec<Move>, one: &Neighbour, staged: &Staged) {
        if let Some(at) = staged.landing {
            moves(list, &one.received, &self.landing, at, true);
        }
    }

    /// Adds the moves of the data that this rank sends to itself.
    ///
    /// # Errors
    /// `Missing` without a neighbour that receives the data; `Invalid` if the sizes differ.
    pub fn move_to_itself(&self, pack: &mut Vec<Move>) -> Result<()> {
        for (one, _) in self.iter().skip(self.others) {
            let receives = |(other, _): &(&Neighbour, &Staged)| {
                (other.send, other.receive) == (one.receive, one.send)
            };
            let Some((to, staged)) = self.iter().skip(self.others).find(receives) else {
                let what = format!(
                    "{}, this rank itself, has no neighbour with the two tags in exchanged places; \
                     add one",
                    one.name()
                );
                return Err(one.error(Kind::Missing, what));
            };
            let record = NeighbourRecord {
                sends: to.sends(),
                receives: to.receives(),
                ..NeighbourRecord::default()
            };
            sizes(one, &record)?;
            match (staged.landing, to.direct()) {
                (Some(at), _) => moves(pack, &one.sent, &self.landing, at, false),
                (None, Some(slice)) => {
                    moves(pack, &one.sent, slice.memory(), [slice.offset(); 2], false);
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// Whether a NIC writes received data to GPU memory.
    fn land_in_device(&self) -> bool {
        self.others().any(|(one, staged)| match staged.landing {
            Some(_) => in_gpu(&self.landing),
            None => one.direct().is_some_and(|slice| in_gpu(slice.memory())),
        })
    }

    /// The neighbours that are other ranks, each with the bytes that it is sent and those that it sends, of
    /// parts whose data is `whole`. `None`: no bytes.
    pub fn whole(&self) -> Result<impl Iterator<Item = (&Neighbour, [Option<Slice>; 2])>> {
        let data = |(one, staged): (&Neighbour, &Staged)| -> Result<[Option<Slice>; 2]> {
            let pieces = one.sent.iter().flat_map(Strided::pieces);
            let piece = || pieces.clone().find(|piece| !piece.is_empty()).cloned();
            let sent = match staged.packing {
                Some(at) => Some(self.packing.slice(at, one.sends() as usize)?),
                None => piece(),
            };
            let received = match staged.landing {
                Some([at, _]) => Some(self.landing.slice(at, one.receives() as usize)?),
                None => one.direct().cloned(),
            };
            Ok([sent, received])
        };
        let all: Vec<_> = self.others().map(data).collect::<Result<_>>()?;
        Ok(self.others().map(|(one, _)| one).zip(all))
    }

    /// All memory: of the application, and of the library.
    pub fn memory(&self) -> Vec<Memory> {
        let pieces = self.all.iter();
        let pieces = pieces.flat_map(|one| one.sent.iter().chain(&one.received));
        let memory = pieces.map(|piece| piece.memory().clone());
        memory
            .chain([self.landing.clone(), self.packing.clone()])
            .collect()
    }
}

fn in_gpu(memory: &Memory) -> bool {
    memory.region().kind() == MemoryKind::Device
}

impl Engine {
    /// Builds a neighbourhood with the neighbours, which do the same.
    pub fn build_neighbourhood(
        &self,
        neighbours: Vec<Neighbour>,
        double: bool,
    ) -> Result<Exchange> {
        let neighbours = check(self, neighbours)?;
        let in_graph = InGraph::new(neighbours.clone());
        let parts = Parts::new(self, neighbours, double, false)?;
        let of_peers = || parts.all[..parts.others].chunk_by(|a, b| a.rank == b.rank);
        let words = self.words(of_peers().count())?;
        let [pack, unpack] = parts.moves()?;

        self.await_neighbours(&parts.all[..parts.others])?;
        let positions = of_peers().enumerate();
        let positions = positions.flat_map(|(at, neighbours)| neighbours.iter().map(move |_| at));
        let mine = parts.others().zip(positions);
        let mine = mine
            .map(|((one, staged), at)| self.record(one, staged, at, &words, &parts.landing))
            .collect::<Result<_>>()?;
        let theirs = self.join_neighbours(&parts.all[..parts.others], mine)?;
        let (mut peers, mut ports) = (Vec::<PeerState>::new(), Vec::<Port>::new());
        let mut path = Path::Nic;
        for ((one, staged), record) in parts.others().zip(&theirs) {
            if peers.last().is_none_or(|peer| peer.rank != one.rank) {
                let word = |i| words.region().word64(LINE * peers.len() + i * WORD);
                let words = [word(0)?, word(1)?, word(2)?, word(3)?, word(4)?, word(5)?];
                peers.push(PeerState::new(one.rank, [one.send, one.receive], words));
                let blocks = parts.others().zip(&theirs);
                let blocks = blocks.filter(|((other, _), _)| other.rank == one.rank);
                path = self.path_of(one.rank, blocks.map(|(_, record)| record));
                ports.push(port(path, one, record)?);
            }
            if let Some((peer, port)) = peers.last_mut().zip(ports.last_mut()) {
                peer.add([one.sends(), one.receives()]);
                port.data
                    .extend(data(path, one, staged, record, &parts.packing)?);
            }
        }
        let steps = self.gpu.alloc(MemoryKind::Pinned, ALIGN)?;
        let steps = [steps.word64(0)?, steps.word64(WORD)?];
        steps.iter().try_for_each(|word| word.store(0))?;
        let mut memory = parts.memory();
        memory.push(words);
        let words = Arc::new(ExchangeWords::new(peers, steps, memory));
        let by_kernel = match self.kernels(BUILD) {
            Ok(kernels) => ByKernel::new(kernels, &self.gpu, &parts, &ports, &words)?,
            Err(_) => None,
        };
        Ok(Exchange {
            words,
            by_kernel,
            ports,
            ahead: 1 + u64::from(double),
            pack: Copies::new(&self.gpu, pack)?,
            unpack: Copies::new(&self.gpu, unpack)?,
            flushes: parts.land_in_device(),
            calls: Mutex::default(),
            in_graph,
        })
    }

    /// The words of this many peers.
    fn words(&self, peers: usize) -> Result<Memory> {
        let len = (peers * LINE).max(LINE);
        let words = Memory::new(self.paths.pinned(len, Rights::Words)?);
        for (peer, i) in (0..peers).flat_map(|peer| (0..WORDS + OWN_WORDS).map(move |i| (peer, i)))
        {
            let word = words.region().word64(peer * LINE + i * WORD)?;
            word.store(if i < WORDS { before(i % 2) } else { 0 })?;
        }
        Ok(words)
    }

    /// The record by which the neighbour addresses this rank's memory; `at`: the position of the
    /// peer.
    fn record(
        &self,
        one: &Neighbour,
        staged: &Staged,
        at: usize,
        words: &Memory,
        landing: &Memory,
    ) -> Result<NeighbourRecord> {
        let ways = self.paths.ways(one.rank);
        let block = |keys: &Keys| keys.records(ways);
        let (landing, landing_block) = match (staged.landing, one.direct()) {
            (Some(at), _) => (at, block(landing.keys())?),
            (None, Some(slice)) => ([slice.offset(); 2], block(slice.memory().keys())?),
            (None, None) => ([0; 2], Vec::new()),
        };
        Ok(NeighbourRecord {
            send: one.send,
            receive: one.receive,
            sends: one.sends(),
            receives: one.receives(),
            words: (LINE * at) as u64,
            words_block: block(words.keys())?,
            landing: landing.map(|at| at as u64),
            landing_block,
        })
    }

    /// The path to a peer whose neighbours have these records: one for all data and words, because
    /// the paths have no order among each other.
    fn path_of<'r>(&self, rank: u32, records: impl Iterator<Item = &'r NeighbourRecord>) -> Path {
        let ways @ [path, _] = self.paths.ways(rank);
        let blocks = records.flat_map(|record| [&record.words_block, &record.landing_block]);
        let mut paths = blocks
            .filter(|block| !block.is_empty())
            .map(|block| Remote::path(ways, block));
        paths.find(|one| *one != path).unwrap_or(path)
    }
}

/// The words of a peer, from the record of its first neighbour.
fn port(path: Path, one: &Neighbour, record: &NeighbourRecord) -> Result<Port> {
    let words = || -> Result<[Span; WORDS]> {
        let words = Remote::any(path, &record.words_block)?;
        let word = |i: usize| words.span(record.words as usize + i * WORD, WORD);
        Ok([word(0)?, word(1)?, word(2)?, word(3)?])
    };
    let [even, odd, even_data, odd_data] = words().map_err(|e| too_short(one, &e))?;
    Ok(Port {
        ready: [even, odd],
        arrived: [even_data, odd_data],
        data: Vec::new(),
    })
}

/// The data for a neighbour, from its record; `None` if it is sent none.
fn data(
    path: Path,
    one: &Neighbour,
    staged: &Staged,
    record: &NeighbourRecord,
    packing: &Memory,
) -> Result<Option<Data>> {
    let len = one.sends() as usize;
    if len == 0 {
        return Ok(None);
    }
    let spans = || -> Result<[Span; 2]> {
        let landing = Remote::any(path, &record.landing_block)?;
        let span = |at: u64| landing.span(at as usize, len);
        Ok([span(record.landing[0])?, span(record.landing[1])?])
    };
    let to = spans().map_err(|e| too_short(one, &e))?;
    let pieces = |piece: &Strided| piece.pieces().to_vec();
    let from = match staged.packing {
        Some(at) => vec![packing.slice(at, len)?],
        None => one.sent.iter().flat_map(pieces).collect(),
    };
    let len = len as u64;
    Ok(Some(Data { to, len, from }))
}

/// The error of a record that names memory without room.
fn too_short(one: &Neighbour, e: &Error) -> Error {
    let what = format!("{} named memory that is too short: {e}", one.name());
    one.error(Kind::Protocol, what)
}

/// Adds the moves between `pieces` and contiguous bytes from `at` on.
fn moves(
    list: &mut Vec<Move>,
    pieces: &[Strided],
    packed: &Memory,
    at: [usize; 2],
    scatters: bool,
) {
    let mut from = 0;
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        list.push(Move {
            pieces: piece.clone(),
            packed: packed.clone(),
            at: at.map(|at| at + from),
            scatters,
        });
        from += piece.len();
    }
}

impl Copies {
    pub fn new(gpu: &Gpu, moves: Vec<Move>) -> Result<Copies> {
        let tables = [moves_table(gpu, &moves, 0)?, moves_table(gpu, &moves, 1)?];
        Ok(Copies { moves, tables })
    }

    /// Executes the moves of a step by the CPU.
    pub fn execute(&self, parity: usize) -> Result<()> {
        for one in &self.moves {
            let (packed, at) = (&one.packed, one.at[parity]);
            match one.scatters {
                true => one.pieces.scatter(packed, at, one.pieces.len() as u64)?,
                false => one.pieces.gather(packed, at)?,
            }
        }
        Ok(())
    }
}

/// The table of the moves of one parity, in memory of the GPU.
pub(super) fn moves_table(gpu: &Gpu, moves: &[Move], parity: usize) -> Result<Option<Table>> {
    if moves.is_empty() || !gpu.caps().kernels {
        return Ok(None);
    }
    let entries: Vec<Pieces> = moves.iter().map(|one| one.entry(parity)).collect();
    let longest = entries.iter().map(|entry| entry.len).max().unwrap_or(0);
    let count = u32::try_from(entries.len()).map_err(|_| {
        let what = "the neighbours have too many pieces; use Strided pieces";
        Error::new(BUILD, Kind::Invalid, what).with_limit(u32::MAX, "pieces")
    })?;
    let (blocks, dims) = moves_of(gpu, count, longest);
    let memory = gpu.alloc(MemoryKind::Device, size_of_val(&entries[..]))?;
    memory.write(0, entries.as_bytes())?;
    Ok(Some(Table {
        params: Moves {
            table: memory.addr().0,
            count,
            blocks,
        },
        dims,
        memory,
    }))
}
