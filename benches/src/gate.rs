//! Words between host and stream: a gate that holds a stream while work is enqueued behind it,
//! and a bell that the stream rings at the end. Always memory operations, so a stream that
//! stands at a gate takes no place where kernels run.

use std::time::Instant;

use anyhow::{Result, ensure};
use gdsync::gpu::{Condition, MemoryKind, Stream, Word32};
use gdsync::rdma::{Descriptor, post_on};
use gdsync::{Gpu, Status};

/// Looks at a word between two looks at the clock.
const LOOKS: u32 = 1024;

/// A gate on a stream.
pub struct Gate {
    word: Word32,
    closed: u32,
}

impl Gate {
    /// An open one.
    pub fn new(gpu: &Gpu) -> Result<Gate> {
        Ok(Gate {
            word: gpu.alloc(MemoryKind::Pinned, 64)?.word32(0)?,
            closed: 0,
        })
    }

    /// `stream` will stand here until the gate is opened.
    pub fn close(&mut self, stream: &Stream) -> Result<()> {
        self.closed += 1;
        let wait = Descriptor::wait_value(&self.word, Condition::Geq, self.closed);
        Ok(post_on(stream, &mut [], &[wait])?)
    }

    /// Opens it.
    pub fn open(&self) -> Result<()> {
        Ok(self.word.store(self.closed)?)
    }
}

/// A word that a stream writes and the host watches.
pub struct Bell {
    word: Word32,
    rung: u32,
}

impl Bell {
    /// A silent one.
    pub fn new(gpu: &Gpu) -> Result<Bell> {
        Ok(Bell {
            word: gpu.alloc(MemoryKind::Pinned, 64)?.word32(0)?,
            rung: 0,
        })
    }

    /// What rings it next, for a list.
    pub fn ring(&mut self) -> Descriptor<'_> {
        self.rung += 1;
        Descriptor::write_value(&self.word, self.rung)
    }

    /// Enqueues ringing it.
    pub fn enqueue(&mut self, stream: &Stream) -> Result<()> {
        Ok(post_on(stream, &mut [], &[self.ring()])?)
    }

    /// How often ringing it was enqueued so far.
    pub fn enqueued(&self) -> u32 {
        self.rung
    }

    /// Spins until it has rung as often as was enqueued; returns when that was.
    pub fn hear(&self, deadline: Instant) -> Result<Instant> {
        self.hear_nth(self.rung, deadline)
    }

    /// Spins until it has rung `n` times.
    pub fn hear_nth(&self, n: u32, deadline: Instant) -> Result<Instant> {
        loop {
            for _ in 0..LOOKS {
                if self.word.load()? >= n {
                    return Ok(Instant::now());
                }
                std::hint::spin_loop();
            }
            ensure!(Instant::now() < deadline, "the time limit passed");
            // On a machine with few processors a device may need this one.
            std::thread::yield_now();
        }
    }
}

/// Fails if a queue pair did.
pub fn well(error: Option<Status>) -> Result<()> {
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
    fn a_bell_behind_a_gate_rings_once_it_is_open() {
        let gpu = Gpu::soft().unwrap();
        let stream = gpu.stream().unwrap();
        let (mut gate, mut bell) = (Gate::new(&gpu).unwrap(), Bell::new(&gpu).unwrap());
        for _ in 0..3 {
            gate.close(&stream).unwrap();
            bell.enqueue(&stream).unwrap();
            let soon = Instant::now() + Duration::from_millis(5);
            assert!(bell.hear(soon).is_err(), "the gate is closed");
            gate.open().unwrap();
            bell.hear(Instant::now() + Duration::from_secs(60)).unwrap();
        }
    }
}
