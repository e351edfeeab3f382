//! Runs the messages of a program, and checks every byte.
//!
//! Without hazards a message shares its memory with later messages, and kernels fill and verify it.
//! With hazards each message has separate memory. The stream copies the received bytes right behind
//! its wait, and then overwrites them. So the test finds a byte that arrives late (because a flush
//! or a fence is missing) or twice. The source is overwritten right after the wait for its
//! completion, so the test also finds a wait that passes early.

mod judge;
mod receive;
mod send;

use std::collections::{BTreeMap, VecDeque};

use gdsync::gpu::{Condition, MemoryKind, Region, Span, Stream};
use gdsync::rdma::{
    Completion, Descriptor, Mr, Qp, ReceiveRequest, RemoteMemory, SendRequest, Sge, post_on,
};
use gdsync::{Kind, Status};

use super::Settings;
use super::draw::{GUARD, Ink, Operation, Program, Step, Wait};
use super::owned::OwnedDescriptor;
use crate::rig::limits::time_limit;
use crate::rig::verdict::{Verdict, ensure, refused, text};
use crate::rig::{Finding, Pair, Rig, expected, finish};

/// Bytes of each message that are copied out for the CPU, without hazards.
const SEEN: usize = 128;

/// Value of memory before a message arrives.
const FILL: u8 = 0xee;
/// Value that a stream writes over a message after it has seen the message.
const TAKEN: u8 = 0x5a;
/// Value that must never be sent.
const JUNK: u8 = 0xbb;

/// The pattern of a message, and of the bytes behind it.
fn seeds(step: usize) -> (u64, u64) {
    (0x1_0000 + step as u64, 0x8000_0000 + step as u64)
}

/// The operations of a stream behind a list.
#[derive(Clone, Copy)]
enum After {
    /// Checks the result of a message.
    Look(usize),
    /// Overwrites the source of a message that was sent.
    Forget(usize),
}

/// A list that has not been posted yet.
#[derive(Default)]
struct Open {
    stream: usize,
    descriptors: Vec<OwnedDescriptor>,
    after: Vec<After>,
    spoiled: bool,
}

/// The memory of one side, for the messages that it sends and receives.
pub struct Memory {
    /// The source of messages, and behind it two words for the atomics of each side.
    pub source: Mr,
    /// The target of messages: first the memory of receives, then that of WRITEs and READs.
    pub landing: Mr,
    /// Memory that must never be sent.
    junk: Mr,
}

impl Memory {
    /// Memory of a side.
    ///
    /// # Errors
    /// Those of `register`, which registers new memory with all rights.
    pub fn new<E>(
        program: &Program,
        side: usize,
        register: impl Fn(MemoryKind, usize) -> Result<Mr, E>,
    ) -> Result<Memory, E> {
        let sides = &program.settings.sides;
        let words = 16 * sides.len();
        Ok(Memory {
            source: register(sides[side].source, program.room + words)?,
            landing: register(sides[side].landing, 2 * program.room)?,
            junk: register(MemoryKind::Pinned, 64)?,
        })
    }

    /// Remote memory of other sides: source and landing.
    pub fn remote(&self) -> [RemoteMemory; 2] {
        [self.source.remote(), self.landing.remote()]
    }
}

/// The resources of the sides that this process runs, and the remote memory of the others.
pub struct Ends<'p> {
    /// Queue pairs, by side and peer.
    pub qps: BTreeMap<(usize, usize), &'p mut Qp>,
    /// Memory, by side.
    pub memory: BTreeMap<usize, Memory>,
    /// The remote memory of all sides.
    pub remote: Vec<[RemoteMemory; 2]>,
    /// Entries of each receive queue, at least.
    pub entries: usize,
    /// Segments of each of its entries, at least.
    pub recv_sges: usize,
}

struct Play<'p> {
    rig: &'p Rig,
    program: &'p Program,
    settings: &'p Settings,
    steps: &'p [Step],
    ends: Ends<'p>,
    /// With hazards: payloads that streams copy into sources, bytes for overwriting, and words that
    /// one stream writes for the other.
    ink: Region,
    over: Region,
    tokens: Region,
    /// The copies of each message for the CPU.
    seen: Region,
    looked: Vec<bool>,
    finding: Finding,
    streams: [Stream; 2],
    open: Open,
    /// Posted receives of later messages, by side and peer.
    early: BTreeMap<(usize, usize), VecDeque<(usize, ReceiveRequest)>>,
    /// Receives that the CPU has not checked, oldest first.
    receives: VecDeque<(usize, ReceiveRequest)>,
    /// Most of these receives.
    ahead: usize,
    /// All sends, with hazards, by side and peer.
    sent: Vec<((usize, usize), SendRequest)>,
}

/// Runs both sides of a program between two queue pairs.
pub fn play(rig: &Rig, mut pair: Pair, program: &Program) -> Verdict {
    let memory = |side| Memory::new(program, side, |kind, len| pair.memory(side, kind, len));
    let memory = [memory(0)?, memory(1)?];
    let (entries, recv_sges) = (pair.entries, pair.recv_sges);
    let [a, b] = &mut pair.qps;
    let ends = Ends {
        qps: BTreeMap::from([((0, 1), a), ((1, 0), b)]),
        remote: memory.iter().map(Memory::remote).collect(),
        memory: BTreeMap::from_iter(memory.into_iter().enumerate()),
        entries,
        recv_sges,
    };
    play_on(rig, program, ends, || {})?;
    pair.leave("in the end")
}

/// Plays the sides of a program that have these ends; `meet` returns once all sides have come as far,
/// before the first message and after the last.
pub fn play_on(rig: &Rig, program: &Program, ends: Ends<'_>, meet: impl Fn()) -> Verdict {
    let mut play = Play::new(rig, program, ends)?;
    meet();
    for (i, step) in program.steps.iter().enumerate() {
        play.step(i)
            .map_err(|e| format!("message {i}, {step:?}: {}", text(&e)))?;
    }
    play.end(meet)?;
    play.judge()
}

impl<'p> Play<'p> {
    fn new(rig: &'p Rig, program: &'p Program, ends: Ends<'p>) -> Verdict<Play<'p>> {
        let (settings, steps) = (&program.settings, &program.steps[..]);
        let count = steps.len();
        let hazards = settings.hazards();
        let pinned = |len: usize| rig.gpu.alloc(MemoryKind::Pinned, len);
        let play = Play {
            ink: pinned(program.room)?,
            over: pinned(2 * program.room)?,
            tokens: pinned(8 * count)?,
            seen: pinned(if hazards { program.room } else { count * SEEN })?,
            looked: vec![false; count],
            finding: rig.finding()?,
            streams: [rig.gpu.stream()?, rig.gpu.stream()?],
            open: Open::default(),
            early: BTreeMap::new(),
            receives: VecDeque::new(),
            ahead: ends.entries / 2,
            sent: Vec::new(),
            rig,
            program,
            settings,
            steps,
            ends,
        };
        if hazards {
            play.prepare_memory()?;
        }
        Ok(play)
    }

    /// Whether this process runs the side.
    fn plays(&self, side: usize) -> bool {
        self.ends.memory.contains_key(&side)
    }

    /// Memory of a side that this process runs.
    fn memory(&self, side: usize) -> &Memory {
        &self.ends.memory[&side]
    }

    /// A queue pair of a side that this process runs, by side and peer.
    fn qp(&mut self, end: (usize, usize)) -> &mut Qp {
        self.ends.qps.get_mut(&end).expect("a QP of this side")
    }

    /// Fills the memory before the first message.
    fn prepare_memory(&self) -> Verdict {
        let room = self.program.room;
        for Memory { landing, junk, .. } in self.ends.memory.values() {
            junk.region().write(0, &[JUNK; 64])?;
            landing.region().write(0, &vec![FILL; 2 * room])?;
        }
        self.over.write(0, &vec![TAKEN; room])?;
        self.over.write(room, &vec![JUNK; room])?;
        for (i, step) in self.steps.iter().enumerate() {
            let (at, bytes) = (self.program.slots[i], expected(seeds(i).0, step.len));
            self.ink.write(at, &bytes)?;
            if step.operation == Operation::Read && self.plays(step.to) && !self.plays(step.from) {
                self.source_memory(i).write(at, &bytes)?;
            }
            if let Ink::Handed(Condition::Nor, _) = step.ink {
                self.tokens.write(8 * i, &[0xff; 8])?;
            }
        }
        Ok(())
    }

    /// Offsets of a message: of its source, of its target if a receive takes it, and of its target
    /// otherwise.
    fn places(&self, i: usize) -> [usize; 3] {
        let slot = self.program.slots[i];
        [slot, slot, self.program.room + slot]
    }

    /// The memory and offset of a message's target; `None` if it has none, or if another process
    /// runs it.
    fn landing(&self, i: usize) -> Option<(usize, usize)> {
        let (step, [_, received, written]) = (&self.steps[i], self.places(i));
        let landing = match step.operation {
            Operation::Nop => return None,
            o if o.takes_receive() => (step.to, received),
            o if o.brings() => (step.from, written),
            _ => (step.to, written),
        };
        Some(landing).filter(|(side, _)| self.plays(*side))
    }

    /// The memory of a message's source.
    fn sourced(&self, i: usize) -> usize {
        match self.steps[i].operation {
            Operation::Read => self.steps[i].to,
            _ => self.steps[i].from,
        }
    }

    fn source_memory(&self, i: usize) -> &Region {
        self.memory(self.sourced(i)).source.region()
    }

    fn source(&self, i: usize) -> gdsync::Result<Span> {
        let (region, at) = (self.source_memory(i), self.places(i)[0]);
        region.span(at, self.steps[i].len)
    }

    /// The payload of a message, for streams to copy.
    fn inked(&self, i: usize) -> gdsync::Result<Span> {
        self.ink.span(self.program.slots[i], self.steps[i].len)
    }

    /// The streams that send and check message `i`.
    fn streams(&self, i: usize) -> [usize; 2] {
        match (self.steps[i].odd, self.settings.streams) {
            (Some(odd), _) => odd.streams,
            (None, "one") => [0, 0],
            (None, "alternating") => [i % 2, i % 2],
            (None, _) => [0, 1],
        }
    }

    /// The open list, to which a stream's next operations are added.
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
        let queues = self.ends.qps.values_mut().map(|qp| &mut **qp);
        let queues = &mut queues.collect::<Vec<&mut Qp>>()[..];
        let mut descriptors: Vec<Descriptor<'_>> = list
            .descriptors
            .iter()
            .map(OwnedDescriptor::descriptor)
            .collect();
        if list.spoiled {
            // A refused list must change nothing.
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
                    let from = self.over.span(self.program.room, self.steps[i].len)?;
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

    /// Makes a stream check the result of a message, and copy it for the CPU.
    fn show(&mut self, i: usize, stream: usize) -> Verdict {
        let (step, rig) = (&self.steps[i], self.rig);
        let Some((at, landing)) = self.landing(i) else {
            return Ok(());
        };
        self.looked[i] = true;
        let landed = self.memory(at).landing.region();
        if self.settings.hazards() {
            let len = step.len + GUARD;
            let place = landed.span(landing, len)?;
            let seen = self.seen.span(self.program.slots[i], len)?;
            self.copy(stream, &seen, &place)?;
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
        let (from, to) = ((step.from, step.to), (step.to, step.from));
        let [sender, receiver] = self.streams(i);
        let [acts, heeds] = [step.from, step.to].map(|side| self.plays(side));
        let takes_receive = step.operation.takes_receive();
        let looker = if takes_receive { receiver } else { sender };
        if let (None, Some((at, landing))) = (odd, self.landing(i)) {
            // The contents before the message.
            let (stream, landed) = (&self.streams[looker], self.memory(at).landing.region());
            let (_, guard) = seeds(i);
            self.rig
                .fill(stream, landed, landing + step.len, GUARD, guard)?;
        }
        if acts && step.operation.moves() && self.plays(self.sourced(i)) {
            self.ink(i, sender)?;
        }
        if heeds {
            self.receive_early(i)?;
        }
        let receive = match heeds && takes_receive {
            true => Some(self.receive(i)?),
            false => None,
        };
        let signaled = match odd {
            Some(_) => step.signaled,
            None => step.signaled || self.settings.streams == "sender and receiver",
        };
        let send = match acts {
            true => Some(self.prepare(i, signaled)?),
            false => None,
        };
        let late = odd.is_some_and(|odd| odd.late);
        let due = receive.filter(|(_, posted)| !posted).map(|(r, _)| r);
        if let Some(receive) = due.filter(|_| !late) {
            self.post_receive(i, receive, receiver)?;
        }
        if let Some(send) = send {
            self.post(i, send, sender)?;
        }
        if let Some(receive) = due.filter(|_| late) {
            self.flush()?;
            self.post_by_cpu(to, receive)?;
        }
        let [wait_send, wait_receive] = odd.map_or([Wait::Stream; 2], |odd| odd.waits);
        if let Some(send) = send.filter(|_| signaled) {
            let after = match odd {
                _ if !takes_receive && self.landing(i).is_some() => Some(After::Look(i)),
                Some(_) if step.operation.moves() => Some(After::Forget(i)),
                _ => None,
            };
            self.wait(from, send.into(), wait_send, sender, after)?;
        }
        if let Some((receive, _)) = receive {
            let after = Some(After::Look(i));
            self.wait(to, receive.into(), wait_receive, receiver, after)?;
        }
        match odd.is_some_and(|odd| odd.joined) {
            true => Ok(()),
            false => self.flush(),
        }
    }

    /// Makes the CPU or streams wait for a completion, and a stream execute the operations behind
    /// it.
    fn wait(
        &mut self,
        at: (usize, usize),
        completion: Completion,
        wait: Wait,
        stream: usize,
        after: Option<After>,
    ) -> Verdict {
        match wait {
            Wait::Nothing => {}
            Wait::Cpu => {
                self.flush()?;
                self.qp(at).wait(completion, time_limit())?;
                let list = self.list(stream)?;
                list.descriptors.push(OwnedDescriptor::Flush);
                list.after.extend(after);
                self.flush()?;
            }
            Wait::Stream | Wait::Both => {
                let list = self.list(stream)?;
                list.descriptors.push(OwnedDescriptor::Wait(completion));
                list.after.extend(after);
                if wait == Wait::Both {
                    self.list(1 - stream)?
                        .descriptors
                        .push(OwnedDescriptor::Wait(completion));
                }
            }
        }
        Ok(())
    }

    /// Waits for everything, and checks the completions that had no waiter.
    fn end(&mut self, meet: impl Fn()) -> Verdict {
        while !self.receives.is_empty() {
            self.look()?;
        }
        self.flush()?;
        self.finish()?;
        if !self.settings.hazards() {
            return Ok(());
        }
        for qp in self.ends.qps.values_mut() {
            qp.quiet(time_limit())?;
            let error = qp.error();
            ensure(error.is_none(), || format!("{qp:?}: {error:?}"))?;
        }
        for (from, request) in std::mem::take(&mut self.sent) {
            let status = self.qp(from).poll(request)?;
            ensure(status == Some(Status::SUCCESS), || {
                format!("{request:?}: {status:?}")
            })?;
        }
        meet();
        self.list(0)?.descriptors.push(OwnedDescriptor::Flush);
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
