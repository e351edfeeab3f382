//! A stream waits at a closed gate. With waits enqueued behind the gate, completion entries are not
//! reused before those waits pass. With sends behind it, no wait for one of them is omitted.

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::Kind;
use gdsync::gpu::MemoryKind;
use gdsync::rdma::{Descriptor, Doorbell, Work};

use super::{LONG, config, passes, weak};
use crate::rig::reaches;
use crate::sim::world::{LIMIT, play};

/// A stream waits at a closed gate in front of its waits, while the CPU posts more and more. The
/// queue reports that it is full before an entry would be reused, and when the gate opens every
/// wait passes.
///
/// # Errors
/// The first difference, with the seed.
pub fn held_stream(seed: u64) -> Result<SimReport, SimError> {
    play(seed, 2, move |rank| {
        let mut rng = Rng::with_seed(seed);
        let config = config(&mut rng)
            .send_blocks(4)
            .recv_entries(4)
            .doorbell(Doorbell::Direct);
        let devices = rank.open(weak(&mut rng));
        let mut qp = devices.pd.create_qp(&config).unwrap();
        let memory = devices.memory(MemoryKind::Pinned, 4096);
        let theirs = rank.swap_memory(&memory, rank.peer());
        rank.connect(&mut qp, rank.peer());
        let stream = devices.gpu.stream().unwrap();
        let gate = devices
            .gpu
            .alloc(MemoryKind::Pinned, 64)
            .unwrap()
            .word32(0)
            .unwrap();
        let mut posted = 0u32;
        for round in 1..=14u32 {
            let closed = reaches(&gate, round);
            qp.post_on(&stream, &[closed]).unwrap();
            // Everything completes at once, but no wait passes: after at most two quarters
            // of the entries there are no more positions.
            let full = loop {
                let sges = [memory.sge(0, 8)];
                let work = Work::write(&sges, theirs.span(0, 8).unwrap()).signaled();
                match qp.prepare(&work) {
                    Ok(request) => {
                        qp.post_within(request, LIMIT).unwrap();
                        qp.wait(request, LIMIT).unwrap();
                        qp.post_on(&stream, &[Descriptor::wait(request)]).unwrap();
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
            passes(&stream, "waits behind the open gate");
        }
        assert!(posted >= 24, "three laps of eight entries: {posted}");
        rank.barrier();
    })
}

/// The first send of a full queue is complete; the others are enqueued on a stream behind a closed
/// gate. Another stream's wait for the second send does not pass before the gate opens, even if the
/// caller has tried to prepare one more send.
///
/// # Errors
/// The check that failed, with the seed.
pub fn held_sends(seed: u64) -> Result<SimReport, SimError> {
    play(seed, 2, move |rank| {
        let mut rng = Rng::with_seed(seed);
        const BLOCKS: u32 = 8;
        let config = config(&mut rng)
            .send_blocks(BLOCKS)
            // The sends of a round fill two quarters of the completion entries.
            .start(0u32.wrapping_sub(BLOCKS * rng.u32(0..4)));
        let devices = rank.open(weak(&mut rng));
        let mut qp = devices.pd.create_qp(&config).unwrap();
        rank.connect(&mut qp, rank.peer());
        let streams = [(); 2].map(|()| devices.gpu.stream().unwrap());
        let [held, other] = &streams;
        let pinned = devices.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        let gate = pinned.word32(0).unwrap();
        let work = Work::nop().signaled();
        for round in 1..=5u32 {
            let sends: Vec<_> = (0..BLOCKS).map(|_| qp.prepare(&work).unwrap()).collect();
            qp.post_within(sends[0], LIMIT).unwrap();
            qp.wait(sends[0], LIMIT).unwrap();
            let closed = reaches(&gate, round);
            let mut list = vec![closed];
            list.extend(sends[1..].iter().map(|s| Descriptor::Send(*s)));
            qp.post_on(held, &list).unwrap();
            let more = qp.prepare(&work);
            qp.post_on(other, &[Descriptor::wait(sends[1])]).unwrap();
            let passed = other.synchronize(LONG).unwrap();
            assert!(!passed, "a wait passed although its send is not posted");
            if let Ok(more) = more {
                qp.abort(more).unwrap();
            }
            gate.store(round).unwrap();
            for stream in &streams {
                passes(stream, "behind the open gate");
            }
            qp.wait(sends[BLOCKS as usize - 1], LIMIT).unwrap();
        }
        rank.barrier();
    })
}
