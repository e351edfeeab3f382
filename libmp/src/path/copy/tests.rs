//! Tests of a lane of copies: the bytes and the order of puts, and the failure of a lane.

use std::sync::Arc;
use std::time::Duration;

use gdsync::Status;
use gdsync::gpu::{Condition, MemoryKind, Region, Word64};
use gdsync::rdma::Descriptor;

use super::wqe::MOST;
use super::*;
use crate::error::Kind;
use crate::kernels::{MOST_CHUNKS, Patch, Stamp};
use crate::path;
use crate::wire::record::Place;

const LEN: usize = 256 << 10;

struct Bench {
    lane: Lane,
    stream: gdsync::Stream,
    from: Region,
    /// The destination of puts; the first bytes are words.
    into: Region,
    remote: Remote,
    keys: Keys,
}

impl Bench {
    fn new(kind: MemoryKind) -> Bench {
        let gpu = Gpu::soft().unwrap();
        let copier = Copier::new(&gpu, Some(Arc::new(Kernels::of(&gpu).unwrap())), false);
        let (from, into) = (gpu.alloc(kind, LEN).unwrap(), gpu.alloc(kind, LEN).unwrap());
        let bytes: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
        from.write(0, &bytes).unwrap();
        let keys = copier.keys();
        Bench {
            lane: Lane::new(&copier).unwrap(),
            stream: gpu.stream().unwrap(),
            remote: Remote::read(&keys.to_bytes(&into)).unwrap(),
            from,
            into,
            keys,
        }
    }

    fn to(&self, offset: usize) -> Span {
        self.remote.span(offset, 0).unwrap()
    }

    /// A payload in two pieces, then words.
    fn message(&mut self, len: usize) -> [Put; 2] {
        let to = self.to(4099);
        let pieces = [(3, len / 3), (5000, len - len / 3)];
        let from = self.from.clone();
        let pieces = pieces.map(|(offset, len)| Piece {
            region: &from,
            offset,
            len,
        });
        let payload = self.lane.put(pieces.into_iter(), to).unwrap();
        let word = self.lane.announce(&[7; 16], self.to(8)).unwrap();
        [payload, word]
    }

    /// Copies the message of [`Bench::message`] now.
    fn copy_now(&self, len: usize) -> crate::Result<bool> {
        let pieces = [(3, len / 3), (5000, len - len / 3)].map(|(offset, len)| Piece {
            region: &self.from,
            offset,
            len,
        });
        let words = [u64::from_ne_bytes([7; 8]); 2];
        self.lane
            .copy_now(pieces.into_iter(), self.to(4099), &words, self.to(8))
    }

    /// A message on the stream, which waits for the word until it is 1.
    fn gated_message(&mut self) -> (Word64, [Put; 2]) {
        let gate = self.stream.gpu().alloc(MemoryKind::Pinned, 64).unwrap();
        let gate = gate.word64(0).unwrap();
        let puts = self.message(100);
        let list = [
            Descriptor::wait_value(&gate, Condition::Geq, 1u64),
            Descriptor::Flush,
            Descriptor::Flush,
        ];
        let items = [Item::Wait, Item::Put(puts[0]), Item::Put(puts[1])];
        self.lane.post_on(&self.stream, &list, &items).unwrap();
        (gate, puts)
    }

    fn word(&self, at: usize) -> Word64 {
        self.into.word64(at).unwrap()
    }

    fn assert_arrived(&self, len: usize) {
        let mut bytes = vec![0; len + 1];
        self.into.read(4099, &mut bytes).unwrap();
        let expected = (3..3 + len / 3).chain(5000..5000 + len - len / 3);
        let expected: Vec<u8> = expected.map(|i| (i % 251) as u8).chain([0]).collect();
        assert!(bytes == expected, "{len} bytes");
        let seven = u64::from_ne_bytes([7; 8]);
        let words = [0, 8, 16, 24].map(|at| self.word(at).load().unwrap());
        assert_eq!(words, [0, seven, seven, 0]);
    }

    fn post_on(&mut self, puts: &[Put]) -> Result<(), crate::Error> {
        let list = vec![Descriptor::Flush; puts.len()];
        let items: Vec<_> = puts.iter().copied().map(Item::Put).collect();
        self.lane.post_on(&self.stream, &list, &items)
    }

    fn settle(&self) {
        assert!(self.stream.synchronize(Duration::from_secs(60)).unwrap());
    }
}

#[test]
fn a_message_arrives_by_the_cpu_and_by_a_stream() {
    for kind in [MemoryKind::Pinned, MemoryKind::Device] {
        for len in [0, 1, 17, 4096, 70_001, 200_000] {
            for by_stream in [false, true] {
                let mut bench = Bench::new(kind);
                let puts = bench.message(len);
                assert!(bench.lane.poll(puts[1]).is_err(), "it was not posted");
                assert!(bench.lane.is_quiet());
                if by_stream {
                    bench.post_on(&puts).unwrap();
                    bench.settle();
                } else {
                    puts.iter().for_each(|put| bench.lane.post(*put).unwrap());
                    bench.lane.go_on(ROUND);
                }
                bench.assert_arrived(len);
                for put in puts {
                    assert_eq!(bench.lane.poll(put).unwrap(), Some(Status::SUCCESS));
                }
                assert!(bench.lane.is_quiet());
            }
        }
    }
}

#[test]
fn words_behind_the_last_byte_of_a_round_are_stored_in_it() {
    for len in [1, 4096, AT_ONCE] {
        let mut bench = Bench::new(MemoryKind::Pinned);
        let puts = bench.message(len);
        puts.iter().for_each(|put| bench.lane.post(*put).unwrap());
        assert!(bench.lane.go_on(len) && !bench.lane.is_copying());
        bench.assert_arrived(len);
    }
}

#[test]
fn a_short_message_is_copied_now_unless_an_earlier_put_waits() {
    for kind in [MemoryKind::Pinned, MemoryKind::Device] {
        for len in [0, 1, 17, 4096, AT_ONCE] {
            let bench = Bench::new(kind);
            assert!(bench.copy_now(len).unwrap());
            bench.assert_arrived(len);
        }
    }
    let mut bench = Bench::new(MemoryKind::Pinned);
    let words = |bench: &Bench| [8, 16].map(|at| bench.word(at).load().unwrap());
    assert!(!bench.copy_now(AT_ONCE + 1).unwrap(), "it is too long");
    let puts = bench.message(LEN - 5000);
    puts.iter().for_each(|put| bench.lane.post(*put).unwrap());
    bench.lane.go_on(4096);
    assert!(!bench.copy_now(17).unwrap(), "it would overtake a put");
    assert_eq!(words(&bench), [0; 2]);
    while bench.lane.go_on(ROUND) {}
    assert!(bench.copy_now(17).unwrap());
    // The memory is gone: puts report that.
    let gone = Bench::new(MemoryKind::Pinned);
    gone.keys.forget();
    assert!(!gone.copy_now(17).unwrap());
    assert_eq!(words(&gone), [0; 2]);
    bench.lane.fail(Status::REMOTE_ABORTED);
    let failed = bench.copy_now(17).map_err(|e| e.kind());
    assert_eq!(failed, Err(Kind::PeerFailed(Status::REMOTE_ABORTED)));
}

#[test]
fn cpu_copies_a_large_put_in_parts_and_the_word_last() {
    let gpu = Gpu::soft().unwrap();
    let copier = Copier::new(&gpu, None, false);
    let region = gpu.alloc(MemoryKind::Pinned, 12 << 20).unwrap();
    let keys = copier.keys();
    let remote = Remote::read(&keys.to_bytes(&region)).unwrap();
    let mut lane = Lane::new(&copier).unwrap();
    let bytes = Piece {
        region: &region,
        offset: 0,
        len: 5 << 20,
    };
    let to = remote.span(6 << 20, 0).unwrap();
    let payload = lane.put([bytes].into_iter(), to).unwrap();
    let word = lane
        .announce(&[1; 8], remote.span(5 << 20, 8).unwrap())
        .unwrap();
    let at = region.word64(5 << 20).unwrap();
    [payload, word]
        .iter()
        .for_each(|put| lane.post(*put).unwrap());
    lane.go_on(ROUND);
    assert_eq!(at.load().unwrap(), 0);
    assert_eq!(lane.poll(payload).unwrap(), None);
    assert!(lane.go_on(ROUND) && !lane.go_on(ROUND));
    assert_eq!(lane.poll(payload).unwrap(), Some(Status::SUCCESS));
    assert_ne!(at.load().unwrap(), 0);
    assert!(lane.is_quiet());
}

#[test]
fn words_are_stored_in_one_step_of_the_cpu_that_ends_within_them() {
    for short in [3, 8, 12] {
        let gpu = Gpu::soft().unwrap();
        let copier = Copier::new(&gpu, None, false);
        let region = gpu.alloc(MemoryKind::Pinned, 12 << 20).unwrap();
        let keys = copier.keys();
        let remote = Remote::read(&keys.to_bytes(&region)).unwrap();
        let mut lane = Lane::new(&copier).unwrap();
        let bytes = Piece {
            region: &region,
            offset: 0,
            len: ROUND - short,
        };
        let to = remote.span(6 << 20, 0).unwrap();
        let payload = lane.put([bytes].into_iter(), to).unwrap();
        let word = lane.announce(&[1; 16], remote.span(5 << 20, 16).unwrap());
        let word = word.unwrap();
        for put in [payload, word] {
            lane.post(put).unwrap();
        }
        lane.go_on(ROUND);
        assert_eq!(lane.poll(word).unwrap(), Some(Status::SUCCESS));
        let words = [0, 8].map(|at| region.word64((5 << 20) + at).unwrap().load().unwrap());
        assert_eq!(words, [u64::from_ne_bytes([1; 8]); 2], "{short}");
    }
}

#[test]
fn announcement_is_put_as_a_word() {
    let mut bench = Bench::new(MemoryKind::Pinned);
    for (bytes, is_word) in [(&[1; 8][..], true), (&[1; 24], false)] {
        let put = bench
            .lane
            .put_bytes(bytes, bench.remote.span(64, 24).unwrap());
        assert_eq!(put.unwrap().words, is_word);
    }
}

#[test]
fn kernel_patches_place_and_length_of_a_late_put_or_makes_it_a_nop() {
    let mut bench = Bench::new(MemoryKind::Pinned);
    let to = bench.to(0);
    let from = bench.from.clone();
    let piece = Piece {
        region: &from,
        offset: 0,
        len: 100,
    };
    let puts = [
        bench.lane.put([piece].into_iter(), to).unwrap(),
        bench
            .lane
            .put_words(Piece { len: 8, ..piece }, bench.to(64))
            .unwrap(),
    ];
    let mut params = Stamp {
        ready: 0,
        info: 0,
        stamp: 0,
        length: 0,
        offset: 0,
        size: 0,
        source: 0,
        result: 0,
        error: 0,
        stamp_control: 0,
        chunk: 0,
        chunks: 0,
        seq: 0,
        patch: [Patch::default(); MOST_CHUNKS],
    };
    bench
        .lane
        .patch(puts.into_iter(), true, [true; 2], &mut params);
    assert_eq!((params.chunks, params.patch[1]), (1, Patch::default()));
    // Stores what the kernel stores: big-endian, in the WQE.
    let wqes = bench.lane.wqes.memory();
    let store = |at: u64, bytes: &[u8]| {
        let offset = (at - wqes.addr().0) as usize;
        wqes.write(offset, bytes).unwrap();
    };
    let patch = params.patch[0];
    let place = bench.into.addr().0 + 1000;
    store(patch.remote_address, &place.to_be_bytes());
    store(patch.length, &20u32.to_be_bytes());
    store(patch.address, &(from.addr().0 + 50).to_be_bytes());
    store(params.stamp_control + 3, &[0]);
    bench.post_on(&puts).unwrap();
    bench.settle();
    let mut bytes = [9; 22];
    bench.into.read(1000, &mut bytes).unwrap();
    let expected: Vec<u8> = (50..70).chain([0, 0]).collect();
    assert_eq!(bytes[..], expected);
    assert_eq!(bench.word(64).load().unwrap(), 0);
    assert_eq!(bench.lane.poll(puts[1]).unwrap(), Some(Status::SUCCESS));
}

#[test]
fn failed_lane_executes_no_further_put_and_releases_streams() {
    let mut bench = Bench::new(MemoryKind::Pinned);
    let (gate, puts) = bench.gated_message();
    assert_eq!(bench.lane.poll(puts[1]).unwrap(), None);
    assert!(!bench.lane.is_quiet());
    let other = bench.stream.gpu().stream().unwrap();
    bench.lane.wait_on(&other, puts[1]).unwrap();
    bench.lane.fail(Status::TIMEOUT);
    assert!(other.synchronize(Duration::from_secs(60)).unwrap());
    assert_eq!(bench.lane.poll(puts[0]).unwrap(), Some(Status::TIMEOUT));
    assert!(bench.lane.is_quiet());
    let to = bench.to(0);
    let refused = bench.lane.announce(&[0; 8], to).unwrap_err();
    assert_eq!(refused.kind(), Kind::PeerFailed(Status::TIMEOUT));
    gate.store(1).unwrap();
    bench.settle();
    assert_eq!(bench.word(8).load().unwrap(), 0);
}

#[test]
fn wqes_are_reused_when_their_puts_are_done_or_aborted() {
    let mut bench = Bench::new(MemoryKind::Pinned);
    let to = bench.to(0);
    let mut prepare = || bench.lane.put_bytes(&[1; 28], to);
    let puts: Vec<Put> = (0..MOST).map(|_| prepare().unwrap()).collect();
    assert_eq!(prepare().unwrap_err().kind(), Kind::QueueFull);
    // A put that is not the newest can be aborted, too.
    bench.lane.abort(puts[5]).unwrap();
    assert!(bench.lane.abort(puts[5]).is_err());
    let again = bench.lane.put_bytes(&[2; 8], to).unwrap();
    assert_eq!(again.slot(), puts[5].slot());
    assert!(bench.lane.poll(puts[5]).is_err(), "its WQE is reused");
    for put in [puts[0], again] {
        bench.lane.post(put).unwrap();
    }
    assert!(bench.lane.abort(again).is_err());
    bench.lane.go_on(ROUND);
    assert_eq!(bench.lane.poll(again).unwrap(), Some(Status::SUCCESS));
    assert!(bench.lane.put_bytes(&[3; 8], to).is_ok());
}

#[test]
fn a_list_with_a_put_is_refused_without_its_lane() {
    let mut bench = Bench::new(MemoryKind::Pinned);
    let to = bench.to(0);
    let put = bench.lane.put_bytes(&[1; 8], to).unwrap();
    let mut list = path::List::<1>::new();
    list.put([path::Put::Copy(put)]);
    let refused = list.post(&bench.stream, None).unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid);
}

#[test]
fn memory_is_found_by_its_key_until_its_keys_are_dropped() {
    let gpu = Gpu::soft().unwrap();
    let copier = Copier::new(&gpu, None, false);
    let region = gpu.alloc(MemoryKind::Pinned, 100).unwrap();
    let keys = copier.keys();
    let remote = Remote::read(&keys.to_bytes(&region)).unwrap();
    assert_eq!(
        Remote::read(&keys.clone().to_bytes(&region)).unwrap(),
        remote
    );
    assert!(Remote::read(&keys.to_bytes(&region)[1..]).is_err());
    assert!(remote.span(90, 11).is_err());
    let place = Place {
        addr: region.addr().0 + 90,
        keys: keys.rkeys(&region),
    };
    let at = Span::of(&place).unwrap();
    assert_eq!(at, remote.span(90, 10).unwrap());
    assert_eq!(copier.table.find(at, 10).unwrap().1, 90);
    assert!(copier.table.find(at, 11).is_err());
    assert!(copier.table.find(at.behind(u64::MAX - 100), 1).is_err());
    // A put to released memory fails its lane.
    let mut lane = Lane::new(&copier).unwrap();
    let put = lane.put_bytes(&[1], at).unwrap();
    drop(keys);
    assert!(copier.table.find(at, 1).is_err());
    lane.post(put).unwrap();
    assert!(lane.go_on(ROUND));
    assert_eq!(lane.poll(put).unwrap(), Some(Status::LOCAL_ACCESS));
    assert_eq!(lane.error(), Some(Status::LOCAL_ACCESS));
}

/// `fail` stores that the lane failed before it checks the puts: a kernel that runs in between
/// skips them, and they are not done.
#[test]
fn a_put_that_was_skipped_ends_with_the_status_of_the_lane() {
    let mut bench = Bench::new(MemoryKind::Pinned);
    let (gate, puts) = bench.gated_message();
    // The first step of `fail`.
    let failed = bench.lane.wqes.failed();
    failed.store(Status::TIMEOUT.0).unwrap();
    gate.store(1).unwrap();
    bench.settle();
    bench.lane.fail(Status::TIMEOUT);
    assert_eq!(bench.word(8).load().unwrap(), 0);
    assert_eq!(bench.lane.poll(puts[1]).unwrap(), Some(Status::TIMEOUT));
}
