//! A lane by the NIC: a queue pair on each side, and the work requests that puts become.

use gdsync::rdma::{
    self, Descriptor, Doorbell, Field, Qp, QpAddress, SendRequest, Sge, Work, post_on,
};
use gdsync::{Status, Stream};

use super::{Keys, MOST_PIECES, Nic, Piece, Span};
use crate::error::{Error, Kind, Result};
use crate::kernels::{Patch, STAMPS, Stamp};
use crate::path::WordOrder;
use crate::wire::record::{NIC, Record};

/// Bytes that a READ reads to keep a word behind its payload.
const LOOK: usize = 8;

/// How far a lane has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// This side's end is made, and told to the peer.
    Made,
    /// It is connected to the peer's.
    Connected,
    /// The peer has connected its end, too.
    Open,
}

/// A put that is prepared on a queue pair, under way, or done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Put(SendRequest);

/// How words to a peer are kept behind their payload: chosen once for all lanes to it.
#[derive(Default)]
pub(crate) struct Words {
    /// `None`: it is not chosen yet.
    pub order: Option<WordOrder>,
    /// As [`Lane::landing`].
    landing: Option<Keys>,
}

impl Words {
    /// Chooses, if that is not done. `keeps_order`: the peer's NIC places WRITEs in order.
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
    /// Where the READs land that keep words behind their payload; `None`: words are plain WRITEs.
    landing: Option<Keys>,
    stage: Stage,
}

impl Lane {
    /// This side's end of lane `lane`, rung by `doorbell`, and what to tell the peer of it: the
    /// address, and whether the NIC here places the WRITEs that it receives in the order in which
    /// they were posted.
    pub fn make(
        nic: &Nic,
        words: &Words,
        lane: usize,
        doorbell: Doorbell,
    ) -> Result<(Lane, Record)> {
        let qp = nic.queue_pair(lane, doorbell)?;
        let mut end = qp.address().to_bytes().to_vec();
        end.push(nic.device.keeps_write_order().into());
        let lane = Lane {
            qp,
            landing: words.landing.clone(),
            stage: Stage::Made,
        };
        Ok((lane, Record::new(NIC, &end)))
    }

    /// Connects this side's end to the one that `peer` has named.
    pub fn connect(
        &mut self,
        nic: &Nic,
        words: &mut Words,
        peer: u32,
        records: &[Record],
    ) -> Result<()> {
        let end = Record::find(records, NIC)?;
        let (address, keeps_order) = match end.split_last() {
            Some((&keeps @ (0 | 1), address)) => (QpAddress::from_bytes(address)?, keeps == 1),
            _ => {
                let what = "an end of a lane that does not say how WRITEs are placed";
                return Err(Error::new("open lane", Kind::Protocol, what));
            }
        };
        words.choose(nic, peer, keeps_order)?;
        self.qp.connect(&address)?;
        self.landing = words.landing.clone();
        self.stage = Stage::Connected;
        Ok(())
    }

    /// The peer has connected its end, to which this side's was before.
    pub fn connected(&mut self) {
        self.stage = Stage::Open;
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// What has become of a put; `None`: it is under way.
    ///
    /// # Errors
    /// It is so old that the queue has forgotten it.
    pub fn poll(&mut self, put: Put) -> Result<Option<Status>> {
        match self.qp.poll(put.0)? {
            // What went before it failed, and it was flushed.
            Some(Status::FLUSHED) => Ok(Some(self.qp.error().unwrap_or(Status::FLUSHED))),
            status => Ok(status),
        }
    }

    /// Takes a put back that was prepared and not posted: the newest first.
    pub fn abort(&mut self, put: Put) -> Result<()> {
        Ok(self.qp.abort(put.0)?)
    }

    /// Has `stream` wait until a put is done.
    pub fn wait_on(&mut self, stream: &Stream, put: Put) -> Result<()> {
        let list = [Descriptor::wait(put.0)];
        Ok(post_on(stream, &mut [&mut self.qp], &list)?)
    }

    /// Whether a kernel may wait for words that arrive by this lane.
    pub fn may_spin(&self) -> bool {
        self.qp.may_spin()
    }

    /// Whether nothing that was posted is under way, on the NIC or a stream.
    pub fn is_quiet(&mut self) -> bool {
        self.qp.is_quiet()
    }

    /// Why the queue pair is in error, if it is.
    pub fn error(&mut self) -> Option<Status> {
        self.qp.error()
    }

    /// Nothing of the peer reaches this side any more.
    pub fn fail(&mut self, status: Status) {
        self.qp.fail(status);
    }

    fn prepare(&mut self, work: &Work<'_>) -> Result<Put> {
        Ok(Put(self.qp.prepare(work)?))
    }

    /// Prepares a put of pieces of memory, one behind the other.
    #[inline]
    pub fn put<'a>(
        &mut self,
        mut pieces: impl ExactSizeIterator<Item = Piece<'a>>,
        to: Span,
    ) -> Result<Put> {
        let count = pieces.len();
        let Some(Piece(first)) = pieces.next() else {
            return self.prepare(&Work::write(&[], to.0));
        };
        if count == 1 {
            return self.prepare(&Work::write(&[first], to.0));
        }
        let mut list: [Sge<'_>; MOST_PIECES] = [first; MOST_PIECES];
        for (place, piece) in list[1..].iter_mut().zip(pieces) {
            *place = piece.0;
        }
        self.prepare(&Work::write(&list[..count], to.0))
    }

    /// Prepares a put of a few bytes, which are captured now.
    #[inline]
    pub fn put_bytes(&mut self, bytes: &[u8], to: Span) -> Result<Put> {
        self.prepare(&Work::write_inline(&[bytes], to.0))
    }

    /// What goes in front of words: where WRITEs may be placed out of order, these wait for a READ
    /// from there, which is carried out behind all earlier ones.
    #[inline]
    pub fn look(&mut self, to: Span) -> Option<Result<Put>> {
        let landing = self.landing.as_ref()?;
        let look = [landing.piece(0, LOOK).0];
        let made = self.qp.prepare(&Work::read(&look, to.0));
        Some(made.map(Put).map_err(Error::from))
    }

    /// Prepares a put of words, captured now, behind [`Lane::look`].
    #[inline]
    pub fn announce(&mut self, words: &[u8], to: Span) -> Result<Put> {
        self.behind(Work::write_inline(&[words], to.0))
    }

    /// As [`Lane::announce`], of words that are read when they are put.
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

    /// Hands a put to the NIC, by the CPU.
    #[inline]
    pub fn post(&mut self, put: Put) -> Result<()> {
        Ok(self.qp.post(put.0)?)
    }

    /// Enqueues a list.
    #[inline]
    pub fn post_on(&mut self, stream: &Stream, list: &[Descriptor<'_>]) -> Result<()> {
        Ok(rdma::post_on(stream, &mut [&mut self.qp], list)?)
    }

    /// Puts into `params` where a kernel finds the puts of a message, whose last is the stamp, to
    /// complete them: with the place of a `large` one, and where `late` says so length and offset.
    pub fn patch(
        &self,
        mut puts: impl DoubleEndedIterator<Item = Put>,
        large: bool,
        [length, offset]: [bool; 2],
        params: &mut Stamp<STAMPS>,
    ) -> Result<()> {
        let Some(stamp) = puts.next_back() else {
            let what = "a message without puts";
            return Err(Error::new("patch message", Kind::Invalid, what));
        };
        if self.landing.is_some() {
            // The READ in front of the stamp stays as it is.
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
