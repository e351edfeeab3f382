//! The ordering of a message's completion word after its payload: how it is selected for each peer,
//! shown and forced.

#[path = "common/sim.rs"]
mod sim;

use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use mp::WordOrder::{self, Auto, BehindRead, Plain};
use mp::{Context, Path, SizeSource};
use sim::{LIMIT, Rank, by_nic, play};
use vmlx5::fabric::faults::Faults;

const SIZES: [usize; 4] = [0, 8, 3000, 20_000];

/// A context whose NIC delays this share of the pieces of WRITEs.
fn open(rank: &Rank, ooo: f64, order: WordOrder) -> Context {
    let faults = Faults {
        seed: rank.me.into(),
        ooo,
        ..Faults::default()
    };
    let place = rank.place_with(SoftOptions::default(), true, faults);
    // Message numbers that soon need a 17th bit, and few slots, which are soon reused.
    let nic = mp::NicOptions::default().word_order(order);
    let build = |b: mp::Builder| b.depth(4).start((1 << 16) - 5).nic(nic);
    rank.open_at(&place, |b| by_nic(build(b)))
}

/// Messages in both directions, by the CPU and on a stream, with lengths that are known early and
/// late. Returns the number of messages with wrong bytes or a wrong length.
fn exchange(ctx: &Context) -> usize {
    let with = 1 - ctx.rank();
    let stream = ctx.gpu().stream().unwrap();
    let word = ctx.gpu().alloc(MemoryKind::Pinned, 64).unwrap();
    let word = word.word64(0).unwrap();
    let mut wrong = 0;
    for round in 0..24 {
        let len = SIZES[round % SIZES.len()];
        let payload = |from: u32| vec![from as u8 * 64 + round as u8; len];
        let data = ctx.alloc(MemoryKind::Pinned, len.max(1)).unwrap();
        let into = ctx.alloc(MemoryKind::Pinned, len.max(1)).unwrap();
        data.write(0, &payload(ctx.rank())).unwrap();
        let (data, here) = (data.slice(0, len).unwrap(), into.slice(0, len).unwrap());
        let way = round / SIZES.len() % 3;
        let by_cpu = way == 0;
        let recv = match by_cpu {
            true => ctx.irecv(with, 7, &here).unwrap(),
            false => ctx.irecv_on(&stream, with, 7, &here).unwrap(),
        };
        let send = match way {
            0 => ctx.isend(with, 7, &data).unwrap(),
            1 => ctx.isend_on(&stream, with, 7, &data).unwrap(),
            _ => {
                word.store(len as u64).unwrap();
                let size = SizeSource::Word {
                    len: &word,
                    offset: None,
                };
                let segments = [data];
                let spec = mp::SendOp::new(with, 7, &segments).on(&stream).size(size);
                ctx.post_send(&spec).unwrap()
            }
        };
        if !by_cpu {
            recv.wait_on(&stream).unwrap();
            assert!(stream.synchronize(LIMIT).unwrap());
        }
        let got = recv.wait(LIMIT).unwrap().len;
        let mut bytes = vec![0; len];
        into.read(0, &mut bytes).unwrap();
        wrong += usize::from(got != len as u64 || bytes != payload(with));
        send.wait(LIMIT).unwrap();
    }
    wrong
}

/// Runs two ranks whose NICs delay the share `ooo` of the pieces, and checks the selected orders.
fn selects(seed: u64, ooo: [f64; 2], order: WordOrder, expected: [WordOrder; 2]) {
    play(seed, 2, move |rank| {
        let ctx = open(rank, ooo[rank.me as usize], order);
        let with = 1 - rank.me;
        assert_eq!(ctx.word_order(with), None);
        assert_eq!(exchange(&ctx), 0, "wrong bytes");
        assert_eq!(ctx.word_order(with), Some(expected[rank.me as usize]));
        assert_eq!(ctx.word_order(2), None);
        assert_eq!(ctx.path(with).map(|(path, _)| path), Some(Path::Nic));
        assert_eq!(ctx.path(2), None);
        ctx.close(LIMIT).unwrap();
        rank.leave();
    });
}

#[test]
fn ordered_peer_is_notified_by_a_plain_write() {
    selects(1, [0.0, 0.0], Auto, [Plain; 2]);
}

#[test]
fn out_of_order_peer_is_notified_after_a_read() {
    (0..10).for_each(|seed| selects(seed, [0.5, 0.5], Auto, [BehindRead; 2]));
}

/// Each rank selects by the NIC of the other.
#[test]
fn each_rank_selects_the_order_by_the_nic_of_its_peer() {
    (0..10).for_each(|seed| selects(seed, [0.0, 0.5], Auto, [BehindRead, Plain]));
}

#[test]
fn forced_word_order_overrides_the_detected_one() {
    selects(1, [0.0, 0.0], BehindRead, [BehindRead; 2]);
}

#[test]
fn messages_to_itself_have_no_word_order() {
    for ooo in [0.0, 0.9] {
        play(3, 1, move |rank| {
            let ctx = open(rank, ooo, Auto);
            assert_eq!(ctx.path(0).map(|(path, _)| path), Some(Path::Local));
            let data = ctx.alloc(MemoryKind::Pinned, 5000).unwrap();
            let into = ctx.alloc(MemoryKind::Pinned, 5000).unwrap();
            for round in 1..20 {
                data.write(0, &[round; 5000]).unwrap();
                let recv = ctx.irecv(0, 1, &into.all()).unwrap();
                ctx.isend(0, 1, &data.all()).unwrap().wait(LIMIT).unwrap();
                recv.wait(LIMIT).unwrap();
                let mut bytes = [0; 5000];
                into.read(0, &mut bytes).unwrap();
                assert_eq!(bytes, [round; 5000]);
            }
            assert_eq!(ctx.word_order(0), None);
            ctx.close(LIMIT).unwrap();
            rank.leave();
        });
    }
}
