//! Opening a NIC: the provider that drives it (named by the program or the environment, else the
//! first that works), and the rails of a GPU. Only this module uses both providers and verbs
//! objects.

#[cfg(feature = "emulated")]
mod emulated;

use std::sync::Arc;
use std::time::Duration;

use crate::env;
use crate::error::{Error, Kind, Result};
use crate::gpu::Gpu;
use crate::nic::{
    DeviceOptions, GID_INDEX, Nic, NicChoice, Provider, RAILS, TcpOptions, first_that_works,
};
use crate::provider::ibv;
use crate::provider::mlx5::Mlx5Nic;
use crate::provider::tcp;
use crate::provider::verbs::VerbsNic;
use crate::rdma::{Device, QpConfig, Rails};

/// Opens the virtual NIC; `None` in a build without it.
#[cfg(feature = "emulated")]
const VIRTUAL: Option<OpenNic> = Some(emulated::open);
#[cfg(not(feature = "emulated"))]
const VIRTUAL: Option<OpenNic> = None;
type OpenNic = fn(&Gpu) -> Result<Arc<dyn Nic>>;

/// Time limit for the destruction of a queue pair that was created to try a NIC.
const TRIAL: Duration = Duration::from_secs(2);

impl Device {
    /// Opens the NIC that suits the GPU best, or that the environment names (`GDS_PROVIDER`,
    /// `GDS_NIC`), with the first [`Provider`] that works. All ranks of a job must open the same
    /// kind of NIC.
    ///
    /// # Errors
    /// As [`Device::open_with`].
    pub fn from_env(gpu: &Gpu) -> Result<Device> {
        Device::open_with(gpu, &DeviceOptions::default())
    }

    /// Opens the NIC that these options name, else the one that [`Device::from_env`] opens.
    ///
    /// # Errors
    /// `Absent` if the library or the NIC does not exist, `Unsupported` if the libraries lack a
    /// needed function, `Invalid` for invalid variables, `System` if the NIC cannot be opened. With
    /// [`Provider::Auto`] and no NIC named, the call fails only for reasons that prevent the
    /// virtual NIC. Without the feature `emulated`, `Unsupported` for [`Provider::Emulated`], and
    /// `Auto` fails with the reasons for which no other NIC can be used.
    pub fn open_with(gpu: &Gpu, options: &DeviceOptions) -> Result<Device> {
        let named = NicChoice::resolve(options.nic.as_ref())?;
        let (nic, passed_over) = match options.provider.resolve()? {
            Provider::Auto => best(gpu, named.as_ref())?,
            Provider::Tcp => (tcp::open(gpu, &options.tcp)?, Vec::new()),
            provider => (nic(gpu, provider, named.as_ref())?, Vec::new()),
        };
        Device::on(gpu, nic, options.watched, passed_over)
    }

    /// Opens a ConnectX by libibverbs and libmlx5, whose doorbells streams write: the one that
    /// `GDS_NIC` names, else the nearest to the GPU that has an active port. Its queues are in
    /// pinned memory, whatever [`QpConfig`] says.
    ///
    /// # Errors
    /// `Absent` if the library or the NIC does not exist, `Unsupported` if the libraries lack a
    /// needed function, `Invalid` for invalid variables, `System` if the NIC cannot be opened. That
    /// the GPU cannot reach the doorbells of the NIC shows at
    /// [`Pd::create_qp`](crate::rdma::Pd::create_qp): `Unsupported`.
    pub fn mlx5(gpu: &Gpu) -> Result<Device> {
        Device::driven_by(gpu, Provider::Mlx5)
    }

    /// Opens a NIC of any vendor by libibverbs: the one that `GDS_NIC` names, else the nearest to
    /// the GPU that has an active port. A CPU thread posts the requests of streams and reports
    /// completions to the streams. Queues are in pinned memory, whatever [`QpConfig`] says. A
    /// request of more pieces than the NIC takes fails when the NIC reaches it, as a malformed
    /// request does ([`Status::LOCAL_QP_OPERATION`](crate::Status::LOCAL_QP_OPERATION)); inline
    /// data are one piece, or two around the end of the ring.
    ///
    /// # Errors
    /// As [`Device::mlx5`].
    pub fn verbs(gpu: &Gpu) -> Result<Device> {
        Device::driven_by(gpu, Provider::Verbs)
    }

    /// Opens a device without a NIC: TCP connections carry the packets of its queue pairs, and a CPU
    /// thread is their NIC. It posts the requests of streams and executes those of the peers; atomics
    /// are atomic among the operations of this device and, in host memory, of the CPU.
    ///
    /// # Errors
    /// `System` if the operating system refuses a socket, a thread or random numbers; `Invalid` for
    /// an address that the host does not have or that peers cannot use, and for a number of sockets
    /// outside of 1 to 16; `Unsupported` on a simulated host.
    pub fn tcp(gpu: &Gpu, options: TcpOptions) -> Result<Device> {
        let provider = DeviceOptions::default().provider(Provider::Tcp);
        Device::open_with(gpu, &provider.tcp(options))
    }

    fn driven_by(gpu: &Gpu, provider: Provider) -> Result<Device> {
        let options = DeviceOptions::default().provider(provider);
        Device::open_with(gpu, &options)
    }
}

impl Rails {
    /// Opens one rail for each of these options, in this order.
    ///
    /// # Errors
    /// As [`Device::open_with`] and [`Rails::of`].
    pub fn open(gpu: &Gpu, each: &[DeviceOptions]) -> Result<Rails> {
        let devices = each.iter().map(|options| Device::open_with(gpu, options));
        Rails::of(devices.collect::<Result<_>>()?)
    }

    /// Opens the rails that the environment names, `GDS_NIC=mlx5_0,mlx5_1:2`, or else those that
    /// suit the GPU: the NIC that [`Device::from_env`] opens, and then the other active ports of
    /// the NICs that are as near to the GPU, up to the limit of rails, driven by the same provider.
    /// If one of these cannot be opened, it is left out and a `tracing` event reports it. A virtual
    /// NIC is one rail.
    ///
    /// # Errors
    /// As [`Device::from_env`]; `Invalid` if more NICs are named than there are rails.
    pub fn from_env(gpu: &Gpu) -> Result<Rails> {
        let named = NicChoice::from_env()?;
        if named.len() > RAILS {
            let what = format!("GDS_NIC names {} NICs; name fewer", named.len());
            return Err(Error::new("open rails", Kind::Invalid, what).with_limit(RAILS, "NICs"));
        }
        let by = |provider, nic: NicChoice| DeviceOptions::default().provider(provider).nic(nic);
        if !named.is_empty() {
            let each = named.into_iter().map(|nic| by(Provider::Auto, nic));
            let each: Vec<_> = each.collect();
            return Rails::open(gpu, &each);
        }
        let first = Device::from_env(gpu)?;
        let provider = first.provider();
        let near = match provider {
            Provider::Mlx5 => ibv::near(gpu, true)?,
            Provider::Verbs => ibv::near(gpu, false)?,
            Provider::Auto | Provider::Emulated | Provider::Tcp => Vec::new(),
        };
        let mut devices = vec![first];
        for nic in near {
            if devices.len() == RAILS {
                break;
            }
            if nic.to_string() == devices[0].nic().name() {
                continue;
            }
            match Device::open_with(gpu, &by(provider, nic)) {
                Ok(device) => devices.push(device),
                Err(e) => tracing::warn!(target: "gdsync", "a rail is left out: {e}"),
            }
        }
        Rails::of(devices)
    }
}

/// Opens a NIC by this provider; `Auto` opens the virtual NIC.
fn nic(gpu: &Gpu, provider: Provider, named: Option<&NicChoice>) -> Result<Arc<dyn Nic>> {
    Ok(match provider {
        Provider::Mlx5 => Arc::new(Mlx5Nic::open(gpu, named)?),
        Provider::Verbs => Arc::new(VerbsNic::open(gpu, named)?),
        Provider::Tcp => tcp::open(gpu, &TcpOptions::default())?,
        Provider::Auto | Provider::Emulated => {
            VIRTUAL.ok_or_else(|| Error::not_built("open device", "emulated"))?(gpu)?
        }
    })
}

/// The first provider that works, and the reasons why others do not.
fn best(gpu: &Gpu, named: Option<&NicChoice>) -> Result<(Arc<dyn Nic>, Vec<String>)> {
    let is_named = named.is_some() || std::env::var_os(GID_INDEX).is_some();
    let mut passed_over = Vec::new();
    let found = first_that_works(is_named, &mut passed_over, |provider| {
        let nic = nic(gpu, provider, named).map_err(|e| (e.kind() == Kind::Invalid, e))?;
        // Whatever the result of the trial: NIC and GPU were found by their names.
        tried(gpu, &nic).map_err(|e| (false, e))?;
        Ok(nic)
    })?;
    let absent = passed_over.iter().all(|(_, e)| e.kind() == Kind::Absent);
    let reason = |(provider, e)| format!("{provider}: {e}");
    let passed_over: Vec<String> = passed_over.into_iter().map(reason).collect();
    let nic = match (found, VIRTUAL) {
        (Some(nic), _) => nic,
        (None, Some(open)) => open(gpu)?,
        (None, None) => {
            let kind = match absent {
                true => Kind::Absent,
                false => Kind::Unsupported,
            };
            let what = format!("no NIC can be used: {}", passed_over.join("; "));
            return Err(Error::new("open device", kind, what));
        }
    };
    report(&passed_over, nic.provider(), absent);
    Ok((nic, passed_over))
}

/// Tries a NIC: creates a queue pair whose doorbell the GPU reaches.
fn tried(gpu: &Gpu, nic: &Arc<dyn Nic>) -> Result<()> {
    let device = Device::on(gpu, Arc::clone(nic), true, Vec::new())?;
    let config = QpConfig::default().send_blocks(4).recv_entries(4);
    drop(device.alloc_pd()?.create_qp(&config)?);
    device.close(TRIAL)
}

/// Reports once per process which providers were passed over. Absent NICs are not reported.
fn report(passed_over: &[String], taken: Provider, absent: bool) {
    for why in passed_over {
        let news = format!("{taken} is used, not {why}");
        match (env::first_time(&news), absent) {
            (false, _) => {}
            (true, true) => tracing::info!(target: "gdsync", "{news}"),
            (true, false) => tracing::warn!(target: "gdsync", "{news}"),
        }
    }
}
