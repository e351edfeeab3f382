//! Flushes by the CPU. Behind its wait a stream writes how many flushes it has asked for into a
//! word, and waits until another says that so many were made; a machine on the driver's CPU
//! thread looks at the first, flushes, and writes the second. One flush serves all streams that
//! had asked before it.

use std::sync::{Arc, OnceLock, Weak};

use gds_step::{Machine, MachineId, Mutex, Step, Thread, Time};

use super::{FlushFaults, PerStream};
use crate::error::Result;
use crate::gpu::{Gpu, MemoryKind, Region};
use crate::memop::Width::Bits32;
use crate::memop::{Condition, Op};
use crate::mutant::{self, Mutant};
use crate::nic::SharedAddr;
use crate::rdma::verbs::Flusher;
use crate::ring::RingMemory;

/// Bytes from one word to the next: writers do not share lines.
const APART: usize = 64;
/// Far ahead of any count that a stream was told to ask for and has not yet.
const AHEAD: u32 = 1 << 30;
/// Streams whose words lie in one region.
const STREAMS: usize = 32;

/// The two words of a stream, in pinned memory.
#[derive(Clone, Copy)]
struct Words {
    /// How many flushes are asked for: written by the stream, fenced; read by the machine.
    asked: SharedAddr,
    /// How many are made: written by the machine with release, waited for by the stream.
    made: SharedAddr,
}

impl Words {
    fn open(&self) -> bool {
        self.asked.cpu.load32(0) != self.made.cpu.load32(0)
    }
}

/// A stream's words, and how many flushes it was told to ask for.
pub(in crate::rdma) struct Slot {
    words: Words,
    asked: u32,
}

impl Slot {
    /// Has the stream ask for a flush, and wait for it. A count that is never enqueued is passed
    /// over by the next.
    pub fn ask(&mut self) -> [Op; 2] {
        self.asked = self.asked.wrapping_add(1);
        let ask = Op::write(Bits32, self.words.asked.gpu, self.asked);
        let wait = Op::wait(Bits32, self.words.made.gpu, Condition::Geq, self.asked);
        [ask, wait]
    }

    fn is_idle(&self) -> bool {
        self.words.made.cpu.load32(0) == self.asked
    }
}

/// What the machine and the flusher share.
#[derive(Default)]
struct Table {
    words: Vec<Words>,
    /// Not given to a stream yet.
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
    /// Attached with the first stream that asks.
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

    /// Has a device told of flushes that fail.
    pub(super) fn tell(&self, fault: &Arc<FlushFaults>) {
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

    /// Called by one thread at a time.
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
        Ok(Slot { words, asked: 0 })
    }

    /// Words for more streams, and of these the first. The memory is made without the lock that
    /// the machine takes: a driver may let an allocation wait for streams, which may wait for
    /// a flush.
    fn more(&self) -> Result<Words> {
        let region = self.gpu.alloc(MemoryKind::Pinned, 2 * APART * STREAMS)?;
        let memory = SharedAddr {
            cpu: region.mapped()?,
            gpu: region.addr(),
        };
        let words = |i: usize| Words {
            asked: memory.part(2 * APART * i, 4),
            made: memory.part(2 * APART * i + APART, 4),
        };
        let mut table = self.table.lock();
        table.free.extend((1..STREAMS).rev().map(words));
        table.regions.push(region);
        Ok(words(0))
    }
}

impl Flusher for HostFlusher {}

impl Drop for HostFlusher {
    /// The last device is gone: what is in flight is given up, and streams that wait pass. No lock
    /// of a stream's is taken, as whoever has it may stand before a full stream.
    fn drop(&mut self) {
        if let Some(machine) = self.machine.get() {
            self.gpu.host().detach(*machine);
        }
        let _ = self.gpu.runtime().host_flush();
        for words in &self.table.lock().words {
            let asked = words.asked.cpu.load32(0);
            words.made.cpu.store32(0, asked.wrapping_add(AHEAD));
        }
        self.gpu.host().ring();
    }
}

/// The machine that flushes.
struct HostFlag {
    gpu: Gpu,
    table: Shared,
    /// Of one step: who has asked for how many.
    asked: Vec<(Words, u32)>,
}

impl Machine for HostFlag {
    fn step(&mut self, _now: Time) -> Step {
        let table = self.table.lock();
        self.asked.clear();
        // Who asks from here on is served by the next flush. Pairs with the stream's fenced
        // write: what it waited for has been seen.
        let open = table.words.iter().filter(|words| words.open());
        self.asked
            .extend(open.map(|words| (*words, words.asked.cpu.load32(0))));
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
            words.made.cpu.store32(0, *count);
        }
        // Streams may go on: the device thread should look.
        self.gpu.host().ring();
        Step::Progress
    }

    fn name(&self) -> String {
        format!("{}.flush", self.gpu.name().replace("soft ", ""))
    }
}
