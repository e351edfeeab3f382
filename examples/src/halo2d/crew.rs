//! Who is still there: how the ranks of a run find out together that one of them is lost.
//!
//! A rank that is lost stops its neighbours, these stop theirs, and soon everybody waits for
//! somebody who lives. So whoever has waited for long calls the roll: it asks all others, and who
//! does not answer is lost. Whoever has lost a rank, in this way or by an error of the context,
//! tells all others, and with that how many iterations it has begun. Each rank has a receive from
//! anybody for such notes, at which it looks whenever it waits.
//!
//! Those that are left go on to the same iteration, the last that any of them has begun, without
//! the lost one's halos. Then nothing is under way between them, their streams are idle, and the
//! context can be used on. The error that they return names the rank that was lost.

use std::sync::Arc;
use std::time::Duration;

use mp::gdsync::gpu::MemoryKind;
use mp::gdsync::{Status, Stream};
use mp::{Context, Error, Kind, Memory, RecvOp, Request, Result, SendOp, Source};

use super::Config;

/// Tags: of notes, and of the messages by which all ranks meet at the start and at the end.
const TAG_NOTE: u32 = 20;
const TAG_MEET: u32 = 21;
/// How much longer than an answer the last rank may take to come to the run: some may have waited
/// for the context to find out that another does not.
const START: u32 = 8;
/// Between two looks at notes.
const PERIOD: Duration = Duration::from_millis(2);
const OPERATION: &str = "run halo2d";

/// What ranks tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Note {
    /// Are you there?
    Ask,
    /// I am.
    Here,
    /// `rank` is lost; the teller has begun so many iterations.
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

/// What one rank knows of another.
#[derive(Clone, Copy, Debug, Default)]
struct Other {
    lost: bool,
    /// There is a way for its messages.
    open: bool,
    /// It has told whom it has lost.
    heard: bool,
    /// Since when it owes an answer.
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
    /// The next note, from anybody, and where it goes.
    note: Request,
    mail: Memory,
    /// Notes for which there was no room.
    outbox: Vec<(u32, Note)>,
    /// All have met for the first time: whoever is asked answers.
    met: bool,
    /// Since when nothing was waited for, or the roll was not called.
    calm: Duration,
    /// Iterations that were begun here, and the most that others told of.
    begun: u64,
    told: u64,
    first: Option<Error>,
}

impl Drop for Crew<'_> {
    fn drop(&mut self) {
        // One that has matched ends by itself.
        let _ = self.note.cancel();
    }
}

impl<'a> Crew<'a> {
    /// The ranks of the context, of which none is known to be lost.
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

    /// Notes that an iteration is begun, so that there are so many now.
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
    /// That one, if a rank is lost.
    pub fn complete(&mut self) -> Result<()> {
        self.first.take().map_or(Ok(()), Err)
    }

    /// The other ranks that are left.
    fn left(&self) -> Vec<u32> {
        let me = self.ctx.rank();
        let ranks = 0..self.ctx.size();
        ranks
            .filter(|rank| *rank != me && !self.is_lost(*rank))
            .collect()
    }

    /// Takes an error in: one that says of another rank that it is lost is told to the others.
    ///
    /// # Errors
    /// Any other.
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
            // Streams may stand at its messages: a receive whose time is over at once makes the
            // context give it up, too.
            let empty = [self.mail.slice(0, 0)?];
            let end = RecvOp::new(rank, TAG_MEET, &empty).timeout(PERIOD);
            drop(self.ctx.post_recv(&end));
        }
        let begun = self.begun;
        let tell = |to| (to, Note::Lost { rank, begun });
        self.outbox.extend(self.left().into_iter().map(tell));
        Ok(())
    }

    /// Takes in what others told, and answers.
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
                // Who is taken for lost itself learns that from the context.
                if rank != self.ctx.rank() {
                    let kind = Kind::PeerFailed(Status::REMOTE_ABORTED);
                    let what = format!("it is lost, says rank {from}");
                    self.loses(Error::new(OPERATION, kind, what).with_rank(rank))?;
                }
            }
        }
        Ok(())
    }

    fn tell(&self, to: u32, note: Note) -> Result<()> {
        let memory = self.ctx.alloc(MemoryKind::Pinned, Note::BYTES)?;
        memory.write(0, &note.to_bytes())?;
        // It has its memory until it has gone.
        drop(self.ctx.isend(to, TAG_NOTE, &memory.all())?);
        Ok(())
    }

    /// What is to be done while something does not end: listen, and call the roll.
    fn stalls(&mut self) -> Result<()> {
        self.listen()?;
        if !self.met {
            return Ok(());
        }
        let (now, answer_limit) = ((self.clock)(), self.answer_limit);
        let owes = |other: &Other| other.asked.is_some_and(|asked| now - asked > answer_limit);
        for rank in self.left() {
            if owes(&self.others[rank as usize]) {
                let what = format!("it did not answer within {answer_limit:?}");
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

    /// Waits until a condition holds, which answers who is waited for; ranks for which that takes
    /// longer than the limit are lost.
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

    /// Waits until all of `requests` have ended, those of lost ranks in whatever way.
    ///
    /// # Errors
    /// That of one that failed and names no other rank.
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

    /// Waits until a stream is done.
    ///
    /// # Errors
    /// Those of the stream; `Timeout`.
    pub fn synchronize(&mut self, stream: &Stream) -> Result<()> {
        let limit = self.limit;
        self.until(|_| {
            let done = stream.synchronize(PERIOD)?;
            let late = || Error::new(OPERATION, Kind::Timeout, format!("{stream:?}"));
            Ok((!done).then(|| late().with_limit(limit.as_millis())))
        })
    }

    /// Does what may find no room, when there is some. `None`: the rank concerned is lost.
    ///
    /// # Errors
    /// Those that name no other rank; `QueueFull` after the limit.
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

    /// Waits until all ranks that are left have come to the same call. Nothing that one has told
    /// another is under way then.
    ///
    /// # Errors
    /// Those that name no other rank.
    pub fn meet(&mut self) -> Result<()> {
        let mut requests = Vec::new();
        for rank in self.left() {
            requests.extend(self.greet(rank)?.into_iter().flatten());
        }
        self.wait(&requests)?;
        self.met = true;
        self.settle()
    }

    /// Posts the messages by which this rank and another one meet. `None`: it is lost.
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
            // Opens the way for notes: later the rank may not answer.
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

    /// Waits until no rank owes an answer, nor, if a rank is lost, word of it.
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
            // Its end is looked at by `listen`.
            let _ = crew.note.wait(PERIOD);
            let late = Error::new(OPERATION, Kind::Timeout, "it does not say whom it has lost");
            Ok(Some(late.with_rank(rank)))
        })
    }

    /// After a loss: how many iterations those that are left have to do.
    ///
    /// # Errors
    /// Those that name no other rank.
    pub fn last(&mut self) -> Result<u64> {
        self.settle()?;
        Ok(self.told.max(self.begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written() {
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
