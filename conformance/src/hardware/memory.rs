//! Memory of the application that is registered in overlapping ranges, and memory that is freed
//! while streams still use it.

use gdsync::gpu::{MemoryKind, Region};
use gdsync::rdma::{Access, Descriptor, Work};

use super::faults::config;
use crate::rig::limits::time_limit;
use crate::rig::provider::Net;
use crate::rig::verdict::{Verdict, ensure};
use crate::rig::{Gate, Pair, Rig, Runtime, expected, finish};

const PAGE: usize = 4096;

/// Memory of the application that stays to the end of the process, because streams and drivers may
/// access it after the trial.
fn foreign(len: usize) -> &'static mut [u8] {
    Box::leak(vec![0u8; len + PAGE].into_boxed_slice())
}

/// Three ranges of the application's memory, with the offset of a source and of a target in each,
/// all counted from the start of the memory.
struct Ranges {
    /// Offset and length of each range.
    ranges: [(usize, usize); 3],
    sources: [usize; 3],
    landings: [usize; 3],
}

/// Ranges that overlap.
const OVERLAPPING: Ranges = Ranges {
    ranges: [
        (0, 3 * PAGE),
        (2 * PAGE + 100, 3 * PAGE),
        (PAGE / 2, 6 * PAGE),
    ],
    sources: [1000, 4 * PAGE + 1000, 6 * PAGE],
    landings: [2 * PAGE + 2000, 3 * PAGE + 1, 5 * PAGE + 2000],
};

/// Ranges that only share pages: the soft GPU registers no byte twice.
const ADJOINING: Ranges = Ranges {
    ranges: [
        (0, PAGE + 1000),
        (PAGE + 1000, PAGE),
        (2 * PAGE + 1000, 2 * PAGE),
    ],
    sources: [2000, PAGE + 1000, 3 * PAGE],
    landings: [PAGE + 1, 2 * PAGE, 4 * PAGE],
};

/// Memory of the application, registered three times in ranges that share pages: messages go
/// from range to range, and each range is registered and unregistered independently.
pub fn registered(rig: &Rig, path: &str) -> Verdict {
    const LEN: usize = 256;
    let start = foreign(8 * PAGE).as_mut_ptr();
    let overlap = rig.runtime != Runtime::Soft;
    let layout = if overlap { &OVERLAPPING } else { &ADJOINING };
    let register = |which: usize| -> gdsync::Result<Region> {
        let (at, len) = layout.ranges[which];
        // SAFETY: inside memory that stays to the end of the process, and of which no reference
        // is used any more.
        unsafe { rig.gpu.register_host(start.add(at), len) }
    };
    let config = config(path);
    let mut pair = Pair::new(rig, Net::One, [&config, &config])?;
    let stream = rig.gpu.stream()?;
    let finding = rig.finding()?;
    let mut live = (0..3).map(register).collect::<gdsync::Result<Vec<_>>>()?;
    // A target stays registered until the message has arrived.
    let mut landings = Vec::new();
    for round in 0..24u64 {
        let (from, to) = (round as usize % 3, (round as usize / 2 + 1) % 3);
        let source = pair.pds[0].register(&live[from], Access::ALL)?;
        let landing = pair.pds[1].register(&live[to], Access::ALL)?;
        let out = layout.sources[from] - layout.ranges[from].0;
        let into = layout.landings[to] - layout.ranges[to].0;
        rig.fill(&stream, source.region(), out, LEN, round)?;
        let list = [source.sge(out as u64, LEN as u32)];
        let span = landing.remote().span(into as u64, LEN as u64)?;
        let work = Work::write(&list, span).signaled();
        let send = pair.qps[0].prepare_within(&work, time_limit())?;
        let list = [Descriptor::Send(send), Descriptor::wait_flushed(send)];
        pair.qps[0].post_on(&stream, &list)?;
        rig.verify(&stream, landing.region(), into, LEN, round, &finding)?;
        landings.push(landing);
        // A range is unregistered, often while it is in use, and registered again.
        drop(source);
        if !overlap || round % 3 == 0 {
            finish(&stream, "between registrations")?;
            // Requests release the registrations that they name.
            pair.qps[0].quiet(time_limit())?;
            landings.clear();
        }
        live.remove(from);
        live.insert(from, register(from)?);
    }
    finish(&stream, "messages between ranges")?;
    finding.clean("messages between ranges")?;
    landings.clear();
    // The CPU reads the contents directly.
    let region = live.swap_remove(0);
    live.clear();
    rig.fill(&stream, &region, 5, 1000, 77)?;
    finish(&stream, "a kernel that writes there")?;
    // SAFETY: the GPU is done with the memory, and nothing else uses it now.
    let bytes = unsafe { std::slice::from_raw_parts(start.add(5), 1000) };
    let right = bytes == expected(77, 1000);
    ensure(right, || {
        "the CPU does not read the bytes that the GPU wrote".to_owned()
    })?;
    drop(region);
    pair.leave("foreign memory")?;
    rig.check(&config)
}

/// Regions, registrations and queue pairs that are dropped while streams still have work with
/// them: the work completes as if they existed, also if memory is allocated in the meantime.
pub fn dropped(rig: &Rig, path: &str) -> Verdict {
    const LEN: usize = 1 << 16;
    let config = config(path).send_blocks(64);
    let memory = |kind| rig.gpu.alloc(kind, LEN);
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let stream = rig.gpu.stream()?;
        let finding = rig.finding()?;
        let seen = memory(MemoryKind::Pinned)?;
        let mut pair = Pair::new(rig, Net::One, [&config, &config])?;
        let gate = Gate::new(&rig.gpu)?;
        pair.qps[0].post_on(&stream, &[gate.wait()])?;
        let mut landings = Vec::new();
        for round in 0..8 {
            let first = memory(kind)?;
            let (source, landing) = (pair.memory(0, kind, LEN)?, pair.memory(1, kind, LEN)?);
            rig.fill(&stream, &first, 0, LEN, round)?;
            stream.copy(&source.region().span(0, LEN)?, &first.span(0, LEN)?)?;
            let list = [source.sge(0, LEN as u32)];
            let span = landing.remote().span(0, LEN as u64)?;
            let send = pair.qps[0].prepare(&Work::write(&list, span).signaled())?;
            let list = [Descriptor::Send(send), Descriptor::wait_flushed(send)];
            pair.qps[0].post_on(&stream, &list)?;
            rig.verify(&stream, landing.region(), 0, LEN, round, &finding)?;
            stream.copy(&seen.span(0, LEN)?, &landing.region().span(0, LEN)?)?;
            // A target of a peer's write stays registered until the write is done.
            landings.push(landing);
            drop((first, source));
        }
        // New memory must not overlap dropped memory that is still in use.
        let mut others = Vec::new();
        for i in 0..16 {
            let other = memory(kind)?;
            other.write(0, &vec![i; LEN])?;
            others.push(other);
        }
        gate.open()?;
        finish(&stream, "work with memory that was dropped")?;
        finding.clean("work with memory that was dropped")?;
        let mut got = vec![0; LEN];
        seen.read(0, &mut got)?;
        ensure(got == expected(7, LEN), || {
            "the last copy has the bytes of another message".to_owned()
        })?;
        for (i, other) in others.iter().enumerate() {
            other.read(0, &mut got)?;
            ensure(got.iter().all(|byte| usize::from(*byte) == i), || {
                "writes to dropped memory changed other memory".to_owned()
            })?;
        }
        pair.leave("after all was dropped")?;
    }
    rig.check(&config)
}
