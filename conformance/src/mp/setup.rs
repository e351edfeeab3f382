//! What cells differ in, and a cell as numbers: what contexts are built with, how many messages go
//! where, and what that costs.

use std::time::Duration;

use mp::{Builder, Connect, NicOptions, Progress};

use gdsync::rdma::{Doorbell, Lowering, Provider, QpConfig};

use super::memory::Place;
use crate::cover::{self, Axis, Cell};
use crate::live::limits::scaled;
use crate::live::provider;

/// What cells differ in. The first six are multiplied out by [`whole`](super::cells::whole).
pub const AXES: [Axis; 20] = [
    (
        "model",
        &[
            "cpu",
            "stream",
            "proxy",
            "cpu to stream",
            "stream to cpu",
            "proxy to stream",
            "mixed",
        ],
    ),
    ("provider", &["ring", "proxy"]),
    ("from", &["device", "pinned", "pageable", "registered"]),
    (
        "size",
        &["0", "1", "4", "64", "4K", "64K", "1M", "4M", "odd"],
    ),
    ("ranks", &["2", "3", "4", "8"]),
    ("laps", &["part", "2", "8"]),
    ("into", &["device", "pinned", "pageable", "registered"]),
    // Who waits for a request, as seen from who has posted it.
    ("ended", &["poster", "other", "another stream", "mixed"]),
    ("form", &["single", "vectors", "words"]),
    ("source", &["named", "anybody"]),
    ("eager", &["1", "4K", "64K", "1M"]),
    ("depth", &["2", "4", "16"]),
    ("first", &["0", "2^16-5", "2^32-5"]),
    ("tags", &["1", "3", "17"]),
    ("streams", &["1", "2", "9"]),
    ("peers", &["next", "all", "itself"]),
    ("lowering", &["memops", "kernel"]),
    ("connect", &["lazy", "up front"]),
    ("progress", &["background", "manual"]),
    ("posts", &["at once", "prepared"]),
];

/// What a cell sets on an axis.
///
/// # Panics
/// There is no such axis.
pub fn setting(cell: &Cell, axis: &str) -> &'static str {
    cover::setting(&AXES, cell, axis)
}

/// Who posts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poster {
    /// The CPU.
    Cpu,
    /// A stream.
    Stream,
    /// A stream by the proxy.
    Proxy,
    /// One or another, from message to message.
    Mixed,
}

/// Who waits for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Who has posted them.
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

/// Bytes in front of and behind what is received that nobody may touch.
pub const GUARD: usize = 64;
/// Most segments of a message.
pub const SEGMENTS: usize = 30;
/// Most bytes between two of them.
pub const GAP: usize = 33;
/// Most bytes by which a receive has more room than its message needs.
pub const SLACK: usize = 70;

/// Rounds that a rank is ahead of its streams at most.
const AHEAD: usize = 8;

/// Of messages that nobody answers, as contexts have it by themselves.
const TIMEOUT: Duration = Duration::from_secs(30);

const MIB: usize = 1 << 20;

/// What a cell says.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Posts sends.
    pub sender: Poster,
    /// Posts receives.
    pub receiver: Poster,
    /// Waits.
    pub ended: Ended,
    /// The contexts' doorbell.
    pub doorbell: Doorbell,
    /// How posts and waits become work of a stream.
    pub lowering: Lowering,
    /// What is sent lies here.
    pub from: Place,
    /// What is received lands here.
    pub into: Place,
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
    /// What `cell` says.
    pub fn of(cell: &Cell) -> Setup {
        let seed = seed_of(cell);
        let is = |axis, what| setting(cell, axis) == what;
        let number = |axis| match setting(cell, axis) {
            "2^16-5" => (1 << 16) - 5,
            "2^32-5" => (1 << 32) - 5,
            text => bytes(text) as u64,
        };
        let place = |axis| match setting(cell, axis) {
            "device" => Place::Device,
            "pinned" => Place::Pinned,
            "pageable" => Place::Pageable,
            _ => Place::Registered,
        };
        let (sender, receiver) = match setting(cell, "model") {
            "cpu" => (Poster::Cpu, Poster::Cpu),
            "stream" => (Poster::Stream, Poster::Stream),
            "proxy" => (Poster::Proxy, Poster::Proxy),
            "cpu to stream" => (Poster::Cpu, Poster::Stream),
            "stream to cpu" => (Poster::Stream, Poster::Cpu),
            "proxy to stream" => (Poster::Proxy, Poster::Stream),
            _ => (Poster::Mixed, Poster::Mixed),
        };
        let depth = number("depth") as u32;
        let tags = number("tags") as u32;
        let wild = if is("source", "anybody") { tags } else { 0 };
        Setup {
            sender,
            receiver,
            ended: match setting(cell, "ended") {
                "poster" => Ended::Poster,
                "other" => Ended::Other,
                "another stream" => Ended::Another,
                _ => Ended::Mixed,
            },
            doorbell: match setting(cell, "provider") {
                "proxy" => Doorbell::CpuThread,
                _ => Doorbell::Direct,
            },
            lowering: match setting(cell, "lowering") {
                "kernel" => Lowering::Kernel,
                _ => Lowering::MemOps,
            },
            from: place("from"),
            into: place("into"),
            size: match setting(cell, "size") {
                "odd" => Size::Odd,
                text => Size::Bytes(bytes(text)),
            },
            ranks: number("ranks") as u32,
            form: match setting(cell, "form") {
                "vectors" => Form::Vectors,
                "words" => Form::Words,
                _ => Form::Single,
            },
            wild,
            wild_ahead: false,
            eager: number("eager") as usize,
            depth,
            first: number("first"),
            tags,
            streams: number("streams") as u32,
            reach: match setting(cell, "peers") {
                "all" => Reach::All,
                "itself" => Reach::Itself,
                _ => Reach::Next,
            },
            one_way: false,
            up_front: is("connect", "up front"),
            manual: is("progress", "manual"),
            prepared: is("posts", "prepared"),
            // Who receives from anybody meets the others after each round.
            lag: if wild > 0 {
                0
            } else {
                (seed >> 7 & 1) as usize
            },
            messages: match setting(cell, "laps") {
                "part" => (depth / 2) as usize,
                laps => bytes(laps) * depth as usize + 1,
            },
            hazards: false,
            seed,
        }
    }

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
        let streams = |poster| matches!(poster, Poster::Stream | Poster::Proxy);
        let never_cpu = streams(self.sender)
            && streams(self.receiver)
            && matches!(self.ended, Ended::Poster | Ended::Another);
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

    /// Whether the settings go together.
    pub fn makes_sense(&self) -> bool {
        // Memory of slots and mailboxes, of one rank.
        let slots = (2 + self.lag + self.ahead()) * self.window() * self.channels();
        let eager = self.eager.next_multiple_of(64);
        let mailboxes = self.depth as usize * self.channels() * eager;
        slots * self.slot() <= 160 * MIB && mailboxes <= 32 * MIB
    }

    /// Messages of all ranks, and their bytes.
    pub fn cost(&self) -> (usize, usize) {
        let messages = self.messages * self.channels() * self.ranks as usize;
        let each = match self.size {
            Size::Bytes(bytes) | Size::Around(bytes) => bytes,
            Size::Odd => ODD.iter().sum::<usize>() / ODD.len(),
        };
        (messages, messages * each)
    }

    /// Whether it is small enough for every change.
    pub fn is_small(&self) -> bool {
        let (messages, bytes) = self.cost();
        messages <= 2500 && bytes <= 150 * MIB
    }

    /// Whether it costs little more than it must.
    pub fn is_affordable(&self) -> bool {
        let (messages, bytes) = self.cost();
        let least = Setup {
            depth: 2,
            tags: 1,
            reach: Reach::Next,
            messages: match self.messages < self.depth as usize {
                true => 1,
                false => self.messages / self.depth as usize * 2 + 1,
            },
            ..self.clone()
        };
        messages <= 1500 && bytes <= least.cost().1.max(24 * MIB)
    }

    /// Whether kernels of it may spin.
    pub fn spins(&self) -> bool {
        self.lowering == Lowering::Kernel
    }

    /// A context of it, over a provider.
    #[must_use]
    pub fn build(&self, builder: Builder, provider: Provider) -> Builder {
        builder
            .timeout(scaled(TIMEOUT))
            .eager_limit(self.eager)
            .depth(self.depth)
            .start(self.first)
            .doorbell(self.doorbell)
            .connect(match self.up_front {
                true => Connect::UpFront,
                false => Connect::Lazy,
            })
            .progress(match self.manual {
                true => Progress::Manual,
                false => Progress::Background,
            })
            .nic(
                NicOptions::default().queues(
                    QpConfig::default()
                        // Few, so that rings are used again; their indices wrap soon.
                        .send_blocks(32)
                        .recv_entries(4)
                        .recv_sges(1)
                        .lowering(self.lowering)
                        .start(provider::shortly_before_the_wrap(provider)),
                ),
            )
    }
}

/// `4K` is 4096.
fn bytes(text: &str) -> usize {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], MIB),
        _ => (text, 1),
    };
    digits.parse::<usize>().expect("settings are numbers") * unit
}

/// A number of the cell, another one with another `GDS_SEED`.
fn seed_of(cell: &Cell) -> u64 {
    let chosen = std::env::var("GDS_SEED").ok();
    let chosen = chosen.and_then(|text| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    });
    let start = chosen.unwrap_or(0xcbf2_9ce4_8422_2325);
    cell.iter().fold(start, |hash, setting| {
        (hash ^ *setting as u64).wrapping_mul(0x0100_0000_01b3)
    })
}
