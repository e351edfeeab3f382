//! Weak memory of the bus: NIC writes that have not arrived yet. They go to device memory, or, on a
//! GPU that orders them, to any memory.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;

use crate::Fault;
use crate::backing::Backing;

/// The maximal size of a packet in bytes.
const PACKET: usize = 512;
/// The maximal number of pending packets; one more makes the oldest arrive.
const MOST: usize = 8192;

/// Pending writes to the memory of one GPU, in the order of the NICs' writes.
#[derive(Debug)]
pub(crate) struct Posted {
    queue: Mutex<Queue>,
    one_in: u32,
    /// Whether writes to host memory take the same path.
    all: bool,
}

#[derive(Debug)]
struct Queue {
    packets: VecDeque<Packet>,
    rng: Rng,
}

#[derive(Debug)]
struct Packet {
    /// Keeps the memory mapped until the packet has arrived.
    memory: Arc<Backing>,
    offset: u64,
    data: Data,
}

#[derive(Debug)]
enum Data {
    Bytes(Box<[u8]>),
    Word(u32),
}

impl Packet {
    fn arrive(&self) {
        let span = self.memory.span();
        // Bounds and alignment were checked at the post.
        let arrived: Result<(), Fault> = match &self.data {
            Data::Bytes(bytes) => span.write(self.offset, bytes),
            Data::Word(value) => span
                .word32(self.offset)
                .map(|w| w.store(*value, Ordering::Release)),
        };
        debug_assert_eq!(arrived, Ok(()));
    }
}

impl Posted {
    pub(crate) fn new(seed: u64, one_in: u32) -> Posted {
        Posted {
            queue: Mutex::new(Queue {
                packets: VecDeque::new(),
                rng: Rng::with_seed(seed),
            }),
            one_in,
            all: false,
        }
    }

    /// Writes to host memory take the same path, in order with these.
    pub(crate) fn for_all(self) -> Posted {
        Posted { all: true, ..self }
    }

    /// Whether NIC writes to `memory` take this path.
    pub(crate) fn carries(&self, memory: &Backing) -> bool {
        self.all || memory.is_device()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends bytes to `offset` of `memory`; the range was checked.
    pub(crate) fn write(&self, memory: &Arc<Backing>, offset: u64, bytes: &[u8]) {
        let mut queue = self.queue();
        for (i, part) in bytes.chunks(PACKET).enumerate() {
            queue.send(Packet {
                memory: Arc::clone(memory),
                offset: offset + (i * PACKET) as u64,
                data: Data::Bytes(part.into()),
            });
        }
    }

    /// Sends a word to `offset` of `memory`; the range was checked.
    pub(crate) fn write32(&self, memory: &Arc<Backing>, offset: u64, value: u32) {
        self.queue().send(Packet {
            memory: Arc::clone(memory),
            offset,
            data: Data::Word(value),
        });
    }

    /// Makes all pending writes arrive.
    pub(crate) fn drain(&self) {
        for packet in self.queue().packets.drain(..) {
            packet.arrive();
        }
    }

    /// Called once per step: may make some of the oldest writes arrive. Returns whether any are
    /// still pending.
    pub(crate) fn pass_time(&self) -> bool {
        let mut queue = self.queue();
        let waiting = queue.packets.len();
        if waiting > 0 && queue.rng.u32(..self.one_in) == 0 {
            let some = queue.rng.usize(1..=1 + waiting / 8);
            for packet in queue.packets.drain(..some) {
                packet.arrive();
            }
        }
        !queue.packets.is_empty()
    }
}

impl Queue {
    fn send(&mut self, packet: Packet) {
        self.packets.push_back(packet);
        if self.packets.len() > MOST
            && let Some(oldest) = self.packets.pop_front()
        {
            oldest.arrive();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_write_arrives_when_the_bus_is_full() {
        let memory =
            Arc::new(Backing::device(64, None, &crate::budget::Budget::new(1 << 20)).unwrap());
        let word = || memory.span().word32(0).unwrap().load(Ordering::Relaxed);
        let bus = Posted::new(1, u32::MAX);
        let more = 3;
        for n in 1..=MOST as u32 + more {
            bus.write32(&memory, 0, n);
        }
        assert_eq!(word(), more);
        bus.drain();
        assert_eq!(word(), MOST as u32 + more);
    }
}
