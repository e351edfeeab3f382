//! Puts that belong together.

use gdsync::rdma::{SendRequest, Sge, Work};

use super::{Lane, Piece, Span};
use crate::error::{Error, Kind, Result};
use crate::kernels::STAMPS;

/// Pieces of one put.
pub(crate) const MOST_PIECES: usize = 30;
/// Bytes of one put.
pub(crate) const MOST_BYTES: u64 = 1 << 30;
/// Bytes that a READ reads to keep a word behind its payload.
const LOOK: usize = 8;

/// A put that is prepared on a lane, under way, or done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Put(pub(super) SendRequest);

/// Puts that belong together: prepared all or not at all. At most `N`.
pub(crate) struct Batch<'q, const N: usize = { STAMPS + 3 }> {
    lane: &'q mut Lane,
    made: [Option<Put>; N],
    count: usize,
}

impl<'q> Batch<'q> {
    /// Of as many as the longest message has.
    pub fn new(lane: &'q mut Lane) -> Batch<'q> {
        Batch::of(lane)
    }
}

impl<'q> Batch<'q, 3> {
    /// Of the three that a short message has.
    pub fn short(lane: &'q mut Lane) -> Batch<'q, 3> {
        Batch::of(lane)
    }
}

impl<'q, const N: usize> Batch<'q, N> {
    fn of(lane: &'q mut Lane) -> Batch<'q, N> {
        Batch {
            lane,
            made: [None; N],
            count: 0,
        }
    }

    fn add(&mut self, work: &Work<'_>) -> Result<Put> {
        let made = self.lane.qp.prepare(work);
        self.keep(made)
    }

    /// Takes all back if one is refused.
    fn keep(&mut self, made: gdsync::Result<SendRequest>) -> Result<Put> {
        match made {
            Ok(request) => {
                let put = Put(request);
                self.made[self.count] = Some(put);
                self.count += 1;
                Ok(put)
            }
            Err(e) => {
                self.undo();
                Err(e.into())
            }
        }
    }

    /// Puts pieces of memory, one behind the other; at most [`MOST_PIECES`] and [`MOST_BYTES`].
    #[inline]
    pub fn put<'a>(
        &mut self,
        pieces: impl ExactSizeIterator<Item = Piece<'a>>,
        to: Span,
    ) -> Result<Put> {
        let mut pieces = pieces.map(|piece| piece.0);
        let count = pieces.len();
        let Some(first) = pieces.next() else {
            return self.add(&Work::write(&[], to.0));
        };
        if count == 1 {
            return self.add(&Work::write(&[first], to.0));
        }
        let mut list: [Sge<'_>; MOST_PIECES] = [first; MOST_PIECES];
        for (place, piece) in list[1..].iter_mut().zip(pieces) {
            *place = piece;
        }
        self.add(&Work::write(&list[..count], to.0))
    }

    /// Puts a few bytes, which are captured now.
    #[inline]
    pub fn put_bytes(&mut self, bytes: &[u8], to: Span) -> Result<Put> {
        self.add(&Work::write_inline(&[bytes], to.0))
    }

    /// Puts words, captured now, that are visible only after all that this lane put earlier. Their
    /// end is that of the batch.
    #[inline]
    pub fn announce(&mut self, words: &[u8], to: Span) -> Result<Put> {
        self.behind(Work::write_inline(&[words], to.0), to)
    }

    /// As [`Batch::announce`], of words that are read when they are put.
    pub fn announce_from(&mut self, words: Piece<'_>, to: Span) -> Result<Put> {
        self.behind(Work::write(&[words.0], to.0), to)
    }

    /// Where WRITEs may be placed out of order, the words wait for a READ from there, which is
    /// carried out behind all earlier ones.
    #[inline]
    fn behind(&mut self, words: Work<'_>, to: Span) -> Result<Put> {
        let Some(landing) = &self.lane.landing else {
            return self.add(&words.signaled());
        };
        let look = [landing.piece(0, LOOK).0];
        let made = self.lane.qp.prepare(&Work::read(&look, to.0));
        self.keep(made)?;
        self.add(&words.signaled().fenced())
    }

    /// The first three.
    pub fn first_three(&self) -> [Option<Put>; 3] {
        let mut all = self.all();
        [all.next(), all.next(), all.next()]
    }

    /// All, in their order.
    pub fn all(&self) -> impl Iterator<Item = Put> + '_ {
        self.made[..self.count].iter().flatten().copied()
    }

    /// Takes all back, the newest first.
    pub fn undo(&mut self) {
        let made = self.made[..self.count].iter_mut();
        for put in made.rev().filter_map(Option::take) {
            // It was prepared just now and not posted.
            let _ = self.lane.abort(put);
        }
        self.count = 0;
    }

    /// Hands all to the NIC, by the CPU. Answers the last.
    pub fn post(self) -> Result<Put> {
        let mut last = None;
        for put in self.made[..self.count].iter().flatten() {
            self.lane.qp.post(put.0)?;
            last = Some(*put);
        }
        last.ok_or_else(|| Error::new("post send", Kind::Invalid, "nothing to post"))
    }

    /// The lane that they are prepared on.
    pub fn lane(&mut self) -> &mut Lane {
        self.lane
    }
}
