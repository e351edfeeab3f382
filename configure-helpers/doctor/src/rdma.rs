//! RDMA devices, the kernel's verbs and their libraries.

use crate::library::State;
use crate::machine::{Access, Machine};
use gdsync::rdma::NicChoice;
use gdsync_sys::mlx5::Mlx5;
use gdsync_sys::verbs::Ibverbs;
use serde::{Serialize, Serializer};
use std::ffi::OsString;
use std::path::PathBuf;

/// RDMA devices, the kernel's RDMA core, and the libraries.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rdma {
    /// Whether the kernel's RDMA core is present.
    pub ib_core: bool,
    /// The devices.
    pub devices: Vec<Device>,
    /// libibverbs.
    pub ibverbs: State,
    /// libmlx5, the provider for ConnectX.
    pub mlx5: State,
}

/// The driver of soft-RoCE.
const SOFT_ROCE: &str = "rdma_rxe";

/// One RDMA device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Device {
    /// The kernel's name of the device.
    pub name: String,
    /// Its node GUID, the same in every slot: `0x0002c903002f1190`. No NIC has 0.
    #[serde(serialize_with = "guid_text")]
    pub guid: Option<u64>,
    /// Its path in the tree of devices, below the machine's `/`.
    pub place: Option<PathBuf>,
    /// Its kernel driver.
    pub driver: Option<String>,
    /// Its PCI address.
    pub pci: Option<String>,
    /// PCI vendor and device id.
    pub pci_id: Option<String>,
    /// The vendor's name of the board.
    pub board: Option<String>,
    /// Firmware version.
    pub firmware: Option<String>,
    /// The nearest NUMA node of the host.
    pub numa_node: Option<i32>,
    /// The IOMMU mode of the device.
    pub iommu: Option<String>,
    /// The name of its verbs file, and whether it may be used.
    pub uverbs: Option<String>,
    /// Whether that file may be used.
    pub access: Access,
    /// The ports.
    pub ports: Vec<Port>,
}

/// A GUID, in the form of `GDS_NIC`.
fn guid_text<S: Serializer>(guid: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    guid.map(|guid| NicChoice::guid(guid).to_string())
        .serialize(to)
}

impl Device {
    /// Whether it is a ConnectX, which mlx5 drives.
    pub fn is_mlx5(&self) -> bool {
        self.driver.as_deref() == Some("mlx5_core") || self.name.starts_with("mlx5_")
    }

    /// Whether it is the kernel's soft-RoCE.
    pub fn is_soft_roce(&self) -> bool {
        self.driver.as_deref() == Some(SOFT_ROCE)
    }

    /// Whether at least one port can carry messages.
    pub fn is_active(&self) -> bool {
        self.ports.iter().any(Port::is_active)
    }
}

/// A port of a device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Port {
    /// Its number.
    pub number: String,
    /// The logical state, such as `ACTIVE`.
    pub state: String,
    /// The physical state, such as `LinkUp`.
    pub physical: String,
    /// `InfiniBand` or `Ethernet`.
    pub link: String,
    /// The rate, as the kernel prints it.
    pub rate: String,
}

impl Port {
    /// Whether it can carry messages.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// Examines RDMA.
pub(crate) fn look(machine: &Machine) -> Rdma {
    let libraries = machine.libraries();
    Rdma {
        ib_core: machine.module("ib_core") || machine.exists("sys/class/infiniband"),
        devices: machine
            .list("sys/class/infiniband")
            .into_iter()
            .map(|name| device(machine, name))
            .collect(),
        ibverbs: verbs(&libraries.ibverbs),
        mlx5: mlx5(&libraries.mlx5),
    }
}

/// Whether libibverbs has all functions that gdsync requires.
fn verbs(paths: &[OsString]) -> State {
    // SAFETY: the creator of the machine guarantees that its libraries are sound; no function is
    // called.
    match unsafe { Ibverbs::load_from(paths) } {
        Ok(table) => {
            let lacks = table.ibv_reg_dmabuf_mr.is_none();
            let lacks = lacks.then(|| "ibv_reg_dmabuf_mr".to_owned());
            State::opened(table.path(), lacks.into_iter().collect())
        }
        Err(error) => State::from(&error),
    }
}

/// Whether libmlx5 has all functions that gdsync requires.
fn mlx5(paths: &[OsString]) -> State {
    // SAFETY: as above.
    match unsafe { Mlx5::load_from(paths) } {
        Ok(table) => State::opened(table.path(), Vec::new()),
        Err(error) => State::from(&error),
    }
}

fn device(machine: &Machine, name: String) -> Device {
    let folder = format!("sys/class/infiniband/{name}");
    let read = |file: &str| {
        machine
            .read(&format!("{folder}/{file}"))
            .filter(|text| !text.is_empty())
    };
    let uevent = read("device/uevent").unwrap_or_default();
    let property = |key: &str| {
        let of_key = |line: &str| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned());
        uevent.lines().find_map(of_key)
    };
    let uverbs = machine
        .list("sys/class/infiniband_verbs")
        .into_iter()
        .find(|uverbs| {
            machine.read(&format!("sys/class/infiniband_verbs/{uverbs}/ibdev"))
                == Some(name.clone())
        });
    Device {
        // The kernel writes "0002:c903:002f:1190".
        guid: read("node_guid")
            .and_then(|guid| u64::from_str_radix(&guid.replace(':', ""), 16).ok())
            .filter(|guid| *guid != 0),
        place: machine.place(&format!("{folder}/device")),
        // Soft-RoCE is on no bus; it names the network device that it uses.
        driver: property("DRIVER").or_else(|| read("parent").map(|_| SOFT_ROCE.to_owned())),
        pci: property("PCI_SLOT_NAME"),
        pci_id: property("PCI_ID"),
        board: read("hca_type").or_else(|| read("board_id")),
        firmware: read("fw_ver"),
        numa_node: read("device/numa_node")
            .and_then(|node| node.parse().ok())
            .filter(|node| *node >= 0),
        iommu: read("device/iommu_group/type"),
        access: match &uverbs {
            Some(uverbs) => machine.access(&format!("dev/infiniband/{uverbs}")),
            None => Access::Absent,
        },
        uverbs,
        ports: machine
            .list(&format!("{folder}/ports"))
            .into_iter()
            .map(|number| {
                let read = |file: &str| read(&format!("ports/{number}/{file}")).unwrap_or_default();
                // The kernel writes "4: ACTIVE".
                let word = |text: String| match text.split_once(": ") {
                    Some((_, word)) => word.to_owned(),
                    None => text,
                };
                Port {
                    state: word(read("state")),
                    physical: word(read("phys_state")),
                    link: read("link_layer"),
                    rate: read("rate"),
                    number,
                }
            })
            .collect(),
        name,
    }
}
