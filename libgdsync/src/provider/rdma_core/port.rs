//! Which NIC and port, and how that port is addressed.

use std::path::{Path, PathBuf};

use gdsync_sys::verbs::consts;
use gdsync_sys::verbs::types::{ibv_gid_entry, ibv_port_attr};

use super::OPEN;
use super::context::{self, Context, Libraries, PassedOver, check};
use crate::error::{Error, Kind, Result};
use crate::gpu::Gpu;
use crate::rdma::choice::GID_INDEX;
use crate::rdma::{NicChoice, NicName, PortAddress};

/// No NIC has more ports.
const MOST_PORTS: u8 = 4;

/// A port that is used.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider) struct Port {
    pub number: u8,
    /// Addressed by GID alone.
    pub ethernet: bool,
    /// The place of its GID.
    pub gid_index: u8,
    pub address: PortAddress,
}

/// The NIC and port that are wanted, or the nearest one to `gpu` that is active. With `direct`
/// verbs, or of any maker.
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
                    let port = open(context, number, &attr)?;
                    for why in &passed_over.why {
                        tracing::info!(target: "gdsync", "{name} is taken: {why}");
                    }
                    return Ok((context, port));
                }
                Some(attr) => {
                    let why = &mut passed_over.why;
                    why.push(format!("{name} is not active (state {})", attr.state));
                }
                None if one.is_some() => {
                    passed_over.why.push(format!("{name} does not exist"));
                }
                None => break,
            }
        }
    }
    let what = match (wanted, passed_over.why.is_empty()) {
        (Some(wanted), true) => format!("no NIC is called {}", wanted.device),
        (None, true) => "libibverbs knows no NIC".to_owned(),
        (_, false) => passed_over.why.join("; "),
    };
    Err(Error::new(OPEN, passed_over.kind(), what))
}

/// The active ports of the NICs that are nearest to `gpu`, all at one distance, in the order in
/// which [`choose`] looks at them.
pub(super) fn near(gpu: &Gpu, direct: bool) -> Result<Vec<NicChoice>> {
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

/// A NIC, behind its distance from a GPU.
type Placed = (usize, &'static Context);

/// The NICs, or those of this name, each behind its distance from `gpu`, the nearest first; and
/// why others cannot be used. Where the topology says nothing they stand in the order of their
/// names, for the library has them in another order each time.
fn by_distance(
    gpu: &Gpu,
    name: Option<&NicName>,
    direct: bool,
) -> Result<(Vec<Placed>, PassedOver)> {
    let (contexts, passed_over) = context::all(Libraries::load(direct)?, name)?;
    let gpu_place = gpu.pci().and_then(|address| pci_place(&address));
    let far = |context: &Context| match (&gpu_place, context.place()) {
        (None, _) => 0,
        (Some(gpu), Some(place)) => distance(gpu, &place),
        (Some(_), None) => usize::MAX,
    };
    let mut all: Vec<_> = contexts.into_iter().map(|nic| (far(nic), nic)).collect();
    // Of names, the shorter first: mlx5_2 before mlx5_10.
    all.sort_by_key(|(distance, nic)| (*distance, nic.name.len(), &nic.name));
    Ok((all, passed_over))
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
        gid_index,
        address: PortAddress {
            lid: attr.lid,
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
    let what = format!("GID {index} of {}:{port}", context.name);
    check(answer, OPEN, &what)?;
    Ok(gid)
}

/// The identifier by which a port on Ethernet is reached: of RoCE v2, and of those one that is
/// not bound to the link if there is one.
fn roce(context: &Context, port: u8, attr: &ibv_port_attr) -> Result<(u8, [u8; 16])> {
    let verbs = context.verbs();
    let Some(query) = verbs._ibv_query_gid_ex else {
        let what = format!("{verbs:?} does not tell the types of GIDs, as RoCE needs");
        return Err(Error::new(OPEN, Kind::Unsupported, what));
    };
    let places = u8::try_from(attr.gid_tbl_len).unwrap_or(u8::MAX);
    let read = |index: u8| {
        let mut entry = ibv_gid_entry::default();
        let len = size_of::<ibv_gid_entry>();
        // SAFETY: an open context and a place of this length to write to.
        let answer = unsafe { query(context.raw(), port.into(), index.into(), &mut entry, 0, len) };
        let good = answer == 0 && entry.gid_type == consts::IBV_GID_TYPE_ROCE_V2;
        good.then_some((index, entry.gid))
    };
    if let Ok(said) = std::env::var(GID_INDEX) {
        let chosen = said.parse().ok().filter(|index| *index < places);
        return chosen.and_then(read).ok_or_else(|| {
            let what = format!(
                "{GID_INDEX}={said}: {}:{port} has no GID of RoCE v2 there",
                context.name
            );
            Error::new(OPEN, Kind::Invalid, what).limit(places)
        });
    }
    let link_local = |gid: &[u8; 16]| gid[..2] == [0xfe, 0x80];
    let all: Vec<_> = (0..places).filter_map(read).collect();
    let best = all.iter().find(|(_, gid)| !link_local(gid)).or(all.first());
    best.copied().ok_or_else(|| {
        let what = format!("{}:{port} has no GID of RoCE v2", context.name);
        Error::new(OPEN, Kind::Unsupported, what)
    })
}

/// Where sysfs has the PCI device with this address.
fn pci_place(address: &str) -> Option<PathBuf> {
    let address = address.to_ascii_lowercase();
    std::fs::canonicalize(Path::new("/sys/bus/pci/devices").join(address)).ok()
}

/// How many bridges and devices lie between two places in the tree of devices.
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
        let far = [gpu, beside, bridge, socket].map(|place| distance(gpu, place));
        assert_eq!(far, [0, 2, 4, 6]);
    }
}
