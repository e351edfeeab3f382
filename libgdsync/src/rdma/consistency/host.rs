//! Flushes by the CPU. Behind its wait a stream writes the number of flushes that it has requested
//! into a word, and waits until another word has reached that number. A machine on the driver's CPU
//! thread polls the first word, flushes, and writes the second. One flush serves all streams that
//! requested one before it.

use std::sync::{Arc, OnceLock, Weak};

use gds_step::{Machine, MachineId, Mutex, Step, Thread, Time};

use super::{FlushFaults, PerStream};
use crate::error::Result;
use crate::gpu::{Gpu, MemoryKind, Region};
use crate::memop::Width::{Bits32, Bits64};
use crate::memop::{Condition, Op};
use crate::mutant::{self, Mutant};
use crate::nic::SharedAddr;
use crate::rdma::verbs::Flusher;
use crate::ring::RingMemory;

/// The distance between two words, in bytes: writers do not share cache lines.
const APART: usize = 64;
/// Far ahead of any count that a stream may still have to request.
const AHEAD: u64 = 1 << 30;
/// The number of streams whose words share one region.
const STREAMS: usize = 32;

/// The two words of a stream, in pinned memory, of 64 bits. Where streams compare cyclically, they use
/// the lower halves, and the upper ones stay 0; otherwise the whole words, which never wrap.
#[derive(Clone, Copy)]
struct Words {
    /// The number of requested flushes: written by the stream, fenced; read by the machine.
    asked: SharedAddr,
    /// The number of completed flushes: written by the machine with release, waited for by the
    /// stream.
    made: SharedAddr,
}

impl Words {
    fn open(&self) -> bool {
        self.asked.cpu.load64(0) != self.made.cpu.load64(0)
    }
}

/// A stream's words, and the number of flushes that it was made to request.
pub(in crate::rdma) struct Slot {
    words: Words,
    asked: u64,
    gpu: Gpu,
}

impl Slot {
    /// The operations by which the stream requests a flush and waits for it. A count that is never
    /// enqueued is skipped by the next one.
    pub fn ask(&mut self) -> [Op; 2] {
        self.asked += 1;
        let (at, made, caps) = (self.words.asked.gpu, self.words.made.gpu, self.gpu.caps());
        if !caps.cyclic && caps.memops64 {
            let wait = Op::wait_count(made, self.asked, caps);
            return [Op::write(Bits64, at, self.asked), wait];
        }
        let asked = self.asked as u32;
        let wait = Op::wait(Bits32, made, Condition::Geq, asked);
        [Op::write(Bits32, at, asked), wait]
    }

    fn is_idle(&self) -> bool {
        self.words.made.cpu.load32(0) == self.asked as u32
    }
}

/// The state that the machine and the flusher share.
#[derive(Default)]
struct Table {
    words: Vec<Words>,
    /// Words that no stream has yet.
    free: Vec<Words>,
    /// The memory of all words.
    regions: Vec<Region>,
    faults: Vec<Weak<FlushFaults>>,
}

type Shared = Arc<Mutex<Table>>;

/// The flusher of one GPU.
pub(in crate::rdma) struct HostFlusher {
    gpu: Gpu,
    slots: PerStream<Slot>,
    table: Shared,
    /// Attached with the first stream that requests a flush.
    machine: OnceLock<MachineId>,
}

impl HostFlusher {
    pub(super) fn new(gpu: &Gpu) -> HostFlusher {
        HostFlusher {
            gpu: gpu.clone(),
            slots: PerStream::new(STREAMS),
            table: Shared::default(),
            machine: OnceLock::new(),
        }
    }

    /// Registers the fault counter of a device for flushes that fail.
    pub(super) fn add_counter(&self, fault: &Arc<FlushFaults>) {
        let mut table = self.table.lock();
        table.faults.retain(|fault| fault.strong_count() > 0);
        table.faults.push(Arc::downgrade(fault));
    }

    /// The words of a stream.
    pub fn slot(&self, stream: u64) -> Result<Arc<Mutex<Slot>>> {
        let slot = self.slots.get(stream, Slot::is_idle, || self.make())?;
        self.machine.get_or_init(|| {
            let machine = HostFlag {
                gpu: self.gpu.clone(),
                table: Arc::clone(&self.table),
                asked: Vec::new(),
            };
            self.gpu.host().attach(Thread::Cpu, Box::new(machine))
        });
        Ok(slot)
    }

    /// The caller makes sure that only one thread calls this at a time.
    fn make(&self) -> Result<Slot> {
        let free = self.table.lock().free.pop();
        let words = match free {
            Some(words) => words,
            None => self.more()?,
        };
        let mut table = self.table.lock();
        let tracer = self.gpu.tracer();
        for (word, what) in [(words.asked, "asked"), (words.made, "made")] {
            let name = format!("flush{}.{what}", table.words.len());
            tracer.name(word.gpu, word.cpu.len(), name);
        }
        table.words.push(words);
        Ok(Slot {
            words,
            asked: 0,
            gpu: self.gpu.clone(),
        })
    }

    /// Allocates words for more streams, and returns the first. The memory is allocated without the
    /// lock that the machine takes: a driver may let an allocation wait for streams, which may wait
    /// for a flush.
    fn more(&self) -> Result<Words> {
        let region = self.gpu.alloc(MemoryKind::Pinned, 2 * APART * STREAMS)?;
        let memory = SharedAddr {
            cpu: region.mapped()?,
            gpu: region.addr(),
        };
        let words = |i: usize| Words {
            asked: memory.part(2 * APART * i, 8),
            made: memory.part(2 * APART * i + APART, 8),
        };
        let mut table = self.table.lock();
        table.free.extend((1..STREAMS).rev().map(words));
        table.regions.push(region);
        Ok(words(0))
    }
}

impl Flusher for HostFlusher {}

impl Drop for HostFlusher {
    /// The last device is gone: work in flight is cancelled, and streams that wait are released. No
    /// lock of a stream is taken here, because its holder may be blocked by a full stream.
    fn drop(&mut self) {
        if let Some(machine) = self.machine.get() {
            self.gpu.host().detach(*machine);
        }
        let _ = self.gpu.runtime().host_flush();
        for words in &self.table.lock().words {
            let asked = words.asked.cpu.load64(0);
            words.made.cpu.store64(0, asked + AHEAD);
        }
        self.gpu.host().ring();
    }
}

/// The machine that flushes.
struct HostFlag {
    gpu: Gpu,
    table: Shared,
    /// For one step: the streams' words, with the number that each has requested.
    asked: Vec<(Words, u64)>,
}

impl Machine for HostFlag {
    fn step(&mut self, _now: Time) -> Step {
        let table = self.table.lock();
        self.asked.clear();
        // A request from here on is served by the next flush. Pairs with the stream's fenced write:
        // the completion that it waited for is visible.
        let open = table.words.iter().filter(|words| words.open());
        self.asked
            .extend(open.map(|words| (*words, words.asked.cpu.load64(0))));
        if self.asked.is_empty() {
            return Step::IdleUntil(None);
        }
        let flushed = match mutant::on(Mutant::FlagWithoutFlush) {
            true => Ok(()),
            false => self.gpu.runtime().host_flush(),
        };
        if let Err(e) = flushed {
            tracing::warn!(target: "gdsync", "{e}");
            for fault in table.faults.iter().filter_map(Weak::upgrade) {
                fault.raise();
            }
        }
        for (words, count) in &self.asked {
            words.made.cpu.store64(0, *count);
        }
        // Streams may continue: wakes the device thread.
        self.gpu.host().ring();
        Step::Progress
    }

    fn name(&self) -> String {
        format!("{}.flush", self.gpu.name().replace("soft ", ""))
    }
}
