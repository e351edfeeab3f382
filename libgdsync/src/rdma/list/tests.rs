//! The bound on submissions, compared with the submissions of a stream.

use super::*;
use crate::gpu::Gpu;
use crate::gpu::soft::SoftOptions;
use crate::memop::DevicePtr;
use crate::memop::Width::Bits64;

/// Lists of one kind of operation, long enough for several programs and batches.
fn lists(at: DevicePtr) -> [Batch; 3] {
    let copy = Op::Copy {
        at,
        data: Inline::new(&[7; Inline::MAX]).unwrap(),
    };
    [
        copy,
        Op::write(Bits64, at, 7u64),
        Op::write(Bits32, at, 7u32),
    ]
    .map(|op| {
        let mut list = Batch::new();
        (0..200).for_each(|_| list.push(op));
        list
    })
}

#[test]
fn submissions_of_a_list_never_exceed_the_admitted_number() {
    for memops64 in [true, false] {
        let caps = SoftOptions::default()
            .caps
            .memops64(memops64)
            .batch_limit(20);
        let live = gds_step::Live::global().unwrap();
        let gpu = Gpu::soft_with(live, SoftOptions::default().caps(caps)).unwrap();
        let stream = gpu.stream().unwrap();
        let memory = gpu.alloc(crate::gpu::MemoryKind::Pinned, 64).unwrap();
        gpu.capture_trace();
        for kernel in [true, false] {
            for mut list in lists(memory.addr()) {
                let most = submissions(&stream, &list, kernel);
                let sent = submit(&stream, &mut list, &mut Buffers::default(), kernel);
                assert!(matches!(sent, Ok(Sent::All)));
                let given = gpu.take_trace();
                let given = given
                    .iter()
                    .filter(|line| line.starts_with("stream"))
                    .count();
                assert!(
                    given <= most as usize,
                    "{given} of {most}: {:?}",
                    list.ops()[0]
                );
            }
        }
        assert!(
            stream
                .synchronize(std::time::Duration::from_secs(60))
                .unwrap()
        );
    }
}
