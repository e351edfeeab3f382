//! Streams that wait: as many as the hardware channels allow, one more, and other streams in the
//! meantime. The driver reads CUDA_DEVICE_MAX_CONNECTIONS when it starts, so each number of
//! channels needs a separate process.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{MemoryKind, Stream};
use gdsync::rdma::{Descriptor, QpConfig, Work};
use gdsync::{Gpu, Kind};

use super::{CHANNELS, child};
use crate::rig::limits::{scaled, time_limit};
use crate::rig::provider::Net;
use crate::rig::verdict::{Verdict, ensure, refused};
use crate::rig::{Gate, Pair, Rig, Runtime, finish};

/// Time limit of the child process.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the trial with `streams` waiting streams in a process with `channels` hardware channels.
pub fn in_a_process(runtime: Runtime, channels: u32, streams: usize) -> Verdict {
    let mut command = child::command("waits", &[runtime.name(), &streams.to_string()])?;
    // 8 is the default of CUDA's driver.
    let [cuda, hip] = CHANNELS;
    match channels {
        8 => command.env_remove(cuda),
        other => command.env(cuda, other.to_string()),
    };
    command.env(hip, channels.to_string());
    child::run(command, scaled(LIMIT)).map(drop)
}

/// The child's side of [`in_a_process`].
pub fn child_main(arguments: &[String]) -> Verdict {
    let [runtime, streams] = arguments else {
        return Err("a runtime and a number of streams are needed".into());
    };
    let runtime = Runtime::named(runtime).ok_or("no such runtime")?;
    waiting(runtime, streams.parse()?)
}

fn gpu(runtime: Runtime) -> Verdict<Rig> {
    match runtime {
        Runtime::Cuda | Runtime::Hip => Ok(Rig::open(runtime)?),
        Runtime::Soft => {
            let channels = std::env::var(CHANNELS[0]).ok();
            let options = SoftOptions::default()
                .channels(channels.map_or(Ok(8), |channels| channels.parse())?);
            let live: Arc<dyn gds_step::Host> = gds_step::Live::global()?;
            Ok(Rig::of(runtime, Gpu::soft_with(live, options)?)?)
        }
    }
}

/// Writes the time and the current step to standard error. The parent process reports them if this
/// one hangs.
fn step(what: &str) {
    static START: OnceLock<Instant> = OnceLock::new();
    let since = START.get_or_init(Instant::now).elapsed().as_millis();
    eprintln!("{since} ms: {what}");
}

/// Makes `count` streams wait. Waits beyond the limit fail with an error that names the remedy;
/// other streams are not blocked. In the end all waits pass, and the refused streams may wait.
fn waiting(runtime: Runtime, count: usize) -> Verdict {
    let rig = gpu(runtime)?;
    let limits = rig.gpu.wait_limits().ok_or("no limit of waiting streams")?;
    let (limit, channels) = (limits.streams as usize, limits.channels as usize);
    ensure(limit < count && limit < channels, || {
        format!("{limits:?}, where {count} streams are too many")
    })?;
    let gate = Gate::new(&rig.gpu)?;
    let config = QpConfig::default().send_blocks(4).recv_entries(4);
    let mut pair = Pair::new(&rig, Net::One, [&config, &config])?;
    // Each stream has work behind its wait.
    let memory = rig.gpu.alloc(MemoryKind::Device, 64 * count)?;
    let finding = rig.finding()?;
    let streams: Vec<Stream> = (0..count)
        .map(|_| rig.gpu.stream())
        .collect::<Result<_, _>>()?;
    for (i, stream) in streams.iter().enumerate() {
        step(&format!("enqueue a wait on stream {i} of {count}"));
        let posted = pair.qps[0].post_on(stream, &[gate.wait()]);
        if i < limit {
            posted?;
            rig.fill(stream, &memory, 64 * i, 64, i as u64)?;
        } else {
            let error = refused(posted, Kind::TooManyWaits, "one stream too many")?;
            let text = error.to_string();
            ensure(
                names_setting(rig.runtime, &text) && error.limit() == Some(limit as u64),
                || text.clone(),
            )?;
        }
        if i + 1 == limit - 1 {
            // One more stream may wait: a message uses that wait, and frees it.
            pair.message(&rig, 5)?;
        }
    }

    // All other work continues: the refused streams and new ones, kernels, copies, memory.
    let others = streams[limit..].iter().cloned();
    let mut others: Vec<Stream> = others.collect();
    // On HIP, more streams than channels share them.
    if runtime != Runtime::Hip {
        for _ in 0..2 {
            others.push(rig.gpu.stream()?);
        }
    }
    for (i, stream) in others.iter().enumerate() {
        step(&format!(
            "allocate memory for stream {i} of those without a wait"
        ));
        let (from, to) = (
            rig.gpu.alloc(MemoryKind::Device, 1 << 16)?,
            rig.gpu.alloc(MemoryKind::Device, 1 << 16)?,
        );
        let seed = 1000 + i as u64;
        step("enqueue its work and wait for the end");
        rig.fill(stream, &from, 0, 1 << 16, seed)?;
        stream.copy(&to.span(0, 1 << 16)?, &from.span(0, 1 << 16)?)?;
        rig.verify(stream, &to, 0, 1 << 16, seed, &finding)?;
        finish(stream, "a stream beside the waiting ones")?;
        step("free its memory");
    }
    step("send a message while the streams wait");
    finding.clean("beside the waiting streams")?;
    // A message is transferred too, if no stream waits for it.
    let (source, landing) = (
        pair.memory(0, MemoryKind::Device, 64)?,
        pair.memory(1, MemoryKind::Device, 64)?,
    );
    rig.fill(&others[0], source.region(), 0, 64, 3)?;
    let list = [source.sge(0, 64)];
    let to = landing.remote().span(0, 64)?;
    let send = pair.qps[0].prepare(&Work::write(&list, to).signaled())?;
    pair.qps[0].post_on(&others[0], &[Descriptor::Send(send)])?;
    pair.qps[0].wait(send, time_limit())?;
    rig.verify(&others[0], landing.region(), 0, 64, 3, &finding)?;
    finish(&others[0], "a message beside the waiting streams")?;
    finding.clean("a message beside the waiting streams")?;
    for stream in &streams[..limit] {
        ensure(!stream.is_idle()?, || format!("{stream:?} did not wait"))?;
    }

    step("open the gate");
    gate.open()?;
    for (i, stream) in streams[..limit].iter().enumerate() {
        rig.verify(stream, &memory, 64 * i, 64, i as u64, &finding)?;
        finish(stream, "a stream whose gate is open")?;
    }
    finding.clean("what was enqueued behind the waits")?;
    step("enqueue waits on the streams that were refused");
    let gate = Gate::new(&rig.gpu)?;
    for stream in streams[limit..].iter().take(limit) {
        pair.qps[0].post_on(stream, &[gate.wait()])?;
    }
    gate.open()?;
    for stream in &streams {
        finish(stream, "in the end")?;
    }
    step("send the last message");
    pair.message(&rig, 6)?;
    pair.leave("waiting streams")
}

/// A waiting stream accepts only the submissions that the driver accepts without blocking. The
/// next one fails at once (`QueueFull`), and other streams continue.
pub fn full_stream(rig: &Rig) -> Verdict {
    let limits = rig.gpu.wait_limits().ok_or("no limit of waiting streams")?;
    let limit = limits.submissions.ok_or("no limit of submissions")?;
    let config = QpConfig::default();
    let mut pair = Pair::new(rig, Net::One, [&config, &config])?;
    let gate = Gate::new(&rig.gpu)?;
    let stream = rig.gpu.stream()?;
    let words = rig.gpu.alloc(MemoryKind::Pinned, 64)?;
    let (word, other) = (words.word32(0)?, words.word32(4)?);
    pair.qps[0].post_on(&stream, &[gate.wait()])?;
    let mut taken = 1;
    let error = loop {
        let value = taken;
        let write = Descriptor::write_value(&word, value);
        match pair.qps[0].post_on(&stream, &[write]) {
            Ok(()) => taken += 1,
            Err(e) => break refused::<()>(Err(e), Kind::QueueFull, "a full stream")?,
        }
        ensure(taken <= limit, || format!("{taken} submissions are taken"))?;
    };
    ensure(error.limit() == Some(u64::from(limit)), || {
        format!("{error:?}")
    })?;
    let more = match rig.runtime {
        // A kernel compares cyclically; the wait takes three submissions.
        Runtime::Hip => 2,
        Runtime::Soft | Runtime::Cuda => 0,
    };
    ensure(taken + more == limit, || {
        format!("{taken} submissions are taken, where {limit} have room")
    })?;
    // Another stream accepts the operation that this one refuses.
    let beside = rig.gpu.stream()?;
    let write = Descriptor::write_value(&other, 7);
    pair.qps[0].post_on(&beside, &[write])?;
    finish(&beside, "a stream beside the full one")?;
    ensure(other.load()? == 7 && word.load()? == 0, || {
        "the wrong stream continued".to_owned()
    })?;
    gate.open()?;
    finish(&stream, "a full stream whose gate is open")?;
    ensure(word.load()? == taken - 1, || {
        format!("the last of {taken} submissions is missing")
    })?;
    pair.qps[0].post_on(&stream, &[write])?;
    finish(&stream, "a stream that was full")?;
    pair.message(rig, 8)?;
    pair.leave("a full stream")
}

/// Whether the text names what sets the number of channels.
fn names_setting(runtime: Runtime, text: &str) -> bool {
    let [cuda, hip] = CHANNELS;
    text.contains(match runtime {
        Runtime::Soft => "SoftOptions::channels",
        Runtime::Cuda => cuda,
        Runtime::Hip => hip,
    })
}
