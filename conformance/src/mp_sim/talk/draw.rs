//! Drawing a program of messages from a seed.

use std::time::Duration;

use fastrand::Rng;
use gdsync::gpu::MemoryKind;

use crate::mp_sim::job::Settings;

/// The tag of messages that receives from anybody take.
pub const WILD: u32 = 7;

/// Who hands a request over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    Cpu,
    Stream(usize),
    Proxy(usize),
}

/// Who waits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nobody: the handle is dropped.
    Nobody,
    Cpu,
    Stream(usize),
}

/// One side's part of a message.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    pub post: Post,
    pub wait: Wait,
    /// How many messages later it waits.
    pub late: usize,
    /// Bytes of its memory.
    pub room: usize,
    /// Where the memory is cut into three pieces; `None`: one piece.
    pub cuts: Option<[usize; 2]>,
    /// A request is prepared and cancelled first.
    pub false_start: bool,
    /// Prepared and posted by two calls.
    pub in_two: bool,
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub from: u32,
    pub to: u32,
    pub tag: u32,
    pub len: usize,
    pub send: Side,
    pub recv: Side,
    /// The length is found in a word, and where the message begins in the sender's memory.
    pub by_word: Option<usize>,
}

impl Message {
    /// Whether the receive has no room for it.
    pub fn is_too_long(&self) -> bool {
        self.len > self.recv.room
    }
}

/// Something of a rank stands still for a while.
#[derive(Clone, Copy, Debug)]
pub struct Hiccup {
    pub rank: usize,
    pub victim: usize,
    pub after: Duration,
    pub lasts: Duration,
}

/// A program.
#[derive(Clone, Debug)]
pub struct Plan {
    pub ranks: u32,
    pub settings: Settings,
    pub messages: Vec<Message>,
    /// By rank: where what is received lies, and what is sent.
    pub memory: Vec<[MemoryKind; 2]>,
    pub hiccups: Vec<Hiccup>,
    /// All ranks end together.
    pub together: bool,
}

/// Draws a program.
pub fn draw(rng: &mut Rng) -> Plan {
    let ranks = rng.u32(1..=4);
    let tags = rng.u32(1..=6);
    let settings = Settings {
        // Room for all at a time; when most is taken, channels that are not used go.
        channels: (tags as usize + 2).max(4),
        ..Settings::draw(rng)
    };
    let wild = rng.bool();
    // Some programs are one-sided: a sender far ahead of its receiver.
    let flow = rng.bool().then(|| (rng.u32(0..ranks), rng.u32(0..ranks)));
    let count = rng.usize(10..=60);
    let messages = (0..count)
        .map(|_| {
            let any = (rng.u32(0..ranks), rng.u32(0..ranks));
            let (from, to) = flow.filter(|_| rng.u8(0..4) > 0).unwrap_or(any);
            let tag = match wild && rng.u8(0..4) == 0 {
                true => WILD,
                false => rng.u32(0..tags),
            };
            message(rng, &settings, from, to, tag)
        })
        .collect();
    let kind = |rng: &mut Rng| match rng.bool() {
        true => MemoryKind::Device,
        false => MemoryKind::Pinned,
    };
    Plan {
        ranks,
        settings,
        messages,
        memory: (0..ranks).map(|_| [kind(rng), kind(rng)]).collect(),
        hiccups: (0..rng.usize(0..4)).map(|_| hiccup(rng, ranks)).collect(),
        together: rng.bool(),
    }
}

fn message(rng: &mut Rng, settings: &Settings, from: u32, to: u32, tag: u32) -> Message {
    let len = length(rng, settings.eager);
    let (mut send, mut recv) = (side(rng, len), side(rng, len));
    let wild = tag == WILD;
    let by_word = (rng.u8(0..8) == 0).then(|| {
        // It may begin anywhere in the sender's memory.
        send.room += rng.usize(0..300);
        send.cuts = None;
        rng.usize(0..=send.room - len)
    });
    recv.room = match rng.u8(0..16) {
        _ if wild => 20_500,
        0 if by_word.is_none() => len.saturating_sub(rng.usize(0..=len)),
        // A message whose length is not known has to fit, however long it may be.
        _ => send.room + [0, 0, rng.usize(0..5000)][rng.usize(0..3)],
    };
    recv.cuts = recv.cuts.map(|_| cuts(rng, recv.room));
    if recv.wait == Wait::Nobody {
        recv.wait = Wait::Cpu;
    }
    Message {
        from,
        to,
        tag,
        len,
        send,
        recv,
        by_word,
    }
}

fn length(rng: &mut Rng, eager: usize) -> usize {
    match rng.u8(0..8) {
        0 => 0,
        1 => rng.usize(1..8),
        2 => eager - 1,
        3 => eager,
        4 => eager + 1,
        5 => rng.usize(0..=3 * eager),
        6 => rng.usize(0..600),
        _ => rng.usize(0..20_000),
    }
}

fn cuts(rng: &mut Rng, len: usize) -> [usize; 2] {
    let mut cuts = [rng.usize(0..=len), rng.usize(0..=len)];
    cuts.sort_unstable();
    cuts
}

fn side(rng: &mut Rng, len: usize) -> Side {
    let stream = |rng: &mut Rng| rng.usize(0..2);
    Side {
        post: match rng.u8(0..8) {
            0..3 => Post::Cpu,
            3..7 => Post::Stream(stream(rng)),
            _ => Post::Proxy(stream(rng)),
        },
        wait: match rng.u8(0..8) {
            0 => Wait::Nobody,
            1..4 => Wait::Cpu,
            _ => Wait::Stream(stream(rng)),
        },
        late: match rng.bool() {
            true => rng.usize(0..12),
            false => 0,
        },
        room: len,
        cuts: (rng.u8(0..4) == 0).then(|| cuts(rng, len)),
        false_start: rng.u8(0..10) == 0,
        in_two: rng.bool(),
    }
}

fn hiccup(rng: &mut Rng, ranks: u32) -> Hiccup {
    let longest = 1 << rng.u32(8..22);
    Hiccup {
        rank: rng.usize(0..ranks as usize),
        victim: rng.usize(0..6),
        after: Duration::from_nanos(rng.u64(0..1 << 18)),
        lasts: Duration::from_nanos(rng.u64(0..longest)),
    }
}
