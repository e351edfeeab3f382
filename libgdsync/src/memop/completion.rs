//! Waits for a completion entry: the tests of its last dword that let a stream pass.
//!
//! The last dword of a 64-byte completion entry holds, seen by a little-endian host, the owner bit
//! at bit 24 and the opcode at bits 28 to 31. Bit 31 is set in error entries (opcodes 13 and 14)
//! and in entries never written (opcode 15). An entry is *new* if its owner bit is the parity of
//! the lap. It is a *success* if, in addition, bit 31 is clear. A stream passes on a success only.
//! The operations that express this test depend on the runtime:
//!
//! | lap | operations |
//! |---|---|
//! | any, with masks | EQ of both bits under a mask |
//! | any, no masks, GEQ not cyclic | none: a program decodes the entry ([`Role::EntryByKernel`]) |
//! | first | GEQ 0: bit 31 is set until the entry is written with success |
//! | odd | AND owner, then GEQ 0 |
//! | even | NOR !owner, then GEQ 0 |
//! | even, no NOR, send queue | GEQ 0x81000000 (opcode 0 with owner 0, or an error), then GEQ 0 |
//! | even, no NOR, receive queue | none: a program, as above |
//!
//! The second test of a pair looks at the same word: after the first has passed, only the watcher
//! changes the word again (from error to released).

use mlx5_prm::cqe::{ERROR_BIT, OWNER_BIT};

use super::Width::Bits32;
use super::{Batch, Caps, Condition, DevicePtr, Op, Role};

/// A completion entry that a stream waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The address of the entry's last dword.
    pub word: DevicePtr,
    /// The owner bit that a new entry has.
    pub owner: u8,
    /// Whether the queue is in its first lap since its buffer was preset.
    pub first_lap: bool,
    /// Whether every success has opcode 0 (a send queue).
    pub send: bool,
    /// Whether the NIC's writes to GPU memory must be visible after the wait.
    pub flush: bool,
}

/// Appends the waits for `entry`.
pub fn push(batch: &mut Batch, entry: &Entry, caps: &Caps) {
    let mut wait = |condition, value: u32, mask: u32, role| {
        let op = Op::Wait {
            width: Bits32,
            at: entry.word,
            value: value.into(),
            mask: mask.into(),
            condition,
            flush: entry.flush && role != Role::EntryHalf,
        };
        batch.add(op, role, false);
    };
    let whole = Role::Entry(entry.owner);
    const ALL: u32 = u32::MAX;
    let owner = u32::from(entry.owner)
        ^ u32::from(crate::mutant::on(crate::mutant::Mutant::ParityOffByOne));
    let success_too = !crate::mutant::on(crate::mutant::Mutant::ErrorEntryPasses);
    if caps.mask {
        let mask = if success_too {
            OWNER_BIT | ERROR_BIT
        } else {
            OWNER_BIT
        };
        return wait(Condition::Eq, owner * OWNER_BIT, mask, whole);
    }
    if !caps.cyclic {
        return wait(Condition::Geq, 0, ALL, Role::EntryByKernel(entry.owner));
    }
    if !entry.first_lap || !success_too {
        let role = if success_too { Role::EntryHalf } else { whole };
        match (owner, caps.nor, entry.send) {
            (1, _, _) => wait(Condition::And, OWNER_BIT, ALL, role),
            (_, true, _) => wait(Condition::Nor, !OWNER_BIT, ALL, role),
            (_, false, true) => wait(Condition::Geq, ERROR_BIT | OWNER_BIT, ALL, role),
            (_, false, false) => {
                return wait(Condition::Geq, 0, ALL, Role::EntryByKernel(entry.owner));
            }
        }
        if !success_too {
            return;
        }
    }
    wait(Condition::Geq, 0, ALL, whole);
}

#[cfg(test)]
mod tests {
    use super::super::caps::Needs;
    use super::*;
    use mlx5_prm::cqe::{OP_OWN_PRESET, last_dword};
    use mlx5_prm::opcode::CqeOpcode;

    fn passes(batch: &Batch, word: u32) -> bool {
        batch.ops().iter().all(|op| match *op {
            Op::Wait {
                width: Bits32,
                value,
                mask,
                condition,
                ..
            } => condition.holds(Bits32, word.into(), value, mask),
            _ => panic!("only 32-bit waits are expected"),
        })
    }

    /// On every runtime, queue and lap, a stream passes on a success of this lap only.
    #[test]
    fn a_stream_passes_exactly_on_success_of_the_lap() {
        let ops = [
            CqeOpcode::REQ,
            CqeOpcode::RESP_WR_IMM,
            CqeOpcode::RESP_SEND,
            CqeOpcode::RESP_SEND_IMM,
            CqeOpcode::RESP_SEND_INV,
        ];
        let errors = [CqeOpcode::REQ_ERR, CqeOpcode::RESP_ERR];
        let mut kernels = 0;
        for switches in 0..1 << 3 {
            let on = |bit: u32| switches >> bit & 1 != 0;
            let (nor, mask, cyclic) = (on(0), on(1), on(2));
            let caps = Caps::FULL.nor(nor).mask(mask).cyclic(cyclic);
            for send in [true, false] {
                for lap in 0..5u8 {
                    let owner = lap & 1;
                    let entry = Entry {
                        word: DevicePtr(64),
                        owner,
                        first_lap: lap == 0,
                        send,
                        flush: true,
                    };
                    let mut batch = Batch::new();
                    push(&mut batch, &entry, &caps);
                    if batch.needs().has(Needs::KERNEL) {
                        assert!(!mask);
                        assert!(!cyclic || (!nor && !send && owner == 0 && lap > 0));
                        kernels += u32::from(cyclic);
                        continue;
                    }
                    assert!(batch.is_legal(&caps) && (cyclic || mask));
                    let good = if send { &ops[..1] } else { &ops[1..] };
                    for counter in [0u16, 1, 0x7fff, 0xffff] {
                        for &op in good {
                            assert!(passes(&batch, last_dword(op, owner, 0, counter)));
                            if lap > 0 {
                                assert!(
                                    !passes(&batch, last_dword(op, 1 - owner, 0, counter)),
                                    "stale"
                                );
                            }
                        }
                        for &op in &errors {
                            assert!(!passes(&batch, last_dword(op, owner, 0, counter)), "error");
                            assert!(
                                !passes(&batch, last_dword(op, 1 - owner, 0, counter)),
                                "old error"
                            );
                        }
                    }
                    if lap == 0 {
                        assert!(!passes(&batch, u32::from(OP_OWN_PRESET) << 24));
                    }
                    let flushes: Vec<bool> = batch.ops().iter().map(Op::flushes).collect();
                    assert_eq!(flushes.iter().filter(|f| **f).count(), 1);
                    assert_eq!(flushes.last(), Some(&true), "the flush is the last thing");
                }
            }
        }
        assert_eq!(kernels, 2, "laps 2 and 4 of a receive queue without NOR");
    }
}
