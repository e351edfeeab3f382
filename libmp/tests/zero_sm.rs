//! Zero-SM messages, on the threads and the GPU of the machine: which half is first, lengths, waits of
//! streams and of the CPU, drops, limits and refusals. `conformance` plays them under random schedules.

mod common;

use std::time::Duration;

use common::{pattern, ranks_with, read};
use gdsync::Stream;
use gdsync::gpu::MemoryKind;
use mp::{Builder, Context, Kind, Memory, PathChoice, RecvOp, Request, SendOp, Slice};

const LIMIT: Duration = Duration::from_secs(60);
const TAG: u32 = 7;
/// Lengths around the eager limit, which divides messages by slots from others.
const LENS: [usize; 8] = [0, 1, 8, 4095, 4096, 4097, 100_000, 1 << 20];

fn mapped(builder: Builder) -> Builder {
    builder.path(PathChoice::Ipc)
}

fn send(ctx: &Context, stream: &Stream, tag: u32, data: &Slice) -> Request {
    let data = std::slice::from_ref(data);
    let op = SendOp::new(1 - ctx.rank(), tag, data).on(stream);
    ctx.post_send(&op.zero_sm(true)).unwrap()
}

fn receive(ctx: &Context, stream: &Stream, tag: u32, into: &Slice) -> Request {
    let into = std::slice::from_ref(into);
    let op = RecvOp::new(1 - ctx.rank(), tag, into).on(stream);
    ctx.post_recv(&op.zero_sm(true)).unwrap()
}

/// Waits until the other rank has called this as often.
fn meet(ctx: &Context, word: &Memory) {
    let peer = 1 - ctx.rank();
    let one = word.slice(0, 1).unwrap();
    ctx.sendrecv((peer, 99, &one), (peer, 99, &one), LIMIT)
        .unwrap();
}

/// Which of the two halves of a message is posted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Send,
    Receive,
    Any,
}

/// Who waits for the receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Own,
    OtherStream,
    Cpu,
}

#[test]
fn messages_of_all_lengths_arrive_whichever_half_is_first_and_whoever_waits() {
    ranks_with(2, mapped, |ctx| {
        let me = ctx.rank();
        let [stream, other] = [0; 2].map(|_| ctx.gpu().stream().unwrap());
        let memory = ctx.alloc(MemoryKind::Device, 1 << 20).unwrap();
        let word = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        let mut round = 0;
        for first in [First::Send, First::Receive, First::Any] {
            for waits in [Waits::Own, Waits::OtherStream, Waits::Cpu] {
                for len in LENS {
                    round += 1;
                    let slice = memory.slice(0, len).unwrap();
                    let sends = me == round % 2;
                    memory
                        .write(
                            0,
                            &if sends {
                                pattern(0, round as usize, len)
                            } else {
                                vec![0; len]
                            },
                        )
                        .unwrap();
                    if sends && first == First::Receive || !sends && first == First::Send {
                        meet(&ctx, &word);
                    }
                    let request = match sends {
                        true => send(&ctx, &stream, TAG, &slice),
                        false => receive(&ctx, &stream, TAG, &slice),
                    };
                    if sends && first == First::Send || !sends && first == First::Receive {
                        meet(&ctx, &word);
                    }
                    match waits {
                        Waits::Own => request.wait_on(&stream).unwrap(),
                        Waits::OtherStream => request.wait_on(&other).unwrap(),
                        Waits::Cpu => assert_eq!(request.wait(LIMIT).unwrap().len, len as u64),
                    }
                    ctx.synchronize(&stream, LIMIT).unwrap();
                    ctx.synchronize(&other, LIMIT).unwrap();
                    let case = format!("{first:?} {waits:?} {len}");
                    let done = request.wait(LIMIT).unwrap();
                    assert_eq!((done.len, done.tag), (len as u64, TAG), "{case}");
                    if !sends {
                        assert!(
                            read(&memory, 0, len) == pattern(0, round as usize, len),
                            "{case}"
                        );
                    }
                }
            }
        }
    });
}
