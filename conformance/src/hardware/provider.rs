//! Who executes verbs under the trials: a provider of the library's and the NIC that it opens.

use gdsync::gpu::Gpu;
use gdsync::rdma::Device;
use gdsync::{EmulatedOptions, Fabric};
use vmlx5::fabric::hub::{Hub, HubConfig};

use super::gear::{Net, Verdict};

/// A provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// The virtual ConnectX, linked in.
    Emulated,
    /// A ConnectX by libibverbs and libmlx5.
    RdmaCore,
    /// Any NIC of verbs, by a CPU thread.
    Proxy,
}

/// Says which one.
pub const PROVIDER: &str = "CONFORMANCE_PROVIDER";

impl Provider {
    /// All of them.
    pub const ALL: [Provider; 3] = [Provider::Emulated, Provider::RdmaCore, Provider::Proxy];

    /// Its name, as `GDS_PROVIDER` has it.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Emulated => "emulated",
            Provider::RdmaCore => "rdma_core",
            Provider::Proxy => "proxy",
        }
    }

    /// The provider of this name.
    pub fn named(name: &str) -> Option<Provider> {
        Provider::ALL.into_iter().find(|p| p.name() == name)
    }

    /// The one that the environment chooses.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn chosen() -> Verdict<Provider> {
        match std::env::var(PROVIDER) {
            Err(_) => Ok(Provider::Emulated),
            Ok(name) => {
                let none = || format!("{PROVIDER}={name}: no provider is called so");
                Ok(Provider::named(&name).ok_or_else(none)?)
            }
        }
    }

    /// Its NIC.
    ///
    /// # Errors
    /// As [`Device::emulated`], [`Device::rdma_core`] and [`Device::proxy`].
    pub fn open(self, gpu: &Gpu) -> gdsync::Result<Device> {
        match self {
            Provider::Emulated => Device::emulated(gpu),
            Provider::RdmaCore => Device::rdma_core(gpu),
            Provider::Proxy => Device::proxy(gpu),
        }
    }

    /// What is opened, for people.
    pub fn device(self) -> String {
        let opened = Gpu::open("soft").and_then(|gpu| self.open(&gpu));
        match opened {
            Ok(device) => device.name().replacen(' ', " on ", 1),
            Err(e) => format!("{} ({e})", self.name()),
        }
    }

    /// Two NICs, or one twice, with `net` between them.
    ///
    /// # Errors
    /// As [`Provider::open`].
    pub fn open_two(self, gpu: &Gpu, net: Net) -> gdsync::Result<[Device; 2]> {
        let hub = Hub::new(HubConfig::default());
        let open = || match (self, net) {
            (Provider::Emulated, Net::One | Net::Hub) => {
                let fabric = Fabric::Hub(hub.clone());
                Device::emulated_with(gpu, EmulatedOptions { fabric })
            }
            (other, _) => other.open(gpu),
        };
        let first = open()?;
        let second = match net {
            Net::One => first.clone(),
            Net::Hub | Net::Host => open()?,
        };
        Ok([first, second])
    }

    /// First index of a queue pair that comes soon to where it wraps, as far as it may be chosen.
    pub fn shortly_before_the_wrap(self) -> u32 {
        match self {
            // The NIC counts from 0.
            Provider::RdmaCore => 0,
            Provider::Emulated | Provider::Proxy => 0_u32.wrapping_sub(9),
        }
    }
}
