//! The tree of files in which libibverbs finds devices, with the content of sysfs.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use vmlx5_uverbs::address::{Fabric, LinkLayer, Place};
use vmlx5_uverbs::{FIRMWARE, PART, VENDOR};

use crate::config::Config;

/// The first component of a tree's path; its version is below it.
const STAMP: &str = "vmlx5";

/// The path of the tree of a configuration.
fn place(config: &Config) -> PathBuf {
    if let Some(dir) = &config.dir {
        return dir.into();
    }
    let f = &config.fabric;
    let link = match f.link {
        LinkLayer::InfiniBand => "ib",
        LinkLayer::Ethernet => "roce",
    };
    let name = format!("{}-{link}-{}-{}", f.name, f.devices, f.ports);
    let uid = rustix::process::geteuid().as_raw();
    match std::env::var("XDG_RUNTIME_DIR") {
        Ok(dir) if usable(Path::new(&dir), uid) => Path::new(&dir).join(format!("vmlx5-{name}")),
        _ => format!("/dev/shm/vmlx5-{uid}-{name}").into(),
    }
}

/// Whether the user owns a directory and no other user may write to it.
fn usable(dir: &Path, uid: u32) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == uid && m.mode() & 0o022 == 0)
}

/// The files of a tree: path and content.
fn files(fabric: &Fabric) -> Vec<(String, String)> {
    let mut all = vec![(
        "class/infiniband_verbs/abi_version".into(),
        "6\n".to_string(),
    )];
    let (major, minor, sub) = FIRMWARE;
    let modalias = format!("pci:v{VENDOR:08X}d{PART:08X}sv{VENDOR:08X}sd00000001bc02sc07i00\n");
    for device in 0..fabric.devices {
        let name = format!("mlx5_{device}");
        let guid = words(&fabric.guid(device).to_be_bytes());
        let mut add = |path: String, content: String| all.push((path, content));
        let verbs = format!("class/infiniband_verbs/uverbs{device}");
        add(format!("{verbs}/ibdev"), format!("{name}\n"));
        add(format!("{verbs}/dev"), "1:3\n".into());
        add(format!("{verbs}/abi_version"), "1\n".into());
        add(format!("{verbs}/device/modalias"), modalias.clone());
        let ib = format!("class/infiniband/{name}");
        for (file, content) in [
            ("node_type", "1: CA".to_string()),
            ("node_guid", guid.clone()),
            ("sys_image_guid", guid),
            ("fw_ver", format!("{major}.{minor}.{sub:04}")),
            ("hca_type", format!("MT{}", PART + 8)),
            ("hw_rev", "0".into()),
            ("board_id", "VMX0000000001".into()),
            ("node_desc", format!("virtual {name}")),
            ("device/modalias", modalias.trim_end().into()),
            ("device/vendor", format!("{VENDOR:#06x}")),
            ("device/device", format!("{PART:#06x}")),
            ("device/numa_node", "-1".into()),
        ] {
            add(format!("{ib}/{file}"), content + "\n");
        }
        for port in 1..=fabric.ports {
            let place = Place { device, port };
            let dir = format!("{ib}/ports/{port}");
            let (layer, rate) = match fabric.link {
                LinkLayer::InfiniBand => ("InfiniBand", "100 Gb/sec (4X EDR)"),
                LinkLayer::Ethernet => ("Ethernet", "100 Gb/sec (4X EDR)"),
            };
            for (file, content) in [
                ("state", "4: ACTIVE".to_string()),
                ("phys_state", "5: LinkUp".into()),
                ("rate", rate.into()),
                ("lid", format!("{:#x}", fabric.lid(place))),
                ("sm_lid", format!("{:#x}", u8::from(fabric.lid(place) != 0))),
                ("lid_mask_count", "0".into()),
                ("link_layer", layer.into()),
                ("pkeys/0", "0xffff".into()),
            ] {
                add(format!("{dir}/{file}"), content + "\n");
            }
            for (i, (gid, kind)) in fabric.gids(place).into_iter().enumerate() {
                add(format!("{dir}/gids/{i}"), words(&gid) + "\n");
                let kind = kind.name();
                add(format!("{dir}/gid_attrs/types/{i}"), format!("{kind}\n"));
                if fabric.link == LinkLayer::Ethernet {
                    add(format!("{dir}/gid_attrs/ndevs/{i}"), "lo\n".into());
                }
            }
        }
    }
    all
}

/// Bytes in pairs, as in the text form of GUIDs and GIDs.
fn words(bytes: &[u8]) -> String {
    let pairs: Vec<String> = bytes
        .chunks(2)
        .map(|pair| pair.iter().map(|b| format!("{b:02x}")).collect())
        .collect();
    pairs.join(":")
}

/// Creates the tree unless it exists; returns its path. It appears at once, complete.
pub fn show(config: &Config) -> io::Result<PathBuf> {
    let place = place(config);
    let files = files(&config.fabric);
    // A digest of the content: another version of this library, or other devices, have another
    // tree.
    let digest = files
        .iter()
        .flat_map(|(path, content)| path.bytes().chain(content.bytes()))
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
    let digest = format!("{digest:016x}\n");
    let uid = rustix::process::geteuid().as_raw();
    let made = |place: &Path| {
        usable(place, uid)
            && fs::read_to_string(place.join(STAMP)).is_ok_and(|found| found == digest)
    };
    if made(&place) {
        return Ok(place);
    }
    let mut temporary = place.clone().into_os_string();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    // Left behind by an earlier process with the same number.
    let _ = fs::remove_dir_all(&temporary);
    DirBuilder::new().mode(0o700).create(&temporary)?;
    for (path, content) in &files {
        let path = temporary.join(path);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::write(path, content)?;
    }
    fs::write(temporary.join(STAMP), &digest)?;
    for _ in 0..4 {
        if fs::rename(&temporary, &place).is_ok() {
            return Ok(place);
        }
        // Another process was faster, or an older tree has this path.
        if made(&place) {
            break;
        }
        if usable(&place, uid) {
            let _ = fs::remove_dir_all(&place);
        }
    }
    let _ = fs::remove_dir_all(&temporary);
    if made(&place) {
        Ok(place)
    } else {
        let what = "is in the way, and is not a directory of this user alone";
        Err(io::Error::other(format!("{} {what}", place.display())))
    }
}
