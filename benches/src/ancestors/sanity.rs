//! `gds_sanity`: whether a stream's memory operations do what they are for, on every kind of
//! memory: they block, they pass, they keep their order, they write what they were given.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use gdsync::gpu::{Region, Stream, Word32, Word64};
use gdsync::memop::Condition;
use gdsync::rdma::{Descriptor, post_on};
use gdsync::{Gpu, Kind};
use serde::{Deserialize, Serialize};

use super::{Place, microseconds, spin};
use crate::cli::Run;
use crate::gate::Gate;
use crate::gpu::{self, Driver};
use crate::report::{self, Report};
use crate::table::Table;

/// Bytes of the memory that a check uses.
const BYTES: usize = 16 << 10;
/// Words that are overwritten by one inline copy.
const CHUNK: usize = 16;
/// Operations of the long list: more than any runtime takes at once.
const LONG: usize = 600;

/// Options of `mpbench gds_sanity`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Rounds of the checks of order.
    #[arg(short = 'n', long, default_value = "50", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: u32,
    /// Microseconds for which a stream must be seen to stand still.
    #[arg(short = 's', long, value_name = "US", default_value = "100", value_parser = microseconds)]
    pub sleep: Duration,
    /// Every wait with a flush of what devices wrote.
    #[arg(short = 'f', long)]
    pub flush: bool,
    /// Only words in the GPU's memory.
    #[arg(short = 'g', long = "gpu-memory")]
    pub gpu_memory: bool,
    /// The GPU: soft, cuda, cuda:N, or auto.
    #[arg(long = "gpu", env = "GDS_GPU", value_parser = gpu::name, default_value = "auto")]
    pub gpu: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: Run,
    /// Spoil what the checks of values compare with, to see that it is noticed.
    #[arg(long, hide = true)]
    pub corrupt: bool,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All was as it should be, in so many comparisons.
    Passed(u64),
    /// The GPU cannot do what would be checked.
    NotRun(String),
    /// Something was not.
    Failed(String),
}

/// One check on one kind of memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The check.
    pub check: String,
    /// Where its words lie.
    pub place: Place,
    /// What it found.
    pub outcome: Outcome,
}

/// All of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// The GPU's name.
    pub gpu: String,
    /// Its runtime.
    pub runtime: String,
    /// The driver below it.
    pub driver: Option<Driver>,
    /// Each check.
    pub rows: Vec<Row>,
}

/// A check.
type Check = fn(&mut Rig) -> Result<()>;

/// All of them.
const CHECKS: [(&str, Check); 9] = [
    ("stream blocks, goes on, keeps order", order),
    ("waits, 32 bits: GEQ EQ AND NOR", conditions32),
    ("waits, 64 bits: GEQ EQ AND NOR", conditions64),
    ("writes, 32 bits", writes32),
    ("writes, 64 bits", writes64),
    ("inline copies", copies),
    ("a write is seen after those before it", fences),
    ("a list longer than a submission", long_list),
    ("flush", flushes),
];

/// What a check works with.
struct Rig {
    stream: Stream,
    memory: Region,
    gate: Gate,
    iterations: u32,
    sleep: Duration,
    flush: bool,
    corrupt: bool,
    compared: u64,
    deadline: Instant,
}

/// The command.
pub fn run(options: &Options) -> Result<()> {
    let gpu = gpu::open(std::slice::from_ref(&options.gpu), 0)?;
    ensure!(
        !options.flush || gpu.caps().flush,
        "{} has no flush for -f",
        gpu.name()
    );
    println!("gds_sanity: a stream's memory operations, checked");
    println!("{}", gpu.name());
    let places = match options.gpu_memory {
        true => &[Place::Device][..],
        false => &[Place::Pinned, Place::Registered, Place::Device],
    };
    let first = format!("{:<38}", "check");
    let heads = [first.as_str(), "memory", "comparisons"];
    let table = Table::new(&heads, 10);
    println!("{}", table.line(&heads));
    let mut rows = Vec::new();
    for &place in places {
        for (name, check) in CHECKS {
            let outcome = outcome(&gpu, place, options, check);
            let cell = match &outcome {
                Outcome::Passed(n) => n.to_string(),
                Outcome::NotRun(why) => format!("not run: {why}"),
                Outcome::Failed(why) => format!("FAILED: {why}"),
            };
            println!("{}", table.line(&[name, place.name(), &cell]));
            rows.push(Row {
                check: name.to_owned(),
                place,
                outcome,
            });
        }
    }
    let failed = |row: &&Row| matches!(row.outcome, Outcome::Failed(_));
    let failures = rows.iter().filter(failed).count();
    let figures = Figures {
        gpu: gpu.name(),
        runtime: gpu.runtime_name().to_owned(),
        driver: Driver::of(&gpu),
        rows,
    };
    if let Some(path) = &options.run.json {
        let report = Report::new("gds_sanity", options, &figures, Vec::new())?;
        report::write_json(path, &report)?;
    }
    ensure!(failures == 0, "{failures} checks failed");
    Ok(())
}

fn outcome(gpu: &Gpu, place: Place, options: &Options, check: Check) -> Outcome {
    let mut compared = 0;
    let mut go = || -> Result<()> {
        let mut rig = Rig {
            stream: gpu.stream()?,
            memory: place.region(gpu, BYTES)?,
            gate: Gate::new(gpu)?,
            iterations: options.iterations,
            sleep: options.sleep,
            flush: options.flush,
            corrupt: options.corrupt,
            compared: 0,
            deadline: Instant::now() + options.run.timeout,
        };
        check(&mut rig)?;
        rig.drain()?;
        compared = rig.compared;
        Ok(())
    };
    match go() {
        Ok(()) => Outcome::Passed(compared),
        Err(e) => {
            let library = e.downcast_ref::<gdsync::Error>();
            match library.filter(|e| e.kind() == Kind::Unsupported) {
                Some(_) => Outcome::NotRun(format!("{e:#}")),
                None => Outcome::Failed(format!("{e:#}")),
            }
        }
    }
}

impl Rig {
    fn post(&self, list: &[Descriptor<'_>]) -> Result<()> {
        Ok(post_on(&self.stream, &mut [], list)?)
    }

    fn word32(&self, index: usize) -> Result<Word32> {
        Ok(self.memory.word32(4 * index)?)
    }

    fn word64(&self, index: usize) -> Result<Word64> {
        Ok(self.memory.word64(8 * index)?)
    }

    fn drain(&self) -> Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        ensure!(self.stream.synchronize(left)?, "the stream does not end");
        Ok(())
    }

    /// Compares; the values' checks are the ones that `--corrupt` spoils.
    fn same(&mut self, what: &str, found: u64, wanted: u64) -> Result<()> {
        self.compared += 1;
        let wanted = wanted ^ u64::from(self.corrupt);
        ensure!(
            found == wanted,
            "{what} is {found:#x} instead of {wanted:#x}"
        );
        Ok(())
    }

    /// The stream stands still for a while.
    fn blocked(&mut self, what: &str) -> Result<()> {
        self.compared += 1;
        spin(self.sleep);
        ensure!(!self.stream.is_idle()?, "the stream has passed {what}");
        Ok(())
    }

    /// The word comes to hold this.
    fn until(&mut self, word: &Word32, value: u32, what: &str) -> Result<()> {
        self.compared += 1;
        while word.load()? != value {
            if Instant::now() > self.deadline {
                bail!("{what} does not come");
            }
            std::hint::spin_loop();
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Wait for a signal, write a word, overwrite it with others by one copy, wait for the CPU to
/// clear it, tell the CPU.
fn order(rig: &mut Rig) -> Result<()> {
    let (signal, done) = (rig.word32(0)?, rig.word32(1)?);
    let (first, values) = (rig.word32(64)?, rig.memory.span(4 * 64, 4 * CHUNK)?);
    for round in 1..=rig.iterations {
        let data: Vec<u8> = (1..=CHUNK as u32)
            .flat_map(|i| (round + i).to_le_bytes())
            .collect();
        let wait = |word, value| Descriptor::WaitValue32 {
            word,
            condition: Condition::Eq,
            value,
            flush: rig.flush,
        };
        let write = |word, value| Descriptor::WriteValue32 { word, value };
        let list = [
            wait(&signal, round),
            write(&first, 0),
            Descriptor::WriteMemory {
                to: &values,
                data: &data,
            },
            wait(&first, 0),
            write(&done, round),
        ];
        rig.post(&list)?;
        rig.same("the signal", signal.load()?.into(), (round - 1).into())?;
        rig.blocked("a wait for a signal that nobody gave")?;
        rig.same("done", done.load()?.into(), (round - 1).into())?;
        signal.store(round)?;
        // The last word of the copy says that all of it is there.
        let last = rig.word32(64 + CHUNK - 1)?;
        rig.until(&last, round + CHUNK as u32, "the copy")?;
        rig.blocked("a wait for the CPU to clear what was copied")?;
        rig.same("done", done.load()?.into(), (round - 1).into())?;
        let mut found = vec![0; data.len()];
        rig.memory.read(4 * 64, &mut found)?;
        ensure!(found == data, "the copy differs from its source");
        first.store(0)?;
        rig.until(&done, round, "the end of a round")?;
    }
    Ok(())
}

/// Words to wait for, by how the condition compares: what blocks, what passes.
fn cases(ones: u64) -> [(Condition, u64, Vec<u64>, Vec<u64>); 7] {
    let top = ones ^ (ones >> 1);
    [
        (Condition::Geq, 5, vec![4, 0, top + 6], vec![5, 6, top + 4]),
        (Condition::Geq, 0, vec![ones, top], vec![0, top - 1]),
        (Condition::Eq, 7, vec![6, 8, 7 ^ top, 0], vec![7]),
        (Condition::And, 6, vec![0, 1, 8, top], vec![2, 4, 7, ones]),
        (Condition::And, top, vec![0, top - 1], vec![top, ones]),
        (Condition::Nor, top - 1, vec![ones, top], vec![0, top - 1]),
        (Condition::Nor, 0, vec![ones], vec![0, top, ones - 1]),
    ]
}

fn conditions32(rig: &mut Rig) -> Result<()> {
    let (word, done) = (rig.word32(3)?, rig.word32(40)?);
    let mut round = 0;
    for (condition, value, blocking, passing) in cases(u32::MAX.into()) {
        for &pass in &passing {
            round += 1;
            word.store(blocking[0] as u32)?;
            let wait = Descriptor::WaitValue32 {
                word: &word,
                condition,
                value: value as u32,
                flush: rig.flush,
            };
            let write = Descriptor::WriteValue32 {
                word: &done,
                value: round,
            };
            rig.post(&[wait, write])?;
            for &block in &blocking {
                let what = format!("{condition:?} {value:#x} with {block:#x} in the word");
                word.store(block as u32)?;
                rig.blocked(&what)?;
                ensure!(done.load()? != round, "the stream has passed {what}");
            }
            word.store(pass as u32)?;
            let what = format!("the end of {condition:?} {value:#x} with {pass:#x} in the word");
            rig.until(&done, round, &what)?;
        }
    }
    Ok(())
}

fn conditions64(rig: &mut Rig) -> Result<()> {
    let (word, done) = (rig.word64(3)?, rig.word32(40)?);
    let mut round = 0;
    for (condition, value, blocking, passing) in cases(u64::MAX) {
        for &pass in &passing {
            round += 1;
            word.store(blocking[0])?;
            let wait = Descriptor::WaitValue64 {
                word: &word,
                condition,
                value,
                flush: rig.flush,
            };
            let write = Descriptor::WriteValue32 {
                word: &done,
                value: round,
            };
            rig.post(&[wait, write])?;
            for &block in &blocking {
                let what = format!("{condition:?} {value:#x} with {block:#x} in the word");
                word.store(block)?;
                rig.blocked(&what)?;
                ensure!(done.load()? != round, "the stream has passed {what}");
            }
            word.store(pass)?;
            let what = format!("the end of {condition:?} {value:#x} with {pass:#x} in the word");
            rig.until(&done, round, &what)?;
        }
    }
    Ok(())
}

/// Values in which every byte counts.
const VALUES: [u64; 5] = [
    0,
    u64::MAX,
    0x0123_4567_89ab_cdef,
    0x8000_0000_0000_0001,
    0x7fff_ffff_7fff_ffff,
];
/// What stands beside the words that are written.
const BESIDE: u64 = 0x5a5a_a5a5_c3c3_3c3c;

fn writes32(rig: &mut Rig) -> Result<()> {
    for value in VALUES {
        let words: Vec<Word32> = (0..5).map(|i| rig.word32(i)).collect::<Result<_>>()?;
        words
            .iter()
            .try_for_each(|word| word.store(BESIDE as u32))?;
        for i in [1, 3] {
            rig.post(&[Descriptor::WriteValue32 {
                word: &words[i],
                value: value as u32,
            }])?;
        }
        rig.drain()?;
        for (i, word) in words.iter().enumerate() {
            let wanted = if i % 2 == 1 { value } else { BESIDE };
            let found = word.load()?.into();
            rig.same(&format!("word {i}"), found, (wanted as u32).into())?;
        }
    }
    Ok(())
}

fn writes64(rig: &mut Rig) -> Result<()> {
    for value in VALUES {
        let words: Vec<Word64> = (0..5).map(|i| rig.word64(i)).collect::<Result<_>>()?;
        words.iter().try_for_each(|word| word.store(BESIDE))?;
        for i in [1, 3] {
            rig.post(&[Descriptor::WriteValue64 {
                word: &words[i],
                value,
            }])?;
        }
        rig.drain()?;
        for (i, word) in words.iter().enumerate() {
            let wanted = if i % 2 == 1 { value } else { BESIDE };
            let found = word.load()?;
            rig.same(&format!("word {i}"), found, wanted)?;
        }
    }
    Ok(())
}

/// The bytes are those at the time of the call, whatever becomes of their source.
fn copies(rig: &mut Rig) -> Result<()> {
    for (i, len) in [4, 8, 12, 20, 64, 100, 256].into_iter().enumerate() {
        let at = 4 * (i + 1);
        rig.memory.write(0, &vec![0xee; at + len + 16])?;
        let wanted: Vec<u8> = (0..len).map(|b| (b * 7 + i) as u8).collect();
        let mut source = wanted.clone();
        let to = rig.memory.span(at, len)?;
        rig.gate.close(&rig.stream)?;
        rig.post(&[Descriptor::WriteMemory {
            to: &to,
            data: &source,
        }])?;
        source.fill(0x77);
        rig.gate.open()?;
        rig.drain()?;
        let mut found = vec![0; at + len + 16];
        rig.memory.read(0, &mut found)?;
        for (offset, byte) in found.iter().enumerate() {
            let inside = (at..at + len).contains(&offset);
            let wanted = if inside { wanted[offset - at] } else { 0xee };
            rig.same(&format!("byte {offset}"), (*byte).into(), wanted.into())?;
        }
    }
    Ok(())
}

/// Who sees a word's new value sees those of the words before it.
fn fences(rig: &mut Rig) -> Result<()> {
    let (before, after) = (rig.word32(0)?, rig.word32(32)?);
    for round in 1..=rig.iterations {
        rig.post(&[
            Descriptor::WriteValue32 {
                word: &before,
                value: round,
            },
            Descriptor::WriteValue32 {
                word: &after,
                value: round,
            },
        ])?;
        rig.until(&after, round, "a write")?;
        rig.same(
            "the word written before",
            before.load()?.into(),
            round.into(),
        )?;
    }
    Ok(())
}

/// In pieces, in order: each word is written twice, and a wait in the middle holds the rest.
fn long_list(rig: &mut Rig) -> Result<()> {
    let words: Vec<Word32> = (0..LONG)
        .map(|i| rig.word32(i + 1))
        .collect::<Result<_>>()?;
    let gate = rig.word32(0)?;
    let write = |word, value| Descriptor::WriteValue32 { word, value };
    let mut list: Vec<Descriptor<'_>> = words.iter().map(|word| write(word, 1)).collect();
    list.push(Descriptor::WaitValue32 {
        word: &gate,
        condition: Condition::Eq,
        value: 1,
        flush: rig.flush,
    });
    list.extend((2..).zip(&words).map(|(i, word)| write(word, i)));
    rig.post(&list)?;
    rig.until(&words[LONG - 1], 1, "the first half")?;
    rig.blocked("the wait in the middle of a list")?;
    for (i, word) in words.iter().enumerate() {
        rig.same(&format!("word {i}"), word.load()?.into(), 1)?;
    }
    gate.store(1)?;
    rig.drain()?;
    for (i, word) in (0_u64..).zip(&words) {
        rig.same(&format!("word {i}"), word.load()?.into(), i + 2)?;
    }
    Ok(())
}

/// A flush between writes, and a wait that flushes.
fn flushes(rig: &mut Rig) -> Result<()> {
    let (signal, done) = (rig.word32(0)?, rig.word32(8)?);
    for round in 1..=rig.iterations.min(50) {
        let list = [
            Descriptor::WaitValue32 {
                word: &signal,
                condition: Condition::Geq,
                value: round,
                flush: true,
            },
            Descriptor::Flush,
            Descriptor::WriteValue32 {
                word: &done,
                value: round,
            },
        ];
        rig.post(&list).context("enqueueing a flush")?;
        rig.blocked("a wait that flushes")?;
        signal.store(round)?;
        rig.until(&done, round, "what is behind a flush")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync::memop::Width;

    #[test]
    fn the_cases_are_what_the_conditions_say() {
        for width in [Width::Bits32, Width::Bits64] {
            for (condition, value, blocking, passing) in cases(width.all()) {
                let holds = |word| condition.holds(width, word, value, width.all());
                assert!(!blocking.into_iter().any(holds), "{condition:?} {value:#x}");
                assert!(passing.into_iter().all(holds), "{condition:?} {value:#x}");
            }
        }
    }
}
