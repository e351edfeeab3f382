//! Tests of the rewriting of waits: on a model of each runtime, what a wait becomes passes on exactly
//! the words of the original condition.

use proptest::prelude::*;

use super::*;
use Condition::{And, Eq, Geq, Nor};

const CONDITIONS: [Condition; 4] = [Geq, Eq, And, Nor];
const AT: DevicePtr = DevicePtr(64);

/// Whether a runtime's wait passes: by the formulas of CUDA's documents, which have no mask, or by
/// those of HIP's.
fn passes(cyclic: bool, op: &Op, memory: u64) -> bool {
    let Op::Wait {
        width,
        at,
        value,
        mask,
        condition,
        ..
    } = *op
    else {
        panic!("{op:?} is not a wait")
    };
    let word = memory >> (8 * (at.0 - AT.0)) & width.all();
    let (masked, all) = (word & mask, width.all());
    match (condition, width) {
        (Geq, Bits32) if cyclic => (masked as i32).wrapping_sub(value as i32) >= 0,
        (Geq, Bits64) if cyclic => (masked as i64).wrapping_sub(value as i64) >= 0,
        (Geq, _) => masked >= value,
        (Eq, _) => masked == value,
        (And, _) => masked & value != 0,
        (Nor, _) => !(masked | value & mask) & all != 0,
    }
}

/// Whether a word satisfies the condition as the library defines it.
fn meaning(condition: Condition, width: Width, word: u64, value: u64, mask: u64) -> bool {
    let word = word & width.all();
    match condition {
        // How far the word is ahead: less than half the range.
        Geq => {
            let range = 1u128 << width.bits();
            (range + u128::from(word & mask) - u128::from(value)) % range < range / 2
        }
        other => other.holds(width, word, value, mask),
    }
}

/// Numbers at the borders of fields, counters and signs, and others.
fn numbers() -> impl Strategy<Value = u64> {
    let borders = [0u64, 15, 16, 24, 31, 32, 48, 63].map(|bit| if bit == 0 { 0 } else { 1 << bit });
    let near = (prop::sample::select(borders.to_vec()), -3i64..=3)
        .prop_map(|(border, by): (u64, i64)| border.wrapping_add_signed(by));
    let twice = |low: u64| low << 32 | low & ALL32;
    prop_oneof![
        6 => near.clone(),
        2 => near.prop_map(twice),
        1 => prop::sample::select(vec![0x8100_0000u64, 0xf1ff_ffff, 1 << 63 | 1 << 31, !0]),
        1 => (0u32..64).prop_map(|bit| 1 << bit),
        1 => any::<u64>(),
    ]
}

fn masks() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(u64::MAX), 1 => numbers(), 1 => numbers().prop_map(|n| !n)]
}

fn runtimes() -> impl Strategy<Value = Caps> {
    any::<[bool; 4]>().prop_map(|[memops64, nor, mask, cyclic]| {
        Caps::FULL
            .memops64(memops64)
            .nor(nor)
            .mask(mask)
            .cyclic(cyclic)
    })
}

/// What `op` becomes; `None`: a kernel waits, or it is refused.
fn lowered(op: Op, caps: &Caps) -> Option<Vec<Op>> {
    let (mut input, mut out) = (Batch::new(), Batch::new());
    input.push(op);
    match rewrite(&input, caps, &mut out) {
        Ok(()) => {
            assert!(out.is_legal(caps), "{op:?} became {:?}", out.ops());
            assert!(!is_by_kernel(&op, caps), "{op:?}");
            Some(out.ops().to_vec())
        }
        Err(e) => {
            assert_eq!(e.kind(), Kind::Unsupported);
            None
        }
    }
}

fn wait(width: Width, (condition, value, mask): Test) -> Op {
    Op::Wait {
        width,
        at: AT,
        value: value & width.all(),
        mask: mask & width.all(),
        condition,
        flush: false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Single operations of every runtime, with and without cyclic comparison.
    #[test]
    fn rewritten_wait_passes_on_the_same_words(
        caps in runtimes(),
        wide in any::<bool>(),
        condition in prop::sample::select(CONDITIONS.to_vec()),
        value in numbers(),
        mask in masks(),
        words in prop::collection::vec(numbers(), 8),
        steps in prop::collection::vec(-2i64..=2, 8),
    ) {
        let width = if wide { Bits64 } else { Bits32 };
        let (value, mask) = (value & width.all(), mask & width.all());
        let op = wait(width, (condition, value, mask));
        let by_kernel = is_by_kernel(&op, &caps);
        prop_assert!(!by_kernel || (condition == Geq && !caps.cyclic));
        let Some(ops) = lowered(op, &caps) else {
            // What the runtime has as it is, is not refused.
            prop_assert!(!caps.met().has(op.needs()));
            // Every cyclic comparison is executed somehow.
            let plain = condition == Geq && mask == width.all() && (!wide || caps.memops64);
            prop_assert!(by_kernel || !plain, "{op:?} is refused with {caps:?}");
            return Ok(());
        };
        let near = steps.iter().map(|by| value.wrapping_add_signed(*by));
        let far = steps.iter().map(|by| (value ^ width.sign()).wrapping_add_signed(*by));
        for word in words.iter().copied().chain(near).chain(far) {
            let want = meaning(condition, width, word, value, mask);
            let got = ops.iter().all(|op| passes(caps.cyclic, op, word));
            prop_assert_eq!(want, got, "{:?} became {:?} with {:?}, word {:#x}", op, ops, caps, word);
        }
    }

    /// A wait for a count is one memory operation of every runtime with words of 64 bits, and masks
    /// or cyclic comparison.
    #[test]
    fn count_is_reached_exactly_from_its_value_on(
        caps in runtimes(),
        count in numbers(),
        words in prop::collection::vec(numbers(), 8),
        steps in prop::collection::vec(-2i64..=2, 8),
    ) {
        let below = u64::MAX >> 1;
        let count = count & below;
        let caps = caps.memops64(true);
        let op = Op::wait_count(AT, count, &caps);
        let Some(ops) = lowered(op, &caps) else {
            prop_assert!(!caps.cyclic && !caps.mask);
            return Ok(());
        };
        prop_assert_eq!(ops.len(), 1);
        let near = steps.iter().map(|by| count.wrapping_add_signed(*by));
        for word in words.iter().copied().chain(near).map(|word| word & below) {
            prop_assert_eq!(passes(caps.cyclic, &ops[0], word), word >= count, "{:#x}", word);
        }
    }
}

/// On a runtime with masks and plain comparison: the tests of the highest bit are memory operations,
/// and all other cyclic comparisons need a kernel.
#[test]
fn cyclic_comparison_without_cycles_is_a_test_of_the_highest_bit_or_a_kernel() {
    let hip = Caps::FULL.cyclic(false);
    for width in [Bits32, Bits64] {
        let (all, sign) = (width.all(), width.sign());
        let geq = |value| wait(width, (Geq, value, all));
        assert_eq!(lowered(geq(0), &hip).unwrap(), [wait(width, (Eq, 0, sign))]);
        assert_eq!(
            lowered(geq(sign), &hip).unwrap(),
            [wait(width, (And, sign, all))]
        );
        for value in [1, 5, sign - 1, sign + 1, all] {
            assert!(is_by_kernel(&geq(value), &hip) && lowered(geq(value), &hip).is_none());
            assert!(!is_by_kernel(&geq(value), &Caps::FULL));
        }
        let low = wait(width, (Geq, 5, all ^ sign));
        assert_eq!(lowered(low, &hip).unwrap(), [low], "no sign bit");
        // Without masks, NOR tests the bit; without NOR too, only a kernel does.
        let bare = hip.mask(false);
        let clear = wait(width, (Nor, all ^ sign, all));
        assert_eq!(lowered(geq(0), &bare).unwrap(), [clear]);
        assert!(is_by_kernel(&geq(0), &bare.nor(false)));
    }
    // As on other runtimes without words of 64 bits.
    let narrow = hip.memops64(false);
    assert!(!is_by_kernel(&wait(Bits64, (Geq, 5, !0)), &narrow));
}

/// No runtime gets NOR with a mask: HIP's formula counts the bits outside it as clear.
#[test]
fn masked_nor_becomes_a_plain_one() {
    for caps in [Caps::FULL, Caps::FULL.cyclic(false), Caps::FULL.mask(false)] {
        for width in [Bits32, Bits64] {
            let all = width.all();
            let got = lowered(wait(width, (Nor, 0b0100, 0b0111)), &caps).unwrap();
            assert_eq!(got, [wait(width, (Nor, all ^ 0b0011, all))]);
        }
    }
}
