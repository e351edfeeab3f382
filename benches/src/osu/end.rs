//! A rank's end of a pair: its context, its memory and its window, the operations that it posts by
//! the CPU or by its stream, and the checks of bytes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gdsync::Gpu;
use gdsync::gpu::{Condition, Graph, Stream};
use mp::{Context, Memory, RecvOp, Request, SendOp, Slice, Window};

use super::options::{Common, Way};
use crate::context;
use crate::endpoint::{Endpoint, Names};
use crate::gate::{Bell, Gate};
use crate::kernel::{Stamps, Tally, Turn, Turns};
use crate::options::{Poster, Setup};
use crate::pattern;
use crate::rank::Rank;
use crate::start::barrier_by;

/// The tags of messages: payloads, answers, and messages that synchronise the ranks.
const PAYLOAD: u32 = 100;
const ANSWER: u32 = 101;
const BARRIER: u32 = 102;
/// Bytes of an answer to a window of messages.
const ANSWER_BYTES: usize = 4;
/// Value of bytes that have not been received.
const BLANK: u8 = 0xee;
/// Bytes behind a payload, which nothing may write.
const GUARD: usize = 64;
/// Buffers begin at multiples of this, as those of allocators for GPUs do.
const ALIGN: usize = 256;

/// An end of a pair of ranks. Each rank's memory has a payload to send, a payload to receive, a
/// signal of each rank, an answer to send and one to receive, and further payloads to receive if
/// receives are posted ahead.
pub struct End<'e> {
    rank: &'e Rank,
    endpoint: &'e Endpoint,
    /// The stream that posts.
    stream: Stream,
    context: Context,
    memory: Memory,
    window: Window,
    bell: Bell,
    /// The longest payload with its guard.
    most: usize,
    peer: u32,
    /// The last signal sent to each rank, and the last one that was waited for.
    signals: Vec<[u64; 2]>,
    poster: Poster,
    /// Messages of the stream use no kernel.
    zero_sm: bool,
    size: usize,
    /// The payload to send, and the one to receive if none is posted ahead. They are made once for a size,
    /// as an application makes them.
    outgoing: Slice,
    incoming: Slice,
    /// The time limit of each wait for messages of this size.
    wait_limit: Duration,
    ahead: Ahead,
}

/// Receives that are posted before those of earlier rounds have ended.
#[derive(Default)]
struct Ahead {
    /// How many.
    most: usize,
    /// Those in flight, the oldest first.
    posted: VecDeque<Request>,
    /// Receives of the batch that are not posted yet.
    left: u64,
    /// Receives so far.
    count: usize,
}

/// A gate, and the times of a stream behind it.
pub struct Timer {
    gate: Gate,
    turns: Turns,
    tally: Tally,
    stamps: Stamps,
}

impl Timer {
    /// Must be made before a stream of `gpu` waits.
    pub fn new(gpu: &Gpu) -> Result<Timer> {
        Ok(Timer {
            gate: Gate::new(gpu)?,
            turns: Turns::new(gpu)?,
            tally: Tally::new(gpu)?,
            stamps: Stamps::new(gpu, 2)?,
        })
    }

    /// Enqueues the time.
    fn stamp(&self, stream: &Stream, i: u64) -> Result<()> {
        let turn = Turn::new(8, &self.tally).stamp(&self.stamps.0, 8 * i);
        // SAFETY: the stamps live as long as this object, and its stream is done before it ends.
        unsafe { self.turns.launch(stream, &turn) }
    }

    /// Opens the gate.
    pub fn open(&self) -> Result<()> {
        self.gate.open()
    }

    /// The nanoseconds between the two times, after the stream is done.
    pub fn elapsed(&self) -> Result<u64> {
        Ok(self.stamps.gaps(2)?[0])
    }
}

impl<'e> End<'e> {
    /// The end of a rank, with a context of its own and the endpoint's stream. All ranks of the job
    /// call it.
    pub fn new(
        rank: &'e Rank,
        endpoint: &'e Endpoint,
        common: &Common,
        window: u64,
    ) -> Result<End<'e>> {
        let context = End::context(rank, endpoint, &common.setup, window)?;
        End::over(rank, endpoint, &context, endpoint.stream.clone(), common, 0)
    }

    /// A context with room for the receives of a window.
    pub fn context(
        rank: &Rank,
        endpoint: &Endpoint,
        setup: &Setup,
        window: u64,
    ) -> Result<Context> {
        let queue = context::QUEUE;
        let builder = context::builder(endpoint, setup, rank.bootstrap()?, queue, rank.left())?;
        let depth = (window as u32).next_power_of_two().max(16);
        builder.depth(depth).build().context("building a context")
    }

    /// An end over a context, posted by `stream`, which posts receives so many rounds ahead. All ranks
    /// of the job call it.
    pub fn over(
        rank: &'e Rank,
        endpoint: &'e Endpoint,
        context: &Context,
        stream: Stream,
        common: &Common,
        ahead: usize,
    ) -> Result<End<'e>> {
        let most = (usize::try_from(common.sizes.max)? + GUARD).next_multiple_of(ALIGN);
        let ranks = context.size() as usize;
        let all = 2 * most + (8 * ranks + 2 * ANSWER_BYTES).next_multiple_of(ALIGN) + ahead * most;
        let memory = context.alloc(common.setup.memory(&endpoint.gpu), all)?;
        Ok(End {
            window: context.window(&memory)?,
            bell: Bell::new(&endpoint.gpu)?,
            signals: vec![[0; 2]; ranks],
            peer: rank.number,
            poster: Poster::Cpu,
            zero_sm: common.zero_sm,
            size: 0,
            outgoing: memory.slice(0, 0)?,
            incoming: memory.slice(0, 0)?,
            wait_limit: rank.left(),
            context: context.clone(),
            stream,
            rank,
            endpoint,
            memory,
            most,
            ahead: Ahead {
                most: ahead,
                ..Ahead::default()
            },
        })
    }

    /// Sets the other rank of the pair.
    pub fn set_peer(&mut self, peer: u32) {
        self.peer = peer;
    }

    /// The other rank of the pair.
    pub fn peer(&self) -> u32 {
        self.peer
    }

    /// Sets the poster and the size of the operations that follow, and makes their payloads.
    ///
    /// # Errors
    /// Those of [`Memory::slice`]: the size is above that of the memory.
    pub fn set(&mut self, way: Way, size: u64) -> Result<()> {
        self.poster = way.poster;
        self.size = size as usize;
        self.outgoing = self.payload(0)?;
        self.incoming = self.payload(self.most)?;
        self.wait_limit = self.left();
        Ok(())
    }

    /// Whether this rank begins.
    pub fn is_first(&self) -> bool {
        self.rank.number < self.peer
    }

    /// The remaining time of the time limit.
    pub fn left(&self) -> Duration {
        self.rank.left()
    }

    /// A barrier of all ranks of the job.
    pub fn barrier(&self) -> Result<()> {
        let nothing = self.memory.slice(0, 0)?;
        barrier_by(&self.context, BARRIER, &nothing, self.left())
    }

    /// The least value of all ranks.
    pub fn least(&self, value: u64) -> Result<u64> {
        // The ranks agree on the greatest one.
        Ok(!self.context.agree(!value, self.left())?.value)
    }

    /// Leaves the job, and returns the names of the parts.
    pub fn close(self, setup: &Setup) -> Result<Names> {
        self.barrier()?;
        let kind = self.memory.region().kind();
        let made = self.endpoint.made_of(&self.context, setup, kind)?;
        self.context.close(self.left())?;
        Ok(made.names)
    }

    // --- operations -----------------------------------------------------------------------

    /// The stream that posts, if it does.
    fn stream(&self) -> Option<&Stream> {
        (self.poster == Poster::Stream).then_some(&self.stream)
    }

    fn payload(&self, offset: usize) -> Result<Slice> {
        Ok(self.memory.slice(offset, self.size)?)
    }

    fn answer(&self, i: usize) -> Result<Slice> {
        let start = self.signal_of(self.context.size());
        Ok(self.memory.slice(start + i * ANSWER_BYTES, ANSWER_BYTES)?)
    }

    /// The offset of the signal of a rank.
    fn signal_of(&self, rank: u32) -> usize {
        2 * self.most + 8 * rank as usize
    }

    fn isend(&self, tag: u32, data: &Slice) -> Result<Request> {
        let (context, peer) = (&self.context, self.peer);
        Ok(match self.stream() {
            None => context.isend(peer, tag, data)?,
            Some(stream) if self.zero_sm => {
                let data = std::slice::from_ref(data);
                let send = SendOp::new(peer, tag, data).on(stream);
                context.post_send(&send.zero_sm(true))?
            }
            Some(stream) => context.isend_on(stream, peer, tag, data)?,
        })
    }

    fn irecv(&self, tag: u32, into: &Slice) -> Result<Request> {
        let (context, peer) = (&self.context, self.peer);
        Ok(match self.stream() {
            None => context.irecv(peer, tag, into)?,
            Some(stream) if self.zero_sm => {
                let into = std::slice::from_ref(into);
                let receive = RecvOp::new(peer, tag, into).on(stream);
                context.post_recv(&receive.zero_sm(true))?
            }
            Some(stream) => context.irecv_on(stream, peer, tag, into)?,
        })
    }

    /// Sends the payload.
    pub fn send(&self) -> Result<Request> {
        self.isend(PAYLOAD, &self.outgoing)
    }

    /// Receives a payload.
    pub fn recv(&self) -> Result<Request> {
        self.irecv(PAYLOAD, &self.incoming)
    }

    /// The receive of this round; also posts those of the next rounds.
    pub fn recv_ahead(&mut self) -> Result<Request> {
        while self.ahead.left > 0 && self.ahead.posted.len() <= self.ahead.most {
            let into = self.payload(self.buffer(self.ahead.count))?;
            self.ahead.posted.push_back(self.irecv(PAYLOAD, &into)?);
            self.ahead.count += 1;
            self.ahead.left -= 1;
        }
        self.ahead.posted.pop_front().context("no receive is left")
    }

    /// Whether receives are posted ahead.
    pub fn is_ahead(&self) -> bool {
        self.ahead.most > 0
    }

    /// The offset of the payload of receive `i`.
    fn buffer(&self, i: usize) -> usize {
        match i % (1 + self.ahead.most) {
            0 => self.most,
            i => self.memory.len() - i * self.most,
        }
    }

    /// Sends an answer.
    pub fn send_answer(&self) -> Result<Request> {
        self.isend(ANSWER, &self.answer(0)?)
    }

    /// Receives an answer.
    pub fn recv_answer(&self) -> Result<Request> {
        self.irecv(ANSWER, &self.answer(1)?)
    }

    /// Waits for requests, on the CPU or by the stream.
    pub fn wait(&self, requests: &[Request]) -> Result<()> {
        match (self.stream(), requests) {
            (None, [one]) => _ = one.wait(self.wait_limit)?,
            (None, _) => _ = mp::wait_all(requests, self.wait_limit)?,
            (Some(stream), _) => self.context.wait_all_on(stream, requests)?,
        }
        Ok(())
    }

    /// Puts the payload.
    pub fn put(&self) -> Result<Request> {
        let (from, peer, to) = (&self.outgoing, self.peer, self.most);
        Ok(match self.stream() {
            None => self.window.put(peer, to, from)?,
            Some(stream) => self.window.put_on(stream, peer, to, from)?,
        })
    }

    /// Waits until all puts are visible at their targets.
    pub fn quiet(&self) -> Result<()> {
        match self.stream() {
            None => self.window.quiet(self.left())?,
            Some(stream) => self.window.quiet_on(stream)?,
        }
        Ok(())
    }

    /// Gets the payload of the peer.
    pub fn get(&self) -> Result<Request> {
        let (into, peer) = (&self.incoming, self.peer);
        Ok(match self.stream() {
            None => self.window.get(peer, 0, into)?,
            Some(stream) => self.window.get_on(stream, peer, 0, into)?,
        })
    }

    /// The place and the value of the next signal to the peer.
    fn next_signal(&mut self) -> (usize, u64) {
        let place = self.signal_of(self.rank.number);
        let [sent, _] = &mut self.signals[self.peer as usize];
        *sent += 1;
        (place, *sent)
    }

    /// Puts the payload, with a signal behind it.
    pub fn put_signal(&mut self) -> Result<Request> {
        let (place, value) = self.next_signal();
        let (from, peer, to) = (&self.outgoing, self.peer, self.most);
        let window = &self.window;
        Ok(match self.stream() {
            None => window.put_signal(peer, to, from, place, value)?,
            Some(stream) => window.put_signal_on(stream, peer, to, from, place, value)?,
        })
    }

    /// Sends a signal.
    pub fn signal(&mut self) -> Result<Request> {
        let (place, value) = self.next_signal();
        Ok(match self.stream() {
            None => self.window.signal(self.peer, place, value)?,
            Some(stream) => self.window.signal_on(stream, self.peer, place, value)?,
        })
    }

    /// Waits for `count` signals of the peer.
    pub fn wait_signals(&mut self, count: u64) -> Result<()> {
        let (peer, place) = (self.peer, self.signal_of(self.peer));
        let [_, received] = &mut self.signals[peer as usize];
        *received += count;
        let (value, met) = (*received, Condition::Geq);
        match self.stream() {
            None => (self.window).wait_signal(peer, place, met, value, self.left())?,
            Some(stream) => (self.window).wait_signal_on(stream, peer, place, met, value)?,
        }
        Ok(())
    }

    // --- time -----------------------------------------------------------------------------

    /// Runs `count` rounds. A stream has at most two batches of `batch` rounds enqueued at a time.
    pub fn repeat(
        &mut self,
        count: u64,
        batch: u64,
        mut round: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<Duration> {
        let deadline = Instant::now() + self.left();
        let start = Instant::now();
        for i in 1..=count {
            round(self)?;
            if self.poster == Poster::Stream && (i % batch == 0 || i == count) {
                self.bell.enqueue(&self.stream)?;
                let enqueued = self.bell.enqueued();
                match i < count {
                    // The batch behind it lasts longer than a nap.
                    true => self.bell.await_nth(enqueued - 1, deadline)?,
                    false => _ = self.bell.poll_nth(enqueued, deadline)?,
                }
            }
        }
        let elapsed = start.elapsed();
        if let Some(stream) = self.stream() {
            self.context.synchronize(stream, self.left())?;
        }
        Ok(elapsed)
    }

    /// Captures `count` rounds into a graph, with their receives: captured sends match no others. A stream
    /// of the GPU may not wait meanwhile.
    pub fn capture(
        &mut self,
        count: u64,
        mut round: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<Graph> {
        (self.ahead.left, self.ahead.count) = (count, 0);
        self.stream.begin_capture()?;
        let captured = (0..count).try_for_each(|_| round(self));
        let graph = self.stream.end_capture();
        captured?;
        Ok(graph?)
    }

    /// Enqueues a closed gate, one round that is not timed, in which the ranks' gates open one after
    /// the other, and `count` rounds, or a graph of them, between two times of the GPU.
    pub fn enqueue(
        &mut self,
        timer: &mut Timer,
        count: u64,
        graph: Option<&Graph>,
        mut round: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        // The receives of a graph are in it.
        self.ahead.left = if graph.is_some() { 1 } else { count + 1 };
        timer.gate.close(&self.stream)?;
        round(self)?;
        timer.stamp(&self.stream, 0)?;
        match graph {
            Some(graph) => {
                graph.launch(&self.stream)?;
                self.ahead.count = count as usize;
            }
            None => (0..count).try_for_each(|_| round(self))?,
        }
        timer.stamp(&self.stream, 1)?;
        self.bell.enqueue(&self.stream)
    }

    /// Whether the stream has executed all that was enqueued.
    pub fn has_ended(&self) -> bool {
        self.bell.poll(Instant::now()).is_ok()
    }

    /// Polls until the stream has executed all that was enqueued, and returns the first error.
    pub fn finish(&self) -> Result<()> {
        self.bell.poll(Instant::now() + self.left())?;
        Ok(self.context.synchronize(&self.stream, self.left())?)
    }

    // --- bytes ----------------------------------------------------------------------------

    /// Writes the payload of a round, with a wrong bit if `spoil`, and clears the received one.
    pub fn fill(&self, round: u64, spoil: bool) -> Result<()> {
        let mut bytes = pattern::bytes(self.tag(round, self.is_first()), self.size);
        bytes[self.size / 2] ^= u8::from(spoil);
        self.memory.write(0, &bytes)?;
        for i in 0..=self.ahead.most {
            let blank = vec![BLANK; self.size + GUARD];
            self.memory.write(self.buffer(i), &blank)?;
        }
        Ok(())
    }

    /// Compares the payload that was received last with the peer's payload of a round.
    pub fn compare(&self, round: u64) -> Result<()> {
        self.context.gpu().flush_remote_writes();
        let mut all = vec![0; self.size + GUARD];
        let last = self.buffer(self.ahead.count.saturating_sub(1));
        self.memory.read(last, &mut all)?;
        let (got, behind) = all.split_at(self.size);
        let right = pattern::bytes(self.tag(round, !self.is_first()), self.size);
        let wrong = got.iter().zip(&right).position(|(got, right)| got != right);
        if let Some(at) = wrong {
            let (got, right) = (got[at], right[at]);
            anyhow::bail!("wrong bytes in round {round}: byte {at} is {got}, not {right}");
        }
        let kept = behind.iter().all(|byte| *byte == BLANK);
        ensure!(
            kept,
            "round {round}: something behind the payload was written"
        );
        Ok(())
    }

    fn tag(&self, round: u64, first: bool) -> u64 {
        let pair = u64::from(self.rank.number.min(self.peer)) << 40;
        pattern::tag(pair + round, u32::from(!first))
    }
}
