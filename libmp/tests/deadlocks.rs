//! Programs that deadlock by construction, those of `docs/deadlocks.md`: the watchdog names what
//! each stream waits for, the time limit ends the wait with typed errors, and the corrected program
//! runs without an alarm.

#[path = "common/sim.rs"]
mod sim;

use std::array;
use std::time::Duration;

use gdsync::gpu::{MemoryKind, Stream};
use mp::{Builder, Context, Kind, Memory, Request, Slice, Source};
use sim::{LARGE, LIMIT, Rank, SMALL, by_nic, millis, peer_failed, play, recv_on, secs};

const WATCHDOG: Duration = secs(1);
/// When the ranks read the watchdog's alarms.
const LOOK: Duration = secs(2);
const TIMEOUT: Duration = secs(5);
/// Slack for rounds of the background work and of streams.
const SLACK: Duration = millis(20);

/// The variant of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Wrong,
    Right,
}
use Written::{Right, Wrong};

/// By the NIC: a stream that continues after its limit copies to mapped memory at once, which may
/// end the wait of another rank just before the limit of that one.
fn build(builder: Builder) -> Builder {
    let builder = by_nic(builder);
    builder.watchdog(WATCHDOG).timeout(TIMEOUT).depth(4)
}

/// Runs the deadlocking variant of this program, which must raise `alarms` alarms, and the
/// corrected one.
fn program(number: u32, ranks: u32, alarms: usize, body: fn(&Rank, Written)) {
    gds_sim::seeds(3, |seed| -> Result<(), String> {
        let run = play(seed, ranks, move |rank| body(rank, Wrong));
        let seen = run.warnings.alarms();
        if seen.len() != alarms {
            return Err(format!("{alarms} alarms expected: {seen:#?}"));
        }
        for rank in 0..ranks.min(2) {
            stands_in_the_page(number, rank, &seen)?;
        }
        let run = play(seed, ranks, move |rank| body(rank, Right));
        match run.warnings.all() {
            none if none.is_empty() => Ok(()),
            some => Err(format!("warnings without a cause: {some:#?}")),
        }
    });
}

/// Checks that section `number` of `docs/deadlocks.md` contains the alarms of the streams of
/// `rank`.
fn stands_in_the_page(number: u32, rank: u32, alarms: &[String]) -> Result<(), String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/deadlocks.md");
    let page = std::fs::read_to_string(page).map_err(|e| e.to_string())?;
    let mut sections = page.split("\n## ");
    let heading = format!("{number}. ");
    let section = sections.find(|section| section.starts_with(&heading));
    let section = section.ok_or(format!("no section {number}"))?;
    let who = format!("rank {rank}: stream ");
    let mine = alarms.iter().filter(|line| line.starts_with(&who));
    let mut alarms = mine.peekable();
    if alarms.peek().is_none() {
        return Ok(());
    }
    let quoted = |line: &str, alarm: &str| {
        let (_, what) = alarm.split_once(" has waited for ").unwrap_or_default();
        let (_, what) = what.split_once(": ").unwrap_or_default();
        line.trim_start().starts_with(&who) && line.ends_with(what)
    };
    match alarms.any(|alarm| section.lines().any(|line| quoted(line, alarm))) {
        true => Ok(()),
        false => Err(format!("section {number} does not say {alarms:#?}")),
    }
}

/// The expected wait of a stream.
struct Wait<'a> {
    stream: &'a Stream,
    peer: Source,
    tag: u32,
    number: u64,
    what: String,
}

fn to_send(stream: &Stream, peer: u32, tag: u32, number: u64) -> Wait<'_> {
    Wait {
        stream,
        peer: peer.into(),
        tag,
        number,
        what: format!(
            "receive from rank {peer}, tag {tag}, message {number}: no message has arrived; rank \
             {peer} is alive; check that both ranks use the same tags in the same order"
        ),
    }
}

/// A stream that waits for the receive of a long message.
fn to_receive(stream: &Stream, peer: u32, tag: u32, number: u64) -> Wait<'_> {
    Wait {
        what: format!(
            "send of {LARGE} bytes to rank {peer}, tag {tag}, message {number}: rank {peer} has \
             posted no receive; rank {peer} is alive; post the receive first: a message above the \
             eager limit (4096 bytes) holds its stream until then"
        ),
        ..to_send(stream, peer, tag, number)
    }
}

/// A stream that waits for a credit for a short message.
fn to_take(stream: &Stream, peer: u32, tag: u32, number: u64) -> Wait<'_> {
    Wait {
        what: format!(
            "send of {SMALL} bytes to rank {peer}, tag {tag}, message {number}: no credit has \
             arrived: rank {peer} has received 0 of the last 4 messages (Builder::depth); rank \
             {peer} is alive; check that it posts a receive for each message"
        ),
        ..to_send(stream, peer, tag, number)
    }
}

/// The watchdog names these waits and no others, at the right time.
fn named(rank: &Rank, ctx: &Context, expected: &[Wait<'_>]) {
    rank.pass(LOOK);
    named_now(rank, ctx, expected);
}

fn named_now(rank: &Rank, ctx: &Context, expected: &[Wait<'_>]) {
    let mut stuck = ctx.stuck();
    stuck.sort_by_key(|s| s.stream);
    assert_eq!(stuck.len(), expected.len(), "{stuck:?}");
    for (s, w) in stuck.iter().zip(expected) {
        let found = (s.rank, s.peer, s.tag, s.number, &*s.what, s.stream);
        let wanted = (rank.me, w.peer, w.tag, w.number, &*w.what, w.stream.id());
        assert_eq!(found, wanted);
        let stood = WATCHDOG..LOOK + SLACK;
        assert!(stood.contains(&s.since), "{s} in {LOOK:?}");
        let text = s.to_string();
        let (who, what) = text.split_once(" has waited for ").unwrap();
        let (_, what) = what.split_once(": ").unwrap();
        let matches = |line: &String| line.starts_with(who) && line.ends_with(what);
        let alarms = rank.warnings.alarms().into_iter().filter(matches);
        assert_eq!(alarms.count(), 1, "the warning of: {text}");
    }
}

/// After the time limit the streams continue, and the requests end with an error that names a rank.
fn given_up(rank: &Rank, ctx: &Context, streams: &[&Stream], requests: &[(&Request, u32)]) {
    let before = rank.host.now();
    for stream in streams {
        assert!(stream.synchronize(LIMIT).unwrap(), "{stream:?}");
    }
    let took = LOOK + rank.host.now().since(before);
    assert!(took >= TIMEOUT, "given up after {took:?}");
    assert!(took < 2 * TIMEOUT + SLACK, "given up after {took:?}");
    for (request, peer) in requests {
        peer_failed(&request.wait(LIMIT).unwrap_err(), *peer);
    }
    assert!(ctx.error().is_some());
    assert!(ctx.stuck().is_empty());
    rank.barrier();
}

/// All requests end with success.
fn done(rank: &Rank, ctx: &Context, streams: &[&Stream], requests: &[Request]) {
    for stream in streams {
        assert!(stream.synchronize(LIMIT).unwrap(), "{stream:?}");
    }
    for done in mp::wait_all(requests, LIMIT).unwrap() {
        assert!(done.len > 0);
    }
    assert_eq!(ctx.error(), None);
    assert!(ctx.stuck().is_empty());
    ctx.close(LIMIT).unwrap();
    rank.barrier();
}

fn buffers<const N: usize>(ctx: &Context, len: usize) -> (Memory, [Slice; N]) {
    let memory = ctx.alloc(MemoryKind::Pinned, N * len).unwrap();
    let slices = array::from_fn(|i| memory.slice(i * len, len).unwrap());
    (memory, slices)
}

/// 1: both ranks wait for the other's message before they send their own.
#[test]
fn wait_before_send_on_one_stream() {
    program(1, 2, 2, |rank, written| {
        let (ctx, peer) = (rank.open(build), rank.peer());
        let stream = ctx.gpu().stream().unwrap();
        let (_memory, [data, into]) = buffers(&ctx, SMALL);
        let recv = ctx.irecv_on(&stream, peer, 1, &into).unwrap();
        if written == Wrong {
            recv.wait_on(&stream).unwrap();
        }
        let send = ctx.isend_on(&stream, peer, 1, &data).unwrap();
        if written == Right {
            recv.wait_on(&stream).unwrap();
            return done(rank, &ctx, &[&stream], &[recv, send]);
        }
        named(rank, &ctx, &[to_send(&stream, peer, 1, 0)]);
        given_up(rank, &ctx, &[&stream], &[(&recv, peer), (&send, peer)]);
    });
}

/// 2: one rank sends A then B; the other receives B before it is ready for A.
#[test]
fn crossed_order_on_two_ranks() {
    program(2, 2, 2, |rank, written| {
        let (ctx, peer) = (rank.open(build), rank.peer());
        let stream = ctx.gpu().stream().unwrap();
        let (_memory, [a, b]) = buffers(&ctx, LARGE);
        if rank.me == 0 {
            let first = ctx.isend_on(&stream, 1, 1, &a).unwrap();
            let second = ctx.isend_on(&stream, 1, 2, &b).unwrap();
            if written == Right {
                return done(rank, &ctx, &[&stream], &[first, second]);
            }
            named(rank, &ctx, &[to_receive(&stream, peer, 1, 0)]);
            return given_up(rank, &ctx, &[&stream], &[(&first, peer), (&second, peer)]);
        }
        let second = ctx.irecv_on(&stream, 0, 2, &b).unwrap();
        if written == Wrong {
            second.wait_on(&stream).unwrap();
        }
        let first = recv_on(&ctx, &stream, 0, 1, &a);
        if written == Right {
            second.wait_on(&stream).unwrap();
            return done(rank, &ctx, &[&stream], &[first, second]);
        }
        named(rank, &ctx, &[to_send(&stream, peer, 2, 0)]);
        given_up(rank, &ctx, &[&stream], &[(&first, peer), (&second, peer)]);
    });
}

/// 3: more streams wait than the GPU has channels, and the work that would release them is enqueued
/// last.
#[test]
fn more_waiting_streams_than_channels() {
    const N: u32 = 8;
    program(3, 2, 8, |rank, written| {
        let (ctx, peer) = (rank.open(build), rank.peer());
        let (_memory, slices) = buffers::<9>(&ctx, SMALL);
        if rank.me == 1 {
            // Answers the peer's messages.
            let stream = ctx.gpu().stream().unwrap();
            let mut all = vec![recv_on(&ctx, &stream, peer, 100, &slices[8])];
            for tag in 0..N {
                all.push(ctx.isend_on(&stream, peer, tag, &slices[0]).unwrap());
            }
            if written == Wrong {
                // The stream waits for its turn, as intended: the other rank continues in time.
                all.iter().for_each(|r| assert!(r.wait(LIMIT).is_ok()));
                return rank.barrier();
            }
            return done(rank, &ctx, &[&stream], &all);
        }
        let streams = [(); N as usize].map(|()| ctx.gpu().stream().unwrap());
        let last = ctx.gpu().stream().unwrap();
        let receive = |tag| {
            ctx.irecv_on(&streams[tag], peer, tag as u32, &slices[tag])
                .unwrap()
        };
        let mut all = Vec::from(array::from_fn::<_, { N as usize }, _>(receive));
        if written == Right {
            // The work that releases the others is enqueued first, and one stream waits for all of
            // them.
            all.push(ctx.isend_on(&last, peer, 100, &slices[8]).unwrap());
            ctx.wait_all_on(&last, &all).unwrap();
            let streams: Vec<_> = streams.iter().chain([&last]).collect();
            return done(rank, &ctx, &streams, &all);
        }
        for (request, stream) in all.iter().zip(&streams).take(7) {
            request.wait_on(stream).unwrap();
        }
        let e = all[7].wait_on(&streams[7]).unwrap_err();
        assert_eq!(e.kind(), Kind::Gdsync(gdsync::Kind::TooManyWaits), "{e}");
        assert_eq!(e.limit(), Some(7));
        let text = e.to_string();
        assert!(text.contains("SoftOptions::channels"), "{text}");
        assert!(text.contains("with more waiting streams"), "{text}");
        let wait = |tag| to_send(&streams[tag], peer, tag as u32, 0);
        named(rank, &ctx, &array::from_fn::<_, 7, _>(wait));
        // The error came before the deadlock: the send that releases the streams still executes.
        all.push(ctx.isend_on(&last, peer, 100, &slices[8]).unwrap());
        for stream in &streams {
            assert!(stream.synchronize(LIMIT).unwrap());
        }
        all[7].wait_on(&streams[7]).unwrap();
        let streams: Vec<_> = streams.iter().chain([&last]).collect();
        done(rank, &ctx, &streams, &all);
    });
}

/// 4: a ring in which every rank sends large messages before any rank receives.
#[test]
fn a_ring_that_sends_before_it_receives() {
    program(4, 4, 4, |rank, written| {
        let ctx = rank.open(build);
        let (next, before) = rank.neighbours();
        let stream = ctx.gpu().stream().unwrap();
        let (_memory, [data, into]) = buffers(&ctx, LARGE);
        let (send, recv) = match written {
            Wrong => {
                let send = ctx.isend_on(&stream, next, 1, &data).unwrap();
                (send, ctx.irecv_on(&stream, before, 1, &into).unwrap())
            }
            Right => {
                let recv = ctx.irecv_on(&stream, before, 1, &into).unwrap();
                (ctx.isend_on(&stream, next, 1, &data).unwrap(), recv)
            }
        };
        recv.wait_on(&stream).unwrap();
        if written == Right {
            return done(rank, &ctx, &[&stream], &[send, recv]);
        }
        named(rank, &ctx, &[to_receive(&stream, next, 1, 0)]);
        given_up(rank, &ctx, &[&stream], &[(&send, next), (&recv, before)]);
    });
}

/// 5: a receive under another tag than the send's.
#[test]
fn a_receive_without_a_sender() {
    program(5, 2, 1, |rank, written| {
        let (ctx, peer) = (rank.open(build), rank.peer());
        let stream = ctx.gpu().stream().unwrap();
        let (_memory, [data]) = buffers(&ctx, SMALL);
        if rank.me == 0 {
            let send = ctx.isend_on(&stream, peer, 1, &data).unwrap();
            // Eager: the send has ended without a receive.
            assert_eq!(send.wait(LIMIT).unwrap().len, SMALL as u64);
            return rank.barrier();
        }
        let tag = if written == Wrong { 2 } else { 1 };
        let recv = recv_on(&ctx, &stream, peer, tag, &data);
        if written == Right {
            return done(rank, &ctx, &[&stream], &[recv]);
        }
        named(rank, &ctx, &[to_send(&stream, peer, 2, 0)]);
        given_up(rank, &ctx, &[&stream], &[(&recv, peer)]);
    });
}

/// 6: more small messages than there are credits, to a rank that first waits for the message behind
/// them.
#[test]
fn more_eager_messages_than_room() {
    program(6, 2, 2, |rank, written| {
        let (ctx, peer) = (rank.open(build), rank.peer());
        let stream = ctx.gpu().stream().unwrap();
        let (_memory, slices) = buffers::<6>(&ctx, SMALL);
        let (many, one) = slices.split_at(5);
        let mut all = Vec::new();
        if rank.me == 0 {
            let send = |data| ctx.isend_on(&stream, peer, 1, data).unwrap();
            all.extend(many.iter().map(send));
            all.push(ctx.isend_on(&stream, peer, 2, &one[0]).unwrap());
            if written == Right {
                return done(rank, &ctx, &[&stream], &all);
            }
            named(rank, &ctx, &[to_take(&stream, peer, 1, 4)]);
            // The sends that had a credit have ended.
            for sent in all.drain(..4) {
                sent.wait(LIMIT).unwrap();
            }
            return given_up(rank, &ctx, &[&stream], &[(&all[0], peer), (&all[1], peer)]);
        }
        let take = |tag, into| recv_on(&ctx, &stream, peer, tag, into);
        if written == Wrong {
            all.push(take(2, &one[0]));
        }
        all.extend(many.iter().map(|into| take(1, into)));
        if written == Right {
            all.push(take(2, &one[0]));
            return done(rank, &ctx, &[&stream], &all);
        }
        named(rank, &ctx, &[to_send(&stream, peer, 2, 0)]);
        // Messages that have arrived are still received.
        given_up(rank, &ctx, &[&stream], &[(&all[0], peer), (&all[5], peer)]);
        for taken in &all[1..5] {
            taken.wait(LIMIT).unwrap();
        }
    });
}

/// 7: the CPU waits for a stream that waits for a message that the CPU sends afterwards.
#[test]
fn synchronising_before_the_send() {
    program(7, 2, 1, |rank, written| {
        let (ctx, peer) = (rank.open(build), rank.peer());
        let stream = ctx.gpu().stream().unwrap();
        let (_memory, [data, into]) = buffers(&ctx, SMALL);
        if rank.me == 1 {
            // Answers each message.
            let question = ctx.irecv(peer, 1, &into).unwrap();
            if written == Wrong {
                let e = question.wait(LOOK).unwrap_err();
                assert_eq!((e.kind(), e.rank()), (Kind::Timeout, Some(peer)), "{e}");
                peer_failed(&question.wait(LIMIT).unwrap_err(), peer);
                return rank.barrier();
            }
            question.wait(LIMIT).unwrap();
            let answer = ctx.isend(peer, 1, &data).unwrap();
            return done(rank, &ctx, &[], &[answer]);
        }
        let answer = recv_on(&ctx, &stream, peer, 1, &into);
        if written == Right {
            let question = ctx.isend(peer, 1, &data).unwrap();
            return done(rank, &ctx, &[&stream], &[answer, question]);
        }
        assert!(!stream.synchronize(LOOK).unwrap());
        named_now(rank, &ctx, &[to_send(&stream, peer, 1, 0)]);
        given_up(rank, &ctx, &[&stream], &[(&answer, peer)]);
        let e = ctx.isend(peer, 1, &data).unwrap_err();
        assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e}");
    });
}

/// 8: with manual progress, a stream waits for a receive from any rank, and no thread calls
/// `progress`.
#[test]
fn manual_progress_without_a_call_of_progress() {
    program(8, 2, 0, |rank, written| {
        let ctx = rank.open_manual(build);
        let stream = ctx.gpu().stream().unwrap();
        let (_memory, [data]) = buffers(&ctx, SMALL);
        if rank.me == 1 {
            for barriers in [1, 2] {
                let send = ctx.isend(0, 1, &data).unwrap();
                send.wait(LIMIT).unwrap();
                rank.progress_until(&ctx, "the other", || rank.has_come(0, barriers));
            }
            return;
        }
        // Calls that wait do the background work.
        let first = ctx.irecv(Source::Any, 1, &data).unwrap();
        assert_eq!(first.wait(LIMIT).unwrap().source(), 1);
        let second = ctx.irecv(Source::Any, 1, &data).unwrap();
        second.wait_on(&stream).unwrap();
        rank.come();
        if written == Wrong {
            assert!(ctx.stuck().is_empty());
            assert!(!stream.synchronize(LOOK).unwrap());
            let stuck = ctx.stuck();
            assert_eq!(stuck.len(), 1);
            let found = &stuck[0];
            assert_eq!((found.rank, found.peer, found.tag), (0, Source::Any, 1));
            assert_eq!(found.stream, stream.id());
            assert_eq!(
                found.what,
                "receive from any rank, tag 1: a message has arrived, and the CPU of this rank has \
                 not matched it; call progress() (Progress::Manual)"
            );
            assert!((WATCHDOG..LOOK + SLACK).contains(&found.since), "{found}");
            stands_in_the_page(8, 0, &[found.to_string()]).unwrap();
        }
        rank.progress_until(&ctx, "the message", || stream.is_idle().unwrap());
        assert_eq!(second.wait(LIMIT).unwrap().source(), 1);
        rank.come();
    });
}
