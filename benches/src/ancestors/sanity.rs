//! `gds_sanity`: tests a stream's memory operations on every kind of memory: waits block and pass,
//! operations keep their order, and writes store the given values.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use gdsync::gpu::{Condition, Region, Stream, Word32, Word64};
use gdsync::rdma::{Descriptor, post_on};
use gdsync::{Gpu, Kind};
use serde::Serialize;
use serde_json::json;

use super::{WordMemory, microseconds, spin};
use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::gate::Gate;
use crate::gpu::{self, Driver};
use crate::table::Table;

/// Bytes of the memory of a check.
const BYTES: usize = 16 << 10;
/// Number of words that one inline copy overwrites.
const CHUNK: usize = 16;
/// Operations of the long list: more than any runtime accepts in one call.
const LONG: usize = 600;

/// Options of `mpbench gds_sanity`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Number of rounds of the checks of order.
    #[arg(short = 'n', long, default_value = "50", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: u32,
    /// Time in microseconds for which a waiting stream is checked to stay blocked.
    #[arg(short = 's', long, value_name = "US", default_value = "100", value_parser = microseconds)]
    pub sleep: Duration,
    /// Adds a flush of device writes to every wait.
    #[arg(short = 'f', long)]
    pub flush: bool,
    /// Tests only words in the GPU's memory.
    #[arg(short = 'g', long = "gpu-memory")]
    pub gpu_memory: bool,
    /// The GPU: soft, cuda, cuda:N, hip, hip:N, or auto.
    #[arg(long = "gpu", env = "GDS_GPU", value_parser = gpu::name, default_value = "auto")]
    pub gpu: String,
    /// Changes the expected values, to test that the checks detect a difference.
    #[arg(long, hide = true)]
    pub corrupt: bool,
}

/// The result of a check.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// It passed, with this number of comparisons.
    Passed(u64),
    /// The GPU does not support the checked operation, for this reason.
    NotRun(String),
    /// It failed, for this reason.
    Failed(String),
}

/// A check.
type Check = fn(&mut Rig) -> Result<()>;

/// All checks.
const CHECKS: [(&str, Check); 9] = [
    ("stream blocks, continues, keeps order", order),
    ("waits, 32 bits: GEQ EQ AND NOR", |rig| {
        conditions(rig, false)
    }),
    ("waits, 64 bits: GEQ EQ AND NOR", |rig| {
        conditions(rig, true)
    }),
    ("writes, 32 bits", |rig| writes(rig, false)),
    ("writes, 64 bits", |rig| writes(rig, true)),
    ("inline copies", copies),
    ("writes become visible in order", fences),
    ("list longer than a submission", long_list),
    ("flush", flushes),
];

/// The resources of a check.
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

impl Benchmark for Options {
    const NAME: &'static str = "gds_sanity";
    const ABOUT: &'static str = "Correctness of a stream's memory operations";
    const EXAMPLES: Examples = [
        ("--gpu soft", "all checks on the software GPU"),
        (
            "--gpu cuda -g -n 200",
            "on device memory of a CUDA GPU, 200 rounds of the checks of order",
        ),
    ];
    const VERIFIED: Option<&str> = Some("every check that ran passed");

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let gpu = gpu::open(std::slice::from_ref(&self.gpu), 0)?;
        ensure!(
            !self.flush || gpu.caps().flush,
            "{} has no flush for -f",
            gpu.name()
        );
        println!("gds_sanity: a stream's memory operations, checked");
        println!("{}", gpu.name());
        let memories = match self.gpu_memory {
            true => &[WordMemory::Device][..],
            false => &[
                WordMemory::Pinned,
                WordMemory::Registered,
                WordMemory::Device,
            ],
        };
        let first = format!("{:<38}", "check");
        let table = Table::start(&[&first, "memory", "comparisons"], 10);
        let (mut rows, mut failures) = (Vec::new(), 0);
        for &memory in memories {
            for (name, check) in CHECKS {
                let outcome = outcome(&gpu, memory, self, limit, check);
                let cell = match &outcome {
                    Finding::Passed(n) => n.to_string(),
                    Finding::NotRun(why) => format!("not run: {why}"),
                    Finding::Failed(why) => format!("FAILED: {why}"),
                };
                table.row(&[name, memory.name(), &cell]);
                failures += u32::from(matches!(outcome, Finding::Failed(_)));
                rows.push(json!({ "check": name, "place": memory, "outcome": outcome }));
            }
        }
        let verdict = match failures {
            0 => Ok(()),
            some => Err(anyhow!("{some} checks failed")),
        };
        let figures = json!({
            "gpu": gpu.name(),
            "runtime": gpu.runtime_name(),
            "driver": Driver::of(&gpu),
            "rows": rows,
        });
        Outcome::judged(&figures, Vec::new(), verdict)
    }
}

fn outcome(
    gpu: &Gpu,
    memory: WordMemory,
    options: &Options,
    limit: Duration,
    check: Check,
) -> Finding {
    let mut compared = 0;
    let mut go = || -> Result<()> {
        let mut rig = Rig {
            stream: gpu.stream()?,
            memory: memory.region(gpu, BYTES)?,
            gate: Gate::new(gpu)?,
            iterations: options.iterations,
            sleep: options.sleep,
            flush: options.flush,
            corrupt: options.corrupt,
            compared: 0,
            deadline: Instant::now() + limit,
        };
        check(&mut rig)?;
        rig.drain()?;
        compared = rig.compared;
        Ok(())
    };
    match go() {
        Ok(()) => Finding::Passed(compared),
        Err(e) => {
            let library = e.downcast_ref::<gdsync::Error>();
            match library.filter(|e| e.kind() == Kind::Unsupported) {
                Some(_) => Finding::NotRun(format!("{e:#}")),
                None => Finding::Failed(format!("{e:#}")),
            }
        }
    }
}

/// A word of 32 or 64 bits.
enum Word {
    Narrow(Word32),
    Wide(Word64),
}

impl Word {
    fn store(&self, value: u64) -> Result<()> {
        match self {
            Word::Narrow(word) => word.store(value as u32)?,
            Word::Wide(word) => word.store(value)?,
        }
        Ok(())
    }

    fn load(&self) -> Result<u64> {
        Ok(match self {
            Word::Narrow(word) => word.load()?.into(),
            Word::Wide(word) => word.load()?,
        })
    }

    /// A value, cut to its width.
    fn cut(&self, value: u64) -> u64 {
        match self {
            Word::Narrow(_) => value as u32 as u64,
            Word::Wide(_) => value,
        }
    }

    fn wait(&self, condition: Condition, value: u64, flush: bool) -> Descriptor<'_> {
        match self {
            Word::Narrow(word) => {
                Descriptor::wait_value(word, condition, value as u32).flush(flush)
            }
            Word::Wide(word) => Descriptor::wait_value(word, condition, value).flush(flush),
        }
    }

    fn write(&self, value: u64) -> Descriptor<'_> {
        match self {
            Word::Narrow(word) => write(word, value as u32),
            Word::Wide(word) => Descriptor::write_value(word, value),
        }
    }
}

fn write(word: &Word32, value: u32) -> Descriptor<'_> {
    Descriptor::write_value(word, value)
}

fn wait(word: &Word32, condition: Condition, value: u32, flush: bool) -> Descriptor<'_> {
    Descriptor::wait_value(word, condition, value).flush(flush)
}

impl Rig {
    fn post(&self, list: &[Descriptor<'_>]) -> Result<()> {
        Ok(post_on(&self.stream, &mut [], list)?)
    }

    fn word32(&self, index: usize) -> Result<Word32> {
        Ok(self.memory.word32(4 * index)?)
    }

    fn word(&self, wide: bool, index: usize) -> Result<Word> {
        Ok(match wide {
            true => Word::Wide(self.memory.word64(8 * index)?),
            false => Word::Narrow(self.word32(index)?),
        })
    }

    fn drain(&self) -> Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        ensure!(
            self.stream.synchronize(left)?,
            "the stream does not become idle"
        );
        Ok(())
    }

    /// Checks a value; `--corrupt` changes the expected value.
    fn same(&mut self, what: &str, found: u64, wanted: u64) -> Result<()> {
        self.compared += 1;
        let wanted = wanted ^ u64::from(self.corrupt);
        ensure!(
            found == wanted,
            "{what} is {found:#x} instead of {wanted:#x}"
        );
        Ok(())
    }

    /// Checks that the stream stays blocked for a while.
    fn blocked(&mut self, what: &str) -> Result<()> {
        self.compared += 1;
        spin(self.sleep);
        ensure!(!self.stream.is_idle()?, "the stream has passed {what}");
        Ok(())
    }

    /// Waits until the word has this value.
    fn until(&mut self, word: &Word32, value: u32, what: &str) -> Result<()> {
        self.compared += 1;
        while word.load()? != value {
            if Instant::now() > self.deadline {
                bail!("{what} does not occur within the time limit");
            }
            std::hint::spin_loop();
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Wait for a signal, write a word, overwrite it and others by one copy, wait until the CPU clears
/// it, write a word for the CPU.
fn order(rig: &mut Rig) -> Result<()> {
    let (signal, done) = (rig.word32(0)?, rig.word32(1)?);
    let (first, values) = (rig.word32(64)?, rig.memory.span(4 * 64, 4 * CHUNK)?);
    for round in 1..=rig.iterations {
        let data: Vec<u8> = (1..=CHUNK as u32)
            .flat_map(|i| (round + i).to_le_bytes())
            .collect();
        let list = [
            wait(&signal, Condition::Eq, round, rig.flush),
            write(&first, 0),
            Descriptor::WriteMemory {
                to: &values,
                data: &data,
            },
            wait(&first, Condition::Eq, 0, rig.flush),
            write(&done, round),
        ];
        rig.post(&list)?;
        rig.same("the signal", signal.load()?.into(), (round - 1).into())?;
        rig.blocked("a wait for a signal that has not been given")?;
        rig.same("done", done.load()?.into(), (round - 1).into())?;
        signal.store(round)?;
        // The last word of the copy becomes visible after all others.
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

/// Waits: the condition, its operand, words that block, and words that pass.
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

fn conditions(rig: &mut Rig, wide: bool) -> Result<()> {
    let (word, done) = (rig.word(wide, 3)?, rig.word32(40)?);
    let mut round = 0;
    for (condition, value, blocking, passing) in cases(word.cut(u64::MAX)) {
        for &pass in &passing {
            round += 1;
            word.store(blocking[0])?;
            rig.post(&[word.wait(condition, value, rig.flush), write(&done, round)])?;
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
/// The value of the neighbours of the written words.
const BESIDE: u64 = 0x5a5a_a5a5_c3c3_3c3c;

fn writes(rig: &mut Rig, wide: bool) -> Result<()> {
    for value in VALUES {
        let words: Vec<Word> = (0..5).map(|i| rig.word(wide, i)).collect::<Result<_>>()?;
        words.iter().try_for_each(|word| word.store(BESIDE))?;
        for i in [1, 3] {
            rig.post(&[words[i].write(value)])?;
        }
        rig.drain()?;
        for (i, word) in words.iter().enumerate() {
            let wanted = word.cut(if i % 2 == 1 { value } else { BESIDE });
            rig.same(&format!("word {i}"), word.load()?, wanted)?;
        }
    }
    Ok(())
}

/// An inline copy has the bytes at the time of the call, even if their source changes later.
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

/// A reader that observes a word's new value also observes earlier writes.
fn fences(rig: &mut Rig) -> Result<()> {
    let (before, after) = (rig.word32(0)?, rig.word32(32)?);
    for round in 1..=rig.iterations {
        rig.post(&[write(&before, round), write(&after, round)])?;
        rig.until(&after, round, "a write")?;
        rig.same(
            "the word written before",
            before.load()?.into(),
            round.into(),
        )?;
    }
    Ok(())
}

/// A list that is split into several submissions keeps its order: it writes each word twice, and a
/// wait in the middle holds back the second half.
fn long_list(rig: &mut Rig) -> Result<()> {
    let words: Vec<Word32> = (0..LONG)
        .map(|i| rig.word32(i + 1))
        .collect::<Result<_>>()?;
    let gate = rig.word32(0)?;
    let mut list: Vec<Descriptor<'_>> = words.iter().map(|word| write(word, 1)).collect();
    list.push(wait(&gate, Condition::Eq, 1, rig.flush));
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
            wait(&signal, Condition::Geq, round, true),
            Descriptor::Flush,
            write(&done, round),
        ];
        rig.post(&list).context("enqueueing a flush")?;
        rig.blocked("a wait that flushes")?;
        signal.store(round)?;
        rig.until(&done, round, "the write after a flush")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync::internals::Width;

    #[test]
    fn cases_agree_with_the_conditions() {
        for width in [Width::Bits32, Width::Bits64] {
            for (condition, value, blocking, passing) in cases(width.all()) {
                let holds = |word| condition.holds(width, word, value, width.all());
                assert!(!blocking.into_iter().any(holds), "{condition:?} {value:#x}");
                assert!(passing.into_iter().all(holds), "{condition:?} {value:#x}");
            }
        }
    }
}
