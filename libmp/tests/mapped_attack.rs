//! Messages between ranks of one host by mapped memory, in orders that few programs have: streams that
//! wait for each other's receives, and peers and slots at the limits.

#[path = "common/sim.rs"]
mod sim;

use gdsync::gpu::{Condition, Stream};
use mp::{Builder, Context, PathChoice, RecvOp, Request, SendOp};
use sim::{LARGE, LIMIT, Rank, SMALL, play, recv, recv_on, secs, send, slice};

/// The tag of the message for which a stream waits that did not post its receive.
const LENT: u32 = 1;
const REPLY: u32 = 2;
const OTHER: u32 = 3;

fn mapped(builder: Builder) -> Builder {
    builder.path(PathChoice::Ipc).timeout(secs(5))
}

/// Rank 0 posts a receive on one stream, which then waits in `block`, until rank 1 does `free`. Another
/// stream, or the CPU, waits for that receive, and then rank 1 is free to continue.
fn lends(
    block: impl Fn(&Rank, &Context, &Stream, &Stream) + Copy + 'static,
    free: impl Fn(&Rank, &Context) + Copy + 'static,
) {
    for by_cpu in [false, true] {
        for seed in 1..4 {
            let run = play(seed, 2, move |rank| {
                let ctx = rank.open(mapped);
                if rank.me == 1 {
                    for _ in 0..2 {
                        send(&ctx, 0, LENT, SMALL);
                    }
                    recv(&ctx, 0, REPLY, SMALL);
                    free(rank, &ctx);
                    return rank.barrier();
                }
                let [poster, other] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
                let into = slice(&ctx, SMALL);
                // From now on, the stream that posts a receive takes its message in.
                recv_on(&ctx, &poster, 1, LENT, &into).wait(LIMIT).unwrap();
                let third = ctx.gpu().stream().unwrap();
                let lent = ctx.irecv_on(&poster, 1, LENT, &into).unwrap();
                block(rank, &ctx, &poster, &third);
                match by_cpu {
                    true => _ = lent.wait(LIMIT).unwrap(),
                    false => lent.wait_on(&other).unwrap(),
                }
                let reply = slice(&ctx, SMALL);
                let reply = ctx.isend_on(&other, 1, REPLY, &reply).unwrap();
                reply.wait(LIMIT).unwrap();
                for stream in [&poster, &other, &third] {
                    ctx.synchronize(stream, LIMIT).unwrap();
                }
                rank.barrier();
            });
            assert!(run.warnings.all().is_empty(), "{:?}", run.warnings.all());
        }
    }
}

/// The stream has a mark for the receive under the other tag, whose messages it has not taken in before.
#[test]
fn stream_that_waits_for_a_receive_with_a_mark_marks_the_others() {
    lends(
        |_, ctx, poster, _| drop(recv_on(ctx, poster, 1, OTHER, &slice(ctx, SMALL))),
        |_, ctx| send(ctx, 0, OTHER, SMALL),
    );
}

#[test]
fn stream_that_waits_for_the_receive_of_a_send_marks_its_receives() {
    lends(
        |_, ctx, poster, _| drop(ctx.isend_on(poster, 1, OTHER, &slice(ctx, LARGE)).unwrap()),
        |_, ctx| recv(ctx, 0, OTHER, LARGE),
    );
}

#[test]
fn stream_that_waits_for_credit_marks_its_receives() {
    const DEPTH: usize = 16;
    lends(
        |_, ctx, poster, _| {
            let data = slice(ctx, SMALL);
            for _ in 0..=DEPTH {
                drop(ctx.isend_on(poster, 1, OTHER, &data).unwrap());
            }
        },
        |_, ctx| {
            for _ in 0..=DEPTH {
                recv(ctx, 0, OTHER, SMALL);
            }
        },
    );
}

#[test]
fn stream_that_waits_for_a_message_of_another_stream_marks_its_receives() {
    lends(
        |_, ctx, poster, third| {
            let other = recv_on(ctx, third, 1, OTHER, &slice(ctx, SMALL));
            other.wait_on(poster).unwrap();
        },
        |_, ctx| send(ctx, 0, OTHER, SMALL),
    );
}

/// As above, for a send of another stream, which waits for its receive.
#[test]
fn stream_that_waits_for_a_send_of_another_stream_marks_its_receives() {
    lends(
        |_, ctx, poster, third| {
            let data = slice(ctx, LARGE);
            let other = ctx.isend_on(third, 1, OTHER, &data).unwrap();
            other.wait_on(poster).unwrap();
        },
        |_, ctx| recv(ctx, 0, OTHER, LARGE),
    );
}

/// A word of rank 1 is stored by a message, which the CPU takes in.
#[test]
fn stream_that_waits_for_a_word_marks_its_receives() {
    lends(
        |_, ctx, poster, _| {
            let word = slice(ctx, SMALL);
            word.memory().write(0, &[0; SMALL]).unwrap();
            drop(ctx.irecv(1, OTHER, &word).unwrap());
            ctx.wait_value_on(poster, 1, &word, Condition::Eq, 1)
                .unwrap();
        },
        |_, ctx| {
            let one = slice(ctx, SMALL);
            one.memory().write(0, &1_u64.to_le_bytes()).unwrap();
            ctx.isend(0, OTHER, &one).unwrap().wait(LIMIT).unwrap();
        },
    );
}

/// One call posts a receive and a send that waits for its own.
#[test]
fn call_that_posts_a_send_that_waits_marks_its_receives() {
    for seed in 1..4 {
        let run = play(seed, 2, move |rank| {
            let ctx = rank.open(mapped);
            if rank.me == 1 {
                for _ in 0..2 {
                    send(&ctx, 0, LENT, SMALL);
                }
                recv(&ctx, 0, REPLY, SMALL);
                recv(&ctx, 0, OTHER, 300_000);
                return rank.barrier();
            }
            let [poster, other] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
            let (into, from) = ([slice(&ctx, SMALL)], [slice(&ctx, 300_000)]);
            recv_on(&ctx, &poster, 1, LENT, &into[0])
                .wait(LIMIT)
                .unwrap();
            let lent = ctx.prepare_recv(&RecvOp::new(1, LENT, &into)).unwrap();
            let sent = ctx.prepare_send(&SendOp::new(1, OTHER, &from)).unwrap();
            let requests = [lent, sent];
            ctx.post_all_on(&poster, &requests).unwrap();
            let [lent, sent] = requests;
            lent.wait_on(&other).unwrap();
            let reply = ctx.isend_on(&other, 1, REPLY, &slice(&ctx, SMALL)).unwrap();
            for request in [&lent, &reply, &sent] {
                request.wait(LIMIT).unwrap();
            }
            rank.barrier();
        });
        assert!(run.warnings.all().is_empty(), "{:?}", run.warnings.all());
    }
}

/// A mark is stored for two receives when the stream waits for the first. The stream has then no receive
/// without a mark, and later receives that it posts and takes in need none. The kernel that waits for the
/// message stores the mark if the receive has one segment, else a memory operation in front of it does.
#[test]
fn marked_receive_that_its_stream_takes_in_is_counted_no_more() {
    for (segments, marks) in [(1, 0), (2, 1)] {
        count_marks(segments, marks);
    }
}

fn count_marks(segments: usize, marks: usize) {
    let run = play(1, 2, move |rank| {
        let ctx = rank.open(mapped);
        if rank.me == 1 {
            for _ in 0..5 {
                send(&ctx, 0, LENT, SMALL);
            }
            return rank.barrier();
        }
        let [poster, _other] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
        let into = slice(&ctx, SMALL);
        let parts = [(); 2].map(|()| slice(&ctx, SMALL / 2));
        let parts = if segments == 1 {
            std::slice::from_ref(&into)
        } else {
            &parts
        };
        let stores = |recv: &Request| {
            poster.gpu().capture_trace();
            recv.wait_on(&poster).unwrap();
            let lines = poster.gpu().finish_trace();
            let is_store = |line: &&String| line.starts_with("write64");
            lines.iter().filter(is_store).count()
        };
        recv_on(&ctx, &poster, 1, LENT, &into).wait(LIMIT).unwrap();
        let post = || {
            let request = ctx.prepare_recv(&RecvOp::new(1, LENT, parts)).unwrap();
            let requests = [request];
            ctx.post_all_on(&poster, &requests).unwrap();
            let [request] = requests;
            request
        };
        let [first, second] = [post(), post()];
        assert_eq!(stores(&first), marks);
        for _ in 0..2 {
            assert_eq!(stores(&post()), 0);
        }
        assert_eq!(stores(&second), 0);
        ctx.synchronize(&poster, LIMIT).unwrap();
        rank.barrier();
    });
    assert!(run.warnings.all().is_empty(), "{:?}", run.warnings.all());
}
