//! One rank of a cell. It works in rounds: it posts its receives, fills and posts its sends,
//! completes the receives, then the sends. The poster writes a slot before the request is posted,
//! and the waiter overwrites it as soon as the request is complete. Both are the CPU, or streams on
//! which everything is enqueued rounds ahead. In the end every byte of every slot is compared.

mod judge;
mod post;

use std::time::Duration;

use gdsync::gpu::{Event, MemoryKind, Region, Span, Stream, Word64};
use mp::{Context, Done, Kind, Memory, Request, Slice};

use super::memory::{Buffer, Ink, POISON};
use super::plan::{By, Handling, Segments};
use super::setup::Setup;
use crate::rig::limits::time_limit;
use crate::rig::verdict::{Verdict, ensure, text};

/// The tag of the ranks' barrier.
const MEET: u32 = 0xb000_0000;

/// Bytes of the longest message that a stream writes into a room of the receiver by mapped memory.
const ROOM: usize = 256 << 10;

/// Requests that are prepared before the first of them is posted.
const BATCH: usize = 2;

/// The application's tag of this number.
fn tag(number: u32) -> u32 {
    match number {
        0 => 0,
        1 => u32::MAX,
        n => n.wrapping_mul(0x9e37_79b9) | 1,
    }
}

/// The messages to one rank under one tag.
#[derive(Debug)]
struct Channel {
    to: u32,
    number: u32,
}

/// The receives that are posted one after the other: from one rank, or any rank, under one tag.
#[derive(Debug)]
struct Line {
    from: Option<u32>,
    number: u32,
    /// Ranks that send.
    width: usize,
    /// Its slots in the memory of all slots.
    slots: std::ops::Range<usize>,
    /// Number of messages received, by rank.
    arrived: Vec<usize>,
}

/// A receive that was posted.
struct Taken {
    line: usize,
    /// Its slot in the memory of all slots.
    slot: usize,
    k: usize,
    landing: Segments,
    handling: Handling,
    /// Whether its message is truncated.
    too_long: bool,
    /// Its outcome, if the CPU has waited for it.
    done: Option<Done>,
    request: Option<Request>,
}

/// A send that was posted.
struct Sent {
    channel: usize,
    slot: usize,
    len: usize,
    handling: Handling,
    /// Whether its receive is too short.
    too_long: bool,
    ended: bool,
    request: Option<Request>,
}

/// Slots of one kind: their memory, and the events behind the streams' last uses.
struct Slots {
    buffer: Buffer,
    slot: usize,
    events: Vec<Option<Event>>,
}

impl Slots {
    fn memory(&self) -> &Memory {
        self.buffer.memory()
    }

    fn span(&self, slot: usize) -> gdsync::Result<Span> {
        self.memory().region().span(slot * self.slot, self.slot)
    }

    fn slices(&self, slot: usize, pieces: &[(usize, usize)]) -> Verdict<Vec<Slice>> {
        let slice = |(at, len): &(usize, usize)| self.memory().slice(slot * self.slot + at, *len);
        Ok(pieces.iter().map(slice).collect::<mp::Result<_>>()?)
    }
}

struct Player<'a> {
    setup: &'a Setup,
    ctx: &'a Context,
    streams: Vec<Stream>,
    ink: Ink,
    out: Slots,
    into: Slots,
    /// Copies of slots by streams, by round and slot.
    seen: Region,
    /// Length and offset of each slot of `out`.
    words: Vec<[Word64; 2]>,
    channels: Vec<Channel>,
    lines: Vec<Line>,
    rng: fastrand::Rng,
    /// Posted receives of later rounds.
    early: Vec<Taken>,
    /// By round, oldest first.
    taken: Vec<Vec<Taken>>,
    sent: Vec<Vec<Sent>>,
    /// Whether a message from or to this rank was truncated.
    truncated: bool,
}

/// Runs one rank to its end; returns whether a message from or to it was truncated.
///
/// # Errors
/// The first failure, with the rank and the round.
pub fn play(setup: &Setup, ctx: &Context) -> Verdict<bool> {
    let mut player = Player::new(setup, ctx)?;
    if setup.wild_ahead {
        player.early = player.post_receives(0..setup.messages, |line| line.from.is_none())?;
    }
    for round in 0..setup.rounds() {
        if let Err(failed) = player.round(round) {
            player.give_up();
            return Err(described(
                &failed,
                &format!("rank {}, round {round}", ctx.rank()),
            ));
        }
    }
    player
        .leave()
        .map_err(|e| described(&e, &format!("rank {}, in the end", ctx.rank())))
}

/// Closes a context. Where messages are truncated, dropped sends may fail as late as their
/// receivers match them: each call returns one failure.
///
/// # Errors
/// Any other failure; a truncation too, after more calls than a rank has messages.
pub fn close(ctx: &Context, limit: Duration, truncated: bool) -> mp::Result<()> {
    const CALLS: usize = 1000;
    let expected = |closed: &mp::Result<()>| {
        truncated && matches!(closed, Err(e) if e.kind() == Kind::Truncated)
    };
    let mut closed = ctx.close(limit);
    for _ in 1..CALLS {
        if !expected(&closed) {
            break;
        }
        closed = ctx.close(limit);
    }
    closed
}

fn described(failed: &libtest_mimic::Failed, what: &str) -> libtest_mimic::Failed {
    let why = text(failed);
    format!("{what}: {why}").into()
}

impl<'a> Player<'a> {
    fn new(setup: &'a Setup, ctx: &'a Context) -> Verdict<Player<'a>> {
        let (me, ranks) = (ctx.rank(), ctx.size());
        let [to, from] = setup.peers(me);
        let numbers = || 0..setup.tags;
        let channel = |to: &u32| {
            numbers()
                .map(|number| Channel { to: *to, number })
                .collect()
        };
        let channels: Vec<Channel> = to.iter().flat_map(|to| -> Vec<_> { channel(to) }).collect();
        let wild = numbers().filter(|n| *n < setup.wild && !from.is_empty());
        let named = from.iter().flat_map(|from| {
            let numbers = setup.wild..setup.tags;
            numbers.map(|number| (Some(*from), number, 1))
        });
        let mut receives = 0;
        let line = |(from, number, width): (Option<u32>, u32, usize)| {
            let messages = match from {
                None if setup.wild_ahead => setup.messages,
                _ => setup.window(),
            };
            let first = receives;
            receives += messages * width;
            Line {
                from,
                number,
                width,
                slots: first..receives,
                arrived: vec![0; ranks as usize],
            }
        };
        let wild = wild.map(|number| (None, number, from.len()));
        let lines: Vec<Line> = wild.chain(named).map(line).collect();
        let slot = setup.slot();
        let slots = |kind, count: usize| -> Verdict<Slots> {
            Ok(Slots {
                buffer: Buffer::new(ctx, kind, count.max(1) * slot)?,
                slot,
                events: vec![None; count],
            })
        };
        let sends = channels.len() * setup.window() * (1 + setup.lag);
        let words = ctx.gpu().alloc(MemoryKind::Pinned, sends.max(1) * 16)?;
        let word = |i: usize| -> gdsync::Result<[Word64; 2]> {
            Ok([words.word64(i * 16)?, words.word64(i * 16 + 8)?])
        };
        let streams = (0..setup.streams).map(|_| ctx.gpu().stream());
        Ok(Player {
            setup,
            ctx,
            streams: streams.collect::<gdsync::Result<_>>()?,
            ink: Ink::new(ctx.gpu(), slot)?,
            out: slots(setup.from, sends)?,
            into: slots(setup.into, receives)?,
            seen: ctx
                .gpu()
                .alloc(MemoryKind::Pinned, setup.ahead() * receives.max(1) * slot)?,
            words: (0..sends).map(word).collect::<gdsync::Result<_>>()?,
            channels,
            lines,
            rng: fastrand::Rng::with_seed(setup.seed ^ u64::from(me)),
            early: Vec::new(),
            taken: Vec::new(),
            sent: Vec::new(),
            truncated: false,
        })
    }

    fn round(&mut self, round: usize) -> Verdict {
        let due = self.numbers(round);
        let ahead = self.setup.wild_ahead;
        let mut taken = self.post_receives(due.clone(), |line| !ahead || line.from.is_some())?;
        let lines = &self.lines;
        let due = |taken: &mut Taken| due.contains(&(taken.k / lines[taken.line].width));
        taken.extend(self.early.extract_if(.., due));
        self.taken.push(taken);
        self.post_sends(round)?;
        self.end_receives()?;
        for i in 0..self.sent.len().saturating_sub(self.setup.lag) {
            self.end_sends(i)?;
        }
        if self.taken.len() == self.setup.ahead() {
            self.judge()?;
        }
        match self.setup.meets() {
            true => self.meet(),
            false => Ok(()),
        }
    }

    /// Keeps memory of the application that streams may still copy from and to.
    fn give_up(self) {
        std::mem::forget((self.out.buffer, self.into.buffer));
    }

    fn settle(&mut self) -> Verdict {
        for i in 0..self.sent.len() {
            self.end_sends(i)?;
        }
        self.judge()
    }

    fn leave(mut self) -> Verdict<bool> {
        if let Err(failed) = self.settle() {
            self.give_up();
            return Err(failed);
        }
        let Player {
            ctx,
            out,
            into,
            streams,
            truncated,
            ..
        } = self;
        let error = ctx.error();
        ensure(truncated || error.is_none(), || {
            format!("the context reports {error:?}")
        })?;
        let stuck = ctx.stuck();
        ensure(stuck.is_empty(), || {
            format!("{stuck:?} after all has ended")
        })?;
        close(ctx, time_limit(), truncated)?;
        drop(streams);
        out.buffer.give_back(ctx)?;
        into.buffer.give_back(ctx)?;
        Ok(truncated)
    }

    /// The messages of each channel in a round.
    fn numbers(&self, round: usize) -> std::ops::Range<usize> {
        let first = round * self.setup.window();
        first..self.setup.messages.min(first + self.setup.window())
    }

    /// Retries while a queue is full.
    fn again<T>(&self, mut attempt: impl FnMut() -> gdsync::Result<T>) -> Verdict<T> {
        Ok(self.try_again(&mut || attempt().map_err(mp::Error::from))?)
    }

    fn try_again<T>(&self, attempt: &mut dyn FnMut() -> mp::Result<T>) -> mp::Result<T> {
        let full = |r: &mp::Result<T>| matches!(r, Err(e) if e.kind() == mp::Kind::QueueFull);
        let mut result = attempt();
        let host = self.ctx.gpu().host();
        let deadline = host.now() + time_limit();
        host.wait_until(Some(deadline), &mut || {
            if full(&result) {
                self.ctx.progress();
                result = attempt();
            }
            !full(&result)
        });
        result
    }

    fn copy(&self, stream: usize, to: &Span, from: &Span) -> Verdict {
        self.again(|| self.streams[stream].copy(to, from))
    }

    /// Orders the poster of a slot behind the previous user of the slot.
    fn follow(&self, slots: &Slots, slot: usize, by: By) -> Verdict {
        match (&slots.events[slot], by.stream()) {
            (Some(event), Some(stream)) => self.again(|| self.streams[stream].wait_event(event)),
            // The CPU has waited for the streams since.
            _ => Ok(()),
        }
    }

    /// Records an event behind a stream's last use of a slot, if its poster is not that stream.
    fn leave_slot(&self, handling: Handling) -> Verdict<Option<Event>> {
        match handling.ends.stream() {
            Some(stream) if handling.posts.stream() != Some(stream) => {
                Ok(Some(self.again(|| self.streams[stream].record())?))
            }
            _ => Ok(None),
        }
    }

    /// Makes a stream wait, which may be refused for a request that is known to have failed.
    fn wait_on(&self, request: &Request, stream: usize, too_long: bool) -> Verdict {
        match self.try_again(&mut || request.wait_on(&self.streams[stream])) {
            Err(e) if too_long && e.kind() == Kind::Truncated => Ok(()),
            waited => Ok(waited?),
        }
    }

    /// The outcome of a request; `None` if its message was truncated.
    fn outcome(&self, done: mp::Result<Done>, too_long: bool) -> Verdict<Option<Done>> {
        match done {
            Err(e) if too_long && e.kind() == Kind::Truncated => Ok(None),
            done => Ok(Some(done?)),
        }
    }

    /// Completes the receives of the newest round, in any order.
    fn end_receives(&mut self) -> Verdict {
        let Some(mut taken) = self.taken.pop() else {
            return Ok(());
        };
        let round = self.taken.len();
        let mut order: Vec<usize> = (0..taken.len()).collect();
        self.rng.shuffle(&mut order);
        for i in &order {
            let Taken {
                line,
                slot,
                handling,
                too_long,
                request,
                ..
            } = &mut taken[*i];
            let (Some(stream), Some(waited)) = (handling.ends.stream(), &*request) else {
                continue;
            };
            self.wait_on(waited, stream, *too_long)?;
            let slots = self.into.events.len();
            let at = (round % self.setup.ahead() * slots + *slot) * self.setup.slot();
            let seen = self.seen.span(at, self.setup.slot())?;
            self.copy(stream, &seen, &self.into.span(*slot)?)?;
            self.into.events[*slot] = self.leave_slot(*handling)?;
            // The handle may be dropped.
            if self.lines[*line].from.is_some() && self.rng.u8(0..4) == 0 {
                *request = None;
            }
        }
        let by_cpu = |i: &usize| taken[*i].handling.ends == By::Cpu;
        order.retain(by_cpu);
        let ended = self.end_by_cpu(&order, |i| taken[i].request.as_ref())?;
        for (i, done) in ended {
            taken[i].done = self.outcome(done, taken[i].too_long)?;
            let Taken { slot, .. } = taken[i];
            let mut got = vec![0; self.setup.slot()];
            self.into
                .memory()
                .read(slot * self.setup.slot(), &mut got)?;
            // Which message a receive from any rank has taken is known only after all earlier ones
            // are known: it is compared at the end.
            if self.lines[taken[i].line].from.is_some() {
                self.compare(&taken[i], &got)?;
            } else {
                self.seen.write(slot * self.setup.slot(), &got)?;
            }
        }
        self.taken.push(taken);
        Ok(())
    }

    /// Waits for requests by one of the available calls.
    fn end_by_cpu<'r>(
        &mut self,
        order: &[usize],
        request: impl Fn(usize) -> Option<&'r Request>,
    ) -> Verdict<Vec<(usize, mp::Result<Done>)>> {
        let mut ended = Vec::new();
        let poll = self.rng.bool();
        for i in order {
            let Some(request) = request(*i) else { continue };
            let done = match poll {
                true => self.poll(request)?,
                false => request.wait(time_limit()),
            };
            ended.push((*i, done));
        }
        Ok(ended)
    }

    fn poll(&self, request: &Request) -> Verdict<mp::Result<Done>> {
        let mut answer = Ok(None);
        let host = self.ctx.gpu().host();
        host.wait_until(Some(host.now() + time_limit()), &mut || {
            if self.setup.manual {
                self.ctx.progress();
            }
            answer = request.test();
            !matches!(answer, Ok(None))
        });
        let late = || format!("{request:?} has not ended within {:?}", time_limit());
        Ok(match answer.transpose() {
            Some(ended) => ended,
            None => return Err(late().into()),
        })
    }

    /// Completes the sends of a round, in any order, and reuses their memory at once.
    fn end_sends(&mut self, which: usize) -> Verdict {
        let mut sent = std::mem::take(&mut self.sent[which]);
        let mut order: Vec<usize> = (0..sent.len()).filter(|i| !sent[*i].ended).collect();
        self.rng.shuffle(&mut order);
        for i in &order {
            let Sent {
                slot,
                handling,
                too_long,
                request,
                ended,
                ..
            } = &mut sent[*i];
            let (Some(stream), Some(waited)) = (handling.ends.stream(), &*request) else {
                continue;
            };
            self.wait_on(waited, stream, *too_long)?;
            let poison = self.ink.poison.span(0, self.setup.slot())?;
            self.copy(stream, &self.out.span(*slot)?, &poison)?;
            self.write_words(stream, *slot, [u64::MAX; 2])?;
            self.out.events[*slot] = self.leave_slot(*handling)?;
            *ended = true;
            if self.rng.u8(0..4) == 0 {
                *request = None;
            }
        }
        order.retain(|i| sent[*i].handling.ends == By::Cpu);
        let ended = self.end_by_cpu(&order, |i| sent[i].request.as_ref())?;
        for (i, done) in ended {
            sent[i].ended = true;
            self.check_sent(&sent[i], done)?;
            sent[i].request = None;
            let at = sent[i].slot * self.setup.slot();
            self.out
                .memory()
                .write(at, &vec![POISON; self.setup.slot()])?;
        }
        self.sent[which] = sent;
        Ok(())
    }

    fn check_sent(&self, sent: &Sent, done: mp::Result<Done>) -> Verdict {
        let Channel { to, number } = self.channels[sent.channel];
        let Some(done) = self.outcome(done, sent.too_long)? else {
            return Ok(());
        };
        // An eager send has ended before the receiver detects the truncation. By mapped memory, streams also
        // write longer messages into rooms of the receiver.
        let path = self.ctx.path(to).map(|(path, _)| path);
        let roomy = path == Some(mp::Path::Ipc) && sent.len <= ROOM;
        ensure(
            !sent.too_long || sent.len <= self.setup.eager || roomy,
            || format!("a send that is too long ended with {done:?}"),
        )?;
        let want = (to, tag(number), sent.len as u64);
        ensure((done.peer, done.tag, done.len) == want, || {
            format!("a send ended with {done:?} instead of {want:?}")
        })
    }

    /// Waits until every rank has reached this point.
    fn meet(&self) -> Verdict {
        let (me, ranks) = (self.ctx.rank(), self.ctx.size());
        let memory = self.ctx.alloc(MemoryKind::Pinned, 64)?;
        let nothing = memory.slice(0, 0)?;
        let mut requests = Vec::new();
        for peer in (0..ranks).filter(|peer| *peer != me) {
            requests.push(self.ctx.irecv(peer, MEET, &nothing)?);
            requests.push(self.ctx.isend(peer, MEET, &nothing)?);
        }
        mp::wait_all(&requests, time_limit())?;
        Ok(())
    }
}
