//! The memory that contexts keep for the messages of a peer.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use gdsync::Gpu;
use gdsync::gpu::MemoryKind;

use super::*;
use crate::bootstrap::Local;
use crate::{Context, Neighbour, PathChoice, RecvOp};

const LIMIT: Duration = Duration::from_secs(60);
const EAGER: usize = 4096;
const DEPTH: usize = 16;
/// Bytes of the words of a channel, at both of its sides.
const WORDS: usize = DEPTH * (PAIR + 2 * 8) + DEPTH * (Place::ROOM + 2 * 8);

/// Runs `body` as each of two ranks, with a barrier of both.
fn ranks(body: fn(&Context, &dyn Fn())) {
    ranks_by(PathChoice::Nic, body);
}

fn ranks_by(path: PathChoice, body: fn(&Context, &dyn Fn())) {
    let both = Arc::new(Barrier::new(2));
    let ranks: Vec<_> = Local::ranks(2)
        .into_iter()
        .map(|job| {
            let gpu = Gpu::soft().unwrap();
            let builder = Context::builder().bootstrap(job).gpu(&gpu).path(path);
            let ctx = builder.eager_limit(EAGER).depth(DEPTH as u32);
            let (ctx, both) = (ctx.timeout(LIMIT).build().unwrap(), Arc::clone(&both));
            std::thread::spawn(move || {
                let ended = catch_unwind(AssertUnwindSafe(|| body(&ctx, &|| _ = both.wait())));
                both.wait();
                ended.unwrap_or_else(|panic| resume_unwind(panic));
            })
        })
        .collect();
    assert!(ranks.into_iter().map(|rank| rank.join()).all(|r| r.is_ok()));
}

/// The bytes that a context keeps for the channels to and from the other rank: words, and rooms.
fn kept(ctx: &Context) -> (usize, usize) {
    let state = ctx.engine().lock();
    let Some(peer) = state.peers.get(1 - ctx.rank()) else {
        return (0, 0);
    };
    let len = |keys: &Keys| keys.region().len();
    let sends = peer.channels.sends.values().map(|c| len(&c.memory));
    let recvs = peer.channels.recvs.values();
    let words = recvs
        .clone()
        .map(|c| len(&c.memory) + len(&c.side.taken_words));
    let rooms = recvs.filter_map(|c| c.side.rooms.as_ref()).map(len);
    (sends.chain(words).sum(), rooms.sum())
}

#[test]
fn windows_neighbourhoods_and_collective_calls_keep_no_memory_for_messages() {
    ranks(|ctx, both| {
        let peer = 1 - ctx.rank();
        let memory = ctx.alloc(MemoryKind::Pinned, 1 << 16).unwrap();
        let window = ctx.window(&memory).unwrap();
        let bytes = memory.slice(0, 64).unwrap();
        let put = window.put_signal(peer, 1024, &bytes, 2048, 1).unwrap();
        put.wait(LIMIT).unwrap();
        let condition = gdsync::gpu::Condition::Eq;
        window.wait_signal(peer, 2048, condition, 1, LIMIT).unwrap();

        let halo = Neighbour::new(peer, 0, 0)
            .send(&memory.slice(4096, 64).unwrap())
            .receive(&memory.slice(8192, 64).unwrap());
        let halo = ctx.neighbourhood().neighbour(halo).build().unwrap();
        let stream = ctx.gpu().stream().unwrap();
        for _ in 0..5 {
            halo.ready_on(&stream).unwrap();
            halo.send_on(&stream).unwrap();
            halo.wait_on(&stream).unwrap();
        }
        ctx.synchronize(&stream, LIMIT).unwrap();

        let mut collectives = ctx.collectives(64).unwrap();
        collectives.barrier(LIMIT).unwrap();
        assert_eq!(kept(ctx), (0, 0));
        both();
    });
}

#[test]
fn tag_of_large_messages_has_no_rooms_until_an_eager_message_is_to_come() {
    ranks(|ctx, both| {
        const TAGS: u32 = 4;
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        let memory = ctx.alloc(MemoryKind::Pinned, 1 << 16).unwrap();
        let (large, small) = (EAGER + 1, 100);
        let into = memory.slice(0, large).unwrap();
        let data = |len| memory.slice(1 << 15, len).unwrap();
        for round in 0..2 * DEPTH {
            for tag in 0..TAGS {
                memory.write(1 << 15, &[round as u8 + 1; 5000]).unwrap();
                // The stream takes in what the CPU sends, and the CPU what the stream sends.
                let recv = ctx.irecv_on(&stream, peer, tag, &into).unwrap();
                recv.wait_on(&stream).unwrap();
                ctx.isend(peer, tag, &data(large))
                    .unwrap()
                    .wait(LIMIT)
                    .unwrap();
                recv.wait(LIMIT).unwrap();
                let recv = ctx.irecv(peer, tag, &into).unwrap();
                let send = ctx.isend_on(&stream, peer, tag, &data(large)).unwrap();
                assert_eq!(recv.wait(LIMIT).unwrap().len, large as u64);
                send.wait(LIMIT).unwrap();
            }
        }
        let words = TAGS as usize * WORDS;
        assert_eq!(kept(ctx), (words, 0));
        both();

        // The stream waits for the message before there are rooms.
        let recv = ctx.irecv_on(&stream, peer, 1, &into).unwrap();
        recv.wait_on(&stream).unwrap();
        assert_eq!(kept(ctx), (words, 0));
        both();
        memory
            .write(1 << 15, &[ctx.rank() as u8 + 77; 100])
            .unwrap();
        ctx.isend(peer, 1, &data(small))
            .unwrap()
            .wait(LIMIT)
            .unwrap();
        assert_eq!(recv.wait(LIMIT).unwrap().len, small as u64);
        let mut got = [0; 101];
        memory.read(0, &mut got).unwrap();
        let expected = [peer as u8 + 77; 100];
        assert!(got[..small] == expected && got[small] == 2 * DEPTH as u8);
        let rooms = DEPTH * EAGER;
        assert_eq!(kept(ctx), (words, rooms));
        both();

        // A receive of at most the eager limit: its sender has rooms when it first sends.
        let recv = ctx
            .irecv(peer, 2, &memory.slice(0, small).unwrap())
            .unwrap();
        assert_eq!(kept(ctx), (words, 2 * rooms));
        ctx.isend(peer, 2, &data(small))
            .unwrap()
            .wait(LIMIT)
            .unwrap();
        recv.wait(LIMIT).unwrap();
        assert_eq!(kept(ctx), (words, 2 * rooms));
    });
}

/// The sender is interrupted between the two words of a message. The next message of the slot may be a stream's,
/// whose words the second one would replace.
#[test]
fn cpu_takes_no_message_of_which_one_word_is_stored() {
    ranks_by(PathChoice::Ipc, |ctx, _| {
        let data = ctx.alloc(MemoryKind::Pinned, 8).unwrap().all();
        if ctx.rank() == 0 {
            ctx.isend(1, 1, &data).unwrap().wait(LIMIT).unwrap();
            return;
        }
        ctx.irecv(0, 1, &data).unwrap().wait(LIMIT).unwrap();
        for (number, at_once) in [(1, true), (2, false)] {
            let recv = ctx.irecv(0, 1, &data).unwrap();
            if !at_once {
                recv.result_word();
            }
            let store = |large| {
                let state = ctx.engine().lock();
                let word = state.receiving(0, 1).unwrap().word(number, large);
                word.store(word::word(number, WordKind::Eager, 8)).unwrap();
            };
            store(false);
            assert!(recv.wait(Duration::from_millis(5)).is_err());
            assert!(recv.test().unwrap().is_none());
            store(true);
            assert_eq!(recv.wait(LIMIT).unwrap().len, 8);
        }
    });
}

/// The kind of the newest message under `tag` from the other rank.
fn kind(ctx: &Context, tag: u32) -> Option<WordKind> {
    let state = ctx.engine().lock();
    let channel = state.receiving(1 - ctx.rank(), tag).unwrap();
    let newest = channel.numbers.next().wrapping_sub(1);
    let shown = channel.shown(newest).and_then(|word| word::parse(word).1);
    shown.or_else(|| channel.first_word(newest)?.0)
}

#[test]
fn short_messages_of_streams_use_flagged_rooms_once_a_stream_receives() {
    ranks_by(PathChoice::Ipc, |ctx, both| {
        const ROUNDS: usize = 5 * DEPTH;
        let (me, peer) = (ctx.rank() as usize, 1 - ctx.rank());
        let stream = ctx.gpu().stream().unwrap();
        let memory = ctx.alloc(MemoryKind::Device, 1 << 16).unwrap();
        let mut flagged = 0;
        for round in 0..ROUNDS {
            // Odd addresses, all lengths; two segments; a receive above the eager limit.
            let len = round * EAGER / (ROUNDS - 1);
            let data = |rank: usize| -> Vec<u8> {
                (0..len)
                    .map(|i| (i * 7 + round + rank * 101) as u8)
                    .collect()
            };
            let (from, into) = (round % 8, (1 << 15) + round % 5);
            memory.write(from, &data(me)).unwrap();
            memory.write(into, &vec![0xee; len + 9]).unwrap();
            let room = if round % 3 == 0 { EAGER + 9 } else { len };
            let cut = len / 3;
            let segments = match round % 4 {
                1 => vec![memory.slice(into, cut), memory.slice(into + cut, len - cut)],
                _ => vec![memory.slice(into, room)],
            };
            let segments: Vec<_> = segments.into_iter().map(Result::unwrap).collect();
            let by_stream = [round % 5 != 2, round % 7 != 3];
            let recv = RecvOp::new(peer, 1, &segments);
            let recv = match by_stream[0] {
                true => recv.on(&stream),
                false => recv,
            };
            let recv = ctx.post_recv(&recv).unwrap();
            let send = memory.slice(from, len).unwrap();
            let send = match by_stream[1] {
                true => ctx.isend_on(&stream, peer, 1, &send).unwrap(),
                false => ctx.isend(peer, 1, &send).unwrap(),
            };
            if by_stream[0] {
                recv.wait_on(&stream).unwrap();
            }
            assert_eq!(recv.wait(LIMIT).unwrap().len, len as u64);
            send.wait(LIMIT).unwrap();
            let mut got = vec![0; len + 1];
            memory.read(into, &mut got).unwrap();
            assert!(got[..len] == data(peer as usize), "round {round}");
            assert_eq!(got[len], 0xee, "round {round}");
            both();
            flagged += usize::from(kind(ctx, 1) == Some(WordKind::Flagged));
            both();
        }
        // The rounds before the sender knows of the rooms, and those of the CPU.
        assert!(flagged > ROUNDS / 2, "{flagged} of {ROUNDS}");
    });
}
