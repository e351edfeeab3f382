//! [`Lane`]: an ordered queue of puts to a peer, on the path to the peer: a queue pair of the NIC,
//! or the queue of a rank to itself. It posts, polls, fails and aborts puts; `batch` prepares them.

use gdsync::gpu::Word64;
use gdsync::rdma::{Descriptor, Qp};
use gdsync::{Status, Stream};

use super::{Put, foreign, local, nic};
use crate::error::{Error, Kind, Result};
use crate::kernels::{MOST_CHUNKS, Stamp};

/// A lane to a peer, on its path.
pub(crate) enum Lane {
    Nic(nic::Lane),
    Local(Box<local::Lane>),
}

impl Lane {
    /// The status of a put; `None`: it is in flight.
    ///
    /// # Errors
    /// The put is so old that the lane has no state for it.
    pub fn poll(&mut self, put: Put) -> Result<Option<Status>> {
        match (self, put) {
            (Lane::Nic(lane), Put::Nic(put)) => lane.poll(put),
            (Lane::Local(lane), Put::Local(put)) => lane.poll(put),
            _ => Err(foreign("test request")),
        }
    }

    /// Whether a put is in flight.
    pub fn is_pending(&mut self, put: Put) -> bool {
        matches!(self.poll(put), Ok(None))
    }

    /// Aborts a put that was prepared and not posted; the newest must be aborted first.
    pub fn abort(&mut self, put: Put) -> Result<()> {
        match (self, put) {
            (Lane::Nic(lane), Put::Nic(put)) => lane.abort(put),
            (Lane::Local(lane), Put::Local(put)) => lane.abort(put),
            _ => Err(foreign("cancel request")),
        }
    }

    /// Makes `stream` wait until a put is done; `flush`: what the NIC has written to GPU memory for
    /// it is visible then.
    pub fn wait_on(&mut self, stream: &Stream, put: Put, flush: bool) -> Result<()> {
        match (self, put) {
            (Lane::Nic(lane), Put::Nic(put)) => lane.wait_on(stream, put, flush),
            (Lane::Local(lane), Put::Local(put)) => lane.wait_on(stream, put),
            _ => Err(foreign("wait on stream")),
        }
    }

    /// The word and the value for which a stream waits until a put is done, for a put that a list
    /// over several lanes cannot wait for; `None`: it can, or the put is done.
    pub fn done_word(&self, put: Put) -> Option<(&Word64, u64)> {
        match (self, put) {
            (Lane::Local(lane), Put::Local(put)) => lane.done_word(put),
            _ => None,
        }
    }

    /// Whether lists over several lanes name this one.
    pub fn is_listed(&self) -> bool {
        matches!(self, Lane::Nic(_))
    }

    /// Whether a kernel may poll words that arrive through this lane.
    pub fn may_spin(&self) -> bool {
        match self {
            Lane::Nic(lane) => lane.may_spin(),
            // The word would be stored by another kernel of the same GPU.
            Lane::Local(_) => false,
        }
    }

    /// Whether nothing that was posted is in flight, on the NIC or a stream.
    pub fn is_quiet(&mut self) -> bool {
        match self {
            Lane::Nic(lane) => lane.is_quiet(),
            Lane::Local(lane) => lane.is_quiet(),
        }
    }

    /// Number of submissions of a stream for a late message of `puts` puts, its kernel included.
    pub fn submissions(&self, puts: usize) -> u32 {
        match self {
            Lane::Nic(_) => nic::Lane::SUBMISSIONS,
            Lane::Local(_) => local::Lane::submissions(puts),
        }
    }

    /// Whether puts reach the peer.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        match self {
            Lane::Nic(lane) => lane.is_open(),
            Lane::Local(_) => true,
        }
    }

    /// The status with which the lane failed, if it did.
    pub fn error(&mut self) -> Option<Status> {
        match self {
            Lane::Nic(lane) => lane.error(),
            Lane::Local(lane) => lane.error(),
        }
    }

    /// Fails the lane: the peer's operations cannot reach this side any more.
    pub(super) fn fail(&mut self, status: Status) {
        match self {
            Lane::Nic(lane) => lane.fail(status),
            Lane::Local(lane) => lane.fail(status),
        }
    }

    /// Posts the puts of a batch from the CPU.
    #[inline]
    pub fn post(&mut self, puts: impl Iterator<Item = Put>) -> Result<()> {
        for put in puts {
            match (&mut *self, put) {
                (Lane::Nic(lane), Put::Nic(put)) => lane.post(put)?,
                (Lane::Local(lane), Put::Local(put)) => lane.post(put)?,
                _ => return Err(foreign("post request")),
            }
        }
        if let Lane::Local(lane) = self {
            lane.go_on(local::AT_ONCE);
        }
        Ok(())
    }

    /// Enqueues a list; `items` describe its descriptors to a local lane.
    #[inline]
    pub(super) fn post_on(
        &mut self,
        stream: &Stream,
        list: &[Descriptor<'_>],
        items: &[local::Item],
    ) -> Result<()> {
        match self {
            Lane::Nic(lane) => lane.post_on(stream, list),
            Lane::Local(lane) => lane.post_on(stream, list, items),
        }
    }

    /// The queue pair of a lane through the NIC.
    pub(super) fn queue(&mut self) -> Option<&mut Qp> {
        match self {
            Lane::Nic(lane) => Some(lane.queue()),
            Lane::Local(_) => None,
        }
    }

    /// Writes into `params` the addresses of the work-request fields of a message that a kernel
    /// completes. The last of `puts` is the stamp, and is returned. `large`: the kernel fills in
    /// the destination; `late`: it fills in length and offset, one flag each.
    pub fn patch(
        &self,
        puts: &[Put],
        large: bool,
        late: [bool; 2],
        params: &mut Stamp<MOST_CHUNKS>,
    ) -> Result<Put> {
        match self {
            Lane::Nic(lane) => {
                let puts = puts.iter().filter_map(Put::nic);
                lane.patch(puts, large, late, params)?;
            }
            Lane::Local(lane) => {
                let puts = puts.iter().filter_map(Put::local);
                lane.patch(puts, large, late, params);
            }
        }
        puts.last().copied().ok_or_else(|| {
            let what = "the message has no puts";
            Error::new("post request", Kind::Invalid, what)
        })
    }
}
