//! Weak memory: errors that occur without fences and flushes for some seed, and never with them.

mod common;

use common::{
    Changed, flushing, rig, sync, unfenced32, unfenced64, wait, wait32, wait64, weak, write32,
};
use softgpu::{Cond, Config, DevAddr, InlineData, MemOp};

const SEEDS: u64 = 200;

/// Steps until the stream is idle, and calls `look` before each step to check memory.
fn watch(seed: u64, ops: impl Fn(DevAddr) -> Vec<MemOp>, mut look: impl FnMut([u32; 4])) {
    let (env, gpu) = rig(weak(seed));
    let pin = gpu.alloc_pinned(64).unwrap();
    let window = pin.window();
    let stream = gpu.stream().unwrap();
    stream.submit(ops(pin.addr())).unwrap();
    while !stream.query() {
        look([0, 4, 8, 12].map(|at| window.load32(at).unwrap()));
        env.step();
    }
    look([0, 4, 8, 12].map(|at| window.load32(at).unwrap()));
}

/// The number of seeds in which `bad` is observed.
fn seeds_with(ops: impl Fn(DevAddr) -> Vec<MemOp>, bad: impl Fn([u32; 4]) -> bool) -> u64 {
    let mut count = 0;
    for seed in 0..SEEDS {
        let mut seen = false;
        watch(seed, &ops, |m| seen |= bad(m));
        count += u64::from(seen);
    }
    count
}

/// The flag is observed, and the data are not.
fn flag_first(m: [u32; 4]) -> bool {
    m[1] == 1 && m[0] == 0
}

#[test]
fn flag_overtakes_its_data_unless_fenced() {
    let with = |between: Vec<MemOp>, fenced| {
        seeds_with(
            |a| {
                let mut ops = vec![unfenced32(a, 1)];
                ops.extend(&between);
                ops.push(match fenced {
                    true => write32(a + 4, 1),
                    false => unfenced32(a + 4, 1),
                });
                ops
            },
            flag_first,
        )
    };
    assert!(with(vec![], false) > 10);
    assert_eq!(with(vec![], true), 0);
    assert_eq!(with(vec![MemOp::Fence], false), 0);
    assert!(
        with(vec![MemOp::FlushRemote], false) > 10,
        "a flush of NIC writes is no fence"
    );
}

#[test]
fn inline_copy_is_as_weak_as_a_write() {
    let copy = |a| MemOp::Copy {
        addr: a,
        data: InlineData::new(&[1; 4]).unwrap(),
    };
    assert!(seeds_with(|a| vec![copy(a), unfenced32(a + 4, 1)], flag_first) > 10);
    assert_eq!(
        seeds_with(|a| vec![copy(a), write32(a + 4, 1)], flag_first),
        0
    );
}

#[test]
fn wide_write_tears_unless_fenced() {
    let write = |fenced| {
        move |addr| {
            vec![MemOp::Write {
                addr,
                value: !0,
                wide: true,
                fenced,
            }]
        }
    };
    let torn = |m: [u32; 4]| m[0] != m[1];
    assert!(seeds_with(write(false), torn) > 10);
    assert_eq!(seeds_with(write(true), torn), 0);
}

#[test]
fn writes_to_the_same_word_keep_their_order() {
    for seed in 0..SEEDS {
        let mut last = 0;
        watch(
            seed,
            |a| (1..30).map(|n| unfenced32(a, n)).collect(),
            |m| {
                assert!(m[0] >= last, "seed {seed}");
                last = m[0];
            },
        );
        assert_eq!(last, 29, "seed {seed}: an idle stream's writes are visible");
    }
}

#[test]
fn stream_observes_its_own_writes() {
    for seed in 0..SEEDS {
        watch(
            seed,
            |a| {
                vec![
                    unfenced32(a, 7),
                    wait32(a, 7),
                    unfenced64(a + 8, 1 << 40 | 2),
                    wait32(a + 8, 2),
                    unfenced32(a + 12, 3),
                    wait64(a + 8, 3 << 32 | 2),
                ]
            },
            |_| {},
        );
    }
}

#[test]
fn copies_and_events_put_writes_in_order() {
    for seed in 0..SEEDS {
        let (env, gpu) = rig(weak(seed));
        let pin = gpu.alloc_pinned(64).unwrap();
        let window = pin.window();
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let event = softgpu::Event::new();
        a.submit([unfenced32(pin.addr(), 5)]).unwrap();
        a.copy(pin.addr() + 8, pin.addr(), 4).unwrap();
        a.submit([unfenced32(pin.addr() + 16, 6)]).unwrap();
        a.record(&event).unwrap();
        b.wait_event(&event).unwrap();
        b.copy(pin.addr() + 24, pin.addr() + 16, 4).unwrap();
        while !event.query() {
            env.step();
        }
        assert_eq!(window.load32(16), Ok(6), "seed {seed}");
        sync(&b);
        assert_eq!(window.load32(8), Ok(5), "seed {seed}");
        assert_eq!(window.load32(24), Ok(6), "seed {seed}");
    }
}

/// A NIC writes a payload to device memory and a completion word; a stream waits for the word,
/// then copies the payload. Returns in how many seeds the copy was stale.
fn stale_payloads(completion_in_device: bool, flush: bool, flush_op: bool) -> u64 {
    let mut stale = 0;
    for seed in 0..SEEDS {
        let (env, gpu) = rig(weak(seed));
        let dev = gpu.alloc_device(4096).unwrap();
        let pin = gpu.alloc_pinned(4096).unwrap();
        let (word, completion) = if completion_in_device {
            (dev.addr() + 2048, dev.window())
        } else {
            (pin.addr() + 2048, pin.window())
        };
        let stream = gpu.stream().unwrap();
        let plain = wait(word, Cond::Geq, 1, !0, false);
        let mut ops = vec![if flush { flushing(plain) } else { plain }];
        if flush_op {
            ops.push(MemOp::FlushRemote);
        }
        stream.submit(ops).unwrap();
        stream.copy(pin.addr(), dev.addr(), 1500).unwrap();
        env.steps(5);
        dev.window().write(0, &[0xaa; 1500]).unwrap();
        completion.store32(2048, 1).unwrap();
        sync(&stream);
        let mut got = [0; 1500];
        pin.window().read(0, &mut got).unwrap();
        stale += u64::from(got != [0xaa; 1500]);
    }
    stale
}

#[test]
fn completion_overtakes_its_payload_unless_the_wait_flushes() {
    assert!(stale_payloads(false, false, false) > 10);
    assert_eq!(stale_payloads(false, true, false), 0);
    assert_eq!(stale_payloads(false, false, true), 0);
    assert_eq!(
        stale_payloads(true, false, false),
        0,
        "a NIC's writes keep their order"
    );
}

#[test]
fn nic_writes_arrive_in_order_and_before_its_reads() {
    for seed in 0..SEEDS {
        let (env, gpu) = rig(weak(seed));
        let dev = gpu.alloc_device(64).unwrap();
        let (nic, cpu) = (dev.window(), dev.map_cpu());
        nic.store32(0, 1).unwrap();
        nic.write(4, &2_u32.to_ne_bytes()).unwrap();
        nic.store32(8, 3).unwrap();
        let mut last = 0;
        let mut late = 0;
        while last < 3 {
            let seen = [0, 4, 8].map(|at| cpu.load32(at).unwrap());
            let count = seen.iter().filter(|&&v| v != 0).count();
            assert!(
                seen[..count].iter().all(|&v| v != 0),
                "seed {seed}: {seen:?}"
            );
            assert!(count >= last);
            last = count;
            late += 1;
            env.step();
        }
        assert!(late > 1, "seed {seed}: nothing was late");

        nic.write(16, &5_u64.to_ne_bytes()).unwrap();
        assert_eq!(
            nic.fetch_add64(16, 2),
            Ok(5),
            "an atomic stays behind the write"
        );
        assert_eq!(nic.compare_swap64(16, 7, 9), Ok(7));
        assert_eq!(nic.compare_swap64(16, 7, 1), Ok(9));
        assert_eq!(nic.swap64(16, 3), Ok(9));
        nic.store32(24, 8).unwrap();
        assert_eq!(nic.load64(24), Ok(8));
        nic.store32(28, 4).unwrap();
        gpu.flush_remote_writes();
        assert_eq!(cpu.load32(28), Ok(4), "the host's flush");
    }
}

#[test]
fn writes_to_host_memory_are_not_late() {
    let (_env, gpu) = rig(weak(1));
    let pin = gpu.alloc_pinned(64).unwrap();
    pin.window().write(0, &7_u32.to_ne_bytes()).unwrap();
    // SAFETY: the memory lives, and no thread writes it now.
    assert_eq!(unsafe { pin.as_ptr().cast::<u32>().read_volatile() }, 7);
}

/// On a GPU that orders them, writes to host memory arrive late too, after earlier ones to device
/// memory.
#[test]
fn ordered_writes_arrive_in_order_wherever_they_go() {
    let mut late = 0;
    for seed in 0..SEEDS {
        let (env, gpu) = rig(weak(seed).changed(|c| c.ordered_writes = true));
        let (dev, pin) = (
            gpu.alloc_device(4096).unwrap(),
            gpu.alloc_pinned(64).unwrap(),
        );
        let cpu = dev.map_cpu();
        dev.window().write(0, &[7; 4096]).unwrap();
        pin.window().store32(0, 1).unwrap();
        // SAFETY: the memory lives; the NIC's store is an atomic one.
        let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(pin.as_ptr().cast()) };
        while word.load(std::sync::atomic::Ordering::Acquire) == 0 {
            late += 1;
            env.step();
        }
        let mut got = [0; 4096];
        cpu.read(0, &mut got).unwrap();
        assert_eq!(got, [7; 4096], "seed {seed}: seen before what came before");
    }
    assert!(late > SEEDS as usize, "nothing was late");
}

/// Random programs end with the same memory as with strong memory, for every seed.
#[test]
fn weak_memory_changes_the_time_but_not_the_result() {
    for seed in 0..SEEDS {
        let run = |config: Config| {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (_env, gpu) = rig(config);
            let pin = gpu.alloc_pinned(128).unwrap();
            let stream = gpu.stream().unwrap();
            for _ in 0..10 {
                let ops: Vec<_> = (0..rng.usize(1..20))
                    .map(|_| {
                        let (word, value) = (pin.addr() + 8 * rng.u64(..8), rng.u64(..));
                        let fenced = rng.u8(..4) == 0;
                        match rng.u8(..8) {
                            0 => MemOp::Fence,
                            1..4 => MemOp::Write {
                                addr: word,
                                value,
                                wide: true,
                                fenced,
                            },
                            4 => {
                                let data = value.to_ne_bytes().repeat(3);
                                MemOp::Copy {
                                    addr: word + rng.u64(..8),
                                    data: InlineData::new(&data[..rng.usize(1..24)]).unwrap(),
                                }
                            }
                            _ => MemOp::Write {
                                addr: word + 4 * rng.u64(..2),
                                value,
                                wide: false,
                                fenced,
                            },
                        }
                    })
                    .collect();
                stream.submit(ops).unwrap();
                stream
                    .copy(pin.addr() + 100, pin.addr() + rng.u64(..64), 28)
                    .unwrap();
            }
            sync(&stream);
            let mut got = [0; 128];
            pin.window().read(0, &mut got).unwrap();
            got
        };
        assert_eq!(run(weak(seed)), run(Config::default()), "seed {seed}");
    }
}

#[test]
fn seed_replays_exactly() {
    let run = |seed| {
        let mut seen = Vec::new();
        watch(
            seed,
            |a| {
                (0..40)
                    .map(|n| unfenced32(a + 4 * (n % 4), n as u32))
                    .collect()
            },
            |m| seen.push(m),
        );
        seen
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}
