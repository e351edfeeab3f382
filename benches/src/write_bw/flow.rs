//! The flow of large messages: the operations that each layer posts, by the CPU or on a stream,
//! with a bounded number in flight.

use std::collections::VecDeque;

use anyhow::{Result, ensure};
use gdsync::gpu::Region;
use gdsync::rdma::{Descriptor, Mr, Qp, RemoteMemory, SendRequest, Work};
use mp::{Memory, Request};

use super::Options;
use crate::endpoint::{Endpoint, Made, Names, exchange_memory};
use crate::gate::check_qp;
use crate::options::Poster;
use crate::rank::Rank;

/// Entries of each queue of gdsync.
const QUEUE: u32 = 64;
/// The tag of all messages of mp.
const TAG: u32 = 1;

/// A layer through which rank 0 fills rank 1's slots.
pub trait Flow {
    /// The memory of the slots.
    fn region(&self) -> &Region;

    /// Sends or receives `messages` messages, slot after slot; rank 0 returns when all are
    /// complete.
    fn run(&mut self, rank: &Rank, messages: u64) -> Result<()>;

    /// Waits until no operation of this side is in flight.
    fn finish(&mut self, rank: &Rank) -> Result<()>;

    /// Names of GPU and NIC, and of the settings of the QP that carries the messages.
    fn names(&self) -> Names;
}

/// The slots, in turn.
#[derive(Clone, Copy)]
struct Slots {
    size: u64,
    depth: u64,
}

impl Slots {
    fn of(options: &Options) -> Slots {
        Slots {
            size: options.size,
            depth: options.depth,
        }
    }

    fn offset(self, message: u64) -> u64 {
        message % self.depth * self.size
    }
}

/// RDMA writes, each complete when it is acknowledged; rank 1 posts nothing.
pub struct Writes<'e> {
    endpoint: &'e Endpoint,
    qp: Qp,
    memory: Mr,
    theirs: RemoteMemory,
    slots: Slots,
    poster: Poster,
}

impl<'e> Writes<'e> {
    pub fn new(rank: &mut Rank, endpoint: &'e Endpoint, options: &Options) -> Result<Writes<'e>> {
        let kind = options.setup.memory(&endpoint.gpu);
        let memory = endpoint.memory(kind, options.slots()?)?;
        Ok(Writes {
            qp: endpoint.connect(&options.setup.queues(QUEUE), &mut rank.link)?,
            theirs: exchange_memory(&memory, &mut rank.link)?,
            memory,
            slots: Slots::of(options),
            poster: options.poster,
            endpoint,
        })
    }

    fn post(&mut self, rank: &Rank, message: u64) -> Result<SendRequest> {
        let offset = self.slots.offset(message);
        let sges = [self.memory.sge(offset, u32::try_from(self.slots.size)?)];
        let work = Work::write(&sges, self.theirs.span(offset, self.slots.size)?).signaled();
        let request = self.qp.prepare_within(&work, rank.left())?;
        let stream = &self.endpoint.stream;
        match self.poster {
            Poster::Cpu => self.qp.post(request)?,
            Poster::Stream => self.qp.post_on(stream, &[Descriptor::Send(request)])?,
        }
        Ok(request)
    }

    fn wait(&mut self, rank: &Rank, request: SendRequest) -> Result<()> {
        let stream = &self.endpoint.stream;
        match self.poster {
            Poster::Cpu => self.qp.wait(request, rank.left())?,
            Poster::Stream => self.qp.post_on(stream, &[Descriptor::wait(request)])?,
        }
        Ok(())
    }
}

impl Flow for Writes<'_> {
    fn region(&self) -> &Region {
        self.memory.region()
    }

    fn run(&mut self, rank: &Rank, messages: u64) -> Result<()> {
        if rank.number > 0 {
            return Ok(());
        }
        let depth = self.slots.depth;
        fly(self, rank, [messages, depth], Self::post, Self::wait)?;
        if self.poster == Poster::Stream {
            let done = self.endpoint.stream.synchronize(rank.left())?;
            ensure!(done, "the time limit expired");
        }
        check_qp(self.qp.error())
    }

    fn finish(&mut self, rank: &Rank) -> Result<()> {
        Ok(self.qp.quiet(rank.left())?)
    }

    fn names(&self) -> Names {
        self.endpoint.names(&self.qp, self.memory.region().kind())
    }
}

/// Messages of mp, received slot after slot by as many posted receives.
pub struct Messages<'e> {
    endpoint: &'e Endpoint,
    context: mp::Context,
    memory: Memory,
    slots: Slots,
    poster: Poster,
    made: Made,
}

impl<'e> Messages<'e> {
    pub fn new(rank: &Rank, endpoint: &'e Endpoint, options: &Options) -> Result<Messages<'e>> {
        let kind = options.setup.memory(&endpoint.gpu);
        let context = rank.context(endpoint, &options.setup)?;
        Ok(Messages {
            memory: context.alloc(kind, usize::try_from(options.slots()?)?)?,
            slots: Slots::of(options),
            poster: options.poster,
            made: endpoint.made_of(&context, &options.setup, kind)?,
            context,
            endpoint,
        })
    }

    fn post(&mut self, rank: &Rank, message: u64) -> Result<Request> {
        let (context, stream) = (&self.context, &self.endpoint.stream);
        let offset = usize::try_from(self.slots.offset(message))?;
        let slot = self
            .memory
            .slice(offset, usize::try_from(self.slots.size)?)?;
        Ok(match (rank.number, self.poster) {
            (0, Poster::Cpu) => context.isend(1, TAG, &slot)?,
            (0, Poster::Stream) => context.isend_on(stream, 1, TAG, &slot)?,
            (_, Poster::Cpu) => context.irecv(0, TAG, &slot)?,
            (_, Poster::Stream) => context.irecv_on(stream, 0, TAG, &slot)?,
        })
    }

    fn wait(&mut self, rank: &Rank, request: Request) -> Result<()> {
        match self.poster {
            Poster::Cpu => {
                let done = request.wait(rank.left())?;
                ensure!(
                    done.len == self.slots.size,
                    "a message of {} bytes",
                    done.len
                );
                Ok(())
            }
            Poster::Stream => Ok(request.wait_on(&self.endpoint.stream)?),
        }
    }
}

impl Flow for Messages<'_> {
    fn region(&self) -> &Region {
        self.memory.region()
    }

    fn run(&mut self, rank: &Rank, messages: u64) -> Result<()> {
        let depth = self.slots.depth;
        fly(self, rank, [messages, depth], Self::post, Self::wait)?;
        if self.poster == Poster::Stream {
            let stream = &self.endpoint.stream;
            self.context.synchronize(stream, rank.left())?;
        }
        Ok(self.context.take_error().map_or(Ok(()), Err)?)
    }

    fn finish(&mut self, rank: &Rank) -> Result<()> {
        Ok(self.context.close(rank.left())?)
    }

    fn names(&self) -> Names {
        self.made.names.clone()
    }
}

/// Posts `messages` messages, with `depth` in flight, and waits for each.
fn fly<F, R>(
    flow: &mut F,
    rank: &Rank,
    [messages, depth]: [u64; 2],
    post: fn(&mut F, &Rank, u64) -> Result<R>,
    wait: fn(&mut F, &Rank, R) -> Result<()>,
) -> Result<()> {
    let mut flying = VecDeque::new();
    for i in 0..messages {
        if flying.len() as u64 == depth
            && let Some(oldest) = flying.pop_front()
        {
            wait(flow, rank, oldest)?;
        }
        flying.push_back(post(flow, rank, i)?);
    }
    let mut flying = flying.into_iter();
    flying.try_for_each(|request| wait(flow, rank, request))
}
