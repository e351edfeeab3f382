//! Links: the lanes to one peer, and how they open.
//!
//! The CPU posts on lane 0. Each stream that sends or receives has another lane, so a waiting
//! stream does not block other streams. Lanes open on first use. Each side sends the other its
//! end, if the lane has a queue pair; either side may start. Copies have one side.

use gdsync::Status;
use gdsync::rdma::Doorbell;

use super::{Lane, Path, Paths, Shared, WordOrder, copy, nic};
use crate::error::{Error, Kind, Result};
use crate::wire::record::Record;

/// Maximum number of lanes of a link: one for the CPU, the others for streams, which share lanes if
/// there are more streams.
pub(crate) const LANES: usize = 8;

const _: () = assert!(LANES <= u8::BITS as usize);

/// The lanes to one peer.
pub(crate) struct Link {
    peer: u32,
    lanes: [Option<Lane>; LANES],
    /// How the queue pairs order words after their payload.
    word_ordering: nic::WordOrdering,
    /// The memory that the two ranks have mapped for each other.
    pub shared: Shared,
}

impl Link {
    pub fn new(peer: u32) -> Link {
        Link {
            peer,
            lanes: Default::default(),
            word_ordering: nic::WordOrdering::default(),
            shared: Shared::default(),
        }
    }

    #[inline]
    pub fn lane(&mut self, lane: u8) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(lane))?.as_mut()
    }

    /// A lane, and the memory that the two ranks share.
    #[inline]
    pub fn lane_and_shared(&mut self, lane: u8) -> Option<(&mut Lane, &Shared)> {
        let lane = self.lanes.get_mut(usize::from(lane))?.as_mut()?;
        Some((lane, &self.shared))
    }

    /// The lanes with a bit in `mask` that exist.
    pub fn some(&mut self, mask: u8) -> impl Iterator<Item = &mut Lane> {
        let lanes = (0_u8..).zip(&mut self.lanes);
        lanes.filter_map(move |(at, lane)| (mask >> at & 1 == 1).then_some(lane.as_mut()?))
    }

    /// How the queue pairs order words after their payload, once it is chosen.
    pub fn word_order(&self) -> Option<WordOrder> {
        self.word_ordering.order
    }

    /// Makes this side's end of a lane, whose doorbell `doorbell` writes, if there is none. Returns
    /// the record for the peer.
    pub fn make(&mut self, paths: &Paths, lane: u8, doorbell: Doorbell) -> Result<Option<Record>> {
        let at = usize::from(lane);
        if at >= LANES {
            let what = format!(
                "rank {} named lane {lane}, which is out of range",
                self.peer
            );
            let error = Error::new("open connection", Kind::Protocol, what);
            return Err(error.with_rank(self.peer).with_limit(LANES, "lanes"));
        }
        if self.lanes[at].is_some() {
            return Ok(None);
        }
        debug_assert!(paths.chosen(self.peer).is_some(), "the peer was not asked");
        let path = paths.to(self.peer);
        let copy = match path {
            Path::Nic | Path::Tcp => None,
            Path::Local | Path::Ipc => Some(Box::new(copy::Lane::new(&paths.copier)?)),
        };
        let (nic, end) = match path {
            Path::Local => (None, None),
            Path::Nic | Path::Tcp | Path::Ipc => {
                let [_, queues] = paths.ways(self.peer);
                let device = paths.device_of(queues)?;
                let made = nic::Lane::make(device, &self.word_ordering, at, doorbell)?;
                (Some(made.0), Some(made.1))
            }
        };
        self.lanes[at] = Some(Lane::new(nic, copy));
        Ok(end)
    }

    /// Connects this side's end to the peer's.
    pub fn connect(&mut self, paths: &Paths, lane: u8, ends: &[Record]) -> Result<()> {
        let Link {
            peer,
            lanes,
            word_ordering,
            ..
        } = self;
        match &mut known(lanes, *peer, lane)?.nic {
            Some(lane) => {
                let device = paths.device_of(lane.path())?;
                lane.connect(device, word_ordering, *peer, ends)
            }
            None => Ok(()),
        }
    }

    /// Opens a lane: the peer has connected its end, as this side had before.
    pub fn connected(&mut self, lane: u8) -> Result<()> {
        if let Some(lane) = &mut known(&mut self.lanes, self.peer, lane)?.nic {
            lane.connected();
        }
        Ok(())
    }

    #[inline]
    pub fn is_open(&self, lane: u8) -> bool {
        let lane = self.lanes.get(usize::from(lane)).and_then(Option::as_ref);
        lane.is_some_and(Lane::is_open)
    }

    /// Whether a lane waits for the peer to connect.
    pub fn is_opening(&self) -> bool {
        let mut lanes = self.lanes.iter().flatten();
        lanes.any(|lane| !lane.is_open())
    }

    /// Executes the CPU's copies to the peer, for one round. Returns `true` if there were any.
    pub fn go_on(&mut self) -> bool {
        let lanes = self.lanes.iter_mut().flatten();
        lanes.fold(false, |any, lane| lane.go_on() | any)
    }

    /// Number of lanes with operations in flight, on the NIC or a stream.
    pub fn busy_lanes(&mut self) -> usize {
        let lanes = self.lanes.iter_mut().flatten();
        lanes
            .filter_map(|lane| (!lane.is_quiet()).then_some(()))
            .count()
    }

    /// The status with which a lane failed, if one did.
    pub fn error(&mut self) -> Option<Status> {
        let mut lanes = self.lanes.iter_mut().flatten();
        lanes.find_map(Lane::error)
    }

    /// The status with which a lane failed, if it did.
    pub fn error_of(&mut self, lane: u8) -> Option<Status> {
        self.lane(lane).and_then(Lane::error)
    }

    /// Fails all lanes: the peer's operations cannot reach this side any more.
    pub fn fail(&mut self, status: Status) {
        for lane in self.lanes.iter_mut().flatten() {
            lane.fail(status);
        }
    }
}

fn known(lanes: &mut [Option<Lane>; LANES], peer: u32, lane: u8) -> Result<&mut Lane> {
    let known = lanes.get_mut(usize::from(lane)).and_then(Option::as_mut);
    known.ok_or_else(|| {
        let what = format!("rank {peer} named lane {lane}, which is not open");
        Error::new("open connection", Kind::Protocol, what).with_rank(peer)
    })
}
