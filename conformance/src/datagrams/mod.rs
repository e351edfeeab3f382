//! Datagrams: UD queue pairs with several peers each, and checks of every received message.
//! [`program`] runs rounds of datagrams between four stations.

pub mod program;

use gdsync::gpu::{MemoryKind, Stream};
use gdsync::rdma::{
    Destination, Device, GRH, Mr, Pd, PortAddress, Qp, QpAddress, QpConfig, Source, Transport,
};

use crate::rig::provider::{self, Net};
use crate::rig::verdict::Verdict;
use crate::rig::{self, Rig};

/// The Q_Key of the first station; each station has a different one.
const QKEY: u32 = 0x0da7_a900;
/// Protocol number of UDP, which carries RoCE v2.
const UDP: u8 = 17;
/// Next header of InfiniBand's own packets.
const BTH: u8 = 0x1b;

/// One UD queue pair, with its protection domain and its stream.
#[derive(Debug)]
pub struct Station {
    /// The queue pair, active.
    pub qp: Qp,
    /// Its protection domain.
    pub pd: Pd,
    /// Its stream, which no other station uses.
    pub stream: Stream,
}

/// UD queue pairs on one GPU, alternating between two NICs.
#[derive(Debug)]
pub struct Stations {
    devices: [Device; 2],
    /// All stations; the one with number `i` has the Q_Key [`qkey`]`(i)`.
    pub all: Vec<Station>,
}

/// The Q_Key of a station.
pub fn qkey(station: usize) -> u32 {
    QKEY + station as u32
}

impl Stations {
    /// Opens NICs and creates active queue pairs.
    pub fn new(rig: &Rig, net: Net, config: &QpConfig, many: usize) -> gdsync::Result<Stations> {
        let devices = provider::open_two(rig.provider, &rig.gpu, net)?;
        Stations::on(devices, config, many)
    }

    /// Creates active queue pairs on open NICs, the second of which may be the first.
    pub fn on(devices: [Device; 2], config: &QpConfig, many: usize) -> gdsync::Result<Stations> {
        let pds = [devices[0].alloc_pd()?, devices[1].alloc_pd()?];
        let station = |i: usize| -> gdsync::Result<Station> {
            let pd = pds[i % 2].clone();
            let transport = Transport::Ud { qkey: qkey(i) };
            let config = config.clone().transport(transport);
            let mut qp = pd.create_qp(&config)?;
            qp.activate()?;
            let stream = pd.device().gpu().stream()?;
            Ok(Station { qp, pd, stream })
        };
        let all = (0..many).map(station).collect::<Result<_, _>>()?;
        Ok(Stations { devices, all })
    }

    /// The destination `to` for `from`, from the address record of `to`.
    pub fn destination(&self, from: usize, to: usize) -> gdsync::Result<Destination> {
        self.all[from].pd.destination(&self.all[to].qp.address())
    }

    /// New memory that a station may access.
    pub fn memory(&self, of: usize, kind: MemoryKind, len: usize) -> gdsync::Result<Mr> {
        rig::memory(&self.all[of].pd, kind, len)
    }

    /// Waits until nothing is in flight, checks that there is no error, and closes everything.
    pub fn leave(self, what: &str) -> Verdict {
        let qps = self.all.into_iter().map(|station| station.qp);
        rig::leave(self.devices, qps, what)
    }
}

/// Whether `said` is the identifier of a port. That of a NIC that is linked in ends in the number
/// of its node.
fn is_of(said: &[u8; 16], address: &QpAddress) -> bool {
    match address.port {
        Some(port) => *said == port.gid,
        None => said[8..] == address.node.to_be_bytes(),
    }
}

/// The addresses of sender and receiver in a header: an IPv4 header (RoCE v2 between ports with
/// IPv4 addresses), or an IPv6 header, whose layout InfiniBand's global route header has (volume 1,
/// 8.3).
fn ends(front: &[u8; GRH], ipv4: bool) -> Result<[[u8; 16]; 2], String> {
    let mapped = |at: usize| -> [u8; 16] {
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&front[at..at + 4]);
        gid
    };
    let whole = |at: usize| std::array::from_fn(|i| front[at + i]);
    match ipv4 {
        true if front[20] == 0x45 && front[29] == UDP => Ok([mapped(32), mapped(36)]),
        false if front[0] >> 4 == 6 && [UDP, BTH].contains(&front[6]) => Ok([whole(8), whole(24)]),
        _ => Err(format!("no header: {front:02x?}")),
    }
}

/// Whether the source and the header of a datagram received at `to` name the queue pair and the
/// port of `from`.
///
/// # Errors
/// The header is missing, or names another receiver than `to`.
pub fn came_from(
    source: &Source,
    front: &[u8; GRH],
    from: &QpAddress,
    to: &QpAddress,
) -> Result<bool, String> {
    let infiniband = from.port.is_some_and(|port| port.lid != 0);
    if infiniband && Some(source.lid) != from.port.map(|port| port.lid) {
        return Ok(false);
    }
    if !source.grh {
        return match infiniband {
            true => Ok(source.qpn == from.qpn),
            false => Err(format!("{source:?}: nothing says which port that is")),
        };
    }
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let ipv4 = |port: PortAddress| port.lid == 0 && port.gid.starts_with(&mapped);
    let [sender, receiver] = ends(front, to.port.is_some_and(ipv4))?;
    if !is_of(&receiver, to) {
        return Err(format!("{front:02x?} is for another than {to:?}"));
    }
    Ok(source.qpn == from.qpn && is_of(&sender, from))
}
