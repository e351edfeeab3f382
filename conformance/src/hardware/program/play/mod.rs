//! Plays the messages of a program, and looks at every byte.
//!
//! Without hazards a message shares its place in memory with later ones, and kernels fill and verify
//! it. With them each has a place of its own: what a stream sees right behind its wait is copied
//! away by that stream, and then written over, so that a byte which arrives late, because a flush or
//! a fence is missing, or twice, is found. A source is written over as soon as its completion was
//! waited for: a wait that passes early is found too.

mod judge;
mod receive;
mod send;

use std::collections::VecDeque;

use gdsync::gpu::{Condition, MemoryKind, Region, Span, Stream};
use gdsync::rdma::{Completion, Descriptor, Mr, Qp, ReceiveRequest, SendRequest, Sge, post_on};
use gdsync::{Kind, Status};

use super::Settings;
use super::draw::{GUARD, Ink, LONGEST, Operation, Step, Wait, draw};
use super::todo::Todo;
use crate::live::limits::time_limit;
use crate::live::rig::{Finding, Pair, Rig, expected, finish};
use crate::live::verdict::{Verdict, ensure, refused, text};

/// Room for one message.
const SLOT: usize = LONGEST + GUARD;
/// Messages that have a place of their own, without hazards; even, so that streams that take turns
/// share none.
const SLOTS: usize = 8;
/// Bytes of each message that are copied out for the CPU, without hazards.
const SEEN: usize = 128;

/// What memory holds before a message lands.
const FILL: u8 = 0xee;
/// What a stream writes over a message as soon as it has seen it.
const TAKEN: u8 = 0x5a;
/// What must never be sent.
const JUNK: u8 = 0xbb;

/// The pattern of a message, and of what lies behind it.
fn seeds(step: usize) -> (u64, u64) {
    (0x1_0000 + step as u64, 0x8000_0000 + step as u64)
}

/// What a stream does behind a list.
#[derive(Clone, Copy)]
enum After {
    /// Looks at what came of a message.
    Look(usize),
    /// Writes over the source of one, which was sent.
    Forget(usize),
}

/// A list that was not posted yet.
#[derive(Default)]
struct Open {
    stream: usize,
    todos: Vec<Todo>,
    after: Vec<After>,
    spoiled: bool,
}

struct Play<'p> {
    rig: &'p Rig,
    settings: &'p Settings,
    steps: &'p [Step],
    pair: Pair,
    memory: [Mr; 2],
    junk: [Mr; 2],
    /// With hazards: payloads that streams copy into sources, bytes to write over, words that one
    /// stream writes for the other.
    ink: Region,
    over: Region,
    tokens: Region,
    /// What the CPU is shown of each message.
    seen: Region,
    looked: Vec<bool>,
    finding: Finding,
    streams: [Stream; 2],
    open: Open,
    /// Receives of later messages that are posted, by queue pair.
    early: [VecDeque<(usize, ReceiveRequest)>; 2],
    /// Receives that the CPU did not look at, oldest first.
    receives: VecDeque<(usize, ReceiveRequest)>,
    /// How many of these there may be.
    ahead: usize,
    /// All sends, with hazards.
    sent: Vec<(usize, SendRequest)>,
}

/// Plays a program between two queue pairs.
///
/// # Errors
/// Whatever goes wrong, with the message's number.
pub fn play(rig: &Rig, pair: Pair, settings: &Settings) -> Verdict {
    let (steps, words) = draw(settings);
    let mut play = Play::new(rig, pair, settings, &steps)?;
    for (i, step) in steps.iter().enumerate() {
        play.step(i)
            .map_err(|e| format!("message {i}, {step:?}: {}", text(&e)))?;
    }
    play.end()?;
    play.judge(&words)?;
    play.pair.leave("in the end")
}

impl<'p> Play<'p> {
    fn new(
        rig: &'p Rig,
        pair: Pair,
        settings: &'p Settings,
        steps: &'p [Step],
    ) -> Verdict<Play<'p>> {
        let count = steps.len();
        let hazards = settings.hazards.is_some();
        let slots = if hazards { count } else { SLOTS };
        let memory = |of| pair.memory(of, settings.payload, 3 * slots * SLOT + 64);
        let junk = |of| pair.memory(of, MemoryKind::Pinned, 64);
        let pinned = |len: usize| rig.gpu.alloc(MemoryKind::Pinned, len);
        let own = if hazards { count } else { 1 };
        let play = Play {
            memory: [memory(0)?, memory(1)?],
            junk: [junk(0)?, junk(1)?],
            ink: pinned(own * SLOT)?,
            over: pinned(2 * SLOT)?,
            tokens: pinned(8 * own)?,
            seen: pinned(count * if hazards { SLOT } else { SEEN })?,
            looked: vec![false; count],
            finding: rig.finding()?,
            streams: [rig.gpu.stream()?, rig.gpu.stream()?],
            open: Open::default(),
            early: Default::default(),
            receives: VecDeque::new(),
            ahead: pair.entries / 2,
            sent: Vec::new(),
            rig,
            settings,
            steps,
            pair,
        };
        if hazards {
            play.prepare_memory(slots)?;
        }
        Ok(play)
    }

    /// What lies in memory before the first message.
    fn prepare_memory(&self, slots: usize) -> Verdict {
        for junk in &self.junk {
            junk.region().write(0, &[JUNK; 64])?;
        }
        for memory in &self.memory {
            memory.region().write(0, &vec![FILL; 3 * slots * SLOT])?;
        }
        self.over.write(0, &[TAKEN; SLOT])?;
        self.over.write(SLOT, &[JUNK; SLOT])?;
        for (i, step) in self.steps.iter().enumerate() {
            self.ink.write(i * SLOT, &expected(seeds(i).0, step.len))?;
            if let Ink::Handed(Condition::Nor, _) = step.ink {
                self.tokens.write(8 * i, &[0xff; 8])?;
            }
        }
        Ok(())
    }

    fn slots(&self) -> usize {
        match self.settings.hazards {
            Some(_) => self.steps.len(),
            None => SLOTS,
        }
    }

    /// Where a message is sent or read from; where it lands if it is received, or else.
    fn places(&self, i: usize) -> [usize; 3] {
        let (slots, slot) = (self.slots(), i % self.slots() * SLOT);
        [0, 1, 2].map(|area| area * slots * SLOT + slot)
    }

    /// Whose memory a message lands in, and where; nothing, if nothing does.
    fn landing(&self, i: usize) -> Option<(usize, usize)> {
        let (step, [_, received, written]) = (&self.steps[i], self.places(i));
        match step.operation {
            Operation::Nop => None,
            o if o.takes_receive() => Some((1 - step.from, received)),
            o if o.brings() => Some((step.from, written)),
            _ => Some((1 - step.from, written)),
        }
    }

    /// The memory that a message is sent or read from.
    fn source_memory(&self, i: usize) -> &Region {
        let step = &self.steps[i];
        let owner = match step.operation {
            Operation::Read => 1 - step.from,
            _ => step.from,
        };
        self.memory[owner].region()
    }

    fn source(&self, i: usize) -> gdsync::Result<Span> {
        let (region, at) = (self.source_memory(i), self.places(i)[0]);
        region.span(at, self.steps[i].len)
    }

    /// The streams that send and look at message `i`.
    fn streams(&self, i: usize) -> [usize; 2] {
        match (self.steps[i].odd, self.settings.streams) {
            (Some(odd), _) => odd.streams,
            (None, "one") => [0, 0],
            (None, "by turns") => [i % 2, i % 2],
            (None, _) => [0, 1],
        }
    }

    /// The list that what a stream does next is added to.
    fn list(&mut self, stream: usize) -> Verdict<&mut Open> {
        if self.open.stream != stream {
            self.flush()?;
            self.open.stream = stream;
        }
        Ok(&mut self.open)
    }

    /// Posts the open list.
    fn flush(&mut self) -> Verdict {
        let list = std::mem::take(&mut self.open);
        let wrong = self.ink.span(0, 8)?;
        let stream = &self.streams[list.stream];
        let [a, b] = &mut self.pair.qps;
        let queues: &mut [&mut Qp] = &mut [a, b];
        let mut descriptors: Vec<Descriptor<'_>> =
            list.todos.iter().map(Todo::descriptor).collect();
        if list.spoiled {
            // Whatever is refused leaves no trace.
            let data = &[0; 4];
            descriptors.push(Descriptor::WriteMemory { to: &wrong, data });
            let spoiled = post_on(stream, queues, &descriptors);
            refused(spoiled, Kind::Invalid, "a list with a wrong length")?;
            descriptors.pop();
        }
        if !descriptors.is_empty() {
            post_on(stream, queues, &descriptors)?;
        }
        for after in list.after {
            match after {
                After::Look(i) => self.show(i, list.stream)?,
                After::Forget(i) => {
                    let from = self.over.span(SLOT, self.steps[i].len)?;
                    self.copy(list.stream, &self.source(i)?, &from)?;
                }
            }
        }
        Ok(())
    }

    fn copy(&self, stream: usize, to: &Span, from: &Span) -> Verdict {
        match from.len() {
            0 => Ok(()),
            _ => Ok(self.streams[stream].copy(to, from)?),
        }
    }

    /// Has a stream look at what came of a message, and show it to the CPU.
    fn show(&mut self, i: usize, stream: usize) -> Verdict {
        let (step, rig) = (&self.steps[i], self.rig);
        let Some((at, landing)) = self.landing(i) else {
            return Ok(());
        };
        let landed = self.memory[at].region();
        self.looked[i] = true;
        if self.settings.hazards.is_some() {
            let len = step.len + GUARD;
            let place = landed.span(landing, len)?;
            self.copy(stream, &self.seen.span(i * SLOT, len)?, &place)?;
            return self.copy(stream, &place, &self.over.span(0, len)?);
        }
        let (seed, guard) = seeds(i);
        let looker = &self.streams[stream];
        if !step.operation.is_atomic() {
            rig.verify(looker, landed, landing, step.len, seed, &self.finding)?;
        }
        let end = landing + step.len;
        rig.verify(looker, landed, end, GUARD, guard, &self.finding)?;
        let shown = step.len.min(SEEN);
        let (to, from) = (
            self.seen.span(i * SEEN, shown)?,
            landed.span(landing, shown)?,
        );
        self.copy(stream, &to, &from)
    }

    fn step(&mut self, i: usize) -> Verdict {
        let step = self.steps[i];
        let odd = step.odd;
        let [sender, receiver] = self.streams(i);
        let takes_receive = step.operation.takes_receive();
        let looker = if takes_receive { receiver } else { sender };
        if let (None, Some((at, landing))) = (odd, self.landing(i)) {
            // What is there before.
            let (stream, landed) = (&self.streams[looker], self.memory[at].region());
            let (_, guard) = seeds(i);
            self.rig
                .fill(stream, landed, landing + step.len, GUARD, guard)?;
        }
        if step.operation.moves() {
            self.ink(i, sender)?;
        }
        self.receive_early(i)?;
        let receive = match takes_receive {
            true => Some(self.receive(i)?),
            false => None,
        };
        let signaled = match odd {
            Some(_) => step.signaled,
            None => step.signaled || self.settings.streams == "sender and receiver",
        };
        let send = self.prepare(i, signaled)?;
        let late = odd.is_some_and(|odd| odd.late);
        let due = receive.filter(|(_, posted)| !posted).map(|(r, _)| r);
        if let Some(receive) = due.filter(|_| !late) {
            self.post_receive(i, receive, receiver)?;
        }
        self.post(i, send, sender)?;
        if let Some(receive) = due.filter(|_| late) {
            self.flush()?;
            self.post_by_cpu(1 - step.from, receive)?;
        }
        let [wait_send, wait_receive] = odd.map_or([Wait::Stream; 2], |odd| odd.waits);
        if signaled {
            let after = match odd {
                _ if !takes_receive && self.landing(i).is_some() => Some(After::Look(i)),
                Some(_) if step.operation.moves() => Some(After::Forget(i)),
                _ => None,
            };
            self.wait(step.from, send.into(), wait_send, sender, after)?;
        }
        if let Some((receive, _)) = receive {
            let after = Some(After::Look(i));
            self.wait(1 - step.from, receive.into(), wait_receive, receiver, after)?;
        }
        match odd.is_some_and(|odd| odd.joined) {
            true => Ok(()),
            false => self.flush(),
        }
    }

    /// Has the CPU or streams wait for a completion, and a stream do what comes behind.
    fn wait(
        &mut self,
        at: usize,
        completion: Completion,
        wait: Wait,
        stream: usize,
        after: Option<After>,
    ) -> Verdict {
        match wait {
            Wait::Nothing => {}
            Wait::Cpu => {
                self.flush()?;
                self.pair.qps[at].wait(completion, time_limit())?;
                let list = self.list(stream)?;
                list.todos.push(Todo::Flush);
                list.after.extend(after);
                self.flush()?;
            }
            Wait::Stream | Wait::Both => {
                let list = self.list(stream)?;
                list.todos.push(Todo::Wait(completion));
                list.after.extend(after);
                if wait == Wait::Both {
                    self.list(1 - stream)?.todos.push(Todo::Wait(completion));
                }
            }
        }
        Ok(())
    }

    /// Waits for everything, and looks at what nothing has waited for.
    fn end(&mut self) -> Verdict {
        while !self.receives.is_empty() {
            self.look()?;
        }
        self.flush()?;
        self.finish()?;
        if self.settings.hazards.is_none() {
            return Ok(());
        }
        for qp in &mut self.pair.qps {
            qp.quiet(time_limit())?;
        }
        for (from, request) in std::mem::take(&mut self.sent) {
            let status = self.pair.qps[from].poll(request)?;
            ensure(status == Some(Status::SUCCESS), || {
                format!("{request:?}: {status:?}")
            })?;
        }
        self.list(0)?.todos.push(Todo::Flush);
        self.flush()?;
        for i in 0..self.steps.len() {
            if !self.looked[i] {
                self.show(i, 0)?;
            }
        }
        self.finish()
    }

    fn finish(&self) -> Verdict {
        let mut streams = self.streams.iter();
        streams.try_for_each(|stream| finish(stream, "after the last message"))
    }
}

/// Three segments of a registration, some of which may be empty.
fn pieces(mr: &Mr, at: u64, cuts: [usize; 2], len: usize) -> [Sge<'_>; 3] {
    let [a, b] = cuts;
    let piece = |from: usize, to: usize| mr.sge(at + from as u64, (to - from) as u32);
    [piece(0, a), piece(a, b), piece(b, len)]
}
