//! Destinations of datagrams, made from address records or from the source of a received datagram.

use std::fmt;
use std::sync::Arc;

use mlx5_prm::wqe::AvSeg;

use super::pd::PdInner;
use super::{GRH, Pd, Source, header};
use crate::error::{Error, Kind, Result};
use crate::nic::{Ah, AhAttr, Nic, QpAddress};

/// The operation in errors of this module.
const OPERATION: &str = "create destination";
/// The largest queue pair number, of 24 bits.
const MAX_QPN: u32 = 0x00ff_ffff;
/// The largest queue key of programs; larger keys are reserved for the system. In a request, a
/// larger key selects the sender's own key.
pub(in crate::rdma) const MAX_QKEY: u32 = 0x7fff_ffff;
/// The MTU in bytes of a virtual NIC that is linked into its process, which has no port address.
const EMULATED_MTU: u32 = 4096;

/// The destination of a datagram: a queue pair behind a port, with its queue key (verbs: an address
/// handle, a remote QP number and a Q_Key).
///
/// ```
/// use std::time::Duration;
///
/// use gdsync::gpu::MemoryKind;
/// use gdsync::rdma::{Access, GRH, QpConfig, Transport, Work};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// # let pd = gdsync::rdma::Device::emulated(&gpu)?.alloc_pd()?;
/// let config = QpConfig::default().transport(Transport::Ud { qkey: 0x1234 });
/// let (mut a, mut b) = (pd.create_qp(&config)?, pd.create_qp(&config)?);
/// a.activate()?;
/// b.activate()?;
/// let memory = pd.register(&gpu.alloc(MemoryKind::Pinned, 256)?, Access::ALL)?;
/// let recv = b.prepare_receive(&[memory.sge(128, GRH as u32 + 8)])?;
/// b.post_receive(recv)?;
///
/// let to = pd.destination(&b.address())?; // the record of the peer's queue pair
/// let send = a.prepare(&Work::send(&[memory.sge(0, 8)]).to(&to).signaled())?;
/// a.post(send)?;
/// b.wait(recv, Duration::from_secs(10))?;
/// let got = b.received(recv)?;
/// assert_eq!(got.len as usize, GRH + 8);
///
/// let mut front = [0; GRH];
/// memory.region().read(128, &mut front)?;
/// let back = pd.answer_to(&got.source.unwrap(), &front, 0x1234)?; // to the sender
/// assert_eq!(back.qpn(), a.address().qpn);
/// # Ok(())
/// # }
/// ```
///
/// [`Pd::destination`] and [`Pd::answer_to`] make a destination; [`Work::to`](super::Work::to) uses
/// it on any number of queue pairs of the same protection domain. A clone is the same destination.
/// Requests in flight keep it alive. Creation does not check that the peer exists.
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
        write!(f, "destination QP {:#x}", self.qpn())
    }
}

impl Destination {
    /// The number of the destination's queue pair.
    pub fn qpn(&self) -> u32 {
        self.0.ah.av.qpn()
    }

    /// The maximum length of a message in bytes. A datagram is one packet, so the limit is the
    /// smaller active MTU of the two ports; the MTU of the local port if the peer's is unknown, as
    /// for [`Pd::answer_to`]; 4096 for virtual NICs in the process.
    pub fn max_len(&self) -> u32 {
        self.0.max_len
    }

    /// The inner value, if this is the last handle.
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
        let what = format!("queue key {qkey:#x} is reserved for the system; choose a smaller one");
        return Err(
            Error::new(operation, Kind::Invalid, what).with_limit(MAX_QKEY, "as the highest key")
        );
    }
    Ok(())
}

impl Pd {
    /// The destination of an address record: a datagram queue pair
    /// ([`Transport::Ud`](crate::rdma::Transport::Ud)).
    ///
    /// # Errors
    /// `Invalid` for the address of a connection, for numbers that no peer has, and for a port that
    /// is unreachable from this one: of another link type, or if only one of the two NICs is linked
    /// into its process. `System` if the NIC refuses, as on Ethernet if no host answers for the
    /// address.
    pub fn destination(&self, peer: &QpAddress) -> Result<Destination> {
        let invalid = |what: String| Error::new(OPERATION, Kind::Invalid, what);
        let Some(qkey) = peer.qkey else {
            let what = format!("QP {:#x} is a connection and takes no datagrams", peer.qpn);
            return Err(invalid(what));
        };
        let mtu = peer.port.map(|port| port.mtu);
        if let Some(mtu) = mtu.filter(|mtu| !(1..=5).contains(mtu)) {
            let what = format!("the peer's record has the unknown MTU code {mtu}");
            return Err(invalid(what).with_limit(5u8, "as the highest code"));
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

    /// The destination of an answer: the sender of a received datagram
    /// ([`Received::source`](super::Received::source); verbs: `ibv_init_ah_from_wc`). `front` are
    /// the [`GRH`] bytes before its payload, which the call reads if the source says that they are
    /// valid; `qkey` is the key of the sender's queue pair, which no datagram contains.
    ///
    /// # Errors
    /// `Protocol` if the bytes are not a header; other errors as [`Pd::destination`].
    pub fn answer_to(&self, source: &Source, front: &[u8; GRH], qkey: u32) -> Result<Destination> {
        let gid = match source.grh {
            true => Some(header::sender(front).ok_or_else(|| {
                let what = format!(
                    "the bytes before the datagram of QP {:#x} are not a GRH or IP header",
                    source.qpn
                );
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
            let what = format!("the peer's QP number {qpn:#x} has more than 24 bits");
            return Err(Error::new(OPERATION, Kind::Invalid, what)
                .with_limit(MAX_QPN, "as the highest number"));
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
