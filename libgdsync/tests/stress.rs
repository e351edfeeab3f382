//! Many queue pairs at once, passed from thread to thread while others are created and destroyed.

mod common;

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use common::*;

const PAIRS: u32 = 64;
const THREADS: u64 = 4;
const TURNS: u32 = 1500;

/// Two connected queue pairs with memory, and the number of messages in each direction.
struct Couple {
    ends: [Qp; 2],
    memory: [Mr; 2],
    count: u64,
}

impl Couple {
    fn new(pd: &Pd, config: &QpConfig) -> Couple {
        let (a, b) = joined(pd, config);
        let memory = [(); 2].map(|()| memory(pd, MemoryKind::Device, 64, Access::ALL));
        Couple {
            ends: [a, b],
            memory,
            count: 0,
        }
    }

    /// A message from one end to the other; streams, the CPU or both wait for it.
    fn turn(&mut self, streams: &[Stream; 2], rng: &mut fastrand::Rng) {
        let what = format!("{:?}, message {}", self.ends[0], self.count);
        let from = rng.usize(..2);
        let to = 1 - from;
        self.count += 1;
        let value = self.count.to_le_bytes();
        self.memory[from].region().write(0, &value).unwrap();
        let list = [sge(&self.memory[to], 8, 8)];
        let recv = self.ends[to].prepare_receive(&list).unwrap();
        let by_stream = rng.bool();
        if by_stream {
            let list = [Descriptor::Receive(recv), Descriptor::wait_flushed(recv)];
            self.ends[to].post_on(&streams[to], &list).unwrap();
        } else {
            self.ends[to].post_receive(recv).unwrap();
        }
        let list = [sge(&self.memory[from], 0, 8)];
        let loud = rng.bool();
        let work = Work::send(&list);
        let work = if loud { work.signaled() } else { work };
        let send = self.ends[from].prepare_within(&work, LIMIT).unwrap();
        match (rng.bool(), loud) {
            (true, _) => self.ends[from].post_within(send, LIMIT).unwrap(),
            (false, false) => {
                let list = [Descriptor::Send(send)];
                self.ends[from].post_on(&streams[from], &list).unwrap();
            }
            (false, true) => {
                let list = send_and_wait(send);
                self.ends[from].post_on(&streams[from], &list).unwrap();
            }
        }
        if by_stream {
            finish(&streams[to], &what);
        }
        assert_eq!(kind(self.ends[to].wait(recv, LIMIT)), None, "{what}");
        let got = self.memory[to].region().bytes::<8>(8);
        assert_eq!(got, value, "{what}");
        if loud {
            assert_eq!(kind(self.ends[from].wait(send, LIMIT)), None, "{what}");
        }
        // The next thread that takes the pair uses its own streams.
        for stream in streams {
            finish(stream, &what);
        }
    }

    /// Fails one end, and recovers both.
    fn fail(&mut self, stream: &Stream, rng: &mut fastrand::Rng) {
        let what = format!("{:?}, failure", self.ends[0]);
        let from = rng.usize(..2);
        let list = [sge(&self.memory[from], 0, 8)];
        let mut to = self.memory[1 - from].remote().span(0, 8).unwrap();
        to.rkey ^= 0x00ab_cd00;
        let end = &mut self.ends[from];
        let work = Work::write(&list, to).signaled();
        let bad = end.prepare_within(&work, LIMIT).unwrap();
        end.post_on(stream, &send_and_wait(bad)).unwrap();
        finish(stream, &what);
        let expect = Kind::Failed(Status::REMOTE_ACCESS);
        assert_eq!(kind(end.wait(bad, LIMIT)), Some(expect), "{what}");
        for end in &mut self.ends {
            end.quiet(LIMIT).unwrap();
            end.reset().unwrap();
        }
        let [a, b] = &mut self.ends;
        connect(a, b);
    }
}

#[test]
fn many_queue_pairs_go_from_thread_to_thread() {
    let gpu = roomy();
    let device = Device::emulated(&gpu).unwrap();
    let pd = device.alloc_pd().unwrap();
    let configs: Vec<QpConfig> = paths()
        .into_iter()
        .map(|(_, config)| sized(&config, 8, 8))
        .collect();
    let new = |i: usize| Couple::new(&pd, &configs[i % configs.len()]);
    let couples: Mutex<VecDeque<Couple>> = Mutex::new((0..PAIRS as usize).map(new).collect());
    // Number of turns that all threads took; only counted.
    let turns = AtomicU32::new(0);
    // Tells the thread that creates and destroys queue pairs that the others have finished.
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let workers: Vec<_> = (0..THREADS)
            .map(|seed| {
                let (couples, turns, gpu) = (&couples, &turns, &gpu);
                s.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
                    while turns.fetch_add(1, Ordering::Relaxed) < TURNS {
                        let mut couple = couples.lock().unwrap().pop_front().unwrap();
                        for _ in 0..rng.u32(1..6) {
                            couple.turn(&streams, &mut rng);
                        }
                        if rng.u32(..20) == 0 {
                            couple.fail(&streams[0], &mut rng);
                        }
                        couples.lock().unwrap().push_back(couple);
                    }
                })
            })
            .collect();
        s.spawn(|| {
            let mut rng = fastrand::Rng::with_seed(THREADS);
            let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
            for i in 0.. {
                if over.load(Ordering::Acquire) {
                    break;
                }
                let mut couple = new(i);
                couple.turn(&streams, &mut rng);
                drop(couple);
                device.close(LIMIT).unwrap();
            }
        });
        let results: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        over.store(true, Ordering::Release);
        for result in results {
            if let Err(panic) = result {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let mut couples = couples.into_inner().unwrap();
    assert_eq!(couples.len(), PAIRS as usize);
    for couple in &mut couples {
        for end in &mut couple.ends {
            assert_eq!(end.error(), None);
            end.quiet(LIMIT).unwrap();
        }
    }
    drop(couples);
    device.close(LIMIT).unwrap();
    assert!(Live::global().unwrap().failures().is_empty());
}
