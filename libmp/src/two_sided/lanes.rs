//! Which lane a stream posts on: one of its own while there are some, so that a stream that waits
//! holds up no other.

use gdsync::Stream;
use gdsync::gpu::WeakStream;
use gdsync::rdma::Doorbell;

use crate::path::LANES;

/// Who posts on a lane.
#[derive(Debug)]
struct LaneUsers {
    doorbell: Doorbell,
    /// One, unless there were more streams than lanes; none on the CPU's. Each with the doorbell that
    /// it asked for.
    streams: Vec<(WeakStream, Doorbell)>,
}

/// The lanes of a context, the same to each peer. Lane 0 is the CPU's.
pub(crate) struct Lanes(Vec<LaneUsers>);

impl Lanes {
    pub fn new(doorbell: Doorbell) -> Lanes {
        let mut lanes = Lanes(Vec::new());
        lanes.add(doorbell);
        lanes
    }

    fn add(&mut self, doorbell: Doorbell) -> u8 {
        let streams = Vec::new();
        self.0.push(LaneUsers { doorbell, streams });
        (self.0.len() - 1) as u8
    }

    /// Who rings the NIC on a lane.
    pub fn doorbell(&self, lane: u8) -> Option<Doorbell> {
        Some(self.0.get(usize::from(lane))?.doorbell)
    }

    /// The lane of a stream, which it keeps as long as it lives.
    #[inline]
    pub fn of(&self, stream: &Stream, doorbell: Doorbell) -> Option<u8> {
        let id = stream.id();
        let its = |lane: &LaneUsers| {
            let mut streams = lane.streams.iter();
            streams.any(|(stream, wanted)| stream.id() == id && *wanted == doorbell)
        };
        Some(self.0.iter().position(its)? as u8)
    }

    /// Gives a stream that has none a lane: one whose streams are gone and on which, by `is_free`,
    /// nothing is posted, a new one, or if there are no more the one with the fewest streams.
    #[cold]
    pub fn assign(
        &mut self,
        stream: &Stream,
        doorbell: Doorbell,
        mut is_free: impl FnMut(u8) -> bool,
        is_blocked: impl Fn(u8) -> bool,
    ) -> u8 {
        for lane in &mut self.0 {
            lane.streams.retain(|(stream, _)| !stream.has_ended());
        }
        let others = 1..self.0.len() as u8;
        let with = |lane: u8| &self.0[usize::from(lane)];
        let free = others.clone().find(|lane| {
            let users = with(*lane);
            users.doorbell == doorbell && users.streams.is_empty() && is_free(*lane)
        });
        let lane = match free {
            Some(lane) => lane,
            None if self.0.len() < LANES => self.add(doorbell),
            // A queue pair's doorbell does not change; another one is better than none. Behind a
            // request that is prepared and not posted nothing can be posted.
            None => others
                .min_by_key(|lane| {
                    let other = with(*lane).doorbell != doorbell;
                    (other, is_blocked(*lane), with(*lane).streams.len())
                })
                .unwrap_or(1),
        };
        let user = (stream.downgrade(), doorbell);
        self.0[usize::from(lane)].streams.push(user);
        lane
    }

    /// The lanes of streams that are rung as `lane` is.
    pub fn like(&self, lane: u8) -> impl Iterator<Item = u8> {
        let doorbell = self.doorbell(lane);
        (1..self.0.len() as u8).filter(move |other| self.doorbell(*other) == doorbell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_have_lanes_of_their_own_while_there_are_some() {
        let gpu = gdsync::Gpu::soft().unwrap();
        let mut lanes = Lanes::new(Doorbell::Auto);
        let mut streams: Vec<_> = (1..LANES).map(|_| gpu.stream().unwrap()).collect();
        for (at, stream) in streams.iter().enumerate() {
            assert_eq!(lanes.of(stream, Doorbell::Auto), None);
            let lane = lanes.assign(stream, Doorbell::Auto, |_| true, |_| false);
            assert_eq!(usize::from(lane), at + 1);
            assert_eq!(lanes.of(stream, Doorbell::Auto), Some(lane));
        }
        // Shared: not the one where nothing can be posted.
        let more = gpu.stream().unwrap();
        assert_eq!(
            lanes.assign(&more, Doorbell::Auto, |_| true, |at| at == 1),
            2
        );
        // One whose stream is gone, but not while its puts are under way.
        streams.remove(4);
        let last = [gpu.stream().unwrap(), gpu.stream().unwrap()];
        assert_eq!(
            lanes.assign(&last[0], Doorbell::Auto, |at| at != 5, |_| false),
            5
        );
        streams.remove(4);
        assert_eq!(
            lanes.assign(&last[1], Doorbell::Auto, |_| true, |_| false),
            6
        );
        assert_eq!(lanes.like(3).count(), LANES - 1);
    }
}
