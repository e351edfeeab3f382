//! What a program made with [`ibverbs`] and one made with [`gdsync`] have to tell each other: which
//! NIC it is, where a queue pair can be reached, what memory may be written.
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
//! # What is shared, and what not
//! Numbers are: GUIDs, GIDs, LIDs, numbers of queue pairs and packets, keys. Objects are not.
//! `ibverbs` 0.9 shows none of its handles and knows neither WRITE nor READ, so gdsync opens the
//! NIC by itself, which costs a second context in the kernel and nothing later.
//!
//! # What `ibverbs` 0.9 leaves open
//! It uses the first port of a NIC, sends its packets from number 0, and tells nobody its port's
//! largest packet. Paths are of the lesser one of both ports: where gdsync's is the greater, say so
//! to both sides, by `set_path_mtu` of the builder behind [`set_peer`], and in
//! [`PortAddress::mtu`] of what [`address`] answers.
//!
//! # Building
//! `ibverbs` builds without cmake, libclang and libibverbs where the workspace has the patch of
//! `interop/ibverbs-patch`; nothing here needs it.

mod error;

use gdsync::Gpu;
use gdsync::rdma::{self, DeviceOptions, NicChoice, PortAddress, QpAddress, RemoteMemory};
use ibverbs::{Context, Gid, Guid, MemoryRegion, QueuePairBuilder, QueuePairEndpoint};

pub use error::{Error, Result};

/// The port that `ibverbs` uses of every NIC.
pub const PORT: u8 = 1;

/// READs and atomics that a queue pair of gdsync keeps outstanding and answers.
const READS: u8 = 16;
/// A silent peer is asked again after 0.13 s, six times; seven is for ever to some devices.
const TIMEOUT: u8 = 15;
const RETRIES: u8 = 6;
/// For ever.
const RNR_RETRIES: u8 = 7;

/// Names a NIC of `ibverbs` to gdsync: by its GUID, and the port that `ibverbs` uses.
///
/// # Errors
/// [`Error::NoGuid`] if it has none.
pub fn nic(device: &ibverbs::Device<'_>) -> Result<NicChoice> {
    let guid = device.guid().map_err(Error::NoGuid)?;
    Ok(NicChoice::guid(self::guid(guid)).port(PORT))
}

/// Opens the same NIC and port with gdsync, by the provider that suits it best or that
/// `GDS_PROVIDER` names. `GDS_NIC` is not asked.
///
/// # Errors
/// As [`nic`]; what gdsync says: [`rdma::Device::open_with`].
pub fn open(gpu: &Gpu, device: &ibverbs::Device<'_>) -> Result<rdma::Device> {
    let options = DeviceOptions::default().nic(nic(device)?);
    Ok(rdma::Device::open_with(gpu, &options)?)
}

/// A GUID in the host's order, as [`NicChoice::guid`] and [`QpAddress::node`] have it.
pub fn guid(guid: Guid) -> u64 {
    // `ibverbs` takes the number in network order for one in the host's, both ways.
    u64::from_be(guid.into())
}

/// The bytes of a GID.
pub fn gid_bytes(gid: Gid) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&gid.subnet_prefix().to_be_bytes());
    bytes[8..].copy_from_slice(&gid.interface_id().to_be_bytes());
    bytes
}

/// A GID of these bytes.
pub fn gid(bytes: [u8; 16]) -> Gid {
    ibverbs_sys::ibv_gid { raw: bytes }.into()
}

/// Tells a queue pair of `ibverbs` that is to be built what it has to know before about its peer:
/// the number of the first packet, the path's largest packet, how many READs and atomics may be
/// outstanding, and by which GID of its own it is reached.
///
/// It gets the retry settings of gdsync's own queue pairs as well: with its own it would fail after
/// less than a millisecond without an answer, or where a stream has not reached a receive for 15 ms.
/// What the program sets afterwards takes precedence.
///
/// # Errors
/// [`Error::Peer`] if `there` is on a virtual NIC that is linked into its process, has a largest
/// packet that verbs do not number, or takes a GID of a kind that the port does not have.
pub fn set_peer(
    builder: &mut QueuePairBuilder<'_>,
    context: &Context,
    there: &QpAddress,
) -> Result<()> {
    let port = port(there)?;
    if !(1..=5).contains(&port.mtu) {
        return Err(Error::Peer("its largest packet has a number beyond 1 to 5"));
    }
    // On Ethernet there is nothing else. In an InfiniBand subnet it is not needed, and for a peer
    // in another one it has to be there.
    match own_gid(context, port) {
        Some(index) => drop(builder.set_gid_index(index)),
        None if port.lid == 0 => return Err(Error::Peer("it is on Ethernet, and no GID here is")),
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

/// Which of the GIDs of `ibverbs`'s port reaches `there`: on Ethernet one of RoCE v2, if possible
/// of the same kind of address; on InfiniBand the first.
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
        // `ibverbs` takes a place in this list for the place in the port's table.
        own(entry) && entry.gid_index == *place as u32
    });
    let alike = |gid: Gid| kind_of(gid_bytes(gid)) == kind_of(there.gid);
    let first = all.clone().next();
    let best = all.find(|(_, entry)| alike(entry.gid)).or(first);
    best.map(|(_, entry)| entry.gid_index)
}

/// An address of IPv4, one that is bound to the link, or another one.
fn kind_of(gid: [u8; 16]) -> u8 {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => 4,
        [0xfe, 0x80, ..] => 1,
        _ => 0,
    }
}

/// What [`PreparedQueuePair::handshake`](ibverbs::PreparedQueuePair::handshake) takes for a queue
/// pair of gdsync's, on the side of the queue pair whose endpoint is `here`. There is a GID in it
/// if the way there needs one: on Ethernet, or to another InfiniBand subnet.
///
/// # Errors
/// [`Error::Peer`] if `there` is on a virtual NIC that is linked into its process, or if the way
/// needs a GID and `here` has none, which [`set_peer`] sees to.
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

/// What [`rdma::Qp::connect`] takes for a queue pair of `ibverbs`, on the side of the queue pair of
/// gdsync whose address is `here`. An endpoint without GID is in the same InfiniBand subnet. The
/// largest packet is that of `here`.
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

/// Memory that `ibverbs` registered, as peers that use gdsync name it, for WRITEs and READs. Its
/// queue pair has to allow them (`allow_remote_rw`). Whoever hands this out keeps the memory
/// registered, and looks at it only where nothing may be written.
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
