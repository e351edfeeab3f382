//! Plays the messages of a program, and looks at every byte.
//!
//! Without hazards a message shares its place in memory with later ones, and kernels fill and verify
//! it. With them each has a place of its own: what a stream sees right behind its wait is copied
//! away by that stream, and then written over, so that a byte which arrives late, because a flush or
//! a fence is missing, or twice, is found. A source is written over as soon as its completion was
//! waited for: a wait that passes early is found too.

use std::collections::VecDeque;

use gdsync::gpu::{MemoryKind, Region, Span, Stream};
use gdsync::memop::Condition;
use gdsync::rdma::{
    Completion, Descriptor, Field, Mr, Qp, ReceiveRequest, RemoteSpan, SendRequest, Sge, Work,
    post_on,
};
use gdsync::{Kind, Status};

use super::Settings;
use super::draw::{Ink, LONGEST, Odd, Operation, Step, Wait, Words, draw};
use super::todo::Todo;
use crate::hardware::limits::time_limit;
use crate::hardware::rig::{Finding, Pair, Rig, expected, finish, retry, retry_while};
use crate::hardware::verdict::{Verdict, ensure, refused, text};

/// Bytes behind a payload that nobody may touch.
pub const GUARD: usize = 64;
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

    /// Sees to it that the message lies in the source when stream `s` rings.
    fn ink(&mut self, i: usize, s: usize) -> Verdict {
        let (to, len) = (self.source(i)?, self.steps[i].len);
        let bytes = || expected(seeds(i).0, len);
        match self.steps[i].ink {
            Ink::Kernel => {
                let (region, at) = (self.source_memory(i), self.places(i)[0]);
                let stream = &self.streams[s];
                self.rig.fill(stream, region, at, len, seeds(i).0)?;
            }
            Ink::Cpu => self.source_memory(i).write(self.places(i)[0], &bytes())?,
            Ink::Copy => self.copy(s, &to, &self.ink.span(i * SLOT, len)?)?,
            Ink::Words => self.list(s)?.todos.push(Todo::Bytes(to, bytes())),
            Ink::Handed(condition, wide) => {
                // In words, where that is possible: nothing but the fence before the token keeps
                // those in order.
                match (4..=256).contains(&len) && len.is_multiple_of(4) {
                    true => self.list(1 - s)?.todos.push(Todo::Bytes(to, bytes())),
                    false => self.copy(1 - s, &to, &self.ink.span(i * SLOT, len)?)?,
                }
                let value = match condition {
                    Condition::Nor => u64::MAX >> 1,
                    _ => 1,
                };
                let narrow = value as u32 & (u32::MAX >> 1);
                let (write, wait) = match wide {
                    true => {
                        let word = self.tokens.word64(8 * i)?;
                        (
                            Todo::Write64(word.clone(), value),
                            Todo::WaitValue64(word, condition, value),
                        )
                    }
                    false => {
                        let word = self.tokens.word32(8 * i)?;
                        (
                            Todo::Write32(word.clone(), narrow),
                            Todo::WaitValue32(word, condition, narrow),
                        )
                    }
                };
                self.list(1 - s)?.todos.push(write);
                self.list(s)?.todos.push(wait);
            }
        }
        Ok(())
    }

    // --- receives ----------------------------------------------------------------------------

    fn prepare_receive(&mut self, i: usize) -> gdsync::Result<ReceiveRequest> {
        let (to, at, len) = (1 - self.steps[i].from, self.places(i)[1], self.steps[i].len);
        let memory = &self.memory[to];
        let qp = &mut self.pair.qps[to];
        let Some(odd) = self.steps[i].odd else {
            return qp.prepare_receive(&[memory.sge(at as u64, len as u32)]);
        };
        let all = pieces(memory, at as u64, odd.cuts[1], len + GUARD);
        // Where there may be fewer segments, those left out have no bytes.
        let all = all.iter().copied().filter(|sge| sge.len > 0);
        let all: Vec<Sge<'_>> = all.collect();
        let whole = [memory.sge(at as u64, (len + GUARD) as u32)];
        match all.len() <= self.pair.recv_sges {
            true => qp.prepare_receive(&all),
            false => qp.prepare_receive(&whole),
        }
    }

    /// Posts receives of messages that come later, if there is room for them.
    fn receive_early(&mut self, i: usize) -> Verdict {
        let Some(odd) = self.steps[i].odd.filter(|odd| odd.early > 0) else {
            return Ok(());
        };
        let from = self.steps[i].from;
        let next = self.early[1 - from].back().map_or(i, |(last, _)| last + 1);
        let later = next..self.steps.len().min(i + 12);
        let later = later.filter(|k| self.steps[*k].from == from);
        let later = later.filter(|k| self.steps[*k].operation.takes_receive());
        let later: Vec<usize> = later.take(odd.early).collect();
        for k in later {
            match self.prepare_receive(k) {
                Ok(request) => {
                    self.flush()?;
                    self.post_by_cpu(1 - from, request)?;
                    self.early[1 - from].push_back((k, request));
                }
                Err(e) if e.kind() == Kind::QueueFull => break,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// The receive of a message, and whether it is posted.
    fn receive(&mut self, i: usize) -> Verdict<(ReceiveRequest, bool)> {
        let to = 1 - self.steps[i].from;
        let early = self.early[to].pop_front_if(|(k, _)| *k == i);
        while self.receives.len() >= self.ahead {
            self.look()?;
        }
        let request = match early {
            Some((_, request)) => request,
            None => self.prepare_in_turn(i)?,
        };
        let newest = self.steps[i].odd.is_some_and(|o| o.newest_aborted[1]);
        if newest
            && self.early[to].is_empty()
            && let Ok(newest) = self.prepare_receive(i)
        {
            self.pair.qps[to].abort_receive(newest)?;
        }
        self.receives.push_back((i, request));
        Ok((request, early.is_some()))
    }

    fn prepare_in_turn(&mut self, i: usize) -> Verdict<ReceiveRequest> {
        match self.prepare_receive(i) {
            Err(e) if e.kind() == Kind::QueueFull => self.flush()?,
            done => return Ok(done?),
        }
        // A stream that has not said yet that it has passed holds places for completions.
        let gpu = self.rig.gpu.clone();
        Ok(retry(&gpu, || self.prepare_receive(i))?)
    }

    fn post_receive(&mut self, i: usize, receive: ReceiveRequest, stream: usize) -> Verdict {
        let by_cpu = match self.steps[i].odd {
            Some(odd) => odd.by_cpu[1],
            None => self.settings.cpu_receives,
        };
        if by_cpu {
            self.flush()?;
            return self.post_by_cpu(1 - self.steps[i].from, receive);
        }
        self.list(stream)?.todos.push(Todo::Receive(receive));
        Ok(())
    }

    fn post_by_cpu(&mut self, to: usize, receive: ReceiveRequest) -> Verdict {
        let qp = &mut self.pair.qps[to];
        // Not before those of streams are there.
        retry_while(&self.rig.gpu, Kind::Busy, || qp.post_receive(receive))?;
        Ok(())
    }

    /// Waits for the oldest receive and looks at what it says.
    fn look(&mut self) -> Verdict {
        self.flush()?;
        let Some((i, request)) = self.receives.pop_front() else {
            return Ok(());
        };
        let (step, to) = (&self.steps[i], 1 - self.steps[i].from);
        let qp = &mut self.pair.qps[to];
        let said = match qp.wait(request, time_limit()) {
            Ok(()) => qp.received(request),
            Err(e) => Err(e),
        };
        let got = match said {
            // Later ones may have been prepared so early that the entry is used again.
            Err(e) if step.odd.is_some() && e.kind() == Kind::NoSuchRequest => return Ok(()),
            said => said?,
        };
        ensure((got.len as usize, got.imm) == (step.len, step.imm), || {
            format!(
                "message {i}: {got:?} instead of {} bytes and {:?}",
                step.len, step.imm
            )
        })
    }

    // --- sends -------------------------------------------------------------------------------

    fn prepare(&mut self, i: usize, signaled: bool) -> Verdict<SendRequest> {
        let step = &self.steps[i];
        let Some(odd) = step.odd else {
            let qp = &mut self.pair.qps[step.from];
            let hole = match step.hole {
                true => Some(qp.prepare_within(&Work::nop().signaled(), time_limit())?),
                false => None,
            };
            let send = self.attempt(i, signaled, true)?;
            if let Some(hole) = hole {
                self.pair.qps[step.from].abort(hole)?;
            }
            return Ok(send);
        };
        let hole = match step.hole {
            true => self.prepare_junk(step.from)?,
            false => None,
        };
        let mut send = self.attempt(i, signaled, false);
        if let Some(hole) = hole {
            // Behind the request, or, where there was no room for both, before it.
            self.abort(step.from, hole)?;
        }
        if matches!(&send, Err(e) if e.kind() == Kind::QueueFull) {
            self.flush()?;
            send = self.attempt(i, signaled, true);
        }
        let send = send?;
        if odd.newest_aborted[0]
            && let Some(newest) = self.prepare_junk(step.from)?
        {
            self.abort(step.from, newest)?;
        }
        self.sent.push((step.from, send));
        Ok(send)
    }

    /// A request that must never run; `None` if there is no room just now.
    fn prepare_junk(&mut self, from: usize) -> Verdict<Option<SendRequest>> {
        let there = self.memory[1 - from].remote().span(0, 64)?;
        let bytes = [JUNK; 64];
        let pieces = [&bytes[..]];
        match self.pair.qps[from].prepare(&Work::write_inline(&pieces, there).signaled()) {
            Err(e) if e.kind() == Kind::QueueFull => Ok(None),
            prepared => Ok(Some(prepared?)),
        }
    }

    fn abort(&mut self, from: usize, request: SendRequest) -> Verdict {
        let qp = &mut self.pair.qps[from];
        qp.abort(request)?;
        let status = match qp.poll(request) {
            Err(e) if e.kind() == Kind::NoSuchRequest => Some(Status::ABORTED),
            status => status?,
        };
        ensure(status == Some(Status::ABORTED), || format!("{status:?}"))?;
        refused(qp.post(request), Kind::NoSuchRequest, "aborted")?;
        Ok(())
    }

    fn attempt(&mut self, i: usize, signaled: bool, block: bool) -> gdsync::Result<SendRequest> {
        let step = &self.steps[i];
        let [source, received, written] = self.places(i);
        let words = 3 * self.slots() * SLOT;
        let qp = &mut self.pair.qps[step.from];
        let (memory, there) = (&self.memory[step.from], self.memory[1 - step.from].remote());
        let local = if step.operation.brings() {
            written
        } else {
            source
        };
        let odd = step.odd;
        let cuts = odd.map_or([step.len; 2], |odd| odd.cuts[0]);
        let [wrong, wrong_remote] = odd.map_or([false; 2], |odd| odd.patched);
        let all = pieces(memory, local as u64, cuts, step.len);
        let junk = [self.junk[step.from].sge(0, 1)];
        let sges: &[Sge<'_>] = match odd {
            _ if wrong => &junk,
            Some(_) if !step.operation.is_atomic() => &all,
            _ => &all[..1],
        };
        let bytes = match step.operation.is_inline() {
            true => expected(seeds(i).0, step.len),
            false => vec![0; step.len],
        };
        let inline = [&bytes[..cuts[0]], &bytes[cuts[0]..]];
        let span = |at: usize| match wrong_remote {
            true => Ok(RemoteSpan::new(1, 2)),
            false => there.span(at as u64, step.len as u64),
        };
        let word = |which: usize| there.span((words + 8 * which) as u64, 8);
        let work = match step.operation {
            Operation::Send => Work::send(sges),
            Operation::SendInline => Work::send_inline(&inline),
            Operation::WriteImm => Work::write(sges, span(received)?),
            Operation::Write => Work::write(sges, span(written)?),
            Operation::WriteInline => Work::write_inline(&inline, span(written)?),
            Operation::Read => Work::read(sges, span(source)?),
            Operation::FetchAdd(add) => Work::fetch_add(sges, word(0)?, add),
            Operation::CompareSwap(old, new) => Work::compare_swap(sges, word(1)?, old, new),
            Operation::Nop => Work::nop(),
        };
        let work = match step.imm {
            Some(imm) => work.with_imm(imm),
            None => work,
        };
        let work = if signaled { work.signaled() } else { work };
        let work = match odd.is_some_and(|odd| odd.fenced) {
            true => work.fenced(),
            false => work,
        };
        match block {
            true => qp.prepare_within(&work, time_limit()),
            false => qp.prepare(&work),
        }
    }

    /// What the stream has to put right in a request that was prepared with wrong fields.
    fn patches(&self, i: usize, odd: &Odd, request: SendRequest) -> Verdict<Vec<Todo>> {
        let (step, [source, received, written]) = (&self.steps[i], self.places(i));
        let qp = &self.pair.qps[step.from];
        let word32 = |field, value: u32| -> gdsync::Result<Todo> {
            Ok(Todo::Write32(qp.field32(request, field)?, value.to_be()))
        };
        let word64 = |field, value: u64| -> gdsync::Result<Todo> {
            Ok(Todo::Write64(qp.field64(request, field)?, value.to_be()))
        };
        let mut todos = Vec::new();
        if odd.patched[0] {
            let memory = &self.memory[step.from];
            let at = if step.operation.brings() {
                written
            } else {
                source
            };
            todos.push(word32(Field::Length(0), step.len as u32)?);
            todos.push(word64(
                Field::Address(0),
                memory.region().addr().0 + at as u64,
            )?);
            todos.push(word32(Field::Key(0), memory.lkey())?);
        }
        if odd.patched[1] {
            let at = match step.operation {
                Operation::Read => source,
                Operation::WriteImm => received,
                _ => written,
            };
            let there = self.memory[1 - step.from].remote();
            let there = there.span(at as u64, step.len as u64)?;
            todos.push(word64(Field::RemoteAddress, there.addr)?);
            todos.push(word32(Field::RemoteKey, there.rkey)?);
        }
        Ok(todos)
    }

    fn post(&mut self, i: usize, send: SendRequest, stream: usize) -> Verdict {
        let Some(odd) = self.steps[i].odd else {
            self.list(stream)?.todos.push(Todo::Send(send));
            return Ok(());
        };
        if odd.by_cpu[0] {
            self.flush()?;
            let qp = &mut self.pair.qps[self.steps[i].from];
            return Ok(qp.post_within(send, time_limit())?);
        }
        let patches = self.patches(i, &odd, send)?;
        let list = self.list(stream)?;
        list.todos.extend(patches);
        list.todos.push(Todo::Send(send));
        list.spoiled |= odd.spoiled;
        Ok(())
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

    // --- the end -----------------------------------------------------------------------------

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

    /// Compares what is there in the end with what the program says.
    fn judge(&mut self, words: &Words) -> Verdict {
        self.finding.clean("in the end")?;
        let hazards = self.settings.hazards.is_some();
        for (i, step) in self.steps.iter().enumerate() {
            let stride = if hazards { SLOT } else { SEEN };
            let mut want = match step.operation.is_atomic() {
                true => step.old.to_le_bytes().to_vec(),
                false => expected(seeds(i).0, step.len),
            };
            match hazards {
                true => want.resize(step.len + GUARD, FILL),
                false => want.truncate(SEEN),
            }
            let landing = self.landing(i);
            if landing.is_some() {
                let seen = read(&self.seen, i * stride, want.len())?;
                same(&seen, &want, || {
                    format!("message {i} as it was seen, {step:?}")
                })?;
            }
            if !hazards {
                continue;
            }
            // Whatever came twice, or late, lies on top; elsewhere nothing does.
            want.fill(TAKEN);
            want.resize(SLOT, FILL);
            let untouched = vec![FILL; SLOT];
            let [_, received, written] = self.places(i);
            for (side, at) in [(0, received), (0, written), (1, received), (1, written)] {
                let here = landing == Some((side, at));
                let want = if here { &want } else { &untouched };
                let now = read(self.memory[side].region(), at, SLOT)?;
                same(&now, want, || format!("message {i} in the end, {step:?}"))?;
            }
        }
        for (at, want) in words.iter().enumerate() {
            for (which, want) in want.iter().enumerate() {
                let place = 3 * self.slots() * SLOT + 8 * which;
                let got = read(self.memory[at].region(), place, 8)?;
                ensure(got == want.to_le_bytes(), || {
                    format!("word {which} at {at}: {got:02x?} instead of {want:#x}")
                })?;
            }
        }
        Ok(())
    }
}

fn read(region: &Region, at: usize, len: usize) -> gdsync::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    region.read(at, &mut bytes)?;
    Ok(bytes)
}

fn same(got: &[u8], want: &[u8], what: impl Fn() -> String) -> Verdict {
    match got.iter().zip(want).position(|(g, w)| g != w) {
        None => Ok(()),
        Some(at) => {
            let (what, g, w) = (what(), got[at], want[at]);
            Err(format!("{what}: byte {at} is {g:#04x} instead of {w:#04x}").into())
        }
    }
}

/// Three segments of a registration, some of which may be empty.
fn pieces(mr: &Mr, at: u64, cuts: [usize; 2], len: usize) -> [Sge<'_>; 3] {
    let [a, b] = cuts;
    let piece = |from: usize, to: usize| mr.sge(at + from as u64, (to - from) as u32);
    [piece(0, a), piece(a, b), piece(b, len)]
}
