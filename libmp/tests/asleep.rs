//! Messages on streams progress while the threads that enqueued them sleep. Only the software
//! device's thread and, now and then, the watcher do work for that.

mod common;

use std::sync::{Arc, Barrier, Mutex};
use std::thread::sleep;
use std::time::Duration;

use common::gate::Gate;
use common::{LIMIT, ranks_with};
use gds_step::{ThreadTime, thread_times};
use gdsync::gpu::MemoryKind;
use gdsync::rdma::QpConfig;
use mp::{Full, Progress};

const MESSAGES: usize = 200;
const NAP: Duration = Duration::from_millis(100);
/// After this many naps without progress, the test reports a hang.
const NAPS: usize = 600;

fn word(rank: u32, i: usize) -> u64 {
    (u64::from(rank) << 32 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// The threads that must be idle: all except the threads of the software device, the watcher, a
/// GPU's driver and the test harness, and the threads of the ranks, which sleep and poll.
fn others() -> Vec<ThreadTime> {
    let mut all = thread_times().unwrap();
    let busy = ["gds-device", "gds-watch", "rank0", "rank1"];
    let ours = |t: &ThreadTime| t.tid != std::process::id() && !t.name.starts_with("cuda");
    all.retain(|t| ours(t) && !busy.contains(&t.name.as_str()));
    all
}

#[test]
fn messages_progress_while_all_host_threads_sleep() {
    // With manual progress the library has no thread that could do the work.
    for progress in [Progress::Background, Progress::Manual] {
        let together = Arc::new(Barrier::new(2));
        let before = Arc::new(Mutex::new(Vec::new()));
        // Enough room that no send waits for a credit.
        let qp = QpConfig::default().send_blocks(4096).recv_entries(4096);
        let nic = mp::NicOptions::default().queues(qp);
        let build = move |b: mp::Builder| b.progress(progress).full(Full::Fail).nic(nic.clone());
        ranks_with(2, build, move |ctx| {
            let peer = 1 - ctx.rank();
            let stream = ctx.gpu().stream().unwrap();
            let out = ctx.alloc(MemoryKind::Pinned, 8 * MESSAGES).unwrap();
            let into = ctx.alloc(MemoryKind::Pinned, 8 * MESSAGES).unwrap();
            let exchange = |i: usize| {
                let recv = ctx.irecv_on(&stream, peer, 1, &into.slice(8 * i, 8).unwrap());
                let send = ctx.isend_on(&stream, peer, 1, &out.slice(8 * i, 8).unwrap());
                let both = [recv.unwrap(), send.unwrap()];
                ctx.wait_all_on(&stream, &both).unwrap();
                both
            };
            // The first message under a tag needs the CPUs of both ranks.
            for request in exchange(0) {
                request.wait(LIMIT).unwrap();
            }
            into.write(0, &[0; 8]).unwrap();
            for i in 0..MESSAGES {
                let word = word(ctx.rank(), i).to_le_bytes();
                out.write(8 * i, &word).unwrap();
            }
            together.wait();

            // Until the gate opens, the stream executes nothing: the CPU helps with none of the
            // enqueued work.
            let gate = Gate::new(ctx.gpu());
            gate.hold(&stream);
            let requests: Vec<_> = (0..MESSAGES).map(exchange).collect();
            let region = into.region();
            let word_at = |i| region.word64(8 * i).unwrap();
            let words: Vec<_> = (0..MESSAGES).map(word_at).collect();
            assert!(words.iter().all(|w| w.load().unwrap() == 0));
            together.wait();
            if ctx.rank() == 0 {
                // The thread that joins the ranks may not be asleep yet.
                let mut asleep = others();
                for _ in 0..NAPS {
                    sleep(NAP);
                    let earlier = std::mem::replace(&mut asleep, others());
                    if earlier == asleep {
                        break;
                    }
                }
                *before.lock().unwrap() = asleep;
            }
            together.wait();

            // From here on, no thread calls mp.
            gate.open();
            let mut naps = 0;
            loop {
                sleep(NAP);
                naps += 1;
                if stream.is_idle().unwrap() {
                    break;
                }
                assert!(naps < NAPS, "the stream makes no progress");
            }
            for (i, got) in words.iter().enumerate() {
                assert_eq!(got.load().unwrap(), word(peer, i), "message {i}");
            }
            together.wait();
            if ctx.rank() == 0 {
                let before = before.lock().unwrap();
                println!("{progress:?}: {naps} naps, asleep were {before:?}");
                assert_eq!(others(), *before, "a thread worked");
            }
            together.wait();

            for request in requests.iter().flatten() {
                let done = request.test().unwrap().expect("the request has ended");
                assert_eq!((done.source(), done.len), (peer, 8));
            }
            assert_eq!(ctx.error(), None);
            ctx.close(LIMIT).unwrap();
        });
    }
}
