//! Calls for several requests: one submission for all, and all or nothing.

#[path = "common/sim.rs"]
mod sim;

use gdsync::Stream;
use mp::{Context, Kind, NULL_RANK, RecvOp, Request, Slice, Source};
use sim::gate::Gate;
use sim::{LARGE, LIMIT, Rank, SMALL, millis, play, slice};

const RANKS: u32 = 4;

/// Runs `body` on all ranks.
fn all(body: impl Fn(&Rank, &Context) + Clone + 'static) {
    play(1, RANKS, move |rank| {
        let ctx = rank.open(|b| b);
        body(rank, &ctx);
        rank.barrier();
        ctx.close(LIMIT).unwrap();
    });
}

fn others(rank: &Rank) -> impl Iterator<Item = u32> + use<> {
    let me = rank.me;
    (0..RANKS).filter(move |other| *other != me)
}

fn said(from: u32, to: u32, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 7) as u8 ^ (16 * from + to) as u8)
        .collect()
}

fn content(of: &Slice) -> Vec<u8> {
    let mut got = vec![0; of.len()];
    of.memory().read(of.offset(), &mut got).unwrap();
    got
}

/// The heads of what the call submits to the stream, kernels of messages excluded.
fn submissions(stream: &Stream, call: impl FnOnce()) -> Vec<String> {
    stream.gpu().capture_trace();
    call();
    let head = format!("stream {}: ", stream.id());
    let mut lines = stream.gpu().finish_trace();
    lines.retain(|line| line.starts_with(&head));
    lines
}

/// A message of `len` bytes in each direction with every other rank, and with this rank itself.
struct Exchange {
    len: usize,
    into: Vec<(u32, Slice)>,
    recvs: Vec<Request>,
    sends: Vec<Request>,
}

impl Exchange {
    fn data(rank: &Rank, ctx: &Context, to: u32, len: usize) -> Slice {
        let data = slice(ctx, len);
        data.memory().write(0, &said(rank.me, to, len)).unwrap();
        data
    }

    fn on(rank: &Rank, ctx: &Context, stream: &Stream, tag: u32, len: usize) -> Exchange {
        let into: Vec<_> = others(rank).map(|from| (from, slice(ctx, len))).collect();
        let recvs = into
            .iter()
            .map(|(from, into)| ctx.irecv_on(stream, *from, tag, into).unwrap());
        let recvs = recvs.collect();
        let sends = others(rank).map(|to| {
            let data = Exchange::data(rank, ctx, to, len);
            ctx.isend_on(stream, to, tag, &data).unwrap()
        });
        let sends = sends.collect();
        Exchange {
            len,
            into,
            recvs,
            sends,
        }
    }

    fn check(&self, rank: &Rank) {
        for request in self.recvs.iter().chain(&self.sends) {
            assert_eq!(request.wait(LIMIT).unwrap().len, self.len as u64);
        }
        for (from, into) in &self.into {
            assert_eq!(content(into), said(*from, rank.me, self.len), "from {from}");
        }
    }
}

#[test]
fn waits_for_receives_and_sends_are_one_submission() {
    for len in [SMALL, LARGE] {
        all(move |rank, ctx| {
            let stream = ctx.gpu().stream().unwrap();
            // More than the depth of a mailbox: credits are returned.
            for _ in 0..40 {
                let messages = Exchange::on(rank, ctx, &stream, 1, len);
                let recvs = submissions(&stream, || {
                    ctx.wait_all_on(&stream, &messages.recvs).unwrap();
                });
                // The returns of credits are another one, from time to time.
                assert!((1..=2).contains(&recvs.len()), "{recvs:?}");
                let sends = submissions(&stream, || {
                    ctx.wait_all_on(&stream, &messages.sends).unwrap();
                });
                assert_eq!(sends.len(), 1, "{sends:?}");
                assert!(stream.synchronize(LIMIT).unwrap());
                messages.check(rank);
            }
            assert_eq!(ctx.error(), None);
        });
    }
}

/// Requests of the CPU, of other streams and of this one, pieces, any rank, the null rank, this
/// rank itself, ended requests, and one request twice.
#[test]
fn a_stream_waits_for_requests_of_all_kinds_at_once() {
    for len in [SMALL, LARGE] {
        all(move |rank, ctx| {
            let [stream, other] = [0, 1].map(|_| ctx.gpu().stream().unwrap());
            for _ in 0..10 {
                let here = Exchange::on(rank, ctx, &stream, 1, len);
                let there = Exchange::on(rank, ctx, &other, 2, len);
                let (next, last) = rank.neighbours();
                let any = slice(ctx, len);
                let pieces = slice(ctx, 2 * len);
                let halves = [0, len].map(|at| pieces.memory().slice(at, len / 2).unwrap());
                let columns = slice(ctx, 2 * len).memory().strided(0, 1, 2, len).unwrap();
                let strided = RecvOp::strided(last, 5, &columns).on(&stream);
                let data = Exchange::data(rank, ctx, next, len);
                let own = slice(ctx, len);
                let ended = ctx.irecv(NULL_RANK, 1, &own).unwrap();
                let mut requests = vec![
                    ctx.irecv(Source::Any, 3, &any).unwrap(),
                    ctx.irecvv_on(&stream, last, 4, &halves).unwrap(),
                    ctx.irecv_on(&stream, rank.me, 6, &own).unwrap(),
                    ctx.post_recv(&strided).unwrap(),
                    ctx.isend(next, 3, &data).unwrap(),
                    ctx.isend_on(&other, next, 4, &data).unwrap(),
                    ctx.isend_on(&stream, next, 5, &data).unwrap(),
                    ctx.isend_on(&stream, rank.me, 6, &data).unwrap(),
                    ended,
                ];
                requests.extend(here.recvs.into_iter().chain(here.sends));
                requests.extend(there.recvs.into_iter().chain(there.sends));
                ctx.wait_all_on(&stream, &requests).unwrap();
                ctx.wait_all_on(&stream, &requests).unwrap();
                assert!(stream.synchronize(LIMIT).unwrap());
                mp::wait_all(&requests, LIMIT).unwrap();
                for (from, into) in here.into.iter().chain(&there.into) {
                    assert_eq!(content(into), said(*from, rank.me, len));
                }
                assert_eq!(content(&any), said(last, rank.me, len));
                assert_eq!(content(&own), said(rank.me, next, len));
            }
            assert_eq!(ctx.error(), None);
        });
    }
}

/// As many messages of a tag as the mailbox has slots: the last of them are sent only when the
/// credits of earlier messages are returned, which the stream must do before it waits.
#[test]
fn credits_are_returned_before_the_stream_waits_for_a_message_that_needs_them() {
    const DEPTH: usize = 16;
    for len in [SMALL, LARGE] {
        play(1, 2, move |rank| {
            // The library returns no credits meanwhile.
            let ctx = rank.open_manual(|b| b.depth(DEPTH as u32));
            let stream = ctx.gpu().stream().unwrap();
            let open = |count: usize| -> Vec<Request> {
                let one = |_| {
                    ctx.irecv_on(&stream, rank.peer(), 1, &slice(&ctx, len))
                        .unwrap()
                };
                (0..count).map(one).collect()
            };
            for count in [3, DEPTH, DEPTH, 5, DEPTH, 1, DEPTH] {
                let recvs = open(count);
                let other = ctx.gpu().stream().unwrap();
                let sends = (0..count).map(|_| {
                    ctx.isend_on(&other, rank.peer(), 1, &slice(&ctx, len))
                        .unwrap()
                });
                let sends: Vec<_> = sends.collect();
                ctx.wait_all_on(&stream, &recvs).unwrap();
                assert!(stream.synchronize(LIMIT).unwrap());
                drop(sends);
            }
            rank.barrier();
        });
    }
}

#[test]
fn one_refused_request_and_the_stream_waits_for_none() {
    for len in [SMALL, LARGE] {
        all(move |rank, ctx| {
            let (stream, gate) = (ctx.gpu().stream().unwrap(), Gate::new(ctx.gpu()));
            let messages = Exchange::on(rank, ctx, &stream, 1, len);
            assert!(stream.synchronize(LIMIT).is_ok());
            let unposted = slice(ctx, len);
            let unposted = RecvOp::from((rank.neighbours().0, 2, &unposted));
            let unposted = ctx.prepare_recv(&unposted).unwrap();
            let mut requests = messages.recvs;
            requests.push(unposted);
            let lines = submissions(&stream, || {
                let e = ctx.wait_all_on(&stream, &requests).unwrap_err();
                assert_eq!(e.kind(), Kind::NoSuchRequest, "{e}");
            });
            assert_eq!(lines, [""; 0]);
            requests.pop().unwrap().cancel().unwrap();
            // The receives can be waited for.
            gate.hold(&stream);
            ctx.wait_all_on(&stream, &requests).unwrap();
            rank.pass(millis(5));
            gate.open();
            assert!(stream.synchronize(LIMIT).unwrap());
            Exchange {
                recvs: requests,
                ..messages
            }
            .check(rank);
        });
    }
}
