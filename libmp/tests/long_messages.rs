//! Long messages by mapped memory, from a stream, that are written into the memory of their receive: the
//! same programs by both paths.

#[path = "common/sim.rs"]
mod sim;

use gdsync::Status;
use mp::{Context, PathChoice, RecvOp, SendOp, Slice, Source};
use sim::gate::Gate;
use sim::{LARGE, LIMIT, Rank, SMALL, millis, pair, secs, slice};

/// So many bytes that one kernel waits and another copies.
const LONG: usize = 200_000;

fn filled(ctx: &Context, byte: u8, len: usize) -> Slice {
    let slice = slice(ctx, len);
    slice
        .memory()
        .write(slice.offset(), &vec![byte; len])
        .unwrap();
    slice
}

fn content(of: &Slice) -> Vec<u8> {
    let mut got = vec![0; of.len()];
    of.memory().read(of.offset(), &mut got).unwrap();
    got
}

/// Runs `body` on two ranks whose streams have exchanged a message under each tag.
fn warm(path: PathChoice, tags: u32, body: impl Fn(&Rank, &Context, u32) + Clone + 'static) {
    pair(
        move |b| b.path(path).depth(2).timeout(secs(2)),
        move |rank, ctx| {
            let (stream, other) = (ctx.gpu().stream().unwrap(), 1 - rank.me);
            for tag in 1..=tags {
                let first = match rank.me {
                    0 => ctx.isend_on(&stream, other, tag, &filled(ctx, 1, SMALL)),
                    _ => ctx.irecv_on(&stream, other, tag, &slice(ctx, SMALL)),
                };
                let first = first.unwrap();
                first.wait_on(&stream).unwrap();
                first.wait(LIMIT).unwrap();
            }
            rank.barrier();
            rank.pass(millis(20));
            body(rank, ctx, other);
        },
    );
}

/// The stream reaches the send after both ranks have given each other up; `cpu`: the CPU posts the
/// receive, so there are no lines.
fn late_send(path: PathChoice, len: usize, cpu: bool) {
    warm(path, 1, move |rank, ctx, other| {
        let stream = ctx.gpu().stream().unwrap();
        if rank.me == 0 {
            let gate = Gate::new(ctx.gpu());
            gate.hold(&stream);
            let sent = ctx
                .isend_on(&stream, other, 1, &filled(ctx, 9, len))
                .unwrap();
            rank.barrier();
            rank.barrier();
            rank.pass(secs(1));
            gate.open();
            assert!(stream.synchronize(LIMIT).unwrap());
            sent.wait(LIMIT).unwrap_err();
            rank.barrier();
            return;
        }
        rank.barrier();
        let into = slice(ctx, len);
        let segments = [into.clone()];
        let op = RecvOp::new(other, 1, &segments);
        let op = if cpu { op } else { op.on(&stream) };
        let got = ctx.prepare_recv(&op).unwrap();
        got.post().unwrap();
        got.wait_on(&stream).unwrap();
        got.wait(LIMIT).unwrap_err();
        into.memory().write(into.offset(), &vec![5; len]).unwrap();
        rank.barrier();
        rank.barrier();
        let got = content(&into);
        let wrong = got.iter().filter(|b| **b != 5).count();
        assert_eq!(
            wrong, 0,
            "bytes written into memory of a receive that has ended"
        );
    });
}

#[test]
fn send_that_its_stream_reaches_late_writes_no_receive_that_has_ended() {
    late_send(PathChoice::Nic, LARGE, false);
    late_send(PathChoice::Ipc, LARGE, true);
    for len in [LARGE, LONG] {
        late_send(PathChoice::Ipc, len, false);
    }
}

/// The receive of the first message is posted once that of the second, too short, has ended.
fn refused_behind(path: PathChoice, lens: [usize; 2]) {
    warm(path, 2, move |rank, ctx, other| {
        let stream = ctx.gpu().stream().unwrap();
        if rank.me == 0 {
            let data = [0, 1].map(|i| [filled(ctx, i as u8 + 2, lens[i])]);
            let all = [0, 1].map(|i| {
                ctx.prepare_send(&SendOp::new(other, i as u32 + 1, &data[i]))
                    .unwrap()
            });
            ctx.post_all_on(&stream, &all).unwrap();
            all[0].wait(LIMIT).unwrap();
            assert_eq!(
                all[1].wait(LIMIT).unwrap_err().status(),
                Some(Status::TRUNCATED)
            );
            return;
        }
        let short = ctx.irecv(other, 2, &slice(ctx, SMALL)).unwrap();
        assert_eq!(
            short.wait(LIMIT).unwrap_err().status(),
            Some(Status::TRUNCATED)
        );
        let into = slice(ctx, lens[0]);
        ctx.irecv(other, 1, &into).unwrap().wait(LIMIT).unwrap();
        assert_eq!(content(&into), vec![2; lens[0]]);
    });
}

#[test]
fn all_messages_of_a_call_are_announced_before_it_waits_for_a_receive() {
    refused_behind(PathChoice::Nic, [LARGE, LONG]);
    for lens in [[LARGE, LARGE], [LARGE, LONG], [LONG, LARGE], [LONG, LONG]] {
        refused_behind(PathChoice::Ipc, lens);
    }
}

/// A receive from any rank, of a stream, of a long message.
fn any_of_a_stream(path: PathChoice, len: usize) {
    warm(path, 1, move |rank, ctx, other| {
        let stream = ctx.gpu().stream().unwrap();
        if rank.me == 0 {
            let sent = ctx
                .isend_on(&stream, other, 1, &filled(ctx, 7, len))
                .unwrap();
            sent.wait(LIMIT).unwrap();
            return;
        }
        let into = slice(ctx, len);
        let got = ctx.irecv_on(&stream, Source::Any, 1, &into).unwrap();
        got.wait_on(&stream).unwrap();
        got.wait(LIMIT).unwrap();
        assert_eq!(content(&into), vec![7; len]);
    });
}

#[test]
fn receive_of_a_stream_from_any_rank_takes_a_long_message() {
    for len in [LARGE, LONG] {
        any_of_a_stream(PathChoice::Nic, len);
        any_of_a_stream(PathChoice::Ipc, len);
    }
}
