//! Random programs of messages over a queue pair, for real threads and real GPUs: the streams
//! fill each payload by a kernel, send it, wait for it and verify it by a kernel, while the CPU
//! only enqueues, a ring's length ahead. Payloads change from message to message.

use std::collections::VecDeque;

use gdsync::gpu::{MemoryKind, Region, Stream};
use gdsync::rdma::{
    Completion, Descriptor, Mr, QpConfig, ReceiveRequest, RemoteSpan, SendRequest, Work, post_on,
};

use super::limits::time_limit;
use super::provider::Net;
use super::rig::{Finding, Pair, Rig, Runtime, expected, finish, retry};
use super::settings;
use super::verdict::{Verdict, ensure, text};
use crate::cover::{self, Axis, Cell};

/// What the programs of a matrix differ in.
pub const AXES: [Axis; 9] = [
    ("posts", &["memops", "kernel", "auto", "proxy"]),
    ("payload", &["pinned", "device"]),
    // In device memory only where the CPU reaches it; else the library takes pinned.
    ("queues", &["pinned", "device"]),
    ("blocks", &["4", "8", "16"]),
    ("from", &["0", "2^16-9", "2^32-9"]),
    ("streams", &["one", "by turns", "sender and receiver"]),
    ("receives", &["by stream", "by CPU"]),
    ("NICs", &["one", "two", "as of two processes"]),
    (
        "operations",
        &["sends", "writes", "reads", "atomics", "all"],
    ),
];

/// Whether a cell means something: receives that the CPU has posted may be matched before the
/// receiver's stream has looked at what lay there before.
pub fn makes_sense(cell: &Cell) -> bool {
    !(setting(cell, "streams") == "sender and receiver" && setting(cell, "receives") == "by CPU")
}

/// What a cell sets on an axis.
///
/// # Panics
/// There is no such axis.
pub fn setting(cell: &Cell, axis: &str) -> &'static str {
    cover::setting(&AXES, cell, axis)
}

/// Most bytes of a payload.
const LONGEST: usize = 4096;
/// Bytes behind a payload that nobody may touch.
const GUARD: usize = 64;
/// Room for one message.
const SLOT: usize = LONGEST + GUARD;
/// Messages that have a place of their own; even, so that streams that take turns share none.
const SLOTS: usize = 8;
/// Where payloads are sent from, received, written or read to; then the words for atomics.
const SOURCE: usize = 0;
const RECEIVED: usize = SLOTS * SLOT;
const WRITTEN: usize = 2 * SLOTS * SLOT;
const WORDS: usize = 3 * SLOTS * SLOT;
const MEMORY: usize = WORDS + 64;
/// Bytes of each message that are copied out for the CPU.
const SEEN: usize = 128;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Send,
    SendInline,
    WriteImm,
    Write,
    WriteInline,
    Read,
    FetchAdd(u64),
    CompareSwap(u64, u64),
}

impl Operation {
    fn takes_receive(self) -> bool {
        use Operation::{Send, SendInline, WriteImm};
        matches!(self, Send | SendInline | WriteImm)
    }

    fn is_atomic(self) -> bool {
        matches!(self, Operation::FetchAdd(_) | Operation::CompareSwap(..))
    }

    fn is_inline(self) -> bool {
        matches!(self, Operation::SendInline | Operation::WriteInline)
    }
}

/// One message.
#[derive(Clone, Copy, Debug)]
struct Step {
    from: usize,
    operation: Operation,
    len: usize,
    imm: Option<u32>,
    /// Whether the sender is told, where the receiver is anyway.
    signaled: bool,
    /// A request in front of it is taken back.
    hole: bool,
    /// What an atomic brings back.
    old: u64,
}

/// The two words at each queue pair for the other's atomics.
type Words = [[u64; 2]; 2];

fn draw(operations: &str, steps: usize, seed: u64) -> (Vec<Step>, Words) {
    use Operation::{Read, Send, SendInline, Write, WriteImm, WriteInline};
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut words = Words::default();
    let sizes = [0, 1, 8, 32, 44, 64, 100, 777, 1024, LONGEST];
    let mut told = [true; 2];
    let steps = (0..steps).map(|_| {
        let from = rng.usize(0..2);
        let which = match operations {
            "all" => ["sends", "writes", "reads", "atomics"][rng.usize(0..4)],
            other => other,
        };
        let word = &mut words[1 - from];
        let mut old = 0;
        let operation = match which {
            "send" => Send,
            "send-inline" => SendInline,
            "write-imm" => WriteImm,
            "write" => Write,
            "read" => Read,
            "sends" => [Send, Send, SendInline, WriteImm][rng.usize(0..4)],
            "writes" => [Write, Write, WriteInline, WriteImm][rng.usize(0..4)],
            "reads" => [Read, Read, Write][rng.usize(0..3)],
            _ if rng.bool() => {
                let add = rng.u64(..);
                old = word[0];
                word[0] = old.wrapping_add(add);
                Operation::FetchAdd(add)
            }
            _ => {
                old = word[1];
                // Now and then one that does not match.
                let compare = old.wrapping_add(u64::from(rng.u8(0..4) == 0));
                let swap = rng.u64(..);
                if compare == old {
                    word[1] = swap;
                }
                Operation::CompareSwap(compare, swap)
            }
        };
        let len = match operation {
            o if o.is_inline() => sizes[rng.usize(0..7)],
            // A length of 0 is no segment.
            Read => sizes[rng.usize(1..sizes.len())],
            o if o.is_atomic() => 8,
            _ => sizes[rng.usize(0..sizes.len())],
        };
        let signaled = !operation.takes_receive() || rng.u8(0..4) > 0;
        // Behind a request that tells nothing, a prepared one would keep the library from asking
        // when that is done, and so the queue from having room again.
        let hole = std::mem::replace(&mut told[from], signaled) && rng.u8(0..12) == 0;
        Step {
            from,
            operation,
            len,
            imm: (operation == WriteImm || operation == Send && rng.bool()).then(|| rng.u32(..)),
            signaled,
            hole,
            old,
        }
    });
    let steps = steps.collect();
    (steps, words)
}

/// The pattern of a message, and of what lies behind it.
fn seeds(step: usize) -> (u64, u64) {
    (0x1_0000 + step as u64, 0x8000_0000 + step as u64)
}

struct Play<'g> {
    rig: &'g Rig,
    pair: Pair,
    memory: [Mr; 2],
    /// What the CPU is shown of each message.
    seen: Region,
    finding: Finding,
    streams: [Stream; 2],
    turns: &'static str,
    cpu_receives: bool,
    /// Receives that were not looked at, oldest first: whose, the request, bytes, immediate data.
    receives: VecDeque<(usize, ReceiveRequest, usize, Option<u32>)>,
    /// How many of these there may be.
    ahead: usize,
}

/// What a program is, beside what its messages are.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the queue pairs are made of.
    pub config: QpConfig,
    /// What lies between them.
    pub net: Net,
    /// Where messages are sent from and land.
    pub payload: MemoryKind,
    /// Which streams send and look, as the axis calls it.
    pub streams: &'static str,
    /// Whether the CPU posts receives.
    pub cpu_receives: bool,
    /// What the messages are, as the axes of [`AXES`] or of the matrix call it.
    pub operations: &'static str,
    /// How many there are.
    pub messages: usize,
    /// What they are drawn from.
    pub seed: u64,
}

/// A number of a cell.
pub fn seed_of(cell: &Cell) -> u64 {
    cell.iter().fold(1, |seed, n| 31 * seed + *n as u64)
}

/// Runs the program of a cell: so many laps of each ring.
///
/// # Errors
/// As [`play`].
pub fn run(rig: &Rig, cell: &Cell, laps: usize) -> Verdict {
    let mut blocks: u32 = setting(cell, "blocks").parse()?;
    let payload = settings::memory(setting(cell, "payload"));
    let may_spin = matches!(setting(cell, "posts"), "kernel" | "auto");
    if rig.runtime == Runtime::Cuda && payload == MemoryKind::Device && may_spin {
        // Each copy of the virtual NIC's waits for a time slice of the kernel that waits for it.
        blocks = 4;
    }
    let queues = settings::memory(setting(cell, "queues"));
    let (lowering, endpoint) = settings::posting(setting(cell, "posts"));
    let settings = Settings {
        config: QpConfig {
            send_blocks: blocks,
            recv_entries: blocks,
            ring_memory: queues,
            cq_memory: queues,
            record_memory: queues,
            lowering,
            endpoint,
            start: settings::start(setting(cell, "from")),
            ..QpConfig::default()
        },
        net: settings::nics(setting(cell, "NICs")),
        payload,
        streams: setting(cell, "streams"),
        cpu_receives: setting(cell, "receives") == "by CPU",
        operations: setting(cell, "operations"),
        // Each queue pair sends half of the messages, most of them of one block.
        messages: 2 * laps * blocks as usize,
        seed: seed_of(cell),
    };
    play(rig, &settings)
}

/// Plays a program.
///
/// # Errors
/// Whatever goes wrong, with the message's number.
pub fn play(rig: &Rig, settings: &Settings) -> Verdict {
    let (config, count) = (&settings.config, settings.messages);
    let (steps, words) = draw(settings.operations, count, settings.seed);
    let pair = Pair::new(rig, settings.net, [config, config])?;
    rig.lie(&pair.qps, config)?;
    let memory = |of| pair.memory(of, settings.payload, MEMORY);
    let mut play = Play {
        memory: [memory(0)?, memory(1)?],
        seen: rig.gpu.alloc(MemoryKind::Pinned, count * SEEN)?,
        finding: rig.finding()?,
        streams: [rig.gpu.stream()?, rig.gpu.stream()?],
        turns: settings.streams,
        cpu_receives: settings.cpu_receives,
        receives: VecDeque::new(),
        ahead: config.recv_entries as usize / 2,
        rig,
        pair,
    };
    for (i, step) in steps.iter().enumerate() {
        play.step(i, step)
            .map_err(|e| format!("message {i}, {step:?}: {}", text(&e)))?;
    }
    while !play.receives.is_empty() {
        play.look()?;
    }
    for stream in &play.streams {
        finish(stream, "after the last message")?;
    }
    play.judge(&steps, &words)?;
    let Play { pair, .. } = play;
    pair.leave("in the end")
}

impl Play<'_> {
    /// The streams that send and look at message `i`.
    fn streams(&self, i: usize) -> (Stream, Stream) {
        let (sender, receiver) = match self.turns {
            "one" => (0, 0),
            "by turns" => (i % 2, i % 2),
            _ => (0, 1),
        };
        (self.streams[sender].clone(), self.streams[receiver].clone())
    }

    /// Waits for the oldest receive and looks at what it says.
    fn look(&mut self) -> Verdict {
        let Some((at, request, len, imm)) = self.receives.pop_front() else {
            return Ok(());
        };
        let qp = &mut self.pair.qps[at];
        qp.wait(request, time_limit())?;
        let got = qp.received(request)?;
        ensure((got.len as usize, got.imm) == (len, imm), || {
            format!("{got:?} instead of {len} bytes and {imm:?}")
        })
    }

    fn step(&mut self, i: usize, step: &Step) -> Verdict {
        let (from, to) = (step.from, 1 - step.from);
        let slot = i % SLOTS * SLOT;
        let (seed, guard) = seeds(i);
        let (sender, receiver) = self.streams(i);
        let takes_receive = step.operation.takes_receive();
        let signaled = step.signaled || self.turns == "sender and receiver";
        // Who looks at what came, and where that lies.
        let (looker, at, landing) = match step.operation {
            Operation::Send | Operation::SendInline => (&receiver, to, RECEIVED),
            Operation::WriteImm => (&receiver, to, RECEIVED),
            Operation::Write | Operation::WriteInline => (&sender, to, WRITTEN),
            _ => (&sender, from, WRITTEN),
        };
        let landing = landing + slot;
        let (source, target) = (self.memory[from].clone(), self.memory[to].clone());
        let landed = self.memory[at].region().clone();
        let rig = self.rig;

        // What is there before.
        rig.fill(looker, &landed, landing + step.len, GUARD, guard)?;
        if !step.operation.is_inline() && !step.operation.is_atomic() {
            let read = step.operation == Operation::Read;
            let owner = if read { &target } else { &source };
            rig.fill(&sender, owner.region(), SOURCE + slot, step.len, seed)?;
        }

        let receive = match takes_receive {
            false => None,
            true => Some(self.receive(to, &target, RECEIVED + slot, step)?),
        };
        let send = self.prepare(step, signaled, seed, slot, &source, &target)?;
        self.post(
            &sender,
            &receiver,
            send,
            signaled.then(|| send.into()),
            receive,
        )?;

        if step.operation.is_atomic() {
            // Its old value is for the CPU to see.
        } else {
            rig.verify(looker, &landed, landing, step.len, seed, &self.finding)?;
        }
        let end = landing + step.len;
        rig.verify(looker, &landed, end, GUARD, guard, &self.finding)?;
        let shown = step.len.min(SEEN);
        if shown > 0 {
            let (to, from) = (
                self.seen.span(i * SEEN, shown)?,
                landed.span(landing, shown)?,
            );
            looker.copy(&to, &from)?;
        }
        Ok(())
    }

    fn receive(&mut self, to: usize, mr: &Mr, at: usize, step: &Step) -> Verdict<ReceiveRequest> {
        while self.receives.len() >= self.ahead {
            self.look()?;
        }
        let list = [mr.sge(at as u64, step.len as u32)];
        let qp = &mut self.pair.qps[to];
        // A stream that has not said yet that it has passed holds places for completions.
        let request = retry(&self.rig.gpu, || qp.prepare_receive(&list))?;
        if self.cpu_receives {
            self.pair.qps[to].post_receive(request)?;
        }
        self.receives.push_back((to, request, step.len, step.imm));
        Ok(request)
    }

    fn prepare(
        &mut self,
        step: &Step,
        signaled: bool,
        seed: u64,
        slot: usize,
        source: &Mr,
        target: &Mr,
    ) -> Verdict<SendRequest> {
        let qp = &mut self.pair.qps[step.from];
        let (at, len) = (slot as u64, step.len as u64);
        let bytes = if step.operation.is_inline() {
            expected(seed, step.len)
        } else {
            Vec::new()
        };
        let pieces = [&bytes[..]];
        let out = [source.sge(SOURCE as u64 + at, len as u32)];
        let into = [source.sge(WRITTEN as u64 + at, len as u32)];
        let there = target.remote();
        let span =
            |base: usize| -> gdsync::Result<RemoteSpan> { there.span(base as u64 + at, len) };
        let word = |which: u64| there.span(WORDS as u64 + 8 * which, 8);
        let work = match step.operation {
            Operation::Send => Work::send(&out),
            Operation::SendInline => Work::send_inline(&pieces),
            Operation::WriteImm => Work::write(&out, span(RECEIVED)?),
            Operation::Write => Work::write(&out, span(WRITTEN)?),
            Operation::WriteInline => Work::write_inline(&pieces, span(WRITTEN)?),
            Operation::Read => Work::read(&into, span(SOURCE)?),
            Operation::FetchAdd(add) => Work::fetch_add(&into, word(0)?, add),
            Operation::CompareSwap(compare, swap) => {
                Work::compare_swap(&into, word(1)?, compare, swap)
            }
        };
        let work = match step.imm {
            Some(imm) => work.with_imm(imm),
            None => work,
        };
        let work = if signaled { work.signaled() } else { work };
        let hole = match step.hole {
            true => Some(qp.prepare_within(&Work::nop().signaled(), time_limit())?),
            false => None,
        };
        let send = qp.prepare_within(&work, time_limit())?;
        if let Some(hole) = hole {
            qp.abort(hole)?;
        }
        Ok(send)
    }

    fn post(
        &mut self,
        sender: &Stream,
        receiver: &Stream,
        send: SendRequest,
        sent: Option<Completion>,
        receive: Option<ReceiveRequest>,
    ) -> Verdict {
        let posted = receive.filter(|_| !self.cpu_receives);
        let available = posted.map(Descriptor::Receive);
        let arrived = receive.map(Descriptor::wait_flushed);
        let sent = sent.map(Descriptor::wait_flushed);
        let [a, b] = &mut self.pair.qps;
        let queues: &mut [_] = &mut [a, b];
        if sender.id() == receiver.id() {
            let list = [available, Some(Descriptor::Send(send)), sent, arrived];
            let list: Vec<Descriptor<'_>> = list.into_iter().flatten().collect();
            post_on(sender, queues, &list)?;
            return Ok(());
        }
        let list: Vec<Descriptor<'_>> = [available, arrived].into_iter().flatten().collect();
        if !list.is_empty() {
            post_on(receiver, queues, &list)?;
        }
        let list: Vec<Descriptor<'_>> = [Some(Descriptor::Send(send)), sent]
            .into_iter()
            .flatten()
            .collect();
        post_on(sender, queues, &list)?;
        Ok(())
    }

    /// Compares what is there in the end with what the program says.
    fn judge(&mut self, steps: &[Step], words: &Words) -> Verdict {
        self.finding.clean("in the end")?;
        for (i, step) in steps.iter().enumerate() {
            let len = step.len.min(SEEN);
            let mut got = vec![0; len];
            self.seen.read(i * SEEN, &mut got)?;
            let want = match step.operation.is_atomic() {
                true => step.old.to_le_bytes().to_vec(),
                false => expected(seeds(i).0, len),
            };
            ensure(got == want, || {
                format!("message {i}, {step:?}: {got:02x?} instead of {want:02x?}")
            })?;
        }
        for (at, want) in words.iter().enumerate() {
            for (which, want) in want.iter().enumerate() {
                let mut got = [0; 8];
                self.memory[at].region().read(WORDS + 8 * which, &mut got)?;
                let got = u64::from_le_bytes(got);
                ensure(got == *want, || {
                    format!("word {which} at {at}: {got:#x} instead of {want:#x}")
                })?;
            }
        }
        Ok(())
    }
}
