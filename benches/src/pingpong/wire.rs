//! The transport of ping-pong's messages: the operations that a layer enqueues for a round.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Result;
use gdsync::gpu::{MemoryKind, Region};
use gdsync::rdma::{Descriptor, Mr, Provider, Qp, ReceiveRequest, RemoteMemory, Work};
use mp::{Memory, Slice};

use super::{Operation, Options};
use crate::endpoint::{Endpoint, Made, Names, exchange_memory};
use crate::gate::check_qp;
use crate::rank::Rank;

/// Entries of each queue of gdsync: more than a batch, so that one batch never waits for room.
const QUEUE: u32 = 512;
/// The tag of all messages of mp.
const TAG: u32 = 1;

/// A layer that carries messages.
pub trait Wire {
    /// The memory of sent and of received messages.
    fn memory(&self) -> (&Region, &Region);

    /// Prepares for `rounds` rounds of `size` bytes, before the gate closes.
    fn begin(&mut self, size: u64, rounds: u64) -> Result<()>;

    /// Enqueues the wait for the peer's first message.
    fn first(&mut self) -> Result<()>;

    /// Enqueues the send of round `i` and, if there is `more`, the wait for the peer's next
    /// message.
    fn round(&mut self, i: u64, more: bool) -> Result<()>;

    /// Fails if an operation has failed.
    fn check(&mut self) -> Result<()>;

    /// Waits until no operation of this side is in flight.
    fn finish(&mut self, limit: Duration) -> Result<()>;

    /// Names of GPU and NIC, and of the settings of the QP that carries the messages.
    fn names(&self) -> Names;

    /// The provider of the NIC whose doorbell a stream rings for a send; none if kernels copy.
    fn nic(&self) -> Option<Provider>;
}

/// Prepared requests, posted on the stream; the receives are posted by the CPU beforehand.
pub struct Requests<'e> {
    endpoint: &'e Endpoint,
    qp: Qp,
    leaving: Mr,
    arriving: Mr,
    theirs: RemoteMemory,
    operation: Operation,
    size: u64,
    receives: VecDeque<ReceiveRequest>,
}

impl<'e> Requests<'e> {
    pub fn new(rank: &mut Rank, endpoint: &'e Endpoint, options: &Options) -> Result<Requests<'e>> {
        let kind = options.setup.memory(&endpoint.gpu);
        let arriving = endpoint.memory(kind, options.largest())?;
        Ok(Requests {
            qp: endpoint.connect(&options.setup.queues(QUEUE), &mut rank.link)?,
            leaving: endpoint.memory(kind, options.largest())?,
            theirs: exchange_memory(&arriving, &mut rank.link)?,
            arriving,
            operation: options.operation,
            size: 0,
            receives: VecDeque::new(),
            endpoint,
        })
    }

    /// Enqueues `list` and the wait for the next message.
    fn await_next(&mut self, mut list: Vec<Descriptor<'_>>) -> Result<()> {
        if let Some(receive) = self.receives.pop_front() {
            list.push(Descriptor::wait_flushed(receive));
        }
        Ok(self.qp.post_on(&self.endpoint.stream, &list)?)
    }
}

impl Wire for Requests<'_> {
    fn memory(&self) -> (&Region, &Region) {
        (self.leaving.region(), self.arriving.region())
    }

    fn begin(&mut self, size: u64, rounds: u64) -> Result<()> {
        self.size = size;
        let all = [self.arriving.sge(0, u32::try_from(size)?)];
        let sges = match self.operation {
            Operation::Send => &all[..],
            Operation::Write => &[],
        };
        for _ in 0..rounds {
            let receive = self.qp.prepare_receive(sges)?;
            self.qp.post_receive(receive)?;
            self.receives.push_back(receive);
        }
        Ok(())
    }

    fn first(&mut self) -> Result<()> {
        self.await_next(Vec::with_capacity(1))
    }

    fn round(&mut self, i: u64, more: bool) -> Result<()> {
        let sges = [self.leaving.sge(0, u32::try_from(self.size)?)];
        let work = match self.operation {
            Operation::Send => Work::send(&sges),
            Operation::Write => {
                Work::write(&sges, self.theirs.span(0, self.size)?).with_imm(i as u32)
            }
        };
        let send = Descriptor::Send(self.qp.prepare(&work)?);
        match more {
            true => self.await_next(vec![send]),
            false => Ok(self.qp.post_on(&self.endpoint.stream, &[send])?),
        }
    }

    fn check(&mut self) -> Result<()> {
        check_qp(self.qp.error())
    }

    fn finish(&mut self, limit: Duration) -> Result<()> {
        Ok(self.qp.quiet(limit)?)
    }

    fn names(&self) -> Names {
        self.endpoint.names(&self.qp, self.leaving.region().kind())
    }

    fn nic(&self) -> Option<Provider> {
        Some(self.qp.device().provider())
    }
}

/// Messages of mp: the receive of the next one is posted before the send, so that the peer has the
/// address for a rendezvous in time.
pub struct Messages<'e> {
    endpoint: &'e Endpoint,
    context: mp::Context,
    leaving: Memory,
    arriving: Memory,
    peer: u32,
    made: Made,
    /// The sends and receives of this batch.
    slices: Option<(Slice, Slice)>,
}

impl<'e> Messages<'e> {
    pub fn new(rank: &mut Rank, endpoint: &'e Endpoint, options: &Options) -> Result<Messages<'e>> {
        let kind: MemoryKind = options.setup.memory(&endpoint.gpu);
        let context = rank.context(endpoint, &options.setup)?;
        let largest = usize::try_from(options.largest())?;
        Ok(Messages {
            leaving: context.alloc(kind, largest)?,
            arriving: context.alloc(kind, largest)?,
            peer: 1 - rank.number,
            made: endpoint.made_of(&context, &options.setup, kind)?,
            slices: None,
            context,
            endpoint,
        })
    }

    fn slices(&self) -> Result<(&Slice, &Slice)> {
        let Some((from, into)) = &self.slices else {
            anyhow::bail!("a round before its batch");
        };
        Ok((from, into))
    }
}

impl Wire for Messages<'_> {
    fn memory(&self) -> (&Region, &Region) {
        (self.leaving.region(), self.arriving.region())
    }

    fn begin(&mut self, size: u64, _rounds: u64) -> Result<()> {
        let size = usize::try_from(size)?;
        self.slices = Some((self.leaving.slice(0, size)?, self.arriving.slice(0, size)?));
        Ok(())
    }

    fn first(&mut self) -> Result<()> {
        let (_, into) = self.slices()?;
        let stream = &self.endpoint.stream;
        let receive = self.context.irecv_on(stream, self.peer, TAG, into)?;
        Ok(receive.wait_on(stream)?)
    }

    fn round(&mut self, _i: u64, more: bool) -> Result<()> {
        let (from, into) = self.slices()?;
        let stream = &self.endpoint.stream;
        let receive = more
            .then(|| self.context.irecv_on(stream, self.peer, TAG, into))
            .transpose()?;
        drop(self.context.isend_on(stream, self.peer, TAG, from)?);
        if let Some(receive) = receive {
            receive.wait_on(stream)?;
        }
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        Ok(self.context.take_error().map_or(Ok(()), Err)?)
    }

    fn finish(&mut self, limit: Duration) -> Result<()> {
        Ok(self.context.close(limit)?)
    }

    fn names(&self) -> Names {
        self.made.names.clone()
    }

    fn nic(&self) -> Option<Provider> {
        match self.context.path(self.peer) {
            Some((mp::Path::Tcp, _)) => Some(Provider::Tcp),
            None | Some((mp::Path::Nic, _)) => Some(self.context.device().provider()),
            Some(_) => None,
        }
    }
}
