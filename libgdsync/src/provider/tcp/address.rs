//! The address of a device: where peers connect to it, as a queue pair's address contains it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::nic::{PortAddress, QpAddress};

/// An address of the range for documentation (RFC 5737): a route to it is the default route.
const FAR: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);
/// The same for IPv6 (RFC 3849).
const FAR_6: (Ipv6Addr, u16) = (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9);

/// The address of the interface of the default route, else the loopback address.
pub fn default() -> IpAddr {
    // The connection of a UDP socket sends nothing.
    let v4 = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect(FAR).ok()?;
        socket.local_addr().ok()
    };
    let v6 = || {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect(FAR_6).ok()?;
        socket.local_addr().ok()
    };
    let found = v4().or_else(v6).map(|addr| addr.ip());
    found.unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// Whether peers can connect to an address. That of a link also needs an interface, which addresses of
/// queue pairs do not name.
pub fn is_for_peers(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let on_a_link = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    !(ip.is_unspecified() || ip.is_multicast() || on_a_link)
}

/// The address as a port of a NIC: the IP address in place of the GID, and the port of TCP in place
/// of the LID.
pub fn port(at: SocketAddr) -> PortAddress {
    let gid = match at.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    PortAddress {
        lid: at.port(),
        mtu: MTU,
        gid: gid.octets(),
    }
}

/// No NIC has this MTU: the mark of an address of TCP.
const MTU: u8 = 0;

/// The address that `port` made; `None` for an address of a NIC.
pub fn socket(peer: &QpAddress) -> Option<SocketAddr> {
    let port = peer.port.filter(|port| port.mtu == MTU && port.lid != 0)?;
    let ip = Ipv6Addr::from(port.gid).to_canonical();
    Some(SocketAddr::new(ip, port.lid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["10.1.2.3:4567", "[fd00::7]:1", "127.0.0.1:65535"] {
            let at: SocketAddr = text.parse().unwrap();
            let peer = QpAddress::default().port(port(at));
            let read = QpAddress::from_bytes(&peer.to_bytes()).unwrap();
            assert_eq!(socket(&read), Some(at));
        }
        let nic = PortAddress {
            mtu: 3,
            lid: 7,
            ..PortAddress::default()
        };
        assert_eq!(socket(&QpAddress::default().port(nic)), None);
        assert_eq!(socket(&QpAddress::default()), None);
    }
}
