//! Puts without a request, from memory and inline: they complete at quiet, and a signal behind them
//! shows them.

#[path = "common/sim.rs"]
mod sim;

use gdsync::Stream;
use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{Condition, MemoryKind};
use mp::{Context, Kind, Memory, NULL_RANK, Slice, Window};
use sim::gate::Gate;
use sim::{Death, LIMIT, Rank, by_nic, millis, pair, peer_failed, play, secs, slice};
use vmlx5::fabric::faults::Faults;

/// Length of a put, puts, and the words behind them.
const ROW: usize = 3000;
const ROWS: usize = 6;
const SIGNAL: usize = ROW * ROWS;
const LEN: usize = SIGNAL + 64;
/// The most inline bytes.
const INLINE: usize = 256;

/// A context whose NIC delays this share of the pieces of WRITEs.
fn open(rank: &Rank, ooo: f64) -> Context {
    let faults = Faults {
        seed: rank.me.into(),
        ooo,
        ..Faults::default()
    };
    let place = rank.place_with(SoftOptions::default(), true, faults);
    rank.open_at(&place, |b| b)
}

fn window(ctx: &Context, kind: MemoryKind) -> Window {
    ctx.window(&ctx.alloc(kind, LEN).unwrap()).unwrap()
}

fn bytes(memory: &Memory, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes).unwrap();
    bytes
}

/// The calls of one origin.
#[derive(Clone, Copy)]
struct Origin<'a>(&'a Window, Option<&'a Stream>);

impl Origin<'_> {
    fn put(self, to: u32, at: usize, from: &Slice) {
        match self.1 {
            None => self.0.put_nbi(to, at, from),
            Some(stream) => self.0.put_nbi_on(stream, to, at, from),
        }
        .unwrap();
    }

    fn inline(self, to: u32, at: usize, bytes: &[u8]) {
        match self.1 {
            None => self.0.put_inline(to, at, bytes),
            Some(stream) => self.0.put_inline_on(stream, to, at, bytes),
        }
        .unwrap();
    }

    fn fence(self, to: u32) {
        match self.1 {
            None => self.0.fence(to),
            Some(stream) => self.0.fence_on(stream, to),
        }
        .unwrap();
    }

    fn quiet(self, ctx: &Context) {
        match self.1 {
            None => self.0.quiet(LIMIT).unwrap(),
            Some(stream) => {
                self.0.quiet_on(stream).unwrap();
                ctx.synchronize(stream, LIMIT).unwrap();
            }
        }
    }

    fn signal(self, to: u32, at: usize, value: u64) {
        let signal = match self.1 {
            None => self.0.signal(to, at, value),
            Some(stream) => self.0.signal_on(stream, to, at, value),
        };
        drop(signal.unwrap());
    }
}

/// Runs `body` for other ranks and the rank itself as targets, by the CPU and by a stream, over NICs
/// that place WRITEs in order and out of order.
fn each(body: impl Fn(&Rank, &Context, Origin<'_>, [u32; 2], u8) + Copy + 'static) {
    for (seed, ooo) in [(1, 0.0), (2, 0.5), (3, 0.9)] {
        for kind in [MemoryKind::Pinned, MemoryKind::Device] {
            play(seed, 2, move |rank| {
                let ctx = open(rank, ooo);
                let (window, stream) = (window(&ctx, kind), ctx.gpu().stream().unwrap());
                let mut round = 0;
                for [to, from] in [[rank.peer(); 2], [rank.me; 2]] {
                    for stream in [None, Some(&stream)] {
                        round += 1;
                        body(rank, &ctx, Origin(&window, stream), [to, from], round);
                        rank.barrier();
                    }
                }
                ctx.close(LIMIT).unwrap();
            });
        }
    }
}

/// Rows from memory and inline ones of several lengths and alignments.
fn rows(ctx: &Context, origin: Origin<'_>, to: u32, round: u8) {
    let data = slice(ctx, ROW);
    let me = ctx.rank() as u8;
    data.memory()
        .write(data.offset(), &[16 * round + me; ROW])
        .unwrap();
    for row in 0..ROWS - 1 {
        origin.put(to, row * ROW, &data);
    }
    let mut at = (ROWS - 1) * ROW;
    for len in [1, 4, 8, 7, 64, INLINE] {
        origin.inline(to, at, &vec![16 * round + me; len]);
        at += len;
    }
    origin.put(
        to,
        at,
        &data.memory().slice(data.offset(), SIGNAL - at).unwrap(),
    );
}

fn are_there(window: &Window, from: u32, round: u8) {
    window.memory().region().gpu().flush_remote_writes();
    let said = 16 * round + from as u8;
    let got = bytes(window.memory(), 0, SIGNAL);
    assert!(got.iter().all(|byte| *byte == said), "{from} {round}");
}

#[test]
fn puts_without_a_request_complete_at_quiet() {
    each(|rank, ctx, origin, [to, from], round| {
        rows(ctx, origin, to, round);
        origin.quiet(ctx);
        rank.barrier();
        are_there(origin.0, from, round);
        let puts: u64 = ctx.stats().peers.iter().map(|peer| peer.counts.puts).sum();
        assert_eq!(puts, u64::from(round) * (ROWS as u64 + 6));
    });
}

#[test]
fn puts_without_a_request_are_visible_before_a_later_signal() {
    each(|_, ctx, origin, [to, from], round| {
        rows(ctx, origin, to, round);
        origin.signal(to, SIGNAL, round.into());
        let (window, geq) = (origin.0, Condition::Geq);
        let wait = window.wait_signal(from, SIGNAL, geq, round.into(), LIMIT);
        wait.unwrap();
        are_there(window, from, round);
    });
}

/// A signal of 32 bits: an inline word behind a fence.
#[test]
fn an_inline_word_behind_a_fence_is_a_signal_of_32_bits() {
    each(|_, ctx, origin, [to, from], round| {
        rows(ctx, origin, to, round);
        origin.fence(to);
        origin.inline(to, SIGNAL + 4, &u32::from(round).to_le_bytes());
        let word = origin.0.memory().slice(SIGNAL + 4, 4).unwrap();
        let waited = ctx.wait_value(from, &word, Condition::Eq, round.into(), LIMIT);
        waited.unwrap();
        are_there(origin.0, from, round);
        assert_eq!(bytes(origin.0.memory(), SIGNAL, 4), [0; 4]);
        origin.quiet(ctx);
    });
}

/// The NIC raises no completion entry for the put: the queue pair keeps its memory until quiet.
#[test]
fn the_memory_of_a_put_without_a_request_is_kept_until_quiet() {
    pair(by_nic, |rank, ctx| {
        let window = window(ctx, MemoryKind::Pinned);
        for signaled in [true, false] {
            let data = ctx.adopt_vec(vec![7; 64]).map_err(|(_, e)| e).unwrap();
            match signaled {
                true => drop(window.put(rank.peer(), 0, &data.all()).unwrap()),
                false => window.put_nbi(rank.peer(), 0, &data.all()).unwrap(),
            }
            let back = data.into_vec(millis(20));
            assert_eq!(back.is_ok(), signaled);
            if let Err((data, e)) = back {
                assert_eq!(e.kind(), Kind::Timeout, "{e}");
                window.quiet(LIMIT).unwrap();
                let back = data.into_vec(LIMIT).map_err(|(_, e)| e);
                assert_eq!(back.unwrap(), [7; 64]);
            }
        }
        rank.barrier();
    });
}

/// Far more puts than the queue has room for; memory is dropped meanwhile.
#[test]
fn many_puts_without_a_request_find_room() {
    pair(
        |b| b,
        |rank, ctx| {
            let window = window(ctx, MemoryKind::Pinned);
            let stream = ctx.gpu().stream().unwrap();
            for to in [rank.peer(), rank.me] {
                for i in 0..500_u64 {
                    let data = slice(ctx, 8);
                    let at = 8 * (i as usize % 100);
                    window.put_nbi(to, at, &data).unwrap();
                    drop(data);
                    window
                        .put_inline_on(&stream, to, at, &i.to_le_bytes())
                        .unwrap();
                }
            }
            window.quiet(LIMIT).unwrap();
            window.quiet_on(&stream).unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            ctx.close(LIMIT).unwrap();
        },
    );
}

/// Inline bytes are those of the call, those of a put are read when the stream reaches it.
#[test]
fn a_stream_puts_inline_bytes_of_the_call() {
    pair(
        |b| b,
        |rank, ctx| {
            let window = window(ctx, MemoryKind::Pinned);
            let (stream, gate) = (ctx.gpu().stream().unwrap(), Gate::new(ctx.gpu()));
            let (data, mut word) = (slice(ctx, 8), [1; 8]);
            for to in [rank.peer(), rank.me] {
                data.memory().write(data.offset(), &[1; 8]).unwrap();
                gate.hold(&stream);
                window.put_nbi_on(&stream, to, 0, &data).unwrap();
                window.put_inline_on(&stream, to, 8, &word).unwrap();
                word.fill(2);
                data.memory().write(data.offset(), &[3; 8]).unwrap();
                gate.open();
                window.quiet_on(&stream).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                rank.barrier();
                let said = [[3; 8], [1; 8]].concat();
                assert_eq!(bytes(window.memory(), 0, 16), said);
                word.fill(1);
                rank.barrier();
            }
        },
    );
}

#[test]
fn bad_puts_without_a_request_are_refused() {
    pair(
        |b| b,
        |rank, ctx| {
            let (peer, window) = (rank.peer(), window(ctx, MemoryKind::Pinned));
            let stream = ctx.gpu().stream().unwrap();
            let data = slice(ctx, 8);
            for e in [
                window.put_nbi(peer, LEN - 7, &data),
                window.put_nbi_on(&stream, peer, LEN, &data),
                window.put_inline(peer, LEN - 7, &[0; 8]),
                window.put_inline_on(&stream, peer, usize::MAX - 3, &[0; 8]),
            ] {
                let e = e.unwrap_err();
                assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(peer)), "{e}");
                assert_eq!(e.limit(), Some(LEN as u64), "{e}");
            }
            for to in [peer, rank.me] {
                let e = window.put_inline(to, 0, &[0; INLINE + 1]).unwrap_err();
                let limit = Some(INLINE as u64);
                assert_eq!((e.kind(), e.limit()), (Kind::Invalid, limit), "{e}");
            }
            let e = window.put_nbi(2, 0, &data).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(2)), "{e}");
            let other = rank.open(|b| b.name("other"));
            let e = window.put_nbi(peer, 0, &slice(&other, 8)).unwrap_err();
            assert_eq!(e.kind(), Kind::Invalid, "{e}");
            window.put_nbi(NULL_RANK, 1 << 40, &data).unwrap();
            window
                .put_inline_on(&stream, NULL_RANK, 0, &[0; 8])
                .unwrap();
            assert_eq!(ctx.error(), None);
        },
    );
}

/// A put without a request to a rank that dies: quiet and later calls return the failure.
#[test]
fn the_death_of_a_rank_is_found_by_quiet() {
    for death in Death::ALL {
        println!("{death:?}");
        play(1, 2, move |rank| {
            let ctx = rank.open(|b| death.build_one_sided(b).timeout(secs(5)));
            let window = window(&ctx, MemoryKind::Pinned);
            let stream = ctx.gpu().stream().unwrap();
            let data = slice(&ctx, 8);
            let to = rank.peer();
            window.put_nbi(to, 0, &data).unwrap();
            window.put_nbi_on(&stream, to, 0, &data).unwrap();
            window.quiet(LIMIT).unwrap();
            window.quiet_on(&stream).unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            rank.barrier();
            if rank.me == 1 {
                drop(window);
                return death.end(rank, ctx, 2);
            }
            rank.pass(millis(1));
            let posted = window.put_nbi(to, 0, &data);
            let posted = posted.and(window.put_inline_on(&stream, to, 0, &[1; 8]));
            let found = posted.and_then(|()| window.quiet(LIMIT));
            peer_failed(&found.unwrap_err(), 1);
            let on_stream = window.quiet_on(&stream);
            let on_stream = on_stream.and_then(|()| ctx.synchronize(&stream, LIMIT));
            drop(on_stream);
            for e in [
                window.put_nbi(to, 0, &data),
                window.put_inline(to, 0, &[1; 8]),
                window.put_nbi_on(&stream, to, 0, &data),
                window.put_inline_on(&stream, to, 0, &[1; 8]),
            ] {
                peer_failed(&e.unwrap_err(), 1);
            }
            assert!(stream.synchronize(LIMIT).unwrap());
            rank.barrier();
        });
    }
}
