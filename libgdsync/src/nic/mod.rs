//! The interface between the library and a NIC, and the types that verbs objects and providers
//! share.
//!
//! [`Nic`] separates devices, protection domains, registrations and queue pairs on one side from
//! the provider on the other. All its calls are control: posts, doorbells and completions go
//! through memory that both sides share, and never through [`Nic`]. [`events`] stores the NICs'
//! reports outside of completion queues.

mod address;
#[cfg(feature = "serde")]
mod address_serde;
mod choice;
mod events;
mod path;
mod tcp;

use std::ops::BitOr;
use std::time::Duration;

use gds_step::{Host, Time};
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
pub use tcp::TcpOptions;

/// The rights of a registration, or of a queue pair (verbs: `IBV_ACCESS_*`). Local reading is
/// always permitted. Sets are joined with `|`: `Access::LOCAL_WRITE | Access::REMOTE_READ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Access(pub(crate) u8);

impl Access {
    /// Requests of this side may only read the memory.
    pub const LOCAL_READ: Access = Access(0);
    /// Receives, READs and atomics of this side may write it.
    pub const LOCAL_WRITE: Access = Access(1);
    /// The peer may write it. Implies [`Access::LOCAL_WRITE`], as verbs require.
    pub const REMOTE_WRITE: Access = Access(1 | 2);
    /// The peer may read it.
    pub const REMOTE_READ: Access = Access(4);
    /// The peer may execute atomics on it. Implies [`Access::LOCAL_WRITE`].
    pub const REMOTE_ATOMIC: Access = Access(1 | 8);
    /// All rights.
    pub const ALL: Access = Access(15);

    /// Whether all rights of `other` are in this set.
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

/// The transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Transport {
    /// A reliable connection (RC) with one peer ([`Qp::connect`](crate::rdma::Qp::connect)): the
    /// NIC executes all requests in order, each once; a request that cannot be executed fails.
    #[default]
    Rc,
    /// Unreliable datagrams (UD): sends of one packet at most, each to the
    /// [`Destination`](crate::rdma::Destination) that it names.
    /// [`Qp::activate`](crate::rdma::Qp::activate) makes the queue pair ready. A send is complete
    /// when the packet has left. No status reports whether it arrives: the packet is lost if the
    /// peer has no receive posted, or another key. A receive needs [`GRH`](crate::rdma::GRH) bytes
    /// of room in front of the received data.
    ///
    /// A receive is available when the call that posts it returns, or when the stream that posts it
    /// continues. There is one exception: a CPU thread that posts for streams
    /// ([`Doorbell::CpuThread`](crate::rdma::Doorbell),
    /// [`Device::verbs`](crate::rdma::Device::verbs)) posts their receives a moment later. Post
    /// these receives ahead of time, or from the CPU.
    Ud {
        /// The queue key that a datagram must carry to be received, 31 bits.
        qkey: u32,
    },
}

impl Transport {
    /// Whether this is the transport of datagrams.
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

/// A queue pair as its NIC created it.
pub(crate) struct QpMade {
    pub objects: QpObjects,
    /// The address of its doorbell, and the region that keeps the doorbell mapped for the GPU;
    /// `None`: the doorbell is at [`BF_OFFSET`](mlx5_prm::doorbell::BF_OFFSET) of the page in
    /// [`QpRings::uar`].
    pub doorbell: Option<(Region, SharedAddr)>,
}

/// The required layout of a queue pair's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Minimum alignment of queues in bytes; their length is a multiple of it.
    pub align: usize,
    /// The most aligned pieces of one queue: longer work queues have a larger alignment.
    pub most_pieces: usize,
    /// Whether the NIC takes a page of the library for doorbells. Otherwise it provides one.
    pub takes_uar: bool,
    /// Whether the NIC reads its doorbell. Otherwise the doorbell record is enough.
    pub reads_doorbell: bool,
    /// Whether queues may be in the GPU's memory.
    pub device_queues: bool,
}

impl Layout {
    /// The alignment in bytes of the work queues of a queue pair, `len` bytes in all; their length
    /// is a multiple of it.
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
    /// The last number counts basic blocks.
    pub send_ring: (&'a Region, u64, u32),
    /// The last two numbers: entries, and bytes of each.
    pub recv_ring: (&'a Region, u64, u32, u32),
    /// The last number is the logarithm of the entries.
    pub send_cq: (&'a Region, u64, u8),
    pub recv_cq: (&'a Region, u64, u8),
    pub access: Access,
    pub start: u32,
    pub transport: Transport,
    pub path: PathSettings,
}

impl QpRings<'_> {
    /// How long the port of a connection may be down before its NIC fails the work; `retries` is
    /// the provider's retry count; `None`: for any time.
    pub fn retry_time(&self, retries: u8) -> Option<Duration> {
        match self.transport {
            Transport::Rc => self.path.retry_time(retries),
            Transport::Ud { .. } => None,
        }
    }
}

/// The port that a datagram is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AhAttr {
    /// A virtual NIC that is linked into its process, by its number; in headers of datagrams the
    /// number is the last eight bytes of its GID.
    Node(u64),
    /// A port of a real NIC. Without a GID it is in this NIC's own subnet.
    Port {
        lid: u16,
        gid: Option<[u8; 16]>,
        /// `None`: the value of the environment.
        service_level: Option<u8>,
    },
}

/// A port as requests name it.
pub(crate) struct Ah {
    /// For [`Nic::destroy_ah`].
    pub id: u64,
    /// Without the remote queue pair number and its key.
    pub av: AvSeg,
}

/// One opened NIC (and port).
pub(crate) trait Nic: Send + Sync {
    /// The provider; never [`Provider::Auto`].
    fn provider(&self) -> Provider;
    /// The NIC's name, for people.
    fn name(&self) -> &str;
    /// The NIC's number, as addresses contain it.
    fn node(&self) -> u64;
    /// The address of its port, if peers need more than the number.
    fn port(&self) -> Option<PortAddress>;
    fn layout(&self) -> Layout;
    fn alloc_pd(&self) -> Result<PdId>;
    fn dealloc_pd(&self, id: PdId);
    fn reg_mr(&self, pd: PdId, region: &Region, access: Access) -> Result<MrKeys>;
    fn dereg_mr(&self, keys: MrKeys);
    /// Whether queue pairs support READs, also from their own NIC's memory.
    fn reads(&self) -> bool {
        true
    }
    /// Whether queue pairs support atomics.
    fn atomics(&self) -> bool {
        true
    }
    /// Whether WRITEs of a peer's queue pair become visible in the order in which they were posted,
    /// on any fabric between the two.
    fn keeps_order(&self) -> bool {
        false
    }
    /// Number of handles on `region` that a registration of it keeps.
    fn holds(&self, region: &Region) -> usize;
    fn create_qp(&self, pd: PdId, rings: &QpRings<'_>) -> Result<QpMade>;
    /// Changes a new or reset queue pair to ready to send. If that fails, the queue pair is in its
    /// first state again, with the posted receives, and the call may be repeated; after `Failed`
    /// the queue pair must be put in error and reset.
    fn connect_qp(&self, qpn: u32, psn: u32, peer: &QpAddress) -> Result<()>;
    /// Readies a queue pair to send datagrams and to receive those with `qkey`. Fails as
    /// [`Nic::connect_qp`] does.
    fn activate_qp(&self, qpn: u32, psn: u32, qkey: u32) -> Result<()>;
    /// Creates an address handle for a port that datagrams are sent to.
    fn create_ah(&self, pd: PdId, to: &AhAttr) -> Result<Ah>;
    fn destroy_ah(&self, id: u64);
    /// Changes the queue pair to the error state, from any other. Returns whether the outstanding
    /// requests are flushed: a lost NIC never writes an entry again.
    fn modify_to_error(&self, qpn: u32) -> bool;
    /// Returns the queue pair to its first state. `Failed(CLOSED)` if only a part of the change was
    /// made: the queue pair then accepts only another reset.
    fn reset_qp(&self, qpn: u32) -> Result<()>;
    /// Reads the NIC's reports outside of completion queues; never waits for more.
    fn read_events(&self, _now: Time) {}
    /// A number that changes when there are new reports.
    fn reports(&self) -> u32 {
        0
    }
    /// The state that was reported for a queue pair.
    fn report(&self, _qpn: u32, _now: Time) -> Report {
        Report::None
    }
    /// Stops the NIC from writing completion entries of a queue pair that was reported as lost.
    /// Returns whether the outstanding requests are flushed.
    fn lose_qp(&self, _qpn: u32) -> bool {
        false
    }
    /// The positions that the NIC writes next in the send and receive completion queue. `None`: the
    /// entries show them.
    fn cq_indices(&self, objects: &QpObjects) -> Result<Option<(u64, u64)>>;
    fn destroy_qp(&self, objects: &QpObjects);
    /// Whether a ring of the GPU's host wakes the NIC, or a thread that does its work.
    fn is_on_host(&self) -> bool {
        true
    }
    /// Wakes a NIC that sleeps: the CPU has posted requests.
    fn ring(&self) {}
    /// As [`Nic::ring`], after a post of sends to this queue pair.
    fn ring_sends(&self, _qpn: u32) {
        self.ring();
    }
    /// Waits as [`Env::wait_until`](gds_step::Env::wait_until) of `host` does, and may do work of the
    /// NIC meanwhile.
    fn wait_until(
        &self,
        host: &dyn Host,
        deadline: Option<Time>,
        condition: &mut dyn FnMut() -> bool,
    ) -> bool {
        host.wait_until(deadline, condition)
    }
    /// Makes receives of a queue pair of datagrams available that the CPU has posted: datagrams
    /// sent from now on find them.
    fn ring_receives(&self, _qpn: u32) {}
    /// Whether the NIC needs [`Nic::expect`] before streams post.
    fn expects(&self) -> bool {
        false
    }
    /// Announces that a stream is going to post up to these indices of send and receive queue.
    fn expect(&self, _qpn: u32, _send: u32, _recv: u32) {}
}
