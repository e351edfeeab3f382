//! Messages on streams move while the threads that enqueued them sleep, and no thread works for
//! that but the software device's and, now and then, the watcher.

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
/// Naps after which what has not moved counts as hung.
const NAPS: usize = 600;

fn word(rank: u32, i: usize) -> u64 {
    (u64::from(rank) << 32 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// The threads that have nothing to do: not the software device's, nor the watcher's, nor the
/// ranks' own, which sleep and look; nor those of a GPU's driver, nor the test harness's.
fn others() -> Vec<ThreadTime> {
    let mut all = thread_times().unwrap();
    let busy = ["gds-device", "gds-watch", "rank0", "rank1"];
    let ours = |t: &ThreadTime| t.tid != std::process::id() && !t.name.starts_with("cuda");
    all.retain(|t| ours(t) && !busy.contains(&t.name.as_str()));
    all
}

#[test]
fn messages_move_while_everybody_sleeps() {
    // With manual progress the library has no thread at all that could help.
    for progress in [Progress::Background, Progress::Manual] {
        let together = Arc::new(Barrier::new(2));
        let before = Arc::new(Mutex::new(Vec::new()));
        // So that nothing here waits for room.
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
            // The first message under a tag needs the CPUs of both.
            for request in exchange(0) {
                request.wait(LIMIT).unwrap();
            }
            into.write(0, &[0; 8]).unwrap();
            for i in 0..MESSAGES {
                let word = word(ctx.rank(), i).to_le_bytes();
                out.write(8 * i, &word).unwrap();
            }
            together.wait();

            // Until this opens the stream does nothing: what is enqueued has no help from the CPU.
            let gate = Gate::new(ctx.gpu());
            gate.hold(&stream);
            let requests: Vec<_> = (0..MESSAGES).map(exchange).collect();
            let region = into.region();
            let word_at = |i| region.word64(8 * i).unwrap();
            let words: Vec<_> = (0..MESSAGES).map(word_at).collect();
            assert!(words.iter().all(|w| w.load().unwrap() == 0));
            together.wait();
            if ctx.rank() == 0 {
                *before.lock().unwrap() = others();
            }
            together.wait();

            // From here on, no call into mp.
            gate.open();
            let mut naps = 0;
            loop {
                sleep(NAP);
                naps += 1;
                if stream.is_idle().unwrap() {
                    break;
                }
                assert!(naps < NAPS, "the stream stands");
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
                let done = request.test().unwrap().expect("it has ended");
                assert_eq!((done.source(), done.len), (peer, 8));
            }
            assert_eq!(ctx.error(), None);
            ctx.close(LIMIT).unwrap();
        });
    }
}
