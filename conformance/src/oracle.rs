//! What every byte must be when a program is over.

use crate::plan::{Kind, Plan};

/// What memory holds before a message lands.
pub const FILL: u8 = 0xee;
/// What a stream writes over a message as soon as it has seen it.
pub const TAKEN: u8 = 0x5a;
/// What nobody may send.
pub const JUNK: u8 = 0xbb;

/// What a rank found when everything was over.
pub struct Outcome {
    /// Copies of the slots, made by streams behind their waits or in the end.
    pub seen: Vec<u8>,
    /// The memory where messages land, in the end.
    pub landing: Vec<u8>,
    /// Steps whose slot was overwritten by the stream that saw it.
    pub taken: Vec<bool>,
    /// The two words of each rank for atomics.
    pub words: Vec<(u64, u64)>,
}

/// The message of a step: what is sent, or lies there to be read.
pub fn message(step: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| (step * 31 + at * 7 + at / 251) as u8;
    (0..len).map(byte).collect()
}

/// Checks what rank `me` found.
///
/// # Panics
/// Something is not as the program says: the message names the step.
pub fn check(plan: &Plan, me: usize, outcome: &Outcome) {
    let olds = olds(plan);
    for (i, step) in plan.steps.iter().enumerate() {
        let slot = plan.slots[i]..plan.slots[i + 1];
        if !plan.lands(i, me) {
            let untouched = vec![FILL; plan.slot(i)];
            same(&outcome.landing[slot], &untouched, || {
                format!("step {i}, which does not concern rank {me}")
            });
            continue;
        }
        let mut want = match step.kind {
            Kind::FetchAdd(_) | Kind::CompareSwap { .. } => olds[i].to_le_bytes().to_vec(),
            _ => message(i, step.len),
        };
        want.resize(plan.slot(i), FILL);
        same(&outcome.seen[slot.clone()], &want, || {
            format!("step {i} as it was seen, {step:?}")
        });
        if outcome.taken[i] {
            // Whatever came twice, or late, lies on top.
            want.fill(TAKEN);
        }
        same(&outcome.landing[slot], &want, || {
            format!("step {i} in the end, {step:?}")
        });
    }
    for (from, found) in outcome.words.iter().enumerate() {
        assert_eq!(*found, words(plan, from, me), "words of rank {from}");
    }
}

fn same(got: &[u8], want: &[u8], what: impl Fn() -> String) {
    if let Some(at) = got.iter().zip(want).position(|(g, w)| g != w) {
        let (what, g, w) = (what(), got[at], want[at]);
        panic!("{what}: byte {at} is {g:#04x} instead of {w:#04x}");
    }
}

/// What each atomic step brings back.
fn olds(plan: &Plan) -> Vec<u64> {
    let ranks = plan.seats.len();
    let mut words = vec![vec![(0, 0); ranks]; ranks];
    plan.steps
        .iter()
        .map(|step| apply(step.kind, &mut words[step.from][step.to]))
        .collect()
}

/// What the words of rank `from` at rank `at` are in the end.
fn words(plan: &Plan, from: usize, at: usize) -> (u64, u64) {
    let mut words = (0, 0);
    for step in plan.steps.iter().filter(|s| (s.from, s.to) == (from, at)) {
        apply(step.kind, &mut words);
    }
    words
}

/// Does what an atomic does; returns what was there.
fn apply(kind: Kind, words: &mut (u64, u64)) -> u64 {
    match kind {
        Kind::FetchAdd(add) => {
            let old = words.0;
            words.0 = old.wrapping_add(add);
            old
        }
        Kind::CompareSwap { compare, swap } => {
            let old = words.1;
            if old == compare {
                words.1 = swap;
            }
            old
        }
        _ => 0,
    }
}
