//! Whom datagrams go to: destinations, made of address records or of what a datagram said of
//! its sender.

use std::fmt;
use std::sync::Arc;

use mlx5_prm::wqe::AvSeg;

use super::pd::PdInner;
use super::{GRH, Pd, Source, header};
use crate::error::{Error, Kind, Result};
use crate::nic::{Ah, AhAttr, Nic, QpAddress};

/// What the calls of this module are called in errors.
const OPERATION: &str = "name destination";
/// Queue pairs' numbers have so many bits.
const MAX_QPN: u32 = 0x00ff_ffff;
/// Queue keys beyond are the system's. In a request they stand for the sender's own key.
pub(in crate::rdma) const MAX_QKEY: u32 = 0x7fff_ffff;
/// The largest packet of a virtual NIC that is linked in.
const EMULATED_MTU: u32 = 4096;

/// Whom a datagram goes to: a queue pair, behind a port, that wants to be told a key.
///
/// Made by [`Pd::destination`] or [`Pd::answer_to`], used by [`Work::to`](super::Work::to) on any
/// number of queue pairs of the same protection domain. Clones are the same; requests in flight
/// keep it alive. Nobody is asked whether the peer is there.
#[derive(Clone)]
pub struct Destination(Arc<DestinationInner>);

pub(crate) struct DestinationInner {
    nic: Arc<dyn Nic>,
    pd: Arc<PdInner>,
    ah: Ah,
    max_len: u32,
}

impl Drop for DestinationInner {
    fn drop(&mut self) {
        self.nic.destroy_ah(self.ah.id);
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "destination qp {:#x}", self.qpn())
    }
}

impl Destination {
    /// The queue pair's number.
    pub fn qpn(&self) -> u32 {
        self.0.ah.av.qpn()
    }

    /// Bytes of the longest message: a datagram is one packet, so it is the smaller MTU of the two
    /// ports, or that of the own one where the other's is not known.
    pub fn max_len(&self) -> u32 {
        self.0.max_len
    }

    /// What ends with this handle, if it is the last.
    pub(in crate::rdma) fn into_last(self) -> Option<DestinationInner> {
        Arc::into_inner(self.0)
    }

    /// Whether it belongs to this protection domain.
    pub fn is_of(&self, pd: &Pd) -> bool {
        Arc::ptr_eq(&self.0.pd, pd.inner())
    }

    /// The address vector of requests.
    pub(crate) fn av(&self) -> AvSeg {
        self.0.ah.av
    }
}

/// Refuses queue keys that only the system may use.
pub(in crate::rdma) fn check_qkey(qkey: u32, operation: &'static str) -> Result<()> {
    if qkey > MAX_QKEY {
        let what = format!("queue key {qkey:#x}, which is none of a program's");
        return Err(Error::new(operation, Kind::Invalid, what).limit(MAX_QKEY));
    }
    Ok(())
}

impl Pd {
    /// The destination that an address record names: that of a queue pair of datagrams
    /// ([`Transport::Ud`](crate::rdma::Transport::Ud)).
    ///
    /// # Errors
    /// `Invalid` for the address of a connection, for numbers that no peer has, and for a port that
    /// cannot be reached from this one: of another kind of link, or of a NIC that is linked
    /// into its process where this one is not, or the other way round. `System` if the NIC refuses, as
    /// it does on Ethernet where nobody answers to the address.
    pub fn destination(&self, peer: &QpAddress) -> Result<Destination> {
        let invalid = |what: String| Error::new(OPERATION, Kind::Invalid, what);
        let Some(qkey) = peer.qkey else {
            let what = format!("qp {:#x}, which takes no datagrams", peer.qpn);
            return Err(invalid(what));
        };
        let mtu = peer.port.map(|port| port.mtu);
        if let Some(mtu) = mtu.filter(|mtu| !(1..=5).contains(mtu)) {
            let what = format!("a peer with packets of size {mtu}");
            return Err(invalid(what).limit(5u8));
        }
        let to = match peer.port {
            None => AhAttr::Node(peer.node),
            Some(port) => AhAttr::Port {
                lid: port.lid,
                gid: Some(port.gid),
                service_level: None,
            },
        };
        self.name(peer.qpn, qkey, to, mtu)
    }

    /// The destination to answer to: whoever sent what was received
    /// ([`Received::source`](super::Received::source)). `front` are the [`GRH`] bytes in front
    /// of it, which are looked at if the source says that they tell something; `qkey` is
    /// the key of the queue pair there, which no datagram tells.
    ///
    /// # Errors
    /// `Protocol` if the bytes are no header; else as [`Pd::destination`].
    pub fn answer_to(&self, source: &Source, front: &[u8; GRH], qkey: u32) -> Result<Destination> {
        let gid = match source.grh {
            true => Some(header::sender(front).ok_or_else(|| {
                let what = format!("no header before what qp {:#x} sent", source.qpn);
                Error::new(OPERATION, Kind::Protocol, what)
            })?),
            false => None,
        };
        let to = match (self.device().nic().port(), gid) {
            (None, Some([_, _, _, _, _, _, _, _, node @ ..])) => {
                AhAttr::Node(u64::from_be_bytes(node))
            }
            (_, gid) => AhAttr::Port {
                lid: source.lid,
                gid,
                service_level: Some(source.service_level),
            },
        };
        self.name(source.qpn, qkey, to, None)
    }

    fn name(&self, qpn: u32, qkey: u32, to: AhAttr, mtu: Option<u8>) -> Result<Destination> {
        if qpn > MAX_QPN {
            let what = format!("a peer with number {qpn:#x}");
            return Err(Error::new(OPERATION, Kind::Invalid, what).limit(MAX_QPN));
        }
        check_qkey(qkey, OPERATION)?;
        let nic = self.device().nic();
        let bytes = |mtu: u8| 128 << mtu;
        let own = nic.port().map_or(EMULATED_MTU, |port| bytes(port.mtu));
        let mut ah = nic.create_ah(self.id(), &to)?;
        ah.av.qkey = qkey.into();
        ah.av.dqp_dct = (AvSeg::EXTENDED | qpn).into();
        Ok(Destination(Arc::new(DestinationInner {
            nic: Arc::clone(nic),
            pd: Arc::clone(self.inner()),
            ah,
            max_len: mtu.map_or(own, |mtu| own.min(bytes(mtu))),
        })))
    }
}
