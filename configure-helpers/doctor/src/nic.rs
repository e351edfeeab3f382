//! Which NIC programs would be given, driven by whom, and why not by another: what gdsync's
//! `Device::from_env` comes to, concluded from facts. Only whether the GPU's driver lets it reach
//! a doorbell shows when a NIC is opened.

use crate::Report;
use crate::library::State;
use crate::machine::Access;
use crate::named::Named;
use crate::rdma::Device;
use crate::uses::{self, RdmaMemory, Use, on_cuda, rdma_memory_path};
use std::path::Path;

/// Who would drive which NIC.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Driven<'a> {
    /// By libmlx5; streams ring it.
    Mlx5(&'a Device),
    /// By libibverbs and a CPU thread.
    Verbs(&'a Device),
    /// The virtual one.
    Emulated,
    /// Opening a device is an error.
    Nothing,
}

/// What would be used, and why.
pub(crate) struct Nic<'a> {
    pub driven: Driven<'a>,
    pub because: String,
}

/// Concludes from the facts and variables of `report`.
pub(crate) fn conclude(report: &Report) -> Nic<'_> {
    let set = |name: &str| report.variables.get(name).map(String::as_str);
    let named = match set("GDS_NIC").map(Named::first).transpose() {
        Ok(named) => named,
        Err(because) => {
            return Nic {
                driven: Driven::Nothing,
                because,
            };
        }
    };
    let direct = || usable(report, named.as_ref(), true);
    let any = || usable(report, named.as_ref(), false);
    let (driven, because) = match set("GDS_PROVIDER") {
        Some(said @ ("mlx5" | "rdma_core")) => match direct() {
            Ok(device) => (Driven::Mlx5(device), format!("GDS_PROVIDER={said}")),
            Err(why) => (Driven::Nothing, format!("GDS_PROVIDER={said}, and {why}")),
        },
        Some(said @ ("verbs" | "proxy")) => match any() {
            Ok(device) => (Driven::Verbs(device), format!("GDS_PROVIDER={said}")),
            Err(why) => (Driven::Nothing, format!("GDS_PROVIDER={said}, and {why}")),
        },
        Some("emulated") => (Driven::Emulated, "GDS_PROVIDER=emulated".to_owned()),
        None | Some("auto") => match (direct(), any(), &named, set("GDS_GID_INDEX")) {
            (Ok(device), ..) => (Driven::Mlx5(device), doorbells(report)),
            (Err(why), Ok(device), ..) => (Driven::Verbs(device), why),
            (_, Err(why), Some(_), _) => (Driven::Nothing, why),
            // Who says what a port is addressed by wants a port.
            (_, Err(why), None, Some(index)) => {
                (Driven::Nothing, format!("GDS_GID_INDEX={index}, and {why}"))
            }
            (_, Err(why), None, None) => (Driven::Emulated, why),
        },
        Some(other) => (
            Driven::Nothing,
            format!("GDS_PROVIDER={other}, and known are auto, mlx5, verbs, emulated"),
        ),
    };
    Nic { driven, because }
}

/// Why a ConnectX goes before everything else, and when it would not.
fn doorbells(report: &Report) -> String {
    let mapped = report.system.nvidia.as_ref();
    let mapped = mapped.is_some_and(|nvidia| nvidia.peer_mapping_override);
    let why = match (on_cuda(report), mapped) {
        (false, _) => "streams of the software GPU ring it",
        (true, true) => {
            "the GPU may ring it; where mapping the doorbell fails, a CPU thread drives it"
        }
        (true, false) => {
            "root's GPU may ring it (PeerMappingOverride is not set); where mapping the doorbell \
             fails, a CPU thread drives it"
        }
    };
    why.to_owned()
}

/// The first device that can be used, `direct` or by verbs alone, or why none can.
fn usable<'a>(
    report: &'a Report,
    named: Option<&Named<'_>>,
    direct: bool,
) -> Result<&'a Device, String> {
    let rdma = &report.rdma;
    opened("libibverbs", &rdma.ibverbs)?;
    if direct {
        opened("libmlx5", &rdma.mlx5)?;
    }
    let mut passed_over = Vec::new();
    for device in by_distance(report) {
        if named.is_some_and(|named| !named.is(device)) {
            continue;
        }
        let port = named.and_then(|named| named.port);
        match unusable(device, port, direct) {
            None => return Ok(device),
            Some(why) => passed_over.push(why),
        }
    }
    Err(match (passed_over.is_empty(), named) {
        (false, _) => passed_over.join("; "),
        (true, Some(named)) => format!("no RDMA device is called {}", named.nic()),
        (true, None) => "there is no RDMA device".to_owned(),
    })
}

/// The devices in the order in which they are tried: the nearest to the GPU first, and where the
/// tree of devices says nothing, by their names, the shorter first.
fn by_distance(report: &Report) -> Vec<&Device> {
    let gpu = uses::chosen(report).filter(|_| on_cuda(report));
    let gpu = gpu.and_then(|gpu| gpu.place.as_deref());
    let far = |device: &Device| match (gpu, device.place.as_deref()) {
        (None, _) => 0,
        (Some(gpu), Some(place)) => distance(gpu, place),
        (Some(_), None) => usize::MAX,
    };
    let mut all: Vec<&Device> = report.rdma.devices.iter().collect();
    all.sort_by_key(|device| (far(device), device.name.len(), &device.name));
    all
}

/// How many bridges and devices lie between two places in the tree of devices.
fn distance(a: &Path, b: &Path) -> usize {
    let (a, b): (Vec<_>, Vec<_>) = (a.components().collect(), b.components().collect());
    let common = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    a.len() + b.len() - 2 * common
}

fn opened(name: &str, state: &State) -> Result<(), String> {
    match state {
        State::Opened { .. } => Ok(()),
        State::Absent { .. } => Err(format!("there is no usable {name}")),
        State::TooOld { path, symbol } => Err(format!(
            "{name} is too old: {} has no {symbol}",
            path.display()
        )),
    }
}

fn unusable(device: &Device, port: Option<u8>, direct: bool) -> Option<String> {
    let name = &device.name;
    if direct && !device.is_mlx5() {
        return Some(format!("{name} is no ConnectX"));
    }
    match (&device.access, port) {
        (Access::Absent, _) => Some(format!("{name} has no verbs file")),
        (Access::Refused(why), _) => Some(format!("the verbs file of {name} is refused: {why}")),
        (Access::Granted, None) if !device.is_active() => {
            Some(format!("{name} has no active port"))
        }
        (Access::Granted, Some(port)) => {
            let mut ports = device.ports.iter();
            match ports.find(|p| p.number.parse() == Ok(port)) {
                None => Some(format!("{name} has no port {port}")),
                Some(p) if !p.is_active() => Some(format!("port {port} of {name} is not active")),
                Some(_) => None,
            }
        }
        (Access::Granted, None) => None,
    }
}

/// What would be used that depends on the NIC.
pub(crate) fn uses(report: &Report) -> Vec<Use> {
    let nic = conclude(report);
    vec![
        chosen(&nic),
        doorbell(report, nic.driven),
        memory(report, nic.driven),
        within_host(nic.driven),
        between_hosts(nic.driven),
        told(report, nic.driven),
    ]
}

fn chosen(nic: &Nic<'_>) -> Use {
    Use {
        purpose: uses::NIC,
        choice: match nic.driven {
            Driven::Mlx5(device) => format!("mlx5: {}, which streams ring", device.name),
            Driven::Verbs(device) => format!("verbs: {}, by a CPU thread", device.name),
            Driven::Emulated => "emulated: a virtual ConnectX in the process".to_owned(),
            Driven::Nothing => uses::ERROR.to_owned(),
        },
        because: nic.because.clone(),
    }
}

fn doorbell(report: &Report, driven: Driven<'_>) -> Use {
    let (choice, because) = match (driven, on_cuda(report)) {
        (Driven::Nothing, _) => ("nothing", "there is no NIC"),
        (Driven::Mlx5(_), true) => (
            "the NIC's register, registered with the GPU's driver",
            "a ConnectX has its doorbells there",
        ),
        (Driven::Mlx5(_), false) => (
            "the NIC's register, in the process",
            "a ConnectX has its doorbells there",
        ),
        (Driven::Verbs(_), true) => (
            "pinned host memory that the GPU writes",
            "a CPU thread looks for doorbells there",
        ),
        (Driven::Verbs(_), false) => (
            "memory of the process",
            "software GPU and CPU thread share it",
        ),
        (Driven::Emulated, true) => (
            "pinned host memory that the GPU writes",
            "the virtual ConnectX looks for its doorbells there",
        ),
        (Driven::Emulated, false) => (
            "memory of the process",
            "software GPU and virtual ConnectX share it",
        ),
    };
    Use::new("doorbell mapping", choice, because)
}

fn memory(report: &Report, driven: Driven<'_>) -> Use {
    let (choice, because) = match (driven, on_cuda(report)) {
        (Driven::Emulated | Driven::Nothing, _) => {
            let ready = match rdma_memory_path(report) {
                RdmaMemory::DmaBuf => "dma-buf is there for one",
                RdmaMemory::Peermem => "nvidia_peermem is there for one",
                RdmaMemory::No(why) => why,
            };
            ("nothing", format!("no physical NIC would be used; {ready}"))
        }
        (_, false) => (
            "registered by address",
            "the software GPU's memory is the process's".to_owned(),
        ),
        (_, true) => match rdma_memory_path(report) {
            RdmaMemory::DmaBuf => (
                "registered as a dma-buf",
                "driver, kernel and libibverbs have what that takes".to_owned(),
            ),
            RdmaMemory::Peermem => (
                "registered by address",
                "nvidia_peermem is loaded, and dma-buf is not to be had".to_owned(),
            ),
            RdmaMemory::No(why) => ("nothing: payload goes through host memory", why.to_owned()),
        },
    };
    Use::new("GPU memory for a physical NIC", choice, because)
}

fn within_host(driven: Driven<'_>) -> Use {
    let (choice, because) = match driven {
        Driven::Mlx5(device) | Driven::Verbs(device) => (
            format!("{}, which talks to itself", device.name),
            "this version knows no shorter way beside a physical NIC",
        ),
        Driven::Emulated => (
            "links of virtual NICs over shared memory".to_owned(),
            "processes of one host are joined by this version",
        ),
        Driven::Nothing => ("nothing".to_owned(), "there is no NIC"),
    };
    Use::new("messages within this host", choice, because)
}

fn between_hosts(driven: Driven<'_>) -> Use {
    let (choice, because) = match driven {
        Driven::Mlx5(device) | Driven::Verbs(device) => {
            let links = device.ports.iter().filter(|p| p.is_active());
            let links: Vec<String> = links.map(|p| format!("{} ({})", p.link, p.rate)).collect();
            (
                format!("{}: {}", device.name, links.join(", ")),
                "where the other host has one of the same kind",
            )
        }
        Driven::Emulated => (
            "nothing".to_owned(),
            "a virtual NIC reaches processes of its host alone",
        ),
        Driven::Nothing => ("nothing".to_owned(), "there is no NIC"),
    };
    Use::new("messages between machines", choice, because)
}

/// What keeps the word that announces a message behind its payload.
fn told(report: &Report, driven: Driven<'_>) -> Use {
    const WRITE: &str = "a plain WRITE of a word";
    const READ: &str = "a WRITE of a word that waits for a READ behind the payload";
    let set = report.variables.get("MP_TELL").map(String::as_str);
    let (choice, because) = match (set, driven) {
        (Some("write"), _) => (WRITE, "MP_TELL=write".to_owned()),
        (Some("read"), _) => (READ, "MP_TELL=read".to_owned()),
        (Some(other), _) if other != "auto" && !other.is_empty() => (
            "nothing: an error",
            format!("MP_TELL={other}, and known are auto, write, read"),
        ),
        (_, Driven::Emulated) => (
            WRITE,
            "the virtual ConnectX places WRITEs in order, unless GDS_FAULTS has ooo".to_owned(),
        ),
        (_, Driven::Verbs(device)) if device.is_soft_roce() => {
            (WRITE, "soft-RoCE places WRITEs in order".to_owned())
        }
        (_, Driven::Mlx5(_) | Driven::Verbs(_)) => (
            READ,
            "nothing promises that a NIC on a fabric places WRITEs in order".to_owned(),
        ),
        (_, Driven::Nothing) => ("nothing", "there is no NIC".to_owned()),
    };
    Use::new("mp tells of a message by", choice, because)
}
