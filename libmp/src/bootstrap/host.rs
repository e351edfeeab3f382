//! The number of this host, by which ranks find out whether they share a host.

use super::secret::number_of;

/// The number of this host. It is equal for processes that can reach each other's abstract sockets:
/// those in one network namespace in one boot of one machine.
pub(super) fn host() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let net = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let name = rustix::system::uname();
    let parts: &[&[u8]] = &[
        &boot,
        net.as_os_str().as_encoded_bytes(),
        name.nodename().to_bytes(),
    ];
    number_of("host", parts)
}
