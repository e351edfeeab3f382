//! The second lowering: one small kernel that runs a list of operations.
//!
//! A [`Program`] is the kernel's parameter (`device/gds_program.hpp` has the same layout). The
//! kernel is one warp. It runs the program in *steps*, with a barrier between them. A step is a set
//! of *chains* that run in parallel, one on each thread; a chain is a run of operations in order.
//! This module decides, as operations are appended, which of them run in parallel:
//!
//! - For an operation with a [`Role`](super::Role), the library has further facts: waits that stay
//!   passed, writes of words that no two operations share, doorbells of different queues.
//!   Operations of one role run in parallel in one step.
//! - For a plain operation, [`Op`](super::Op) is the only information. Plain operations keep their
//!   order, except for unfenced writes among themselves. They are chained on one thread, so order
//!   costs no barrier.
//!
//! All values are constants, as in memory operations: the kernel reads only the words that it waits
//! for. Lists that are launched repeatedly, and post and wait for the *next* entries each time, use
//! other kernels (`device/gds_trigger.cu`).

mod batch;

pub use batch::operations;
#[cfg(test)]
mod tests;

use super::DevicePtr;

/// Most operations of one program.
pub const MAX_OPS: usize = 120;

/// The code of a program operation. The numbers are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// Stores 32 bits.
    Write32 = 1,
    /// Stores 64 bits.
    Write64 = 2,
    /// Waits for a 32-bit word; `extra` is mask and condition.
    Wait32 = 3,
    /// Waits for a 64-bit word; `extra` is the mask, `more` the condition.
    Wait64 = 4,
    /// Waits until the completion entry whose last dword is at `at` is a success with owner
    /// bit `value`.
    WaitEntry = 5,
    /// Stores `more` into the doorbell record at `at`, then `value` into the doorbell at `extra`.
    Ring = 6,
}

impl Code {
    /// All codes, with their names in traces.
    const ALL: [(Code, &'static str); 6] = [
        (Code::Write32, "write32"),
        (Code::Write64, "write64"),
        (Code::Wait32, "wait32"),
        (Code::Wait64, "wait64"),
        (Code::WaitEntry, "wait-entry"),
        (Code::Ring, "ring"),
    ];
}

/// Earlier writes are visible before this one is.
const FENCED: u8 = 1;
/// Run by the thread of the previous operation, after that operation.
const CHAINED: u8 = 2;

/// One operation, as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ProgramOp {
    /// A [`Code`].
    code: u8,
    /// [`FENCED`], [`CHAINED`].
    flags: u8,
    /// How many preceding operations must run before this one.
    pub phase: u8,
    /// At the first operation of a step: how many operations the step has.
    step: u8,
    /// See [`Code`].
    pub more: u32,
    /// The address that the operation accesses.
    pub at: u64,
    /// See [`Code`].
    pub value: u64,
    /// See [`Code`].
    pub extra: u64,
}

impl ProgramOp {
    const NOTHING: ProgramOp = ProgramOp {
        code: 0,
        flags: 0,
        phase: 0,
        step: 0,
        more: 0,
        at: 0,
        value: 0,
        extra: 0,
    };

    fn new(code: Code, at: DevicePtr, value: u64) -> ProgramOp {
        ProgramOp {
            code: code as u8,
            at: at.0,
            value,
            ..ProgramOp::NOTHING
        }
    }

    fn fenced(self, fenced: bool) -> ProgramOp {
        let flags = if fenced {
            self.flags | FENCED
        } else {
            self.flags & !FENCED
        };
        ProgramOp { flags, ..self }
    }

    fn known(&self) -> Option<(Code, &'static str)> {
        Code::ALL
            .into_iter()
            .find(|(code, _)| *code as u8 == self.code)
    }

    /// The operation's code.
    pub fn code(&self) -> Option<Code> {
        Some(self.known()?.0)
    }

    /// The operation's name in traces.
    pub fn name(&self) -> &'static str {
        self.known().map_or("nothing", |(_, name)| name)
    }

    /// Whether the two access a common byte, or ring the same doorbell: of two threads that store
    /// into one word at once, only one store takes effect.
    fn overlaps(&self, other: &ProgramOp) -> bool {
        if self.code == Code::Ring as u8 && other.code == self.code && self.extra == other.extra {
            return true;
        }
        let len = |op: &ProgramOp| match op.code() {
            Some(Code::Write64 | Code::Wait64) => 8,
            _ => 4,
        };
        self.at < other.at + len(other) && other.at < self.at + len(self)
    }
}

/// The kind of operations that run in parallel in the open step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Operations in order: a chain.
    Ordered,
    /// Unfenced writes.
    Writes,
    /// Words that others poll, each written with a fence.
    Marks,
    /// Waits that stay passed.
    Waits,
    /// Doorbells of different queues.
    Rings,
}

/// The state at the end of a program, from which appended operations continue.
#[derive(Clone, Copy, Debug)]
struct End {
    /// The first operation of the open step.
    first: u32,
    /// Number of threads that the open step uses.
    chains: u32,
    kind: Kind,
    /// A fence has been appended: every later write is fenced.
    fenced: bool,
}

/// A list of operations for one launch.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Program {
    count: u32,
    reserved: u32,
    ops: [ProgramOp; MAX_OPS],
    /// For the host only; the kernels' parameters end before it.
    end: End,
}

const _: () = assert!(size_of::<ProgramOp>() == 32 && std::mem::offset_of!(Program, ops) == 8);
const _: () = assert!(std::mem::offset_of!(Program, end) == Program::LEN);
const _: () = assert!(MAX_OPS <= u8::MAX as usize);

const START: End = End {
    first: 0,
    chains: 0,
    kind: Kind::Ordered,
    fenced: false,
};

impl Default for Program {
    fn default() -> Program {
        Program {
            count: 0,
            reserved: 0,
            ops: [ProgramOp::NOTHING; MAX_OPS],
            end: START,
        }
    }
}

impl Program {
    /// The operations in order.
    pub fn ops(&self) -> &[ProgramOp] {
        &self.ops[..self.count as usize]
    }

    /// Removes the operations.
    pub fn clear(&mut self) {
        (self.count, self.end) = (0, START);
    }

    /// Whether `n` more operations fit.
    pub fn has_room(&self, n: usize) -> bool {
        self.count as usize + n <= MAX_OPS
    }

    /// Bytes of the parameter of the largest of the kernels.
    pub const LEN: usize = 8 + size_of::<ProgramOp>() * MAX_OPS;

    /// The parameter of the largest of the kernels; the smaller ones take the front of it.
    pub fn bytes(&self) -> &[u8] {
        let len = Program::LEN;
        // SAFETY: `Program` is repr(C), and its first `len` bytes are `count`, `reserved` and
        // `ops` (asserted above), which have no padding and are all initialised; a byte has no
        // alignment or validity requirement.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast::<u8>(), len) }
    }

    /// Appends `op`: in parallel with operations of its kind in the open step, at the end of the
    /// step's one chain if only order matters, or in a new step.
    fn append(&mut self, mut op: ProgramOp, kind: Kind) {
        let (count, first) = (self.count as usize, self.end.first as usize);
        let step = &self.ops[first..count];
        let beside = kind != Kind::Ordered
            && kind == self.end.kind
            && !step.iter().any(|other| other.overlaps(&op));
        let chained = !beside && kind == Kind::Ordered && self.end.chains == 1;
        let before = self.ops().last().map(|last| last.phase);
        op.phase = before.map_or(0, |phase| phase + u8::from(!beside));
        if chained {
            op.flags |= CHAINED;
            self.end.kind = Kind::Ordered;
        } else if beside {
            self.end.chains += 1;
        } else {
            self.end.first = self.count;
            self.end.chains = 1;
            self.end.kind = kind;
        }
        self.ops[count] = op;
        self.count += 1;
        self.ops[self.end.first as usize].step = (self.count - self.end.first) as u8;
    }
}
