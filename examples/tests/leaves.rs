//! A rank leaves normally as soon as its sends are done, while others receive the messages late:
//! they receive all of them, without an error.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use mp::bootstrap::Local;
use mp::gdsync::Gpu;
use mp::gdsync::gpu::MemoryKind;
use mp::{Context, Slice};

const LIMIT: Duration = Duration::from_secs(60);
const TAG: u32 = 1;
/// Messages to each receiver; fewer than a channel has slots, so that sends complete without
/// receives.
const MESSAGES: usize = 12;
/// Bytes of a message that waits in a mailbox, and of one that is written directly to its receive.
const SHORT: usize = 300;
const LONG: usize = 50_000;

/// When receivers post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Post {
    /// After the sender has left.
    Late,
    /// Before it sends; they are waited for after it has left.
    Early,
}

fn byte(from: usize, message: usize, at: usize) -> u8 {
    ((from + 1) * 31 + message * 7 + at) as u8
}

fn filled(ctx: &Context, message: usize, len: usize) -> Slice {
    let memory = ctx.alloc(MemoryKind::Pinned, len).unwrap();
    let bytes: Vec<u8> = (0..len).map(|at| byte(0, message, at)).collect();
    memory.write(0, &bytes).unwrap();
    memory.all()
}

/// Rank 0 sends to the others and leaves. The others receive its messages by the CPU or on a stream
/// after it has left, and then exchange messages with each other.
fn play(len: usize, post: Post, on_stream: bool) {
    let gone = Barrier::new(3);
    let posted = Barrier::new(3);
    let rank = |bootstrap| {
        let gpu = Gpu::soft().unwrap();
        let builder = Context::builder().timeout(LIMIT).bootstrap(bootstrap);
        let ctx = builder.gpu(&gpu).build().unwrap();
        if ctx.rank() == 0 {
            posted.wait();
            let mut sends = Vec::new();
            for (message, to) in (0..MESSAGES).flat_map(|m| [(m, 1), (m, 2)]) {
                sends.push(ctx.isend(to, TAG, &filled(&ctx, message, len)).unwrap());
            }
            mp::wait_all(&sends, LIMIT).unwrap();
            drop(sends);
            ctx.close(LIMIT).unwrap();
            drop(ctx);
            gone.wait();
            return;
        }
        let stream = gpu.stream().unwrap();
        let into = ctx.alloc(MemoryKind::Pinned, MESSAGES * len).unwrap();
        let receive = |message: usize| {
            let into = into.slice(message * len, len).unwrap();
            match on_stream {
                true => ctx.irecv_on(&stream, 0, TAG, &into).unwrap(),
                false => ctx.irecv(0, TAG, &into).unwrap(),
            }
        };
        let mut receives = Vec::new();
        if post == Post::Early {
            receives.extend((0..MESSAGES).map(receive));
        }
        posted.wait();
        gone.wait();
        // The context detects that the peer has left.
        thread::sleep(Duration::from_millis(20));
        if post == Post::Late {
            receives.extend((0..MESSAGES).map(receive));
        }
        if on_stream {
            ctx.wait_all_on(&stream, &receives).unwrap();
            assert!(stream.synchronize(LIMIT).unwrap());
        }
        let dones = mp::wait_all(&receives, LIMIT).unwrap();
        assert!(dones.iter().all(|d| (d.source(), d.len) == (0, len as u64)));
        let mut got = vec![0; MESSAGES * len];
        into.read(0, &mut got).unwrap();
        for (message, bytes) in got.chunks(len).enumerate() {
            let right = (0..len).map(|at| byte(0, message, at));
            assert!(bytes.iter().copied().eq(right), "message {message}");
        }
        assert_eq!(ctx.error(), None);

        let other = 3 - ctx.rank();
        let memory = ctx.alloc(MemoryKind::Pinned, 2 * len).unwrap();
        let recv = ctx
            .irecv(other, TAG, &memory.slice(len, len).unwrap())
            .unwrap();
        let send = ctx
            .isend(other, TAG, &memory.slice(0, len).unwrap())
            .unwrap();
        mp::wait_all(&[recv, send], LIMIT).unwrap();
        ctx.close(LIMIT).unwrap();
    };
    thread::scope(|scope| {
        for bootstrap in Local::ranks(3) {
            scope.spawn(|| rank(bootstrap));
        }
    });
}

#[test]
fn eager_messages_are_received_after_their_sender_left() {
    for on_stream in [false, true] {
        play(SHORT, Post::Late, on_stream);
    }
}

#[test]
fn receives_posted_early_complete_after_their_sender_left() {
    for on_stream in [false, true] {
        play(SHORT, Post::Early, on_stream);
        // A stream receives a long message when it reaches the receive; until then the send is
        // blocked.
        play(LONG, Post::Early, on_stream);
    }
}
