//! Which host this is, as a number.

use super::secret::number_of;

/// The number of this host: equal for processes that can reach each other's abstract sockets,
/// which is one boot of one machine and one network namespace of it.
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
