//! Captures and graphs: what a capture records, replays on any stream, lifetime, room, refusals.

mod common;

use std::ffi::c_void;

use common::{Changed, add_gpu, rig, sync, unfenced32, wait, wait32, weak, write32};
use softgpu::{
    Cond, Config, DevAddr, Dims, Error, Event, Graph, InlineData, Kernel, MemOp, Stream,
};

/// Parameters of [`count`].
#[repr(C)]
struct Count {
    word: u64,
    by: u64,
}

/// Adds to a word.
unsafe extern "C" fn count(p: *const c_void) {
    // SAFETY: the launch gave as many bytes, aligned, and the word is memory of the GPU.
    unsafe {
        let Count { word, by } = p.cast::<Count>().read();
        let word = word as *mut u64;
        word.write_volatile(word.read_volatile() + by);
    }
}

fn launch(stream: &Stream, word: DevAddr, by: u64) -> Result<(), Error> {
    // SAFETY: the function takes these parameters.
    let kernel = unsafe { Kernel::new("count", count, size_of::<Count>()) };
    let args: Vec<u8> = [word.raw(), by]
        .iter()
        .flat_map(|n| n.to_ne_bytes())
        .collect();
    stream.launch(&kernel, Dims::linear(1, 1).unwrap(), &args)
}

/// The graph of what `record` enqueues on `stream`.
fn captured(stream: &Stream, record: impl FnOnce()) -> Graph {
    stream.begin_capture().unwrap();
    record();
    stream.end_capture().unwrap()
}

fn geq32(addr: DevAddr, value: u32) -> MemOp {
    wait(addr, Cond::Geq, value.into(), !0, false)
}

#[test]
fn replays_run_every_kind_of_operation_in_order() {
    for config in [Config::default(), weak(1), weak(2)] {
        let (_env, gpu) = rig(config);
        let pin = gpu.alloc_pinned(4096).unwrap();
        let dev = gpu.alloc_device(64).unwrap();
        let (p, d) = (pin.addr(), dev.addr());
        let stream = gpu.stream().unwrap();
        let data = InlineData::new(&(1..=61).collect::<Vec<u8>>()).unwrap();
        let graph = captured(&stream, || {
            launch(&stream, d, 3).unwrap();
            stream.copy(p, d, 8).unwrap();
            stream
                .submit([
                    MemOp::Copy {
                        addr: p + 101,
                        data,
                    },
                    unfenced32(p + 8, 1),
                    MemOp::Fence,
                    wait32(p + 8, 1),
                    write32(p + 8, 2),
                ])
                .unwrap();
            stream.fill(p + 16, 0xab, 4).unwrap();
            launch(&stream, p + 24, 1).unwrap();
        });
        let window = pin.window();
        assert!(stream.query(), "captured, not enqueued");
        for run in 1..=50 {
            window.store32(16, 0).unwrap();
            graph.launch(&stream).unwrap();
            assert_eq!(stream.pending(), 1, "one submission");
            sync(&stream);
            assert_eq!(window.load64(0), Ok(3 * run));
            assert_eq!(window.load64(24), Ok(run));
            assert_eq!(window.load32(8), Ok(2));
            assert_eq!(window.load32(16), Ok(0xabab_abab));
            let mut got = [0; 61];
            window.read(101, &mut got).unwrap();
            assert_eq!(got[..], *data);
        }
        for _ in 0..50 {
            graph.launch(&stream).unwrap();
        }
        launch(&stream, p + 24, 1000).unwrap();
        sync(&stream);
        assert_eq!(window.load64(24), Ok(1100));
    }
}

/// The second launch waits for the first, which waits on another stream; an operation behind a
/// launch waits for the launch.
#[test]
fn a_graph_runs_on_other_streams_one_launch_after_the_other() {
    let (env, gpu) = rig(Config::default());
    let pin = gpu.alloc_pinned(64).unwrap();
    let window = pin.window();
    let [recorder, a, b] = [(); 3].map(|()| gpu.stream().unwrap());
    let graph = captured(&recorder, || {
        recorder.submit([geq32(pin.addr(), 1)]).unwrap();
        launch(&recorder, pin.addr() + 8, 1).unwrap();
    });
    drop(recorder);
    graph.launch(&a).unwrap();
    a.submit([write32(pin.addr() + 16, 1)]).unwrap();
    graph.launch(&b).unwrap();
    env.settle();
    assert_eq!([a.pending(), b.pending(), gpu.waiting_streams()], [2, 1, 1]);
    assert_eq!(window.load32(16), Ok(0));
    window.store32(0, 1).unwrap();
    sync(&b);
    assert_eq!((window.load64(8), window.load32(16)), (Ok(2), Ok(1)));
    assert!(a.query(), "the launch on a ended before that on b began");
}

/// Handles of the graph and of its memory are dropped while it runs. Under weak memory, stores are
/// held back beyond the last operation.
#[test]
fn a_graph_keeps_its_memory_and_runs_after_its_drop() {
    for seed in 0..40 {
        let (env, gpu) = rig(weak(seed));
        let pin = gpu.alloc_pinned(4096).unwrap();
        let gate = gpu.alloc_pinned(64).unwrap();
        let stream = gpu.stream().unwrap();
        let graph = captured(&stream, || {
            let ops = [
                geq32(gate.addr(), 1),
                unfenced32(pin.addr(), 7),
                unfenced32(gate.addr() + 8, 7),
            ];
            stream.submit(ops).unwrap();
        });
        let (seen, gate_word) = (pin.window(), gate.window());
        let addr = pin.addr();
        drop(pin);
        assert!(
            stream.submit([write32(addr, 1)]).is_err(),
            "the memory is freed"
        );
        graph.launch(&stream).unwrap();
        // From here on only the graph keeps the memory of `pin`.
        drop((seen, graph));
        env.settle();
        gate_word.store32(0, 1).unwrap();
        sync(&stream);
        assert_eq!(gate_word.load32(8), Ok(7));
    }
    let (_env, gpu) = rig(Config::default().changed(|c| c.memory = 1 << 20));
    let pin = gpu.alloc_pinned(1 << 20).unwrap();
    let stream = gpu.stream().unwrap();
    let graph = captured(&stream, || stream.submit([write32(pin.addr(), 7)]).unwrap());
    drop(pin);
    assert!(
        gpu.alloc_pinned(1 << 20).is_err(),
        "the graph keeps the memory"
    );
    drop(graph);
    gpu.alloc_pinned(1 << 20).unwrap();
}

#[test]
fn a_launch_waits_for_room_and_its_operations_stay_together() {
    let (env, gpu) = rig(Config::default().changed(|c| c.stream_bound = 2));
    let pin = gpu.alloc_pinned(64).unwrap();
    let window = pin.window();
    let stream = gpu.stream().unwrap();
    let graph = captured(&stream, || {
        // More operations than the stream has room for.
        for _ in 0..100 {
            launch(&stream, pin.addr() + 8, 1).unwrap();
        }
    });
    stream.submit([geq32(pin.addr(), 1)]).unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!(stream.pending(), 2);
    let opens = pin.window();
    let start = env.count();
    env.on_each_step(move |n| {
        if n == start + 50 {
            opens.store32(0, 1).unwrap();
        }
    });
    graph.launch(&stream).unwrap();
    assert!(env.count() >= start + 50, "the launch waited for room");
    stream.submit([write32(pin.addr(), 3)]).unwrap();
    sync(&stream);
    assert_eq!((window.load64(8), window.load32(0)), (Ok(200), Ok(3)));
    // The stream is dropped while the graph runs, and another one is dropped idle.
    graph.launch(&stream).unwrap();
    drop(stream);
    drop(gpu.stream().unwrap());
    env.settle();
    assert_eq!(window.load64(8), Ok(300));
}

#[test]
fn captures_refuse_what_a_graph_cannot_contain() {
    let (env, gpu) = rig(Config::default());
    let pin = gpu.alloc_pinned(64).unwrap();
    let [stream, other] = [(); 2].map(|()| gpu.stream().unwrap());
    let event = Event::new();
    let earlier = Event::new();
    let id = stream.id();
    let capturing = Err(Error::Capturing { stream: id });
    let write = [write32(pin.addr(), 1)];
    let empty = captured(&stream, || ());
    assert!(empty.is_empty());
    empty.launch(&stream).unwrap();
    assert_eq!(stream.pending(), 0, "an empty graph is no submission");
    let graph = captured(&stream, || stream.submit(write).unwrap());

    let not = Some(Error::NotCapturing { stream: id });
    assert_eq!(stream.end_capture().err(), not);
    other.submit([geq32(pin.addr() + 8, 1)]).unwrap();
    other.record(&earlier).unwrap();
    stream.begin_capture().unwrap();
    assert!(stream.is_capturing() && !other.is_capturing());
    assert_eq!(stream.begin_capture(), capturing);
    assert_eq!(stream.record(&event), capturing);
    assert_eq!(stream.wait_event(&event), capturing);
    assert_eq!(stream.wait_event(&earlier), capturing);
    assert_eq!(stream.stamp().err(), capturing.clone().err());
    assert_eq!(stream.synchronize(None).err(), capturing.clone().err());
    assert_eq!(graph.launch(&stream), capturing);
    assert_eq!(empty.launch(&stream), capturing);
    // Operands are checked as if the operation were enqueued, and a refused call records nothing.
    let bad = [write32(pin.addr() + 16, 9), write32(pin.addr() + 64, 9)];
    assert!(matches!(stream.submit(bad), Err(Error::BadAddress { .. })));
    // Other streams run meanwhile, and the refused launch is not the graph's latest.
    pin.window().store32(8, 1).unwrap();
    graph.launch(&other).unwrap();
    other.submit([write32(pin.addr() + 24, 4)]).unwrap();
    sync(&other);
    assert_eq!(pin.window().load32(24), Ok(4));
    assert!(event.query() && stream.query());

    stream.submit([write32(pin.addr(), 5)]).unwrap();
    let graph = stream.end_capture().unwrap();
    let elsewhere = add_gpu(&env, Config::default());
    let foreign = elsewhere.stream().unwrap();
    assert_eq!(
        graph.launch(&foreign),
        Err(Error::OtherGpu {
            stream: foreign.id()
        })
    );
    graph.launch(&stream).unwrap();
    sync(&stream);
    let window = pin.window();
    assert_eq!((window.load32(0), window.load32(16)), (Ok(5), Ok(0)));

    env.drop_engines();
    assert_eq!(graph.launch(&stream), Err(Error::Stopped));
    assert_eq!(stream.begin_capture(), Err(Error::Stopped));
}
