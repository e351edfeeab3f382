//! Draws the messages of a program.

use fastrand::Rng;
use gdsync::gpu::Condition;

use super::{Hazards, Settings, Side};

/// Most bytes of a payload, and of an inline payload, with hazards.
const LONGEST: usize = 16 << 10;
const INLINE: usize = 150;
/// Number of messages with separate memory, without hazards; even, so that streams that alternate
/// share none.
const SLOTS: usize = 8;
/// Guard bytes behind a payload, which no message may change.
pub const GUARD: usize = 64;

/// The operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Send,
    SendInline,
    WriteImm,
    Write,
    WriteInline,
    Read,
    FetchAdd(u64),
    CompareSwap(u64, u64),
    Nop,
}

impl Operation {
    /// Whether it consumes a receive of the other side.
    pub fn takes_receive(self) -> bool {
        use Operation::{Send, SendInline, WriteImm};
        matches!(self, Send | SendInline | WriteImm)
    }

    /// Whether it is an atomic.
    pub fn is_atomic(self) -> bool {
        matches!(self, Operation::FetchAdd(_) | Operation::CompareSwap(..))
    }

    /// Whether its payload is inline.
    pub fn is_inline(self) -> bool {
        matches!(self, Operation::SendInline | Operation::WriteInline)
    }

    /// Whether its payload is in registered memory: not inline, atomic or empty.
    pub fn moves(self) -> bool {
        !self.is_inline() && !self.is_atomic() && self != Operation::Nop
    }

    /// Whether it accesses memory of the other side.
    pub fn is_remote(self) -> bool {
        use Operation::{Read, Write, WriteImm, WriteInline};
        matches!(self, WriteImm | Write | WriteInline | Read)
    }

    /// Whether it returns bytes to the requester.
    pub fn brings(self) -> bool {
        self == Operation::Read || self.is_atomic()
    }
}

/// The waiter for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// None: the completion is checked when everything is over.
    Nothing,
    /// The CPU.
    Cpu,
    /// The stream.
    Stream,
    /// Both streams.
    Both,
}

/// The writer of the bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// A kernel on the posting stream.
    Kernel,
    /// The CPU, before the post.
    Cpu,
    /// The posting stream, by a copy.
    Copy,
    /// The posting stream, in the same list, word by word.
    Words,
    /// The other stream, which then writes a word that the posting stream waits for: the condition
    /// of the wait, and whether the word has 64 bits.
    Handed(Condition, bool),
}

/// The additions of a program with hazards to a message.
#[derive(Clone, Copy, Debug)]
pub struct Odd {
    /// The streams that send, and that check the received bytes.
    pub streams: [usize; 2],
    /// The offsets where its memory is cut into segments, and those of its receive.
    pub cuts: [[usize; 2]; 2],
    /// Whether it is fenced: it starts only after earlier READs and atomics.
    pub fenced: bool,
    /// Whether the CPU posts it, and its receive.
    pub by_cpu: [bool; 2],
    /// The waiters for the send, and for its receive.
    pub waits: [Wait; 2],
    /// Whether it is prepared with wrong length, address and key, which the stream patches; the
    /// same for those of the other side.
    pub patched: [bool; 2],
    /// Whether a request behind it is aborted, and a receive behind its receive.
    pub newest_aborted: [bool; 2],
    /// Whether its list is first posted with a descriptor that is refused.
    pub spoiled: bool,
    /// Whether its list stays open for the next message.
    pub joined: bool,
    /// Whether its receive is posted after it.
    pub late: bool,
    /// Number of receives of later messages that are posted before it.
    pub early: usize,
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The requester's side.
    pub from: usize,
    /// The other side.
    pub to: usize,
    /// The operation.
    pub operation: Operation,
    /// Length in bytes.
    pub len: usize,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Whether the request is signaled where the receiver gets a completion anyway.
    pub signaled: bool,
    /// Whether a request in front of it is cancelled.
    pub hole: bool,
    /// The value that an atomic returns.
    pub old: u64,
    /// The writer of the payload.
    pub ink: Ink,
    /// The additions of a program with hazards.
    pub odd: Option<Odd>,
}

/// A program.
#[derive(Clone, Debug)]
pub struct Program {
    /// The shape that it was drawn from.
    pub settings: Settings,
    /// Its messages.
    pub steps: Vec<Step>,
    /// The final values of the two words at each side (first) for the atomics of each other side
    /// (second).
    pub words: Vec<Vec<[u64; 2]>>,
    /// Offset of each message's slot, in every memory.
    pub slots: Vec<usize>,
    /// Bytes of all slots together.
    pub room: usize,
}

impl Program {
    /// Draws the messages.
    pub fn draw(settings: Settings) -> Program {
        let (steps, words) = draw(&settings);
        let need = |step: &Step| (step.len.max(8) + GUARD).next_multiple_of(64);
        let longest = steps.iter().map(need).max().unwrap_or(0);
        let mut room = 0;
        let slot = |(i, step): (usize, &Step)| match settings.hazards() {
            true => {
                room += need(step);
                room - need(step)
            }
            false => {
                room = SLOTS * longest;
                i % SLOTS * longest
            }
        };
        let slots = steps.iter().enumerate().map(slot).collect();
        Program {
            settings,
            steps,
            words,
            slots,
            room,
        }
    }
}

fn draw(settings: &Settings) -> (Vec<Step>, Vec<Vec<[u64; 2]>>) {
    use Operation::{Nop, Read, Send, SendInline, Write, WriteImm, WriteInline};
    let mut rng = Rng::with_seed(settings.seed);
    let sides = settings.sides.len();
    let mut words = vec![vec![[0_u64; 2]; sides]; sides];
    let mut told = vec![true; sides];
    let steps = (0..settings.messages).map(|_| {
        let from = rng.usize(0..sides);
        let to = (from + rng.usize(1..sides)) % sides;
        let which = match settings.operations {
            "all" => ["sends", "writes", "reads", "atomics"][rng.usize(0..4)],
            other => other,
        };
        let word = &mut words[to][from];
        let mut old = 0;
        let operation = match which {
            _ if settings.hazards() && rng.u8(0..16) == 0 => Nop,
            "send" => Send,
            "send-inline" => SendInline,
            "write-imm" => WriteImm,
            "write" => Write,
            "read" => Read,
            "sends" => [Send, Send, SendInline, WriteImm][rng.usize(0..4)],
            "writes" => [Write, Write, WriteInline, WriteImm][rng.usize(0..4)],
            "reads" => [Read, Read, Write][rng.usize(0..3)],
            _ if rng.bool() => {
                let add = rng.u64(..);
                old = word[0];
                word[0] = old.wrapping_add(add);
                Operation::FetchAdd(add)
            }
            _ => {
                old = word[1];
                // Now and then one that does not match.
                let compare = old.wrapping_add(u64::from(rng.u8(0..4) == 0));
                let swap = rng.u64(..);
                if compare == old {
                    word[1] = swap;
                }
                Operation::CompareSwap(compare, swap)
            }
        };
        let len = length(&mut rng, operation, settings.hazards());
        let signaled = !operation.takes_receive() || rng.u8(0..4) > 0;
        let mut step = Step {
            from,
            to,
            operation,
            len,
            imm: (operation == WriteImm || operation == Send && rng.bool()).then(|| rng.u32(..)),
            signaled,
            // The library detects the completion of an unsignaled request by a NOP that it posts
            // behind it. A prepared request would occupy the place of this NOP, and the queue would
            // stay full.
            hole: std::mem::replace(&mut told[from], signaled) && rng.u8(0..12) == 0,
            old,
            ink: Ink::Kernel,
            odd: None,
        };
        if let Some(hazards) = &settings.sides[from].hazards {
            let odd = odd(&mut rng, &settings.sides[to], &step);
            step.ink = ink(&mut rng, hazards, len, odd.by_cpu[0]);
            step.signaled = rng.u8(0..4) > 0;
            step.hole = rng.u8(0..6) == 0;
            step.odd = Some(odd);
        }
        step
    });
    let steps = steps.collect();
    (steps, words)
}

fn length(rng: &mut Rng, operation: Operation, hazards: bool) -> usize {
    let sizes = [0, 1, 8, 32, 44, 64, 100, 777, 1024, 4096];
    let len = match operation {
        o if o.is_inline() && hazards => length(rng, Operation::Send, true).min(INLINE),
        o if o.is_inline() => sizes[rng.usize(0..7)],
        o if o.is_atomic() => 8,
        Operation::Nop => 0,
        _ if hazards => match rng.u8(0..16) {
            0..2 => 0,
            2..5 => rng.usize(1..9),
            5..7 => 4 * rng.usize(1..40),
            7..13 => rng.usize(1..600),
            13 => 1 << rng.u32(6..15),
            _ => rng.usize(1..=LONGEST),
        },
        _ => sizes[rng.usize(0..sizes.len())],
    };
    // A length of 0 is no segment.
    len.max(usize::from(operation == Operation::Read))
}

fn cuts(rng: &mut Rng, len: usize) -> [usize; 2] {
    let mut cuts = [(); 2].map(|()| match rng.bool() {
        true => rng.usize(0..=len),
        false => len,
    });
    cuts.sort_unstable();
    cuts
}

fn odd(rng: &mut Rng, receiver: &Side, step: &Step) -> Odd {
    let one_in = |rng: &mut Rng, n: u8| rng.u8(0..n) == 0;
    let by_cpu = [one_in(rng, 4), rng.bool()];
    let may_be_late = receiver.hazards.as_ref().is_some_and(|h| h.late);
    let late = may_be_late && step.operation.takes_receive() && one_in(rng, 6);
    let wait = |rng: &mut Rng| match rng.u8(0..8) {
        0 => Wait::Nothing,
        1 => Wait::Cpu,
        2 => Wait::Both,
        _ => Wait::Stream,
    };
    let moves = step.operation.moves() && step.len > 0;
    Odd {
        streams: [rng.usize(0..2), rng.usize(0..2)],
        cuts: [
            match step.operation.is_atomic() {
                true => [step.len; 2],
                false => cuts(rng, step.len),
            },
            cuts(rng, step.len + GUARD),
        ],
        fenced: one_in(rng, 6),
        by_cpu,
        waits: [
            wait(rng),
            // An entry counts as used until streams have passed it. If a stream reaches an entry
            // late, a receive that the stream waits for before that could not be posted.
            match late {
                true => [Wait::Nothing, Wait::Cpu][rng.usize(0..2)],
                false => wait(rng),
            },
        ],
        patched: [
            moves && !by_cpu[0] && one_in(rng, 4),
            step.operation.is_remote() && !by_cpu[0] && one_in(rng, 6),
        ],
        newest_aborted: [one_in(rng, 6), one_in(rng, 8)],
        spoiled: one_in(rng, 10),
        joined: one_in(rng, 3),
        late,
        early: if one_in(rng, 3) { rng.usize(1..4) } else { 0 },
    }
}

fn ink(rng: &mut Rng, hazards: &Hazards, len: usize, by_cpu: bool) -> Ink {
    // Whether a stream can write the message word by word.
    let is_words = (4..=256).contains(&len) && len.is_multiple_of(4);
    match rng.u8(0..8) {
        _ if by_cpu => Ink::Cpu,
        0 => Ink::Kernel,
        1 => Ink::Cpu,
        2 | 3 if is_words => Ink::Words,
        4 | 5 => {
            let (caps, wide) = (&hazards.caps, rng.bool());
            Ink::Handed(
                match rng.u8(0..4) {
                    _ if wide && !caps.memops64 => Condition::Eq,
                    0 => Condition::And,
                    1 if !wide || caps.nor => Condition::Nor,
                    2 => Condition::Geq,
                    _ => Condition::Eq,
                },
                wide,
            )
        }
        _ => Ink::Copy,
    }
}
