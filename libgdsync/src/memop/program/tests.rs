//! Random programs keep the order of memory operations: on a model that runs the threads of a step
//! in any order, and with the kernels on the soft GPU.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::common::{Bytes as _, finish};
use crate::gpu::{Dims, Gpu, KERNELS, MemoryKind};
use crate::kernels::Entry;
use crate::memop::Width::{Bits32, Bits64};
use crate::memop::completion::{self, Entry as Completion};
use crate::memop::post::{self, Ring};
use crate::memop::{Batch, Caps, Condition, DevicePtr, Inline, Op, Role};
use crate::testing::cases;

/// Number of 32-bit words that programs access, so few that operations often share a word.
const WORDS: usize = 12;
const BASE: u64 = 0x1000;
/// Words from 16 on are for the library's operations: no two operations share one.
const OWN: usize = 16;
const ALL_WORDS: usize = 160;

/// A store to or a load of one word of 32 bits: every operation consists of these.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Store { word: usize, value: u32 },
    Look { word: usize, wide: bool },
}

/// Operations of one class may change places with each other, if any operations may.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Class {
    Ordered,
    Unfenced,
    Stable,
    Mark,
    /// The operations of one doorbell stay in order among themselves.
    Bell(usize),
}

/// A store or load that the list contains.
#[derive(Clone, Copy, Debug)]
struct Asked {
    act: Act,
    class: Class,
    /// Stores before it become visible before it does.
    fenced: bool,
    /// The halves of one 64-bit store have the same number.
    part: usize,
    /// Number of fences before it in the list.
    epoch: usize,
}

impl Asked {
    fn may_swap(&self, later: &Asked) -> bool {
        let apart = self.act.word() != later.act.word();
        let free = match (self.class, later.class) {
            (Class::Ordered, _) => false,
            (Class::Bell(a), Class::Bell(b)) => a != b,
            (a, b) => a == b,
        };
        // Waits change nothing, so two waits that stay passed may read one word.
        free && (apart || self.class == Class::Stable) && self.epoch == later.epoch
    }
}

impl Act {
    fn word(&self) -> usize {
        match *self {
            Act::Store { word, .. } | Act::Look { word, .. } => word,
        }
    }
}

fn word_of(at: u64) -> usize {
    ((at - BASE) / 4) as usize
}

fn stores64(at: u64, value: u64) -> [Act; 2] {
    let word = word_of(at);
    let (low, high) = (value as u32, (value >> 32) as u32);
    [(word, low), (word + 1, high)].map(|(word, value)| Act::Store { word, value })
}

/// A list, grown so that every wait holds when it is reached in order.
#[derive(Default)]
struct Plan {
    asked: Vec<Asked>,
    memory: Vec<u32>,
    fences: usize,
    bells: usize,
    parts: usize,
    next_own: usize,
}

impl Plan {
    fn new() -> Plan {
        Plan {
            memory: initial(),
            next_own: OWN,
            ..Plan::default()
        }
    }

    fn ask(&mut self, acts: &[Act], class: Class, fenced: bool) {
        for &act in acts {
            if let Act::Store { word, value } = act {
                self.memory[word] = value;
            }
            self.asked.push(Asked {
                act,
                class,
                fenced,
                part: self.parts,
                epoch: self.fences,
            });
        }
        self.parts += 1;
    }

    fn word64(&self, word: usize) -> u64 {
        u64::from(self.memory[word]) | u64::from(self.memory[word + 1]) << 32
    }

    fn own(&mut self, words: usize) -> DevicePtr {
        let word = self.next_own.next_multiple_of(2);
        self.next_own = word + words;
        DevicePtr(BASE + 4 * word as u64)
    }

    fn note(&mut self, op: &Op) {
        let unfenced = |fenced| {
            if fenced {
                Class::Ordered
            } else {
                Class::Unfenced
            }
        };
        match *op {
            Op::Write {
                width,
                at,
                value,
                fenced,
            } => {
                let acts = stores64(at.0, value);
                let acts = &acts[..width.bits() as usize / 32];
                self.ask(acts, unfenced(fenced), fenced);
            }
            Op::Wait { width, at, .. } => {
                let (word, wide) = (word_of(at.0), width == Bits64);
                self.ask(&[Act::Look { word, wide }], Class::Ordered, false);
            }
            Op::Copy { at, data } => {
                let first = word_of(at.0);
                for (i, word) in data.bytes().chunks(4).enumerate() {
                    let value = u32::from_ne_bytes(word.try_into().unwrap());
                    let word = first + i;
                    self.ask(&[Act::Store { word, value }], Class::Unfenced, false);
                }
            }
            Op::Fence => self.fences += 1,
            Op::Flush => unreachable!("the tests make none"),
        }
    }
}

fn initial() -> Vec<u32> {
    (0..ALL_WORDS as u32).map(|i| 0x1111 * (i % 5)).collect()
}

/// Random input for one operation.
type Seed = (u8, usize, u64, u64, bool);

fn condition(n: u64) -> Condition {
    use Condition::{And, Eq, Geq, Nor};
    [Geq, Eq, And, Nor][n as usize % 4]
}

/// An operation that memory operations support and that holds now, if the input gives one.
fn op_of(plan: &Plan, &(what, word, value, mask, fenced): &Seed) -> Option<Op> {
    let at = DevicePtr(BASE + 4 * word as u64);
    let even = DevicePtr(BASE + 4 * (word & !1) as u64);
    Some(match what {
        0 | 1 => Op::write(Bits32, at, value as u32 % 4).fenced(fenced),
        2 => Op::write(Bits64, even, (value % 7) << 30).fenced(fenced),
        3..=6 => {
            let (width, at, word) = match what {
                6 => (Bits64, even, plan.word64(word & !1)),
                _ => (Bits32, at, plan.memory[word].into()),
            };
            let condition = condition(mask >> 40);
            let mask = width.all() & if mask % 3 == 0 { u64::MAX } else { mask };
            let value = width.all() & if value % 2 == 0 { word & mask } else { value };
            if !condition.holds(width, word, value, mask) {
                return None;
            }
            Op::Wait {
                width,
                at,
                value,
                mask,
                condition,
                flush: false,
            }
        }
        7 => {
            let len = 4 * (value as usize % (WORDS - word).min(8));
            let bytes: Vec<u8> = (0..len as u8).map(|i| i ^ mask as u8).collect();
            Op::Copy {
                at,
                data: Inline::new(&bytes)?,
            }
        }
        _ => Op::Fence,
    })
}

/// Appends all of `batch`, or no operation of it.
fn take_all(program: &mut Program, batch: &Batch) -> bool {
    let whole = program.clone();
    let mut i = 0;
    while i < batch.len() {
        let before = program.clone();
        let taken = program.take(batch, i);
        if taken == 0 {
            assert_eq!(program.ops(), before.ops(), "what did not fit left traces");
            assert_eq!(format!("{:?}", program.end), format!("{:?}", before.end));
            *program = whole;
            return false;
        }
        i += taken;
    }
    true
}

/// Appends the operations of `seeds` to plan and program, as plain operations or with a role.
/// Returns whether they fitted into the program.
fn grow(plan: &mut Plan, program: &mut Program, seeds: &[Seed], own: u8, glue: bool) -> bool {
    let mut batch = Batch::new();
    match own {
        0 => {
            let ring = Ring {
                record: plan.own(2),
                record_value: seeds[0].2 as u32,
                doorbell: plan.own(2),
                doorbell_value: seeds[0].3,
                edge: None,
            };
            post::push(&mut batch, &ring);
            if !take_all(program, &batch) {
                return false;
            }
            let bell = Class::Bell(plan.bells);
            plan.bells += 1;
            let (word, value) = (word_of(ring.record.0), ring.record_value);
            plan.ask(&[Act::Store { word, value }], bell, true);
            plan.ask(&stores64(ring.doorbell.0, ring.doorbell_value), bell, true);
        }
        1 => {
            let (at, value) = (plan.own(1), seeds[0].2 as u32);
            batch.add(Op::write(Bits32, at, value), Role::Mark, false);
            if !take_all(program, &batch) {
                return false;
            }
            let word = word_of(at.0);
            plan.ask(&[Act::Store { word, value }], Class::Mark, true);
        }
        2 => {
            let (word, at) = (seeds[0].1, DevicePtr(BASE + 4 * seeds[0].1 as u64));
            let wait = Op::wait(Bits32, at, Condition::Eq, plan.memory[word]);
            batch.add(wait, Role::Wait, false);
            if !take_all(program, &batch) {
                return false;
            }
            plan.ask(&[Act::Look { word, wide: false }], Class::Stable, false);
        }
        _ => {
            let mut later = Plan::new();
            later.memory.clone_from(&plan.memory);
            for seed in seeds {
                let Some(op) = op_of(&later, seed) else {
                    continue;
                };
                later.note(&op);
                batch.add(op, Role::Plain, glue);
            }
            if !take_all(program, &batch) {
                return false;
            }
            batch.ops().iter().for_each(|op| plan.note(op));
        }
    }
    true
}

/// One run of a program, in an order that the kernel may take: the next thread is random.
struct Run<'a> {
    asked: &'a [Asked],
    done: Vec<bool>,
    /// Whether the store is visible to all observers.
    visible: Vec<bool>,
    memory: Vec<u32>,
}

impl Run<'_> {
    fn holds(&self, op: &ProgramOp) -> bool {
        let word = || word_of(op.at);
        let condition = |code: u32| condition(u64::from(code));
        match op.code() {
            Some(Code::Wait32) => {
                let (mask, code) = (op.extra >> 32, op.extra as u32);
                let word = self.memory[word()].into();
                condition(code).holds(Bits32, word, op.value, mask)
            }
            Some(Code::Wait64) => {
                let low = u64::from(self.memory[word()]);
                let both = low | u64::from(self.memory[word() + 1]) << 32;
                condition(op.more).holds(Bits64, both, op.value, op.extra)
            }
            _ => true,
        }
    }

    fn fence(&mut self) {
        for (visible, done) in self.visible.iter_mut().zip(&self.done) {
            *visible |= done;
        }
    }

    fn run(&mut self, op: &ProgramOp) -> Result<(), TestCaseError> {
        if op.flags & FENCED != 0 {
            self.fence();
        }
        let (word, value) = (word_of(op.at), op.value as u32);
        match op.code() {
            Some(Code::Write32) => self.act(Act::Store { word, value }),
            Some(Code::Write64) => stores64(op.at, op.value)
                .into_iter()
                .try_for_each(|act| self.act(act)),
            Some(Code::Wait32) => self.act(Act::Look { word, wide: false }),
            Some(Code::Wait64) => self.act(Act::Look { word, wide: true }),
            Some(Code::Ring) => {
                self.fence();
                let value = op.more;
                self.act(Act::Store { word, value })?;
                self.fence();
                stores64(op.extra, op.value)
                    .into_iter()
                    .try_for_each(|act| self.act(act))
            }
            other => panic!("{other:?} is not in the tests"),
        }
    }

    /// Does `act`, if the list allows it now.
    fn act(&mut self, act: Act) -> Result<(), TestCaseError> {
        let found = (0..self.asked.len()).find(|&i| !self.done[i] && self.asked[i].act == act);
        prop_assert!(found.is_some(), "{act:?} was not asked for");
        let i = found.unwrap_or_default();
        let asked = &self.asked[i];
        for (j, before) in self.asked[..i].iter().enumerate() {
            prop_assert!(
                self.done[j] || before.may_swap(asked),
                "{asked:?} before {before:?}"
            );
            let stores = [before, asked].map(|a| matches!(a.act, Act::Store { .. }));
            let first = before.part != asked.part && !before.may_swap(asked);
            let fenced = before.epoch < asked.epoch || (asked.fenced && first);
            prop_assert!(
                stores != [true, true] || !fenced || self.visible[j],
                "{asked:?} without a fence after {before:?}"
            );
        }
        self.done[i] = true;
        if let Act::Store { word, value } = act {
            self.memory[word] = value;
        }
        Ok(())
    }
}

/// The chains of each step, as the kernel reads them.
fn steps(program: &Program) -> Vec<Vec<Vec<ProgramOp>>> {
    let mut steps = Vec::new();
    let mut begin = 0;
    while begin < program.ops().len() {
        let end = begin + usize::from(program.ops()[begin].step);
        let mut chains: Vec<Vec<ProgramOp>> = Vec::new();
        for op in &program.ops()[begin..end] {
            match chains.last_mut() {
                Some(chain) if op.flags & CHAINED != 0 => chain.push(*op),
                _ => chains.push(vec![*op]),
            }
        }
        steps.push(chains);
        begin = end;
    }
    steps
}

fn run_any_way(plan: &Plan, program: &Program, seed: u64) -> Result<(), TestCaseError> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut run = Run {
        asked: &plan.asked,
        done: vec![false; plan.asked.len()],
        visible: vec![false; plan.asked.len()],
        memory: initial(),
    };
    for mut chains in steps(program) {
        chains.iter_mut().for_each(|chain| chain.reverse());
        while !chains.is_empty() {
            let able = |chain: &Vec<ProgramOp>| chain.last().is_some_and(|op| run.holds(op));
            let able: Vec<usize> = (0..chains.len()).filter(|&i| able(&chains[i])).collect();
            prop_assert!(!able.is_empty(), "no thread can run: {chains:?}");
            let chosen = able[rng.usize(..able.len())];
            if let Some(op) = chains[chosen].pop() {
                run.run(&op)?;
            }
            chains.retain(|chain| !chain.is_empty());
        }
    }
    prop_assert!(run.done.iter().all(|done| *done), "something was left out");
    prop_assert_eq!(&run.memory, &plan.memory);
    Ok(())
}

fn seeds() -> impl Strategy<Value = Vec<(Vec<Seed>, u8, bool)>> {
    let seed = (0..9u8, 0..WORDS, any::<u64>(), any::<u64>(), any::<bool>());
    let piece = (prop::collection::vec(seed, 1..14), 0..8u8, any::<bool>());
    prop::collection::vec(piece, 1..9)
}

/// A program and its expected effects; pieces that do not fit are left out.
fn planned(pieces: &[(Vec<Seed>, u8, bool)]) -> (Plan, Program) {
    let (mut plan, mut program) = (Plan::new(), Program::default());
    for (seeds, own, glue) in pieces {
        grow(&mut plan, &mut program, seeds, *own, *glue);
    }
    (plan, program)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(2000)))]

    #[test]
    fn a_program_keeps_the_order_of_the_list_whichever_thread_goes_first(
        pieces in seeds(),
        seed in any::<u64>(),
    ) {
        let (plan, program) = planned(&pieces);
        for turn in 0..4 {
            run_any_way(&plan, &program, seed ^ turn)?;
        }
    }
}

/// Each kernel leaves the memory content that the list defines.
#[test]
fn the_kernels_run_programs_as_the_list_says() {
    let gpu = Gpu::soft().unwrap();
    let kernels = gpu.load(&KERNELS).unwrap();
    let stream = gpu.stream().unwrap();
    let region = gpu.alloc(MemoryKind::Device, 4 * ALL_WORDS).unwrap();
    let start: Vec<u8> = initial().iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(cases(200)));
    let mut used = std::collections::BTreeMap::new();
    let strategy = seeds();
    for _ in 0..cases(200) {
        let pieces = strategy.new_tree(&mut runner).unwrap().current();
        let (plan, mut program) = planned(&pieces);
        let moved = region.addr().0.wrapping_sub(BASE);
        for op in &mut program.ops[..program.count as usize] {
            op.at = op.at.wrapping_add(moved);
            if op.code == Code::Ring as u8 {
                op.extra = op.extra.wrapping_add(moved);
            }
        }
        region.write(0, &start).unwrap();
        let (entry, bytes) = Entry::of_program(&program);
        let kernel = kernels.kernel(entry.name()).unwrap();
        *used.entry(entry.name()).or_insert(0) += 1;
        // SAFETY: every address of the program is in `region`, which outlives the run.
        unsafe { stream.launch(&kernel, Dims::linear(1, 32), bytes) }.unwrap();
        finish(&stream, &format!("{program:?}"));
        let got = region.vec(0, 4 * ALL_WORDS);
        let want: Vec<u8> = plan.memory.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(got, want, "{program:?}");
    }
    assert_eq!(used.len(), 3, "every size was used: {used:?}");
}

/// Lists of messages take few steps, for any number of messages.
#[test]
fn messages_to_many_peers_ring_at_once_and_wait_at_once() {
    let (mut program, mut batch) = (Program::default(), Batch::new());
    let ring = |record, doorbell, edge| Ring {
        record: DevicePtr(record),
        record_value: 1,
        doorbell: DevicePtr(doorbell),
        doorbell_value: 1,
        edge,
    };
    for peer in 0..26 {
        let ring = ring(0x1000 + 8 * peer, 0x2000 + 0x1000 * peer, None);
        post::push(&mut batch, &ring);
    }
    for peer in 0..26 {
        let entry = Completion {
            word: DevicePtr(0x80_0000 + 64 * peer),
            owner: peer as u8 % 2,
            first_lap: false,
            send: peer > 2,
            flush: false,
        };
        completion::push(&mut batch, &entry, &Caps::FULL.nor(false).mask(peer == 2));
    }
    for peer in 0..26 {
        let mark = Op::write(Bits32, DevicePtr(0x90_0000 + 4 * peer), 1u32);
        batch.add(mark, Role::Mark, false);
    }
    assert!(take_all(&mut program, &batch));
    let shape = |program: &Program| -> Vec<usize> { steps(program).iter().map(Vec::len).collect() };
    assert_eq!(shape(&program), [26, 26, 26]);
    assert_eq!(Entry::of_program(&program).0, Entry::Program);

    // Queues that share a doorbell run one after the other, and so do tests of one word.
    for (edge, expected) in [(None, &[1, 1][..]), (Some(5), &[1, 1, 1, 1])] {
        program.clear();
        batch.clear();
        for record in [0x1000, 0x1008] {
            post::push(&mut batch, &ring(record, 0x2000, edge));
        }
        assert!(take_all(&mut program, &batch));
        assert_eq!(shape(&program), expected);
    }
    assert_eq!(
        Entry::of_program(&program),
        (Entry::Program8, &program.bytes()[..264])
    );

    batch.clear();
    for (condition, value) in [(Condition::And, 0x100_0000u32), (Condition::Geq, 0)] {
        batch.push(Op::wait(Bits32, DevicePtr(0x3c), condition, value));
    }
    program.clear();
    assert!(take_all(&mut program, &batch));
    let shape: Vec<_> = steps(&program)[0].iter().map(Vec::len).collect();
    assert_eq!(shape, [2], "one thread, one after the other");
    batch.push(Op::Flush);
    program.clear();
    assert!(!take_all(&mut program, &batch) && program.take(&batch, 2) == 0);
}

/// A program refuses an operation that has no form in it, or that does not fit.
#[test]
fn a_program_takes_a_whole_operation_or_nothing_of_it() {
    let write = |word: u64| Op::write(Bits32, DevicePtr(BASE + 4 * word), 1u32).fenced(false);
    let batch = |ops: &[Op]| {
        let mut batch = Batch::new();
        ops.iter().for_each(|op| batch.push(*op));
        batch
    };
    let mut program = Program::default();
    for word in 0..MAX_OPS as u64 {
        let before = program.ops().len();
        let flush = batch(&[write(word), Op::Flush]);
        assert!(!take_all(&mut program, &flush) && program.ops().len() == before);
        assert!(program.has_room(1) && take_all(&mut program, &batch(&[write(word)])));
        if before + 8 == MAX_OPS {
            let data = Inline::new(&[1; 32]).unwrap();
            let at = DevicePtr(BASE);
            let eight = batch(&[Op::Copy { at, data }]);
            let all = batch(&[write(200); 8]);
            assert!(!take_all(&mut program, &eight) && !take_all(&mut program, &all));
            assert_eq!(program.ops().len(), before + 1);
        }
    }
    assert!(!program.has_room(1) && program.ops().len() == MAX_OPS);
    program.clear();
    let data = Inline::new(&[1; 7]).unwrap();
    let at = DevicePtr(BASE);
    assert_eq!(program.take(&batch(&[Op::Copy { at, data }]), 0), 0);
}
