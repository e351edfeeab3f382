//! Links: the queue pairs to one peer, and how they come about.
//!
//! A *lane* is a queue pair on each side, on which puts keep their order. Lane 0 is posted on by the
//! CPU; each stream that sends or receives has another, so that a stream that waits holds up no
//! other. Lanes open on first use: each side tells the other its end, whichever comes first.

use gdsync::rdma::{Descriptor, Doorbell, Field, Qp, QpAddress, post_on};
use gdsync::{Status, Stream};

use super::{Keys, Nic, Put, Rights};
use crate::error::{Error, Kind, Result};
use crate::kernels::{Patch, STAMPS, Stamp};
use crate::path::WordOrder;
use crate::wire::record::{NIC, Record};

/// Lanes that a link has at most: one for the CPU, the others for streams, which share them if there
/// are more.
pub(crate) const LANES: usize = 8;

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

/// A queue pair to a peer.
pub(crate) struct Lane {
    pub(super) qp: Qp,
    /// Where the READs land that keep words behind their payload; `None`: words are plain WRITEs.
    pub(super) landing: Option<Keys>,
    /// The other end, if the peer is this rank itself.
    mirror: Option<Qp>,
    stage: Stage,
}

impl Lane {
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

    /// Whether a put is under way.
    pub fn is_pending(&mut self, put: Put) -> bool {
        matches!(self.qp.poll(put.0), Ok(None))
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

    /// Puts into `params` where a kernel finds the puts of a message, whose last is the stamp, to
    /// complete them: with the place of a `large` one, and where `late` says so length and offset.
    /// Answers the stamp.
    pub fn patch(
        &self,
        puts: &[Put],
        large: bool,
        late: [bool; 2],
        params: &mut Stamp<STAMPS>,
    ) -> Result<Put> {
        let Some((stamp, payload)) = puts.split_last() else {
            let what = "a message without puts";
            return Err(Error::new("patch message", Kind::Invalid, what));
        };
        // The READ in front of the stamp stays as it is.
        let payload = match (&self.landing, payload.split_last()) {
            (Some(_), Some((_, payload))) => payload,
            _ => payload,
        };
        let word32 = |put: &Put, field| self.qp.field32(put.0, field).map(|word| word.addr().0);
        let word64 = |put: &Put, field| self.qp.field64(put.0, field).map(|word| word.addr().0);
        params.stamp_control = word32(stamp, Field::Opcode)?;
        for (patch, put) in params.patch.iter_mut().zip(payload) {
            let [length, offset] = late;
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
        Ok(*stamp)
    }
}

/// The lanes to one peer.
pub(crate) struct Link {
    peer: u32,
    lanes: [Option<Lane>; LANES],
    /// How words are kept behind their payload, once that is chosen.
    pub order: Option<WordOrder>,
    /// As [`Lane::landing`].
    landing: Option<Keys>,
}

impl Link {
    pub fn new(peer: u32) -> Link {
        Link {
            peer,
            lanes: Default::default(),
            order: None,
            landing: None,
        }
    }

    pub fn lane(&mut self, lane: u8) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(lane))?.as_mut()
    }

    /// Makes this side's end of a lane, rung by `doorbell`, if there is none. Answers what to tell
    /// the peer of it.
    pub fn make(&mut self, nic: &Nic, lane: u8, doorbell: Doorbell) -> Result<Option<Record>> {
        let at = usize::from(lane);
        if at >= LANES {
            let what = format!("lane {lane}");
            let error = Error::new("open lane", Kind::Protocol, what);
            return Err(error.with_rank(self.peer).with_limit(LANES));
        }
        let own = self.peer == nic.me;
        if own {
            self.choose_order(nic, nic.device.keeps_write_order())?;
        }
        if self.lanes[at].is_some() {
            return Ok(None);
        }
        let mut qp = nic.queue_pair(at, doorbell)?;
        let address = qp.address();
        let mut mirror = None;
        if own {
            let mut other = nic.queue_pair(at, doorbell)?;
            qp.connect(&other.address())?;
            other.connect(&address)?;
            mirror = Some(other);
        }
        self.lanes[at] = Some(Lane {
            qp,
            landing: self.landing.clone(),
            stage: if own { Stage::Open } else { Stage::Made },
            mirror,
        });
        Ok((!own).then(|| Record::new(NIC, &address.to_bytes())))
    }

    /// Connects this side's end to the peer's; `keeps_order`: the peer's NIC places WRITEs in order.
    pub fn connect(
        &mut self,
        nic: &Nic,
        lane: u8,
        records: &[Record],
        keeps_order: bool,
    ) -> Result<()> {
        let address = QpAddress::from_bytes(Record::find(records, NIC)?)?;
        self.choose_order(nic, keeps_order)?;
        let landing = self.landing.clone();
        let mine = self.known(lane)?;
        mine.qp.connect(&address)?;
        mine.landing = landing;
        mine.stage = Stage::Connected;
        Ok(())
    }

    /// The peer has connected its end, to which this side's was before.
    pub fn connected(&mut self, lane: u8) -> Result<()> {
        self.known(lane)?.stage = Stage::Open;
        Ok(())
    }

    fn known(&mut self, lane: u8) -> Result<&mut Lane> {
        let peer = self.peer;
        self.lane(lane).ok_or_else(|| {
            Error::new("open lane", Kind::Protocol, format!("no lane {lane}")).with_rank(peer)
        })
    }

    /// Chooses how words to the peer are kept behind their payload, once for all its lanes.
    fn choose_order(&mut self, nic: &Nic, keeps_order: bool) -> Result<()> {
        if self.order.is_some() {
            return Ok(());
        }
        let (order, why) = nic.order.choose(keeps_order, nic.device.reads())?;
        if order == WordOrder::BehindRead {
            self.landing = Some(nic.pinned(64, Rights::Landing)?);
        }
        self.order = Some(order);
        let (me, peer) = (nic.me, self.peer);
        tracing::info!(target: "mp", "rank {me}: message words to rank {peer} are {order}: {why}");
        Ok(())
    }

    pub fn is_open(&self, lane: u8) -> bool {
        let lane = self.lanes.get(usize::from(lane)).and_then(Option::as_ref);
        lane.is_some_and(|lane| lane.stage == Stage::Open)
    }

    /// Whether a lane waits for the peer.
    pub fn is_opening(&self) -> bool {
        let mut lanes = self.lanes.iter().flatten();
        lanes.any(|lane| lane.stage != Stage::Open)
    }

    /// How many lanes have something under way, on the NIC or a stream.
    pub fn busy_lanes(&mut self) -> usize {
        let lanes = self.lanes.iter_mut().flatten();
        lanes
            .filter_map(|lane| (!lane.is_quiet()).then_some(()))
            .count()
    }

    /// Why a lane is in error, if one is.
    pub fn error(&mut self) -> Option<Status> {
        let mut lanes = self.lanes.iter_mut().flatten();
        lanes.find_map(|lane| lane.qp.error())
    }

    /// Nothing of the peer reaches this side any more.
    pub fn fail(&mut self, status: Status) {
        for lane in self.lanes.iter_mut().flatten() {
            lane.qp.fail(status);
            if let Some(mirror) = &mut lane.mirror {
                mirror.fail(status);
            }
        }
    }
}
