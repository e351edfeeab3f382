//! The settings of messages, as numbers: the settings of contexts, and the number and direction of
//! messages.

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
    /// Varies from message to message.
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
    /// Varies from message to message.
    Mixed,
}

/// The destinations of a rank's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The next rank.
    Next,
    /// All ranks, including itself.
    All,
    /// Itself, by the path without a NIC.
    Itself,
}

/// The segments of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One segment.
    Single,
    /// Several segments.
    Vectors,
    /// One segment; a word contains the part of it that is sent.
    Words,
}

/// The lengths of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// All messages have the same length.
    Bytes(usize),
    /// One of [`ODD`], which varies from message to message.
    Odd,
    /// Around the contexts' eager limit, and up to this number of bytes.
    Around(usize),
}

/// Odd lengths, which are a multiple of no common size.
pub const ODD: [usize; 6] = [3, 63, 777, 4097, 65_539, 300_001];

/// Guard bytes in front of and behind a received message, which must stay unchanged.
pub const GUARD: usize = 64;
/// Most segments of a message.
pub const SEGMENTS: usize = 30;
/// Most bytes between two segments.
pub const GAP: usize = 33;
/// Most bytes by which a receive is larger than its message.
pub const SLACK: usize = 70;

/// Most rounds by which a rank is ahead of its streams.
const AHEAD: usize = 8;

/// The settings of a program of messages, the same on all ranks.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The poster of sends.
    pub sender: Poster,
    /// The poster of receives.
    pub receiver: Poster,
    /// The waiter.
    pub waiter: Waiter,
    /// The contexts' doorbell.
    pub doorbell: Doorbell,
    /// How a stream executes posts and waits.
    pub lowering: Lowering,
    /// The memory of sends.
    pub from: BufferKind,
    /// The memory of receives.
    pub into: BufferKind,
    /// The lengths of messages.
    pub size: Size,
    /// The number of ranks.
    pub ranks: u32,
    /// The segments of messages.
    pub form: Form,
    /// Number of tags, from the first on, that are received from any rank.
    pub wild: u32,
    /// Whether those receives are posted before the first message.
    pub wild_ahead: bool,
    /// The contexts' eager limit in bytes.
    pub eager: usize,
    /// The contexts' depth.
    pub depth: u32,
    /// Sequence number of the first message.
    pub first: u64,
    /// Number of tags of each pair of ranks.
    pub tags: u32,
    /// Number of streams of each rank.
    pub streams: u32,
    /// The destinations of each rank.
    pub reach: Reach,
    /// Whether only rank 0 sends, and may get far ahead of the others.
    pub one_way: bool,
    /// Whether connections are made before the first message.
    pub up_front: bool,
    /// Whether the ranks make progress themselves (manual progress).
    pub manual: bool,
    /// Whether requests are prepared before they are posted.
    pub prepared: bool,
    /// Whether prepared requests are bound to their streams when they are posted, several at once.
    pub late: bool,
    /// Whether sends are waited for one round later.
    pub lag: usize,
    /// Number of messages of each channel.
    pub messages: usize,
    /// Whether some requests are prepared and cancelled, some messages are too long for their
    /// receives, and some sends are dropped at once.
    pub hazards: bool,
    /// The seed of all random values.
    pub seed: u64,
}

impl Setup {
    /// Length of the longest message in bytes.
    pub fn longest(&self) -> usize {
        match self.size {
            Size::Bytes(bytes) | Size::Around(bytes) => bytes,
            Size::Odd => ODD[ODD.len() - 1],
        }
    }

    /// The ranks that a rank sends to, and those that it receives from.
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

    /// Bytes of a slot for one message, with guards and gaps.
    pub fn slot(&self) -> usize {
        let gaps = match self.form {
            Form::Vectors => SEGMENTS * GAP,
            _ => 0,
        };
        (self.longest() + SLACK + gaps + 16 + 2 * GUARD).next_multiple_of(64)
    }

    /// Messages of a channel in one round: half of its slots. The receiver returns credits in runs
    /// of half the slots, so up to half of the slots may be taken messages without a returned
    /// credit; the messages of one round need only the other half.
    pub fn window(&self) -> usize {
        self.depth as usize / 2
    }

    /// Number of rounds.
    pub fn rounds(&self) -> usize {
        self.messages.div_ceil(self.window())
    }

    /// Number of channels from each rank, and to each rank.
    pub fn channels(&self) -> usize {
        let peers = match self.reach {
            Reach::All => self.ranks,
            Reach::Next | Reach::Itself => 1,
        };
        (peers * self.tags) as usize
    }

    /// Rounds after which a rank waits for its streams and checks what they have received.
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

    /// Whether ranks synchronize after each round: otherwise a receive from any rank might match a
    /// message of a rank that is ahead, instead of one that is due.
    pub fn meets(&self) -> bool {
        self.wild > 0 && self.reach == Reach::All && !self.one_way
    }
}
