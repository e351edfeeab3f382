//! [`TcpOptions`]: the settings of queue pairs whose packets are carried by TCP.

use std::fmt;
use std::net::IpAddr;

use crate::options::setters;

/// The options of [`Device::tcp`](crate::rdma::Device::tcp).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpOptions {
    /// The address on which the device accepts connections, and which its queue pairs name to their
    /// peers. `None`: the address of the interface that has the default route, else the loopback
    /// address.
    pub address: Option<IpAddr>,
    /// The key that all devices of a job share. A connection is accepted only from a peer that
    /// proves that it has the key; the key is never sent. `None`: a random key, with which the
    /// device reaches only devices of this process.
    pub key: Option<[u8; 32]>,
    /// Whether all data are encrypted and authenticated (ChaCha20-Poly1305, with keys that follow
    /// from [`key`](field@TcpOptions::key) and random numbers of both sides). All devices of a job
    /// need the same value. Default: false; then only the connections are authenticated.
    pub encrypted: bool,
    /// The number of sockets of a connection that this device begins, 1 to 16. Networks that limit the
    /// rate of one TCP connection carry long messages faster by several sockets. `None`: 1 to a device at
    /// the same address, and if the process may use fewer than 4 processors; else 4. Which of two devices
    /// begins a connection is random.
    pub sockets: Option<u8>,
}

setters! { TcpOptions {
    encrypted: bool,
} optional {
    address: IpAddr,
    key: [u8; 32],
    sockets: u8,
} }

impl fmt::Debug for TcpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpOptions")
            .field("address", &self.address)
            .field("key", &self.key.map(|_| "not shown"))
            .field("encrypted", &self.encrypted)
            .field("sockets", &self.sockets)
            .finish()
    }
}
