//! Rewrites a batch into operations that a runtime can run.
//!
//! Every rewrite keeps the meaning or is refused. A 64-bit write becomes two glued halves, the
//! first of them fenced. An inline copy becomes plain writes. A masked wait becomes an unmasked one
//! where the two are equal, and a masked NOR always does. On a runtime whose GEQ is not cyclic, a
//! cyclic comparison becomes a test of the highest bit where the two are equal; `submit` of the
//! lists gives all others to a kernel ([`is_by_kernel`]). In a run of waits only the last one keeps its flush, because no
//! operation between them could read the memory. No wait keeps its flush where devices' writes are
//! visible in order anyway.

use super::Width::{Bits32, Bits64};
use super::caps::Needs;
use super::{Batch, Caps, Condition, DevicePtr, Op, Role, Width};
use crate::error::{Error, Kind, Result};
use crate::mutant::{self, Mutant};

const ALL32: u64 = Bits32.all();

/// Writes to `out` the operations with the meaning of `input` on a runtime with `caps`.
///
/// # Errors
/// `Unsupported`, naming the operation, if no sequence of this runtime's operations has that
/// meaning.
pub fn rewrite(input: &Batch, caps: &Caps, out: &mut Batch) -> Result<()> {
    out.clear();
    (0..input.len()).try_for_each(|i| one(input, i, caps, out))?;
    keep_last_flush(out);
    Ok(())
}

fn one(input: &Batch, i: usize, caps: &Caps, out: &mut Batch) -> Result<()> {
    let mut op = input.ops()[i];
    let glued = input.is_glued(i);
    if caps.ordered_writes {
        if op == Op::Flush {
            return Ok(());
        }
        op = op.flushing(false);
    }
    let mut push = |op: Op| out.add(op, Role::Plain, glued);
    match op {
        _ if caps.met().has(op.needs()) => push(op),
        _ if (op.flushes() || op == Op::Flush) && !caps.flush => {
            return Err(refuse("flushes of remote writes", &op));
        }
        Op::Write {
            at, value, fenced, ..
        } => {
            let [low, high] = halves(at, value).map(|(at, half)| Op::write(Bits32, at, half));
            out.push_glued(low.fenced(fenced));
            out.add(high.fenced(false), Role::Plain, glued);
        }
        Op::Wait {
            width: Bits64,
            at,
            value,
            mask: u64::MAX,
            condition: Condition::Eq,
            flush,
        } if !caps.memops64 => {
            // Both halves may flush: of the flushes in a row only the last is kept.
            for (at, half) in halves(at, value) {
                push(Op::wait(Bits32, at, Condition::Eq, half).flushing(flush));
            }
        }
        Op::Wait { width: Bits64, .. } if !caps.memops64 => {
            return Err(refuse("64-bit waits with this mask and condition", &op));
        }
        Op::Wait {
            width,
            at,
            value,
            mask,
            condition,
            flush,
        } => {
            let test = (condition, value, mask);
            let (condition, value, mask) =
                tested(width, test, caps).ok_or_else(|| refuse_wait(&op))?;
            push(Op::Wait {
                width,
                at,
                value,
                mask,
                condition,
                flush,
            });
        }
        Op::Copy { at, data } => {
            let mut rest = data.bytes();
            while !rest.is_empty() {
                let at = at.offset((data.bytes().len() - rest.len()) as u64);
                let (width, value) = match (rest.first_chunk(), rest.first_chunk()) {
                    (Some(word), _) if caps.memops64 && at.0 % 8 == 0 => {
                        (Bits64, u64::from_ne_bytes(*word))
                    }
                    (_, Some(word)) if at.0 % 4 == 0 => (Bits32, u32::from_ne_bytes(*word).into()),
                    _ => return Err(refuse("copies that are not whole words", &op)),
                };
                push(Op::write(width, at, value).fenced(false));
                rest = &rest[width.bits() as usize / 8..];
            }
        }
        // Where there is no fence operation, the driver fences every write (CUDA's v2 memory
        // operations before MEM_OP_BARRIER): no order is missing.
        Op::Fence | Op::Flush => {}
    }
    Ok(())
}

/// A 64-bit word as two of 32 bits, the low one first.
fn halves(at: DevicePtr, value: u64) -> [(DevicePtr, u64); 2] {
    [(at, value & ALL32), (at.offset(4), value >> 32)]
}

/// Whether the operation is a wait that only a kernel of the library can execute on a runtime with
/// `caps`, because it compares cyclically and the runtime does not.
pub fn is_by_kernel(op: &Op, caps: &Caps) -> bool {
    let Op::Wait {
        width,
        value,
        mask,
        condition,
        ..
    } = *op
    else {
        return false;
    };
    !caps.cyclic
        && op.needs().has(Needs::CYCLIC)
        && (width == Bits32 || caps.memops64)
        && tested(width, (condition, value, mask), caps).is_none()
}

/// A condition, its value, and its mask.
type Test = (Condition, u64, u64);

/// The same test without the capabilities that the runtime lacks, if there is one.
fn tested(width: Width, test: Test, caps: &Caps) -> Option<Test> {
    let (all, sign) = (width.all(), width.sign());
    let (condition, value, mask) = match test {
        (Condition::Geq, value, mask) if !caps.cyclic && (value | mask) & sign != 0 => {
            // The highest bit of the difference is that of the word, or its complement.
            match (value, mask & sign != 0) {
                (0, true) => (Condition::Eq, 0, sign),
                (value, true) if value == sign => (Condition::And, sign, all),
                _ => return None,
            }
        }
        test => test,
    };
    let (condition, value, mask) = match condition {
        // A bit that is set in `value` is ignored: the same as a bit outside the mask.
        Condition::Nor => (Condition::Nor, value | !mask & all, all),
        _ if mask == all || caps.mask => (condition, value, mask),
        Condition::And => (Condition::And, value & mask, all),
        Condition::Eq if mask.is_power_of_two() && value & !mask == 0 => {
            if value == 0 {
                (Condition::Nor, !mask & all, all)
            } else {
                (Condition::And, mask, all)
            }
        }
        _ => return None,
    };
    if condition == Condition::Nor && !caps.nor {
        // One bit clear: by mask, or for the sign bit by comparison.
        let bit = !value & mask;
        return match bit {
            _ if !bit.is_power_of_two() => None,
            _ if caps.mask => Some((Condition::Eq, 0, bit)),
            _ if bit == sign && caps.cyclic => Some((Condition::Geq, 0, all)),
            _ => None,
        };
    }
    Some((condition, value, mask))
}

/// Keeps at most one flush of an uninterrupted run of waits: on the last wait.
pub fn keep_last_flush(batch: &mut Batch) {
    if !batch.needs().has(Needs::FLUSH) {
        return;
    }
    let ops = batch.ops_mut();
    let mut i = 0;
    while i < ops.len() {
        let run = ops[i..].iter().take_while(|op| op.is_wait()).count();
        if run == 0 {
            i += 1;
            continue;
        }
        let run = &mut ops[i..i + run];
        let wanted = run.iter().any(Op::flushes) && !mutant::on(Mutant::DroppedFlush);
        let last = run.len() - 1;
        for (k, op) in run.iter_mut().enumerate() {
            *op = op.flushing(wanted && k == last);
        }
        i += last + 1;
    }
}

fn refuse_wait(op: &Op) -> Error {
    if matches!(
        op,
        Op::Wait {
            condition: Condition::Geq,
            ..
        }
    ) && op.needs().has(Needs::CYCLIC)
    {
        return refuse("cyclic comparisons", op);
    }
    refuse("wait", op)
}

fn refuse(what: &str, op: &Op) -> Error {
    Error::new(
        "lower to memory operations",
        Kind::Unsupported,
        format!("the GPU's runtime does not support {what}: {op:?}"),
    )
}

#[cfg(test)]
mod waits;

#[cfg(test)]
mod tests {
    use super::super::Inline;
    use super::*;

    use Condition::{And, Eq, Geq, Nor};

    const FULL: Caps = Caps::FULL;
    const CONDITIONS: [Condition; 4] = [Geq, Eq, And, Nor];

    fn lowered(op: Op, caps: &Caps) -> Option<Vec<Op>> {
        let (mut input, mut out) = (Batch::new(), Batch::new());
        input.push(op);
        match rewrite(&input, caps, &mut out) {
            Ok(()) => Some(out.ops().to_vec()),
            Err(e) => {
                assert_eq!(e.kind(), Kind::Unsupported);
                None
            }
        }
    }

    #[test]
    fn a_doorbell_without_64_bits_is_two_glued_halves_and_the_first_is_fenced() {
        let caps = FULL.memops64(false);
        let (mut input, mut out) = (Batch::new(), Batch::new());
        let (record, doorbell) = (DevicePtr(4), DevicePtr(0x800));
        input.push_glued(Op::write(Bits32, record, 7u32));
        input.push(Op::write(Bits64, doorbell, 0x1111_2222_3333_4444u64));
        rewrite(&input, &caps, &mut out).unwrap();
        assert_eq!(
            out.ops()[1..],
            [
                Op::write(Bits32, doorbell, 0x3333_4444u32),
                Op::write(Bits32, DevicePtr(0x804), 0x1111_2222u32).fenced(false),
            ]
        );
        let cuts = out.split(3).unwrap().count();
        assert_eq!(cuts, 1, "record and halves stay together");
        assert!(out.split(2).is_err());
        // An operation that is glued behind the halves stays with them too.
        let mut long = Batch::new();
        long.push_glued(input.ops()[1]);
        long.push(Op::Fence);
        rewrite(&long, &caps, &mut out).unwrap();
        assert_eq!((out.longest_glued(), out.len()), (3, 3));
    }

    #[test]
    fn a_rewrite_keeps_nothing_that_its_output_held() {
        let wait = |flush| Op::wait(Bits32, DevicePtr(0), Condition::Eq, 0u32).flushing(flush);
        let mut out = Batch::new();
        for flush in [true, false] {
            let mut input = Batch::new();
            input.push(wait(flush));
            rewrite(&input, &FULL, &mut out).unwrap();
            assert_eq!(out, input);
        }
    }

    #[test]
    fn an_operation_is_legal_exactly_if_a_rewrite_keeps_it() {
        let at = DevicePtr(64);
        let mut ops = vec![Op::Fence, Op::Flush];
        let data = Inline::new(&[7; 16]).unwrap();
        ops.push(Op::Copy { at, data });
        for width in [Bits32, Bits64] {
            for on in [false, true] {
                ops.push(Op::write(width, at, 1u32).fenced(on));
                for condition in CONDITIONS {
                    for mask in [width.all(), 3] {
                        ops.push(Op::Wait {
                            width,
                            at,
                            value: 1,
                            mask,
                            condition,
                            flush: on,
                        });
                    }
                }
            }
        }
        for switches in 0..1 << 8 {
            let on = |bit: u32| switches >> bit & 1 != 0;
            let caps = FULL
                .memops64(on(0))
                .nor(on(1))
                .mask(on(2))
                .flush(on(3))
                .inline_copy(on(4))
                .fence(on(5))
                .ordered_writes(on(6))
                .cyclic(on(7));
            for op in &ops {
                let mut list = Batch::new();
                list.push(*op);
                let itself = lowered(*op, &caps).is_some_and(|ops| ops == [*op]);
                assert_eq!(list.is_legal(&caps), itself, "{op:?} with {caps:?}");
            }
        }
    }

    #[test]
    fn copies_become_the_same_bytes_by_writes() {
        let data: Vec<u8> = (1..=28).collect();
        for (memops64, at) in [(true, 64u64), (true, 68), (false, 64)] {
            let caps = FULL.inline_copy(false).memops64(memops64);
            let op = Op::Copy {
                at: DevicePtr(at),
                data: Inline::new(&data).unwrap(),
            };
            let mut memory = [0u8; 128];
            for op in lowered(op, &caps).unwrap() {
                let Op::Write {
                    width, at, value, ..
                } = op
                else {
                    panic!("{op:?}")
                };
                let bytes = &value.to_le_bytes()[..width.bits() as usize / 8];
                assert_eq!(at.0 as usize % bytes.len(), 0);
                memory[at.0 as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            assert_eq!(memory[at as usize..][..28], data[..]);
        }
        let caps = FULL.inline_copy(false);
        for (at, len) in [(64, 27), (66, 28)] {
            let op = Op::Copy {
                at: DevicePtr(at),
                data: Inline::new(&data[..len]).unwrap(),
            };
            assert!(lowered(op, &caps).is_none(), "{len} bytes to {at}");
        }
    }

    #[test]
    fn flushes_are_kept_where_something_follows_and_never_invented() {
        let wait = |flush| Op::wait(Bits32, DevicePtr(0), Condition::Eq, 0u32).flushing(flush);
        let write = Op::write(Bits32, DevicePtr(0), 0u32);
        let run = |ops: &[Op]| {
            let (mut input, mut out) = (Batch::new(), Batch::new());
            ops.iter().for_each(|op| input.push(*op));
            rewrite(&input, &FULL, &mut out).unwrap();
            out.ops().iter().map(Op::flushes).collect::<Vec<_>>()
        };
        assert_eq!(
            run(&[wait(true), wait(true), wait(false)]),
            [false, false, true]
        );
        assert_eq!(run(&[wait(true), write, wait(true)]), [true, false, true]);
        assert_eq!(run(&[wait(true), write, wait(false)]), [true, false, false]);
        assert_eq!(run(&[wait(false), write, wait(false)]), [false; 3]);
        let caps = FULL.flush(false);
        assert!(lowered(wait(true), &caps).is_none() && lowered(Op::Flush, &caps).is_none());
        for flush in [true, false] {
            let caps = FULL.flush(flush).ordered_writes(true);
            assert_eq!(lowered(wait(true), &caps).unwrap(), [wait(false)]);
            assert_eq!(lowered(Op::Flush, &caps).unwrap(), []);
        }
    }
}
