//! The order of ready words that two queue pairs write to one slot. A receive with room for more
//! than an eager message writes a ready word with its address to the sender, by the queue pair that
//! posts it. A short message does not wait for that word: it may be taken, and another queue pair
//! may post the next receive of the slot, while the first word is lost on the wire and not yet sent
//! again. It must not arrive after the second one.

use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::gpu::MemoryKind;
use mp::{Kind, PathChoice, RecvOp, Source};
use vmlx5::fabric::faults::Faults;

use super::job::{Job, Member, Settings};
use crate::mp::pair::message;
use crate::sim::world::{LIMIT, Rank, play};

const TAG: u32 = 3;
const DEPTH: usize = 2;
const EAGER: usize = 64;
const ROOM: usize = 3000;
const MESSAGES: usize = 12 * DEPTH;
/// Longer than a NIC takes to retransmit, even twice.
const LULL: Duration = Duration::from_millis(300);

/// Longer than a word takes to arrive if it is not lost.
const MOMENT: Duration = Duration::from_millis(1);

/// The poster of a receive.
#[derive(Clone, Copy, Debug)]
enum Post {
    Cpu,
    Stream(usize),
    /// The CPU, from any rank.
    Any,
}

/// A message and its receive.
#[derive(Clone, Copy, Debug)]
struct Message {
    len: usize,
    room: usize,
    post: Post,
}

/// Draws messages that alternate between short and long in each slot.
fn draw(rng: &mut Rng) -> Vec<Message> {
    let one = |n: usize| {
        let short = (n / DEPTH).is_multiple_of(2);
        let post = match rng.u8(0..4) {
            0 => Post::Cpu,
            1 if !short => Post::Any,
            _ => Post::Stream(n / DEPTH % 2),
        };
        Message {
            len: if short { EAGER } else { ROOM },
            room: match !short && rng.u8(0..4) == 0 {
                true => EAGER,
                false => ROOM,
            },
            post,
        }
    };
    (0..MESSAGES).map(one).collect()
}

/// Sends drawn messages while the receiver's wire loses packets, ready words among them.
///
/// # Errors
/// The check that failed, with the seed.
pub fn run(seed: u64) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let settings = Settings {
        depth: DEPTH as u32,
        eager: EAGER,
        path: Some(PathChoice::Nic),
        ..Settings::draw(&mut rng)
    };
    let messages: Rc<[Message]> = draw(&mut rng).into();
    let job = Job::new(seed, 2, settings);
    let lossy = job.clone().on_a_wire(Faults {
        seed,
        loss: 0.2,
        ..Faults::default()
    });
    play(seed, 2, move |rank| match rank.me {
        0 => sends(&rank, job.join(&rank), &messages),
        _ => receives(lossy.join(&rank), &messages),
    })
}

fn sends(rank: &Rank, member: Member, messages: &[Message]) {
    let memory = member.ctx.alloc(MemoryKind::Pinned, ROOM).expect("memory");
    for (n, m) in messages.iter().enumerate() {
        memory.write(0, &message(n, m.len)).expect("written");
        // A late ready word has to arrive before the send reads the slot. A send that does not
        // announce its message reads it when it is posted, another one after the announcement.
        let announces = m.room < m.len || matches!(m.post, Post::Any);
        rank.pass(match m.len > EAGER && !announces {
            true => LULL,
            // Enough for the credit of the previous message, for which the announcement waits.
            false => MOMENT,
        });
        let data = memory.slice(0, m.len).expect("a slice");
        let send = member.ctx.isend(1, TAG, &data).expect("posted");
        if announces {
            rank.pause("mp0.progress", Duration::ZERO, LULL);
            rank.pass(LULL);
        }
        ended(send.wait(LIMIT), n, m);
    }
    drop(memory);
    member.leave();
}

fn receives(member: Member, messages: &[Message]) {
    let ctx = &member.ctx;
    let memory = ctx.alloc(MemoryKind::Pinned, 2 * ROOM).expect("memory");
    let streams = [(); 2].map(|()| ctx.gpu().stream().expect("a stream"));
    for (n, m) in messages.iter().enumerate() {
        // The receives of a slot alternate between two places, so that a write to the previous
        // place is found.
        let at = n / DEPTH % 2 * ROOM;
        let segment = [memory.slice(at, m.room).expect("a slice")];
        let recv = |from| RecvOp::new(from, TAG, &segment);
        let recv = match m.post {
            Post::Cpu => recv(Source::Rank(0)),
            Post::Any => recv(Source::Any),
            Post::Stream(s) => recv(Source::Rank(0)).on(&streams[s]),
        };
        let done = ctx.post_recv(&recv).expect("posted").wait(LIMIT);
        if ended(done, n, m) {
            let mut got = vec![0; m.len];
            memory.read(at, &mut got).expect("read");
            assert!(got == message(n, m.len), "message {n}, {m:?}");
        }
    }
    drop(memory);
    member.leave();
}

/// Checks the outcome of a request; returns whether it succeeded.
fn ended<T>(done: mp::Result<T>, n: usize, m: &Message) -> bool {
    let kind = done.map(drop).map_err(|e| e.kind());
    let want = match m.room < m.len {
        true => Err(Kind::Truncated),
        false => Ok(()),
    };
    assert_eq!(kind, want, "message {n}, {m:?}");
    want.is_ok()
}
