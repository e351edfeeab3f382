//! Word operations as a program.

use super::{Code, Kind, Program, ProgramOp, ring_op};
use crate::memop::post::Ring;
use crate::memop::{Batch, Condition, Op};

impl Program {
    /// Appends what `batch` means; `false`, and nothing appended, if something has no form here
    /// (only the front end can flush) or they do not fit. Every batch does that memory
    /// operations can run without a flush.
    ///
    /// The order is kept: a write after all waits and, if fenced, all writes before it; a wait
    /// after all that comes before; overlapping writes one after the other. A program that ends
    /// is fenced by the kernel's end.
    pub fn push_batch(&mut self, batch: &Batch) -> bool {
        let end = self.end;
        let mut i = 0;
        while let Some(op) = batch.ops().get(i) {
            if !self.has_room(room(op)) {
                self.restore(end);
                return false;
            }
            // A glued pair of fenced writes rings a doorbell: one operation does both. It could do
            // any other pair of fenced writes as well, but traces would show a doorbell.
            if let Some(ring) = bell(batch, i) {
                self.append(ring_op(&ring), Kind::Ordered);
                i += 2;
            } else if self.push_op(op) {
                i += 1;
            } else {
                self.restore(end);
                return false;
            }
        }
        true
    }

    fn push_op(&mut self, op: &Op) -> bool {
        match *op {
            Op::Write32 { at, value, fenced } => {
                self.write(ProgramOp::new(Code::Write32, at, u64::from(value)), fenced);
            }
            Op::Write64 { at, value, fenced } => {
                self.write(ProgramOp::new(Code::Write64, at, value), fenced);
            }
            Op::Wait32 {
                at,
                value,
                mask,
                condition,
                flush: false,
            } => {
                let extra = u64::from(mask) << 32 | u64::from(code(condition));
                let op = ProgramOp::new(Code::Wait32, at, u64::from(value));
                self.append(ProgramOp { extra, ..op }, Kind::Ordered);
            }
            Op::Wait64 {
                at,
                value,
                mask,
                condition,
                flush: false,
            } => {
                let op = ProgramOp {
                    extra: mask,
                    more: code(condition),
                    ..ProgramOp::new(Code::Wait64, at, value)
                };
                self.append(op, Kind::Ordered);
            }
            Op::Copy { at, data } => {
                if data.bytes().len() % 4 != 0 {
                    return false;
                }
                for (i, word) in data.bytes().chunks_exact(4).enumerate() {
                    let value = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
                    let at = at.offset(4 * i as u64);
                    self.write(ProgramOp::new(Code::Write32, at, u64::from(value)), false);
                }
            }
            Op::Fence => {
                self.end.fenced = true;
                // Nothing joins what is before the fence.
                self.end.kind = Kind::Ordered;
            }
            Op::Flush | Op::Wait32 { .. } | Op::Wait64 { .. } => return false,
        }
        true
    }

    fn write(&mut self, op: ProgramOp, fenced: bool) {
        if fenced || self.end.fenced {
            self.append(op.fenced(true), Kind::Ordered);
        } else {
            self.append(op, Kind::Writes);
        }
    }
}

/// Operations that `op` takes at most.
fn room(op: &Op) -> usize {
    match op {
        Op::Copy { data, .. } => data.bytes().len().div_ceil(4),
        _ => 1,
    }
}

/// The bell whose record is written by operation `i`.
fn bell(batch: &Batch, i: usize) -> Option<Ring> {
    match (batch.ops()[i], batch.ops().get(i + 1)?) {
        (
            Op::Write32 {
                at: record,
                value: record_value,
                fenced: true,
            },
            &Op::Write64 {
                at: doorbell,
                value: doorbell_value,
                fenced: true,
            },
        ) if batch.is_glued(i) => Some(Ring {
            record,
            record_value,
            doorbell,
            doorbell_value,
            edge: None,
        }),
        _ => None,
    }
}

fn code(condition: Condition) -> u32 {
    match condition {
        Condition::Geq => 0,
        Condition::Eq => 1,
        Condition::And => 2,
        Condition::Nor => 3,
    }
}
