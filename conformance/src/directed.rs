//! Scenarios that a random program would meet too rarely: failures, held streams, silent peers.

use std::time::Duration;

use fastrand::Rng;
use gds_driver::{SimError, SimReport};
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use gdsync::memop::Condition;
use gdsync::rdma::{Access, Descriptor, Endpoint, Lowering, Mr, QpConfig, SendRequest, Work};
use gdsync::{Kind, Status};

use crate::world::{LIMIT, Place, Rank, two_ranks};

/// Longer than the watcher's period by far.
const LONG: Duration = Duration::from_millis(50);

fn config(rng: &mut Rng) -> QpConfig {
    QpConfig {
        send_blocks: 16,
        recv_entries: 16,
        lowering: if rng.bool() {
            Lowering::Kernel
        } else {
            Lowering::MemOps
        },
        endpoint: if rng.u8(0..4) == 0 {
            Endpoint::Proxy
        } else {
            Endpoint::Ring
        },
        cq_memory: if rng.u8(0..4) == 0 {
            MemoryKind::Device
        } else {
            MemoryKind::Pinned
        },
        start: 0u32.wrapping_sub(rng.u32(0..20)),
        timeout: None,
        ..QpConfig::default()
    }
}

fn buffer(place: &Place) -> Mr {
    let region = place.gpu.alloc(MemoryKind::Pinned, 4096).unwrap();
    place.pd.register(&region, Access::ALL).unwrap()
}

/// One of several writes that were enqueued ahead fails. The stream is held at the wait for it
/// as long as nobody looks after it, then goes on; every request has its own status; after a
/// reset on both sides the queue pairs work again.
///
/// # Errors
/// Whatever did not go so, with the seed.
pub fn failure(seed: u64) -> Result<SimReport, SimError> {
    two_ranks(seed, move |rank| {
        let mut rng = Rng::with_seed(seed);
        let config = config(&mut rng);
        let count = rng.usize(2..8);
        let failing = rng.usize(0..count);
        // Waits tell of signaled requests only; the failing one shows in any case.
        let signaled: Vec<bool> = (0..count).map(|i| i == count - 1 || rng.bool()).collect();
        let mut place = rank.open(SoftOptions::default(), &config);
        let memory = buffer(&place);
        let [theirs, _] = rank.swap_memory([memory.remote(), memory.remote()]);
        rank.connect(&mut place.qp);
        if rank.me == 0 {
            let stream = place.gpu.stream().unwrap();
            let words = place.gpu.alloc(MemoryKind::Pinned, 256).unwrap();
            let gate = words.word32(0).unwrap();
            let mut list = vec![Descriptor::WaitValue32 {
                word: &gate,
                condition: Condition::Eq,
                value: 1,
                flush: false,
            }];
            let marks: Vec<_> = (0..count)
                .map(|i| words.word32(4 + 4 * i).unwrap())
                .collect();
            let mut requests: Vec<SendRequest> = Vec::new();
            for (i, signaled) in signaled.iter().enumerate() {
                let mut to = theirs.span(64 * i as u64, 8).unwrap();
                if i == failing {
                    to.rkey ^= 0x7700;
                }
                let sges = [memory.sge(8 * i as u64, 8)];
                let work = Work::write(&sges, to);
                let work = if *signaled { work.signaled() } else { work };
                requests.push(place.qp.prepare(&work).unwrap());
            }
            for i in 0..count {
                list.push(Descriptor::Send(requests[i]));
                if signaled[i] {
                    list.push(Descriptor::wait(requests[i]));
                    list.push(Descriptor::WriteValue32 {
                        word: &marks[i],
                        value: 1,
                    });
                }
            }
            place.qp.post_on(&stream, &list).unwrap();
            let nic = place.device.name().replace("emulated ", "");
            let looking_after = [format!("{nic}.watcher"), format!("{nic}.proxy")];
            looking_after
                .iter()
                .for_each(|name| rank.control.freeze(name));
            gate.store(1).unwrap();
            rank.host
                .wait_until(Some(rank.host.now() + LONG), &mut || false);
            let passed = |i: usize| marks[i].load().unwrap() == 1;
            if config.endpoint == Endpoint::Ring {
                let wrong = (failing..count).find(|i| signaled[*i] && passed(*i));
                assert_eq!(
                    wrong, None,
                    "a stream passed a failure that nobody has looked after"
                );
            }
            looking_after
                .iter()
                .for_each(|name| rank.control.unfreeze(name));
            assert!(
                stream.synchronize(LIMIT).unwrap(),
                "the stream was not released"
            );
            for (i, request) in requests.iter().enumerate() {
                let expected = match i {
                    i if i < failing => Status::SUCCESS,
                    i if i == failing => Status::REMOTE_ACCESS,
                    _ => Status::FLUSHED,
                };
                assert_eq!(
                    place.qp.poll(*request).unwrap(),
                    Some(expected),
                    "request {i} of {count}"
                );
            }
            assert_eq!(place.qp.error(), Some(Status::REMOTE_ACCESS));
            let sges = [memory.sge(0, 8)];
            let refused = place.qp.prepare(&Work::send(&sges)).unwrap_err();
            assert_eq!(refused.kind(), Kind::Failed(Status::REMOTE_ACCESS));
        }
        rank.barrier();
        again(&rank, &mut place, &memory);
    })
}

/// Resets both sides, connects them anew, and sends a message each way by stream.
fn again(rank: &Rank, place: &mut Place, memory: &Mr) {
    // A queue pair that was failed by its peer's request knows it once its flush is seen.
    let deadline = rank.host.now() + LIMIT;
    let mut answer = place.qp.reset();
    rank.host.wait_until(Some(deadline), &mut || {
        if matches!(&answer, Err(e) if e.kind() == Kind::Busy) {
            answer = place.qp.reset();
        }
        !matches!(&answer, Err(e) if e.kind() == Kind::Busy)
    });
    answer.unwrap();
    rank.barrier();
    rank.connect(&mut place.qp);
    let stream = place.gpu.stream().unwrap();
    let value = 0x5eed + rank.me as u64;
    memory.region().write(1024, &value.to_le_bytes()).unwrap();
    for _ in 0..20 {
        let recv = place.qp.prepare_receive(&[memory.sge(2048, 8)]).unwrap();
        let sges = [memory.sge(1024, 8)];
        let send = place
            .qp
            .prepare_within(&Work::send(&sges).signaled(), LIMIT)
            .unwrap();
        let list = [
            Descriptor::Receive(recv),
            Descriptor::Send(send),
            Descriptor::wait(recv),
            Descriptor::wait(send),
        ];
        place.qp.post_on(&stream, &list).unwrap();
        assert!(
            stream.synchronize(LIMIT).unwrap(),
            "no traffic after the reset"
        );
        let mut got = [0; 8];
        memory.region().read(2048, &mut got).unwrap();
        assert_eq!(u64::from_le_bytes(got), 0x5eed + rank.peer() as u64);
    }
    assert_eq!(place.qp.error(), None);
    rank.barrier();
}

/// A peer stops for good in the middle of an exchange: whoever waits for it gets a typed error
/// within its time limit, and its stream is released.
///
/// # Errors
/// Whatever did not go so, with the seed.
pub fn silence(seed: u64) -> Result<SimReport, SimError> {
    two_ranks(seed, move |rank| {
        let mut rng = Rng::with_seed(seed);
        let limit = Duration::from_millis(20);
        let config = QpConfig {
            timeout: Some(limit),
            ..config(&mut rng)
        };
        let by_wait = rng.bool();
        let mut place = rank.open(SoftOptions::default(), &config);
        let memory = buffer(&place);
        rank.connect(&mut place.qp);
        if rank.me == 1 {
            let nic = place.device.name().replace("emulated ", "");
            rank.control.freeze(&nic);
            rank.barrier();
            rank.barrier();
            rank.control.unfreeze(&nic);
            return;
        }
        rank.barrier();
        let stream = place.gpu.stream().unwrap();
        let before = rank.host.now();
        let request = if by_wait {
            let recv = place.qp.prepare_receive(&[memory.sge(0, 8)]).unwrap();
            let options = gdsync::rdma::WaitOptions {
                flush: false,
                timeout: Some(limit),
            };
            let list = [
                Descriptor::Receive(recv),
                Descriptor::Wait(recv.into(), options),
            ];
            place.qp.post_on(&stream, &list).unwrap();
            gdsync::rdma::Completion::from(recv)
        } else {
            let sges = [memory.sge(0, 8)];
            let send = place.qp.prepare(&Work::send(&sges).signaled()).unwrap();
            let list = [Descriptor::Send(send), Descriptor::wait(send)];
            place.qp.post_on(&stream, &list).unwrap();
            send.into()
        };
        assert!(
            stream.synchronize(LIMIT).unwrap(),
            "the stream was not released"
        );
        let error = place.qp.wait(request, LIMIT).unwrap_err();
        assert_eq!(error.kind(), Kind::Failed(Status::TIMEOUT), "{error}");
        let took = rank.host.now().since(before);
        assert!(took >= limit && took < limit * 20, "{took:?}");
        rank.barrier();
    })
}

/// A stream stands at a closed gate in front of its waits while the CPU posts more and more:
/// the queue says that it is full before an entry would be used again, and when the gate opens
/// every wait passes.
///
/// # Errors
/// Whatever did not go so, with the seed.
pub fn held_stream(seed: u64) -> Result<SimReport, SimError> {
    two_ranks(seed, move |rank| {
        let mut rng = Rng::with_seed(seed);
        let config = QpConfig {
            send_blocks: 4,
            recv_entries: 4,
            endpoint: Endpoint::Ring,
            ..config(&mut rng)
        };
        let mut place = rank.open(SoftOptions::default(), &config);
        let memory = buffer(&place);
        let [theirs, _] = rank.swap_memory([memory.remote(), memory.remote()]);
        rank.connect(&mut place.qp);
        let stream = place.gpu.stream().unwrap();
        let gate = place
            .gpu
            .alloc(MemoryKind::Pinned, 64)
            .unwrap()
            .word32(0)
            .unwrap();
        let mut posted = 0u32;
        for round in 1..=14u32 {
            let closed = Descriptor::WaitValue32 {
                word: &gate,
                condition: Condition::Geq,
                value: round,
                flush: false,
            };
            place.qp.post_on(&stream, &[closed]).unwrap();
            // Everything completes at once, but no wait passes: after at most two quarters
            // of the entries there are no more positions.
            let full = loop {
                let sges = [memory.sge(0, 8)];
                let work = Work::write(&sges, theirs.span(0, 8).unwrap()).signaled();
                match place.qp.prepare(&work) {
                    Ok(request) => {
                        place.qp.post_within(request, LIMIT).unwrap();
                        place.qp.wait(request, LIMIT).unwrap();
                        place
                            .qp
                            .post_on(&stream, &[Descriptor::wait(request)])
                            .unwrap();
                        posted += 1;
                    }
                    Err(e) => break e,
                }
                assert!(
                    posted <= 4 * round,
                    "entries are used again under a waiting stream"
                );
            };
            assert_eq!(full.kind(), Kind::QueueFull, "{full}");
            gate.store(round).unwrap();
            assert!(stream.synchronize(LIMIT).unwrap(), "a wait was overtaken");
        }
        assert!(posted >= 24, "three laps of eight entries: {posted}");
        rank.barrier();
    })
}
