//! Words in device memory, which the CPU cannot map on CUDA: streams wait for them, the CPU loads
//! and stores them, and kernels store them to show that their stream has passed its waits. On the
//! soft GPU, and on CUDA by a stand-in for libcuda.

#[path = "common/application.rs"]
mod application;
mod common;
mod standin;

use application::{driver, make_current, ok, retained};
use common::*;
use gdsync::gpu::{Condition, KERNELS, Kernel, Word64};
use gdsync::internals::{Fill, pattern};
use gdsync_sys::cuda::consts;
use standin::{Control, Variant, cases, inside, until};

/// No GDRCopy: the CPU cannot map device memory.
const UNMAPPED: Variant = Variant::env(&[("GDS_GDRAPI_LIB", "/nowhere/libgdrapi.so")]);

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE` and a value.
const COMPUTE_MODE: i32 = 20;
const EXCLUSIVE_PROCESS: i32 = 3;

/// The call of the copy engine that reads.
const READ: &str = "cuMemcpyDtoHAsync";

fn cuda() -> Gpu {
    let gpu = Gpu::cuda(0).unwrap();
    make_current(retained());
    let word = gpu.alloc(MemoryKind::Device, 64).unwrap().word64(0);
    assert_eq!(
        kind(word.unwrap().compare_swap(0, 1)),
        Some(Kind::Unsupported)
    );
    gpu
}

fn device(gpu: &Gpu) -> Region {
    gpu.alloc(MemoryKind::Device, 4096).unwrap()
}

fn exportable(gpu: &Gpu) -> Region {
    gpu.alloc_exportable(4096).unwrap()
}

fn qp(gpu: &Gpu) -> Qp {
    let pd = Device::emulated(gpu).unwrap().alloc_pd().unwrap();
    pd.create_qp(&by(Lowering::MemOps, Doorbell::Direct))
        .unwrap()
}

/// The value that [`Rig::launch`] makes the kernel store.
fn stored(seed: usize) -> u64 {
    pattern(seed as u64, 0)
}

/// As many streams as may wait. Each waits for its value of the gate, then stores into its word by
/// a kernel, and then is busy until `hold` is set, by a wait that the library does not know.
struct Rig {
    gpu: Gpu,
    qp: Qp,
    fill: Kernel,
    gate: Gate,
    hold: Gate,
    streams: Vec<Stream>,
    words: Vec<Word64>,
    other: Stream,
}

impl Rig {
    fn new(gpu: Gpu, memory: &Region) -> Rig {
        let limit = gpu.max_waiting_streams().unwrap() as usize;
        let stream = |_| gpu.stream().unwrap();
        let mut rig = Rig {
            qp: qp(&gpu),
            fill: gpu.load(&KERNELS).unwrap().kernel("gds_fill").unwrap(),
            gate: Gate::new(&gpu),
            hold: Gate::new(&gpu),
            streams: (0..limit).map(stream).collect(),
            words: (0..limit).map(|i| memory.word64(8 * i).unwrap()).collect(),
            other: stream(0),
            gpu,
        };
        for i in 0..limit {
            rig.words[i].store(stored(i).wrapping_sub(1)).unwrap();
            let (word, value) = (&rig.words[i], stored(i));
            let passed = Descriptor::PassedBy { word, value };
            let list = [rig.gate.wait_for(i as u32 + 1), passed];
            // Either call names the word.
            let listed = i % 2;
            rig.qp.post_on(&rig.streams[i], &list[..=listed]).unwrap();
            rig.launch(i, listed == 0);
            rig.keep_busy(i);
        }
        rig
    }

    /// Enqueues the kernel that stores the word; `names`: the call names it.
    fn launch(&self, i: usize, names: bool) {
        let (stream, word) = (&self.streams[i], &self.words[i]);
        let args = Fill {
            at: word.addr(),
            len: 8,
            seed: i as u64,
        };
        let (dims, args) = (Dims::linear(1, 32), args.bytes());
        // SAFETY: the kernel fills the word, whose memory the tests keep until it has run.
        let launched = unsafe {
            match names {
                true => stream.launch_waiting(&self.fill, dims, args, Some((word, stored(i)))),
                false => stream.launch(&self.fill, dims, args),
            }
        };
        launched.unwrap();
    }

    fn keep_busy(&self, i: usize) {
        let at = self.hold.0.addr().0;
        if let Some(stream) = self.streams[i].as_soft() {
            let wait = softgpu::MemOp::Wait {
                addr: softgpu::DevAddr::from_raw(at),
                value: 1,
                mask: u32::MAX.into(),
                cond: softgpu::Cond::Geq,
                wide: false,
                flush: false,
            };
            stream.submit([wait]).unwrap();
            return;
        }
        let wait = driver().cuStreamWaitValue32_v2.unwrap();
        let raw = self.streams[i].as_cuda().unwrap();
        // SAFETY: a live stream, and a word that is kept.
        ok(unsafe { wait(raw.cast(), at, 1, consts::CU_STREAM_WAIT_VALUE_GEQ) });
    }

    /// Lets the stream pass its wait, and those before it.
    fn pass(&self, i: usize) {
        self.gate.open_to(i as u32 + 1);
        until("it passes", || self.words[i].load().unwrap() == stored(i));
    }

    /// Makes `stream` wait.
    fn wait(&mut self, stream: &Stream) -> Option<Kind> {
        let gate = self.gate.wait_for(100);
        kind(self.qp.post_on(stream, &[gate]))
    }

    /// Makes one stream more wait.
    fn one_more(&mut self) -> Option<Kind> {
        self.wait(&self.other.clone())
    }

    fn finish(self) {
        self.gate.open_to(100);
        self.hold.open();
        for stream in self.streams.iter().chain([&self.other]) {
            passes(stream);
        }
    }
}

/// The refusal of a stream that may not wait now.
const REFUSED: Option<Kind> = Some(Kind::TooManyWaits);

fn a_busy_stream_frees_its_slot(gpu: Gpu, memory: impl Fn(&Gpu) -> Region) {
    let memory = memory(&gpu);
    let mut rig = Rig::new(gpu, &memory);
    assert_eq!(rig.one_more(), REFUSED);
    rig.pass(0);
    assert_eq!(rig.one_more(), None);
    let third = rig.gpu.stream().unwrap();
    assert_eq!(rig.wait(&third), REFUSED);
    rig.pass(1);
    assert_eq!(rig.wait(&third), None);
    rig.finish();
}

#[test]
fn stream_that_has_passed_by_a_device_word_frees_its_slot_on_the_soft_gpu() {
    a_busy_stream_frees_its_slot(Gpu::soft().unwrap(), device);
}

/// The waits name no word; a later list without waits does.
fn a_store_behind_the_wait_frees_the_slot(gpu: &Gpu) {
    let limit = gpu.max_waiting_streams().unwrap() as usize;
    let (gate, hold) = (Gate::new(gpu), Gate::new(gpu));
    let memory = gpu.alloc(MemoryKind::Pinned, 8 * limit).unwrap();
    let other = gpu.stream().unwrap();
    let streams: Vec<Stream> = (0..limit).map(|_| gpu.stream().unwrap()).collect();
    for (i, stream) in streams.iter().enumerate() {
        let word = &memory.word64(8 * i).unwrap();
        let list = [
            Descriptor::write_value(word, 7),
            Descriptor::PassedBy { word, value: 7 },
        ];
        post_on(stream, &mut [], &[gate.wait_for(1)]).unwrap();
        post_on(stream, &mut [], &list).unwrap();
        // The stream is not idle, and the library does not know that it waits.
        let wait = softgpu::MemOp::Wait {
            addr: softgpu::DevAddr::from_raw(hold.0.addr().0),
            value: 1,
            mask: u32::MAX.into(),
            cond: softgpu::Cond::Geq,
            wide: false,
            flush: false,
        };
        stream.as_soft().unwrap().submit([wait]).unwrap();
    }
    assert_eq!(kind(post_on(&other, &mut [], &[gate.wait_for(1)])), REFUSED);
    gate.open_to(1);
    let last = memory.word64(8 * (limit - 1)).unwrap();
    until("they pass", || last.load().unwrap() == 7);
    assert_eq!(kind(post_on(&other, &mut [], &[hold.wait_for(1)])), None);
    hold.open();
    streams.iter().chain([&other]).for_each(passes);
}

#[test]
fn store_behind_the_wait_frees_the_slot_on_the_soft_gpu() {
    a_store_behind_the_wait_frees_the_slot(&Gpu::soft().unwrap());
}

cases! {
    stream_that_has_passed_by_a_device_word_frees_its_slot in UNMAPPED => {
        let control = Control::open();
        a_busy_stream_frees_its_slot(cuda(), device);
        assert_eq!((control.blocked(), control.full()), (Vec::new(), 0));
    };
    stream_that_has_passed_by_an_exportable_word_frees_its_slot in UNMAPPED =>
        a_busy_stream_frees_its_slot(cuda(), exportable);
    streams_wait_for_words_in_device_memory in UNMAPPED =>
        streams_wait_for_words(&cuda(), device);
    streams_wait_for_words_in_exportable_memory in UNMAPPED =>
        streams_wait_for_words(&cuda(), exportable);
}

/// The copy engine of the only context progresses too while as many streams wait as may.
#[test]
fn device_words_are_read_on_an_exclusive_gpu() {
    inside!(UNMAPPED);
    let control = Control::open();
    control.set_attribute(COMPUTE_MODE, EXCLUSIVE_PROCESS);
    let gpu = cuda();
    assert_eq!(control.live()["contexts"], 1);
    let memory = device(&gpu);
    let mut rig = Rig::new(gpu, &memory);
    assert_eq!(rig.one_more(), REFUSED);
    rig.pass(0);
    assert_eq!(rig.one_more(), None);
    assert_eq!(control.blocked(), []);
    rig.finish();
}

/// Only a stream that needs a slot reads the words. A stream that holds one finds room for what it
/// has executed as if it had left no word.
#[test]
fn submissions_do_not_read_device_words() {
    inside!(UNMAPPED);
    let control = Control::open();
    let gpu = cuda();
    let memory = device(&gpu);
    let mut rig = Rig::new(gpu, &memory);
    let reads = || {
        let call = format!("{} {READ}", standin::thread());
        let calls = control.calls();
        calls.lines().filter(|line| line.starts_with(&call)).count()
    };
    control.record(true);
    // More than the whole room of a stream that waits.
    let words = rig.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let (next, seen) = (words.word32(0).unwrap(), words.word32(4).unwrap());
    let (_, full) = fill(|| rig.qp.post_on(&rig.streams[1], &[write32(&next, 0)]));
    assert_eq!(full.kind(), Kind::QueueFull);
    // A stream that is never idle, with twice its room.
    rig.gate.open();
    rig.hold.open();
    for value in 1..=1000 {
        let list = [geq(&next, value), write32(&seen, value)];
        rig.qp.post_on(&rig.streams[0], &list).unwrap();
        rig.launch(0, true);
        next.store(value - 1).unwrap();
        until("it passes the wait before", || {
            seen.load().unwrap() == value - 1
        });
    }
    next.store(1000).unwrap();
    assert_eq!(reads(), 0);
    // The streams that wait are read.
    passes(&rig.streams[0]);
    assert_eq!(rig.one_more(), None);
    let third = rig.gpu.stream().unwrap();
    assert_eq!(rig.wait(&third), REFUSED);
    assert_eq!(reads(), rig.streams.len() - 1);
    assert_eq!((control.blocked(), control.full()), (Vec::new(), 0));
    rig.finish();
}

/// A word that cannot be read, because its memory is freed or the copy fails, proves nothing.
#[test]
fn device_word_that_cannot_be_read_proves_nothing() {
    inside!(UNMAPPED);
    let control = Control::open();
    let gpu = cuda();
    let memory = device(&gpu);
    let mut rig = Rig::new(gpu, &memory);
    rig.pass(0);
    control.fail("cuMemcpyDtoHAsync_v2", 1, 0);
    assert_eq!(rig.one_more(), REFUSED);
    control.fail("cuMemcpyDtoHAsync_v2", 0, 0);
    drop(memory);
    rig.words.clear();
    assert_eq!(rig.one_more(), REFUSED);
    // Only an idle stream has passed.
    rig.hold.open();
    passes(&rig.streams[0]);
    assert_eq!(rig.one_more(), None);
    rig.finish();
}

/// Streams wait for words of either width, which the CPU and kernels store.
fn streams_wait_for_words(gpu: &Gpu, memory: impl Fn(&Gpu) -> Region) {
    let memory = memory(gpu);
    let mut qp = qp(gpu);
    let stream = gpu.stream().unwrap();
    let (narrow, wide) = (memory.word32(4).unwrap(), memory.word64(8).unwrap());
    let passed = memory.word64(16).unwrap();
    let high = 1 << 40;
    let list = [
        Descriptor::wait_value(&narrow, Condition::Eq, 7),
        Descriptor::wait_value(&wide, Condition::Geq, high),
        write64(&passed, high + 1),
    ];
    qp.post_on(&stream, &list).unwrap();
    narrow.store(7).unwrap();
    wide.store(high - 1).unwrap();
    assert_eq!(
        (narrow.load().unwrap(), wide.load().unwrap()),
        (7, high - 1)
    );
    assert!(!stream.synchronize(Duration::from_millis(20)).unwrap());
    assert_eq!(passed.load().unwrap(), 0);
    wide.store(high).unwrap();
    passes(&stream);
    assert_eq!(passed.load().unwrap(), high + 1);
    // The kernel of another stream releases it.
    let other = gpu.stream().unwrap();
    let list = [Descriptor::wait_value(&wide, Condition::Eq, stored(1))];
    qp.post_on(&stream, &list).unwrap();
    let kernel = gpu.load(&KERNELS).unwrap().kernel("gds_fill").unwrap();
    let args = Fill {
        at: wide.addr(),
        len: 8,
        seed: 1,
    };
    // SAFETY: the kernel fills the word, whose memory is kept.
    unsafe {
        other
            .launch(&kernel, Dims::linear(1, 32), args.bytes())
            .unwrap()
    };
    passes(&stream);
    assert_eq!(wide.load().unwrap(), stored(1));
}

#[test]
fn streams_of_the_soft_gpu_wait_for_words_in_device_memory() {
    let gpu = Gpu::soft().unwrap();
    streams_wait_for_words(&gpu, device);
}
