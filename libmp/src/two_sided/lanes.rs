//! The assignment of streams to lanes: each stream has its own lane while there are enough, so a
//! waiting stream does not block another.

use gdsync::Stream;
use gdsync::gpu::{Event, WeakStream};
use gdsync::rdma::Doorbell;

use crate::path::LANES;

/// The streams of a lane, and its doorbell.
#[derive(Debug)]
struct LaneUsers {
    doorbell: Doorbell,
    /// One stream, unless there were more streams than lanes; none on the CPU's lane. Each with the
    /// doorbell that it requested.
    streams: Vec<(WeakStream, Doorbell)>,
}

/// The lanes of a context, the same for each peer. Lane 0 belongs to the CPU.
pub(crate) struct StreamLanes(Vec<LaneUsers>);

impl StreamLanes {
    pub fn new(doorbell: Doorbell) -> StreamLanes {
        let mut lanes = StreamLanes(Vec::new());
        lanes.add(doorbell);
        lanes
    }

    fn add(&mut self, doorbell: Doorbell) -> u8 {
        let streams = Vec::new();
        self.0.push(LaneUsers { doorbell, streams });
        (self.0.len() - 1) as u8
    }

    /// The doorbell of a lane.
    pub fn doorbell(&self, lane: u8) -> Option<Doorbell> {
        Some(self.0.get(usize::from(lane))?.doorbell)
    }

    /// The present ends of the streams that have unfinished work and room for an event.
    pub fn ends(&self) -> impl Iterator<Item = Event> {
        let streams = self.0.iter().flat_map(|lane| &lane.streams);
        streams.filter_map(|(stream, _)| stream.end().ok().flatten())
    }

    /// The lane of a stream, which the stream keeps as long as it lives.
    #[inline]
    pub fn of(&self, stream: &Stream, doorbell: Doorbell) -> Option<u8> {
        let id = stream.id();
        let its = |lane: &LaneUsers| {
            let mut streams = lane.streams.iter();
            streams.any(|(stream, wanted)| stream.id() == id && *wanted == doorbell)
        };
        Some(self.0.iter().position(its)? as u8)
    }

    /// Assigns a lane to a stream that has none: a lane whose streams have ended and on which, by
    /// `is_free`, nothing is posted; otherwise a new lane; otherwise, at the limit, the lane with
    /// the fewest streams.
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
            // The doorbell of a queue pair cannot change; a lane with another doorbell is the last
            // choice. Nothing can be posted on a lane after a request that is prepared and not
            // posted.
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

    /// The lanes of streams with the same doorbell as `lane`.
    pub fn like(&self, lane: u8) -> impl Iterator<Item = u8> {
        let doorbell = self.doorbell(lane);
        (1..self.0.len() as u8).filter(move |other| self.doorbell(*other) == doorbell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_has_its_own_lane_while_lanes_are_left() {
        let gpu = gdsync::Gpu::soft().unwrap();
        let mut lanes = StreamLanes::new(Doorbell::Auto);
        let mut streams: Vec<_> = (1..LANES).map(|_| gpu.stream().unwrap()).collect();
        for (at, stream) in streams.iter().enumerate() {
            assert_eq!(lanes.of(stream, Doorbell::Auto), None);
            let lane = lanes.assign(stream, Doorbell::Auto, |_| true, |_| false);
            assert_eq!(usize::from(lane), at + 1);
            assert_eq!(lanes.of(stream, Doorbell::Auto), Some(lane));
        }
        // A shared lane: not the lane on which nothing can be posted.
        let more = gpu.stream().unwrap();
        assert_eq!(
            lanes.assign(&more, Doorbell::Auto, |_| true, |at| at == 1),
            2
        );
        // A lane whose stream has ended is reused, but not while its puts are in flight.
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
