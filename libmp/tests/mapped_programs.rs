//! Random programs of two ranks by mapped memory: sends and receives by the CPU and by streams, prepared, in
//! calls for several, cancelled (dropped before they are posted), with length words, of one piece or two, too
//! long for their receive, from any rank; waited for by the CPU, by streams, by one call for several. Every
//! payload and the bytes around it are compared.
#[path = "common/sim.rs"]
mod sim;

use std::collections::BTreeMap;
use std::mem::take;
use std::ops::Range;

use fastrand::Rng;
use gdsync::gpu::soft::{SoftOptions, Weak};
use gdsync::gpu::{MemoryKind, Stream};
use mp::{
    Builder, Context, Done, Kind, Memory, PathChoice, Progress, RecvOp, Request, SendOp,
    SizeSource, Slice, Source,
};
use sim::{LIMIT, Rank, millis, play, secs};

const LENS: [usize; 14] = [
    0, 1, 8, 64, 65, 300, 4096, 4097, 6143, 6144, 6145, 7000, 20_000, 300_000,
];
/// First numbers of the messages: some are just before a field of a word wraps.
const STARTS: [u64; 6] = [
    0,
    32_760,
    65_530,
    (1 << 31) - 3,
    (1 << 32) - 5,
    (1 << 32) + (1 << 16) - 4,
];
const ROUNDS: usize = 14;
const STREAMS: usize = 3;
const TAGS: u32 = 3;
/// The tag of the messages that are received from any rank. The first rounds name the rank for them, too.
const ANY: u32 = 99;
/// Value of the bytes that no message writes, and how many are around a payload.
const GUARD: u8 = 0xee;
const GUARDS: usize = 16;
/// The two ends of a message.
const SEND: usize = 0;
const RECV: usize = 1;

#[derive(Clone, Copy, Default)]
struct Options {
    /// Stores of the GPU become visible late and in another order.
    weak: bool,
    /// Few streams may wait at a time: calls for others are refused, and the CPU posts or waits instead.
    few: bool,
    /// Some messages are zero-SM messages, under the same tags.
    zero_sm: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Posted,
    Prepared,
    /// Prepared, and dropped before it is posted: the other end fails.
    Cancelled,
}

/// A send or a receive, as drawn.
#[derive(Clone, Copy, Debug)]
struct End {
    how: How,
    /// The stream that posts it. `None`: the CPU.
    by: Option<usize>,
    /// In two pieces.
    split: bool,
    /// The request is dropped before it has ended.
    dropped: bool,
}

/// A message, as drawn.
#[derive(Clone, Copy, Debug)]
struct Message {
    tag: u32,
    len: usize,
    /// The length of the send's memory. The length of the message is in a word then.
    most: Option<usize>,
    /// The length of the receive's memory.
    room: usize,
    ends: [End; 2],
    /// The stream that waits for the receive. `None`: the CPU.
    waits: Option<usize>,
    /// Received from any rank.
    any: bool,
    zero_sm: bool,
}

impl Message {
    /// `last`: no message follows under the tag in the round. It is not cancelled: the number of a request
    /// that is dropped before any other of its tag follows is free again, and the other end waits for the
    /// next message instead.
    fn draw(rng: &mut Rng, tag: u32, last: bool, any: bool, options: Options) -> Message {
        let mut len = LENS[rng.usize(0..LENS.len())];
        if len > 100_000 && rng.u8(0..4) > 0 {
            len = rng.usize(0..9000);
        }
        let top = len.max(20_000) + 8;
        let most = (rng.u8(0..8) == 0).then(|| rng.usize(len..top));
        let room = match rng.u8(0..24) {
            0 | 1 if len > 0 => rng.usize(0..len),
            0..=12 => most.unwrap_or(len),
            _ => rng.usize(most.unwrap_or(len)..top),
        };
        let by = match rng.u8(0..4) {
            0 => [Some(0); 3],
            1 => [Some(rng.usize(0..STREAMS)); 3],
            _ => [(); 3].map(|()| Some(rng.usize(0..STREAMS + 1)).filter(|at| *at < STREAMS)),
        };
        let mut end = |by| End {
            how: match rng.u8(0..18) {
                _ if tag == ANY => How::Posted,
                // Zero-SM messages have numbers of their own.
                0 if !last && !options.zero_sm => How::Cancelled,
                1..=5 if !options.few => How::Prepared,
                _ => How::Posted,
            },
            by,
            split: rng.u8(0..6) == 0,
            dropped: rng.bool(),
        };
        let mut ends = [end(by[0]), end(by[1])];
        // A message with a length word has one piece.
        ends[SEND].split &= most.is_none();
        let waits = by[2];
        let zero_sm = options.zero_sm && tag != ANY && rng.u8(0..3) > 0;
        let most = most.filter(|_| !zero_sm);
        if zero_sm {
            for end in &mut ends {
                (end.how, end.split) = (How::Posted, false);
            }
        }
        Message {
            tag,
            len,
            most,
            room,
            ends,
            waits,
            any,
            zero_sm,
        }
    }

    /// The payload of message `number` of the tag from rank `from`.
    fn payload(&self, from: u32, number: usize, len: usize) -> Vec<u8> {
        let first = self.len + from as usize * 31 + number * 13;
        let byte = |at: usize| (first + at * 7 + (at >> 8) * 3) as u8;
        (0..len).map(byte).collect()
    }

    /// Whether it does not arrive: it is too long for its receive, or an end is cancelled.
    fn fails(&self) -> bool {
        self.len > self.room || self.ends.iter().any(|end| end.how == How::Cancelled)
    }

    /// Checks the end of a wait for this message: it fails, or does not, as drawn.
    #[track_caller]
    fn check_waited<T>(&self, waited: &mp::Result<T>) {
        if let Err(e) = waited {
            assert!(self.fails() && e.kind() == Kind::Truncated, "{self:?}: {e}");
        }
    }

    #[track_caller]
    fn check_received(&self, done: &mp::Result<Done>) {
        self.check_waited(done);
        if let Ok(done) = done {
            let arrived = !self.fails() && done.len == self.len as u64;
            assert!(arrived, "{self:?}: {done:?}");
        }
    }

    /// An eager send ends before its receive, and does not learn that it failed.
    #[track_caller]
    fn check_sent(&self, done: &mp::Result<Done>) {
        self.check_waited(done);
        let may_succeed = !self.fails() || self.len <= 8192;
        assert!(done.is_err() || may_succeed, "{self:?}: {done:?}");
    }
}

/// The messages of a round, by the rank that sends them.
type Round = [Vec<Message>; 2];

/// Draws the messages of all rounds, alike on both ranks. At most half of the depth are sent of a tag in
/// a round: more may deadlock (`docs/deadlocks.md`).
fn draw_rounds(rng: &mut Rng, depth: u32, options: Options) -> Vec<Round> {
    let anys = rng.u8(0..3) == 0;
    let draw = |round: usize| {
        [(); 2].map(|()| {
            let mut messages = Vec::new();
            for tag in (0..TAGS).chain(anys.then_some(ANY)) {
                let any = tag == ANY && round > 1;
                let count = rng.u32(0..=(depth / 2).min(4));
                for i in 1..=count {
                    messages.push(Message::draw(rng, tag, i == count, any, options));
                }
            }
            messages
        })
    };
    (0..ROUNDS).map(draw).collect()
}

/// An end of a message that this rank has.
struct Posted {
    message: Message,
    /// The number of the message among those of the tag.
    number: usize,
    slice: Slice,
    request: Option<Request>,
    /// What a stream saw of the payload behind its wait.
    shot: Option<Memory>,
}

impl Posted {
    /// Waits for a receive by the CPU, unless its request is dropped.
    fn check_received(&self) {
        if let Some(request) = &self.request {
            self.message.check_received(&request.wait(LIMIT));
        }
    }
}

/// Does one call for the requests of all these ends.
fn together<T>(ends: &mut [Posted], call: impl FnOnce(&[Request]) -> T) -> T {
    let requests = ends.iter_mut().map(|end| end.request.take().unwrap());
    let requests: Vec<Request> = requests.collect();
    let result = call(&requests);
    for (end, request) in ends.iter_mut().zip(requests) {
        end.request = Some(request);
    }
    result
}

/// A slice as one piece, or as two.
fn pieces(slice: &Slice, split: bool) -> Vec<Slice> {
    let (at, len) = (slice.offset(), slice.len());
    let piece = |part: Range<usize>| slice.memory().slice(at + part.start, part.len()).unwrap();
    match split {
        true => vec![piece(0..len / 3), piece(len / 3..len)],
        false => vec![slice.clone()],
    }
}

/// The program of a rank.
struct Program<'a> {
    rank: &'a Rank,
    ctx: &'a Context,
    options: Options,
    /// The application drives the background work.
    manual: bool,
    streams: [Stream; STREAMS],
    /// Draws what this rank alone decides.
    own: Rng,
    /// The number of messages by end and tag.
    counts: BTreeMap<(usize, u32), usize>,
    /// Requests that are dropped once the round is posted.
    cancelled: Vec<Request>,
    received: Vec<Posted>,
    /// The sends whose requests are not dropped.
    sent: Vec<Posted>,
}

impl Program<'_> {
    /// Whether a call is refused because too many streams wait.
    fn is_refused<T>(&self, result: &mp::Result<T>) -> bool {
        let too_many = Kind::Gdsync(gdsync::Kind::TooManyWaits);
        self.options.few && result.as_ref().is_err_and(|e| e.kind() == too_many)
    }

    /// The messages in any order of the tags, those of a tag in their order.
    fn mixed(&mut self, messages: &[Message]) -> Vec<Message> {
        let mut tags: Vec<u32> = messages.iter().map(|message| message.tag).collect();
        self.own.shuffle(&mut tags);
        let mut rest = messages.to_vec();
        let next = |tag: u32| {
            let at = rest.iter().position(|message| message.tag == tag);
            rest.remove(at.unwrap())
        };
        tags.into_iter().map(next).collect()
    }

    /// Memory of guard bytes with room for `len` bytes, at an offset that is a multiple of 4.
    fn memory(&mut self, len: usize) -> Slice {
        let kind = [MemoryKind::Device, MemoryKind::Pinned][self.own.usize(0..2)];
        let memory = self.ctx.alloc(kind, len + GUARDS).unwrap();
        memory.write(0, &vec![GUARD; len + GUARDS]).unwrap();
        memory.slice(self.own.usize(0..2) * 4, len).unwrap()
    }

    /// Posts a receive, by a stream or the CPU, or prepares it.
    fn recv(&mut self, message: &Message, by: Option<usize>) -> (Slice, Request) {
        let end = message.ends[RECV];
        let slice = self.memory(message.room);
        let from = match message.any {
            true => Source::Any,
            false => Source::Rank(self.rank.peer()),
        };
        let pieces = pieces(&slice, end.split);
        let by_cpu = RecvOp::new(from, message.tag, &pieces).zero_sm(message.zero_sm);
        let op = by.map_or(by_cpu, |at| by_cpu.on(&self.streams[at]));
        let request = match end.how {
            How::Posted => self.ctx.post_recv(&op),
            How::Prepared | How::Cancelled => self.ctx.prepare_recv(&op),
        };
        let request = match self.is_refused(&request) {
            true => self.ctx.post_recv(&by_cpu).unwrap(),
            false => request.unwrap(),
        };
        if self.own.u8(0..8) == 0 {
            request.result_word();
        }
        (slice, request)
    }

    /// As `recv`, of the send of message `number`.
    fn send(&mut self, message: &Message, number: usize, by: Option<usize>) -> (Slice, Request) {
        let end = message.ends[SEND];
        let slice = self.memory(message.most.unwrap_or(message.len));
        let bytes = message.payload(self.rank.me, number, slice.len());
        slice.memory().write(slice.offset(), &bytes).unwrap();
        let word = self.ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        let word = word.region().word64(0).unwrap();
        word.store(message.len as u64).unwrap();
        let pieces = pieces(&slice, end.split);
        let mut by_cpu =
            SendOp::new(self.rank.peer(), message.tag, &pieces).zero_sm(message.zero_sm);
        if message.most.is_some() {
            let (len, offset) = (&word, None);
            by_cpu = by_cpu.size(SizeSource::Word { len, offset });
        }
        let op = by.map_or(by_cpu, |at| by_cpu.on(&self.streams[at]));
        let request = match end.how {
            How::Posted => self.ctx.post_send(&op),
            How::Prepared | How::Cancelled => self.ctx.prepare_send(&op),
        };
        let request = match self.is_refused(&request) {
            true => self.ctx.post_send(&by_cpu).unwrap(),
            false => request.unwrap(),
        };
        (slice, request)
    }

    /// Posts one end of these messages. Those that are prepared may be posted by one call for all, on one
    /// stream; otherwise the CPU posts its own behind all others.
    fn post(&mut self, messages: &[Message], which: usize) -> Vec<Posted> {
        let call = Some(self.own.usize(0..STREAMS + 3)).filter(|at| *at < STREAMS);
        let (mut posted, mut late) = (Vec::new(), Vec::new());
        for message in self.mixed(messages) {
            let End { how, by, .. } = message.ends[which];
            let count = self.counts.entry((which, message.tag)).or_default();
            let number = *count;
            *count += 1;
            let by = by.filter(|_| how != How::Prepared || call.is_none());
            let (slice, request) = match which {
                SEND => self.send(&message, number, by),
                _ => self.recv(&message, by),
            };
            if how == How::Cancelled {
                self.cancelled.push(request);
                continue;
            }
            let is_late = how == How::Prepared && by.is_none();
            if how == How::Prepared && !is_late {
                request.post().unwrap();
            }
            let to = if is_late { &mut late } else { &mut posted };
            to.push(Posted {
                message,
                number,
                slice,
                request: Some(request),
                shot: None,
            });
        }
        match call {
            Some(at) if !late.is_empty() => {
                let post = |all: &[Request]| self.ctx.post_all_on(&self.streams[at], all);
                together(&mut late, post).unwrap();
            }
            _ => {
                let requests = late.iter().flat_map(|posted| &posted.request);
                requests.for_each(|request| request.post().unwrap());
            }
        }
        posted.append(&mut late);
        posted
    }

    /// Waits for receives in any order: by streams, by calls for several, and last by the CPU.
    fn wait(&mut self, mut receives: Vec<Posted>) {
        self.own.shuffle(&mut receives);
        let in_calls = self.own.u8(0..3) == 0;
        let mut calls = [(); STREAMS].map(|()| Vec::new());
        let mut late = Vec::new();
        for receive in receives {
            let message = receive.message;
            match message.waits.filter(|_| !message.any || self.own.bool()) {
                None => late.push(receive),
                Some(at) if in_calls && !message.any && !message.fails() => calls[at].push(receive),
                Some(at) => {
                    let request = receive.request.as_ref().unwrap();
                    let waited = request.wait_on(&self.streams[at]);
                    late.append(&mut self.waited(at, vec![receive], &waited));
                }
            }
        }
        for (at, mut call) in calls.into_iter().enumerate() {
            let wait = |all: &[Request]| self.ctx.wait_all_on(&self.streams[at], all);
            let waited = together(&mut call, wait);
            late.append(&mut self.waited(at, call, &waited));
        }
        for mut receive in late {
            receive.check_received();
            receive.request = None;
            self.received.push(receive);
        }
        // A receive from any rank must be matched before the next one under its tag is posted.
        let of_any = self.received.iter().filter(|receive| receive.message.any);
        of_any.for_each(Posted::check_received);
    }

    /// Goes on behind the wait of a stream: copies what it sees, and lets some other stream wait, too.
    /// Returns the receives if the wait was refused.
    fn waited(&mut self, at: usize, receives: Vec<Posted>, waited: &mp::Result<()>) -> Vec<Posted> {
        if self.is_refused(waited) {
            return receives;
        }
        for mut receive in receives {
            let message = receive.message;
            message.check_waited(waited);
            receive.shot = self.shoot(at, &receive);
            if self.own.u8(0..5) == 0 {
                self.wait_extra(&receive);
            }
            if message.ends[RECV].dropped && !message.any {
                receive.request = None;
            }
            self.received.push(receive);
        }
        Vec::new()
    }

    /// Copies the payload that a stream sees.
    fn shoot(&self, at: usize, receive: &Posted) -> Option<Memory> {
        let Posted { message, slice, .. } = receive;
        if message.len == 0 || message.fails() {
            return None;
        }
        let shot = self.ctx.alloc(MemoryKind::Pinned, message.len).unwrap();
        let to = shot.region().span(0, message.len).unwrap();
        let from = slice.memory().region().span(slice.offset(), message.len);
        match self.streams[at].copy(&to, &from.unwrap()) {
            Err(e) if e.kind() == gdsync::Kind::QueueFull => None,
            copied => {
                copied.unwrap();
                Some(shot)
            }
        }
    }

    /// Lets a stream wait for an end that others may wait for as well.
    fn wait_extra(&mut self, end: &Posted) {
        let stream = &self.streams[self.own.usize(0..STREAMS)];
        let waited = end.request.as_ref().unwrap().wait_on(stream);
        if !self.is_refused(&waited) {
            end.message.check_waited(&waited);
        }
    }

    /// Keeps sends, and ends some of those kept: their memory is the application's again.
    fn keep(&mut self, sends: Vec<Posted>) {
        for send in sends {
            if self.own.u8(0..6) == 0 {
                self.wait_extra(&send);
            }
            if !send.message.ends[SEND].dropped {
                self.sent.push(send);
            }
        }
        if self.own.u8(0..4) == 0 {
            for send in take(&mut self.sent) {
                let (slice, request) = (send.slice, send.request.unwrap());
                send.message.check_sent(&request.wait(LIMIT));
                let other = vec![0xdd; slice.len()];
                slice.memory().write(slice.offset(), &other).unwrap();
            }
        }
    }

    fn round(&mut self, round: &Round) {
        if self.own.u8(0..6) == 0 {
            // The work of the stream before it continues.
            self.streams[self.own.usize(0..STREAMS)] = self.ctx.gpu().stream().unwrap();
        }
        let receives = self.post(&round[self.rank.peer() as usize], RECV);
        let sends = self.post(&round[self.rank.me as usize], SEND);
        self.cancelled.clear();
        self.wait(receives);
        self.keep(sends);
    }

    fn barrier(&self) {
        if !self.manual {
            return self.rank.barrier();
        }
        let (n, peer) = (self.rank.come(), self.rank.peer());
        let has_come = || self.rank.has_come(peer, n);
        self.rank.progress_until(self.ctx, "barrier", has_come);
    }

    /// Ends all requests and streams.
    fn end(&self) {
        let failed = |result: mp::Result<()>| {
            let e = result.err().filter(|e| e.kind() != Kind::Truncated);
            assert!(e.is_none(), "{e:?}");
        };
        for stream in &self.streams {
            failed(self.ctx.synchronize(stream, LIMIT).map(|_| ()));
        }
        self.received.iter().for_each(Posted::check_received);
        for send in &self.sent {
            let request = send.request.as_ref().unwrap();
            send.message.check_sent(&request.wait(LIMIT));
        }
        self.barrier();
        // Streams without a handle continue.
        for _ in 0..20 {
            self.rank.pass(millis(1));
            if self.manual {
                self.ctx.progress();
            }
        }
        self.barrier();
        self.received.iter().for_each(|receive| self.check(receive));
        failed(self.ctx.close(secs(30)));
        self.barrier();
    }

    /// Compares the memory of a receive.
    fn check(&self, receive: &Posted) {
        let Posted {
            message,
            number,
            slice,
            shot,
            ..
        } = receive;
        let mut got = vec![0; slice.memory().len()];
        slice.memory().read(0, &mut got).unwrap();
        let (before, behind) = got.split_at(slice.offset());
        let end = if message.fails() {
            message.room
        } else {
            message.len
        };
        let (payload, behind) = behind.split_at(end);
        for (place, bytes) in [("before", before), ("behind", behind)] {
            let unwritten = bytes.iter().all(|byte| *byte == GUARD);
            assert!(unwritten, "{place} message {number}: {message:?}");
        }
        if message.fails() {
            return;
        }
        let sent = message.payload(self.rank.peer(), *number, end);
        assert!(payload == sent, "message {number}: {message:?}");
        if let Some(shot) = shot {
            let mut seen = vec![0; end];
            shot.read(0, &mut seen).unwrap();
            assert!(seen == sent, "too late: message {number}: {message:?}");
        }
    }
}

fn program(rank: &Rank, seed: u64, options: Options) {
    let mut rng = Rng::with_seed(seed);
    let depth = [2, 2, 4, 16][rng.usize(0..4)];
    let eager = [1, 64, 4096, 8192][rng.usize(0..4)];
    let start = STARTS[rng.usize(0..STARTS.len())];
    let rounds = draw_rounds(&mut rng, depth, options);
    let mut own = Rng::with_seed(seed ^ (u64::from(rank.me) + 1) << 32);
    let manual = own.u8(0..4) == 0;
    let bound = [1024, 1024, 64, 40][own.usize(0..4)];
    let mut soft = SoftOptions::default().stream_bound(bound).channels(8);
    if options.few {
        soft = soft.channels(own.usize(2..5));
    }
    if options.weak {
        soft = soft.weak(Weak::seeded(seed * 2 + u64::from(rank.me)));
    }
    let build = |b: Builder| {
        let b = b.path(PathChoice::Ipc).timeout(secs(2));
        let b = b.depth(depth).eager_limit(eager).start(start);
        match manual {
            true => b.progress(Progress::Manual),
            false => b,
        }
    };
    let ctx = rank.open_at(&rank.place(soft, !manual), build);
    let mut program = Program {
        rank,
        ctx: &ctx,
        options,
        manual,
        streams: [(); STREAMS].map(|()| ctx.gpu().stream().unwrap()),
        own,
        counts: BTreeMap::new(),
        cancelled: Vec::new(),
        received: Vec::new(),
        sent: Vec::new(),
    };
    for round in &rounds {
        program.round(round);
    }
    program.end();
}

fn play_all(seeds: impl Iterator<Item = u64>, options: Options) {
    for seed in seeds {
        play(seed, 2, move |rank| program(rank, seed, options));
    }
}

#[test]
fn programs_deliver_all_messages() {
    play_all(0..150, Options::default());
}

#[test]
fn programs_deliver_all_messages_under_weak_memory() {
    let options = Options {
        weak: true,
        ..Options::default()
    };
    play_all((0..150).chain([931]), options);
}

#[test]
fn programs_deliver_all_messages_with_few_streams_that_may_wait() {
    let options = Options {
        few: true,
        ..Options::default()
    };
    play_all(0..80, options);
}

#[test]
fn programs_with_zero_sm_messages_deliver_all_messages() {
    let options = |weak, few| Options {
        weak,
        few,
        zero_sm: true,
    };
    play_all(0..60, options(false, false));
    play_all(60..120, options(true, false));
    play_all(120..160, options(false, true));
}
