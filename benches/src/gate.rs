//! Words between host and stream: a gate that blocks a stream while work is enqueued behind it, and
//! a bell that the stream rings at the end. Both are always memory operations, so a stream that
//! waits at a gate occupies no SM.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gdsync::gpu::{Condition, MemoryKind, Stream, Word32};
use gdsync::rdma::{Descriptor, post_on};
use gdsync::{Gpu, Status};

/// The time between two looks of a thread that leaves the processor to the devices.
const NAP: Duration = Duration::from_micros(20);
/// Number of polls of a word between two reads of the clock.
const LOOKS: u32 = 1024;

/// A gate on a stream.
pub struct Gate {
    word: Word32,
    closed: u32,
}

impl Gate {
    /// An open gate.
    pub fn new(gpu: &Gpu) -> Result<Gate> {
        Ok(Gate {
            word: gpu.alloc(MemoryKind::Pinned, 64)?.word32(0)?,
            closed: 0,
        })
    }

    /// Enqueues a wait: `stream` blocks here until the gate is opened.
    pub fn close(&mut self, stream: &Stream) -> Result<()> {
        self.closed += 1;
        let wait = Descriptor::wait_value(&self.word, Condition::Geq, self.closed);
        Ok(post_on(stream, &mut [], &[wait])?)
    }

    /// Opens the gate.
    pub fn open(&self) -> Result<()> {
        Ok(self.word.store(self.closed)?)
    }
}

/// A word that a stream writes and the host polls.
pub struct Bell {
    word: Word32,
    rung: u32,
}

impl Bell {
    /// A bell that has not rung.
    pub fn new(gpu: &Gpu) -> Result<Bell> {
        Ok(Bell {
            word: gpu.alloc(MemoryKind::Pinned, 64)?.word32(0)?,
            rung: 0,
        })
    }

    /// The next ring, as a descriptor for a list.
    pub fn ring(&mut self) -> Descriptor<'_> {
        self.rung += 1;
        Descriptor::write_value(&self.word, self.rung)
    }

    /// Enqueues a ring.
    pub fn enqueue(&mut self, stream: &Stream) -> Result<()> {
        Ok(post_on(stream, &mut [], &[self.ring()])?)
    }

    /// Number of rings enqueued so far.
    pub fn enqueued(&self) -> u32 {
        self.rung
    }

    /// Polls until it has rung as often as was enqueued; returns the time of that moment.
    pub fn poll(&self, deadline: Instant) -> Result<Instant> {
        self.poll_nth(self.rung, deadline)
    }

    /// Polls until it has rung `n` times.
    pub fn poll_nth(&self, n: u32, deadline: Instant) -> Result<Instant> {
        loop {
            for _ in 0..LOOKS {
                if self.word.load()? >= n {
                    return Ok(Instant::now());
                }
                std::hint::spin_loop();
            }
            ensure!(Instant::now() < deadline, "the time limit expired");
            // On a machine with few processors a device may need this processor.
            std::thread::yield_now();
        }
    }

    /// As [`Bell::poll_nth`], but leaves the processor to the devices, and returns up to about 0.1 ms late.
    pub fn await_nth(&self, n: u32, deadline: Instant) -> Result<()> {
        while self.word.load()? < n {
            ensure!(Instant::now() < deadline, "the time limit expired");
            std::thread::sleep(NAP);
        }
        Ok(())
    }
}

/// Fails if a QP has failed.
pub fn check_qp(error: Option<Status>) -> Result<()> {
    match error {
        None => Ok(()),
        Some(status) => anyhow::bail!("the queue pair failed: {status}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn bell_behind_a_gate_rings_when_the_gate_is_open() {
        let gpu = Gpu::soft().unwrap();
        let stream = gpu.stream().unwrap();
        let (mut gate, mut bell) = (Gate::new(&gpu).unwrap(), Bell::new(&gpu).unwrap());
        for _ in 0..3 {
            gate.close(&stream).unwrap();
            bell.enqueue(&stream).unwrap();
            let soon = Instant::now() + Duration::from_millis(5);
            assert!(bell.poll(soon).is_err(), "the gate is closed");
            gate.open().unwrap();
            bell.poll(Instant::now() + Duration::from_secs(60)).unwrap();
        }
    }
}
