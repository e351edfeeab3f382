//! Queries that current libraries make by ioctl: ports, GID tables, MRs. Older libraries read the
//! same data from files, or write commands.

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::core::ioctl::*;
use crate::abi::core::{GidEntry, QueryPortRespEx};
use crate::address::{GidType, LinkLayer};
use crate::command::Done;
use crate::context::Open;
use crate::context::Region;
use crate::context::request::{Method, Request};
use crate::device::Device;

/// The method of an object, if it is one of these.
pub(crate) fn method(object: u16, method: u16) -> Option<Method> {
    Some(match (object, method) {
        (OBJECT_DEVICE, QUERY_PORT) => port,
        (OBJECT_DEVICE, QUERY_GID_TABLE) => gid_table,
        (OBJECT_DEVICE, QUERY_GID_ENTRY) => gid_entry,
        (OBJECT_MR, QUERY_MR) => region,
        _ => return None,
    })
}

fn port(_: &mut Open, request: &Request<'_>) -> Done {
    request.only(QUERY_PORT_NUM..=QUERY_PORT_RESP)?;
    let number = u8::try_from(request.small(QUERY_PORT_NUM)?).map_err(|_| Errno::INVAL)?;
    let resp = QueryPortRespEx {
        legacy_resp: request.device.port(number)?,
        ..QueryPortRespEx::default()
    };
    request.answer(QUERY_PORT_RESP, resp.as_bytes())
}

/// The GIDs of a port.
fn gids(device: &Device, port: u8) -> Vec<GidEntry> {
    let fabric = &device.config.fabric;
    let entry = |(index, (gid, kind)): (usize, ([u8; 16], GidType))| GidEntry {
        gid,
        gid_index: index as u32,
        port_num: port.into(),
        gid_type: match (fabric.link, kind) {
            (LinkLayer::InfiniBand, _) => 0,
            (LinkLayer::Ethernet, GidType::First) => 1,
            (LinkLayer::Ethernet, GidType::RoceV2) => 2,
        },
        netdev_ifindex: 0,
    };
    let all = fabric.gids(device.place(port)).into_iter().enumerate();
    all.map(entry).collect()
}

/// All GIDs of all ports, up to the length of the buffer.
fn gid_table(_: &mut Open, request: &Request<'_>) -> Done {
    request.only(GID_TABLE_ENTRY_SIZE..=GID_TABLE_RESP_NUM)?;
    let size = request.small(GID_TABLE_ENTRY_SIZE)? as usize;
    if request.small(GID_TABLE_FLAGS)? != 0 || size < size_of::<GidEntry>() {
        return Err(Errno::INVAL);
    }
    let room = request.room(GID_TABLE_RESP_ENTRIES, 0)? / size;
    let ports = 1..=request.device.config.fabric.ports;
    let all: Vec<GidEntry> = ports.flat_map(|port| gids(request.device, port)).collect();
    if all.len() > room {
        return Err(Errno::INVAL);
    }
    let mut bytes = Vec::with_capacity(all.len() * size);
    for entry in &all {
        bytes.extend_from_slice(entry.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(size), 0);
    }
    request.answer(GID_TABLE_RESP_ENTRIES, &bytes)?;
    let number = all.len() as u64;
    request.answer(GID_TABLE_RESP_NUM, &number.to_ne_bytes())
}

fn gid_entry(_: &mut Open, request: &Request<'_>) -> Done {
    request.only(GID_ENTRY_PORT..=GID_ENTRY_RESP)?;
    let port = u8::try_from(request.small(GID_ENTRY_PORT)?).map_err(|_| Errno::INVAL)?;
    let ports = 1..=request.device.config.fabric.ports;
    if request.small(GID_ENTRY_FLAGS)? != 0 || !ports.contains(&port) {
        return Err(Errno::INVAL);
    }
    let index = usize::try_from(request.small(GID_ENTRY_INDEX)?).map_err(|_| Errno::INVAL)?;
    let all = gids(request.device, port);
    let entry = all.get(index).ok_or(Errno::INVAL)?;
    request.answer(GID_ENTRY_RESP, entry.as_bytes())
}

fn region(open: &mut Open, request: &Request<'_>) -> Done {
    request.only(QUERY_MR_HANDLE..=QUERY_MR_IOVA)?;
    let region = open
        .objects
        .get::<Region>(request.handle(QUERY_MR_HANDLE)?)?;
    request.answer(QUERY_MR_LKEY, &region.keys.lkey.to_ne_bytes())?;
    request.answer(QUERY_MR_RKEY, &region.keys.rkey.to_ne_bytes())?;
    request.answer(QUERY_MR_LENGTH, &region.of.length.to_ne_bytes())?;
    request.answer(QUERY_MR_IOVA, &region.of.hca_va.to_ne_bytes())
}
