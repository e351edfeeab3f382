//! The TCP device of a rank: what it is opened with, and its opening beside a NIC on first use.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use gdsync::Gpu;
use gdsync::rdma::{Device, DeviceOptions, Provider, TcpOptions};

use super::Path;
use super::nic::Nic;
use crate::error::{Error, Kind, Result};

/// What a TCP device is opened with.
#[derive(Clone, Debug, Default)]
pub(crate) struct TcpSetup {
    /// The options of the program, which win over the environment.
    pub given: Option<TcpOptions>,
    /// The key.
    pub key: Option<[u8; 32]>,
    /// The address by default.
    pub address: Option<IpAddr>,
    /// Whether only ranks of this process have the key.
    pub alone: bool,
    /// Whether a thread serves its queue pairs.
    pub watched: bool,
}

impl TcpSetup {
    /// Opens a TCP device.
    ///
    /// # Errors
    /// `Invalid` for `MP_IFNAME`, `MP_TCP_ENCRYPT` and `MP_TCP_SOCKETS`; errors of gdsync.
    pub fn open(&self, gpu: &Gpu) -> Result<Device> {
        let provider = DeviceOptions::default().provider(Provider::Tcp);
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let options = provider.watched(self.watched).tcp(self.options(&variable)?);
        Ok(Device::open_with(gpu, &options)?)
    }

    fn options(&self, variable: &dyn Fn(&str) -> String) -> Result<TcpOptions> {
        let mut options = self.given.unwrap_or_default();
        options.key = self.key;
        // Options that say nothing about encryption must not turn it off.
        options.encrypted |=
            switch("MP_TCP_ENCRYPT", &variable("MP_TCP_ENCRYPT"))?.unwrap_or_default();
        options.sockets = match (options.sockets, &*variable("MP_TCP_SOCKETS")) {
            (None, "") => None,
            (None, value) => Some(sockets(value)?),
            (given, _) => given,
        };
        options.address = match (options.address, &*variable("MP_IFNAME")) {
            (Some(address), _) => Some(address),
            (None, "") => self.address,
            (None, name) => Some(address_of(name, &interfaces()?)?),
        };
        Ok(options)
    }
}

/// What `MP_TCP_SOCKETS` sets.
fn sockets(value: &str) -> Result<u8> {
    let number = value.parse().ok().filter(|n| (1..=16).contains(n));
    number.ok_or_else(|| {
        let what = format!("MP_TCP_SOCKETS={value} is not valid; set it to a number from 1 to 16");
        Error::new("read environment", Kind::Invalid, what)
    })
}

/// A TCP device beside a NIC, which the first rank that needs it opens.
#[derive(Clone, Debug)]
pub(crate) struct Second(Arc<Beside>);

#[derive(Debug)]
struct Beside {
    nic: Nic,
    setup: TcpSetup,
    likely: bool,
    opening: Mutex<()>,
    opened: OnceLock<Nic>,
}

impl Second {
    /// A device beside `nic`, with the same settings of queue pairs. `likely`: ranks of other hosts may
    /// need it.
    pub fn new(nic: &Nic, setup: TcpSetup, likely: bool) -> Second {
        Second(Arc::new(Beside {
            nic: nic.clone(),
            setup,
            likely,
            opening: Mutex::new(()),
            opened: OnceLock::new(),
        }))
    }

    /// The device, if it is open.
    #[inline]
    pub fn get(&self) -> Option<&Nic> {
        self.0.opened.get()
    }

    /// Whether memory is named to peers of any path for it, too.
    pub fn is_likely(&self) -> bool {
        self.0.likely || self.get().is_some()
    }

    /// The device, for [`Path::Tcp`]; it is opened if it is not.
    ///
    /// # Errors
    /// As [`TcpSetup::open`]; `Unsupported` for another path.
    pub fn of(&self, path: Path) -> Result<&Nic> {
        if path != Path::Tcp {
            let what = "the peer uses a NIC, and this rank has none; use the same MP_PATH and \
                        GDS_PROVIDER on all ranks";
            return Err(Error::new("open connection", Kind::Unsupported, what));
        }
        let Beside {
            nic,
            setup,
            opening,
            opened,
            ..
        } = &*self.0;
        let _opening = opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = opened.get() {
            return Ok(opened);
        }
        let tcp = nic.with(&setup.open(nic.device.gpu())?, setup.alone)?;
        tracing::info!(target: "mp", "rank {}: {:?} is open beside {:?}", nic.me, tcp.device, nic.device);
        Ok(opened.get_or_init(|| tcp))
    }
}

/// What `value` of the variable `name` sets; `None`: nothing.
pub(crate) fn switch(name: &str, value: &str) -> Result<Option<bool>> {
    match value {
        "" => Ok(None),
        "0" => Ok(Some(false)),
        "1" => Ok(Some(true)),
        _ => {
            let what = format!("{name}={value} is not valid; set it to 0 or 1");
            Err(Error::new("read environment", Kind::Invalid, what))
        }
    }
}

/// An address of this host, and the interface that has it.
type Interface = (String, IpAddr);

/// The address that `value` of `MP_IFNAME` names: the address itself, or the first of an interface,
/// preferably of IPv4.
///
/// # Errors
/// `Invalid` if no interface has it.
fn address_of(value: &str, interfaces: &[Interface]) -> Result<IpAddr> {
    let named = |(name, address): &&Interface| {
        name == value || value.parse::<IpAddr>().is_ok_and(|value| value == *address)
    };
    let mut named: Vec<IpAddr> = interfaces.iter().filter(named).map(|one| one.1).collect();
    named.sort_by_key(IpAddr::is_ipv6);
    named.first().copied().ok_or_else(|| {
        let known = interfaces.iter().map(|(name, address)| format!("{name} ({address})"));
        let known = known.collect::<Vec<_>>().join(", ");
        let what = format!(
            "MP_IFNAME={value} is neither an interface with an address nor an address of this host; \
             the interfaces are {known}"
        );
        Error::new("read environment", Kind::Invalid, what)
    })
}

/// The addresses of this host, but those that are valid on one link only.
fn interfaces() -> Result<Vec<Interface>> {
    let mut list = std::ptr::null_mut();
    // SAFETY: `list` is valid for a store.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        let what = "the interfaces of this host cannot be listed";
        let error = Error::new("read environment", Kind::System, what);
        return Err(error.with_source(std::io::Error::last_os_error()));
    }
    let (mut found, mut next) = (Vec::new(), list);
    // SAFETY: the list and what it points to stay as they are until `freeifaddrs`; its end is null.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: the address is null or one of its family.
        if let Some(address) = unsafe { ip(entry.ifa_addr) } {
            // SAFETY: the name is a string.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            found.push((name.to_string_lossy().into_owned(), address));
        }
    }
    // SAFETY: `getifaddrs` made the list, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    let link_local = |address: &IpAddr| match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    found.retain(|(_, address)| !link_local(address));
    Ok(found)
}

/// The IP address of a socket address.
///
/// # Safety
/// `address` is null, or points to a socket address as long as its family says.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: by the contract of this function.
    let family = unsafe { address.as_ref()? }.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: as above; it has this family.
            let of = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(of.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above; it has this family.
            let of = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(of.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Vec<Interface> {
        let known = [
            ("lo", "127.0.0.1"),
            ("eth0", "2001:db8::7"),
            ("eth0", "10.0.0.7"),
            ("ib0", "2001:db8::8"),
        ];
        known
            .map(|(name, address)| (name.to_owned(), address.parse().unwrap()))
            .to_vec()
    }

    #[test]
    fn mp_ifname_is_an_interface_or_an_address() {
        for (value, address) in [
            ("eth0", "10.0.0.7"),
            ("ib0", "2001:db8::8"),
            ("2001:db8::7", "2001:db8::7"),
            ("2001:0db8::7", "2001:db8::7"),
            ("127.0.0.1", "127.0.0.1"),
        ] {
            let found = address_of(value, &known()).unwrap();
            assert_eq!(found, address.parse::<IpAddr>().unwrap(), "{value}");
        }
        for value in ["eth1", "10.0.0.8", "eth", ""] {
            let e = address_of(value, &known()).unwrap_err();
            let text = e.to_string();
            assert_eq!(e.kind(), Kind::Invalid);
            assert!(text.contains(&format!("MP_IFNAME={value} ")), "{text}");
            assert!(
                text.contains("lo (127.0.0.1), eth0 (2001:db8::7)"),
                "{text}"
            );
        }
    }

    #[test]
    fn interfaces_of_this_host_have_the_loopback_address() {
        let found = interfaces().unwrap();
        assert!(
            found.contains(&("lo".to_owned(), Ipv4Addr::LOCALHOST.into())),
            "{found:?}"
        );
    }

    #[test]
    fn options_of_the_program_win_over_the_environment_and_this_over_the_bootstrap() {
        let set = |name: &str| match name {
            "MP_IFNAME" => "127.0.0.1".to_owned(),
            "MP_TCP_SOCKETS" => "3".to_owned(),
            _ => "1".to_owned(),
        };
        let unset = |_: &str| String::new();
        let other = IpAddr::from([10, 0, 0, 7]);
        let mut setup = TcpSetup {
            key: Some([1; 32]),
            address: Some(other),
            ..TcpSetup::default()
        };
        let default = TcpOptions::default();
        let options = setup.options(&unset).unwrap();
        assert_eq!(options, default.key([1; 32]).address(other));
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        let options = setup.options(&set).unwrap();
        let read = default.key([1; 32]).address(loopback);
        assert_eq!(options, read.encrypted(true).sockets(3));
        let given = default.address(other).sockets(2);
        setup.given = Some(given);
        let options = setup.options(&set).unwrap();
        assert_eq!(options, given.key([1; 32]).encrypted(true));
        setup.given = Some(default.encrypted(true));
        let options = setup.options(&unset).unwrap();
        assert_eq!(options, default.key([1; 32]).address(other).encrypted(true));
    }

    #[test]
    fn mp_tcp_sockets_is_a_number_from_1_to_16() {
        let read = |value| sockets(value).map_err(|e| e.kind());
        assert_eq!(["1", "16"].map(read), [Ok(1), Ok(16)]);
        for value in ["0", "17", "257", "-1", "two", " 1"] {
            assert_eq!(read(value), Err(Kind::Invalid), "{value}");
        }
    }

    #[test]
    fn mp_tcp_encrypt_is_0_or_1() {
        let setup = TcpSetup::default();
        let read = |value: &str| {
            let variable = |name: &str| match name {
                "MP_TCP_ENCRYPT" => value.to_owned(),
                _ => String::new(),
            };
            setup
                .options(&variable)
                .map(|options| options.encrypted)
                .map_err(|e| e.kind())
        };
        assert_eq!(["", "0", "1"].map(read), [Ok(false), Ok(false), Ok(true)]);
        assert_eq!(["yes", "2"].map(read), [Err(Kind::Invalid); 2]);
    }

    #[test]
    fn variable_other_than_0_or_1_is_refused() {
        let read = |value| switch("MP_ZERO_SM", value).map_err(|e| e.kind());
        let set = [Ok(None), Ok(Some(false)), Ok(Some(true))];
        assert_eq!(["", "0", "1"].map(read), set);
        assert_eq!(["yes", "2", " 1"].map(read), [Err(Kind::Invalid); 3]);
    }
}
