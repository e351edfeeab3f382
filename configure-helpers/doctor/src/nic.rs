//! The NIC that programs would use, its provider, and the reasons against the others: gdsync's
//! choice, made from the facts of this machine. One fact is missing here, because it is known only
//! after a NIC is opened: whether the GPU's driver maps the doorbell.

use crate::Report;
use crate::library::State;
use crate::machine::Access;
use crate::rdma::Device;
use crate::uses::{self, RdmaMemory, Use, on_cuda, rdma_memory_path};
use gdsync::decide::{first_that_works, nearest_first};
use gdsync::rdma::{NicChoice, Provider};
use mp::WordOrder;

/// The provider that the library would use, and its NIC.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Driven<'a> {
    /// By libmlx5; streams write its doorbells.
    Mlx5(&'a Device),
    /// By libibverbs and a CPU thread.
    Verbs(&'a Device),
    /// The virtual ConnectX.
    Emulated,
    /// No NIC: TCP carries the queue pairs.
    Tcp,
    /// Opening a device is an error.
    Nothing,
}

/// The provider and NIC that the library would use, with the reason; or the reason why opening a
/// NIC would fail.
fn decide(report: &Report) -> Result<(Driven<'_>, String), String> {
    let set = |name: &str| report.variables.get(name).map(String::as_str);
    let named = set("GDS_NIC").map(NicChoice::list).transpose();
    let named = named
        .map_err(|e| e.reason().to_owned())?
        .unwrap_or_default();
    let named = named.first();
    let attempt = |provider| {
        let device = usable(report, named, provider == Provider::Mlx5)?;
        Ok(match provider {
            Provider::Mlx5 => Driven::Mlx5(device),
            _ => Driven::Verbs(device),
        })
    };
    let known = Provider::VARIABLE;
    let word = set(known.name).unwrap_or("auto");
    let because = format!("{}={word}", known.name);
    match known.meaning(word) {
        None => return Err(format!("{because}, but {}", known.known())),
        Some((_, Provider::Auto)) => {}
        Some((_, Provider::Emulated)) => return Ok((Driven::Emulated, because)),
        Some((_, Provider::Tcp)) => return Ok((Driven::Tcp, because)),
        Some((_, provider)) => {
            return match attempt(provider) {
                Ok(driven) => Ok((driven, because)),
                Err(why) => Err(format!("{because}, but {why}")),
            };
        }
    }
    let index = set("GDS_GID_INDEX");
    let attempt = |provider| attempt(provider).map_err(|why| (false, why));
    let mut passed_over = Vec::new();
    let is_named = named.is_some() || index.is_some();
    let found = first_that_works(is_named, &mut passed_over, attempt);
    let found = found.map_err(|why: String| match (named, index) {
        (None, Some(index)) => format!("GDS_GID_INDEX={index}, but {why}"),
        _ => why,
    })?;
    let because = passed_over
        .pop()
        .map_or_else(|| doorbells(report), |(_, why)| why);
    Ok((found.unwrap_or(Driven::Emulated), because))
}

/// The reason to prefer a ConnectX to every other NIC, and the case in which it is not used so.
fn doorbells(report: &Report) -> String {
    let mapped = report.system.nvidia.as_ref();
    let mapped = mapped.is_some_and(|nvidia| nvidia.peer_mapping_override);
    let why = match (on_cuda(report), mapped) {
        (false, _) => "streams of the software GPU can write its doorbells",
        (true, true) => {
            "the GPU may write its doorbells; if mapping them fails, a CPU thread drives it"
        }
        (true, false) => {
            "the GPU may write its doorbells for root (PeerMappingOverride is not set); if mapping \
             them fails, a CPU thread drives it"
        }
    };
    why.to_owned()
}

/// The first usable device, `direct` or by verbs alone; or the reasons against all of them.
fn usable<'a>(
    report: &'a Report,
    named: Option<&NicChoice>,
    direct: bool,
) -> Result<&'a Device, String> {
    let rdma = &report.rdma;
    opened("libibverbs", &rdma.ibverbs)?;
    if direct {
        opened("libmlx5", &rdma.mlx5)?;
    }
    let mut passed_over = Vec::new();
    for device in by_distance(report) {
        let own = |named: &NicChoice| named.device.is(&device.name, device.guid.unwrap_or(0));
        if !named.is_none_or(own) {
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
        (true, Some(named)) => format!("no RDMA device is called {}", named.device),
        (true, None) => "there is no RDMA device".to_owned(),
    })
}

/// The devices in the order in which they are tried.
fn by_distance(report: &Report) -> impl Iterator<Item = &Device> {
    let gpu = uses::taken(report).and_then(|gpu| gpu.place.as_deref());
    let is = |device: &&Device| (device.name.clone(), device.place.clone());
    let all = nearest_first(gpu, report.rdma.devices.iter().collect(), is);
    all.into_iter().map(|(_, device)| device)
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
        return Some(format!("{name} is not a ConnectX"));
    }
    match (&device.access, port) {
        (Access::Absent, _) => Some(format!("{name} has no verbs file")),
        (Access::Refused(why), _) => Some(format!(
            "access to the verbs file of {name} is refused: {why}"
        )),
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

/// The choices that depend on the NIC.
pub(crate) fn uses(report: &Report) -> Vec<Use> {
    let (driven, because) = decide(report).unwrap_or_else(|why| (Driven::Nothing, why));
    vec![
        chosen(driven, because),
        doorbell(report, driven),
        memory(report, driven),
        within_host(driven),
        between_hosts(report, driven),
        word_order(report, driven),
    ]
}

fn chosen(driven: Driven<'_>, because: String) -> Use {
    let choice = match driven {
        Driven::Mlx5(device) => format!("mlx5: {}, whose doorbells streams write", device.name),
        Driven::Verbs(device) => format!("verbs: {}, driven by a CPU thread", device.name),
        Driven::Emulated => "emulated: a virtual ConnectX in the process".to_owned(),
        Driven::Tcp => "tcp: no NIC, TCP connections carry the queue pairs".to_owned(),
        Driven::Nothing => uses::ERROR.to_owned(),
    };
    Use::new(uses::NIC, choice, because)
}

fn doorbell(report: &Report, driven: Driven<'_>) -> Use {
    let (choice, because) = match (driven, on_cuda(report)) {
        (Driven::Nothing, _) => ("nothing", "there is no NIC"),
        (Driven::Mlx5(_), true) => (
            "the NIC's doorbell register, registered with the GPU's driver",
            "the doorbells of a ConnectX are in a register of the NIC",
        ),
        (Driven::Mlx5(_), false) => (
            "the NIC's doorbell register, mapped in the process",
            "the doorbells of a ConnectX are in a register of the NIC",
        ),
        (Driven::Verbs(_) | Driven::Tcp, true) => (
            "pinned host memory that the GPU writes",
            "a CPU thread reads the doorbells there",
        ),
        (Driven::Verbs(_) | Driven::Tcp, false) => (
            "memory of the process",
            "the software GPU and the CPU thread share it",
        ),
        (Driven::Emulated, true) => (
            "pinned host memory that the GPU writes",
            "the virtual ConnectX reads its doorbells there",
        ),
        (Driven::Emulated, false) => (
            "memory of the process",
            "the software GPU and the virtual ConnectX share it",
        ),
    };
    Use::new("doorbell mapping", choice, because)
}

fn memory(report: &Report, driven: Driven<'_>) -> Use {
    let (choice, because) = match (driven, on_cuda(report)) {
        (Driven::Emulated | Driven::Tcp | Driven::Nothing, _) => {
            let ready = match rdma_memory_path(report) {
                RdmaMemory::DmaBuf => "dma-buf is available for one",
                RdmaMemory::Peermem => "nvidia_peermem is available for one",
                RdmaMemory::No(why) => why,
            };
            ("nothing", format!("no physical NIC would be used; {ready}"))
        }
        (_, false) => (
            "registered by address",
            "the memory of the software GPU is memory of the process".to_owned(),
        ),
        (_, true) => match rdma_memory_path(report) {
            RdmaMemory::DmaBuf => (
                "registered as a dma-buf",
                "driver, kernel and libibverbs support it".to_owned(),
            ),
            RdmaMemory::Peermem => (
                "registered by address",
                "nvidia_peermem is loaded, and dma-buf is not available".to_owned(),
            ),
            RdmaMemory::No(why) => ("nothing: payload goes through host memory", why.to_owned()),
        },
    };
    Use::new("GPU memory for a physical NIC", choice, because)
}

fn within_host(driven: Driven<'_>) -> Use {
    let (choice, because) = match driven {
        Driven::Mlx5(device) | Driven::Verbs(device) => (
            format!("{}, by loopback", device.name),
            "with a physical NIC, this version has no shorter path",
        ),
        Driven::Emulated => (
            "links of virtual NICs over shared memory".to_owned(),
            "this version connects the virtual NICs of one host",
        ),
        Driven::Tcp => (
            "TCP connections".to_owned(),
            "TCP carries the queue pairs of this host, too",
        ),
        Driven::Nothing => ("nothing".to_owned(), "there is no NIC"),
    };
    Use::new("NIC links within this host", choice, because)
}

fn between_hosts(report: &Report, driven: Driven<'_>) -> Use {
    let forced = report
        .variables
        .get("MP_PATH")
        .is_some_and(|path| path == "tcp");
    let by_tcp = || "TCP: CPU threads of both ranks send and place the bytes".to_owned();
    let (choice, because) = match driven {
        _ if forced => (by_tcp(), "MP_PATH=tcp"),
        Driven::Mlx5(device) | Driven::Verbs(device) => {
            let links = device.ports.iter().filter(|p| p.is_active());
            let links: Vec<String> = links.map(|p| format!("{} ({})", p.link, p.rate)).collect();
            (
                format!("{}: {}", device.name, links.join(", ")),
                "its port is active; TCP, by CPU threads of both ranks, reaches hosts without a NIC",
            )
        }
        Driven::Emulated => (by_tcp(), "a virtual NIC reaches only processes of its host"),
        Driven::Tcp => (by_tcp(), "there is no NIC"),
        Driven::Nothing => ("nothing".to_owned(), "there is no NIC"),
    };
    Use::new("messages between machines", choice, because)
}

/// The operations that order the word that announces a message behind the message's payload.
fn word_order(report: &Report, driven: Driven<'_>) -> Use {
    let word = report.variables.get("MP_TELL").map_or("", String::as_str);
    let Ok(wish) = WordOrder::parse(word) else {
        let why = format!("MP_TELL={word} is not valid; set it to auto, write or read");
        return Use::new(uses::WORD_ORDER, uses::ERROR, why);
    };
    let by_itself = wish == WordOrder::Auto;
    let (keeps_order, why) = match driven {
        Driven::Nothing if by_itself => {
            return Use::new(uses::WORD_ORDER, "nothing", "there is no NIC");
        }
        Driven::Emulated => (
            true,
            "the virtual ConnectX places WRITEs in order, unless GDS_FAULTS contains ooo",
        ),
        Driven::Tcp => (true, "TCP keeps the order of WRITEs"),
        Driven::Verbs(device) if device.is_soft_roce() => {
            (true, "soft-RoCE places WRITEs in order")
        }
        Driven::Mlx5(_) | Driven::Verbs(_) | Driven::Nothing => (
            false,
            "no rule guarantees that a NIC on a fabric places WRITEs in order",
        ),
    };
    let choice = match wish.choose(keeps_order, true) {
        Ok((WordOrder::Plain, _)) => "a plain WRITE of a word",
        _ => "a WRITE of a word that waits for a READ after the payload",
    };
    let set = format!("MP_TELL={word}");
    Use::new(uses::WORD_ORDER, choice, if by_itself { why } else { &set })
}
