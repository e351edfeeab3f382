//! The thread of an idle TCP device sleeps. The test is alone in its process: it reads the processor
//! time of threads by their names.

mod common;

use common::*;
use gdsync::rdma::TcpOptions;

/// With connections, a receive posted and no other work, the thread sleeps; the next message wakes it.
#[test]
fn idle_thread_sleeps() {
    const WATCHED: Duration = Duration::from_secs(1);
    let open = |gpu: &Gpu| Device::tcp(gpu, TcpOptions::default());
    let mut p = Pair::open(open, &QpConfig::default());
    let memory = p.memory(MemoryKind::Pinned, 64);
    let spent = || {
        let threads = gds_step::thread_times().unwrap();
        let thread = threads.iter().find(|t| t.name == "gds-tcp");
        thread.expect("it runs").cpu
    };
    for round in 0..2 {
        let recv = p.b.receive(&[memory.sge(0, 8)]);
        std::thread::sleep(Duration::from_millis(50));
        // On a busy machine the count sometimes includes work that is not the thread's.
        let sleeps = (0..5).any(|_| {
            let before = spent();
            std::thread::sleep(WATCHED);
            let used = spent() - before;
            println!("round {round}: {used:?} of {WATCHED:?}");
            used < WATCHED / 100
        });
        assert!(sleeps, "the idle thread spins");
        let pieces: [&[u8]; 1] = [&[round; 8]];
        p.a.start(&Work::send_inline(&pieces));
        p.b.wait(recv, LIMIT).unwrap();
    }
}
