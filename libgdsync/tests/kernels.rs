//! The library's own kernels on the soft GPU, against memory laid out by hand.

use std::time::Duration;

use gdsync::gpu::{Dims, KERNELS, MemoryKind, Region, Stream};
use gdsync::kernels::{
    Entry, Fill, QueueState, Report, Trigger, TriggerQueue, Verify, Wait, Waited, WaiterState,
    pattern,
};
use gdsync::{Gpu, memop::DevicePtr};

const LIMIT: Duration = Duration::from_secs(20);

fn launch(stream: &Stream, entry: Entry, dims: Dims, params: &[u8]) {
    let kernel = stream.gpu().load(&KERNELS).unwrap().kernel(entry.name());
    // SAFETY: all addresses are of regions that the tests keep until the stream is done.
    unsafe { stream.launch(&kernel.unwrap(), dims, params) }.unwrap();
}

fn load64(region: &Region, at: usize) -> u64 {
    let mut bytes = [0; 8];
    region.read(at, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

fn load32(region: &Region, at: usize) -> u32 {
    let mut bytes = [0; 4];
    region.read(at, &mut bytes).unwrap();
    u32::from_ne_bytes(bytes)
}

/// The first `len` bytes of the pattern, by the CPU.
fn expected(seed: u64, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| pattern(seed, i as u64 / 8).to_le_bytes()[i % 8])
        .collect()
}

#[test]
fn every_kernel_stands_in_the_module_with_its_parameter() {
    let ptx = KERNELS.ptx().unwrap();
    for entry in Entry::ALL {
        let head = format!(
            ".visible .entry {name}(\n\t.param .align 8 .b8 {name}_param_0[{size}]\n)",
            name = entry.name(),
            size = entry.param_size(),
        );
        assert!(ptx.contains(&head), "{head}");
    }
    assert_eq!(ptx.matches(".entry").count(), Entry::ALL.len());
}

#[test]
fn a_filled_buffer_holds_the_pattern_and_nothing_around_it_changes() {
    let gpu = Gpu::soft().unwrap();
    let stream = gpu.stream().unwrap();
    let region = gpu.alloc(MemoryKind::Device, 8192).unwrap();
    for (at, len) in [
        (0, 0),
        (0, 1),
        (8, 8),
        (16, 4096),
        (3, 7),
        (5, 1001),
        (64, 2047),
    ] {
        for (blocks, threads) in [(1, 1), (3, 33), (8, 128)] {
            region.write(0, &[0xa5; 8192]).unwrap();
            let fill = Fill {
                at: region.addr().offset(at as u64),
                len: len as u64,
                seed: 77 + len as u64,
            };
            launch(
                &stream,
                Fill::ENTRY,
                Dims::linear(blocks, threads),
                fill.bytes(),
            );
            assert!(stream.synchronize(LIMIT).unwrap());
            let mut got = vec![0; 8192];
            region.read(0, &mut got).unwrap();
            assert_eq!(
                got[at..at + len],
                expected(fill.seed, len),
                "{len} bytes at {at}"
            );
            let around = got[..at].iter().chain(&got[at + len..]);
            assert!(
                around.copied().all(|byte| byte == 0xa5),
                "{len} bytes at {at}"
            );
        }
    }
}

#[test]
fn verify_counts_wrong_bytes_and_finds_the_first() {
    let gpu = Gpu::soft().unwrap();
    let stream = gpu.stream().unwrap();
    let region = gpu.alloc(MemoryKind::Device, 8192).unwrap();
    let report = gpu.alloc(MemoryKind::Device, 16).unwrap();
    let run = |at: usize, len: usize, seed: u64, wrong: &[usize], blocks: u32| {
        let mut bytes = expected(9, len);
        wrong.iter().for_each(|&i| bytes[i] ^= 0x10);
        region.write(at, &bytes).unwrap();
        report.write(0, &Report::CLEAN.to_bytes()).unwrap();
        let verify = Verify {
            at: region.addr().offset(at as u64),
            len: len as u64,
            seed,
            report: report.addr(),
        };
        launch(
            &stream,
            Verify::ENTRY,
            Dims::linear(blocks, 64),
            verify.bytes(),
        );
        assert!(stream.synchronize(LIMIT).unwrap());
        let mut found = [0; 16];
        report.read(0, &mut found).unwrap();
        Report::from_bytes(found)
    };
    for (at, len) in [(0, 0), (0, 1), (8, 4096), (3, 1001), (16, 2047)] {
        for blocks in [1, 5] {
            assert_eq!(run(at, len, 9, &[], blocks), Report::CLEAN, "{len} at {at}");
            if len > 100 {
                let found = run(at, len, 9, &[len - 1, 41, 40, 90], blocks);
                assert_eq!(
                    found,
                    Report {
                        wrong: 4,
                        first: 40
                    },
                    "{len} at {at}"
                );
            }
        }
    }
    // Another seed's pattern is wrong nearly everywhere.
    let found = run(8, 4096, 10, &[], 4);
    assert!(found.wrong > 4000 && found.first < 8, "{found:?}");
}

/// Queue `i` of a made-up NIC: 16 basic blocks, its state, record and doorbell.
struct Queue {
    memory: Region,
}

impl Queue {
    const RING: usize = 0;
    const STATE: usize = 1024;
    const RECORD: usize = 1152;
    const DOORBELL: usize = 1168;

    /// `sizes`: the entries' sizes in segments of 16 bytes, from block `start` on.
    fn new(gpu: &Gpu, id: u8, start: u32, sizes: &[u8]) -> Queue {
        let memory = gpu.alloc(MemoryKind::Device, 2048).unwrap();
        memory.write(0, &[0; 2048]).unwrap();
        let mut block = start as usize;
        for (i, &size) in sizes.iter().enumerate() {
            let head = [1, 2, i as u8, id, 0, 0, 9, size];
            memory
                .write(Queue::RING + 64 * (block % 16), &head)
                .unwrap();
            block += usize::from(size).div_ceil(4);
        }
        let at = |offset: usize| memory.addr().offset(offset as u64);
        let state = QueueState {
            ring: at(Queue::RING),
            record: at(Queue::RECORD),
            doorbell: at(Queue::DOORBELL),
            mask: 15,
            ..QueueState::default()
        };
        memory.write(Queue::STATE, state.bytes()).unwrap();
        let record = u32::to_be_bytes(start & 0xffff);
        memory.write(Queue::RECORD, &record).unwrap();
        memory.write(Queue::RECORD + 4, &record).unwrap();
        Queue { memory }
    }

    fn state(&self) -> DevicePtr {
        self.memory.addr().offset(Queue::STATE as u64)
    }

    /// Receives and sends posted, as the NIC reads them.
    fn records(&self) -> (u32, u32) {
        let word = |at| u32::from_be(load32(&self.memory, at));
        (word(Queue::RECORD), word(Queue::RECORD + 4))
    }
}

#[test]
fn trigger_posts_what_comes_next_each_time_it_is_launched() {
    let gpu = Gpu::soft().unwrap();
    let stream = gpu.stream().unwrap();
    // The third starts shortly before its index wraps around 16 bits.
    let sizes = [2, 5, 4, 8, 2];
    let queues: Vec<Queue> = [0, 7, 0xfffe]
        .iter()
        .enumerate()
        .map(|(i, &start)| Queue::new(&gpu, i as u8, start, &sizes))
        .collect();
    let mut trigger = Trigger {
        count: 4,
        ..Trigger::default()
    };
    for (i, queue) in queues.iter().enumerate() {
        trigger.queues[i] = TriggerQueue {
            state: queue.state(),
            entries: 2,
            receive: 0,
        };
    }
    trigger.queues[3] = TriggerQueue {
        state: queues[0].state(),
        entries: 3,
        receive: 1,
    };
    // Entries 0 and 1 take 3 blocks, 2 and 3 another 3.
    for (turn, last) in [(1, 1), (2, 3)] {
        launch(
            &stream,
            Trigger::ENTRY,
            Dims::linear(1, 32),
            trigger.bytes(),
        );
        assert!(stream.synchronize(LIMIT).unwrap());
        for (i, (queue, start)) in queues.iter().zip([0, 7, 0xfffe]).enumerate() {
            let received = if i == 0 { 3 * turn } else { start };
            let posted = (start + 3 * turn) & 0xffff;
            assert_eq!(
                queue.records(),
                (received, posted),
                "queue {i}, turn {turn}"
            );
            let rung = load64(&queue.memory, Queue::DOORBELL).to_ne_bytes();
            assert_eq!(rung[..4], [1, 2, last, i as u8], "queue {i}, turn {turn}");
        }
    }
}

#[test]
fn wait_passes_on_success_of_the_lap_and_says_so() {
    let gpu = Gpu::soft().unwrap();
    let (stream, behind) = (gpu.stream().unwrap(), Duration::from_millis(20));
    // Eight completion queues of 4 entries, never written; waiters at 4096 + 64 i; announcements at 8192 + 4 i.
    let memory = gpu.alloc(MemoryKind::Pinned, 8448).unwrap();
    memory.write(0, &[0xff; 2048]).unwrap();
    memory.write(4096, &[0; 4352]).unwrap();
    let mut wait = Wait {
        count: 8,
        ..Wait::default()
    };
    for i in 0..8 {
        let state = WaiterState {
            cq: memory.addr().offset(256 * i as u64),
            passed: memory.addr().offset(8192 + 4 * i as u64),
            log_entries: 2,
            ..WaiterState::default()
        };
        memory.write(4096 + 64 * i, state.bytes()).unwrap();
        wait.waiters[i] = Waited {
            state: memory.addr().offset(4096 + 64 * i as u64),
            skip: 1,
        };
    }
    let complete = |queue: usize, position: usize, opcode: u8| {
        let at = 256 * queue + 64 * (position % 4) + 63;
        memory
            .write(at, &[opcode << 4 | (position / 4 % 2) as u8])
            .unwrap();
    };
    // Two completions a launch, so the third comes in the second lap.
    for launched in 1..=3u32 {
        let position = 2 * launched as usize - 1;
        launch(&stream, Wait::ENTRY, Dims::linear(1, 32), wait.bytes());
        for queue in 0..8 {
            let opcode = if queue == 5 { 13 } else { 0 };
            complete(queue, position - 1, 0);
            complete(queue, position, opcode);
        }
        assert!(!stream.synchronize(behind).unwrap(), "an error was passed");
        assert_eq!(load32(&memory, 8192 + 4 * 5), launched - 1);
        complete(5, position, 0);
        assert!(stream.synchronize(LIMIT).unwrap());
        for queue in 0..8 {
            assert_eq!(load32(&memory, 8192 + 4 * queue), launched, "queue {queue}");
            assert_eq!(load64(&memory, 4096 + 64 * queue + 24), position as u64 + 1);
        }
    }
}

#[test]
fn kernel_that_the_image_lacks_is_refused() {
    let gpu = Gpu::soft().unwrap();
    let module = gpu.load(&KERNELS).unwrap();
    module.kernel("gds_fill").unwrap();
    let error = module.kernel("gds_no_such").unwrap_err();
    assert_eq!(error.kind(), gdsync::Kind::Invalid);
    assert!(
        error.to_string().contains("no kernel \"gds_no_such\""),
        "{error}"
    );
    assert_eq!(gpu.dims_for(1 << 20), Dims::linear(1, 1));
}
