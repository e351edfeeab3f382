//! Address records: the bytes that two peers exchange, by any means, before they connect.
//!
//! All numbers are little-endian. A record starts with a magic and the version of its format; a
//! reader refuses another version and names it.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use crate::error::{Error, Kind, Result};
use crate::options::setters;

const MAGIC: [u8; 4] = *b"gds1";
/// Version of the records and of the peers' wire protocol.
pub(crate) const VERSION: u16 = 3;
/// The maximum number of rails: of the NICs and ports with which one region is registered, and by
/// which a peer is reached.
pub const RAILS: usize = 4;

/// The address of a queue pair, for a peer that connects to it or sends datagrams to it.
///
/// [`Qp::address`](crate::rdma::Qp::address) makes it. Peers exchange the 64 bytes of its record by
/// any means (sockets, MPI, a file). With the feature `serde` it is serialized as these bytes.
///
/// ```
/// use gdsync::rdma::QpAddress;
/// # use gdsync::rdma::{Device, QpConfig};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// # let qp = Device::emulated(&gpu)?.alloc_pd()?.create_qp(&QpConfig::default())?;
/// let record: [u8; QpAddress::LEN] = qp.address().to_bytes();
/// let address = QpAddress::from_bytes(&record)?; // at the peer
/// assert_eq!(address, qp.address());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAddress {
    /// The NIC: for the emulated provider the node's number on its fabric, else its GUID.
    pub node: u64,
    /// The number of the queue pair on its NIC (QPN, 24 bits).
    pub qpn: u32,
    /// The number of the first packet that it sends (PSN, 24 bits); each connection has a new one.
    pub psn: u32,
    /// The GPU whose streams the queue pair serves, with the same number in every process that uses
    /// the GPU; 0 for a GPU that no other process shares.
    pub gpu: u64,
    /// The process of the queue pair, by a random number.
    pub process: u64,
    /// The address of its port; `None`: the queue pair is addressed by [`node`](QpAddress::node)
    /// alone.
    pub port: Option<PortAddress>,
    /// The queue key of a queue pair of datagrams; `None`: the queue pair is a connection.
    pub qkey: Option<u32>,
    /// The rail of the queue pair among the [`RAILS`] of its side: the index of its NIC's keys in
    /// [`RemoteMemory::rkeys`]. 0 where a side has only one rail.
    pub rail: u8,
}

/// The address of a port of a NIC that is not linked into its process. It is part of a
/// [`QpAddress`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PortAddress {
    /// Its local identifier (LID) in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Its active MTU, by the number that `enum ibv_mtu` gives it: 1 is 256 bytes, 2 is 512, 3 is
    /// 1024, 4 is 2048, 5 is 4096.
    pub mtu: u8,
    /// The global identifier (GID) chosen among those of the port; on Ethernet, one of RoCE v2.
    pub gid: [u8; 16],
}

setters! { QpAddress {
    node: u64,
    qpn: u32,
    psn: u32,
    gpu: u64,
    process: u64,
    rail: u8,
} optional {
    port: PortAddress,
    qkey: u32,
} }

setters! { PortAddress {
    lid: u16,
    mtu: u8,
    gid: [u8; 16],
} }

impl QpAddress {
    /// The length of a record in bytes.
    pub const LEN: usize = 64;
    const TYPE: u8 = 1;
    /// Bits of byte 40: the address has a port, the address has a queue key; the rail is above
    /// them.
    const PORT: u8 = 1;
    const QKEY: u8 = 2;
    const RAIL: u32 = 4;

    /// The bytes of the record, with a version; all numbers are little-endian.
    pub fn to_bytes(&self) -> [u8; QpAddress::LEN] {
        let mut b = [0; QpAddress::LEN];
        head(&mut b, Self::TYPE);
        b[8..16].copy_from_slice(&self.node.to_le_bytes());
        b[16..20].copy_from_slice(&self.qpn.to_le_bytes());
        b[20..24].copy_from_slice(&self.psn.to_le_bytes());
        b[24..32].copy_from_slice(&self.gpu.to_le_bytes());
        b[32..40].copy_from_slice(&self.process.to_le_bytes());
        if let Some(port) = &self.port {
            b[40] |= Self::PORT;
            b[41] = port.mtu;
            b[42..44].copy_from_slice(&port.lid.to_le_bytes());
            b[44..60].copy_from_slice(&port.gid);
        }
        if let Some(qkey) = self.qkey {
            b[40] |= Self::QKEY;
            b[60..].copy_from_slice(&qkey.to_le_bytes());
        }
        b[40] |= self.rail.min(15) << Self::RAIL;
        b
    }

    /// Reads a record, as `to_bytes` wrote it.
    ///
    /// # Errors
    /// `Protocol` if the bytes are not a record of this type, contain invalid values, or have
    /// another version, which the error names.
    pub fn from_bytes(bytes: &[u8]) -> Result<QpAddress> {
        const OPERATION: &str = "read queue pair address";
        check(bytes, Self::TYPE, Self::LEN, OPERATION)?;
        let address = QpAddress {
            node: u64::from_le_bytes(take(bytes, 8)),
            qpn: u32::from_le_bytes(take(bytes, 16)),
            psn: u32::from_le_bytes(take(bytes, 20)),
            gpu: u64::from_le_bytes(take(bytes, 24)),
            process: u64::from_le_bytes(take(bytes, 32)),
            port: (bytes[40] & Self::PORT != 0).then(|| PortAddress {
                mtu: bytes[41],
                lid: u16::from_le_bytes(take(bytes, 42)),
                gid: take(bytes, 44),
            }),
            qkey: (bytes[40] & Self::QKEY != 0).then(|| u32::from_le_bytes(take(bytes, 60))),
            rail: bytes[40] >> Self::RAIL,
        };
        if usize::from(address.rail) >= RAILS {
            let what = format!(
                "the record names rail {}, which does not exist; rails are numbered from 0",
                address.rail
            );
            return Err(Error::new(OPERATION, Kind::Protocol, what).with_limit(RAILS - 1, "rails"));
        }
        // The record must have no other content.
        if address.to_bytes()[8..] != bytes[8..] {
            let what = "the record contains an invalid port or queue key";
            return Err(Error::new(OPERATION, Kind::Protocol, what));
        }
        Ok(address)
    }
}

/// A number of this process that another process is unlikely to have.
pub(crate) fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}

/// Memory of a peer, with the rkey of each of the peer's NICs for it.
///
/// [`Mr::remote`](crate::rdma::Mr::remote) and [`RailsMr::remote`](crate::rdma::RailsMr::remote)
/// make it at the peer. Peers exchange the 48 bytes of its record by any means. With the feature
/// `serde` it is serialized as these bytes.
///
/// ```
/// use gdsync::rdma::{RemoteMemory, Work};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// # let pd = gdsync::rdma::Device::emulated(&gpu)?.alloc_pd()?;
/// # let region = gpu.alloc(gdsync::gpu::MemoryKind::Pinned, 4096)?;
/// # let mr = pd.register(&region, gdsync::rdma::Access::ALL)?;
/// # let record = mr.remote().to_bytes();
/// let there = RemoteMemory::from_bytes(&record)?; // the bytes that the peer has sent
/// let put = Work::write_inline(&[b"payload"], there.span(64, 7)?); // at offset 64 of its memory
/// assert!(there.span(4090, 7).is_err()); // past its end
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteMemory {
    /// The address of its first byte at the peer, as work requests contain it.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The rkeys by rail (NIC and port); `None` for a rail on which the memory is not registered.
    pub rkeys: [Option<u32>; RAILS],
}

setters! { RemoteMemory {
    addr: u64,
    len: u64,
    rkeys: [Option<u32>; RAILS],
} }

impl RemoteMemory {
    /// The length of a record in bytes.
    pub const LEN: usize = 48;
    const TYPE: u8 = 2;

    /// The bytes of the record, with a version; all numbers are little-endian.
    pub fn to_bytes(&self) -> [u8; RemoteMemory::LEN] {
        let mut b = [0; RemoteMemory::LEN];
        head(&mut b, Self::TYPE);
        b[8..16].copy_from_slice(&self.addr.to_le_bytes());
        b[16..24].copy_from_slice(&self.len.to_le_bytes());
        for (rail, key) in self.rkeys.iter().enumerate() {
            b[24] |= u8::from(key.is_some()) << rail;
            b[28 + 4 * rail..32 + 4 * rail].copy_from_slice(&key.unwrap_or(0).to_le_bytes());
        }
        b
    }

    /// Reads a record, as `to_bytes` wrote it.
    ///
    /// # Errors
    /// As [`QpAddress::from_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<RemoteMemory> {
        check(bytes, Self::TYPE, Self::LEN, "read memory address")?;
        let mut rkeys = [None; RAILS];
        for (rail, key) in rkeys.iter_mut().enumerate() {
            let word = u32::from_le_bytes(take(bytes, 28 + 4 * rail));
            *key = (bytes[24] >> rail & 1 == 1).then_some(word);
        }
        Ok(RemoteMemory {
            addr: u64::from_le_bytes(take(bytes, 8)),
            len: u64::from_le_bytes(take(bytes, 16)),
            rkeys,
        })
    }

    /// The `len` bytes at byte `offset`, as the target of a request. The queue pair that the
    /// request is prepared on determines the rail.
    ///
    /// # Errors
    /// `Invalid` outside the memory, `NotRegistered` if no rail has a key for the memory.
    pub fn span(&self, offset: u64, len: u64) -> Result<RemoteSpan> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let what = format!("{len} bytes at offset {offset} exceed the peer's memory");
            return Err(Error::new("address remote memory", Kind::Invalid, what)
                .with_limit(self.len, "bytes"));
        }
        let mut keyed = 0;
        for (rail, key) in self.rkeys.iter().enumerate() {
            keyed |= u8::from(key.is_some()) << rail;
        }
        if keyed == 0 {
            let what = "the record of the peer's memory has no key for any rail";
            return Err(Error::new(
                "address remote memory",
                Kind::NotRegistered,
                what,
            ));
        }
        let [first, others @ ..] = self.rkeys.map(Option::unwrap_or_default);
        Ok(RemoteSpan {
            addr: self.addr.wrapping_add(offset),
            rkey: first,
            others,
            keyed,
        })
    }
}

/// The target of a WRITE, READ or atomic: an address of the peer, and the rkey of each of its rails
/// for it. [`RemoteMemory::span`] makes it. A request takes the key of the rail at the other end of
/// its queue pair. The peer's NIC checks key and range when it executes the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteSpan {
    /// The address at the peer.
    pub addr: u64,
    /// The rkey of rail 0; 0 if only other rails have one.
    pub rkey: u32,
    /// The keys of the other rails.
    others: [u32; RAILS - 1],
    /// The rails that have a key, one bit each.
    keyed: u8,
}

impl RemoteSpan {
    /// A span of an address and its rkey on rail 0, for peers with another library or other
    /// records.
    pub fn new(addr: u64, rkey: u32) -> RemoteSpan {
        RemoteSpan {
            addr,
            rkey,
            others: [0; RAILS - 1],
            keyed: 1,
        }
    }

    /// The rkey of `rail`; `None` if the span has none for it.
    pub fn rkey_of(&self, rail: u8) -> Option<u32> {
        let rail = usize::from(rail);
        let known = rail < RAILS && self.keyed >> rail & 1 == 1;
        known.then(|| match rail {
            0 => self.rkey,
            rail => self.others[rail - 1],
        })
    }
}

fn head(b: &mut [u8], kind: u8) {
    b[..4].copy_from_slice(&MAGIC);
    b[4..6].copy_from_slice(&VERSION.to_le_bytes());
    b[6] = kind;
}

fn check(bytes: &[u8], kind: u8, len: usize, operation: &'static str) -> Result<()> {
    let fail = |what: String| Err(Error::new(operation, Kind::Protocol, what));
    if bytes.len() < 8 || bytes[..4] != MAGIC {
        return fail(format!(
            "the {} bytes are no record of this library: they do not begin with its mark",
            bytes.len()
        ));
    }
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    if version != VERSION {
        return fail(format!(
            "the peer's record has version {version}, and this library reads version {VERSION}; use \
             the same release on both sides"
        ));
    }
    if bytes[6] != kind || bytes.len() != len {
        return fail(format!(
            "the record has type {} and {} bytes; a record of type {kind} and {len} bytes was \
             expected",
            bytes[6],
            bytes.len()
        ));
    }
    Ok(())
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_other_bytes_are_refused() {
        let qp = QpAddress {
            node: 0x1122_3344_5566_7788,
            qpn: 0x00ab_cdef,
            psn: 0x0012_3456,
            gpu: 0x8877_6655_4433_2211,
            process: 7,
            port: None,
            qkey: None,
            rail: 0,
        };
        let port = PortAddress {
            lid: 0x1234,
            mtu: 5,
            gid: *b"sixteen bytes ..",
        };
        let real = QpAddress {
            port: Some(port),
            rail: 3,
            ..qp
        };
        assert_eq!(QpAddress::from_bytes(&real.to_bytes()).unwrap(), real);
        for (at, value) in [(40, 0), (40, 2), (40, 0x41), (60, 4), (63, 0x80)] {
            let mut other = real.to_bytes();
            other[at] = value;
            let e = QpAddress::from_bytes(&other).unwrap_err();
            assert_eq!(e.kind(), Kind::Protocol);
        }
        for port in [None, Some(port)] {
            for qkey in [0, 0x7654_3210, u32::MAX] {
                let qkey = Some(qkey);
                let of_datagrams = QpAddress { port, qkey, ..qp };
                let bytes = of_datagrams.to_bytes();
                assert_eq!(QpAddress::from_bytes(&bytes).unwrap(), of_datagrams);
                let mut other = bytes;
                other[40] |= 4;
                let e = QpAddress::from_bytes(&other).unwrap_err();
                assert_eq!(e.kind(), Kind::Protocol);
            }
        }
        let memory = RemoteMemory {
            addr: 0x7fff_0000_1000,
            len: 1 << 40,
            rkeys: [Some(7), None, Some(0), None],
        };
        assert_eq!(QpAddress::from_bytes(&qp.to_bytes()).unwrap(), qp);
        assert_eq!(
            RemoteMemory::from_bytes(&memory.to_bytes()).unwrap(),
            memory
        );
    }

    #[test]
    fn each_rail_has_its_key_or_none() {
        let keys = |rkeys: [Option<u32>; RAILS]| {
            let memory = RemoteMemory {
                addr: 0,
                len: 8,
                rkeys,
            };
            let span = memory.span(0, 8)?;
            Ok::<_, Error>([0, 1, 2, 3, 4, 255].map(|rail| span.rkey_of(rail)))
        };
        let all = [Some(5), Some(0), None, Some(9)];
        let found = keys(all).unwrap();
        assert_eq!(
            (&found[..RAILS], &found[RAILS..]),
            (&all[..], &[None; 2][..])
        );
        let late = [None, None, None, Some(1)];
        assert_eq!(keys(late).unwrap()[..RAILS], late);
        assert_eq!(keys([None; RAILS]).unwrap_err().kind(), Kind::NotRegistered);
    }
}
