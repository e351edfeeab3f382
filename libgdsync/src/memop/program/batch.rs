//! Translation of a list's operations into a program's operations.

use super::{Code, Kind, Program, ProgramOp};
use crate::memop::Width::{Bits32, Bits64};
use crate::memop::{Batch, Condition, Op, Role};

impl Program {
    /// Appends operation `i` of `list`, together with the next one if the two ring a doorbell;
    /// returns the number of operations taken. 0: nothing was appended, because the operation does
    /// not fit or has no form in a program (only the front end can flush). The caller handles the
    /// flush of a wait for an entry.
    ///
    /// The order is kept: a write runs after all earlier waits and, if fenced, after all earlier
    /// writes; a wait runs after all earlier operations; overlapping writes run one after the
    /// other. Operations of one [`Role`] that is not plain run in parallel. The end of the kernel
    /// fences the program.
    pub fn take(&mut self, list: &Batch, i: usize) -> usize {
        let (op, role) = (list.ops()[i], list.role(i));
        if !self.has_room(room(list, i)) {
            return 0;
        }
        if let Some(ring) = ring(list, i) {
            // Any glued pair of fenced writes rings in one operation. But only for a doorbell of
            // the library it is known that no other queue shares it.
            let kind = match role {
                Role::Ring => Kind::Rings,
                _ => Kind::Ordered,
            };
            self.append(ring, kind);
            return 2;
        }
        match op {
            _ if role == Role::EntryHalf => {}
            Op::Write {
                width,
                at,
                value,
                fenced,
            } => {
                let code = match width {
                    Bits32 => Code::Write32,
                    Bits64 => Code::Write64,
                };
                self.write(ProgramOp::new(code, at, value), fenced, role);
            }
            Op::Wait { at, .. } if let Role::Entry(owner) | Role::EntryByKernel(owner) = role => {
                let op = ProgramOp::new(Code::WaitEntry, at, owner.into());
                self.append(op, Kind::Waits);
            }
            Op::Wait {
                width,
                at,
                value,
                mask,
                condition,
                flush: false,
            } => {
                let op = match width {
                    Bits32 => ProgramOp {
                        extra: mask << 32 | u64::from(code(condition)),
                        ..ProgramOp::new(Code::Wait32, at, value)
                    },
                    Bits64 => ProgramOp {
                        extra: mask,
                        more: code(condition),
                        ..ProgramOp::new(Code::Wait64, at, value)
                    },
                };
                let kind = match role {
                    Role::Wait => Kind::Waits,
                    _ => Kind::Ordered,
                };
                self.append(op, kind);
            }
            Op::Copy { at, data } if data.bytes().len() % 4 == 0 => {
                for (i, word) in data.bytes().as_chunks().0.iter().enumerate() {
                    let value = u32::from_ne_bytes(*word);
                    let at = at.offset(4 * i as u64);
                    self.write(ProgramOp::new(Code::Write32, at, value.into()), false, role);
                }
            }
            Op::Fence => {
                self.end.fenced = true;
                // No later operation joins the step before the fence.
                self.end.kind = Kind::Ordered;
            }
            Op::Copy { .. } | Op::Flush | Op::Wait { .. } => return 0,
        }
        1
    }

    fn write(&mut self, op: ProgramOp, fenced: bool, role: Role) {
        let fenced = fenced || self.end.fenced;
        let kind = match role {
            Role::Mark => Kind::Marks,
            _ if fenced => Kind::Ordered,
            _ => Kind::Writes,
        };
        self.append(op.fenced(fenced), kind);
    }
}

/// The most operations that the programs of `list` have.
pub fn operations(list: &Batch) -> usize {
    (0..list.len()).map(|i| room(list, i)).sum()
}

/// The most operations that operation `i` of `list` takes.
fn room(list: &Batch, i: usize) -> usize {
    match list.ops()[i] {
        Op::Copy { data, .. } => data.bytes().len().div_ceil(4),
        _ => usize::from(list.role(i) != Role::EntryHalf),
    }
}

/// The operation that rings the doorbell whose record is written by operation `i`.
fn ring(list: &Batch, i: usize) -> Option<ProgramOp> {
    match list.ops()[i..] {
        [
            Op::Write {
                width: Bits32,
                at: record,
                value: index,
                fenced: true,
            },
            Op::Write {
                width: Bits64,
                at: doorbell,
                value,
                fenced,
            },
            ..,
        ] if list.is_glued(i) && (fenced || list.role(i) == Role::Ring) => Some(ProgramOp {
            more: index as u32,
            extra: doorbell.0,
            ..ProgramOp::new(Code::Ring, record, value)
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
