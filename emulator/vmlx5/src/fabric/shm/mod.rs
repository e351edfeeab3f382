//! The fabric between processes of one host: rings in sealed memory files, transferred by Unix
//! sockets.
//!
//! Each NIC listens at an abstract address made from its node number. A NIC with frames to send
//! connects to the other end, makes a ring, and passes the ring with its bell (its wake-up
//! descriptor) in a greeting; the answer carries the other bell. A ring carries one direction, so a
//! pair of NICs with traffic both ways has two sockets and two rings. It does not matter which NIC
//! connects first, or whether both connect at once. The data path makes no system call, except to
//! wake an end that sleeps. The socket carries nothing more, but its end shows that the other
//! process died.
//!
//! The other end is a process of the same user and still not trusted: the worst effect of its
//! writes is that its own link is closed.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gds_step::{Bell, Time};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

pub use super::greeting::PROTOCOL_VERSION;
use super::greeting::{self, Greeting, Received};
use super::links::Links;
use super::ring::{MAX_RING, MIN_RING, Reader, Region, Writer};
use super::{Budget, Fabric, Fill, LinkError, LinkState, NodeId, PeerId, SendRefused, Sink};
use crate::frame::{FrameHeader, Kind};

/// Interval of the checks of sockets.
const LOOK: Duration = Duration::from_millis(1);
/// Interval of the checks while a call waits for its answer.
const LOOK_SOON: Duration = Duration::from_micros(50);
/// Time limit of a caller for its greeting.
const GREETING_LIMIT: Duration = Duration::from_secs(2);
/// Most callers without a greeting.
const MAX_CALLERS: usize = 64;
/// Most refusals that are kept.
const MAX_REFUSALS: usize = 32;

/// The configuration of a [`ShmFabric`].
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Bytes of each ring that this end makes, one for each NIC that it sends to. Rounded up to a
    /// power of two, kept between 128 KiB and 64 MiB.
    pub ring_bytes: usize,
    /// Most links at a time.
    pub max_links: usize,
    /// The protocol version: [`ShmConfig::default`] has the only existing one; every peer refuses
    /// another one.
    pub version: u32,
    /// True if the other ends poll for frames every few microseconds: released room, and
    /// acknowledgements alone, do not wake them. On a host with few processors, a wake-up takes a
    /// processor from the program that is about to answer.
    pub quiet: bool,
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig {
            ring_bytes: 4 << 20,
            max_links: 4096,
            version: PROTOCOL_VERSION,
            quiet: false,
        }
    }
}

/// One NIC's end of the fabric between processes.
pub struct ShmFabric {
    config: ShmConfig,
    node: NodeId,
    bell: Arc<Bell>,
    listener: OwnedFd,
    callers: Vec<Caller>,
    links: Links<Ends>,
    refusals: VecDeque<LinkError>,
    next_look: Time,
}

/// A caller that did not send its greeting yet.
struct Caller {
    socket: OwnedFd,
    until: Option<Time>,
}

#[derive(Default)]
struct Ends {
    out: Option<Out>,
    inward: Option<In>,
    /// A socket ended: the remaining frames in the ring are received, then the link is lost.
    ended: bool,
}

struct Out {
    socket: OwnedFd,
    writer: Writer,
    /// Set when the other end answered the call.
    bell: Option<Bell>,
    /// A frame other than an acknowledgement was written since the last flush, so a wake-up is due.
    urgent: bool,
}

struct In {
    socket: OwnedFd,
    reader: Reader,
    bell: Bell,
}

impl Ends {
    /// True while a call waits for its answer.
    fn calls(&self) -> bool {
        self.out.as_ref().is_some_and(|out| out.bell.is_none())
    }
}

fn system(what: &'static str) -> impl Fn(Errno) -> LinkError {
    move |errno| LinkError::System { what, errno }
}

fn socket() -> Result<OwnedFd, LinkError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system("socket"))
}

impl ShmFabric {
    /// Listens as a node with a new, random number. `bell` wakes the thread that steps the NIC.
    ///
    /// # Errors
    /// The system refused a socket.
    pub fn open(config: ShmConfig, bell: Arc<Bell>) -> Result<ShmFabric, LinkError> {
        // The source of random bits is the standard library's keys of hash tables.
        let random = || Some(NodeId(RandomState::new().hash_one(std::process::id())));
        ShmFabric::claim(config, bell, std::iter::from_fn(random))
    }

    /// Listens as the first node in `nodes` that no NIC of this host uses.
    ///
    /// # Errors
    /// All nodes are in use (`EADDRINUSE`), or the system refused a socket.
    pub fn claim(
        mut config: ShmConfig,
        bell: Arc<Bell>,
        nodes: impl IntoIterator<Item = NodeId>,
    ) -> Result<ShmFabric, LinkError> {
        config.ring_bytes = config
            .ring_bytes
            .clamp(MIN_RING, MAX_RING)
            .next_power_of_two();
        let listener = socket()?;
        for node in nodes {
            let address = greeting::address(node).map_err(system("socket name"))?;
            match rustix::net::bind(&listener, &address) {
                Err(Errno::ADDRINUSE) => continue,
                bound => bound.map_err(system("bind"))?,
            }
            rustix::net::listen(&listener, 128).map_err(system("listen"))?;
            return Ok(ShmFabric {
                config,
                node,
                bell,
                listener,
                callers: Vec::new(),
                links: Links::new(),
                refusals: VecDeque::new(),
                next_look: Time::ZERO,
            });
        }
        Err(system("bind")(Errno::ADDRINUSE))
    }

    /// The node at the other end of a link.
    pub fn peer_node(&self, peer: PeerId) -> Option<NodeId> {
        self.links.peers.get(peer.0 as usize).map(|p| p.node)
    }

    /// Returns the reason why a caller was refused, oldest first.
    pub fn refusal(&mut self) -> Option<LinkError> {
        self.refusals.pop_front()
    }

    fn refuse(&mut self, why: LinkError) {
        if self.refusals.len() == MAX_REFUSALS {
            self.refusals.pop_front();
        }
        self.refusals.push_back(why);
    }

    /// The slot of a node; a new one if the node has none.
    fn slot(&mut self, node: NodeId) -> Result<usize, LinkError> {
        let limit = self.config.max_links;
        if self.links.peers.len() >= limit && self.links.find(node).is_none() {
            return Err(LinkError::TooMany { limit });
        }
        Ok(self.links.slot(node))
    }

    /// Connects to a node and passes it a ring. The answer arrives later.
    fn call(&self, node: NodeId) -> Result<Out, LinkError> {
        let socket = socket()?;
        let address = greeting::address(node).map_err(system("socket name"))?;
        let unreachable = |reason| LinkError::Unreachable { node, reason };
        rustix::net::connect(&socket, &address).map_err(unreachable)?;
        same_user(&socket)?;
        let region = Region::shared(self.config.ring_bytes).map_err(system("ring"))?;
        let ring = region.file().ok_or_else(|| system("ring")(Errno::BADF))?;
        let bell = self.bell.fd();
        let greeting = Greeting::new(self.config.version, self.node, node, self.config.ring_bytes);
        greeting::send(socket.as_fd(), &greeting, &[ring, bell.as_fd()]).map_err(unreachable)?;
        Ok(Out {
            socket,
            writer: Writer::new(region, false),
            bell: None,
            urgent: false,
        })
    }

    /// Accepts callers.
    fn accept(&mut self, now: Time) {
        while self.callers.len() < MAX_CALLERS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = rustix::net::accept_with(&self.listener, flags) else {
                break;
            };
            match same_user(&socket) {
                Ok(()) => self.callers.push(Caller {
                    socket,
                    until: Some(now + GREETING_LIMIT),
                }),
                Err(why) => self.refuse(why),
            }
        }
        let mut i = 0;
        while i < self.callers.len() {
            match greeting::receive(self.callers[i].socket.as_fd()) {
                Ok(Received::Nothing) if self.callers[i].until.is_some_and(|t| now < t) => {
                    i += 1;
                    continue;
                }
                Ok(Received::Nothing) => self.refuse(LinkError::Greeting("none arrived in time")),
                Ok(Received::Closed) => {
                    self.refuse(LinkError::Greeting("the caller left without one"))
                }
                Err(why) => self.refuse(why),
                Ok(Received::Greeting(greeting, fds)) => {
                    let caller = self.callers.swap_remove(i);
                    if let Err(why) = self.welcome(caller.socket, &greeting, fds) {
                        self.refuse(why);
                    }
                    continue;
                }
            }
            self.callers.swap_remove(i);
        }
    }

    /// Checks a greeting, answers it, and adopts the ring.
    fn welcome(
        &mut self,
        socket: OwnedFd,
        greeting: &Greeting,
        fds: Vec<OwnedFd>,
    ) -> Result<(), LinkError> {
        let from = NodeId(greeting.from.get());
        let answer = Greeting::new(self.config.version, self.node, from, 0);
        let theirs = greeting.version.get();
        if theirs != self.config.version {
            let ours = self.config.version;
            // If the answer cannot be sent, the caller detects the end of the socket instead.
            let _ = greeting::send(socket.as_fd(), &answer, &[]);
            return Err(LinkError::Version { ours, theirs });
        }
        if NodeId(greeting.to.get()) != self.node || from == self.node {
            return Err(LinkError::Greeting("it is for another node"));
        }
        let size = greeting.ring_bytes.get() as usize;
        if !size.is_power_of_two() || !(MIN_RING..=MAX_RING).contains(&size) {
            return Err(LinkError::Greeting("its ring has an invalid size"));
        }
        let [ring, bell]: [OwnedFd; 2] = fds
            .try_into()
            .map_err(|_| LinkError::Greeting("it needs two descriptors"))?;
        let region = Region::open(ring, size).map_err(LinkError::Greeting)?;
        let bell = Bell::open(bell).map_err(|_| LinkError::Greeting("its bell is invalid"))?;
        let i = self.slot(from)?;
        let result = self.read_sockets(i);
        let ends = &self.links.peers[i].ends;
        if result.is_err() || ends.ended || ends.inward.is_some() {
            // The other end lost the link and calls again before this end detects the loss.
            self.links
                .lose(i, result.err().unwrap_or(LinkError::Closed));
        }
        let own = self.bell.fd();
        greeting::send(socket.as_fd(), &answer, &[own.as_fd()]).map_err(system("answer"))?;
        let peer = &mut self.links.peers[i];
        peer.ends.inward = Some(In {
            socket,
            reader: Reader::new(region),
            bell,
        });
        if !peer.ends.calls() {
            peer.state = LinkState::Up;
        }
        Ok(())
    }

    /// Checks whether an answer arrived, or a socket ended.
    fn look(&mut self, i: usize) {
        if let Err(why) = self.read_sockets(i) {
            self.links.lose(i, why);
            return;
        }
        let Ends { inward, ended, .. } = &self.links.peers[i].ends;
        let emptied = inward.as_ref().is_none_or(|inward| !inward.reader.ready());
        if *ended && emptied {
            self.links.lose(i, LinkError::Closed);
        }
    }

    fn read_sockets(&mut self, i: usize) -> Result<(), LinkError> {
        let ours = self.config.version;
        let peer = &mut self.links.peers[i];
        let ends = &mut peer.ends;
        if let Some(inward) = &ends.inward {
            match greeting::receive(inward.socket.as_fd())? {
                Received::Nothing => {}
                Received::Closed => ends.ended = true,
                Received::Greeting(..) => return Err(LinkError::Greeting("it is the second one")),
            }
        }
        let Some(out) = &mut ends.out else {
            return Ok(());
        };
        match greeting::receive(out.socket.as_fd())? {
            Received::Nothing => {}
            Received::Closed => ends.ended = true,
            Received::Greeting(greeting, fds) => {
                let theirs = greeting.version.get();
                if theirs != ours {
                    return Err(LinkError::Version { ours, theirs });
                }
                if out.bell.is_some() {
                    return Err(LinkError::Greeting("it is the second one"));
                }
                if NodeId(greeting.from.get()) != peer.node {
                    return Err(LinkError::Greeting("it is from another node"));
                }
                let [bell]: [OwnedFd; 1] = fds
                    .try_into()
                    .map_err(|_| LinkError::Greeting("it needs one descriptor"))?;
                let bell = Bell::open(bell);
                out.bell = Some(bell.map_err(|_| LinkError::Greeting("its bell is invalid"))?);
                peer.state = LinkState::Up;
            }
        }
        Ok(())
    }
}

/// Refuses the process of another user.
fn same_user(socket: &OwnedFd) -> Result<(), LinkError> {
    let peer = rustix::net::sockopt::socket_peercred(socket).map_err(system("SO_PEERCRED"))?;
    let (uid, expected) = (peer.uid.as_raw(), rustix::process::geteuid().as_raw());
    if uid == expected {
        Ok(())
    } else {
        Err(LinkError::Foreign { uid, expected })
    }
}

impl Fabric for ShmFabric {
    fn node(&self) -> NodeId {
        self.node
    }

    fn connect(&mut self, node: NodeId) -> Result<PeerId, LinkError> {
        let i = self.slot(node)?;
        if self.links.peers[i].ends.out.is_none() {
            match self.call(node) {
                Ok(out) => {
                    let peer = &mut self.links.peers[i];
                    peer.ends.out = Some(out);
                    peer.state = LinkState::Connecting;
                    self.next_look = Time::ZERO;
                }
                Err(why) => self.links.lose(i, why),
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
        let peer = self.links.peers.get(i).ok_or(SendRefused::Lost)?;
        if matches!(peer.state, LinkState::Lost(_)) {
            return Err(SendRefused::Lost);
        }
        if peer.ends.out.is_none() {
            // The other end called again after a loss, and this end only now has an answer.
            let node = peer.node;
            self.connect(node).map_err(|_| SendRefused::Lost)?;
        }
        let out = self.links.peers[i].ends.out.as_mut();
        let out = out.ok_or(SendRefused::Lost)?;
        let written = out.writer.write(header, fill);
        out.urgent |= written.is_ok() && header.kind != Kind::Ack as u8;
        self.links.sent(i, written)
    }

    fn receive(&mut self, budget: Budget, sink: Sink<'_>) -> u32 {
        self.links.receive(budget, sink, |ends| {
            ends.inward.as_mut().map(|inward| &mut inward.reader)
        })
    }

    fn lost(&mut self) -> Option<PeerId> {
        self.links.lost()
    }

    fn flush(&mut self) {
        for peer in &mut self.links.peers {
            let Ends { out, inward, .. } = &mut peer.ends;
            let mut published = out.as_mut().is_some_and(|out| out.writer.publish());
            published |= inward
                .as_mut()
                .is_some_and(|inward| inward.reader.release());
            let urgent = out
                .as_mut()
                .is_some_and(|out| std::mem::take(&mut out.urgent));
            if !published || self.config.quiet && !urgent {
                continue;
            }
            let out = out.as_ref().and_then(|out| out.bell.as_ref());
            if let Some(bell) = out.or(inward.as_ref().map(|inward| &inward.bell)) {
                bell.ring();
            }
        }
    }

    fn step(&mut self, now: Time) -> Option<Time> {
        if now >= self.next_look {
            self.accept(now);
            for i in 0..self.links.peers.len() {
                self.look(i);
            }
            let waits = self.links.peers.iter().any(|peer| peer.ends.calls());
            let calls = waits || !self.callers.is_empty();
            self.next_look = now + if calls { LOOK_SOON } else { LOOK };
        }
        Some(self.next_look)
    }
}

#[cfg(test)]
mod tests;
