//! A rank is killed while streams exchange messages of one length with it, in device memory, in one
//! direction: the others wait for its messages, or for its credits and receives. It is killed in the middle
//! of them, or when it has stopped and the others wait. The protocols of mapped memory differ by length. As
//! in [`lost`](super::lost), the streams of the others pass, and they continue with each other by messages
//! of this length.

use std::time::{Duration, Instant};

use gdsync::gpu::{MemoryKind, Stream};
use mp::{Context, Kind, Memory, Request};

use super::launch::Ranks;
use super::lost::{
    AFTER, BEFORE, Failure, GOING, RANKS, TIMEOUT, VICTIM, continues, fail, leave, open,
};
use crate::rig::limits::{scaled, time_limit};
use crate::rig::verdict::Verdict;
use crate::rig::{Runtime, finish};

/// The role of a process that is a rank.
pub const ROLE: &str = "mp-killed";

/// Lengths in bytes: a line, the eager limits, long rooms, and messages that wait for their receives.
pub const LENGTHS: [usize; 6] = [8, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20];
/// Some of them, for the software GPU: an eager message, and one that waits for its receive (eager by TCP).
pub const FEW: [usize; 2] = [8, 64 << 10];

/// Messages in flight of a batch.
const AHEAD: usize = 4;
/// Batches before a rank prints that it exchanges messages, and batches after the loss.
const WARM: usize = 3;
/// Bytes between two consecutive messages of a source, and number of different ones.
const STEP: usize = 16;
const MESSAGES: usize = 251;

/// The time after which a rank whose messages have not ended prints that it waits.
const STALL: Duration = Duration::from_secs(1);
/// Timeout of the messages if the victim stops. It is killed earlier.
const PATIENCE: Duration = Duration::from_secs(30);

/// The victim's part in the messages: a name, whether it sends, and whether it has stopped when it is
/// killed.
pub const VICTIMS: [(&str, bool, bool); 4] = [
    ("sends", true, false),
    ("receives", false, false),
    ("stops sending", true, true),
    ("stops receiving", false, true),
];

/// The side of the parent process.
///
/// # Errors
/// The failures of the remaining ranks.
pub fn killed(runtime: Runtime, gpus: u32, len: usize, victim: usize) -> Verdict {
    let more = format!("{len}:{victim}");
    let all = Ranks::start(ROLE, runtime, [RANKS, gpus], &more)?;
    fail(all, Failure::Killed)
}

/// Runs one rank.
pub fn child_main(arguments: &[String]) -> Verdict {
    let more = arguments.last().and_then(|more| more.split_once(':'));
    let (len, victim) = more.ok_or("a length, and the part of the victim")?;
    let (len, victim) = (len.parse()?, victim.parse::<usize>()?);
    let (_, sends, stops) = *VICTIMS.get(victim).ok_or("no such part")?;
    let ctx = open(arguments, if stops { PATIENCE } else { TIMEOUT })?;
    let rank = ctx.rank();
    let sends = sends == (rank == VICTIM);
    let others = (0..RANKS).filter(|other| *other != rank);
    let needed = others.filter(|other| rank == VICTIM || *other == VICTIM);
    let flows = needed.map(|other| Flow::new(&ctx, other, len, BEFORE));
    let flows = flows.collect::<Verdict<Vec<_>>>()?;
    // The next batch is in flight while one is checked.
    let post = |batch| -> mp::Result<Vec<_>> {
        let each = flows.iter();
        each.map(|flow| flow.post(batch, [sends, !sends])).collect()
    };
    let mut before = post(0)?;
    let (mut batch, mut printed) = (1, false);
    let failed = loop {
        let last = stops && rank == VICTIM && batch == WARM;
        let posted = if last { Ok(Vec::new()) } else { post(batch) };
        let check = |limit| {
            let mut both = flows.iter().zip(&before);
            both.try_for_each(|(flow, posted)| flow.check(batch - 1, posted, limit))
        };
        // The victim has posted no later batch.
        let stalls = stops && !printed && batch > WARM;
        let mut checked = check(if stalls { scaled(STALL) } else { time_limit() });
        if stalls && (checked.as_ref()).is_err_and(|e| e.kind() == Kind::Timeout) {
            println!("{GOING}");
            printed = true;
            checked = check(time_limit());
        }
        // Without a failed request, the victim died between two batches.
        let in_flight = checked.is_err();
        match checked.and(posted) {
            Ok(posted) => before = posted,
            Err(failed) => break (failed, in_flight || stops),
        }
        if last || !stops && batch == WARM {
            println!("{GOING}");
        }
        if last {
            // Until it is killed.
            std::thread::sleep(3 * time_limit());
        }
        batch += 1;
    };
    // The context gave the victim up before it was killed.
    if stops && !printed {
        return Err(failed.0.into());
    }
    continues(&ctx, &failed.0, &flows[0].stream, failed.1)?;
    let friend = (0..RANKS).find(|other| ![rank, VICTIM].contains(other));
    let friend = Flow::new(&ctx, friend.ok_or("no other survivor")?, len, AFTER)?;
    for batch in 0..WARM {
        let posted = friend.post(batch, [true; 2])?;
        friend.check(batch, &posted, time_limit())?;
    }
    finish(&friend.stream, "the stream of the survivors")?;
    leave(&ctx)
}

/// The messages with one other rank, on a stream of their own.
struct Flow<'a> {
    ctx: &'a Context,
    other: u32,
    tag: u32,
    len: usize,
    stream: Stream,
    source: Memory,
    /// Two batches in turn are received there.
    rooms: Memory,
    /// What the other rank sends.
    theirs: Vec<u8>,
}

/// The bytes that a rank sends; message `n` begins at [`start`].
fn bytes(rank: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len + MESSAGES * STEP];
    fastrand::Rng::with_seed(rank.into()).fill(&mut bytes);
    bytes
}

fn start(n: usize) -> usize {
    n % MESSAGES * STEP
}

/// A receive by the number of its message, and its request.
type Received = (usize, Request);

impl Flow<'_> {
    fn new(ctx: &Context, other: u32, len: usize, tag: u32) -> Verdict<Flow<'_>> {
        let device = |len| ctx.alloc(MemoryKind::Device, len);
        let (mine, theirs) = (bytes(ctx.rank(), len), bytes(other, len));
        let source = device(mine.len())?;
        source.write(0, &mine)?;
        Ok(Flow {
            stream: ctx.gpu().stream()?,
            rooms: device(2 * AHEAD * len)?,
            ctx,
            other,
            tag,
            len,
            source,
            theirs,
        })
    }

    /// The offset of the memory that receives message `n`.
    fn room(&self, n: usize) -> usize {
        n % (2 * AHEAD) * self.len
    }

    /// Posts a batch, of which the stream waits for all messages.
    fn post(
        &self,
        batch: usize,
        [sends, receives]: [bool; 2],
    ) -> mp::Result<(Vec<Received>, Vec<Request>)> {
        let (ctx, stream, other, tag) = (self.ctx, &self.stream, self.other, self.tag);
        let (mut received, mut sent) = (Vec::new(), Vec::new());
        let numbers = batch * AHEAD..(batch + 1) * AHEAD;
        for n in numbers.clone().filter(|_| receives) {
            let room = self.rooms.slice(self.room(n), self.len)?;
            received.push((n, ctx.irecv_on(stream, other, tag, &room)?));
        }
        for n in numbers.filter(|_| sends) {
            let data = self.source.slice(start(n), self.len)?;
            sent.push(ctx.isend_on(stream, other, tag, &data)?);
        }
        for (_, request) in &received {
            request.wait_on(stream)?;
        }
        sent.iter()
            .try_for_each(|request| request.wait_on(stream))?;
        Ok((received, sent))
    }

    /// Waits at most `limit` for the messages of a batch, and compares what has arrived. Returns the first
    /// failure.
    ///
    /// # Panics
    /// A message that ended well has wrong bytes.
    fn check(
        &self,
        batch: usize,
        (received, sent): &(Vec<Received>, Vec<Request>),
        limit: Duration,
    ) -> mp::Result<()> {
        let (mut all, begin) = (Ok(()), Instant::now());
        let left = || limit.saturating_sub(begin.elapsed());
        for (n, request) in received {
            match request.wait(left()) {
                Ok(_) => {
                    let mut got = vec![0; self.len];
                    self.rooms.read(self.room(*n), &mut got)?;
                    let wanted = &self.theirs[start(*n)..][..self.len];
                    assert!(got == wanted, "batch {batch}, message {n}: wrong bytes");
                }
                Err(failed) => all = all.and(Err(failed)),
            }
        }
        for request in sent {
            all = all.and(request.wait(left()).map(drop));
        }
        all
    }
}
