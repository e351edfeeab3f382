//! [`Lane`]: an ordered queue of puts to a peer, with an end on each path that reaches the peer: a
//! queue pair of a NIC or of TCP, a queue of copies, or both. It posts, polls, fails and aborts
//! puts; `batch` prepares them.

use gdsync::gpu::Word64;
use gdsync::rdma::Descriptor;
use gdsync::{Status, Stream};

use super::{Path, Piece, Put, Span, copy, foreign, nic};
use crate::error::{Error, Kind, Result};
use crate::kernels::{MOST_CHUNKS, Stamp};

/// A lane to a peer. Puts by the NIC and by copies have no order among each other, except by
/// [`Lane::order`].
pub(crate) struct Lane {
    pub(super) nic: Option<nic::Lane>,
    pub(super) copy: Option<Box<copy::Lane>>,
    /// The last put by the NIC that [`Lane::order`] has seen, of a lane that also copies.
    by_nic: Option<nic::Put>,
}

impl Lane {
    pub(super) fn new(nic: Option<nic::Lane>, copy: Option<Box<copy::Lane>>) -> Lane {
        let by_nic = None;
        Lane { nic, copy, by_nic }
    }

    #[inline]
    pub(super) fn nic(&mut self, operation: &'static str) -> Result<&mut nic::Lane> {
        self.nic.as_mut().ok_or_else(|| foreign(operation))
    }

    #[inline]
    pub(super) fn copy(&mut self, operation: &'static str) -> Result<&mut copy::Lane> {
        self.copy.as_deref_mut().ok_or_else(|| foreign(operation))
    }

    /// The status of a put; `None`: it is in flight.
    ///
    /// # Errors
    /// The put is so old that the lane has no state for it.
    pub fn poll(&mut self, put: Put) -> Result<Option<Status>> {
        const OPERATION: &str = "test request";
        match put {
            Put::Nic(put) => self.nic(OPERATION)?.poll(put),
            Put::Copy(put) => self.copy(OPERATION)?.poll(put),
        }
    }

    /// Whether a put is in flight.
    pub fn is_pending(&mut self, put: Put) -> bool {
        matches!(self.poll(put), Ok(None))
    }

    /// Aborts a put that was prepared and not posted; the newest must be aborted first.
    pub fn abort(&mut self, put: Put) -> Result<()> {
        const OPERATION: &str = "cancel request";
        match put {
            Put::Nic(put) => self.nic(OPERATION)?.abort(put),
            Put::Copy(put) => self.copy(OPERATION)?.abort(put),
        }
    }

    /// Checks that a post of these puts, in this order, would not be refused because an earlier one is neither
    /// posted nor aborted. Copies have no such order.
    pub fn check_order(&mut self, puts: impl Iterator<Item = Put>) -> Result<()> {
        match &self.nic {
            Some(lane) => lane.check_order(puts.filter_map(|put| put.nic())),
            None => Ok(()),
        }
    }

    /// Makes `stream` wait until a put is done; `flush`: what the NIC has written to GPU memory for
    /// it is visible then.
    pub fn wait_on(&mut self, stream: &Stream, put: Put, flush: bool) -> Result<()> {
        const OPERATION: &str = "wait on stream";
        match put {
            Put::Nic(put) => self.nic(OPERATION)?.wait_on(stream, put, flush),
            Put::Copy(put) => self.copy(OPERATION)?.wait_on(stream, put),
        }
    }

    /// The word and the value for which a stream waits until a put is done, for a put that a list
    /// over several lanes cannot wait for; `None`: it can, or the put is done.
    pub fn done_word(&self, put: Put) -> Option<(&Word64, u64)> {
        self.copy.as_ref()?.done_word(put.copy()?)
    }

    /// Sets where the kernels of a message store a failure; see [`copy::Lane::end_in`].
    pub fn end_in(&mut self, put: Put, result: u64, error: u64) {
        if let (Some(lane), Put::Copy(put)) = (&mut self.copy, put) {
            lane.end_in(put, result, error);
        }
    }

    /// Whether a kernel may poll for what arrives through this lane by `path`: words that its queue pair
    /// writes, or messages in `flagged` rooms.
    pub fn may_spin(&self, path: Path, flagged: bool) -> bool {
        // The word of a copy is in host memory, which a kernel should not poll. There are flagged rooms only
        // if kernels of the peer run beside those of this rank, and only kernels find messages there.
        flagged || path.has_queues() && self.nic.as_ref().is_some_and(nic::Lane::may_spin)
    }

    /// Whether kernels of the peer run beside kernels of this rank.
    pub fn runs_beside_peer(&self) -> bool {
        self.nic.as_ref().is_some_and(nic::Lane::runs_beside_peer)
    }

    /// Checks that this rank has mapped these spans of the peer's memory.
    ///
    /// # Errors
    /// `PeerFailed` if the lane has failed, or the peer has released the memory: the lane fails then.
    pub fn reach(&mut self, spans: &[(Span, u64)]) -> Result<()> {
        let by_copy = |(to, len): &(Span, u64)| match to {
            Span::Copy(to) => Some((*to, *len)),
            Span::Nic(_) => None,
        };
        let spans = spans.iter().filter_map(by_copy);
        self.copy("post request")?.reach_all(spans)
    }

    /// Whether nothing that was posted is in flight, on the NIC or a stream.
    pub fn is_quiet(&mut self) -> bool {
        self.nic.as_mut().is_none_or(nic::Lane::is_quiet)
            && self.copy.as_ref().is_none_or(|lane| lane.is_quiet())
    }

    /// Number of submissions of a stream for a late message of `puts` puts by `path`, its kernel
    /// included.
    pub fn submissions(path: Path, puts: usize) -> u32 {
        match path {
            Path::Nic | Path::Tcp => nic::Lane::SUBMISSIONS,
            Path::Local | Path::Ipc => copy::Lane::submissions(puts),
        }
    }

    /// Whether puts reach the peer.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.nic.as_ref().is_none_or(nic::Lane::is_open)
    }

    /// The status with which the lane failed, if it did.
    pub fn error(&mut self) -> Option<Status> {
        let nic = self.nic.as_mut().and_then(nic::Lane::error);
        nic.or_else(|| self.copy.as_ref().and_then(|lane| lane.error()))
    }

    /// Fails the lane: the peer's operations cannot reach this side any more.
    pub(super) fn fail(&mut self, status: Status) {
        if let Some(lane) = &mut self.nic {
            lane.fail(status);
        }
        if let Some(lane) = &mut self.copy {
            lane.fail(status);
        }
    }

    /// Orders puts of a one-sided operation, which are prepared and not posted, after the earlier
    /// one-sided operations of the lane. A stream waits; the CPU retries.
    ///
    /// # Errors
    /// As [`Lane::follows`]; `QueueFull` if the CPU would have to wait.
    pub fn order(
        &mut self,
        puts: impl Iterator<Item = Put> + Clone,
        stream: Option<&Stream>,
    ) -> Result<()> {
        let by_nic = matches!(puts.clone().last(), Some(Put::Nic(_)));
        let before = self.follows(puts)?;
        if let (Some(before), Some(stream)) = (before, stream) {
            return self.wait_on(stream, before, false);
        }
        let copying = || self.copy.as_ref().is_some_and(|copy| copy.is_copying());
        // The NIC takes the work requests of a stream when the stream has executed its copies.
        if stream.is_none() && (before.is_some() || by_nic && copying()) {
            let what = "an operation of another window is in flight by another path; retry later";
            return Err(Error::new("post request", Kind::QueueFull, what));
        }
        Ok(())
    }

    /// The put by the NIC for which puts of a one-sided operation have to wait, because they are
    /// copies: a signal must not overtake the put of another window.
    ///
    /// # Errors
    /// `PeerFailed` if the peer has released the memory of a copy: the lane fails, as a queue pair
    /// does.
    pub fn follows(&mut self, puts: impl Iterator<Item = Put> + Clone) -> Result<Option<Put>> {
        let Lane { nic, copy, by_nic } = self;
        let (Some(nic), Some(copy)) = (nic, copy) else {
            return Ok(None);
        };
        copy.reach(puts.clone().filter_map(|put| put.copy()))?;
        match puts.last() {
            Some(Put::Nic(put)) => {
                *by_nic = Some(put);
                Ok(None)
            }
            // A put that the queue pair does not know is older than all that are in flight.
            Some(Put::Copy(_)) => {
                let pending = by_nic.filter(|last| matches!(nic.poll(*last), Ok(None)));
                Ok(pending.map(Put::Nic))
            }
            None => Ok(None),
        }
    }

    /// Copies bytes and stores words by the CPU; see [`copy::Lane::copy_now`]. `false`: the words are not
    /// stored.
    #[inline]
    pub fn copy_now<'a>(
        &self,
        pieces: impl Iterator<Item = Piece<'a>>,
        to: Span,
        words: &[u64],
        place: Span,
    ) -> Result<bool> {
        match (&self.copy, to, place) {
            (Some(lane), Span::Copy(to), Span::Copy(place)) => {
                lane.copy_now(pieces.map(Piece::copy), to, words, place)
            }
            _ => Ok(false),
        }
    }

    /// Posts the puts of a batch from the CPU.
    #[inline]
    pub fn post(&mut self, puts: impl Iterator<Item = Put> + Clone) -> Result<()> {
        const OPERATION: &str = "post request";
        let mut by_nic = puts.clone().filter_map(|put| put.nic()).peekable();
        if by_nic.peek().is_some() {
            self.nic(OPERATION)?.post(by_nic)?;
        }
        let mut copies = false;
        for put in puts.filter_map(|put| put.copy()) {
            self.copy(OPERATION)?.post(put)?;
            copies = true;
        }
        if let Some(lane) = self.copy.as_mut().filter(|_| copies) {
            lane.go_on(copy::AT_ONCE);
        }
        Ok(())
    }

    /// Enqueues a list; `items` describe its descriptors to a lane of copies.
    #[inline]
    pub(super) fn post_on(
        &mut self,
        stream: &Stream,
        list: &[Descriptor<'_>],
        items: &[copy::Item],
    ) -> Result<()> {
        let copies = items.iter().any(copy::Item::is_put);
        match &mut self.nic {
            Some(lane) if !copies => lane.post_on(stream, list),
            // In the list of another path, the place of a copy has only a flush.
            _ => self.copy("post list")?.post_on(stream, list, items),
        }
    }

    /// Executes the CPU's copies, for one round. Returns `true` if there were any.
    pub(super) fn go_on(&mut self) -> bool {
        let lane = self.copy.as_mut();
        lane.is_some_and(|lane| lane.go_on(copy::ROUND))
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
        let last = puts.last().copied().ok_or_else(|| {
            let what = "the message has no puts";
            Error::new("post request", Kind::Invalid, what)
        })?;
        match (last, &self.nic, &self.copy) {
            (Put::Nic(_), Some(lane), _) => {
                let puts = puts.iter().filter_map(Put::nic);
                lane.patch(puts, large, late, params)?;
            }
            (Put::Copy(_), _, Some(lane)) => {
                let puts = puts.iter().filter_map(Put::copy);
                lane.patch(puts, large, late, params);
            }
            _ => return Err(foreign("post request")),
        }
        Ok(last)
    }
}
