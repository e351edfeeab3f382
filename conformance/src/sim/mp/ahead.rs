//! A sender's stream that is ahead of its receiver. It sends more messages than the slots of their
//! tag, so that it waits for credits, and the sender overwrites each payload as soon as the send has
//! ended. Then a receive that the CPU waits for ends while its stream waits for the next message.

use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::gpu::MemoryKind;
use mp::{Memory, Request};

use super::Wire;
use super::job::{Job, Member, Settings};
use crate::mp::pair::message;
use crate::sim::world::{LIMIT, Rank, play};

const TAG: u32 = 3;
/// Tags of the message for which the CPU waits, of the one for which its stream waits, and of the
/// CPU's message in between.
const TAGS: [u32; 3] = [TAG, 4, 5];
const ROUNDS: usize = 4;
/// Longer than a stream takes for all that it can do.
const LULL: Duration = Duration::from_millis(2);

/// What both ranks know.
struct Plan {
    /// Messages of a round, twice the slots or more.
    count: usize,
    /// By round: the length of its messages.
    lens: [usize; ROUNDS],
    /// By round: the rank that begins late.
    late: [usize; ROUNDS],
    /// Memory of payloads.
    kind: MemoryKind,
}

/// Runs the messages.
///
/// # Errors
/// The check that failed, with the seed.
pub fn run(seed: u64, wire: Wire) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let settings = Settings {
        depth: 1 << rng.u32(1..=3),
        ..Settings::draw(&mut rng)
    };
    let eager = settings.eager;
    // Below and above the eager limit, and above all rooms.
    let lens = [1, eager, eager + 1, 3000, 9000];
    let plan = Rc::new(Plan {
        count: 2 * settings.depth as usize + rng.usize(0..3),
        lens: [(); ROUNDS].map(|()| lens[rng.usize(0..lens.len())]),
        late: [(); ROUNDS].map(|()| rng.usize(0..2)),
        kind: [MemoryKind::Pinned, MemoryKind::Device][rng.usize(0..2)],
    });
    let job = Job::new(seed, 2, settings).over(wire);
    play(seed, 2, move |rank| {
        let member = job.join(&rank);
        match rank.me {
            0 => sends(&rank, member, &plan),
            _ => receives(&rank, member, &plan),
        }
    })
}

impl Plan {
    /// Memory for the messages of a round, by number.
    fn alloc(&self, member: &Member) -> Vec<Memory> {
        let longest = self.lens.into_iter().max().unwrap_or(1);
        let one = |_| member.ctx.alloc(self.kind, longest).expect("memory");
        (0..self.count).map(one).collect()
    }

    /// The bytes of a message.
    fn bytes(&self, round: usize, n: usize) -> Vec<u8> {
        message(round * self.count + n + 1, self.lens[round])
    }

    fn begin(&self, rank: &Rank, round: usize) {
        rank.barrier();
        if self.late[round] == rank.me {
            rank.pass(LULL);
        }
    }
}

/// Waits for the end of a message, and returns its length.
fn ended(request: Request) -> u64 {
    request.wait(LIMIT).expect("the request ends").len
}

fn sends(rank: &Rank, member: Member, plan: &Plan) {
    let ctx = &member.ctx;
    let memory = plan.alloc(&member);
    let [stream, _other] = [(); 2].map(|()| ctx.gpu().stream().expect("a stream"));
    for (round, len) in plan.lens.into_iter().enumerate() {
        for (n, memory) in memory.iter().enumerate() {
            memory.write(0, &plan.bytes(round, n)).expect("written");
        }
        plan.begin(rank, round);
        let send = |memory: &Memory| {
            let data = memory.slice(0, len).expect("a slice");
            ctx.isend_on(&stream, 1, TAG, &data).expect("posted")
        };
        let sends: Vec<Request> = memory.iter().map(send).collect();
        for (send, memory) in sends.into_iter().zip(&memory) {
            ended(send);
            memory.write(0, &vec![0; len]).expect("overwritten");
        }
    }
    rank.barrier();
    let small = memory[0].slice(0, 1).expect("a slice");
    let send = |tag| ctx.isend_on(&stream, 1, tag, &small).expect("posted");
    let first = send(TAGS[0]);
    ended(ctx.irecv(1, TAGS[2], &small).expect("posted"));
    let second = send(TAGS[1]);
    ended(first);
    ended(second);
    drop((memory, small));
    member.leave();
}

fn receives(rank: &Rank, member: Member, plan: &Plan) {
    let ctx = &member.ctx;
    let memory = plan.alloc(&member);
    // Streams store marks for each other only if there are several.
    let [stream, _other] = [(); 2].map(|()| ctx.gpu().stream().expect("a stream"));
    for (round, len) in plan.lens.into_iter().enumerate() {
        plan.begin(rank, round);
        let recv = |memory: &Memory| {
            let room = memory.slice(0, len).expect("a slice");
            let recv = ctx.irecv_on(&stream, 0, TAG, &room).expect("posted");
            recv.wait_on(&stream).expect("enqueued");
            recv
        };
        let receives: Vec<Request> = memory.iter().map(recv).collect();
        for (n, (recv, memory)) in receives.into_iter().zip(&memory).enumerate() {
            assert_eq!(ended(recv), len as u64, "round {round}, message {n}");
            let mut got = vec![0; len];
            memory.read(0, &mut got).expect("read");
            let bytes = plan.bytes(round, n);
            assert!(got == bytes, "round {round}, message {n} of {len} bytes");
        }
    }
    rank.barrier();
    let small = memory[0].slice(0, 1).expect("a slice");
    let recv = |tag| ctx.irecv_on(&stream, 0, tag, &small).expect("posted");
    let [first, second] = [TAGS[0], TAGS[1]].map(recv);
    second.wait_on(&stream).expect("enqueued");
    ended(first);
    ended(ctx.isend(0, TAGS[2], &small).expect("posted"));
    ended(second);
    drop((memory, small));
    member.leave();
}
