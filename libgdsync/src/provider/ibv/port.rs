//! The choice of NIC and port, and the address of that port.

use std::path::{Path, PathBuf};

use gdsync_sys::verbs::consts;
use gdsync_sys::verbs::types::{ibv_gid_entry, ibv_port_attr};

use super::context::{self, Context, Libraries, OPEN, check};
use crate::error::{Error, Kind, Result};
use crate::gpu::Gpu;
use crate::nic::{GID_INDEX, NicChoice, NicName, PortAddress};

/// Most ports of a NIC.
const MOST_PORTS: u8 = 4;

/// A port that is in use.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider) struct Port {
    pub number: u8,
    /// Whether the port is addressed by GID alone.
    pub ethernet: bool,
    /// Whether packets need a GID in the own subnet too: a port that is several NICs for virtual
    /// machines has only one LID.
    pub by_gid: bool,
    /// The index of its GID.
    pub gid_index: u8,
    pub address: PortAddress,
}

/// The reason for which a NIC or a port is not taken. `Absent`: it does not exist, or carries no
/// data now.
pub(super) type Reason = (Kind, String);

/// The NIC and port that are wanted, or the nearest NIC to `gpu` that is active and can be used.
/// With `direct` verbs, or of any vendor.
pub(super) fn choose(
    gpu: &Gpu,
    wanted: Option<&NicChoice>,
    direct: bool,
) -> Result<(&'static Context, Port)> {
    let name = wanted.map(|wanted| &wanted.device);
    let (contexts, mut passed_over) = by_distance(gpu, name, direct)?;
    let one = wanted.and_then(|wanted| wanted.port);
    for (_, context) in contexts {
        let ports = one.map_or(1..=MOST_PORTS, |port| port..=port);
        for number in ports {
            let name = format!("{}:{number}", context.name);
            match context.port(number) {
                Some(attr) if attr.state == consts::IBV_PORT_ACTIVE => {
                    let port = match open(context, number, &attr) {
                        Ok(port) => port,
                        // If the NIC was not named, another one may be used.
                        Err(e) if wanted.is_none() && e.kind() == Kind::Unsupported => {
                            passed_over.push((e.kind(), e.reason().to_owned()));
                            continue;
                        }
                        Err(e) => return Err(e),
                    };
                    for (_, why) in &passed_over {
                        tracing::info!(target: "gdsync", "{name} is taken: {why}");
                    }
                    return Ok((context, port));
                }
                Some(attr) => {
                    let why = format!("{name} is not active (port state {})", attr.state);
                    passed_over.push((Kind::Absent, why));
                }
                None if one.is_some() => {
                    passed_over.push((Kind::Absent, format!("{name} does not exist")));
                }
                // Every NIC has a port 1.
                None if number == 1 => {
                    let why = format!("ibv_query_port on {name} failed");
                    passed_over.push((Kind::System, why));
                    break;
                }
                None => break,
            }
        }
    }
    let what = match (wanted, passed_over.is_empty()) {
        (Some(wanted), true) => format!(
            "no NIC is called {}; `ibv_devices` lists the NICs of this machine",
            wanted.device
        ),
        (None, true) => "libibverbs finds no NIC on this machine".to_owned(),
        (_, false) => {
            let why: Vec<&str> = passed_over.iter().map(|(_, why)| &**why).collect();
            why.join("; ")
        }
    };
    // A NIC that exists and cannot be used is a better reason than one that does not exist.
    let mut kinds = passed_over.iter().map(|(kind, _)| *kind);
    let kind = kinds.find(|kind| *kind != Kind::Absent);
    Err(Error::new(OPEN, kind.unwrap_or(Kind::Absent), what))
}

/// The active ports of the NICs that are nearest to `gpu`, all at one distance, in the order in
/// which [`choose`] tries them.
pub(crate) fn near(gpu: &Gpu, direct: bool) -> Result<Vec<NicChoice>> {
    let (contexts, _) = by_distance(gpu, None, direct)?;
    let mut found = Vec::new();
    let mut nearest = None;
    for (distance, context) in contexts {
        if nearest.is_some_and(|nearest| nearest < distance) {
            break;
        }
        for number in 1..=MOST_PORTS {
            match context.port(number) {
                Some(attr) if attr.state == consts::IBV_PORT_ACTIVE => found.push(NicChoice {
                    device: NicName::Kernel(context.name.clone()),
                    port: Some(number),
                }),
                Some(_) => {}
                None => break,
            }
        }
        if !found.is_empty() {
            nearest = Some(distance);
        }
    }
    Ok(found)
}

/// A NIC after its distance from a GPU.
type Distant = (usize, &'static Context);

/// The NICs, or those of this name, each with its distance from `gpu`, the nearest first; and the
/// reasons why others cannot be used.
fn by_distance(
    gpu: &Gpu,
    name: Option<&NicName>,
    direct: bool,
) -> Result<(Vec<Distant>, Vec<Reason>)> {
    let (contexts, passed_over) = context::all(Libraries::load(direct)?, name)?;
    let gpu = gpu.pci().and_then(|address| pci_path(&address));
    let is = |nic: &&Context| (nic.name.clone(), nic.sysfs_path());
    Ok((nearest_first(gpu.as_deref(), contexts, is), passed_over))
}

/// NICs, each with its distance from the place of a GPU in the tree of devices, the nearest first;
/// `is` returns a NIC's name and place. At equal distance they are in the order of their names, the
/// shorter first: mlx5_2 before mlx5_10. libibverbs' order differs from call to call.
pub fn nearest_first<T>(
    gpu: Option<&Path>,
    nics: Vec<T>,
    is: impl Fn(&T) -> (String, Option<PathBuf>),
) -> Vec<(usize, T)> {
    let far = |place: Option<PathBuf>| match (gpu, place) {
        (None, _) => 0,
        (Some(gpu), Some(nic)) => distance(gpu, &nic),
        (Some(_), None) => usize::MAX,
    };
    let key = |nic: &T| {
        let (name, place) = is(nic);
        (far(place), name.len(), name)
    };
    let mut all: Vec<_> = nics.into_iter().map(|nic| (key(&nic), nic)).collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all.into_iter().map(|((far, ..), nic)| (far, nic)).collect()
}

fn open(context: &Context, number: u8, attr: &ibv_port_attr) -> Result<Port> {
    let ethernet = attr.link_layer == consts::IBV_LINK_LAYER_ETHERNET;
    let (gid_index, gid) = match ethernet {
        false => (0, gid(context, number, 0)?),
        true => roce(context, number, attr)?,
    };
    Ok(Port {
        number,
        ethernet,
        by_gid: ethernet || attr.flags & consts::IBV_QPF_GRH_REQUIRED != 0,
        gid_index,
        address: PortAddress {
            // Ethernet has no LID, whatever drivers report.
            lid: if ethernet { 0 } else { attr.lid },
            mtu: attr.active_mtu.clamp(1, 5) as u8,
            gid,
        },
    })
}

fn gid(context: &Context, port: u8, index: u8) -> Result<[u8; 16]> {
    let mut gid = [0; 16];
    // SAFETY: an open context; sixteen bytes are written.
    let answer = unsafe {
        let verbs = context.verbs();
        (verbs.ibv_query_gid)(context.raw(), port, index.into(), &mut gid)
    };
    let call = format!("ibv_query_gid for GID {index} of {}:{port}", context.name);
    check(answer, OPEN, &call)?;
    Ok(gid)
}

/// The index of a partition key in the port's table: the entry of a full member if there are two.
/// `None` is the first index.
pub(super) fn pkey_index(context: &Context, port: u8, wanted: Option<u16>) -> Result<u16> {
    const MEMBER: u16 = 0x8000;
    let Some(wanted) = wanted else { return Ok(0) };
    let entries = context.port(port).map_or(0, |attr| attr.pkey_tbl_len);
    let read = |index: u16| {
        let mut key = 0;
        let verbs = context.verbs();
        // SAFETY: an open context and memory to write to.
        let answer = unsafe { (verbs.ibv_query_pkey)(context.raw(), port, index.into(), &mut key) };
        (answer == 0).then_some((index, u16::from_be(key)))
    };
    let same = |(_, key): &(u16, u16)| key & !MEMBER == wanted & !MEMBER;
    let all: Vec<_> = (0..entries).filter_map(read).filter(same).collect();
    let full = all.iter().find(|(_, key)| key & MEMBER != 0);
    full.or(all.first())
        .map(|(index, _)| *index)
        .ok_or_else(|| {
            let what = format!(
                "{}:{port} is not a member of partition {wanted:#06x} (GDS_PKEY, QpConfig::pkey)",
                context.name
            );
            Error::new("create queue pair", Kind::Invalid, what)
        })
}

/// The identifier by which a port on Ethernet is reached: one of RoCE v2, and if possible one that
/// is not link-local.
fn roce(context: &Context, port: u8, attr: &ibv_port_attr) -> Result<(u8, [u8; 16])> {
    let verbs = context.verbs();
    let Some(query) = verbs._ibv_query_gid_ex else {
        let what = format!(
            "{verbs:?} does not report the types of GIDs, which RoCE needs; update rdma-core"
        );
        return Err(Error::new(OPEN, Kind::Unsupported, what));
    };
    let entries = u8::try_from(attr.gid_tbl_len).unwrap_or(u8::MAX);
    let read = |index: u8| {
        let mut entry = ibv_gid_entry::default();
        let len = size_of::<ibv_gid_entry>();
        // SAFETY: an open context and memory of this length to write to.
        let answer = unsafe { query(context.raw(), port.into(), index.into(), &mut entry, 0, len) };
        let good = answer == 0 && entry.gid_type == consts::IBV_GID_TYPE_ROCE_V2;
        good.then_some((index, entry.gid.raw))
    };
    if let Ok(value) = std::env::var(GID_INDEX) {
        let chosen = value.parse().ok().filter(|index| *index < entries);
        return chosen.and_then(read).ok_or_else(|| {
            let what = format!(
                "{GID_INDEX}={value} does not select a GID of RoCE v2 in the table of {}:{port}",
                context.name
            );
            Error::new(OPEN, Kind::Invalid, what).with_limit(entries, "entries")
        });
    }
    let link_local = |gid: &[u8; 16]| gid[..2] == [0xfe, 0x80];
    let all: Vec<_> = (0..entries).filter_map(read).collect();
    let best = all.iter().find(|(_, gid)| !link_local(gid)).or(all.first());
    best.copied().ok_or_else(|| {
        let what = format!(
            "{}:{port} has no GID of RoCE v2; give the network interface an IP address",
            context.name
        );
        Error::new(OPEN, Kind::Unsupported, what)
    })
}

/// The sysfs path of the PCI device with this address.
fn pci_path(address: &str) -> Option<PathBuf> {
    let address = address.to_ascii_lowercase();
    std::fs::canonicalize(Path::new("/sys/bus/pci/devices").join(address)).ok()
}

/// The number of bridges and devices between two devices in the tree of devices.
fn distance(a: &Path, b: &Path) -> usize {
    let (a, b): (Vec<_>, Vec<_>) = (a.components().collect(), b.components().collect());
    let common = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    a.len() + b.len() - 2 * common
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_is_below_the_same_bridge() {
        let gpu = Path::new("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0");
        let beside = Path::new("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.1");
        let bridge = Path::new("/sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0");
        let socket = Path::new("/sys/devices/pci0000:80/0000:80:02.0/0000:82:00.0");
        let far = [gpu, beside, bridge, socket].map(|nic| distance(gpu, nic));
        assert_eq!(far, [0, 2, 4, 6]);
    }
}
