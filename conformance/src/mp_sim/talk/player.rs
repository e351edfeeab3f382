//! Runs one rank's part of a program of messages, and checks what it finds.
//!
//! Memory changes hands at every step: a source is written just before its send and written over
//! just behind the wait for it; a place to receive into is written just before its receive, and
//! what a stream sees there just behind its wait is copied away, and then written over. Whatever
//! moves too early or too late, or twice, shows.

use std::rc::Rc;

use gdsync::gpu::{MemoryKind, Region, Span, Stream, Word64};
use gdsync::rdma::{Descriptor, post_on};
use mp::{Context, Kind, Memory, RecvOp, Request, Result, SendOp, SizeSource, Slice, Source};

use super::draw::{Message, Plan, Post, Side, WILD, Wait};
use crate::mp_sim::job::{Seat, process};
use crate::oracle::{FILL, JUNK, TAKEN, message};
use crate::world::{LIMIT, Rank};

/// Bytes behind each place that nobody may touch.
const GUARD: usize = 16;
/// What a place holds before its receive.
const GAP: u8 = 0xa7;

/// One rank's part.
pub struct Player<'a> {
    rank: &'a Rank,
    ctx: &'a Context,
    plan: Rc<Plan>,
    streams: [Stream; 2],
    /// Where messages land, what is sent, and where both lie, by message.
    landing: Memory,
    source: Memory,
    places: Vec<usize>,
    sources: Vec<usize>,
    /// What is copied into the source.
    ink: Region,
    /// What was seen behind waits.
    seen: Region,
    /// Length and offset of each message.
    words: Region,
    /// Receives and sends that are to be waited for: message, due, request.
    receives: Vec<(usize, usize, Request)>,
    sends: Vec<(usize, usize, Request)>,
    /// Requests that were waited for, by message.
    received: Vec<(usize, Request)>,
    sent: Vec<(usize, Request)>,
    /// Receives from anybody, in the order in which they were posted.
    wild: Vec<(usize, Request)>,
}

fn offsets(sizes: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut at = 0;
    let mut offsets: Vec<usize> = sizes
        .map(|size| {
            at += size;
            at - size
        })
        .collect();
    offsets.push(at);
    offsets
}

impl<'a> Player<'a> {
    /// Allocates everything.
    pub fn new(rank: &'a Rank, seat: &'a Seat, plan: Rc<Plan>) -> Player<'a> {
        let (me, ctx) = (rank.me as u32, &seat.ctx);
        let gpu = ctx.gpu();
        let places = offsets(plan.messages.iter().map(|m| match m.to == me {
            true => m.recv.room.max(m.len) + GUARD,
            false => 0,
        }));
        let sources = offsets(plan.messages.iter().map(|m| match m.from == me {
            true => m.send.room,
            false => 0,
        }));
        let len = |offsets: &[usize]| offsets[plan.messages.len()].max(1);
        let [landing, source] = plan.memory[rank.me];
        let pinned = |len| gpu.alloc(MemoryKind::Pinned, len).unwrap();
        let landing = ctx.alloc(landing, len(&places)).unwrap();
        landing.write(0, &vec![FILL; len(&places)]).unwrap();
        let player = Player {
            rank,
            ctx,
            streams: [gpu.stream().unwrap(), gpu.stream().unwrap()],
            landing,
            source: ctx.alloc(source, len(&sources)).unwrap(),
            ink: pinned(len(&sources)),
            seen: pinned(len(&places)),
            words: pinned(16 * plan.messages.len()),
            places,
            sources,
            plan,
            receives: Vec::new(),
            sends: Vec::new(),
            received: Vec::new(),
            sent: Vec::new(),
            wild: Vec::new(),
        };
        player.schedule_hiccups(seat);
        player
    }

    fn schedule_hiccups(&self, seat: &Seat) {
        let names = process(self.rank, &seat.place);
        for hiccup in self.plan.hiccups.iter().filter(|h| h.rank == self.rank.me) {
            let name = &names[hiccup.victim];
            self.rank.pause(name, hiccup.after, hiccup.lasts);
        }
    }

    /// Goes through all messages, and checks.
    pub fn play(mut self) {
        let plan = Rc::clone(&self.plan);
        let me = self.ctx.rank();
        self.receive_from_anybody();
        for (i, m) in plan.messages.iter().enumerate() {
            if m.to == me {
                self.receive(i, m);
            }
            self.take(|k, due| due <= i && k < i);
            if m.from == me {
                self.send(i, m);
            }
            self.take(|_, due| due <= i);
            self.settle(|_, due| due <= i);
        }
        self.take(|_, _| true);
        self.settle(|_, _| true);
        for (s, stream) in self.streams.iter().enumerate() {
            let idle = stream.synchronize(LIMIT).unwrap();
            assert!(idle, "stream {s} hangs: {:?}", self.ctx.stuck());
        }
        self.check_outcomes();
        self.check_bytes();
    }

    // --- receives ----------------------------------------------------------------------------

    fn place(&self, i: usize) -> Span {
        let (from, to) = (self.places[i], self.places[i + 1]);
        self.landing.region().span(from, to - from).unwrap()
    }

    fn recv<'s>(&'s self, m: &Message, from: Source, pieces: &'s [Slice]) -> RecvOp<'s> {
        let recv = RecvOp::new(from, m.tag, pieces);
        match m.recv.post {
            Post::Cpu => recv,
            Post::Stream(s) => recv.on(&self.streams[s]),
            Post::Proxy(s) => recv.by_proxy(&self.streams[s]),
        }
    }

    /// Posts all receives from anybody: whoever comes first finds one.
    fn receive_from_anybody(&mut self) {
        let plan = Rc::clone(&self.plan);
        let me = self.ctx.rank();
        let mine = |m: &Message| m.to == me && m.tag == WILD;
        for (i, m) in plan.messages.iter().enumerate().filter(|(_, m)| mine(m)) {
            self.blank(i, m.recv.post, GAP);
            let pieces = self.pieces(&self.landing, self.places[i], &m.recv);
            let request = self
                .ctx
                .post_recv(&self.recv(m, Source::Any, &pieces))
                .unwrap();
            self.wild.push((i, request));
        }
    }

    fn receive(&mut self, i: usize, m: &Message) {
        self.take_overdue(i, m);
        if m.tag == WILD {
            let (k, request) = self.wild.remove(0);
            assert_eq!(k, i, "receives from anybody are waited for in their order");
            self.receives.push((i, i + m.recv.late, request));
            return;
        }

        self.blank(i, m.recv.post, GAP);
        let pieces = self.pieces(&self.landing, self.places[i], &m.recv);
        let recv = self.recv(m, Source::Rank(m.from), &pieces);
        if m.recv.false_start {
            let request = self.ctx.prepare_recv(&recv).unwrap();
            request.cancel().unwrap();
            assert_eq!(request.test().unwrap_err().kind(), Kind::Cancelled);
        }
        let request = match m.recv.in_two {
            true => {
                let request = self.ctx.prepare_recv(&recv).unwrap();
                request.post().unwrap();
                request
            }
            false => self.ctx.post_recv(&recv).unwrap(),
        };
        self.receives.push((i, i + m.recv.late, request));
    }

    /// Waits for receives before message `i` of the same channel: a sender may count on half the
    /// slots, and the one that is waited for. Receives from anybody are counted as one channel.
    fn take_overdue(&mut self, i: usize, m: &Message) {
        let alike = |o: &Message| {
            let from = o.from == m.from || m.tag == WILD;
            from && (o.to, o.tag) == (m.to, m.tag)
        };
        let later = |k: usize| self.plan.messages[k..i].iter().filter(|o| alike(o)).count();
        let open = self.receives.iter().map(|r| r.0);
        let overdue: Vec<usize> = open
            .filter(|k| alike(&self.plan.messages[*k]))
            .filter(|k| later(*k) > self.plan.settings.depth as usize / 2)
            .collect();
        self.take(|k, _| overdue.contains(&k));
    }

    /// Waits for those receives that `which` says, by message and when they are due.
    fn take(&mut self, which: impl Fn(usize, usize) -> bool) {
        let mut at = 0;
        while let Some((k, due, _)) = self.receives.get(at) {
            if !which(*k, *due) {
                at += 1;
                continue;
            }
            let (k, _, request) = self.receives.remove(at);
            match self.plan.messages[k].recv.wait {
                Wait::Stream(s) => {
                    self.waited_on(k, request.wait_on(&self.streams[s]), request.test());
                    self.streams[s]
                        .copy(&self.seen_at(k), &self.place(k))
                        .unwrap();
                    self.blank(k, Post::Stream(s), TAKEN);
                }
                _ => {
                    self.outcome(k, request.wait(LIMIT).map(|done| done.len));
                    let mut bytes = vec![0; self.places[k + 1] - self.places[k]];
                    self.landing.read(self.places[k], &mut bytes).unwrap();
                    self.seen.write(self.places[k], &bytes).unwrap();
                    self.blank(k, Post::Cpu, TAKEN);
                }
            }
            self.received.push((k, request));
        }
    }

    fn seen_at(&self, i: usize) -> Span {
        let (from, to) = (self.places[i], self.places[i + 1]);
        self.seen.span(from, to - from).unwrap()
    }

    /// Writes over a place, by who will receive there or has.
    fn blank(&self, i: usize, by: Post, byte: u8) {
        let (from, to) = (self.places[i], self.places[i + 1]);
        match by {
            Post::Cpu => self.landing.write(from, &vec![byte; to - from]).unwrap(),
            Post::Stream(s) | Post::Proxy(s) => self.fill(s, &self.place(i), byte),
        }
    }

    fn fill(&self, s: usize, span: &Span, byte: u8) {
        let stream = self.streams[s].as_soft().expect("a soft stream");
        let addr = softgpu::DevAddr::from_raw(span.addr().0);
        stream.fill(addr, byte, span.len()).unwrap();
    }

    // --- sends -------------------------------------------------------------------------------

    fn pieces(&self, memory: &Memory, at: usize, side: &Side) -> Vec<Slice> {
        let [a, b] = match side.cuts {
            None => return vec![memory.slice(at, side.room).unwrap()],
            Some(cuts) => cuts,
        };
        let piece = |from: usize, to: usize| memory.slice(at + from, to - from).unwrap();
        vec![piece(0, a), piece(a, b), piece(b, side.room)]
    }

    /// What lies in the sender's memory.
    fn ink(i: usize, m: &Message) -> Vec<u8> {
        let mut bytes = vec![JUNK; m.send.room];
        bytes[m.by_word.unwrap_or(0)..][..m.len].copy_from_slice(&message(i, m.len));
        bytes
    }

    fn word(&self, i: usize, which: usize) -> Word64 {
        self.words.word64(16 * i + 8 * which).unwrap()
    }

    fn send(&mut self, i: usize, m: &Message) {
        let at = self.sources[i];
        let ink = Self::ink(i, m);
        let words = [self.word(i, 0), self.word(i, 1)];
        let values = [m.len as u64, m.by_word.unwrap_or(0) as u64];
        match m.send.post {
            Post::Cpu => {
                self.source.write(at, &ink).unwrap();
                words
                    .iter()
                    .zip(values)
                    .for_each(|(word, value)| word.store(value).unwrap());
            }
            Post::Stream(s) | Post::Proxy(s) => {
                let stream = &self.streams[s];
                if !ink.is_empty() {
                    self.ink.write(at, &ink).unwrap();
                    let span = |region: &Region| region.span(at, ink.len()).unwrap();
                    stream
                        .copy(&span(self.source.region()), &span(&self.ink))
                        .unwrap();
                }
                for (word, value) in words.iter().zip(values) {
                    let list = [Descriptor::WriteValue64 { word, value }];
                    post_on(stream, &mut [], &list).unwrap();
                }
            }
        }
        let pieces = self.pieces(&self.source, at, &m.send);
        let send = SendOp::new(m.to, m.tag, &pieces);
        let send = match m.send.post {
            Post::Cpu => send,
            Post::Stream(s) => send.on(&self.streams[s]),
            Post::Proxy(s) => send.by_proxy(&self.streams[s]),
        };
        let send = match m.by_word {
            Some(_) => send.size(SizeSource::Word {
                len: &words[0],
                offset: Some(&words[1]),
            }),
            None => send,
        };
        if m.send.false_start {
            let request = self.ctx.prepare_send(&send).unwrap();
            request.cancel().unwrap();
            assert_eq!(request.test().unwrap_err().kind(), Kind::Cancelled);
        }
        let request = match m.send.in_two {
            true => {
                let request = self.ctx.prepare_send(&send).unwrap();
                request.post().unwrap();
                request
            }
            false => self.ctx.post_send(&send).unwrap(),
        };
        if m.send.wait != Wait::Nobody {
            self.sends.push((i, i + m.send.late, request));
        }
    }

    /// Waits for those sends that `which` says.
    fn settle(&mut self, which: impl Fn(usize, usize) -> bool) {
        let mut at = 0;
        while let Some((k, due, _)) = self.sends.get(at) {
            if !which(*k, *due) {
                at += 1;
                continue;
            }
            let (k, _, request) = self.sends.remove(at);
            let (from, len) = (self.sources[k], self.plan.messages[k].send.room);
            match self.plan.messages[k].send.wait {
                Wait::Stream(s) => {
                    self.waited_on(k, request.wait_on(&self.streams[s]), request.test());
                    if len > 0 {
                        let span = self.source.region().span(from, len).unwrap();
                        self.fill(s, &span, JUNK);
                    }
                }
                _ => {
                    self.outcome(k, request.wait(LIMIT).map(|done| done.len));
                    self.source.write(from, &vec![JUNK; len]).unwrap();
                }
            }
            self.sent.push((k, request));
        }
    }

    // --- what was found ----------------------------------------------------------------------

    /// A stream may be told that a request failed before it was asked to wait for it.
    fn waited_on(&self, k: usize, answer: Result<()>, state: Result<Option<mp::Done>>) {
        if let Err(e) = answer {
            let known = state.expect_err("a wait that is refused is one for a failure");
            assert_eq!(e.kind(), known.kind(), "message {k}: {e:?}");
            self.outcome(k, Err(e));
        }
    }

    /// How a request ended that was for message `k`, or a receive from anybody.
    fn outcome(&self, k: usize, outcome: Result<u64>) {
        let m = &self.plan.messages[k];
        let wild = m.tag == WILD && m.to == self.ctx.rank();
        match outcome {
            Ok(len) if !m.is_too_long() => {
                // A stream tells the length that it found to the receiver alone.
                let known = len == m.len as u64 || m.by_word.is_some() && len == m.send.room as u64;
                assert!(wild || known, "{len} bytes of message {k}: {m:?}");
            }
            Err(e) => {
                assert!(m.is_too_long(), "message {k}: {e:?}, {m:?}");
                assert_eq!(e.kind(), Kind::Truncated, "message {k}: {e:?}, {m:?}");
            }
            Ok(_) => {
                // A sender may know later; only what it sent eagerly has ended then.
                let eager = m.len <= self.plan.settings.eager;
                let sender = m.from == self.ctx.rank();
                assert!(eager && sender, "message {k} was too long: {m:?}");
            }
        }
    }

    fn check_outcomes(&mut self) {
        let me = self.ctx.rank();
        let mut received = std::mem::take(&mut self.received);
        for (k, request) in received.iter().chain(&self.sent) {
            self.outcome(*k, request.wait(LIMIT).map(|done| done.len));
        }
        let concerns = |m: &Message| (m.to == me || m.from == me) && m.is_too_long();
        if !self.plan.messages.iter().any(concerns) {
            assert_eq!(self.ctx.error(), None, "nothing failed");
        }
        assert_eq!(self.ctx.stuck(), [], "no stream stands");
        // Messages from one rank come in their order, whoever takes them.
        let mut came = vec![0; self.plan.ranks as usize];
        received.sort_by_key(|(k, _)| *k);
        received.retain(|(k, _)| self.plan.messages[*k].tag == WILD);
        for (k, request) in &received {
            let Ok(done) = request.wait(LIMIT) else {
                continue;
            };
            let from = done.source();
            let sent = self.plan.messages.iter().enumerate();
            let mut sent = sent.filter(|(_, m)| (m.from, m.to, m.tag) == (from, me, WILD));
            let (i, m) = sent
                .nth(came[from as usize])
                .expect("no more than were sent");
            came[from as usize] += 1;
            assert_eq!(done.len, m.len as u64, "message {i} in receive {k}");
            self.check_place(*k, Some((i, m)));
        }
    }

    fn check_bytes(&self) {
        let me = self.ctx.rank();
        for (i, m) in self.plan.messages.iter().enumerate() {
            if m.to == me && m.tag != WILD {
                self.check_place(i, (!m.is_too_long()).then_some((i, m)));
            }
        }
    }

    /// What was seen in a place behind the wait is the message, and nothing was written there
    /// since.
    fn check_place(&self, k: usize, came: Option<(usize, &Message)>) {
        let (from, to) = (self.places[k], self.places[k + 1]);
        let mut seen = vec![0; to - from];
        self.seen.read(from, &mut seen).unwrap();
        let room = self.plan.messages[k].recv.room;
        if let Some((i, m)) = came {
            let mut want = message(i, m.len);
            want.resize(seen.len(), GAP);
            same(&seen, &want, &|| {
                format!("message {i}, {m:?}, in receive {k} as it was seen")
            });
        } else {
            let want = vec![GAP; seen.len() - room];
            same(&seen[room..], &want, &|| {
                format!("behind the place of message {k}")
            });
        }
        let mut now = vec![0; to - from];
        self.landing.read(from, &mut now).unwrap();
        let want = vec![TAKEN; now.len()];
        same(&now, &want, &|| {
            format!("the place of receive {k} in the end")
        });
    }
}

fn same(got: &[u8], want: &[u8], what: &dyn Fn() -> String) {
    if let Some(at) = got.iter().zip(want).position(|(g, w)| g != w) {
        let (g, w) = (got[at], want[at]);
        panic!("{}: byte {at} is {g:#04x} instead of {w:#04x}", what());
    }
}
