//! A lane through a device: a queue pair on each side, and the work requests of puts.

use gdsync::rdma::{
    self, Descriptor, Doorbell, Field, Qp, QpAddress, SendRequest, Sge, Work, post_on,
};
use gdsync::{Status, Stream};

use super::{Keys, MOST_PIECES, Nic, Path, Piece, Span};
use crate::error::{Error, Kind, Result};
use crate::kernels::{MOST_CHUNKS, Patch, Stamp};
use crate::path::{Atomic, WordOrder};
use crate::wire::record::Record;

/// Number of bytes that a READ reads to order a word after its payload.
const LOOK: usize = 8;

/// The connection state of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneState {
    /// This side's end exists, and its address was sent to the peer.
    Made,
    /// This side's end is connected to the peer's.
    Connected,
    /// The peer has connected its end as well.
    Open,
}

/// A put that is prepared on a queue pair, in flight, or done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Put(SendRequest);

/// How words to a peer are ordered after their payload: chosen once for all lanes to the peer.
#[derive(Default)]
pub(crate) struct WordOrdering {
    /// `None`: not chosen yet.
    pub order: Option<WordOrder>,
    /// As [`Lane::landing`].
    landing: Option<Keys>,
}

impl WordOrdering {
    /// Chooses the order, once. `keeps_order`: the peer's NIC places WRITEs in order.
    fn choose(&mut self, nic: &Nic, peer: u32, keeps_order: bool) -> Result<()> {
        if self.order.is_some() {
            return Ok(());
        }
        let (order, why) = nic.order.choose(keeps_order, nic.device.reads())?;
        if order == WordOrder::BehindRead {
            self.landing = Some(nic.landing()?);
        }
        self.order = Some(order);
        let me = nic.me;
        tracing::info!(target: "mp", "rank {me}: message words to rank {peer} are {order}: {why}");
        Ok(())
    }
}

/// A queue pair to a peer.
pub(crate) struct Lane {
    qp: Qp,
    /// The path of its device.
    path: Path,
    /// Memory for the results of READs before words; `None`: words are plain WRITEs.
    landing: Option<Keys>,
    state: LaneState,
}

impl Lane {
    /// Submissions of a stream for a late message: its two lists and its kernel.
    pub const SUBMISSIONS: u32 = 4;

    /// Makes this side's end of lane `lane`, whose doorbell `doorbell` writes. Returns the record
    /// for the peer: the address, and whether the NIC of this side places received WRITEs in the
    /// order in which they were posted.
    pub fn make(
        nic: &Nic,
        word_ordering: &WordOrdering,
        lane: usize,
        doorbell: Doorbell,
    ) -> Result<(Lane, Record)> {
        let qp = nic.queue_pair(lane, doorbell)?;
        let mut end = qp.address().to_bytes().to_vec();
        end.push(nic.device.keeps_write_order().into());
        let lane = Lane {
            qp,
            path: nic.path,
            landing: word_ordering.landing.clone(),
            state: LaneState::Made,
        };
        Ok((lane, Record::new(nic.path.record(), &end)))
    }

    /// The path of its device: [`Path::Nic`] or [`Path::Tcp`].
    #[inline]
    pub fn path(&self) -> Path {
        self.path
    }

    /// Connects this side's end to the end that `peer` has named.
    pub fn connect(
        &mut self,
        nic: &Nic,
        word_ordering: &mut WordOrdering,
        peer: u32,
        records: &[Record],
    ) -> Result<()> {
        let end = Record::find(records, self.path.record())?;
        let (address, keeps_order) = match end.split_last() {
            Some((&keeps @ (0 | 1), address)) => (QpAddress::from_bytes(address)?, keeps == 1),
            _ => {
                let what = format!("rank {peer} sent the end of a lane without its WRITE order");
                return Err(Error::new("open connection", Kind::Protocol, what));
            }
        };
        if nic.alone && address.process != self.qp.address().process {
            let what = format!(
                "rank {peer} is another process, and the bootstrap has no key with which TCP \
                 connections prove that they are of the job; implement Bootstrap::key, or set a key by \
                 Builder::tcp"
            );
            return Err(Error::new("open connection", Kind::Unsupported, what));
        }
        word_ordering.choose(nic, peer, keeps_order)?;
        self.qp.connect(&address)?;
        self.landing = word_ordering.landing.clone();
        self.state = LaneState::Connected;
        Ok(())
    }

    /// Opens the lane: the peer has connected its end, as this side had before.
    pub fn connected(&mut self) {
        self.state = LaneState::Open;
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.state == LaneState::Open
    }

    /// The status of a put; `None`: it is in flight.
    ///
    /// # Errors
    /// The put is so old that the queue has no state for it.
    pub fn poll(&mut self, put: Put) -> Result<Option<Status>> {
        match self.qp.poll(put.0)? {
            // An earlier work request failed, and this one was flushed.
            Some(Status::FLUSHED) => Ok(Some(self.qp.error().unwrap_or(Status::FLUSHED))),
            status => Ok(status),
        }
    }

    /// Aborts a put that was prepared and not posted; the newest must be aborted first.
    pub fn abort(&mut self, put: Put) -> Result<()> {
        Ok(self.qp.abort(put.0)?)
    }

    /// Makes `stream` wait until a put is done.
    pub fn wait_on(&mut self, stream: &Stream, put: Put, flush: bool) -> Result<()> {
        let list = [Descriptor::wait(put.0).flush(flush)];
        Ok(post_on(stream, &mut [&mut self.qp], &list)?)
    }

    /// Whether a kernel may poll words that arrive through this lane.
    pub fn may_spin(&self) -> bool {
        self.qp.may_spin()
    }

    /// Whether kernels of the peer run beside kernels of this rank.
    pub fn runs_beside_peer(&self) -> bool {
        self.qp.runs_beside_peer()
    }

    /// Whether nothing that was posted is in flight, on the NIC or a stream.
    pub fn is_quiet(&mut self) -> bool {
        self.qp.is_quiet()
    }

    /// The status with which the queue pair entered the error state, if it did.
    pub fn error(&mut self) -> Option<Status> {
        self.qp.error()
    }

    /// Fails the queue pair: the peer's operations cannot reach this side any more.
    pub fn fail(&mut self, status: Status) {
        self.qp.fail(status);
    }

    fn prepare(&mut self, work: &Work<'_>) -> Result<Put> {
        Ok(Put(self.qp.prepare(work)?))
    }

    /// Prepares a put of pieces of memory, concatenated.
    #[inline]
    pub fn put<'a>(
        &mut self,
        mut pieces: impl ExactSizeIterator<Item = Result<Piece<'a>>>,
        to: Span,
    ) -> Result<Put> {
        let count = pieces.len();
        let Some(first) = pieces.next() else {
            return self.prepare(&Work::write(&[], to.0));
        };
        let Piece(first) = first?;
        if count == 1 {
            return self.prepare(&Work::write(&[first], to.0));
        }
        let mut list: [Sge<'_>; MOST_PIECES] = [first; MOST_PIECES];
        for (entry, piece) in list[1..].iter_mut().zip(pieces) {
            *entry = piece?.0;
        }
        self.prepare(&Work::write(&list[..count], to.0))
    }

    /// Prepares a put of one piece, whose completion a stream can wait for.
    #[inline]
    pub fn put_signaled(&mut self, piece: Piece<'_>, to: Span) -> Result<Put> {
        self.prepare(&Work::write(&[piece.0], to.0).signaled())
    }

    /// Prepares a get of as many bytes as `into` has.
    #[inline]
    pub fn get(&mut self, into: Piece<'_>, from: Span) -> Result<Put> {
        self.prepare(&Work::read(&[into.0], from.0).signaled())
    }

    /// Prepares an atomic operation on a word; `old` receives its old value.
    #[inline]
    pub fn atomic(&mut self, old: Piece<'_>, word: Span, atomic: Atomic) -> Result<Put> {
        let old = [old.0];
        let work = match atomic {
            Atomic::FetchAdd(add) => Work::fetch_add(&old, word.0, add),
            Atomic::CompareSwap { compare, swap } => {
                Work::compare_swap(&old, word.0, compare, swap)
            }
        };
        self.prepare(&work.signaled())
    }

    /// If WRITEs may be placed out of order: prepares, after [`Lane::look`], an empty WRITE that
    /// waits for the READ. Later work requests start after it.
    pub fn fence(&mut self, to: Span) -> Option<Result<Put>> {
        self.landing.as_ref()?;
        Some(self.prepare(&Work::write(&[], to.0).fenced()))
    }

    /// Prepares a put of 64-bit words in memory, each written atomically.
    #[inline]
    pub fn put_words(&mut self, words: Piece<'_>, to: Span) -> Result<Put> {
        self.prepare(&Work::write(&[words.0], to.0))
    }

    /// Prepares a put of a few bytes, which are copied now (inline).
    #[inline]
    pub fn put_bytes(&mut self, bytes: &[u8], to: Span) -> Result<Put> {
        self.prepare(&Work::write_inline(&[bytes], to.0))
    }

    /// Prepares a put of a word, copied now (inline), whose completion can be waited for. It has no
    /// order with other puts.
    #[inline]
    pub fn put_word(&mut self, word: u64, to: Span) -> Result<Put> {
        self.prepare(&Work::write_inline(&[&word.to_le_bytes()], to.0).signaled())
    }

    /// If WRITEs may be placed out of order: prepares a READ of `to`, for which the words wait. A
    /// NIC executes a READ after all earlier WRITEs.
    #[inline]
    pub fn look(&mut self, to: Span) -> Option<Result<Put>> {
        let landing = self.landing.as_ref()?;
        let look = [landing.piece(0, LOOK).0];
        let made = self.qp.prepare(&Work::read(&look, to.0));
        Some(made.map(Put).map_err(Error::from))
    }

    /// Prepares a put of words, copied now, after [`Lane::look`].
    #[inline]
    pub fn announce(&mut self, words: &[u8], to: Span) -> Result<Put> {
        self.behind(Work::write_inline(&[words], to.0))
    }

    /// As [`Lane::announce`], for words that are read when the put is executed.
    pub fn announce_from(&mut self, words: Piece<'_>, to: Span) -> Result<Put> {
        self.behind(Work::write(&[words.0], to.0))
    }

    #[inline]
    fn behind(&mut self, words: Work<'_>) -> Result<Put> {
        match self.landing {
            Some(_) => self.prepare(&words.signaled().fenced()),
            None => self.prepare(&words.signaled()),
        }
    }

    /// Posts puts from the CPU, in their order and with one doorbell.
    #[inline]
    pub fn post(&mut self, puts: impl Iterator<Item = Put>) -> Result<()> {
        Ok(self.qp.post_all(puts.map(|put| put.0))?)
    }

    /// Checks that a post of these puts, in this order, would not be refused for the order of the lane.
    pub fn check_order(&self, puts: impl Iterator<Item = Put>) -> Result<()> {
        Ok(self.qp.check_order(puts.map(|put| put.0))?)
    }

    /// The queue pair, for lists over several lanes.
    #[inline]
    pub fn queue(&mut self) -> &mut Qp {
        &mut self.qp
    }

    /// Enqueues a list on a stream.
    #[inline]
    pub fn post_on(&mut self, stream: &Stream, list: &[Descriptor<'_>]) -> Result<()> {
        Ok(rdma::post_on(stream, &mut [&mut self.qp], list)?)
    }

    /// Writes into `params` the addresses of the work-request fields of a message that a kernel
    /// completes. The last of `puts` is the stamp. `large`: the kernel fills in the destination;
    /// `length`, `offset`: it fills in these.
    pub fn patch(
        &self,
        mut puts: impl DoubleEndedIterator<Item = Put>,
        large: bool,
        [length, offset]: [bool; 2],
        params: &mut Stamp<MOST_CHUNKS>,
    ) -> Result<()> {
        let Some(stamp) = puts.next_back() else {
            let what = "the message has no puts";
            return Err(Error::new("post request", Kind::Invalid, what));
        };
        if self.landing.is_some() {
            // The READ before the stamp is not patched.
            puts.next_back();
        }
        let word32 = |put: Put, field| self.qp.field32(put.0, field).map(|word| word.addr().0);
        let word64 = |put: Put, field| self.qp.field64(put.0, field).map(|word| word.addr().0);
        params.stamp_control = word32(stamp, Field::Opcode)?;
        for (patch, put) in params.patch.iter_mut().zip(puts) {
            *patch = Patch {
                control: word32(put, Field::Opcode)?,
                ..Patch::default()
            };
            if large {
                patch.remote_address = word64(put, Field::RemoteAddress)?;
                patch.remote_key = word32(put, Field::RemoteKey)?;
            }
            if length {
                patch.length = word32(put, Field::Length(0))?;
            }
            if offset {
                patch.address = word64(put, Field::Address(0))?;
            }
            params.chunks += 1;
        }
        Ok(())
    }
}

impl From<Put> for SendRequest {
    fn from(put: Put) -> SendRequest {
        put.0
    }
}
