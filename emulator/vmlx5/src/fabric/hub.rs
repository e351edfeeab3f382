//! The fabric of one process: any number of NICs, connected by rings in private memory.
//!
//! A direct hub makes frames visible to the other end at the flush. A scheduled hub leaves this to
//! a step machine, [`HubLinks`]. It delivers one frame per step from a link that its own seeded
//! generator selects, so a simulation explores delays; no link ever reorders. A node can be made
//! silent (a frozen peer) or killed (its links are lost).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gds_step::{Machine, Step, Time};
use rustix::io::Errno;

use super::links::Links;
use super::ring::{Delivery, MAX_RING, MIN_RING, Reader, Region, Writer};
use super::{Budget, Fabric, Fill, LinkError, LinkState, NodeId, PeerId, SendRefused, Sink};
use crate::frame::FrameHeader;

const ALIVE: u8 = 0;
const SILENT: u8 = 1;
const DEAD: u8 = 2;

/// The configuration of a [`Hub`].
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Bytes of each ring; there is one ring for each direction of each connected pair of NICs.
    /// Rounded up to a power of two, kept between 128 KiB and 64 MiB.
    pub ring_bytes: usize,
    /// True for a scheduled hub: [`HubLinks`] delivers the frames.
    pub scheduled: bool,
}

impl Default for HubConfig {
    fn default() -> HubConfig {
        HubConfig {
            ring_bytes: 1 << 20,
            scheduled: false,
        }
    }
}

/// Connects NICs of one process. It is a handle: clones share the hub.
#[derive(Clone)]
pub struct Hub(Arc<State>);

struct State {
    ring_bytes: usize,
    scheduled: bool,
    /// Counts changes of nodes and links. Incremented with release after the change; loaded with
    /// acquire by ports and by the links, which check for changes when the count differs.
    changes: AtomicU64,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    nodes: Vec<Arc<Node>>,
    next: u64,
    /// Links that [`HubLinks`] has not adopted yet.
    fresh: Vec<Link>,
}

struct Node {
    id: NodeId,
    /// `ALIVE`, `SILENT` or `DEAD`. Relaxed: it only decides whether frames are delivered.
    state: AtomicU8,
    /// Reading ends of rings that other nodes made for this node.
    inbox: Mutex<Vec<Incoming>>,
}

struct Incoming {
    from: Arc<Node>,
    reader: Reader,
    open: Arc<AtomicBool>,
}

struct Link {
    from: Arc<Node>,
    to: Arc<Node>,
    delivery: Delivery,
    open: Arc<AtomicBool>,
}

impl Node {
    fn is(&self, state: u8) -> bool {
        self.state.load(Ordering::Relaxed) == state
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// A hub without nodes.
    pub fn new(config: HubConfig) -> Hub {
        Hub(Arc::new(State {
            ring_bytes: config
                .ring_bytes
                .clamp(MIN_RING, MAX_RING)
                .next_power_of_two(),
            scheduled: config.scheduled,
            changes: AtomicU64::new(1),
            all: Mutex::default(),
        }))
    }

    /// The fabric of a further NIC. Nodes are numbered from 1 in the order of these calls.
    pub fn port(&self) -> HubPort {
        let id = {
            let mut all = lock(&self.0.all);
            all.next += 1;
            NodeId(all.next)
        };
        self.port_of(id)
    }

    /// The fabric of a NIC with this node number, which no other NIC has.
    pub fn port_of(&self, id: NodeId) -> HubPort {
        let node = Arc::new(Node {
            id,
            state: AtomicU8::new(ALIVE),
            inbox: Mutex::default(),
        });
        lock(&self.0.all).nodes.push(Arc::clone(&node));
        HubPort {
            hub: self.clone(),
            node,
            links: Links::new(),
            seen: 0,
        }
    }

    /// The machine that delivers the frames of a scheduled hub. It does nothing on a direct hub. A
    /// hub has one.
    pub fn link_machine(&self, seed: u64) -> HubLinks {
        HubLinks {
            hub: self.clone(),
            links: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
            seen: 0,
        }
    }

    /// Stops (or resumes) the delivery of frames to and from `node`, as for a peer that hangs.
    /// Neither the node nor its peers get a report. Returns false if the node does not exist.
    pub fn silence(&self, node: NodeId, silent: bool) -> bool {
        let (from, to) = if silent {
            (ALIVE, SILENT)
        } else {
            (SILENT, ALIVE)
        };
        let Some(node) = self.find(node) else {
            return false;
        };
        let (order, fail) = (Ordering::Relaxed, Ordering::Relaxed);
        // A dead node stays dead.
        let _ = node.state.compare_exchange(from, to, order, fail);
        self.changed();
        true
    }

    /// Disconnects `node` for good; its peers lose their links. Returns false if the node does not
    /// exist.
    pub fn kill(&self, node: NodeId) -> bool {
        let Some(node) = self.find(node) else {
            return false;
        };
        node.state.store(DEAD, Ordering::Relaxed);
        lock(&self.0.all).nodes.retain(|n| !Arc::ptr_eq(n, &node));
        self.changed();
        true
    }

    fn find(&self, id: NodeId) -> Option<Arc<Node>> {
        lock(&self.0.all).nodes.iter().find(|n| n.id == id).cloned()
    }

    fn changed(&self) {
        self.0.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns true, and updates `seen`, if nodes or links changed since.
    fn has_changed(&self, seen: &mut u64) -> bool {
        let now = self.0.changes.load(Ordering::Acquire);
        let changed = *seen != now;
        *seen = now;
        changed
    }

    /// A ring from one node to another.
    fn link(&self, from: &Arc<Node>, to: &Arc<Node>) -> Result<(Writer, Open), Errno> {
        let region = Region::private(self.0.ring_bytes)?;
        let open = Arc::new(AtomicBool::new(true));
        if self.0.scheduled {
            lock(&self.0.all).fresh.push(Link {
                from: Arc::clone(from),
                to: Arc::clone(to),
                delivery: Delivery::new(Arc::clone(&region)),
                open: Arc::clone(&open),
            });
        }
        lock(&to.inbox).push(Incoming {
            from: Arc::clone(from),
            reader: Reader::new(Arc::clone(&region)),
            open: Arc::clone(&open),
        });
        self.changed();
        let writer = Writer::new(region, self.0.scheduled);
        Ok((writer, Open(open, self.clone())))
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = lock(&self.0.all)
            .nodes
            .iter()
            .map(|n| n.id)
            .collect::<Vec<_>>();
        f.debug_struct("Hub").field("nodes", &nodes).finish()
    }
}

/// Delivers the frames of a scheduled hub, one per step, from a randomly selected link.
pub struct HubLinks {
    hub: Hub,
    links: Vec<Link>,
    rng: fastrand::Rng,
    seen: u64,
}

impl Machine for HubLinks {
    fn step(&mut self, _now: Time) -> Step {
        if self.hub.has_changed(&mut self.seen) {
            self.links.append(&mut lock(&self.hub.0.all).fresh);
            self.links
                .retain(|l| l.open.load(Ordering::Relaxed) && !l.from.is(DEAD) && !l.to.is(DEAD));
        }
        let waits = |l: &Link| l.from.is(ALIVE) && l.to.is(ALIVE) && l.delivery.ready();
        let waiting = self.links.iter().filter(|l| waits(l)).count();
        if waiting == 0 {
            return Step::IdleUntil(None);
        }
        let chosen = self.rng.usize(..waiting);
        if let Some(link) = self.links.iter_mut().filter(|l| waits(l)).nth(chosen) {
            link.delivery.deliver();
        }
        Step::Progress
    }

    fn name(&self) -> String {
        "hub.links".into()
    }
}

/// One NIC's end of a [`Hub`]. Dropping it kills the node.
pub struct HubPort {
    hub: Hub,
    node: Arc<Node>,
    links: Links<Ends>,
    seen: u64,
}

#[derive(Default)]
struct Ends {
    node: Option<Arc<Node>>,
    out: Option<(Writer, Open)>,
    inward: Option<(Reader, Open)>,
}

/// An end of a ring. A drop closes the ring, and the flag shows this to the other end. Relaxed: the
/// flag only decides whether frames are delivered; `State::changes` announces the change.
struct Open(Arc<AtomicBool>, Hub);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
        self.1.changed();
    }
}

impl Ends {
    /// Returns true if the other end closed one of its rings.
    fn closed(&self) -> bool {
        let shut = |open: &Open| !open.0.load(Ordering::Relaxed);
        self.node.as_ref().is_none_or(|n| n.is(DEAD))
            || self.out.as_ref().is_some_and(|(_, open)| shut(open))
            || self.inward.as_ref().is_some_and(|(_, open)| shut(open))
    }
}

impl HubPort {
    /// Handles changes: dead nodes, closed links, new links.
    fn refresh(&mut self) {
        for i in 0..self.links.peers.len() {
            let peer = &self.links.peers[i];
            if peer.state == LinkState::Up && peer.ends.closed() {
                self.links.lose(i, LinkError::Closed);
            }
        }
        let inbox = std::mem::take(&mut *lock(&self.node.inbox));
        for Incoming { from, reader, open } in inbox {
            if from.is(DEAD) || !open.load(Ordering::Relaxed) {
                continue;
            }
            let i = self.links.slot(from.id);
            let peer = &mut self.links.peers[i];
            peer.ends.node = Some(from);
            peer.ends.inward = Some((reader, Open(open, self.hub.clone())));
            peer.state = LinkState::Up;
        }
    }
}

impl Fabric for HubPort {
    fn node(&self) -> NodeId {
        self.node.id
    }

    fn connect(&mut self, node: NodeId) -> Result<PeerId, LinkError> {
        let i = self.links.slot(node);
        let peer = &mut self.links.peers[i];
        if peer.state != LinkState::Up {
            match self.hub.find(node) {
                Some(found) => {
                    peer.ends.node = Some(found);
                    peer.state = LinkState::Up;
                }
                None => {
                    let reason = Errno::CONNREFUSED;
                    let why = LinkError::Unreachable { node, reason };
                    self.links.lose(i, why);
                }
            }
        }
        Ok(PeerId(i as u32))
    }

    fn state(&self, peer: PeerId) -> LinkState {
        self.links.state(peer)
    }

    fn send(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        fill: Fill<'_>,
    ) -> Result<(), SendRefused> {
        let i = peer.0 as usize;
        let peer = self.links.peers.get_mut(i).ok_or(SendRefused::Lost)?;
        if peer.state != LinkState::Up {
            return Err(SendRefused::Lost);
        }
        let ends = &mut peer.ends;
        if ends.out.is_none() {
            let to = ends.node.as_ref().ok_or(SendRefused::Lost)?;
            match self.hub.link(&self.node, to) {
                Ok(link) => ends.out = Some(link),
                Err(errno) => {
                    let what = "mmap";
                    self.links.lose(i, LinkError::System { what, errno });
                    return Err(SendRefused::Lost);
                }
            }
        }
        let (writer, _) = ends.out.as_mut().ok_or(SendRefused::Lost)?;
        let written = writer.write(header, fill);
        self.links.sent(i, written)
    }

    fn receive(&mut self, budget: Budget, sink: Sink<'_>) -> u32 {
        if !self.node.is(ALIVE) {
            return 0;
        }
        self.links.receive(budget, sink, |ends| {
            let (reader, _) = ends.inward.as_mut()?;
            ends.node.as_ref()?.is(ALIVE).then_some(reader)
        })
    }

    fn lost(&mut self) -> Option<PeerId> {
        self.links.lost()
    }

    fn flush(&mut self) {
        for peer in &mut self.links.peers {
            if let Some((writer, _)) = &mut peer.ends.out {
                writer.publish();
            }
            if let Some((reader, _)) = &mut peer.ends.inward {
                reader.release();
            }
        }
    }

    fn step(&mut self, _now: Time) -> Option<Time> {
        let hub = self.hub.clone();
        if hub.has_changed(&mut self.seen) {
            self.refresh();
        }
        None
    }
}

impl Drop for HubPort {
    fn drop(&mut self) {
        self.hub.kill(self.node.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Kind;

    fn send(port: &mut HubPort, to: NodeId, tag: u32) -> Result<(), SendRefused> {
        let header = FrameHeader {
            kind: Kind::Ack as u8,
            psn: tag.into(),
            ..FrameHeader::default()
        };
        let peer = port.connect(to).unwrap();
        let sent = port.send(peer, &header, &mut |_| true);
        port.flush();
        sent
    }

    fn receive(port: &mut HubPort) -> Vec<u32> {
        let mut got = Vec::new();
        port.step(Time::ZERO);
        let budget = Budget {
            frames: 1000,
            bytes: 1000,
        };
        port.receive(budget, &mut |_, header, _| {
            got.push(header.psn.get());
            Ok(())
        });
        port.flush();
        got
    }

    /// The frames that arrive at one node, one frame per step of the links, from four concurrent
    /// senders.
    fn arrivals(seed: u64) -> Vec<u32> {
        let hub = Hub::new(HubConfig {
            scheduled: true,
            ..HubConfig::default()
        });
        let mut to = hub.port();
        let mut from: Vec<_> = (0..4).map(|_| hub.port()).collect();
        for tag in 0..10 {
            for (i, port) in from.iter_mut().enumerate() {
                send(port, to.node(), i as u32 * 100 + tag).unwrap();
            }
        }
        let mut links = hub.link_machine(seed);
        let mut got = receive(&mut to);
        assert!(got.is_empty());
        while links.step(Time::ZERO) == Step::Progress {
            let one = receive(&mut to);
            assert_eq!(one.len(), 1);
            got.extend(one);
        }
        got
    }

    #[test]
    fn scheduled_links_alternate_and_keep_order() {
        let runs: Vec<_> = (0..8).map(arrivals).collect();
        for got in &runs {
            assert_eq!(got.len(), 40);
            for link in 0..4 {
                let of_link = got.iter().filter(|tag| **tag / 100 == link);
                assert!(of_link.is_sorted());
            }
        }
        assert_eq!(runs[0], arrivals(0));
        assert!(runs[1..].iter().all(|run| *run != runs[0]));
    }

    #[test]
    fn silent_and_dead_nodes_stop_delivery() {
        let hub = Hub::new(HubConfig::default());
        let (mut a, mut b) = (hub.port(), hub.port());
        assert_eq!((a.node(), b.node()), (NodeId(1), NodeId(2)));
        send(&mut a, NodeId(2), 1).unwrap();
        assert_eq!(receive(&mut b), [1]);
        for frozen in [NodeId(1), NodeId(2)] {
            assert!(hub.silence(frozen, true));
            send(&mut a, NodeId(2), 2).unwrap();
            assert!(receive(&mut b).is_empty());
            assert!(hub.silence(frozen, false));
            assert_eq!(receive(&mut b), [2]);
        }
        let peer = a.connect(NodeId(2)).unwrap();
        send(&mut b, NodeId(1), 3).unwrap();
        drop(b);
        assert!(receive(&mut a).is_empty());
        assert_eq!(a.state(peer), LinkState::Lost(LinkError::Closed));
        assert_eq!((a.lost(), a.lost()), (Some(peer), None));
        assert_eq!(send(&mut a, NodeId(2), 4), Err(SendRefused::Lost));
        assert!(!hub.silence(NodeId(2), true) && !hub.kill(NodeId(2)));
        assert!(hub.silence(NodeId(1), true) && hub.kill(NodeId(1)));
        let mut c = hub.port();
        assert_eq!(send(&mut c, NodeId(1), 5), Err(SendRefused::Lost));
    }
}
