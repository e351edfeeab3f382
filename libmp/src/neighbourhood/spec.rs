//! [`Neighbour`]: a neighbour as the application names it, and the check of all of them.

use crate::error::{Error, Kind, Result};
use crate::path::{MOST_BYTES, MOST_PIECES};
use crate::region::{Slice, Strided};
use crate::two_sided::NULL_RANK;
use crate::two_sided::engine::Engine;

pub(super) const BUILD: &str = "build neighbourhood";
/// Blocks of a send queue that the data of a step takes for a neighbour, at most, if its rank is
/// several neighbours: the put, the READ before the word, and the word.
const BLOCKS: usize = 3;

/// A neighbour in a [`Neighbourhood`](crate::Neighbourhood): a rank, two tags, and the pieces of
/// memory that are sent to it and received from it in each step.
///
/// The same rank may be several neighbours, which differ in their tags: in a dimension of two ranks
/// with a periodic boundary, the other rank is the left and the right neighbour. The tags are
/// those of neighbourhoods alone and have nothing to do with the tags of messages.
///
/// ```
/// # use mp::{Context, bootstrap::Local, gdsync::Gpu};
/// use mp::gdsync::gpu::MemoryKind;
/// use mp::{NULL_RANK, Neighbour};
/// # let alone = Local::ranks(1).remove(0);
/// # let ctx = Context::builder().bootstrap(alone).gpu(&Gpu::soft()?).build()?;
///
/// const LEFTWARDS: u32 = 0;
/// const RIGHTWARDS: u32 = 1;
/// let left = ctx.rank().checked_sub(1).unwrap_or(NULL_RANK); // the edge of the domain
/// let field = ctx.alloc(MemoryKind::Device, 100 * 100)?; // rows of 100 bytes
/// let column = |x| field.strided(x, 1, 100, 100);
/// let neighbour = Neighbour::new(left, LEFTWARDS, RIGHTWARDS)
///     .send(&column(1)?)
///     .receive(&column(0)?);
/// assert_eq!((neighbour.sends(), neighbour.receives()), (100, 100));
/// # Ok::<(), mp::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Neighbour {
    pub(super) rank: u32,
    pub(super) send: u32,
    pub(super) receive: u32,
    pub(super) sent: Vec<Strided>,
    pub(super) received: Vec<Strided>,
}

impl Neighbour {
    /// A neighbour without pieces. The data sent under `send_tag` is received by the neighbour of
    /// `rank` that names this rank with the same tags in exchanged places. `rank` may be the rank
    /// itself: its data is copied. [`NULL_RANK`](crate::NULL_RANK) is no neighbour.
    pub fn new(rank: u32, send_tag: u32, receive_tag: u32) -> Neighbour {
        Neighbour {
            rank,
            send: send_tag,
            receive: receive_tag,
            sent: Vec::new(),
            received: Vec::new(),
        }
    }

    /// Adds a piece that is sent, behind those that were added before: a [`Slice`] or a
    /// [`Strided`].
    #[must_use]
    pub fn send(mut self, piece: impl Into<Strided>) -> Neighbour {
        self.sent.push(piece.into());
        self
    }

    /// Adds a piece that is received, behind those that were added before: a [`Slice`] or a
    /// [`Strided`]. The pieces may divide the bytes in another way than those of the sender.
    #[must_use]
    pub fn receive(mut self, piece: impl Into<Strided>) -> Neighbour {
        self.received.push(piece.into());
        self
    }

    /// The rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The bytes that are sent in each step.
    pub fn sends(&self) -> u64 {
        bytes(&self.sent)
    }

    /// The bytes that are received in each step.
    pub fn receives(&self) -> u64 {
        bytes(&self.received)
    }

    /// The neighbour, for texts.
    pub(super) fn name(&self) -> String {
        let Neighbour {
            rank,
            send,
            receive,
            ..
        } = self;
        format!("rank {rank} (send tag {send}, receive tag {receive})")
    }

    /// An error of the neighbour.
    pub(super) fn error(&self, kind: Kind, what: String) -> Error {
        Error::new(BUILD, kind, what).of_message(Some(self.rank), self.receive, 0)
    }

    /// The only piece that is received, if it is contiguous.
    pub(super) fn direct(&self) -> Option<&Slice> {
        let mut pieces = self.received.iter().filter(|piece| !piece.is_empty());
        match (pieces.next()?.pieces(), pieces.next()) {
            ([one], None) => Some(one),
            _ => None,
        }
    }

    /// Whether the NIC gathers the pieces that are sent; `whole`: there is at most one. A rank that is
    /// several neighbours has one queue, in which the lists of pieces would take the room.
    pub(super) fn is_gathered(&self, among: &[Neighbour], whole: bool) -> bool {
        let same = among.iter().filter(|other| other.rank == self.rank);
        let most = if whole || same.count() > 1 {
            1
        } else {
            MOST_PIECES
        };
        self.sent.iter().map(Strided::count).sum::<usize>() <= most
    }
}

fn bytes(pieces: &[Strided]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

/// Checks the neighbours, and leaves out the null rank.
///
/// # Errors
/// `Invalid`, naming the neighbour.
pub(super) fn check(engine: &Engine, neighbours: Vec<Neighbour>) -> Result<Vec<Neighbour>> {
    let mut kept: Vec<Neighbour> = Vec::with_capacity(neighbours.len());
    for one in neighbours {
        for piece in one.sent.iter().chain(&one.received) {
            if !engine.paths.knows(piece.memory().keys()) {
                let name = one.name();
                let what = format!(
                    "{piece:?}, for {name}, is registered by another context; use memory of this \
                     context"
                );
                return Err(one.error(Kind::Invalid, what));
            }
        }
        for (len, verb) in [(one.sends(), "sent to"), (one.receives(), "received from")] {
            if len > MOST_BYTES {
                let name = one.name();
                let what =
                    format!("{len} bytes are {verb} {name} in a step; use several neighbours");
                return Err(one
                    .error(Kind::Invalid, what)
                    .with_limit(MOST_BYTES, "bytes"));
            }
        }
        if one.rank == NULL_RANK {
            continue;
        }
        if one.rank >= engine.size {
            let what = format!(
                "rank {} is not in the job of {} ranks",
                one.rank, engine.size
            );
            return Err(one.error(Kind::Invalid, what));
        }
        let tags = |one: &Neighbour| (one.rank, one.send, one.receive);
        if kept.iter().any(|other| tags(other) == tags(&one)) {
            let what = format!("{} is named twice; use different tags", one.name());
            return Err(one.error(Kind::Invalid, what));
        }
        kept.push(one);
    }
    let most = engine.paths.queue_blocks() as usize / BLOCKS;
    let too_many = |one: &&Neighbour| {
        let same = kept.iter().filter(|other| other.rank == one.rank);
        one.rank != engine.rank && same.count() > most
    };
    if let Some(one) = kept.iter().find(too_many) {
        let what = format!(
            "rank {} is too many neighbours for the queue to it; combine their pieces, or use a \
             larger QpConfig::send_blocks",
            one.rank
        );
        return Err(one
            .error(Kind::Invalid, what)
            .with_limit(most, "neighbours"));
    }
    Ok(kept)
}
