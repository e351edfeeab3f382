//! Compares the bytes that this library writes into a queue pair of libmlx5 with those that libmlx5
//! writes into an equal one for the same requests: work queue entries, doorbell records, doorbells.
//! `fields` has the allowed differences, `request` the requests, `rig` the two queue pairs.
//!
//! Requests that verbs, or libmlx5, cannot express:
//! - libmlx5 posts a NOP by `mlx5dv_wr_raw_wqe`, from the bytes that it writes for an empty SEND
//!   with the same flags; it numbers the entry and writes the doorbell;
//! - it posts an aborted request in the same way, from the bytes that it writes for the request;
//! - libmlx5 takes a segment of exactly 2 GiB as a byte count with the mark of inline data.

mod datagrams;
mod fields;
mod request;
mod rig;

use fastrand::Rng;
use mlx5_prm::wqe::WqeFlags;

use self::request::{Data, Kind, Request};
use self::rig::{By, Rig};
use crate::Kind as ErrorKind;
use crate::nic::RemoteSpan;
use crate::virtual_nic::inside;

/// The maximum number of segments of a request.
const PIECES: usize = 30;
const BYS: [By; 2] = [By::Cpu, By::Stream];

fn flags(number: usize) -> WqeFlags {
    WqeFlags {
        signaled: number & 1 != 0,
        solicited: number & 2 != 0,
        fence: number & 4 != 0,
    }
}

fn all_flags() -> impl Iterator<Item = WqeFlags> {
    (0..8).map(flags)
}

/// Distinct lengths: every bit of the byte count is set in one of them.
const LENGTHS: [u32; 8] = [
    1,
    2,
    0x7fff_ffff,
    0x4000_0000,
    0x2aaa_aaaa,
    0x5555_5555,
    4096,
    65_537,
];

/// `count` segments inside `memory` bytes of memory.
fn pieces(count: usize, memory: u64) -> Vec<(u64, u32)> {
    let piece = |i: usize| {
        let len = LENGTHS[i % LENGTHS.len()].min((memory - 1) as u32);
        let room = memory - u64::from(len);
        ((0x1234_5678_9abc * i as u64) % (room + 1), len)
    };
    (0..count).map(piece).collect()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + len + 1) as u8).collect()
}

/// Splits bytes into pieces.
fn cut(bytes: &[u8], at: &[usize]) -> Data {
    let mut left = bytes;
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let mut done = 0;
    for at in at {
        let (now, later) = left.split_at(at - done);
        pieces.push(now.to_vec());
        (left, done) = (later, *at);
    }
    pieces.push(left.to_vec());
    Data::Inline(pieces)
}

/// Requests of a kind with everything but their flags: each number of pointers, each number of
/// inline bytes, empty segments in every place.
fn shapes(kind: Kind, memory: u64) -> Vec<Request> {
    let mut data = Vec::new();
    if kind == Kind::Nop {
        data.push(Data::Gather(Vec::new()));
    } else if kind.is_atomic() {
        data.extend([
            Data::Gather(vec![(8, 8)]),
            Data::Gather(vec![(0, 0), (memory - 8, 8)]),
            Data::Gather(vec![(16, 8), (0, 0)]),
        ]);
    } else {
        // A datagram is one packet.
        let packet = |i: usize| (i as u64 * 1000, (i as u32 * 37 + 1) % 130 + 1);
        let pieces = |count| match kind.is_datagram() {
            true => (0..count).map(packet).collect(),
            false => pieces(count, memory),
        };
        data.extend((0..=PIECES).map(|count| Data::Gather(pieces(count))));
        for mask in 0..32 {
            let mut list = pieces(5);
            list.iter_mut()
                .enumerate()
                .filter(|(i, _)| mask >> i & 1 == 0)
                .for_each(|(_, piece)| piece.1 = 0);
            data.push(Data::Gather(list));
        }
    }
    if kind.takes_inline() {
        data.push(Data::Inline(Vec::new()));
        for len in 0..=kind.most_inline() {
            data.push(match len % 3 {
                0 => cut(&bytes(len), &[]),
                1 => cut(&bytes(len), &[len / 3, len / 3, len / 2]),
                _ => cut(&bytes(len), &[0, len]),
            });
        }
    }
    let with = |data| Request {
        data,
        ..Request::empty(kind)
    };
    data.into_iter().map(with).collect()
}

/// Every request that can be built: all kinds, each with all its data; all flags where there are
/// few of them, and one set of flags after the other over the inline lengths.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn every_request_has_the_bytes_that_libmlx5_writes() {
    inside!(&[]);
    let mut rig = Rig::large(64, 4, 1);
    for (fill, immediate) in [(0xa5, 0x0102_0304), (0x5a, 0xffff_ffff), (0, 0)] {
        rig.fill = fill;
        for kind in Kind::ALL {
            for (i, shape) in shapes(kind, rig.memory()).into_iter().enumerate() {
                let few = shape.segments() < 8;
                for (j, flags) in all_flags().enumerate() {
                    // Each fill uses each length, with another choice of flags.
                    if !few && j != (i + usize::from(fill)) % 8 {
                        continue;
                    }
                    let request = Request {
                        flags,
                        imm: immediate,
                        ..shape.clone()
                    };
                    let by = BYS[usize::from((i + j) % 16 == 0)];
                    rig.send(&request, by).unwrap();
                }
            }
        }
    }
    // Counters of queues have 16 bits.
    assert!(rig.next > 1 << 16, "{} blocks", rig.next);
    rig.tally.print();
}

/// Every length in segments over every position of the ring's end.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn entries_that_wrap_around_the_ring_equal_those_of_libmlx5() {
    inside!(&[]);
    let mut rig = Rig::new(32, 4, 1);
    for kind in Kind::ALL {
        let mut seen = std::collections::BTreeSet::new();
        for shape in shapes(kind, rig.memory()) {
            let segments = shape.segments();
            if !seen.insert((shape.data.name(), segments)) {
                continue;
            }
            for before in 1..segments.div_ceil(4) as u32 {
                rig.go_to(32 - before).unwrap();
                rig.send(&shape, By::Cpu).unwrap();
            }
        }
    }
    rig.tally.print();
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn every_receive_has_the_bytes_that_libmlx5_writes() {
    inside!(&[]);
    for most in [1, 2, 3, 4, 5, 8, 13, 16] {
        let mut rig = Rig::new(32, 8, most);
        for round in 0..20 {
            for count in 0..=most as usize {
                rig.receive(&pieces(count, rig.memory()), BYS[round % 2])
                    .unwrap();
                let mut holes = pieces(count, rig.memory());
                holes
                    .iter_mut()
                    .skip(round % 3)
                    .step_by(3)
                    .for_each(|p| p.1 = 0);
                rig.receive(&holes, By::Cpu).unwrap();
            }
        }
        rig.tally.print();
    }
}

/// An aborted request before another one: a NOP of its size.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn aborted_requests_equal_those_of_libmlx5() {
    inside!(&[]);
    let mut rig = Rig::new(64, 4, 1);
    for kind in Kind::ALL {
        for (i, shape) in shapes(kind, rig.memory()).into_iter().enumerate() {
            // A NOP has no immediate, and of the flags only the one for its completion.
            let imm = 0;
            let flags = flags(i % 2);
            rig.take_back(&Request {
                flags,
                imm,
                ..shape
            })
            .unwrap();
        }
    }
    rig.tally.print();
}

/// Random lists and lengths, up to three requests per doorbell.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn random_requests_equal_those_of_libmlx5() {
    inside!(&[]);
    let seed = match std::env::var("GDS_SEED") {
        Ok(seed) => match seed.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
            None => seed.parse().unwrap(),
        },
        Err(_) => fastrand::u64(..),
    };
    println!("GDS_SEED={seed:#018x}");
    let mut rng = Rng::with_seed(seed);
    let cases = crate::testing::cases(4000);
    let mut rig = Rig::new(128, 16, 7);
    for case in 0..cases {
        rig.fill = rng.u8(..);
        let by = BYS[usize::from(rng.u8(..16) == 0)];
        let done = match rng.u8(..8) {
            0 => rig.receive(&drawn_pieces(&mut rng, 7, rig.memory()), by),
            n => {
                let list: Vec<Request> = (0..1 + n % 3)
                    .map(|_| drawn(&mut rng, rig.memory()))
                    .collect();
                rig.send_all(&list, by)
            }
        };
        if let Err(e) = done {
            panic!("case {case} of GDS_SEED={seed:#018x}: {e}");
        }
    }
    rig.tally.print();
}

fn drawn_pieces(rng: &mut Rng, most: usize, memory: u64) -> Vec<(u64, u32)> {
    let count = rng.usize(..=most);
    let piece = |_| {
        let len = match rng.u8(..4) {
            0 => 0,
            1 => rng.u64(..memory) as u32,
            _ => rng.u32(1..=8192),
        };
        (rng.u64(..=memory - u64::from(len)), len)
    };
    (0..count).map(piece).collect()
}

fn drawn(rng: &mut Rng, memory: u64) -> Request {
    let kind = Kind::ALL[rng.usize(..Kind::ALL.len())];
    let data = match kind {
        Kind::Nop => Data::Gather(Vec::new()),
        _ if kind.is_atomic() => Data::Gather(vec![(rng.u64(..=memory - 8), 8)]),
        _ if kind.takes_inline() && rng.bool() => {
            // Three requests take at most half a ring.
            let len = rng.usize(..=kind.most_inline());
            let mut ends: Vec<usize> = (0..rng.usize(..4)).map(|_| rng.usize(..=len)).collect();
            ends.sort_unstable();
            let bytes: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
            cut(&bytes, &ends)
        }
        _ => Data::Gather(drawn_pieces(rng, PIECES, memory)),
    };
    Request {
        kind,
        flags: flags(rng.usize(..8)),
        imm: rng.u32(..),
        data,
        remote: RemoteSpan::new(rng.u64(..), rng.u32(..)),
        operands: (rng.u64(..), rng.u64(..)),
        to: 0,
    }
}

/// Tests the comparison itself: it detects each flipped bit of an entry, of the ring around it, of
/// the record or of the doorbell, on either side.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn comparison_detects_every_flipped_bit() {
    inside!(&[]);
    let mut rig = Rig::new(16, 4, 2);
    let mut flipped = 0;
    let mut check = |last: rig::Written, what: &str| {
        last.check().unwrap();
        for side in 0..2 {
            let bits = last.rings[side].len() * 8;
            for bit in 0..bits + 64 + 64 {
                let mut wrong = last.clone();
                let flip = |bytes: &mut [u8], bit: usize| bytes[bit / 8] ^= 1 << (bit % 8);
                if bit < bits {
                    flip(&mut wrong.rings[side], bit);
                } else if bit < bits + 64 {
                    flip(&mut wrong.records[side], bit - bits);
                } else if let Some(words) = &mut wrong.doorbells {
                    flip(&mut words[side], bit - bits - 64);
                } else {
                    continue;
                }
                assert!(wrong.check().is_err(), "{what}: bit {bit} of side {side}");
                flipped += 1;
            }
        }
    };
    for kind in Kind::ALL {
        let mut shapes = vec![Request::empty(kind)];
        if kind.is_atomic() {
            shapes[0].data = Data::Gather(vec![(8, 8)]);
        } else if kind != Kind::Nop {
            shapes[0].data = Data::Gather(pieces(3, rig.memory()));
        }
        if kind.takes_inline() {
            shapes.push(Request {
                data: cut(&bytes(45), &[]),
                ..Request::empty(kind)
            });
        }
        for shape in shapes {
            rig.send(&shape, By::Cpu).unwrap();
            check(rig.last.take().unwrap(), &format!("{shape:?}"));
        }
    }
    for count in 0..=2 {
        rig.receive(&pieces(count, rig.memory()), By::Cpu).unwrap();
        check(rig.last.take().unwrap(), &format!("a receive of {count}"));
    }
    println!("{flipped} bits were flipped one by one, and each was detected");
}

/// The one known difference: for a segment of exactly 2 GiB the hardware has a byte count of 0, and
/// libmlx5 writes the mark of inline data.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn segment_of_two_gib_differs_in_the_byte_count() {
    inside!(&[]);
    let mut rig = Rig::large(16, 4, 2);
    let piece = vec![(0, 1 << 31)];
    let request = Request {
        data: Data::Gather(piece.clone()),
        ..Request::empty(Kind::Read)
    };
    let differ = rig.send(&request, By::Cpu).unwrap_err();
    assert!(differ.starts_with("byte count"), "{differ}");
    let send = (rig.last.take().unwrap(), 64 + 32);
    let differ = rig.receive(&piece, By::Cpu).unwrap_err();
    assert!(differ.starts_with("byte count"), "{differ}");
    let receive = (rig.last.take().unwrap(), 0);
    for (mut written, at) in [send, receive] {
        let counts = written.rings.each_ref().map(|ring| &ring[at..at + 4]);
        assert_eq!(counts, [[0, 0, 0, 0], [0x80, 0, 0, 0]]);
        written.rings[1][at] = 0;
        written.check().unwrap();
    }
}

/// An atomic has one segment for the old value: libmlx5 writes eight bytes for each of several.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn prepare_refuses_a_split_old_value_of_an_atomic() {
    inside!(&[]);
    let mut rig = Rig::new(16, 4, 1);
    let split = Request {
        data: Data::Gather(vec![(0, 4), (4, 4)]),
        ..Request::empty(Kind::FetchAdd)
    };
    let refused = rig.prepare(&split).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert_eq!(refused.limit(), Some(8));
}
