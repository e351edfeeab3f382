//! What a NIC does for the library, and the types by which verbs objects and providers speak of it.
//!
//! [`Nic`] is the seam between devices, protection domains, registrations and queue pairs on one
//! side, and who executes on the other. Everything in it is control: posts, doorbells and
//! completions go through memory that both sides know, and never through [`Nic`]. [`events`] keeps
//! what NICs report outside of completion queues.

mod address;
#[cfg(feature = "serde")]
mod address_serde;
mod choice;
mod events;
mod path;

use std::ops::BitOr;
use std::time::Duration;

use gds_step::Time;
use mlx5_prm::wqe::AvSeg;

use crate::error::Result;
use crate::gpu::{Mapped, Region};
use crate::memop::DevicePtr;

pub(crate) use address::process;
pub use address::{PortAddress, QpAddress, RAILS, RemoteMemory, RemoteSpan};
pub(crate) use choice::GID_INDEX;
pub use choice::{DeviceOptions, NicChoice, Provider};
#[doc(hidden)]
pub use choice::{NicName, first_that_works};
pub(crate) use events::{Events, Report};
pub(crate) use path::{PathConfig, PathSettings, RETRIES};

/// What a registration permits. Local reading is always permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Access(pub(crate) u8);

impl Access {
    /// Requests of this side may only read the memory.
    pub const LOCAL_READ: Access = Access(0);
    /// Receives, READs and atomics of this side may write it.
    pub const LOCAL_WRITE: Access = Access(1);
    /// The peer may write it. Implies [`Access::LOCAL_WRITE`], as verbs demand it.
    pub const REMOTE_WRITE: Access = Access(1 | 2);
    /// The peer may read it.
    pub const REMOTE_READ: Access = Access(4);
    /// The peer may do atomics on it. Implies [`Access::LOCAL_WRITE`].
    pub const REMOTE_ATOMIC: Access = Access(1 | 8);
    /// All of it.
    pub const ALL: Access = Access(15);

    /// Whether all of `other` is permitted.
    pub fn permits(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// How a queue pair talks to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Transport {
    /// A reliable connection (RC) with one peer ([`Qp::connect`](crate::rdma::Qp::connect)): all
    /// requests, in order, each once; one that cannot be done fails.
    #[default]
    Rc,
    /// Unreliable datagrams (UD): sends of one packet at most, each to a
    /// [`Destination`](crate::rdma::Destination) that it names. [`Qp::activate`](crate::rdma::Qp::activate)
    /// makes such a queue pair ready. A send is complete when the packet has left; whether it
    /// arrives nobody tells: it is lost where the peer has no receive, or another key. In front of
    /// what is received there is room of [`GRH`](crate::rdma::GRH) bytes.
    ///
    /// A receive is there when the call that posts it returns, or when the stream that posts it goes
    /// on. Only a CPU thread ([`Doorbell::CpuThread`](crate::rdma::Doorbell),
    /// [`Device::verbs`](crate::rdma::Device::verbs)) hands over what streams post a moment
    /// later: receives are better posted ahead, or by the CPU, then.
    Ud {
        /// What a datagram has to say to be taken, 31 bits.
        qkey: u32,
    },
}

impl Transport {
    /// Whether it is that of datagrams.
    pub fn is_ud(self) -> bool {
        matches!(self, Transport::Ud { .. })
    }
}

/// An address in memory as CPU and GPU see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedAddr {
    pub cpu: Mapped,
    pub gpu: DevicePtr,
}

impl SharedAddr {
    pub fn part(&self, offset: usize, len: usize) -> SharedAddr {
        SharedAddr {
            cpu: self.cpu.part(offset, len),
            gpu: self.gpu.offset(offset as u64),
        }
    }
}

/// A protection domain of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PdId(pub u32);

/// The keys of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MrKeys {
    pub lkey: u32,
    pub rkey: u32,
}

/// One queue pair on its NIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpObjects {
    pub qpn: u32,
    /// First index of the work queues, after a reset too.
    pub start: u32,
}

/// A queue pair as its NIC made it.
pub(crate) struct QpMade {
    pub objects: QpObjects,
    /// Where its doorbell is rung, and what keeps that in the GPU's sight; `None`: at
    /// [`BF_OFFSET`](mlx5_prm::doorbell::BF_OFFSET) of the page in [`QpRings::uar`].
    pub doorbell: Option<(Region, SharedAddr)>,
}

/// How the memory of a queue pair has to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// What queues are aligned to at least, and their length is a multiple of, in bytes.
    pub align: usize,
    /// Long work queues are aligned to more: no more than so many aligned pieces are one.
    pub most_pieces: usize,
    /// Whether the NIC takes a page of ours for doorbells. Else it has one.
    pub takes_uar: bool,
    /// Whether queues may lie in the GPU's memory.
    pub device_queues: bool,
}

impl Layout {
    /// What the work queues of a queue pair, `len` bytes in all, are aligned to, and their
    /// length is a multiple of.
    pub fn grain(&self, len: usize) -> usize {
        self.align.max(len.next_power_of_two() / self.most_pieces)
    }
}

/// The memory of a queue pair: regions, offsets in them, sizes. The send ring lies directly
/// behind the receive ring.
pub(crate) struct QpRings<'a> {
    /// The page for doorbells, if the NIC takes one.
    #[cfg(feature = "emulated")]
    pub uar: (&'a Region, u64),
    pub record: (&'a Region, u64),
    /// Basic blocks.
    pub send_ring: (&'a Region, u64, u32),
    /// Entries, and bytes of each.
    pub recv_ring: (&'a Region, u64, u32, u32),
    /// Logarithm of the entries.
    pub send_cq: (&'a Region, u64, u8),
    pub recv_cq: (&'a Region, u64, u8),
    pub access: Access,
    pub start: u32,
    pub transport: Transport,
    pub path: PathSettings,
}

impl QpRings<'_> {
    /// How long the port of a connection may be down before its NIC gives up, where `retries` is
    /// the provider's retry count; `None`: for any time.
    pub fn retry_time(&self, retries: u8) -> Option<Duration> {
        match self.transport {
            Transport::Rc => self.path.retry_time(retries),
            Transport::Ud { .. } => None,
        }
    }
}

/// Whose port a datagram is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AhAttr {
    /// A virtual NIC that is linked into its process, by its number; in headers of datagrams the
    /// last eight bytes of its GID.
    Node(u64),
    /// That of a real one. Without a GID it is in the own subnet.
    Port {
        lid: u16,
        gid: Option<[u8; 16]>,
        /// `None`: as the environment says.
        service_level: Option<u8>,
    },
}

/// Such a port as requests name it.
pub(crate) struct Ah {
    /// For [`Nic::destroy_ah`].
    pub id: u64,
    /// Without the queue pair there and its key.
    pub av: AvSeg,
}

/// One opened NIC (and port).
pub(crate) trait Nic: Send + Sync {
    /// Who executes; never [`Provider::Auto`].
    fn provider(&self) -> Provider;
    /// The NIC, for people.
    fn name(&self) -> &str;
    /// Its number, as addresses carry it.
    fn node(&self) -> u64;
    /// How its port is addressed, where it takes more than that number.
    fn port(&self) -> Option<PortAddress>;
    fn layout(&self) -> Layout;
    fn alloc_pd(&self) -> Result<PdId>;
    fn dealloc_pd(&self, id: PdId);
    fn reg_mr(&self, pd: PdId, region: &Region, access: Access) -> Result<MrKeys>;
    fn dereg_mr(&self, keys: MrKeys);
    /// Whether a queue pair does READs, from its own NIC's memory too.
    fn reads(&self) -> bool {
        true
    }
    /// Whether WRITEs of a peer's queue pair become visible in the order in which they were posted,
    /// on any fabric between the two.
    fn keeps_order(&self) -> bool {
        false
    }
    /// Handles on `region` that a registration of it keeps.
    fn holds(&self, region: &Region) -> usize;
    fn create_qp(&self, pd: PdId, rings: &QpRings<'_>) -> Result<QpMade>;
    /// Changes a new or reset queue pair to ready to send. If that fails, the queue pair is in its
    /// first state again, with the receives that were posted, and the call may be repeated; after
    /// `Failed` the queue pair has to be put in error and reset.
    fn connect_qp(&self, qpn: u32, psn: u32, peer: &QpAddress) -> Result<()>;
    /// Readies a queue pair to send datagrams and to receive those with `qkey`; as [`Nic::connect_qp`].
    fn activate_qp(&self, qpn: u32, psn: u32, qkey: u32) -> Result<()>;
    /// Makes a port known to which datagrams go.
    fn create_ah(&self, pd: PdId, to: &AhAttr) -> Result<Ah>;
    fn destroy_ah(&self, id: u64);
    /// To the error state, from any other. Answers whether what is outstanding is flushed: not by
    /// a NIC that is gone, which will never write an entry again.
    fn modify_to_error(&self, qpn: u32) -> bool;
    /// As after it was made. `Failed(CLOSED)` if it got half way: it does nothing then but be reset.
    fn reset_qp(&self, qpn: u32) -> Result<()>;
    /// Takes in what the NIC has reported outside of completion queues; never waits for more.
    fn read_events(&self, _now: Time) {}
    /// A number that changes when there are new reports.
    fn reports(&self) -> u32 {
        0
    }
    /// What was reported about a queue pair.
    fn report(&self, _qpn: u32, _now: Time) -> Report {
        Report::None
    }
    /// Stops the NIC from writing completion entries of a queue pair that was reported as lost.
    /// Returns whether what is outstanding is flushed.
    fn lose_qp(&self, _qpn: u32) -> bool {
        false
    }
    /// Where the NIC stands in send and receive completion queue: the next positions it writes.
    /// `None`: the entries tell.
    fn cq_indices(&self, objects: &QpObjects) -> Result<Option<(u64, u64)>>;
    fn destroy_qp(&self, objects: &QpObjects);
    /// Something was posted by the CPU: for a NIC that sleeps.
    fn ring(&self) {}
    /// Receives of a queue pair of datagrams were posted by the CPU: who sends from now on finds
    /// them.
    fn ring_receives(&self, _qpn: u32) {}
    /// Whether it wants to be told what streams are going to post, by [`Nic::expect`].
    fn expects(&self) -> bool {
        false
    }
    /// A stream is going to post as far as these indices of send and receive queue.
    fn expect(&self, _qpn: u32, _send: u32, _recv: u32) {}
}
