//! Messages of a stream, of another one and of the CPU under one tag, by mapped memory: each waits for
//! its slot and for the messages before it, and for none behind it.

#[path = "common/sim.rs"]
mod sim;

use mp::{Context, PathChoice, RecvOp, Request, SendOp, Slice};
use sim::{LARGE, LIMIT, Rank, SMALL, millis, pair, slice};

const TAG: u32 = 1;

/// Runs `body` on two ranks, whose channels have two slots, after one message in each direction.
fn with_two_slots(body: impl Fn(&Rank, &Context, u32) + Clone + 'static) {
    pair(
        |b| b.path(PathChoice::Ipc).depth(2),
        move |rank, ctx| {
            let (stream, other) = (ctx.gpu().stream().unwrap(), 1 - rank.me);
            // It makes the flagged rooms and the credits.
            let first = match rank.me {
                0 => ctx.isend_on(&stream, other, TAG, &filled(ctx, 1, SMALL)),
                _ => ctx.irecv_on(&stream, other, TAG, &slice(ctx, SMALL)),
            };
            let first = first.unwrap();
            first.wait_on(&stream).unwrap();
            first.wait(LIMIT).unwrap();
            rank.barrier();
            rank.pass(millis(20));
            body(rank, ctx, other);
        },
    );
}

fn filled(ctx: &Context, byte: u8, len: usize) -> Slice {
    let slice = slice(ctx, len);
    let bytes = vec![byte; len];
    slice.memory().write(slice.offset(), &bytes).unwrap();
    slice
}

fn content(of: &Slice) -> Vec<u8> {
    let mut got = vec![0; of.len()];
    of.memory().read(of.offset(), &mut got).unwrap();
    got
}

fn wait_all<'r>(requests: impl IntoIterator<Item = &'r Request>) {
    for request in requests {
        request.wait(LIMIT).unwrap();
    }
}

/// Receives messages of these lengths on a stream; message `i` has bytes of value `i + 2`.
fn receive(ctx: &Context, from: u32, lens: &[usize]) {
    let stream = ctx.gpu().stream().unwrap();
    let into: Vec<Slice> = lens.iter().map(|len| slice(ctx, *len)).collect();
    let post = |into| {
        let request = ctx.irecv_on(&stream, from, TAG, into).unwrap();
        request.wait_on(&stream).unwrap();
        request
    };
    let all: Vec<Request> = into.iter().map(post).collect();
    wait_all(&all);
    for (i, slice) in into.iter().enumerate() {
        assert_eq!(
            content(slice),
            vec![i as u8 + 2; slice.len()],
            "message {i}"
        );
    }
}

/// When the first of three messages is posted.
#[derive(Clone, Copy, PartialEq)]
enum Posted {
    Before,
    Later,
    LaterOnAnotherStream,
}

/// The first of three messages is by the CPU or another stream, and the third has its slot.
fn first_of_three(len: usize, by_cpu: bool, posted: Posted) {
    with_two_slots(move |rank, ctx, other| {
        let lens = [len, SMALL, SMALL];
        if rank.me == 1 {
            rank.barrier();
            return receive(ctx, other, &lens);
        }
        let [stream, second] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
        let data = [0, 1, 2].map(|i| [filled(ctx, i as u8 + 2, lens[i])]);
        let op = SendOp::new(other, TAG, &data[0]);
        let op = if by_cpu { op } else { op.on(&second) };
        let first = ctx.prepare_send(&op).unwrap();
        if posted == Posted::Before {
            first.post().unwrap();
        }
        let rest = [1, 2].map(|i| ctx.isend_on(&stream, other, TAG, &data[i][0]).unwrap());
        match posted {
            Posted::Before => {}
            Posted::Later => first.post().unwrap(),
            Posted::LaterOnAnotherStream => first.post_on(&second).unwrap(),
        }
        rank.barrier();
        wait_all([&first].into_iter().chain(&rest));
    });
}

#[test]
fn large_message_of_the_cpu_does_not_wait_for_a_later_one_of_a_stream() {
    first_of_three(LARGE, true, Posted::Before);
}

#[test]
fn message_that_the_cpu_posts_later_does_not_wait_for_the_next_in_its_slot() {
    first_of_three(SMALL, true, Posted::Later);
}

#[test]
fn message_that_another_stream_posts_later_does_not_wait_for_the_next_in_its_slot() {
    first_of_three(SMALL, true, Posted::LaterOnAnotherStream);
    for len in [SMALL, LARGE] {
        first_of_three(len, false, Posted::Later);
    }
}

/// The peer's stream returns the credit only behind its large send.
#[test]
fn ready_word_of_a_call_is_in_front_of_a_message_of_the_call_that_waits() {
    with_two_slots(|rank, ctx, other| {
        const LARGE_TAG: u32 = 2;
        let stream = ctx.gpu().stream().unwrap();
        if rank.me == 1 {
            let large = filled(ctx, 9, LARGE);
            let sent = ctx.isend_on(&stream, other, LARGE_TAG, &large).unwrap();
            let into = slice(ctx, SMALL);
            let all = [0, 1, 2].map(|_| {
                let request = ctx.irecv_on(&stream, other, TAG, &into).unwrap();
                request.wait_on(&stream).unwrap();
                request
            });
            rank.barrier();
            return wait_all([&sent].into_iter().chain(&all));
        }
        let data = [filled(ctx, 2, SMALL)];
        let before = [0, 1].map(|_| ctx.isend_on(&stream, other, TAG, &data[0]).unwrap());
        let into = [slice(ctx, LARGE)];
        let call = [
            ctx.prepare_recv(&RecvOp::new(other, LARGE_TAG, &into))
                .unwrap(),
            ctx.prepare_send(&SendOp::new(other, TAG, &data)).unwrap(),
        ];
        ctx.post_all_on(&stream, &call).unwrap();
        call[0].wait_on(&stream).unwrap();
        rank.barrier();
        wait_all(before.iter().chain(&call));
        assert_eq!(content(&into[0]), vec![9; LARGE]);
    });
}

#[test]
fn message_of_two_segments_is_in_front_of_the_next_in_its_slot() {
    with_two_slots(|rank, ctx, other| {
        let half = SMALL / 2;
        if rank.me == 1 {
            return receive(ctx, other, &[2 * half, SMALL, SMALL]);
        }
        let stream = ctx.gpu().stream().unwrap();
        let two = [filled(ctx, 2, half), filled(ctx, 2, half)];
        let [three, four] = [3, 4].map(|byte| [filled(ctx, byte, SMALL)]);
        let prepare = |data: &[Slice]| ctx.prepare_send(&SendOp::new(other, TAG, data)).unwrap();
        let all = [prepare(&two), prepare(&three), prepare(&four)];
        ctx.post_all_on(&stream, &all).unwrap();
        wait_all(&all);
    });
}
