//! CPU overhead of posting with one provider and with another: the same bursts on a NIC of each, in
//! one process, in turn, so that other load affects both. The processor time of this thread is
//! measured as well as elapsed time: it excludes the threads that drive virtual NICs, and other
//! programs.
//!
//! The process runs on one processor. The cost of a store into a ring depends on the cache that
//! read its line last, and a virtual NIC is a thread. On two processors, or sixteen, that would
//! affect the result more than the host's work does.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::json;

use super::{Bench, MESSAGE, Method, SIGNALED, WARM_UP};
use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::options::{Provider, Setup};
use crate::report::Target;
use crate::stats::{Samples, Summary};
use crate::table::Table;

/// Greatest allowed cost, relative to the other provider.
const MOST: f64 = 1.10;
/// Requests of a burst that the CPU posts: the NIC works at the same time, so the burst is short.
const CPU_BURST: usize = 128;
/// Requests of a burst with a wait for each: behind the gate, stream and NIC alternate as often.
const WAITED_BURST: usize = 64;

/// Options of `mpbench providers`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// The provider that is measured.
    #[arg(long, value_enum, default_value = "mlx5")]
    pub of: Provider,
    /// The provider that it is compared with.
    #[arg(long, value_enum, default_value = "emulated")]
    pub against: Provider,
    /// Number of pairs of bursts, for each method of posting.
    #[arg(long, default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub rounds: u64,
    #[command(flatten)]
    pub setup: Setup,
}

/// Times for each request, burst by burst, in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Elapsed time.
    pub wall_ns: Summary,
    /// Processor time of this thread.
    pub cpu_ns: Summary,
}

/// The results of one method of posting, for both providers.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The name of the method.
    pub name: String,
    /// The first provider.
    pub of: Cost,
    /// The second provider.
    pub against: Cost,
    /// The median ratio over all pairs of bursts, by processor time of this thread.
    pub cpu_ratio: f64,
    /// The median ratio by elapsed time.
    pub wall_ratio: f64,
}

/// The method of posting.
#[derive(Clone, Copy)]
enum Calls {
    /// The CPU prepares, posts and writes the doorbell.
    Cpu,
    /// Requests are enqueued on a stream that waits at a closed gate.
    Stream(Method),
}

impl Calls {
    const ALL: [Calls; 4] = [
        Calls::Cpu,
        Calls::Stream(Method::Single),
        Calls::Stream(Method::Sends),
        Calls::Stream(Method::Mixed),
    ];

    fn name(self) -> String {
        match self {
            Calls::Cpu => "CPU: prepare and post one send".to_owned(),
            Calls::Stream(Method::Single) => format!("stream: {}", Method::Single.name()),
            Calls::Stream(method) => format!("stream: prepare, {}", method.name()),
        }
    }

    /// Requests of a burst.
    fn requests(self, bench: &Bench) -> usize {
        match self {
            Calls::Cpu => CPU_BURST,
            Calls::Stream(Method::Mixed) => WAITED_BURST,
            Calls::Stream(_) => bench.burst,
        }
    }

    /// The divisor of a figure: the number of calls of a burst.
    fn calls(self, bench: &Bench) -> usize {
        match self {
            Calls::Cpu => CPU_BURST,
            Calls::Stream(method) => self.requests(bench) / method.requests(),
        }
    }
}

/// Pins this thread, and those that it starts from now on, to its current processor.
fn pin_thread() -> Result<()> {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).context("staying on one processor")
}

/// Elapsed time, and processor time of this thread.
#[derive(Clone, Copy, Debug)]
struct Elapsed {
    wall: Duration,
    cpu: Duration,
}

fn now(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Measures a call.
fn timed<R>(f: impl FnOnce() -> R) -> (R, Elapsed) {
    let clocks = [ClockId::Monotonic, ClockId::ThreadCPUTime];
    let [wall, cpu] = clocks.map(now);
    let result = f();
    // The inner clock is read first, so that it does not include the reading of the other one.
    let [cpu_end, wall_end] = [clocks[1], clocks[0]].map(now);
    let took = Elapsed {
        wall: wall_end - wall,
        cpu: cpu_end - cpu,
    };
    (result, took)
}

impl Bench {
    fn posted_by_cpu(&mut self) -> Result<()> {
        for i in 0..CPU_BURST {
            let request = self.rig.prepare(MESSAGE, i % SIGNALED == SIGNALED - 1)?;
            self.rig.qp.post(request)?;
        }
        Ok(())
    }

    /// Runs one burst, and waits until it is done.
    fn round(&mut self, calls: Calls) -> Result<Elapsed> {
        match calls {
            Calls::Cpu => {
                let (posted, took) = timed(|| self.posted_by_cpu());
                posted?;
                self.rig.qp.quiet(self.rig.left())?;
                Ok(took)
            }
            Calls::Stream(method) => {
                self.rig.gate.close(&self.rig.endpoint.stream)?;
                let requests = calls.requests(self);
                let (enqueued, took) = timed(|| self.calls(method, requests));
                enqueued?;
                self.rig.drain()?;
                Ok(took)
            }
        }
    }
}

/// Samples of one provider.
#[derive(Default)]
struct CostSamples {
    wall: Samples,
    cpu: Samples,
}

impl CostSamples {
    fn cost(&self) -> Cost {
        Cost {
            wall_ns: self.wall.summary(),
            cpu_ns: self.cpu.summary(),
        }
    }
}

/// The median.
fn median(mut of: Vec<f64>) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

fn measure(benches: &mut [Bench; 2], calls: Calls, rounds: u64) -> Result<Row> {
    let mut samples = [CostSamples::default(), CostSamples::default()];
    let (mut by_wall, mut by_cpu) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + rounds {
        let mut pair = [None; 2];
        // The second measurement finds memory in the cache, so they alternate.
        for i in [round % 2, 1 - round % 2].map(|i| i as usize) {
            pair[i] = Some(benches[i].round(calls)?);
        }
        let [Some(of), Some(against)] = pair else {
            continue;
        };
        if round < WARM_UP {
            continue;
        }
        by_wall.push(of.wall.as_secs_f64() / against.wall.as_secs_f64());
        by_cpu.push(of.cpu.as_secs_f64() / against.cpu.as_secs_f64());
        let n = calls.calls(&benches[0]) as u64;
        for (samples, took) in samples.iter_mut().zip([of, against]) {
            samples.wall.record(took.wall.as_nanos() as u64 / n);
            samples.cpu.record(took.cpu.as_nanos() as u64 / n);
        }
    }
    let [of, against] = samples.map(|samples| samples.cost());
    Ok(Row {
        name: calls.name(),
        of,
        against,
        cpu_ratio: median(by_cpu),
        wall_ratio: median(by_wall),
    })
}

impl Benchmark for Options {
    const NAME: &'static str = "providers";
    const ABOUT: &'static str = "CPU overhead of posting with one provider, compared with another";
    const EXAMPLES: Examples = [
        (
            "--of verbs --against emulated",
            "CPU overhead of the provider verbs compared with the virtual NIC in the process",
        ),
        (
            "--rounds 100 --gpu soft",
            "libmlx5 compared with the virtual NIC, 100 pairs of bursts for each method",
        ),
    ];

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        pin_thread()?;
        let bench = |provider| {
            let setup = Setup {
                provider,
                ..self.setup.clone()
            };
            Bench::new(&setup, limit)
        };
        let mut benches = [bench(self.of)?, bench(self.against)?];
        let bursts = benches.each_ref().map(|bench| bench.burst);
        ensure!(bursts[0] == bursts[1], "bursts of {bursts:?} requests");
        let names = benches.each_ref().map(|bench| bench.rig.names());
        println!(
            "mpbench providers: 8-byte RDMA writes, the host's time, in turn, on one processor"
        );
        println!(
            "{}: {} against {}",
            names[0].gpu, names[0].provider, names[1].provider
        );
        let name = |provider: Provider| {
            let value = provider.to_possible_value();
            value.map_or_else(String::new, |value| value.get_name().to_owned())
        };
        let (of, against) = (name(self.of), name(self.against));
        let first = format!("{:<58}", "medians of this thread's time");
        let table = Table::start(&[&first, &of, &against, "ratio", "by the clock"], 9);
        let mut rows = Vec::new();
        for calls in Calls::ALL {
            let row = measure(&mut benches, calls, self.rounds)?;
            table.row(&[
                row.name.clone(),
                format!("{} ns", row.of.cpu_ns.median),
                format!("{} ns", row.against.cpu_ns.median),
                format!("{:.3}", row.cpu_ratio),
                format!("{:.3}", row.wall_ratio),
            ]);
            rows.push(row);
        }
        let target = |row: &Row| {
            let name = format!("providers: {}, {of} by {against}", row.name);
            Target::at_most(&name, row.cpu_ratio, MOST, "")
        };
        let targets = rows.iter().map(target).collect();
        Outcome::of(&json!({ "names": names, "rows": rows }), targets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_value() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![7.0]), 7.0);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn threads_inherit_the_pinning_of_their_creator() {
        let creator = std::thread::spawn(|| {
            pin_thread().unwrap();
            let parallel = || std::thread::available_parallelism().unwrap().get();
            [parallel(), std::thread::spawn(parallel).join().unwrap()]
        });
        assert_eq!(creator.join().unwrap(), [1, 1]);
    }

    #[test]
    fn processor_time_excludes_sleep() {
        let ((), took) = timed(|| std::thread::sleep(Duration::from_millis(30)));
        assert!(took.wall >= Duration::from_millis(30), "{took:?}");
        assert!(took.cpu < took.wall, "{took:?}");
    }
}
