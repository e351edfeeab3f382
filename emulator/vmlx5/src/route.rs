//! Routes of datagrams: the destination of an address vector, and the header in front of a received
//! datagram.

use mlx5_prm::cqe::L3Header;
use mlx5_prm::wqe::AvSeg;

use crate::fabric::NodeId;

/// Resolves address vectors: see [`Nic::set_resolver`](crate::Nic::set_resolver).
pub trait Resolve: Send + Sync {
    /// The route of a datagram for `av` from `port`; always the same. `None`: no NIC has this
    /// address, so the datagram is dropped.
    fn resolve(&self, av: &AvSeg, port: u8) -> Option<Route>;
}

/// The route of a datagram, and the data about its way that its receiver gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The NIC at the other end; may be the sender's own.
    pub node: NodeId,
    /// The destination port, counted from 1: only queue pairs of this port receive the datagram.
    pub port: u8,
    /// The source LID; zero on Ethernet.
    pub slid: u16,
    /// The service level; on Ethernet the kind of header, as numbered by [`L3Header`].
    pub sl: u8,
    /// Low bits of the destination LID.
    pub path_bits: u8,
    /// The header in front of the payload, if there is one.
    pub header: Option<RouteHeader>,
}

/// A global route header, or its counterpart on Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteHeader {
    /// The format of the header.
    pub kind: L3Header,
    /// The source address. An IPv4 header has its addresses mapped into IPv6.
    pub sgid: [u8; 16],
    /// The destination address.
    pub dgid: [u8; 16],
    /// The flow label, 20 bits.
    pub flow: u32,
    /// The traffic class.
    pub tclass: u8,
    /// The hop limit.
    pub hop: u8,
}

/// Bytes reserved in front of every received datagram, whether or not a header fills them.
pub(crate) const ROOM: usize = 40;

/// The transport headers of a datagram without immediate data, and its checksum, in bytes.
const AROUND: usize = 12 + 8 + 4;
const IMMEDIATE: usize = 4;
const UDP_HEADER: usize = 8;
const IPV4_HEADER: usize = 20;
/// The protocol after the header: UDP, or the transport itself.
const UDP: u8 = 17;
const TRANSPORT: u8 = 0x1b;

impl RouteHeader {
    /// The header in the form that the receiver reads, in front of `len` bytes of payload. An IPv4
    /// header fills the last 20 bytes.
    pub(crate) fn bytes(&self, len: usize, imm: bool) -> [u8; ROOM] {
        let around = AROUND + if imm { IMMEDIATE } else { 0 };
        let transport = around + len.next_multiple_of(4);
        let mut bytes = [0; ROOM];
        if self.kind == L3Header::Ipv4 {
            let header = &mut bytes[ROOM - IPV4_HEADER..];
            let total = (IPV4_HEADER + UDP_HEADER + transport) as u16;
            // Version, header length in words, and no fragmentation.
            header[0] = 0x45;
            header[1] = self.tclass;
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header[6] = 0x40;
            (header[8], header[9]) = (self.hop, UDP);
            header[12..16].copy_from_slice(&self.sgid[12..]);
            header[16..].copy_from_slice(&self.dgid[12..]);
            let checksum = !ones_complement_sum(header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            return bytes;
        }
        let (next, payload) = match self.kind {
            L3Header::Ipv6 => (UDP, UDP_HEADER + transport),
            _ => (TRANSPORT, transport),
        };
        let first = 6 << 28 | u32::from(self.tclass) << 20 | self.flow & 0xf_ffff;
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        bytes[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
        (bytes[6], bytes[7]) = (next, self.hop);
        bytes[8..24].copy_from_slice(&self.sgid);
        bytes[24..].copy_from_slice(&self.dgid);
        bytes
    }
}

/// The sum whose complement is the checksum of the Internet protocols.
fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks_exact(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The data about a datagram's way in a frame, packed into one field of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Label {
    pub slid: u16,
    pub pkey: u16,
    pub sl: u8,
    pub path_bits: u8,
    /// The destination port.
    pub port: u8,
}

impl Label {
    pub fn pack(self) -> u64 {
        u64::from(self.slid)
            | u64::from(self.pkey) << 16
            | u64::from(self.sl) << 32
            | u64::from(self.path_bits) << 40
            | u64::from(self.port) << 48
    }

    pub fn unpack(packed: u64) -> Label {
        Label {
            slid: packed as u16,
            pkey: (packed >> 16) as u16,
            sl: (packed >> 32) as u8,
            path_bits: (packed >> 40) as u8,
            port: (packed >> 48) as u8,
        }
    }
}
