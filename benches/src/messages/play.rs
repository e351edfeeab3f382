//! The part of a rank: it executes the calls of each batch on its streams, enqueues the kernels that fill
//! and compare, and reads their results some batches later.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use gdsync::Stream;
use gdsync::gpu::MemoryKind;
use mp::{Context, Memory, RecvOp, Request, SendOp, Slice};

use super::Counts;
use super::kernels::{Area, Found, Kernels, NOWHERE};
use super::plan::{BATCH, Batch, Call, Choice, DEPTH, Half, Message, Plan, STREAMS};
use crate::context;
use crate::endpoint::{Endpoint, Names};
use crate::options::Setup;
use crate::rank::Rank;
use crate::start::barrier_by;

/// Batches in flight. A stream of CUDA that waits holds about 1000 submissions.
const IN_FLIGHT: usize = 2;
/// The tag of messages that synchronise the ranks; those of the program are from 0 on.
const BARRIER: u32 = 1000;
/// Time between two looks at a result that is not there.
const NAP: Duration = Duration::from_micros(20);

/// A stream, what it sends, and where it receives.
struct StreamMemory {
    stream: Stream,
    source: Memory,
    target: Memory,
    area: Area,
}

/// A rank.
pub struct Player<'e> {
    rank: &'e Rank,
    endpoint: &'e Endpoint,
    choice: Choice,
    context: Context,
    /// The payload of the messages that synchronise the ranks: no bytes.
    nothing: Slice,
    kernels: Kernels,
    streams: Vec<StreamMemory>,
    /// The batches in flight, the oldest first.
    flight: VecDeque<Batch>,
    /// The requests of the batch, by message.
    requests: Vec<Option<Request>>,
    counts: Counts,
    /// A bit for each length and for each tag: there was one.
    lengths: Vec<u64>,
    tags: u64,
}

impl<'e> Player<'e> {
    pub fn new(
        rank: &'e Rank,
        endpoint: &'e Endpoint,
        setup: &Setup,
        choice: Choice,
    ) -> Result<Player<'e>> {
        let (gpu, limit) = (&endpoint.gpu, rank.left());
        let bootstrap = rank.bootstrap()?;
        let builder = context::builder(endpoint, setup, bootstrap, context::QUEUE, limit)?;
        let context = builder.depth(DEPTH).build().context("building a context")?;
        let memory = |len: u32| context.alloc(setup.memory(gpu), len as usize);
        let stream = |_| -> Result<StreamMemory> {
            let (source, target) = (memory(choice.source())?, memory(choice.target())?);
            let sides = (
                (source.region().clone(), choice.source()),
                (target.region().clone(), choice.target()),
            );
            Ok(StreamMemory {
                stream: gpu.stream()?,
                area: Area::new(gpu, sides.0, sides.1, (IN_FLIGHT, BATCH as usize))?,
                source,
                target,
            })
        };
        Ok(Player {
            nothing: context.alloc(MemoryKind::Pinned, 8)?.slice(0, 0)?,
            kernels: Kernels::new(gpu)?,
            streams: (0..STREAMS).map(stream).collect::<Result<_>>()?,
            flight: VecDeque::new(),
            requests: Vec::new(),
            counts: Counts::default(),
            lengths: vec![0; choice.longest as usize / 64 + 1],
            tags: 0,
            rank,
            endpoint,
            choice,
            context,
        })
    }

    fn me(&self) -> usize {
        self.rank.number as usize
    }

    fn peer(&self) -> u32 {
        1 - self.rank.number
    }

    fn barrier(&self) -> Result<()> {
        barrier_by(&self.context, BARRIER, &self.nothing, self.rank.left())
    }

    /// Executes the whole program. Returns its time, and the time without waits for results.
    pub fn run(&mut self) -> Result<[Duration; 2]> {
        self.barrier()?;
        let start = Instant::now();
        let mut waited = Duration::ZERO;
        for batch in Plan::new(self.choice) {
            if self.flight.len() == IN_FLIGHT {
                let full = Instant::now();
                self.finish()?;
                waited += full.elapsed();
            }
            let number = batch.number;
            let enqueued = self.enqueue(&batch);
            enqueued.with_context(|| format!("batch {number}"))?;
            self.count(&batch);
            self.flight.push_back(batch);
        }
        let busy = start.elapsed() - waited;
        while !self.flight.is_empty() {
            self.finish()?;
        }
        for own in &self.streams {
            self.context.synchronize(&own.stream, self.rank.left())?;
        }
        let elapsed = start.elapsed();
        self.barrier()?;
        Ok([elapsed, busy])
    }

    /// Leaves the job, and returns the counts and the names of the parts.
    pub fn close(mut self, setup: &Setup) -> Result<(Counts, Names)> {
        let ones = self.lengths.iter().map(|bits| u64::from(bits.count_ones()));
        self.counts.lengths = ones.sum();
        self.counts.tags = self.tags.count_ones().into();
        let kind = self.streams[0].source.region().kind();
        let made = self.endpoint.made_of(&self.context, setup, kind)?;
        self.context.close(self.rank.left())?;
        Ok((self.counts, made.names))
    }

    /// Enqueues a batch.
    fn enqueue(&mut self, batch: &Batch) -> Result<()> {
        for (index, own) in self.streams.iter().enumerate() {
            let mine = (self.me(), index);
            let flip = self.flip(batch, mine)?;
            (own.area).fill(&self.kernels, &own.stream, batch.number, mine, flip)?;
        }
        self.requests.clear();
        self.requests.resize_with(batch.messages.len(), || None);
        let me = self.me();
        for call in batch.calls.iter().filter(|call| call.rank == me) {
            let halves = &batch.halves[call.halves.clone()];
            match call.waits {
                true => self.wait(call, halves),
                false => self.post(batch, call, halves),
            }?;
        }
        for (index, own) in self.streams.iter().enumerate() {
            let mine = (self.me(), index);
            (own.area).check(&self.kernels, &own.stream, batch, mine)?;
        }
        Ok(())
    }

    /// The offset of the wrong bit in what a stream sends.
    fn flip(&self, batch: &Batch, (rank, stream): (usize, usize)) -> Result<u64> {
        let spoiled = |m: &&Message| Some(m.number) == self.choice.spoil;
        match batch.messages.iter().find(spoiled) {
            Some(m) if m.len == 0 => bail!("message {} has no bytes to spoil", m.number),
            Some(m) if (m.sender, m.streams[0]) == (rank, stream) => {
                Ok(u64::from(m.from + m.len / 2))
            }
            _ => Ok(NOWHERE),
        }
    }

    /// Posts one request at once, or several prepared ones in one call.
    fn post(&mut self, batch: &Batch, call: &Call, halves: &[Half]) -> Result<()> {
        let (context, peer, own) = (&self.context, self.peer(), &self.streams[call.stream]);
        let stream = &own.stream;
        let data = |m: &Message| own.source.slice(m.from as usize, m.len as usize);
        let into = |m: &Message| own.target.slice(m.into as usize, m.room as usize);
        let requests = &mut self.requests;
        if let [half] = halves {
            let m = &batch.messages[half.message];
            let request = match half.sends {
                true => context.isend_on(stream, peer, m.tag, &data(m)?)?,
                false => context.irecv_on(stream, peer, m.tag, &into(m)?)?,
            };
            requests[half.message] = Some(request);
            return Ok(());
        }
        let prepare = |half: &Half| -> Result<Request> {
            let m = &batch.messages[half.message];
            Ok(match half.sends {
                true => context.prepare_send(&SendOp::from((peer, m.tag, &data(m)?)))?,
                false => context.prepare_recv(&RecvOp::from((peer, m.tag, &into(m)?)))?,
            })
        };
        let prepared = halves.iter().map(prepare).collect::<Result<Vec<_>>>()?;
        context.post_all_on(stream, &prepared)?;
        for (half, request) in halves.iter().zip(prepared) {
            requests[half.message] = Some(request);
        }
        Ok(())
    }

    fn wait(&mut self, call: &Call, halves: &[Half]) -> Result<()> {
        let stream = &self.streams[call.stream].stream;
        let requests = &mut self.requests;
        let mut take = |half: &Half| {
            let request = requests[half.message].take();
            request.context("a request that is not posted")
        };
        if let [half] = halves {
            return Ok(take(half)?.wait_on(stream)?);
        }
        let all = halves.iter().map(take).collect::<Result<Vec<_>>>()?;
        Ok(self.context.wait_all_on(stream, &all)?)
    }

    /// Waits for the results of the oldest batch.
    fn finish(&mut self) -> Result<()> {
        let batch = self.flight.pop_front().context("no batch is in flight")?;
        for stream in 0..STREAMS {
            let found = loop {
                if let Some(found) = self.streams[stream].area.found(batch.number)? {
                    break found;
                }
                if self.rank.left().is_zero() {
                    let stuck = self.context.stuck();
                    bail!("batch {}: the time limit expired; {stuck:?}", batch.number);
                }
                std::thread::sleep(NAP);
            };
            self.judge(&batch, stream, &found)?;
        }
        Ok(())
    }

    fn judge(&mut self, batch: &Batch, stream: usize, found: &Found) -> Result<()> {
        let target = u64::from(self.choice.target());
        let received = batch.received(self.me(), stream);
        let received = received.iter().map(|i| &batch.messages[*i]);
        if found.wrong > 0 || found.verified != target {
            let wrong = report(batch, stream, found, target, received);
            // A message that has failed is the reason.
            return Err(match self.context.take_error() {
                Some(failed) => anyhow!("{failed}; {wrong}"),
                None => anyhow!(wrong),
            });
        }
        let bytes: u64 = received.map(|m| u64::from(m.len)).sum();
        self.counts.received += bytes;
        self.counts.beside += target - bytes;
        Ok(())
    }

    fn count(&mut self, batch: &Batch) {
        let (me, counts) = (self.me(), &mut self.counts);
        for m in &batch.messages {
            counts.messages += 1;
            counts.bytes += u64::from(m.len);
            counts.before += u64::from(m.early);
            counts.after += u64::from(!m.early);
            self.lengths[m.len as usize / 64] |= 1 << (m.len % 64);
            self.tags |= 1 << m.tag;
        }
        for call in batch.calls.iter().filter(|call| call.rank == me) {
            counts.waits += u64::from(call.waits);
            counts.posts += u64::from(!call.waits);
        }
    }
}

/// A sentence about wrong bytes: in which message the first one is, or beside which.
fn report<'m>(
    batch: &Batch,
    stream: usize,
    found: &Found,
    target: u64,
    received: impl Iterator<Item = &'m Message>,
) -> String {
    let Found {
        verified,
        wrong,
        first,
    } = found;
    let number = batch.number;
    if *wrong == 0 {
        return format!(
            "batch {number}, stream {stream}: {verified} bytes were compared, {target} should have been"
        );
    }
    let before = received.filter(|m| u64::from(m.into) <= *first);
    let Some(m) = before.max_by_key(|m| (m.into, m.len)) else {
        return format!(
            "batch {number}, stream {stream}: {wrong} wrong bytes: the first is at {first}, before \
             all messages"
        );
    };
    let Message {
        number: message,
        sender,
        tag,
        len,
        room,
        into,
        from,
        ..
    } = m;
    let offset = first - u64::from(*into);
    let place = match offset < u64::from(*len) {
        true => format!("byte {offset}"),
        false => format!("a byte that no message may write, at offset {offset}"),
    };
    let posted = if m.early { "before" } else { "after" };
    format!(
        "batch {number}, stream {stream}: {wrong} wrong bytes: the first is {place} of message {message} \
         from rank {sender}, tag {tag}, {len} bytes, from offset {from} into {room} bytes at offset {into}, \
         receive posted {posted} the send"
    )
}
