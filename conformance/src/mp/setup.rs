//! What messages are like, as numbers: what contexts are built with, and how many messages go where.

use gdsync::rdma::{Doorbell, Lowering};

use super::memory::BufferKind;

/// The poster of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poster {
    /// The CPU.
    Cpu,
    /// A stream.
    Stream,
    /// A stream, by a CPU thread.
    CpuThread,
    /// One or another, from message to message.
    Mixed,
}

/// The waiter of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// Their poster.
    Poster,
    /// The CPU for those of streams, a stream for those of the CPU.
    Other,
    /// Another stream, if there are several.
    Another,
    /// One or another, from message to message.
    Mixed,
}

/// To whom a rank sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To the next one.
    Next,
    /// To all, itself too.
    All,
    /// To itself, by the path that needs no NIC.
    Itself,
}

/// What messages are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One segment.
    Single,
    /// Several.
    Vectors,
    /// One segment, whose part that is sent a word tells.
    Words,
}

/// How long messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// All the same.
    Bytes(usize),
    /// One of [`ODD`], from message to message.
    Odd,
    /// Around the contexts' limit of eager messages, and up to so many bytes.
    Around(usize),
}

/// Lengths that nothing is a multiple of.
pub const ODD: [usize; 6] = [3, 63, 777, 4097, 65_539, 300_001];

/// Guard bytes in front of and behind a received message, which must stay unchanged.
pub const GUARD: usize = 64;
/// Most segments of a message.
pub const SEGMENTS: usize = 30;
/// Most bytes between two of them.
pub const GAP: usize = 33;
/// Most bytes by which a receive has more room than its message needs.
pub const SLACK: usize = 70;

/// Rounds that a rank is ahead of its streams at most.
const AHEAD: usize = 8;

/// What all ranks know of their messages.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Posts sends.
    pub sender: Poster,
    /// Posts receives.
    pub receiver: Poster,
    /// Waits.
    pub waiter: Waiter,
    /// The contexts' doorbell.
    pub doorbell: Doorbell,
    /// How posts and waits become work of a stream.
    pub lowering: Lowering,
    /// What is sent lies here.
    pub from: BufferKind,
    /// What is received lands here.
    pub into: BufferKind,
    /// Lengths.
    pub size: Size,
    /// Ranks.
    pub ranks: u32,
    /// What messages are made of.
    pub form: Form,
    /// How many tags, from the first on, are received from any rank.
    pub wild: u32,
    /// These are posted before the first message.
    pub wild_ahead: bool,
    /// The contexts' limit.
    pub eager: usize,
    /// The contexts' depth.
    pub depth: u32,
    /// Number of the first message.
    pub first: u64,
    /// Tags of each pair of ranks.
    pub tags: u32,
    /// Streams of each rank.
    pub streams: u32,
    /// To whom each rank sends.
    pub reach: Reach,
    /// Rank 0 alone sends, and may get far ahead of the others.
    pub one_way: bool,
    /// Connections are made before the first message.
    pub up_front: bool,
    /// Ranks do the background work themselves.
    pub manual: bool,
    /// Requests are prepared before they are posted.
    pub prepared: bool,
    /// Sends are waited for a round later.
    pub lag: usize,
    /// Messages of each channel.
    pub messages: usize,
    /// Some requests are prepared and cancelled, some messages too long for their receives, some
    /// sends let go at once.
    pub hazards: bool,
    /// What is random is drawn from this.
    pub seed: u64,
}

impl Setup {
    /// Longest message.
    pub fn longest(&self) -> usize {
        match self.size {
            Size::Bytes(bytes) | Size::Around(bytes) => bytes,
            Size::Odd => ODD[ODD.len() - 1],
        }
    }

    /// To whom a rank sends, and from whom it receives.
    pub fn peers(&self, me: u32) -> [Vec<u32>; 2] {
        let ranks = self.ranks;
        let [to, from] = match self.reach {
            Reach::All => [(0..ranks).collect(), (0..ranks).collect()],
            Reach::Next => [vec![(me + 1) % ranks], vec![(me + ranks - 1) % ranks]],
            Reach::Itself => [vec![me], vec![me]],
        };
        match (self.one_way, me) {
            (false, _) => [to, from],
            (true, 0) => [to, from.into_iter().filter(|from| *from == 0).collect()],
            (true, _) => [vec![], from.into_iter().filter(|from| *from == 0).collect()],
        }
    }

    /// Room for one message and all that surrounds it.
    pub fn slot(&self) -> usize {
        let gaps = match self.form {
            Form::Vectors => SEGMENTS * GAP,
            _ => 0,
        };
        (self.longest() + SLACK + gaps + 16 + 2 * GUARD).next_multiple_of(64)
    }

    /// Messages of a channel in one round. That one was taken a sender may learn with the next
    /// half of the slots, so no more than half of them are sent before the first must be taken.
    pub fn window(&self) -> usize {
        self.depth as usize / 2
    }

    /// Rounds.
    pub fn rounds(&self) -> usize {
        self.messages.div_ceil(self.window())
    }

    /// Channels from each rank, and to each.
    pub fn channels(&self) -> usize {
        let peers = match self.reach {
            Reach::All => self.ranks,
            Reach::Next | Reach::Itself => 1,
        };
        (peers * self.tags) as usize
    }

    /// Rounds after which a rank waits for its streams and looks at what they have received.
    pub fn ahead(&self) -> usize {
        let streams = |poster| matches!(poster, Poster::Stream | Poster::CpuThread);
        let never_cpu = streams(self.sender)
            && streams(self.receiver)
            && matches!(self.waiter, Waiter::Poster | Waiter::Another);
        match never_cpu && self.wild == 0 {
            true => AHEAD.min(self.rounds()),
            false => 1,
        }
    }

    /// Whether ranks meet after each round: else a receive from anybody might take the message of a
    /// rank that is ahead, in place of one that is due.
    pub fn meets(&self) -> bool {
        self.wild > 0 && self.reach == Reach::All && !self.one_way
    }
}
