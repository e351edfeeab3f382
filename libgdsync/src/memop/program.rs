//! The other lowering: one tiny kernel that runs a list of operations.
//!
//! A [`Program`] is the kernel's parameter (`device/gds_program.hpp` has the same layout). Its
//! operations are grouped in phases: those of one phase run side by side on the threads of one
//! warp, and a phase begins with a fence after the one before has ended. Doorbells and
//! completion waits carry no values: the kernel reads how far a queue stands from counters that
//! live with the queue, so that launching the same program again posts and waits for what
//! comes *next*.

use super::{Batch, Condition, Op};

/// Operations one program holds.
pub const MAX_OPS: usize = 40;

/// What a program operation does. The numbers are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// Stores 32 bits.
    Write32 = 1,
    /// Stores 64 bits.
    Write64 = 2,
    /// Waits for a 32-bit word; `extra` is condition and mask.
    Wait32 = 3,
    /// Waits for a 64-bit word; `extra` is the condition; no mask.
    Wait64 = 4,
    /// Rings for the next `value` entries of the send queue whose state is at `at`.
    Post = 5,
    /// Advances the record of the receive queue whose state is at `at` by `value` entries.
    PostReceive = 6,
    /// Waits for the completion `value` (signed) positions ahead of where the waiter, whose
    /// state is at `at`, stands; `extra` 1 announces that it has passed.
    WaitCompletion = 7,
    /// Waits until the completion entry whose last dword is at `at` is a success with owner
    /// bit `value`: for runtimes whose memory operations cannot test it.
    WaitEntry = 8,
}

/// One operation, as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ProgramOp {
    /// A [`Code`].
    pub code: u32,
    /// Operations of one phase run side by side.
    pub phase: u32,
    /// The address it is about.
    pub at: u64,
    /// See [`Code`].
    pub value: u64,
    /// See [`Code`].
    pub extra: u64,
}

impl ProgramOp {
    const NOTHING: ProgramOp = ProgramOp {
        code: 0,
        phase: 0,
        at: 0,
        value: 0,
        extra: 0,
    };

    /// Its name in traces.
    pub fn name(&self) -> &'static str {
        match self.code {
            1 => "write32",
            2 => "write64",
            3 => "wait32",
            4 => "wait64",
            5 => "post",
            6 => "post-receive",
            7 => "wait-completion",
            8 => "wait-entry",
            _ => "nothing",
        }
    }
}

/// A list of operations for one launch.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Program {
    count: u32,
    reserved: u32,
    ops: [ProgramOp; MAX_OPS],
}

const _: () = assert!(size_of::<ProgramOp>() == 32 && size_of::<Program>() == 8 + 32 * MAX_OPS);

impl Default for Program {
    fn default() -> Program {
        Program {
            count: 0,
            reserved: 0,
            ops: [ProgramOp::NOTHING; MAX_OPS],
        }
    }
}

/// Groups that may share a phase.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Waits,
    Writes,
    Alone,
}

impl Program {
    /// The operations in order.
    pub fn ops(&self) -> &[ProgramOp] {
        &self.ops[..self.count as usize]
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Whether `n` more fit.
    pub fn has_room(&self, n: usize) -> bool {
        self.count as usize + n <= MAX_OPS
    }

    /// The kernel's parameter bytes: only as many as are used.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `Program` is repr(C) with no padding (asserted above) and all of it is
        // initialised; a byte has no alignment or validity requirement.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast::<u8>(), size_of::<Program>()) }
    }

    /// Appends an operation. It starts a phase unless it may run beside the one before: waits
    /// beside waits (of other waiters), unfenced writes beside unfenced writes.
    pub fn push(&mut self, code: Code, at: u64, value: u64, extra: u64, fenced: bool) {
        let group = match code {
            Code::Wait32 | Code::Wait64 | Code::WaitCompletion | Code::WaitEntry => Group::Waits,
            Code::Write32 | Code::Write64 => Group::Writes,
            Code::Post | Code::PostReceive => Group::Alone,
        };
        let phase = match self.ops().last() {
            None => 0,
            Some(last) => {
                let before = match last.code {
                    3 | 4 | 7 | 8 => Group::Waits,
                    1 | 2 => Group::Writes,
                    _ => Group::Alone,
                };
                let same_waiter = code == Code::WaitCompletion
                    && self
                        .ops()
                        .iter()
                        .any(|op| op.phase == last.phase && op.code == code as u32 && op.at == at);
                let beside = group == before && group != Group::Alone && !fenced && !same_waiter;
                last.phase + u32::from(!beside)
            }
        };
        let count = self.count as usize;
        self.ops[count] = ProgramOp {
            code: code as u32,
            phase,
            at,
            value,
            extra,
        };
        self.count += 1;
    }

    /// Appends word operations; `false`, and nothing appended, if one has no form here (a flush,
    /// a masked 64-bit wait) or they do not fit.
    pub fn push_batch(&mut self, batch: &Batch) -> bool {
        let count = self.count;
        let done = batch.ops().iter().all(|op| self.push_op(op));
        if !done {
            self.count = count;
        }
        done
    }

    fn push_op(&mut self, op: &Op) -> bool {
        if !self.has_room(4) {
            return false;
        }
        match *op {
            Op::Write32 { at, value, fenced } => {
                self.push(Code::Write32, at.0, u64::from(value), 0, fenced)
            }
            Op::Write64 { at, value, fenced } => self.push(Code::Write64, at.0, value, 0, fenced),
            Op::Wait32 {
                at,
                value,
                mask,
                condition,
                flush: false,
            } => {
                let extra = u64::from(mask) << 32 | condition_code(condition);
                self.push(Code::Wait32, at.0, u64::from(value), extra, false);
            }
            Op::Wait64 {
                at,
                value,
                mask: u64::MAX,
                condition,
                flush: false,
            } => self.push(Code::Wait64, at.0, value, condition_code(condition), false),
            Op::Copy { at, data } => {
                for (i, word) in data.bytes().chunks(4).enumerate() {
                    let Ok(word) = <[u8; 4]>::try_from(word) else {
                        return false;
                    };
                    if !self.has_room(1) {
                        return false;
                    }
                    let value = u64::from(u32::from_ne_bytes(word));
                    self.push(Code::Write32, at.0 + 4 * i as u64, value, 0, false);
                }
            }
            // Phases are fenced; a program that ends is fenced by the kernel's end.
            Op::Fence => {}
            Op::Flush | Op::Wait32 { .. } | Op::Wait64 { .. } => return false,
        }
        true
    }
}

fn condition_code(condition: Condition) -> u64 {
    match condition {
        Condition::Geq => 0,
        Condition::Eq => 1,
        Condition::And => 2,
        Condition::Nor => 3,
    }
}
