//! A random program for two or three ranks: what happens, and nothing about how.
//!
//! A program is a list of steps, which all ranks walk through in the same order. A step
//! concerns two of them: one acts, the other may have to post a receive. [`draw()`] draws steps
//! and the world that they run in, [`agenda`] says what each rank does when.

pub mod agenda;
pub mod draw;

use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use gdsync::memop::Condition;
use gdsync::rdma::QpConfig;
use std::time::Duration;

pub use agenda::Action;
pub use draw::draw;

/// Bytes of a slot behind its message: they must stay as they were.
pub const GUARD: usize = 24;

/// Whether a stream can write a message of that length word by word.
pub fn is_words(len: usize) -> bool {
    (4..=256).contains(&len) && len.is_multiple_of(4)
}

/// What the acting rank asks its NIC to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND, with four bytes beside it or without.
    Send(Option<u32>),
    /// RDMA WRITE; with four bytes beside it, it takes a receive.
    Write(Option<u32>),
    /// RDMA READ of the other rank's source.
    Read,
    /// Adds to a word of the other rank that is this rank's alone.
    FetchAdd(u64),
    /// Exchanges such a word if it is `compare`, which may be wrong on purpose.
    CompareSwap {
        /// What it is compared with.
        compare: u64,
        /// What it becomes.
        swap: u64,
    },
    /// Nothing, in order.
    Nop,
}

impl Kind {
    /// Whether the other rank needs a receive for it.
    pub fn takes_receive(self) -> bool {
        matches!(self, Kind::Send(_) | Kind::Write(Some(_)))
    }

    /// Whether the acting rank sends bytes of its own.
    pub fn carries(self) -> bool {
        matches!(self, Kind::Send(_) | Kind::Write(_))
    }

    /// Whether bytes come back to the acting rank.
    pub fn brings(self) -> bool {
        matches!(
            self,
            Kind::Read | Kind::FetchAdd(_) | Kind::CompareSwap { .. }
        )
    }
}

/// Who posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The CPU.
    Cpu,
    /// One of two streams.
    Stream(usize),
}

/// Who waits for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// Nobody: it is looked at when everything is over.
    Nobody,
    /// The CPU.
    Cpu,
    /// One of two streams.
    Stream(usize),
    /// Both streams, this one first.
    Both(usize),
}

/// Who writes the bytes of a message, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// The CPU, before the request is posted.
    Cpu,
    /// The posting stream copies them into place.
    Copy,
    /// The posting stream writes them in the same list, word by word.
    Words,
    /// The other stream writes them and then a word that the posting stream waits for.
    Handed {
        /// How the posting stream compares the word.
        condition: Condition,
        /// Whether the word has 64 bits.
        wide: bool,
    },
}

/// When a receive is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// That many actions before its turn, if there is room by then.
    Early(usize),
    /// In its turn.
    InTurn,
    /// That many actions after its turn, by the CPU: the message has to wait.
    Late(usize),
}

/// A receive.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// Who posts it.
    pub by: By,
    /// When.
    pub when: When,
    /// Who waits for it: if it is posted late, no stream.
    pub wait: Waiter,
    /// Where its memory is cut into segments, ascending.
    pub cuts: [usize; 2],
    /// Another one is prepared behind it and aborted.
    pub newest_aborted: bool,
}

/// One step: `from` does something towards `to`.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The acting rank.
    pub from: usize,
    /// The other one.
    pub to: usize,
    /// What.
    pub kind: Kind,
    /// Bytes.
    pub len: usize,
    /// The bytes travel in the entry.
    pub inline: bool,
    /// Where its local memory is cut into segments, ascending.
    pub cuts: [usize; 2],
    /// Starts only behind earlier READs and atomics.
    pub fenced: bool,
    /// Who rings.
    pub by: By,
    /// Whether a completion is asked for.
    pub signaled: bool,
    /// Who waits for it; nobody, if none is asked for.
    pub wait: Waiter,
    /// Who writes the message.
    pub ink: Ink,
    /// Prepared with wrong length, address and key, put right by the stream.
    pub patched: bool,
    /// The same for the address and key of the other rank's memory.
    pub patched_remote: bool,
    /// A request is prepared before this one and aborted after it was prepared: a hole.
    pub hole: bool,
    /// A request is prepared after this one and aborted at once.
    pub newest_aborted: bool,
    /// The list is first handed over with something in it that is refused.
    pub spoiled: bool,
    /// The list stays open for what the stream has to do next.
    pub left_open: bool,
    /// What the other rank receives it with.
    pub receive: Option<Receive>,
}

/// A rank's machines.
#[derive(Clone, Debug)]
pub struct Seat {
    /// How its GPU is made.
    pub options: SoftOptions,
    /// Where received bytes land.
    pub landing: MemoryKind,
    /// Where messages lie.
    pub source: MemoryKind,
    /// How its queue pair to each other rank is made.
    pub queues: Vec<Option<QpConfig>>,
}

/// What stands still for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// A rank's GPU.
    Gpu,
    /// A rank's NIC.
    Nic,
    /// A rank's watcher.
    Watcher,
    /// A rank itself.
    Cpu,
    /// What joins the NICs.
    Links,
}

/// A pause of a part of the world.
#[derive(Clone, Copy, Debug)]
pub struct Hiccup {
    /// Whose part.
    pub rank: usize,
    /// Which part.
    pub victim: Victim,
    /// When it starts, from when the ranks are connected.
    pub after: Duration,
    /// How long it takes.
    pub lasts: Duration,
}

/// A program and the world it runs in.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The ranks.
    pub seats: Vec<Seat>,
    /// The steps in order.
    pub steps: Vec<Step>,
    /// Where each step's slot begins, in every memory; one more for the end.
    pub slots: Vec<usize>,
    /// What each rank does in order.
    pub agendas: Vec<Vec<Action>>,
    /// What stands still for a while.
    pub hiccups: Vec<Hiccup>,
}

impl Plan {
    /// Bytes of a step's slot.
    pub fn slot(&self, step: usize) -> usize {
        self.slots[step + 1] - self.slots[step]
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> usize {
        self.slots[self.steps.len()]
    }

    /// Whether the bytes of a step land at `rank`.
    pub fn lands(&self, step: usize, rank: usize) -> bool {
        let step = &self.steps[step];
        match step.kind {
            Kind::Send(_) | Kind::Write(_) => step.to == rank,
            Kind::Nop => false,
            _ => step.from == rank,
        }
    }
}
