//! Detection of lost ranks: how the ranks of a run agree that one of them is lost.
//!
//! A lost rank blocks its neighbours, and these block theirs; soon every rank waits for a living
//! one. A rank that has waited for a long time therefore probes all others, and treats those that
//! do not answer as lost. A rank that has lost another, in this way or by an error of the context,
//! notifies all others. The notification contains the number of iterations that it has begun. Each
//! rank has a receive from any rank for these notes and polls it during every wait.
//!
//! The remaining ranks continue to the same iteration, the last that any of them has begun, without
//! the halos of the lost rank. Then no message is in flight between them, their streams are idle,
//! and the context remains usable. The error that they return names the lost rank.

use std::sync::Arc;
use std::time::Duration;

use mp::gdsync::gpu::MemoryKind;
use mp::gdsync::{Status, Stream};
use mp::{Context, Error, Kind, Memory, RecvOp, Request, Result, SendOp, Source};

use super::Config;

/// Tags of notes, and of the messages by which all ranks meet at the start and at the end.
const TAG_NOTE: u32 = 20;
const TAG_MEET: u32 = 21;
/// The time limit for the last rank to start, as a multiple of the limit for an answer: some ranks
/// may first have waited for the context to detect that another does not answer.
const START: u32 = 8;
/// The interval between two polls for notes.
const PERIOD: Duration = Duration::from_millis(2);
const OPERATION: &str = "run halo2d";

/// A note between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Note {
    /// A probe: the receiver must answer.
    Ask,
    /// The answer to a probe.
    Here,
    /// `rank` is lost; the sender has begun `begun` iterations.
    Lost { rank: u32, begun: u64 },
}

impl Note {
    const BYTES: usize = 16;

    fn to_bytes(self) -> [u8; Note::BYTES] {
        let (kind, rank, begun) = match self {
            Note::Ask => (0u32, 0, 0),
            Note::Here => (1, 0, 0),
            Note::Lost { rank, begun } => (2, rank, begun),
        };
        let mut bytes = [0; Note::BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&rank.to_le_bytes());
        bytes[8..].copy_from_slice(&begun.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; Note::BYTES]) -> Option<Note> {
        let ([kind, rank, ..], _) = bytes.as_chunks::<4>() else {
            return None;
        };
        let (words, _) = bytes.as_chunks::<8>();
        match u32::from_le_bytes(*kind) {
            0 => Some(Note::Ask),
            1 => Some(Note::Here),
            2 => Some(Note::Lost {
                rank: u32::from_le_bytes(*rank),
                begun: words.get(1).copied().map_or(0, u64::from_le_bytes),
            }),
            _ => None,
        }
    }
}

/// The state of another rank, as one rank sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Other {
    lost: bool,
    /// The connection for its messages is open.
    open: bool,
    /// It has named its lost rank.
    heard: bool,
    /// When the unanswered probe was sent.
    asked: Option<Duration>,
}

/// The ranks of a run, as one of them sees them.
pub struct Crew<'a> {
    ctx: &'a Context,
    /// Time since the start, by the clock of the GPU's driver.
    clock: Box<dyn Fn() -> Duration>,
    limit: Duration,
    answer_limit: Duration,
    others: Vec<Other>,
    /// The pending receive of the next note, from any rank, and its memory.
    note: Request,
    mail: Memory,
    /// Notes that are queued because there was no room.
    outbox: Vec<(u32, Note)>,
    /// All ranks have met for the first time, so each answers probes.
    met: bool,
    /// When the current wait, or its last probe, began.
    calm: Duration,
    /// Iterations begun here, and the maximum in the notes of other ranks.
    begun: u64,
    told: u64,
    first: Option<Error>,
}

impl Drop for Crew<'_> {
    fn drop(&mut self) {
        // A receive that has matched ends by itself.
        let _ = self.note.cancel();
    }
}

impl<'a> Crew<'a> {
    /// The ranks of the context; none is known to be lost yet.
    ///
    /// # Errors
    /// Those of allocating, and of a receive.
    pub fn new(ctx: &'a Context, config: &Config) -> Result<Crew<'a>> {
        let host = Arc::clone(ctx.gpu().host());
        let start = host.now();
        let mail = ctx.alloc(MemoryKind::Pinned, Note::BYTES)?;
        Ok(Crew {
            ctx,
            clock: Box::new(move || host.now() - start),
            limit: config.limit,
            answer_limit: config.answer_limit,
            others: vec![Other::default(); ctx.size() as usize],
            note: ctx.irecv(Source::Any, TAG_NOTE, &mail.all())?,
            mail,
            outbox: Vec::new(),
            met: false,
            calm: Duration::ZERO,
            begun: 0,
            told: 0,
            first: None,
        })
    }

    /// Records that `begun` iterations have begun.
    pub fn begins(&mut self, begun: u64) {
        self.begun = begun;
    }

    /// Whether a rank is lost.
    pub fn is_lost(&self, rank: u32) -> bool {
        self.others[rank as usize].lost
    }

    /// Whether any rank is lost.
    pub fn has_lost(&self) -> bool {
        self.first.is_some()
    }

    /// The error that names the rank that was lost first.
    ///
    /// # Errors
    /// That error, if a rank is lost.
    pub fn complete(&mut self) -> Result<()> {
        self.first.take().map_or(Ok(()), Err)
    }

    /// The other ranks that are not lost.
    fn left(&self) -> Vec<u32> {
        let me = self.ctx.rank();
        let ranks = 0..self.ctx.size();
        ranks
            .filter(|rank| *rank != me && !self.is_lost(*rank))
            .collect()
    }

    /// Handles an error. If it says that another rank is lost, the remaining ranks are notified.
    ///
    /// # Errors
    /// Any other error.
    fn loses(&mut self, e: Error) -> Result<()> {
        let lost = matches!(
            e.kind(),
            Kind::PeerFailed(_) | Kind::Failed(_) | Kind::Timeout
        );
        let rank = match e.rank() {
            Some(rank) if lost && rank != self.ctx.rank() => rank,
            _ => return Err(e),
        };
        let Some(other) = self.others.get_mut(rank as usize) else {
            return Err(e);
        };
        if std::mem::replace(&mut other.lost, true) {
            return Ok(());
        }
        other.asked = None;
        let open = other.open;
        self.first.get_or_insert(e);
        if open {
            // Streams may be blocked at its messages: a receive with an immediate timeout makes the
            // context treat the rank as failed, too.
            let empty = [self.mail.slice(0, 0)?];
            let end = RecvOp::new(rank, TAG_MEET, &empty).timeout(PERIOD);
            drop(self.ctx.post_recv(&end));
        }
        let begun = self.begun;
        let tell = |to| (to, Note::Lost { rank, begun });
        self.outbox.extend(self.left().into_iter().map(tell));
        Ok(())
    }

    /// Handles received notes, and sends answers.
    ///
    /// # Errors
    /// Those of receives; of sends, those that name no other rank.
    pub fn listen(&mut self) -> Result<()> {
        loop {
            let taken = self.note.test();
            if let Ok(None) = taken {
                break;
            }
            let mut bytes = [0; Note::BYTES];
            self.mail.read(0, &mut bytes)?;
            self.note = self.ctx.irecv(Source::Any, TAG_NOTE, &self.mail.all())?;
            if let (Ok(Some(done)), Some(note)) = (taken, Note::from_bytes(bytes)) {
                self.hears(done.source(), note)?;
            }
        }
        let mut kept = Vec::new();
        while let Some((to, note)) = self.outbox.pop() {
            if self.is_lost(to) {
                continue;
            }
            match self.tell(to, note) {
                Ok(()) => {}
                Err(e) if e.kind() == Kind::QueueFull => kept.push((to, note)),
                Err(e) => self.loses(e)?,
            }
        }
        self.outbox = kept;
        Ok(())
    }

    fn hears(&mut self, from: u32, note: Note) -> Result<()> {
        let other = &mut self.others[from as usize];
        match note {
            Note::Ask => self.outbox.push((from, Note::Here)),
            Note::Here => other.asked = None,
            Note::Lost { rank, begun } => {
                other.heard = true;
                self.told = self.told.max(begun);
                // A rank that others treat as lost gets the error from the context.
                if rank != self.ctx.rank() {
                    let kind = Kind::PeerFailed(Status::REMOTE_ABORTED);
                    let what = format!("rank {from} reports that rank {rank} is lost");
                    self.loses(Error::new(OPERATION, kind, what).with_rank(rank))?;
                }
            }
        }
        Ok(())
    }

    fn tell(&self, to: u32, note: Note) -> Result<()> {
        let memory = self.ctx.alloc(MemoryKind::Pinned, Note::BYTES)?;
        memory.write(0, &note.to_bytes())?;
        // The request keeps its memory until it has ended.
        drop(self.ctx.isend(to, TAG_NOTE, &memory.all())?);
        Ok(())
    }

    /// Does the work of a wait: handles notes, and probes the other ranks.
    fn stalls(&mut self) -> Result<()> {
        self.listen()?;
        if !self.met {
            return Ok(());
        }
        let (now, answer_limit) = ((self.clock)(), self.answer_limit);
        let owes = |other: &Other| other.asked.is_some_and(|asked| now - asked > answer_limit);
        for rank in self.left() {
            if owes(&self.others[rank as usize]) {
                let what = format!("rank {rank} did not answer within {answer_limit:?}");
                let error = Error::new(OPERATION, Kind::Timeout, what);
                self.loses(error.with_rank(rank))?;
            }
        }
        if now - self.calm > answer_limit {
            self.calm = now;
            for rank in self.left() {
                let other = &mut self.others[rank as usize];
                if other.asked.is_none() {
                    other.asked = Some(now);
                    self.outbox.push((rank, Note::Ask));
                }
            }
        }
        self.listen()
    }

    /// Waits until `open` returns `None`. `open` returns an error that names the awaited rank; if
    /// the wait exceeds the limit, that rank is lost.
    fn until(&mut self, mut open: impl FnMut(&mut Self) -> Result<Option<Error>>) -> Result<()> {
        self.calm = (self.clock)();
        let mut start = self.calm;
        while let Some(late) = open(self)? {
            self.stalls()?;
            if (self.clock)() - start > self.limit {
                if late.rank().is_some_and(|rank| self.is_lost(rank)) {
                    return Err(late);
                }
                self.loses(late)?;
                start = (self.clock)();
            }
        }
        Ok(())
    }

    /// Waits until all of `requests` have ended; those of lost ranks may have failed.
    ///
    /// # Errors
    /// The error of a failed request, if it names no other rank.
    pub fn wait(&mut self, requests: &[Request]) -> Result<()> {
        self.until(|crew| {
            let mut late = None;
            if mp::wait_all(requests, PERIOD).is_err() {
                for request in requests {
                    match request.wait(Duration::ZERO) {
                        Ok(_) => {}
                        Err(e) if e.kind() == Kind::Timeout => _ = late.get_or_insert(e),
                        Err(e) => crew.loses(e)?,
                    }
                }
            }
            Ok(late)
        })
    }

    /// Waits until a stream has executed all its work.
    ///
    /// # Errors
    /// Those of the stream; `Timeout`.
    pub fn synchronize(&mut self, stream: &Stream) -> Result<()> {
        let limit = self.limit;
        self.until(|_| {
            let done = stream.synchronize(PERIOD)?;
            let what = || format!("{stream:?} did not execute all its work in time");
            let late = || Error::new(OPERATION, Kind::Timeout, what());
            Ok((!done).then(|| late().with_limit(limit.as_millis(), "ms")))
        })
    }

    /// Retries `attempt` while a queue is full. `None`: the rank of the request is lost.
    ///
    /// # Errors
    /// Errors that name no other rank; `QueueFull` after the limit.
    pub fn post<T>(&mut self, mut attempt: impl FnMut() -> Result<T>) -> Result<Option<T>> {
        let full = |e: &Error| e.kind() == Kind::QueueFull;
        let mut answer = attempt();
        if matches!(&answer, Err(e) if full(e)) {
            let (ctx, host) = (self.ctx, Arc::clone(self.ctx.gpu().host()));
            let (start, limit) = ((self.clock)(), self.limit);
            self.calm = start;
            while matches!(&answer, Err(e) if full(e)) && (self.clock)() - start < limit {
                self.stalls()?;
                host.wait_until(Some(host.now() + PERIOD), &mut || {
                    ctx.progress();
                    answer = attempt();
                    !matches!(&answer, Err(e) if full(e))
                });
            }
        }
        match answer {
            Ok(done) => Ok(Some(done)),
            Err(e) => self.loses(e).map(|()| None),
        }
    }

    /// Waits until all remaining ranks have reached the same call. After it, no note is in flight
    /// between them.
    ///
    /// # Errors
    /// Errors that name no other rank.
    pub fn meet(&mut self) -> Result<()> {
        let mut requests = Vec::new();
        for rank in self.left() {
            requests.extend(self.greet(rank)?.into_iter().flatten());
        }
        self.wait(&requests)?;
        self.met = true;
        self.settle()
    }

    /// Posts the messages by which this rank and another one meet. `None`: the other rank is lost.
    fn greet(&mut self, rank: u32) -> Result<Option<[Request; 2]>> {
        let (ctx, met) = (self.ctx, self.met);
        let segments = [self.mail.slice(0, 0)?];
        let recv = match met {
            true => RecvOp::new(rank, TAG_MEET, &segments),
            false => RecvOp::new(rank, TAG_MEET, &segments).timeout(START * self.answer_limit),
        };
        let Some(recv) = self.post(|| ctx.post_recv(&recv))? else {
            return Ok(None);
        };
        self.others[rank as usize].open = true;
        if !met {
            // Opens the connection for notes: later the rank may not answer.
            let segments = [self.mail.all()];
            let note = SendOp::new(rank, TAG_NOTE, &segments);
            if self.post(|| ctx.prepare_send(&note))?.is_none() {
                return Ok(None);
            }
        }
        let [empty] = &segments;
        let send = self.post(|| ctx.isend(rank, TAG_MEET, empty))?;
        Ok(send.map(|send| [recv, send]))
    }

    /// Waits until no probe is unanswered and, if a rank is lost, until each remaining rank has
    /// named its lost rank.
    fn settle(&mut self) -> Result<()> {
        self.until(|crew| {
            crew.listen()?;
            let owes = |crew: &Self, rank: u32| {
                let other = &crew.others[rank as usize];
                other.asked.is_some() || crew.has_lost() && !other.heard
            };
            let rank = crew.left().into_iter().find(|rank| owes(crew, *rank));
            let Some(rank) = rank else {
                return Ok(None);
            };
            // `listen` handles the completion.
            let _ = crew.note.wait(PERIOD);
            let what = format!("rank {rank} did not name the rank that it has lost");
            let late = Error::new(OPERATION, Kind::Timeout, what);
            Ok(Some(late.with_rank(rank)))
        })
    }

    /// The number of iterations that the remaining ranks must complete after a loss.
    ///
    /// # Errors
    /// Errors that name no other rank.
    pub fn last(&mut self) -> Result<u64> {
        self.settle()?;
        Ok(self.told.max(self.begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_between_ranks_round_trip() {
        let lost = Note::Lost {
            rank: 7,
            begun: u64::MAX - 3,
        };
        for note in [Note::Ask, Note::Here, lost] {
            assert_eq!(Note::from_bytes(note.to_bytes()), Some(note));
        }
        assert_eq!(Note::from_bytes([9; Note::BYTES]), None);
    }
}
