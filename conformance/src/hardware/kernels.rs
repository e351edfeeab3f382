//! The library's own kernels on memory that the test lays out: what they write and where, and what
//! they leave unchanged.

use gdsync::gpu::{DevicePtr, Dims, KERNELS, Kernel, MemoryKind, Region, Stream};
use gdsync::internals::{
    Entry, Fill, QueueState, Report, Trigger, TriggerQueue, Verify, Wait, Waited, WaiterState,
};

use crate::rig::verdict::{Verdict, ensure};
use crate::rig::{Rig, expected, finish};

/// A kernel of the library.
fn kernel(rig: &Rig, entry: Entry) -> gdsync::Result<Kernel> {
    rig.gpu.load(&KERNELS)?.kernel(entry.name())
}

fn launch(stream: &Stream, kernel: &Kernel, dims: Dims, params: &[u8]) -> gdsync::Result<()> {
    // SAFETY: all addresses are of regions that the trials keep until the stream is done.
    unsafe { stream.launch(kernel, dims, params) }
}

/// Fill and Verify at odd offsets, with odd lengths and odd numbers of blocks and threads.
pub fn patterns(rig: &Rig, kind: MemoryKind) -> Verdict {
    const ROOM: usize = 1 << 15;
    let (fill, verify) = (kernel(rig, Entry::Fill)?, kernel(rig, Entry::Verify)?);
    let stream = rig.gpu.stream()?;
    let memory = rig.gpu.alloc(kind, ROOM)?;
    let report = rig.gpu.alloc(MemoryKind::Device, 16)?;
    let cases = [
        (0, 0),
        (0, 1),
        (8, 8),
        (3, 7),
        (5, 1001),
        (64, 2047),
        (16, 20000),
    ];
    for (at, len) in cases {
        for (blocks, threads) in [(1, 1), (3, 33), (8, 128), (132, 512)] {
            let what = || format!("{len} bytes at {at} by {blocks} x {threads}");
            memory.write(0, &[0xa5; ROOM])?;
            let seed = 77 + len as u64;
            let params = Fill {
                at: memory.addr().offset(at as u64),
                len: len as u64,
                seed,
            };
            let dims = Dims::linear(blocks, threads);
            launch(&stream, &fill, dims, params.bytes())?;
            finish(&stream, "fill")?;
            let mut got = vec![0; ROOM];
            memory.read(0, &mut got)?;
            let mut want = vec![0xa5; ROOM];
            want[at..at + len].copy_from_slice(&expected(seed, len));
            ensure(got == want, what)?;
            // Four bytes are spoilt, if there are as many.
            let spoilt = match len > 100 {
                true => vec![40, 41, 90, len - 1],
                false => vec![],
            };
            for i in &spoilt {
                memory.write(at + i, &[got[at + i] ^ 0x10])?;
            }
            report.write(0, &Report::CLEAN.to_bytes())?;
            let params = Verify {
                at: params.at,
                len: params.len,
                seed,
                report: report.addr(),
            };
            launch(&stream, &verify, dims, params.bytes())?;
            finish(&stream, "verify")?;
            let mut found = [0; 16];
            report.read(0, &mut found)?;
            let found = Report::from_bytes(found);
            let first = spoilt.first().map_or(u64::MAX, |i| *i as u64);
            let wrong = spoilt.len() as u64;
            ensure(found == Report { wrong, first }, || {
                format!("{}: {found:?}", what())
            })?;
        }
    }
    Ok(())
}

/// Queue `i` of a simulated NIC: 16 basic blocks, its state, doorbell record and doorbell.
struct Queue {
    memory: Region,
}

impl Queue {
    const RING: usize = 0;
    const STATE: usize = 1024;
    const RECORD: usize = 1152;
    const DOORBELL: usize = 1168;

    /// `sizes`: the entries' sizes in segments of 16 bytes, from block `start` on.
    fn new(rig: &Rig, id: u8, start: u32, sizes: &[u8]) -> gdsync::Result<Queue> {
        let memory = rig.gpu.alloc(MemoryKind::Device, 2048)?;
        let mut block = start as usize;
        for (i, size) in sizes.iter().enumerate() {
            let head = [1, 2, i as u8, id, 0, 0, 9, *size];
            memory.write(Queue::RING + 64 * (block % 16), &head)?;
            block += usize::from(*size).div_ceil(4);
        }
        let at = |offset: usize| memory.addr().offset(offset as u64);
        let state = QueueState {
            ring: at(Queue::RING),
            record: at(Queue::RECORD),
            doorbell: at(Queue::DOORBELL),
            mask: 15,
            ..QueueState::default()
        };
        memory.write(Queue::STATE, state.bytes())?;
        let record = u32::to_be_bytes(start & 0xffff);
        memory.write(Queue::RECORD, &[record, record].concat())?;
        Ok(Queue { memory })
    }

    fn state(&self) -> DevicePtr {
        self.memory.addr().offset(Queue::STATE as u64)
    }

    fn bytes<const N: usize>(&self, at: usize) -> gdsync::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.memory.read(at, &mut bytes)?;
        Ok(bytes)
    }
}

/// Trigger, launched twice: each launch posts the next requests, also across a wrap of the ring.
pub fn trigger(rig: &Rig) -> Verdict {
    let kernel = kernel(rig, Entry::Trigger)?;
    let stream = rig.gpu.stream()?;
    // The third starts shortly before its index wraps around 16 bits.
    let (starts, sizes) = ([0, 7, 0xfffe], [2, 5, 4, 8, 2]);
    let queues = starts.iter().zip(0..);
    let queues = queues.map(|(start, id)| Queue::new(rig, id, *start, &sizes));
    let queues = queues.collect::<gdsync::Result<Vec<_>>>()?;
    let mut params = Trigger {
        count: 4,
        ..Trigger::default()
    };
    for (i, queue) in queues.iter().enumerate() {
        params.queues[i] = TriggerQueue {
            state: queue.state(),
            entries: 2,
            receive: 0,
        };
    }
    params.queues[3] = TriggerQueue {
        state: queues[0].state(),
        entries: 3,
        receive: 1,
    };
    // Entries 0 and 1 take 3 blocks, 2 and 3 another 3.
    for (turn, last) in [(1, 1), (2, 3)] {
        launch(&stream, &kernel, Dims::linear(1, 32), params.bytes())?;
        finish(&stream, "trigger")?;
        for (i, (queue, start)) in queues.iter().zip(starts).enumerate() {
            let received = if i == 0 { 3 * turn } else { start };
            let posted = (start + 3 * turn) & 0xffff;
            let word = |at| -> gdsync::Result<u32> { Ok(u32::from_be_bytes(queue.bytes(at)?)) };
            let found = (word(Queue::RECORD)?, word(Queue::RECORD + 4)?);
            ensure(found == (received, posted), || {
                format!("queue {i}, turn {turn}: {found:?} instead of {received}, {posted}")
            })?;
            let rung: [u8; 4] = queue.bytes(Queue::DOORBELL)?;
            ensure(rung == [1, 2, last, i as u8], || {
                format!("queue {i}, turn {turn}: rung with {rung:?}")
            })?;
        }
    }
    Ok(())
}

/// Wait, launched three times: it passes only on a successful completion of the current lap, and
/// reports it.
pub fn wait(rig: &Rig) -> Verdict {
    const WAITERS: usize = 4096;
    const REPORTS: usize = 8192;
    /// The queue whose completion is an error first.
    const ERROR: usize = 5;
    let kernel = kernel(rig, Entry::Wait)?;
    let stream = rig.gpu.stream()?;
    // Eight completion queues of 4 entries, never written; their waiters; the reports of these.
    let memory = rig.gpu.alloc(MemoryKind::Pinned, REPORTS + 256)?;
    memory.write(0, &[0xff; 2048])?;
    let mut params = Wait {
        count: 8,
        ..Wait::default()
    };
    for i in 0..8 {
        let (queue, report) = (256 * i as u64, (REPORTS + 4 * i) as u64);
        let state = WaiterState {
            cq: memory.addr().offset(queue),
            passed: memory.addr().offset(report),
            log_entries: 2,
            ..WaiterState::default()
        };
        memory.write(WAITERS + 64 * i, state.bytes())?;
        params.waiters[i] = Waited {
            state: memory.addr().offset((WAITERS + 64 * i) as u64),
            skip: 1,
        };
    }
    let complete = |queue: usize, position: usize, opcode: u8| {
        let at = 256 * queue + 64 * (position % 4) + 63;
        memory.write(at, &[opcode << 4 | (position / 4 % 2) as u8])
    };
    let report = |queue: usize| memory.word32(REPORTS + 4 * queue)?.load();
    // Two completions for each launch, so the third launch is in the second lap.
    for launched in 1..=3u32 {
        let position = 2 * launched as usize - 1;
        launch(&stream, &kernel, Dims::linear(1, 32), params.bytes())?;
        for queue in 0..8 {
            complete(queue, position - 1, 0)?;
            complete(queue, position, if queue == ERROR { 13 } else { 0 })?;
        }
        let passed = stream.synchronize(std::time::Duration::from_millis(20))?;
        ensure(!passed && report(ERROR)? == launched - 1, || {
            "an error was passed".to_owned()
        })?;
        complete(ERROR, position, 0)?;
        finish(&stream, "wait")?;
        for queue in 0..8 {
            let report = report(queue)?;
            ensure(report == launched, || {
                format!("queue {queue} reports {report}")
            })?;
            let next = memory.word64(WAITERS + 64 * queue + 24)?.load()?;
            ensure(next == position as u64 + 1, || {
                format!("queue {queue} is at {next}")
            })?;
        }
    }
    Ok(())
}
