//! Converts between programs that use [`ibverbs`] and [`gdsync`]: the identity of a NIC, the
//! address of a queue pair, and remote memory.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use gdsync::rdma::QpConfig;
//!
//! let nics = ibverbs::devices()?;
//! let nic = nics.get(0).ok_or("no NIC")?; // the program's choice
//!
//! let gpu = gdsync::Gpu::from_env()?;
//! let device = gdsync_ibverbs::open(&gpu, &nic)?; // the same one, for streams
//! let mut ours = device.alloc_pd()?.create_qp(&QpConfig::default())?;
//!
//! // A queue pair of ibverbs, here or anywhere, connected to that of gdsync.
//! let context = nic.open()?;
//! let (queue, pd) = (context.create_cq(16, 0)?, context.alloc_pd()?);
//! let mut builder = pd.create_qp(&queue, &queue, ibverbs::ibv_qp_type::IBV_QPT_RC);
//! gdsync_ibverbs::set_peer(&mut builder, &context, &ours.address())?;
//! let prepared = builder.build()?;
//! let here = prepared.endpoint();
//! ours.connect(&gdsync_ibverbs::address(&here, &ours.address())?)?;
//! let theirs = prepared.handshake(gdsync_ibverbs::endpoint(&ours.address(), &here)?)?;
//! # Ok(())
//! # }
//! ```
//!
//! # What the libraries share
//! The libraries share numbers: GUIDs, GIDs, LIDs, numbers of queue pairs and packets, keys. They
//! do not share objects. `ibverbs` 0.9 does not expose its handles and has neither WRITE nor READ,
//! so gdsync opens the NIC by itself. This costs a second context in the kernel, and nothing later.
//!
//! # Limits of `ibverbs` 0.9
//! `ibverbs` uses the first port of a NIC, starts its packet sequence numbers at 0, and does not
//! expose the MTU of its port. The path MTU must be the lesser of both ports' MTUs. If gdsync's
//! port has the greater one, set the lesser on both sides: by `set_path_mtu` of the builder after
//! [`set_peer`], and in [`PortAddress::mtu`] of the result of [`address`].
//!
//! # Building
//! `ibverbs` builds without cmake, libclang and libibverbs if the workspace has the patch of
//! `interop/ibverbs-patch`; this crate does not need the patch.

mod error;

use gdsync::Gpu;
use gdsync::rdma::{self, DeviceOptions, NicChoice, PortAddress, QpAddress, RemoteMemory};
use ibverbs::{Context, Gid, Guid, MemoryRegion, QueuePairBuilder, QueuePairEndpoint};

pub use error::{Error, Result};

/// The port of a NIC that `ibverbs` always uses.
pub const PORT: u8 = 1;

/// Outstanding READs and atomics that a queue pair of gdsync sends and answers.
const READS: u8 = 16;
/// The ACK timeout: a request is retransmitted after 0.13 s without an answer, six times; some
/// devices treat seven as unlimited.
const TIMEOUT: u8 = 15;
const RETRIES: u8 = 6;
/// The RNR retry count that means unlimited.
const RNR_RETRIES: u8 = 7;

/// Names a NIC of `ibverbs` to gdsync: by its GUID and the port that `ibverbs` uses.
///
/// # Errors
/// [`Error::NoGuid`] if the NIC has no GUID.
pub fn nic(device: &ibverbs::Device<'_>) -> Result<NicChoice> {
    let guid = device.guid().map_err(Error::NoGuid)?;
    Ok(NicChoice::guid(self::guid(guid)).port(PORT))
}

/// Opens the same NIC and port with gdsync, by the most suitable provider or the one that
/// `GDS_PROVIDER` names. `GDS_NIC` has no effect.
///
/// # Errors
/// As [`nic`]; the errors of [`rdma::Device::open_with`].
pub fn open(gpu: &Gpu, device: &ibverbs::Device<'_>) -> Result<rdma::Device> {
    let options = DeviceOptions::default().nic(nic(device)?);
    Ok(rdma::Device::open_with(gpu, &options)?)
}

/// A GUID in host byte order, as [`NicChoice::guid`] and [`QpAddress::node`] contain it.
pub fn guid(guid: Guid) -> u64 {
    // `ibverbs` treats the number in network byte order as one in the host's, in both directions.
    u64::from_be(guid.into())
}

/// The bytes of a GID.
pub fn gid_bytes(gid: Gid) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&gid.subnet_prefix().to_be_bytes());
    bytes[8..].copy_from_slice(&gid.interface_id().to_be_bytes());
    bytes
}

/// The GID with these bytes.
pub fn gid(bytes: [u8; 16]) -> Gid {
    ibverbs_sys::ibv_gid { raw: bytes }.into()
}

/// Sets the properties of the peer that a queue pair of `ibverbs` needs before it is built: the
/// number of the first packet, the path MTU, the limit of outstanding READs and atomics, and its
/// own GID by which the peer reaches it.
///
/// The queue pair also gets the retry settings of gdsync's own queue pairs. With its default
/// settings it would fail after less than a millisecond without an answer, or if a stream has not
/// reached a receive for 15 ms. Settings that the program makes afterwards take precedence.
///
/// # Errors
/// [`Error::Peer`] if `there` is on a virtual NIC that is linked into its process, has an MTU that
/// verbs do not define, or needs a kind of GID that the port does not have.
pub fn set_peer(
    builder: &mut QueuePairBuilder<'_>,
    context: &Context,
    there: &QpAddress,
) -> Result<()> {
    let port = port(there)?;
    if !(1..=5).contains(&port.mtu) {
        return Err(Error::Peer("the number of its MTU is outside 1 to 5"));
    }
    // Ethernet needs a GID. In one InfiniBand subnet a GID is optional; for a peer in another
    // subnet it is required.
    match own_gid(context, port) {
        Some(index) => drop(builder.set_gid_index(index)),
        None if port.lid == 0 => {
            return Err(Error::Peer("it is on Ethernet, and no GID of this port is"));
        }
        None => {}
    }
    builder
        .set_rq_psn(there.psn)
        .set_path_mtu(port.mtu.into())
        .set_max_rd_atomic(READS)
        .set_max_dest_rd_atomic(READS)
        .set_timeout(TIMEOUT)
        .set_retry_count(RETRIES)
        .set_rnr_retry(RNR_RETRIES);
    Ok(())
}

/// The GID of `ibverbs`'s port that reaches `there`: on Ethernet one of RoCE v2, if possible of the
/// same kind of address; on InfiniBand the first.
fn own_gid(context: &Context, there: &PortAddress) -> Option<u32> {
    let own = |entry: &&ibverbs::GidEntry| {
        let ethernet = entry.gid_type != ibverbs_sys::IBV_GID_TYPE_IB;
        let fits = match there.lid {
            0 => entry.gid_type == ibverbs_sys::IBV_GID_TYPE_ROCE_V2,
            _ => !ethernet,
        };
        fits && entry.port_num == u32::from(PORT)
    };
    let all = context.gid_table().iter().enumerate();
    let mut all = all.filter(|(place, entry)| {
        // `ibverbs` uses the index in this list as the index in the port's table.
        own(entry) && entry.gid_index == *place as u32
    });
    let alike = |gid: Gid| kind_of(gid_bytes(gid)) == kind_of(there.gid);
    let first = all.clone().next();
    let best = all.find(|(_, entry)| alike(entry.gid)).or(first);
    best.map(|(_, entry)| entry.gid_index)
}

/// The kind of an address: IPv4, link-local, or another one.
fn kind_of(gid: [u8; 16]) -> u8 {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => 4,
        [0xfe, 0x80, ..] => 1,
        _ => 0,
    }
}

/// The endpoint of a queue pair of gdsync for
/// [`PreparedQueuePair::handshake`](ibverbs::PreparedQueuePair::handshake), on the side of the
/// queue pair whose endpoint is `here`. It contains a GID if the path needs one: on Ethernet, or to
/// another InfiniBand subnet.
///
/// # Errors
/// [`Error::Peer`] if `there` is on a virtual NIC that is linked into its process, or if the path
/// needs a GID and `here` has none; [`set_peer`] sets it.
pub fn endpoint(there: &QpAddress, here: &QueuePairEndpoint) -> Result<QueuePairEndpoint> {
    let port = port(there)?;
    let routed = match (port.lid, here.gid) {
        (0, None) => return Err(Error::Peer("it is on Ethernet, and this side has no GID")),
        (0, Some(_)) => true,
        (_, None) => false,
        (_, Some(own)) => gid_bytes(own)[..8] != port.gid[..8],
    };
    Ok(QueuePairEndpoint {
        num: there.qpn,
        lid: port.lid,
        gid: routed.then(|| gid(port.gid)),
    })
}

/// The address of a queue pair of `ibverbs` for [`rdma::Qp::connect`], on the side of the queue
/// pair of gdsync whose address is `here`. An endpoint without GID is in the same InfiniBand
/// subnet. The MTU is that of `here`.
///
/// # Errors
/// [`Error::Peer`] if `here` is on a virtual NIC that is linked into this process, or on Ethernet
/// and the endpoint has no GID.
pub fn address(there: &QueuePairEndpoint, here: &QpAddress) -> Result<QpAddress> {
    let own = port(here)?;
    let gid = match there.gid {
        Some(gid) => gid_bytes(gid),
        None if own.lid == 0 => return Err(Error::Peer("it has no GID, and Ethernet needs one")),
        None => {
            let mut near = [0; 16];
            near[..8].copy_from_slice(&own.gid[..8]);
            near
        }
    };
    Ok(QpAddress::default()
        .qpn(there.num)
        .port(PortAddress::default().lid(there.lid).mtu(own.mtu).gid(gid)))
}

/// Memory that `ibverbs` registered, as remote memory for WRITEs and READs of peers that use
/// gdsync. Its queue pair must allow them (`allow_remote_rw`). The caller must keep the memory
/// registered, and must read it only while no peer may write to it.
pub fn memory<T>(memory: &MemoryRegion<T>) -> RemoteMemory {
    RemoteMemory::default()
        .addr(memory.as_ptr() as u64)
        .len(size_of_val(&memory[..]) as u64)
        .rkeys([Some(memory.rkey().key), None, None, None])
}

fn port(address: &QpAddress) -> Result<&PortAddress> {
    let linked_in = "it is on a virtual NIC that is linked into its process";
    address.port.as_ref().ok_or(Error::Peer(linked_in))
}

#[cfg(test)]
mod tests;
