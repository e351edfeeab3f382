//! The address of the store: the one that ranks on other hosts reach, and no other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use anyhow::bail;

use crate::hosts::Host;

/// The remedy if the address cannot be found.
const REMEDY: &str = "use --bind ADDRESS to set where to listen (0.0.0.0: on every address)";

/// The address of this host from which the system reaches the other hosts; or `called`, the name of
/// this host for ranks on other hosts, if it is an address of this host.
///
/// # Errors
/// No host can be resolved, or the hosts are reached from different addresses.
pub fn address(hosts: &[Host], called: Option<&str>) -> anyhow::Result<IpAddr> {
    let own = called.and_then(|name| resolve(name).find(|address| is_own(*address)));
    if let Some(own) = own {
        return Ok(own);
    }
    let mut found: Option<(&str, IpAddr)> = None;
    let mut unknown = Vec::new();
    for host in hosts.iter().filter_map(|host| host.name.as_deref()) {
        // A host name for ssh may begin with a user name.
        let name = host.rsplit_once('@').map_or(host, |(_, name)| name);
        let Some(own) = resolve(name).find_map(source) else {
            unknown.push(host);
            continue;
        };
        match found {
            Some((first, other)) if other != own => {
                bail!("{first} is reached from {other}, and {host} from {own}; {REMEDY}")
            }
            _ => found = Some((host, own)),
        }
    }
    match found {
        Some((_, own)) => Ok(own),
        None => bail!(
            "no address of {} is known here; {REMEDY}",
            unknown.join(", ")
        ),
    }
}

fn resolve(name: &str) -> impl Iterator<Item = IpAddr> + use<> {
    // The port does not matter, because nothing is sent.
    let found = (name, 9).to_socket_addrs().into_iter().flatten();
    found.map(|address| address.ip())
}

fn is_own(address: IpAddr) -> bool {
    !address.is_unspecified() && UdpSocket::bind((address, 0)).is_ok()
}

/// The address from which the system would send to `to`. Nothing is sent.
fn source(to: IpAddr) -> Option<IpAddr> {
    let any = match to {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(SocketAddr::new(to, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Host {
        Host {
            name: Some(name.into()),
            ranks: 1,
        }
    }

    #[test]
    fn store_listens_on_the_address_that_reaches_the_hosts() {
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        let hosts = [Host::here(1), named("127.0.0.1"), named("me@127.0.0.1")];
        assert_eq!(address(&hosts, None).unwrap(), loopback);
        // A host that cannot be resolved is assumed to be reached like the others.
        let hosts = [named("127.0.0.1"), named("no.such.host.invalid")];
        assert_eq!(address(&hosts, None).unwrap(), loopback);
        assert_eq!(address(&hosts, Some("other.invalid")).unwrap(), loopback);
        // An address of this host that is named.
        let own = address(&hosts, Some("127.0.0.2")).unwrap();
        assert_eq!(own, IpAddr::from([127, 0, 0, 2]));
    }

    #[test]
    fn unknown_or_ambiguous_address_requires_bind() {
        let e = address(&[named("no.such.host.invalid")], None).unwrap_err();
        let text = e.to_string();
        assert!(
            text.contains("no.such.host.invalid") && text.contains("--bind"),
            "{text}"
        );
        let hosts = [named("127.0.0.1"), named("::1")];
        let text = match address(&hosts, None) {
            Err(e) => e.to_string(),
            // Without IPv6 there is one address only.
            Ok(own) => return assert_eq!(own, IpAddr::from(Ipv4Addr::LOCALHOST)),
        };
        assert!(text.contains("127.0.0.1, and ::1 from ::1"), "{text}");
        assert!(text.contains("--bind"), "{text}");
    }
}
