//! Tests of plans over two connected pairs of lanes: order, one submission, and undoing.

use std::cell::Cell;
use std::time::Duration;

use gdsync::Gpu;
use gdsync::gpu::MemoryKind;
use gdsync::rdma::{Device, Doorbell};

use super::*;
use crate::error::Kind;
use crate::path::{
    Batch, Choices, Keys, Link, NicOptions, PathChoice, Paths, Remote, Rights, TcpSetup,
};

const LIMIT: Duration = Duration::from_secs(60);
/// A rank that is none of the peers.
const ME: u32 = 1 << 16;

/// Lane 1 to two peers, whose other ends are here as well. Links 0 and 2 are this rank's, links 1
/// and 3 those of the peers 0 and 2.
struct World {
    gpu: Gpu,
    paths: Paths,
    links: Vec<Link>,
}

/// The links of this rank.
struct Mine<'w>(&'w mut [Link]);

impl PeerLanes for Mine<'_> {
    fn lane(&mut self, at: LaneId) -> Option<&mut Lane> {
        self.0.get_mut(at.rank as usize)?.lane(at.lane)
    }

    fn each<'l>(&'l mut self, used: &'l [LaneId]) -> impl Iterator<Item = &'l mut Lane> {
        let links = (0..).zip(self.0.iter_mut());
        let links = links.filter(|(rank, _)| used.iter().any(|at| at.rank == *rank));
        links.flat_map(|(_, link)| link.some(1 << 1))
    }
}

impl World {
    fn new() -> World {
        let gpu = Gpu::soft().unwrap();
        let error = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        let paths = Paths::open(
            Choices::for_test(ME, PathChoice::Nic, vec![None; 4]),
            &Device::emulated(&gpu).unwrap(),
            TcpSetup::default(),
            &NicOptions::default(),
            LIMIT,
            &error.word32(0).unwrap(),
            None,
        );
        let paths = paths.unwrap();
        let mut links: Vec<Link> = (0..4).map(|peer| Link::new(peer ^ 1)).collect();
        for pair in links.chunks_mut(2) {
            let ends: Vec<_> = pair
                .iter_mut()
                .map(|link| link.make(&paths, 1, Doorbell::Auto).unwrap().unwrap())
                .collect();
            for (link, end) in pair.iter_mut().zip(ends.iter().rev()) {
                link.connect(&paths, 1, std::slice::from_ref(end)).unwrap();
                link.connected(1).unwrap();
            }
        }
        World { gpu, paths, links }
    }

    /// Pinned memory, and its name for peers.
    fn memory(&self) -> (Keys, Remote) {
        let keys = self.paths.pinned(4096, Rights::All).unwrap();
        let path = crate::path::Path::Nic;
        let remote = Remote::any(path, &[keys.record(path).unwrap()]).unwrap();
        (keys, remote)
    }

    fn mine(&mut self) -> Mine<'_> {
        Mine(&mut self.links)
    }
}

fn at(rank: u32) -> LaneId {
    LaneId { rank, lane: 1 }
}

/// Prepares a put of `value` to `offset`, behind nothing.
fn put(world: &mut World, plan: &mut Plan<'_>, rank: u32, to: &Remote, offset: usize, value: u64) {
    let mut mine = Mine(&mut world.links);
    let mut batch = Batch::short(mine.lane(at(rank)).unwrap());
    let to = to.span(offset, 8).unwrap();
    batch.announce(&value.to_le_bytes(), to).unwrap();
    plan.puts(at(rank), batch.all());
}

fn word(keys: &Keys, offset: usize) -> Word64 {
    keys.region().word64(offset).unwrap()
}

/// Words of two peers, a kernel in between, and the words that they lead to.
#[test]
fn plan_enqueues_lists_over_several_lanes_around_one_kernel() {
    let mut world = World::new();
    let (keys, remote) = world.memory();
    let [a, b, c, start, stored] = [0, 8, 16, 24, 32].map(|offset| word(&keys, offset));
    let stream = world.gpu.stream().unwrap();
    let mut kept = Plan::default();
    for round in 1..=20 {
        let mut plan: Plan<'_> = kept.emptied();
        put(&mut world, &mut plan, 0, &remote, 0, round);
        put(&mut world, &mut plan, 2, &remote, 8, round);
        plan.wait(&a, round, false);
        plan.wait(&b, round, false);
        plan.wait(&start, round, false);
        plan.kernel_here();
        put(&mut world, &mut plan, 2, &remote, 16, round);
        let last = plan.made.last().unwrap().1;
        plan.done(at(2), last);
        plan.store(&stored, round);
        let launched = Cell::new(0);
        let kernel = |_: &Stream, _: usize| {
            launched.set(launched.get() + 1);
            Ok(())
        };
        plan.post(&stream, &mut world.mine(), Some(&kernel))
            .unwrap();
        assert_eq!(launched.get(), 1);
        assert_ne!(c.load().unwrap(), round, "before the wait");
        start.store(round).unwrap();
        assert!(stream.synchronize(LIMIT).unwrap());
        assert_eq!(c.load().unwrap(), round);
        assert_eq!(stored.load().unwrap(), round);
        kept = plan.emptied();
    }
}

/// A refused plan leaves its lanes as they were: the same puts can be prepared and posted again.
#[test]
fn refused_plan_aborts_the_puts_of_all_lanes() {
    let mut world = World::new();
    let (keys, remote) = world.memory();
    let stream = world.gpu.stream().unwrap();
    let foreign = Gpu::soft().unwrap().stream().unwrap();
    let mut plan: Plan<'_> = Plan::default();
    for round in 1..=600 {
        // More than a queue holds, if one of the puts stayed.
        for refused in [true, false] {
            for (rank, offset) in [(0, 0), (2, 8), (0, 16)] {
                put(&mut world, &mut plan, rank, &remote, offset, round);
            }
            let on = if refused { &foreign } else { &stream };
            let posted = plan.post(on, &mut world.mine(), None);
            assert_eq!(posted.is_err(), refused);
            if let Err(refusal) = posted {
                assert!(!refusal.torn);
            }
        }
        assert!(stream.synchronize(LIMIT).unwrap());
    }
    let deadline = world.gpu.host().now() + LIMIT;
    let mut there = || {
        [0, 8, 16]
            .iter()
            .all(|at| word(&keys, *at).load().unwrap() == 600)
    };
    assert!(world.gpu.host().wait_until(Some(deadline), &mut there));
}

#[test]
fn kernel_that_fails_behind_a_list_tears_the_plan_and_one_before_it_does_not() {
    let mut world = World::new();
    let (keys, remote) = world.memory();
    let stream = world.gpu.stream().unwrap();
    let fails =
        |_: &Stream, _: usize| Err(Error::new("launch", Kind::System, "the test refuses it"));
    for listed in [false, true] {
        let start = word(&keys, 64);
        let mut plan: Plan<'_> = Plan::default();
        if listed {
            plan.store(&start, 1);
        }
        plan.kernel_here();
        put(&mut world, &mut plan, 0, &remote, 0, 1);
        let refusal = plan.post(&stream, &mut world.mine(), Some(&fails));
        let refusal = refusal.unwrap_err();
        assert_eq!((refusal.error.kind(), refusal.torn), (Kind::System, listed));
        assert!(plan.made.is_empty());
    }
    // The lane is free.
    let mut plan: Plan<'_> = Plan::default();
    put(&mut world, &mut plan, 0, &remote, 0, 7);
    plan.post(&stream, &mut world.mine(), None).unwrap();
    let deadline = world.gpu.host().now() + LIMIT;
    let there = word(&keys, 0);
    let mut there = || there.load().unwrap() == 7;
    assert!(world.gpu.host().wait_until(Some(deadline), &mut there));
}
