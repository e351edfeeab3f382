//! The provider of the trials: the value of `GDS_PROVIDER` on the software GPU, read once in each
//! process, and the NICs that the provider opens.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use gdsync::EmulatedOptions;
use gdsync::gpu::Gpu;
use gdsync::rdma::{Device, DeviceOptions, NicChoice, Provider, TcpOptions};
use vmlx5::fabric::hub::{Hub, HubConfig};

use super::verdict::{Verdict, ensure};

/// The link between two queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// One NIC, in loopback.
    One,
    /// Two NICs of this process.
    Hub,
    /// Two NICs that connect as those of two processes do.
    Host,
}

/// The key of the devices of all processes of a trial over TCP, which are on one host.
const KEY: [u8; 32] = *b"the key of conformance over TCP.";
/// The address of these devices.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The provider and NIC that the environment chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The provider.
    pub provider: Provider,
    /// The NIC, by its provider's name: `mlx5_0:1`; over TCP, the address: `127.0.0.1`.
    pub nic: String,
}

/// The choice of the environment.
pub fn chosen() -> Verdict<&'static Chosen> {
    static CHOSEN: OnceLock<Result<Chosen, String>> = OnceLock::new();
    let open = || -> gdsync::Result<Chosen> {
        let device = Device::from_env(&Gpu::open("soft")?)?;
        let name = device.name();
        let provider = device.provider();
        let nic = match provider {
            Provider::Tcp => LOOPBACK.to_string(),
            _ => name.split_once(' ').map_or("", |(_, nic)| nic).to_owned(),
        };
        Ok(Chosen { provider, nic })
    };
    let chosen = CHOSEN.get_or_init(|| open().map_err(|e| e.to_string()));
    Ok(chosen.as_ref()?)
}

/// Checks that a device that was opened without an explicit provider has the chosen one: the best
/// provider for its GPU may differ from the best one for the software GPU.
///
/// # Errors
/// It has another one; or as [`chosen`].
pub fn check(device: &Device) -> Verdict {
    let (there, wanted) = (device.provider(), chosen()?.provider);
    ensure(there == wanted, || {
        format!("over {there}, in place of {wanted}")
    })
}

/// First index of a queue pair that wraps soon; 0 if the provider has no first index.
pub fn shortly_before_the_wrap(provider: Provider) -> u32 {
    match provider {
        // The NIC always counts from 0.
        Provider::Mlx5 => 0,
        _ => 0_u32.wrapping_sub(9),
    }
}

/// Whether two NICs were needed where there is one. Relaxed: other data does not depend on it.
static ALONE: AtomicBool = AtomicBool::new(false);

/// Whether [`open_two`] opened one NIC twice.
pub fn was_alone() -> bool {
    ALONE.load(Ordering::Relaxed)
}

/// Opens a NIC.
pub fn open(provider: Provider, gpu: &Gpu) -> gdsync::Result<Device> {
    let tcp = TcpOptions::default().address(LOOPBACK).key(KEY);
    let options = DeviceOptions::default().provider(provider).tcp(tcp);
    Device::open_with(gpu, &options)
}

/// Two NICs, or one NIC twice, with the link `net` between them. Over TCP, each device is a NIC of its
/// own. Of a provider for real NICs: a NIC and its neighbour in the kernel's numbering, or, if there is only one, this one opened twice,
/// which [`was_alone`] reports.
pub fn open_two(provider: Provider, gpu: &Gpu, net: Net) -> gdsync::Result<[Device; 2]> {
    if provider == Provider::Emulated && net != Net::Host {
        let hub = Hub::new(HubConfig::default());
        let open = || Device::emulated_with(gpu, EmulatedOptions::default().hub(hub.clone()));
        let first = open()?;
        return Ok(match net {
            Net::One => [first.clone(), first],
            _ => [first, open()?],
        });
    }
    let first = open(provider, gpu)?;
    let again = || {
        let own = [Provider::Emulated, Provider::Tcp].contains(&provider);
        ALONE.store(!own, Ordering::Relaxed);
        open(provider, gpu)
    };
    let second = match net {
        Net::One => first.clone(),
        _ => match neighbour(&first) {
            None => again()?,
            Some(nic) => {
                let options = DeviceOptions::default().provider(provider).nic(nic);
                match Device::open_with(gpu, &options) {
                    Err(e) if e.kind() == gdsync::Kind::Absent => again()?,
                    other => other?,
                }
            }
        },
    };
    Ok([first, second])
}

/// `mlx5_1` for a device `mlx5_0`, and the reverse.
fn neighbour(device: &Device) -> Option<NicChoice> {
    if device.provider() == Provider::Tcp {
        return None;
    }
    let name = device.name();
    let (_, nic) = name.split_once(' ')?;
    let (nic, _port) = nic.split_once(':')?;
    let (family, number) = nic.split_at(nic.trim_end_matches(char::is_numeric).len());
    let number: u32 = number.parse().ok()?;
    Some(NicChoice::kernel(format!("{family}{}", number ^ 1)))
}
