//! Message rate: 8-byte RDMA writes between two queue pairs of one NIC, posted by the CPU, one in
//! sixteen signaled. Each writes its number into a separate slot, so the memory shows at any time
//! which writes have arrived.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Args;
use gdsync::Status;
use gdsync::rdma::{SendRequest, Work};
use serde::Serialize;
use serde_json::json;

use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::Rig;
use crate::options::Setup;
use crate::report::Target;

/// Blocks of the send queue; a write takes one.
const QUEUE: u32 = 1024;
/// Most writes in flight: one group less than the queue holds.
const WINDOW: u64 = QUEUE as u64 - GROUP;
/// Writes for each signaled one.
const GROUP: u64 = 16;
/// Slots of 8 bytes that the writes use in turn.
const SLOTS: u64 = 4096;
/// Number of groups between two checks of the slots just written.
const SPOT: u64 = 64;

/// Options of `mpbench write_rate`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Number of writes.
    #[arg(long, default_value = "4000000", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
    #[command(flatten)]
    pub setup: Setup,
}

impl Benchmark for Options {
    const NAME: &'static str = "write_rate";
    const ABOUT: &'static str = "Message rate: 8-byte writes a second, posted by the CPU";
    const EXAMPLES: Examples = [
        (
            "--messages 1000000",
            "message rate of a million writes of 8 bytes",
        ),
        (
            "--gpu cuda --memory pinned --timeout 60",
            "into pinned memory of a CUDA GPU, for at most 60 s",
        ),
    ];
    const VERIFIED: Option<&str> = Some("every slot has the number of the last write to it");

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let messages = self.messages;
        let mut bench = Bench {
            rig: Rig::new(&self.setup, QUEUE, 8 * SLOTS, limit)?,
            signaled: VecDeque::with_capacity((WINDOW / GROUP + 2) as usize),
            completed: 0,
            spot_checks: 0,
        };
        let names = bench.rig.names();
        println!(
            "mpbench write_rate: 8-byte RDMA writes posted by the CPU, one in {GROUP} signaled"
        );
        println!("{names}");
        let elapsed = bench.write(messages)?;
        bench.verify(messages)?;
        let (seconds, checks) = (elapsed.as_secs_f64(), bench.spot_checks);
        let rate = messages as f64 / seconds;
        println!(
            "{messages} writes in {seconds:.2} s: {:.3} million a second; payloads checked at the \
             end and {checks} on the way",
            rate / 1e6,
        );
        let target = Target::at_least(
            "write_rate: 8 B writes in one process",
            rate / 1e6,
            1.0,
            "M/s",
        );
        let figures = json!({
            "names": names,
            "messages": messages,
            "elapsed_ns": elapsed.as_nanos() as u64,
            "rate": rate,
            "spot_checks": checks,
        });
        Outcome::of(&figures, names.on_soft(target))
    }
}

struct Bench {
    rig: Rig,
    /// Signaled writes in flight, oldest first, each with its number.
    signaled: VecDeque<(SendRequest, u64)>,
    /// Number of writes known to be complete.
    completed: u64,
    /// Payloads that were checked while other writes were in flight.
    spot_checks: u64,
}

/// The value of write `number`: never zero, which is the initial value of slots.
fn payload(number: u64) -> u64 {
    number + 1
}

/// The last of the first `messages` writes to `slot`, if any.
fn last_to(slot: u64, messages: u64) -> Option<u64> {
    let newest = messages.checked_sub(1)?;
    newest.checked_sub((newest + SLOTS - slot) % SLOTS)
}

impl Bench {
    /// Writes `messages` numbers; returns once all are complete.
    fn write(&mut self, messages: u64) -> Result<Duration> {
        let remote = self.rig.to.remote();
        let start = Instant::now();
        for number in 0..messages {
            if number - self.completed >= WINDOW {
                self.complete_one()?;
            }
            let bytes = payload(number).to_le_bytes();
            let pieces: [&[u8]; 1] = [&bytes];
            let work = Work::write_inline(&pieces, remote.span(number % SLOTS * 8, 8)?);
            let last = number % GROUP == GROUP - 1 || number + 1 == messages;
            let work = if last { work.signaled() } else { work };
            let request = self.rig.qp.prepare(&work)?;
            self.rig.qp.post(request)?;
            if last {
                self.signaled.push_back((request, number));
            }
        }
        while self.completed < messages {
            self.complete_one()?;
        }
        Ok(start.elapsed())
    }

    /// Polls until the oldest signaled write is complete; all writes before it are complete then
    /// too.
    fn complete_one(&mut self) -> Result<()> {
        let Some((request, number)) = self.signaled.pop_front() else {
            bail!("nothing signaled is in flight");
        };
        let mut looks = 0u32;
        loop {
            match self.rig.qp.poll(request)? {
                Some(Status::SUCCESS) => break,
                Some(status) => bail!("write {number} failed: {status}"),
                None => std::hint::spin_loop(),
            }
            looks += 1;
            if looks.is_multiple_of(1024) {
                ensure!(Instant::now() < self.rig.deadline, "the time limit expired");
                std::thread::yield_now();
            }
        }
        self.completed = number + 1;
        if (number / GROUP).is_multiple_of(SPOT) {
            self.look_at(number)?;
        }
        Ok(())
    }

    /// A complete write has arrived, or a later write to the same slot.
    fn look_at(&mut self, number: u64) -> Result<()> {
        let found = self.slot(number % SLOTS)?;
        if found < payload(number) || !(found - payload(number)).is_multiple_of(SLOTS) {
            bail!("write {number} is complete, but its slot holds {found}");
        }
        self.spot_checks += 1;
        Ok(())
    }

    /// Checks that every slot holds the value that was written to it last.
    fn verify(&self, messages: u64) -> Result<()> {
        for slot in 0..SLOTS {
            let found = self.slot(slot)?;
            let wanted = last_to(slot, messages).map_or(0, payload);
            ensure!(
                found == wanted,
                "slot {slot} holds {found} instead of {wanted}"
            );
        }
        Ok(())
    }

    fn slot(&self, slot: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.rig.to.region().read(8 * slot as usize, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_write_to_a_slot_is_found() {
        assert_eq!(last_to(0, 0), None);
        assert_eq!(last_to(0, 1), Some(0));
        assert_eq!(last_to(1, 1), None);
        for messages in [SLOTS - 1, SLOTS, SLOTS + 1, 3 * SLOTS + 7] {
            for slot in [0, 1, 6, 7, SLOTS - 1] {
                let slow = (0..messages).rev().find(|n| n % SLOTS == slot);
                assert_eq!(last_to(slot, messages), slow, "slot {slot} of {messages}");
            }
        }
    }
}
