//! Messages of this rank with one other rank, in rounds: one message each way, by the CPU or the
//! stream of the pair, under the tag of the pair, with every byte compared.

use std::time::Duration;

use gdsync::gpu::{MemoryKind, Stream};
use mp::{Context, Memory, Request, Result};

use crate::rig::limits::time_limit;

/// Most rounds in flight.
pub const AHEAD: usize = 4;
/// Length of the longest message in bytes.
const ROOM: usize = 5000;

/// The bytes of a message, by its number.
pub fn message(name: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| (name * 31 + at * 7 + at / 251) as u8;
    (0..len).map(byte).collect()
}

/// The resources of one side of a pair.
pub struct Pair<'a> {
    /// The rank of the other side.
    pub other: u32,
    /// The stream of their messages.
    pub stream: Stream,
    ctx: &'a Context,
    tag: u32,
    memory: Memory,
}

impl Pair<'_> {
    /// A pair with each of these ranks, under tags from `tag` on.
    pub fn all(
        ctx: &Context,
        others: impl IntoIterator<Item = u32>,
        tag: u32,
    ) -> Result<Vec<Pair<'_>>> {
        let me = ctx.rank();
        let pair = |other: u32| {
            Ok(Pair {
                other,
                stream: ctx.gpu().stream()?,
                ctx,
                tag: tag + me.min(other) * 8 + me.max(other),
                memory: ctx.alloc(MemoryKind::Pinned, 2 * AHEAD * ROOM)?,
            })
        };
        others.into_iter().map(pair).collect()
    }

    /// The bytes of the send of a round (eager or rendezvous), and their offset.
    fn payload(from: u32, to: u32, round: usize) -> (Vec<u8>, usize) {
        let name = (from as usize * 10 + to as usize) * 100 + round;
        let len = [8, 700, 0, ROOM][round % 4];
        (message(name, len), 2 * (round % AHEAD) * ROOM)
    }

    /// Posts one message in each direction, and, unless the CPU waits, makes the stream wait for
    /// both.
    pub fn post(&self, round: usize, by_cpu: bool) -> Result<[Request; 2]> {
        let ctx = self.ctx;
        let (payload, at) = Pair::payload(ctx.rank(), self.other, round);
        self.memory.write(at, &payload)?;
        self.memory.write(at + ROOM, &vec![0; payload.len()])?;
        let data = self.memory.slice(at, payload.len())?;
        let into = self.memory.slice(at + ROOM, payload.len())?;
        if by_cpu {
            let recv = ctx.irecv(self.other, self.tag, &into)?;
            return Ok([recv, ctx.isend(self.other, self.tag, &data)?]);
        }
        let recv = ctx.irecv_on(&self.stream, self.other, self.tag, &into)?;
        let send = ctx.isend_on(&self.stream, self.other, self.tag, &data)?;
        recv.wait_on(&self.stream)?;
        send.wait_on(&self.stream)?;
        Ok([recv, send])
    }

    /// Waits for both messages, and checks the received bytes.
    ///
    /// # Panics
    /// The received bytes differ from the sent ones, or the stream does not complete.
    pub fn check(&self, round: usize, requests: &[Request; 2], limit: Duration) -> Result<()> {
        requests.iter().try_for_each(|r| r.wait(limit).map(drop))?;
        let passed = self.stream.synchronize(time_limit())?;
        assert!(passed, "a stream that should go on");
        let (want, at) = Pair::payload(self.other, self.ctx.rank(), round);
        let mut got = vec![0; want.len()];
        self.memory.read(at + ROOM, &mut got)?;
        assert_eq!(got, want, "round {round} from rank {}", self.other);
        Ok(())
    }
}
