//! Calls for several requests: one submission for all, and all or nothing.

#[path = "common/sim.rs"]
mod sim;

use gdsync::Stream;
use mp::{
    Builder, Context, Kind, NULL_RANK, Path, PathChoice, RecvOp, Request, SendOp, SizeSource,
    Slice, Source,
};
use sim::gate::Gate;
use sim::{LARGE, LIMIT, Rank, SMALL, by_nic, millis, play, secs, slice};

const RANKS: u32 = 4;

/// Runs `body` on all ranks.
fn all(body: impl Fn(&Rank, &Context) + Clone + 'static) {
    all_with(|b| b, body);
}

/// As [`all`], with contexts built by `build`.
fn all_with(
    build: impl Fn(Builder) -> Builder + Clone + 'static,
    body: impl Fn(&Rank, &Context) + Clone + 'static,
) {
    play(1, RANKS, move |rank| {
        let ctx = rank.open(&build);
        body(rank, &ctx);
        rank.barrier();
        ctx.close(LIMIT).unwrap();
    });
}

fn others(rank: &Rank) -> impl Iterator<Item = u32> + use<> {
    let me = rank.me;
    (0..RANKS).filter(move |other| *other != me)
}

fn payload(from: u32, to: u32, len: usize) -> Vec<u8> {
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
        data.memory().write(0, &payload(rank.me, to, len)).unwrap();
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
            assert_eq!(
                content(into),
                payload(*from, rank.me, self.len),
                "from {from}"
            );
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
                let other = (rank.me + 1) % RANKS;
                let mapped = ctx.path(other).is_some_and(|(path, _)| path == Path::Ipc);
                // The returns of credits are another one, from time to time. By mapped memory, kernels wait.
                let first = usize::from(!mapped);
                assert!((first..=first + 1).contains(&recvs.len()), "{recvs:?}");
                let sends = submissions(&stream, || {
                    ctx.wait_all_on(&stream, &messages.sends).unwrap();
                });
                // The stream itself copies to mapped memory, and is then behind the sends.
                assert_eq!(sends.len(), usize::from(!mapped), "{sends:?}");
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
                    assert_eq!(content(into), payload(*from, rank.me, len));
                }
                assert_eq!(content(&any), payload(last, rank.me, len));
                assert_eq!(content(&own), payload(rank.me, next, len));
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
            let [stream, other] = [0, 1].map(|_| ctx.gpu().stream().unwrap());
            let open = |count: usize| -> Vec<Request> {
                let one = |_| {
                    ctx.irecv_on(&stream, rank.peer(), 1, &slice(&ctx, len))
                        .unwrap()
                };
                (0..count).map(one).collect()
            };
            // Opens what later calls use: a rank that waits answers no other rank.
            let recv = open(1);
            drop(
                ctx.isend_on(&other, rank.peer(), 1, &slice(&ctx, len))
                    .unwrap(),
            );
            ctx.wait_all_on(&stream, &recv).unwrap();
            rank.progress_until(&ctx, "a message", || recv[0].test().unwrap().is_some());
            rank.barrier();
            for count in [3, DEPTH, DEPTH, 5, DEPTH, 1, DEPTH] {
                let recvs = open(count);
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

/// Two streams that first send and then receive do not wait for each other while each sends at most
/// one message more than half of the slots, although credits return in runs.
#[test]
fn streams_send_half_of_the_slots_and_one_before_they_receive() {
    for (seed, depth) in (0..12).zip([2, 4, 16].into_iter().cycle()) {
        play(seed, 2, move |rank| {
            let most = depth / 2 + 1;
            let ctx = rank.open(|b| b.depth(depth as u32).timeout(secs(20)));
            let (peer, stream) = (rank.peer(), ctx.gpu().stream().unwrap());
            let [data, into] = [(); 2].map(|()| slice(&ctx, SMALL));
            for count in [1, most - 1, most, 1, most].into_iter().filter(|n| *n > 0) {
                let sent = (0..count).map(|_| ctx.isend_on(&stream, peer, 7, &data).unwrap());
                drop(sent.collect::<Vec<_>>());
                let recvs = (0..count).map(|_| ctx.irecv_on(&stream, peer, 7, &into).unwrap());
                let recvs: Vec<_> = recvs.collect();
                match seed % 2 {
                    0 => ctx.wait_all_on(&stream, &recvs).unwrap(),
                    _ => recvs.iter().for_each(|recv| recv.wait_on(&stream).unwrap()),
                }
            }
            ctx.synchronize(&stream, LIMIT).unwrap();
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

/// Prepared sends and receives with all other ranks.
fn prepare(rank: &Rank, ctx: &Context, tag: u32, len: usize) -> Exchange {
    let into: Vec<_> = others(rank).map(|from| (from, slice(ctx, len))).collect();
    let recvs = into
        .iter()
        .map(|(from, into)| ctx.prepare_recv(&RecvOp::from((*from, tag, into))).unwrap());
    let recvs = recvs.collect();
    let sends = others(rank).map(|to| {
        let data = Exchange::data(rank, ctx, to, len);
        ctx.prepare_send(&SendOp::from((to, tag, &data))).unwrap()
    });
    let sends = sends.collect();
    Exchange {
        len,
        into,
        recvs,
        sends,
    }
}

impl Exchange {
    /// All requests, the sends first.
    fn requests(&mut self) -> Vec<Request> {
        self.sends.drain(..).chain(self.recvs.drain(..)).collect()
    }
}

#[test]
fn posts_to_several_ranks_are_one_submission() {
    for len in [SMALL, LARGE] {
        all_with(by_nic, move |rank, ctx| {
            let (stream, gate) = (ctx.gpu().stream().unwrap(), Gate::new(ctx.gpu()));
            for round in 0..40 {
                let mut messages = prepare(rank, ctx, 1, len);
                let requests = messages.requests();
                if round == 0 {
                    gate.hold(&stream);
                }
                // The first use of the stream opens its connections.
                let lines = submissions(&stream, || ctx.post_all_on(&stream, &requests).unwrap());
                // In front of the kernels that complete large sends, and behind them.
                let most = if len == SMALL { 1 } else { 2 };
                assert!((1..=most).contains(&lines.len()), "{lines:?}");
                gate.open();
                ctx.wait_all_on(&stream, &requests).unwrap();
                assert!(stream.synchronize(LIMIT).unwrap());
                messages.recvs = requests;
                messages.check(rank);
            }
            assert_eq!(ctx.error(), None);
        });
    }
}

/// The receives are posted, so the sends are whole: one list, without kernels.
#[test]
fn sends_above_the_eager_limit_whose_receives_are_posted_are_one_submission() {
    all_with(by_nic, move |rank, ctx| {
        let stream = ctx.gpu().stream().unwrap();
        for tag in [1, 1, 2] {
            let mut messages = prepare(rank, ctx, tag, LARGE);
            ctx.post_all_on(&stream, &messages.recvs).unwrap();
            assert!(stream.synchronize(LIMIT).unwrap());
            rank.barrier();
            rank.pass(millis(1));
            let sends = &messages.sends;
            let lines = submissions(&stream, || match tag {
                1 => ctx.post_all_on(&stream, sends).unwrap(),
                _ => sends.iter().for_each(|send| send.post_on(&stream).unwrap()),
            });
            let most = if tag == 1 { 1 } else { sends.len() };
            assert_eq!(lines.len(), most, "{lines:?}");
            let requests = messages.requests();
            ctx.wait_all_on(&stream, &requests).unwrap();
            assert!(stream.synchronize(LIMIT).unwrap());
            messages.recvs = requests;
            messages.check(rank);
        }
        assert_eq!(ctx.error(), None);
    });
}

/// Any rank, the null rank, this rank itself, pieces, strided pieces, lengths in words, two tags,
/// and requests that were prepared for the stream.
#[test]
fn requests_of_all_kinds_are_posted_at_once() {
    for len in [400, 40_000] {
        all(move |rank, ctx| {
            let stream = ctx.gpu().stream().unwrap();
            let length = slice(ctx, 8);
            let length = length.memory().region().word64(0).unwrap();
            for _ in 0..20 {
                length.store(len as u64 - 5).unwrap();
                let size = SizeSource::Word {
                    len: &length,
                    offset: None,
                };
                let (mut one, mut two) = (prepare(rank, ctx, 1, len), prepare(rank, ctx, 2, len));
                let (next, last) = rank.neighbours();
                let data = Exchange::data(rank, ctx, next, len);
                let into: [Slice; 5] = std::array::from_fn(|_| slice(ctx, 2 * len));
                let halves = [0, len].map(|at| into[0].memory().slice(at, len / 2).unwrap());
                let columns = into[1].memory().strided(0, 1, 2, len).unwrap();
                let rows = Exchange::data(rank, ctx, next, 2 * len);
                let rows = rows.memory().strided(0, 1, 2, len).unwrap();
                let room = |at: usize| [into[at].memory().slice(0, len).unwrap()];
                let (any, short, own) = (room(2), room(3), room(4));
                let whole = std::slice::from_ref(&data);
                let sends = [
                    SendOp::new(next, 3, whole),
                    SendOp::new(next, 4, whole).on(&stream),
                    SendOp::strided(next, 5, &rows).on(&stream),
                    SendOp::new(next, 6, whole).size(size),
                    SendOp::new(rank.me, 7, whole),
                    SendOp::new(NULL_RANK, 7, whole),
                ];
                let recvs = [
                    RecvOp::new(Source::Any, 3, &any),
                    RecvOp::new(last, 4, &halves),
                    RecvOp::strided(last, 5, &columns).on(&stream),
                    RecvOp::new(last, 6, &short).on(&stream),
                    RecvOp::new(rank.me, 7, &own),
                    RecvOp::new(NULL_RANK, 7, &own),
                ];
                let sends = sends.map(|send| ctx.prepare_send(&send).unwrap());
                let recvs = recvs.map(|recv| ctx.prepare_recv(&recv).unwrap());
                let mut requests: Vec<_> = sends.into_iter().chain(recvs).collect();
                requests.extend(two.requests());
                requests.extend(one.requests());
                ctx.post_all_on(&stream, &requests).unwrap();
                ctx.wait_all_on(&stream, &requests).unwrap();
                assert!(stream.synchronize(LIMIT).unwrap());
                mp::wait_all(&requests, LIMIT).unwrap();
                for (from, into) in one.into.iter().chain(&two.into) {
                    assert_eq!(content(into), payload(*from, rank.me, len));
                }
                let came = payload(last, rank.me, len);
                assert_eq!(content(&any[0]), came);
                assert_eq!(content(&short[0])[..len - 5], came[..len - 5]);
                assert_eq!(content(&halves[0]), came[..len / 2]);
                assert_eq!(content(&halves[1]), came[len / 2..]);
                assert_eq!(content(&own[0]), payload(rank.me, next, len));
                let (wide, came) = (content(&into[1]), payload(last, rank.me, 2 * len));
                assert!((0..2 * len).step_by(2).all(|at| wide[at] == came[at]));
            }
            assert_eq!(ctx.error(), None);
        });
    }
}

#[test]
fn one_refused_request_and_none_is_posted() {
    for len in [SMALL, LARGE] {
        all_with(by_nic, move |rank, ctx| {
            let [stream, other] = [0, 1].map(|_| ctx.gpu().stream().unwrap());
            let (next, last) = rank.neighbours();
            let mut messages = prepare(rank, ctx, 1, len);
            let mut requests = messages.requests();
            let data = Exchange::data(rank, ctx, next, len);
            let whole = std::slice::from_ref(&data);
            let prepare = |tag, stream| {
                ctx.prepare_send(&SendOp::new(next, tag, whole).on(stream))
                    .unwrap()
            };
            // For this stream, in another order than that of the call, and for another stream.
            let (second, first) = (prepare(2, &stream), prepare(2, &stream));
            requests.insert(0, first);
            requests.insert(1, second);
            requests.push(prepare(3, &other));
            let lines = submissions(&stream, || {
                let e = ctx.post_all_on(&stream, &requests).unwrap_err();
                assert_eq!(e.kind(), Kind::Invalid, "{e}");
            });
            assert_eq!(lines, [""; 0]);
            requests.pop().unwrap().cancel().unwrap();
            // A request that is prepared later on the stream, and not posted.
            let later = prepare(2, &stream);
            let e = ctx.post_all_on(&stream, &requests).unwrap_err();
            assert_eq!(e.kind(), Kind::Gdsync(gdsync::Kind::OutOfOrder), "{e}");
            later.cancel().unwrap();
            for request in &requests {
                assert_eq!(request.test().unwrap_err().kind(), Kind::NoSuchRequest);
            }
            rank.barrier();
            ctx.post_all_on(&stream, &requests).unwrap();
            let recvs = [0, 1].map(|_| ctx.irecv_on(&other, last, 2, &slice(ctx, len)).unwrap());
            ctx.wait_all_on(&other, &recvs).unwrap();
            ctx.wait_all_on(&stream, &requests).unwrap();
            assert!(stream.synchronize(LIMIT).unwrap() && other.synchronize(LIMIT).unwrap());
            messages.recvs = requests;
            messages.check(rank);
        });
    }
}

/// The receiver posts the receive of the large message when it has the short one, which has a length
/// word or strided pieces.
#[test]
fn short_send_that_needs_a_kernel_does_not_wait_for_the_receive_of_a_large_one() {
    let cases = [PathChoice::Nic, PathChoice::Ipc].map(|path| [(path, false), (path, true)]);
    for (path, strided) in cases.concat() {
        all_with(
            move |b| b.path(path),
            move |rank, ctx| {
                const TAG: u32 = 1;
                let stream = ctx.gpu().stream().unwrap();
                let (next, last) = rank.neighbours();
                let data = [SMALL, LARGE].map(|len| [Exchange::data(rank, ctx, next, len)]);
                let length = ctx.alloc(gdsync::gpu::MemoryKind::Pinned, 8).unwrap();
                let length = length.region().word64(0).unwrap();
                length.store(SMALL as u64).unwrap();
                let size = SizeSource::Word {
                    len: &length,
                    offset: None,
                };
                // The pieces are the whole memory.
                let pieces = data[0][0].memory().strided(0, 8, 8, SMALL / 8).unwrap();
                let short = match strided {
                    true => SendOp::strided(next, TAG, &pieces),
                    false => SendOp::new(next, TAG, &data[0]).size(size),
                };
                let requests = [
                    ctx.prepare_send(&short).unwrap(),
                    ctx.prepare_send(&SendOp::new(next, TAG, &data[1])).unwrap(),
                ];
                ctx.post_all_on(&stream, &requests).unwrap();
                for len in [SMALL, LARGE] {
                    let into = slice(ctx, len);
                    ctx.irecv(last, TAG, &into).unwrap().wait(LIMIT).unwrap();
                    assert_eq!(content(&into), payload(last, rank.me, len));
                }
                for request in &requests {
                    request.wait(LIMIT).unwrap();
                }
            },
        );
    }
}
