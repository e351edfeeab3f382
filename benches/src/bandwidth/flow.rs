//! How large messages flow: what each layer posts, by the CPU or on a stream, with so many in
//! flight.

use std::collections::VecDeque;

use anyhow::{Result, ensure};
use gdsync::gpu::Region;
use gdsync::rdma::{Descriptor, Mr, Qp, RemoteMemory, SendRequest, Work};
use mp::{Memory, Request};

use super::{Options, Poster};
use crate::endpoint::{Endpoint, Made, Names, exchange_memory};
use crate::gate::well;
use crate::rank::Rank;

/// Entries of each queue of gdsync's.
const QUEUE: u32 = 64;
/// The tag of all messages of mp's.
const TAG: u32 = 1;

/// A layer through which rank 0 fills rank 1's slots.
pub trait Flow {
    /// The slots.
    fn region(&self) -> &Region;

    /// This rank's part in `messages` messages, slot after slot; of rank 0, until all are
    /// complete.
    fn run(&mut self, rank: &Rank, messages: u64) -> Result<()>;

    /// Waits until nothing of this side is under way.
    fn finish(&mut self, rank: &Rank) -> Result<()>;

    /// What they are sent with.
    fn names(&self) -> Names;
}

/// Slots in turn.
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

/// RDMA writes, each complete when it is acknowledged; rank 1 has nothing to do.
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

    fn prepare(&mut self, rank: &Rank, message: u64) -> Result<SendRequest> {
        let offset = self.slots.offset(message);
        let sges = [self.memory.sge(offset, u32::try_from(self.slots.size)?)];
        let work = Work::write(&sges, self.theirs.span(offset, self.slots.size)?).signaled();
        Ok(self.qp.prepare_within(&work, rank.left())?)
    }

    fn by_cpu(&mut self, rank: &Rank, messages: u64) -> Result<()> {
        let mut flying = VecDeque::new();
        for i in 0..messages {
            if flying.len() as u64 == self.slots.depth {
                self.complete_one(rank, &mut flying)?;
            }
            let request = self.prepare(rank, i)?;
            self.qp.post(request)?;
            flying.push_back(request);
        }
        while !flying.is_empty() {
            self.complete_one(rank, &mut flying)?;
        }
        Ok(())
    }

    fn complete_one(&mut self, rank: &Rank, flying: &mut VecDeque<SendRequest>) -> Result<()> {
        match flying.pop_front() {
            Some(oldest) => Ok(self.qp.wait(oldest, rank.left())?),
            None => Ok(()),
        }
    }

    fn by_stream(&mut self, rank: &Rank, messages: u64) -> Result<()> {
        let stream = &self.endpoint.stream;
        let mut flying = VecDeque::new();
        for i in 0..messages {
            if flying.len() as u64 == self.slots.depth
                && let Some(oldest) = flying.pop_front()
            {
                let oldest: SendRequest = oldest;
                self.qp.post_on(stream, &[Descriptor::wait(oldest)])?;
            }
            let request = self.prepare(rank, i)?;
            self.qp.post_on(stream, &[Descriptor::Send(request)])?;
            flying.push_back(request);
        }
        for request in flying {
            self.qp.post_on(stream, &[Descriptor::wait(request)])?;
        }
        synchronize(rank, self.endpoint)?;
        well(self.qp.error())
    }
}

impl Flow for Writes<'_> {
    fn region(&self) -> &Region {
        self.memory.region()
    }

    fn run(&mut self, rank: &Rank, messages: u64) -> Result<()> {
        match (rank.number, self.poster) {
            (0, Poster::Cpu) => self.by_cpu(rank, messages),
            (0, Poster::Stream) => self.by_stream(rank, messages),
            _ => Ok(()),
        }
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
            made: endpoint.made_of(&options.setup, kind)?,
            context,
            endpoint,
        })
    }

    fn post(&self, rank: &Rank, message: u64) -> Result<Request> {
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

    fn wait(&self, rank: &Rank, request: &Request) -> Result<()> {
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
        let mut flying = VecDeque::new();
        for i in 0..messages {
            if flying.len() as u64 == self.slots.depth
                && let Some(oldest) = flying.pop_front()
            {
                self.wait(rank, &oldest)?;
            }
            flying.push_back(self.post(rank, i)?);
        }
        for request in flying {
            self.wait(rank, &request)?;
        }
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

fn synchronize(rank: &Rank, endpoint: &Endpoint) -> Result<()> {
    ensure!(
        endpoint.stream.synchronize(rank.left())?,
        "the time limit passed"
    );
    Ok(())
}
