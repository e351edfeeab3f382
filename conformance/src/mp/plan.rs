//! The messages of a cell: both ends draw them from its seed, so they agree without communication.

use super::memory::{POISON, WINDOWS};
use super::setup::{Form, GAP, GUARD, ODD, Poster, SEGMENTS, SLACK, Setup, Size, Waiter};

/// The side that posts a request or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The CPU.
    Cpu,
    /// The rank's stream of this number.
    Stream(usize),
    /// The rank's stream of this number, by a CPU thread.
    CpuThread(usize),
}

impl By {
    /// The stream's number.
    pub fn stream(self) -> Option<usize> {
        match self {
            By::Cpu => None,
            By::Stream(stream) | By::CpuThread(stream) => Some(stream),
        }
    }
}

/// The poster and the waiter of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handling {
    /// The poster.
    pub posts: By,
    /// The waiter: a stream or the CPU.
    pub ends: By,
    /// Whether another request is prepared before it, and cancelled.
    pub cancelled: bool,
    /// Whether the request and the memory of a send are dropped right after the post.
    pub let_go: bool,
}

/// Offset and length of each segment in a slot.
pub type Segments = Vec<(usize, usize)>;

/// A message, as its sender makes it.
#[derive(Clone, Debug)]
pub struct Message {
    /// Offset in the row where the bytes of its slot begin.
    pub window: usize,
    /// Its segments in the slot.
    pub pieces: Segments,
    /// Bytes at the start of the segments that are not sent.
    pub skip: usize,
    /// Length of the message in bytes.
    pub len: usize,
    /// Length of its receive, where that is too short.
    pub cut: Option<usize>,
}

impl Message {
    /// Message `n` of a channel.
    pub fn draw(setup: &Setup, from: u32, to: u32, tag: u32, n: usize) -> Message {
        let mut rng = rng(
            setup,
            [u64::from(from), u64::from(to), u64::from(tag), n as u64],
        );
        let most = match setup.size {
            Size::Bytes(bytes) => bytes,
            Size::Odd if setup.form == Form::Words => setup.longest(),
            Size::Odd => ODD[rng.usize(0..ODD.len())],
            Size::Around(most) => around(&mut rng, setup.eager).min(most),
        };
        let (len, skip) = match setup.form {
            Form::Words => {
                let len = [0, most, most / 2, rng.usize(0..=most)][rng.usize(0..4)];
                (len, rng.usize(0..=most - len))
            }
            _ => (most, 0),
        };
        let may_be_cut = setup.hazards && tag >= setup.wild && setup.form != Form::Words && len > 0;
        let cut = may_be_cut && rng.u8(0..16) == 0;
        Message {
            window: rng.usize(0..WINDOWS),
            pieces: pieces(&mut rng, setup.form, most),
            skip,
            len,
            cut: cut.then(|| rng.usize(0..len)),
        }
    }

    /// Length that a receive must have: the length that the sender has declared.
    pub fn declared(&self) -> usize {
        self.pieces.iter().map(|(_, len)| len).sum()
    }

    /// Its bytes, from the row.
    pub fn bytes(&self, row: &[u8]) -> Vec<u8> {
        let piece = |(at, len): &(usize, usize)| &row[self.window + at..][..*len];
        let mut all: Vec<u8> = self.pieces.iter().flat_map(piece).copied().collect();
        all.drain(..self.skip);
        all.truncate(self.len);
        all
    }
}

/// The segments of receive `k` of a line in its slot: at least `room` bytes together, or exactly
/// `cut` bytes where the message is truncated.
pub fn landing(setup: &Setup, line: u64, k: usize, room: usize, cut: Option<usize>) -> Segments {
    let mut rng = rng(setup, [1 << 40, line, k as u64, 0]);
    let room = room + [0, 0, 1, rng.usize(0..=SLACK)][rng.usize(0..4)];
    let room = cut.unwrap_or(room);
    let form = match setup.form {
        Form::Words => Form::Single,
        other => other,
    };
    pieces(&mut rng, form, room)
}

/// The expected contents of a slot after these bytes have been received into its segments.
pub fn image(segments: &Segments, slot: usize, mut bytes: &[u8]) -> Vec<u8> {
    let mut image = vec![POISON; slot];
    for (at, len) in segments {
        let (head, tail) = bytes.split_at(bytes.len().min(*len));
        image[*at..][..head.len()].copy_from_slice(head);
        bytes = tail;
    }
    image
}

/// The poster and the waiter of a request; `which` identifies the request.
pub fn handling(setup: &Setup, poster: Poster, which: [u64; 3], stream: usize) -> Handling {
    let [a, b, c] = which;
    let mut rng = rng(setup, [1 << 41, a, b, c]);
    let posts = match poster {
        Poster::Cpu => By::Cpu,
        Poster::Stream => By::Stream(stream),
        Poster::CpuThread => By::CpuThread(stream),
        Poster::Mixed => [By::Cpu, By::Stream(stream), By::CpuThread(stream)][rng.usize(0..3)],
    };
    let own = match posts {
        By::Cpu => By::Cpu,
        _ => By::Stream(stream),
    };
    let other = match posts {
        By::Cpu => By::Stream(stream),
        _ => By::Cpu,
    };
    let another = By::Stream((stream + 1) % setup.streams as usize);
    let ends = match setup.waiter {
        Waiter::Poster => own,
        Waiter::Other => other,
        Waiter::Another => another,
        Waiter::Mixed => [own, other, another][rng.usize(0..3)],
    };
    Handling {
        posts,
        ends,
        cancelled: setup.hazards && rng.u8(0..10) == 0,
        let_go: setup.hazards && rng.u8(0..8) == 0,
    }
}

/// A length that is likely to be close to `eager`.
fn around(rng: &mut fastrand::Rng, eager: usize) -> usize {
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

/// `total` bytes as segments in a slot, at offsets of any alignment.
fn pieces(rng: &mut fastrand::Rng, form: Form, total: usize) -> Segments {
    let mut at = GUARD + rng.usize(0..16);
    if form != Form::Vectors {
        return vec![(at, total)];
    }
    let count = [2, 3, SEGMENTS, rng.usize(2..=SEGMENTS)][rng.usize(0..4)];
    let mut cuts: Vec<usize> = (1..count).map(|_| rng.usize(0..=total)).collect();
    cuts.extend([0, total]);
    cuts.sort_unstable();
    let piece = |pair: &[usize]| {
        let len = pair[1] - pair[0];
        let piece = (at, len);
        at += len + rng.usize(0..GAP);
        piece
    };
    cuts.windows(2).map(piece).collect()
}

fn rng(setup: &Setup, words: [u64; 4]) -> fastrand::Rng {
    let mix = |hash: u64, word: u64| {
        let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ hash >> 29
    };
    fastrand::Rng::with_seed(words.into_iter().fold(setup.seed, mix))
}
