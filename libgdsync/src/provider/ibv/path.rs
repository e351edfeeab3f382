//! State changes of a queue pair: on its way to a peer, or until it receives datagrams; and the
//! route to a port.

use gdsync_sys::verbs::consts::*;
use gdsync_sys::verbs::types::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr};

use super::port::Port;
use crate::error::{Error, Kind, Result};
use crate::nic::{Access, AhAttr, PathSettings, QpAddress, RETRIES, Transport};

const CONNECT: &str = "connect";
/// The greatest queue pair number and packet number: they have 24 bits.
const NUMBER: u32 = 0x00ff_ffff;
/// Reads and atomics that one queue pair keeps outstanding.
const MAX_RD_ATOMIC: u8 = 16;

/// A step: the attributes to set, and the mask of these attributes.
pub(in crate::provider) type Change = (ibv_qp_attr, i32);

/// The rights of verbs.
pub(super) fn rights(access: Access) -> u32 {
    let all = [
        (Access::LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE),
        (Access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE),
        (Access::REMOTE_READ, IBV_ACCESS_REMOTE_READ),
        (Access::REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC),
    ];
    let granted = all.iter().filter(|(ours, _)| access.permits(*ours));
    granted.fold(0, |all, (_, theirs)| all | theirs)
}

/// The name of a state, for errors.
pub(in crate::provider) fn state_name(state: i32) -> &'static str {
    match state {
        IBV_QPS_RESET => "RESET",
        IBV_QPS_INIT => "INIT",
        IBV_QPS_RTR => "RTR",
        IBV_QPS_RTS => "RTS",
        IBV_QPS_ERR => "ERR",
        _ => "another state",
    }
}

/// A change to a state without other attributes.
pub(in crate::provider) fn plain(state: i32) -> Change {
    let attr = ibv_qp_attr {
        qp_state: state,
        ..ibv_qp_attr::default()
    };
    (attr, IBV_QP_STATE)
}

pub(in crate::provider) fn init(
    port: &Port,
    access: Access,
    transport: Transport,
    pkey_index: u16,
) -> Change {
    if let Transport::Ud { qkey } = transport {
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index,
            port_num: port.number,
            qkey,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
        return (attr, mask);
    }
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_INIT,
        pkey_index,
        port_num: port.number,
        qp_access_flags: rights(access) & !IBV_ACCESS_LOCAL_WRITE,
        ..ibv_qp_attr::default()
    };
    let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    (attr, mask)
}

/// The route to the port with these identifiers; a port without a GID is in this NIC's own subnet.
fn route(
    port: &Port,
    lid: u16,
    gid: Option<[u8; 16]>,
    settings: &PathSettings,
    operation: &'static str,
) -> Result<ibv_ah_attr> {
    let unreachable = match port.ethernet {
        true => lid != 0 || gid.is_none(),
        false => lid == 0,
    };
    if unreachable {
        let (here, there) = match port.ethernet {
            true => ("Ethernet", "InfiniBand"),
            false => ("InfiniBand", "Ethernet"),
        };
        let what = format!("the port of the peer is on {there}, and this port is on {here}");
        return Err(Error::new(operation, Kind::Invalid, what));
    }
    // The first half of an identifier is the subnet: another subnet is reached by a router.
    let elsewhere = gid.is_some_and(|gid| gid[..8] != port.address.gid[..8]);
    let routed = gid.is_some() && (port.by_gid || elsewhere);
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid {
                raw: gid.unwrap_or_default(),
            },
            sgid_index: port.gid_index,
            flow_label: settings.flow_label,
            hop_limit: settings.hop_limit,
            traffic_class: settings.traffic_class,
        },
        dlid: lid,
        sl: settings.service_level,
        is_global: u8::from(routed),
        port_num: port.number,
        ..ibv_ah_attr::default()
    })
}

/// The route of datagrams.
pub(in crate::provider) fn ah_attr(
    port: &Port,
    to: &AhAttr,
    settings: &PathSettings,
) -> Result<ibv_ah_attr> {
    const OPERATION: &str = "create destination";
    match *to {
        AhAttr::Node(_) => {
            let what = "the destination is on a virtual NIC that is linked into its process; a NIC \
                        of libibverbs cannot reach it";
            Err(Error::new(OPERATION, Kind::Invalid, what))
        }
        AhAttr::Port {
            lid,
            gid,
            service_level,
        } => {
            let settings = PathSettings {
                service_level: service_level.unwrap_or(settings.service_level),
                ..*settings
            };
            route(port, lid, gid, &settings, OPERATION)
        }
    }
}

/// From INIT over the states of a queue pair of datagrams, whose first packet number is `psn`.
pub(in crate::provider) fn active(psn: u32) -> [Change; 2] {
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTS,
        sq_psn: psn & NUMBER,
        ..ibv_qp_attr::default()
    };
    [plain(IBV_QPS_RTR), (attr, IBV_QP_STATE | IBV_QP_SQ_PSN)]
}

/// From INIT to ready to receive from `peer`. The path MTU is the smaller active MTU of the two
/// ports, by the numbers of `enum ibv_mtu`: 1 (256 bytes) to 5 (4096 bytes).
pub(in crate::provider) fn ready_to_receive(
    port: &Port,
    peer: &QpAddress,
    settings: &PathSettings,
) -> Result<Change> {
    let invalid = |what: String| Error::new(CONNECT, Kind::Invalid, what);
    let Some(there) = peer.port else {
        let what = "the peer is on a virtual NIC that is linked into its process; a NIC of \
                    libibverbs cannot reach it";
        return Err(invalid(what.to_owned()));
    };
    if peer.qpn > NUMBER {
        let what = format!("the peer's QP number {:#x} has more than 24 bits", peer.qpn);
        return Err(invalid(what).with_limit(NUMBER, "as the highest number"));
    }
    if peer.psn > NUMBER {
        let what = format!("the peer's first PSN {:#x} has more than 24 bits", peer.psn);
        return Err(invalid(what).with_limit(NUMBER, "as the highest number"));
    }
    if !(1..=5).contains(&there.mtu) {
        let what = format!("the peer's record has the unknown MTU code {}", there.mtu);
        return Err(invalid(what).with_limit(5u8, "as the highest code"));
    }
    let ah_attr = route(port, there.lid, Some(there.gid), settings, CONNECT)?;
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTR,
        path_mtu: port.address.mtu.min(there.mtu).into(),
        dest_qp_num: peer.qpn,
        rq_psn: peer.psn,
        max_dest_rd_atomic: MAX_RD_ATOMIC,
        min_rnr_timer: settings.rnr_timer,
        ah_attr,
        ..ibv_qp_attr::default()
    };
    let mask = IBV_QP_STATE
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    Ok((attr, mask))
}

/// From there to ready to send, beginning with packet number `psn`.
pub(in crate::provider) fn ready_to_send(psn: u32, settings: &PathSettings) -> Change {
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTS,
        sq_psn: psn & NUMBER,
        max_rd_atomic: MAX_RD_ATOMIC,
        timeout: settings.ack_timeout,
        retry_cnt: settings.retry_count.unwrap_or(RETRIES),
        rnr_retry: settings.rnr_retry,
        ..ibv_qp_attr::default()
    };
    let mask = IBV_QP_STATE
        | IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_SQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC;
    (attr, mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::{PathConfig, PortAddress};

    fn settings() -> PathSettings {
        PathConfig::default().resolve().unwrap()
    }

    fn port(ethernet: bool, by_gid: bool) -> Port {
        let lid = if ethernet { 0 } else { 3 };
        let (mtu, gid) = (5, [1; 16]);
        Port {
            number: 2,
            ethernet,
            by_gid,
            gid_index: 4,
            address: PortAddress { lid, mtu, gid },
        }
    }

    #[test]
    fn a_path_has_a_global_part_where_it_needs_one() {
        let (near, mut far) = ([1; 16], [1; 16]);
        far[7] = 2;
        // Ethernet always needs a global part, and a subnet needs it for: itself, another subnet,
        // an unknown address.
        for (ethernet, by_gid, lid, gid, global) in [
            (true, true, 0, Some(near), 1),
            (false, false, 5, Some(near), 0),
            (false, false, 5, Some(far), 1),
            (false, false, 5, None, 0),
            (false, true, 5, Some(near), 1),
            (false, true, 5, Some(far), 1),
            (false, true, 5, None, 0),
        ] {
            let to = AhAttr::Port {
                lid,
                gid,
                service_level: None,
            };
            let attr = ah_attr(&port(ethernet, by_gid), &to, &settings()).unwrap();
            assert_eq!((attr.sl, attr.grh.hop_limit), (0, 64));
            assert_eq!((attr.is_global, attr.dlid), (global, lid), "{to:?}");
            assert_eq!(attr.grh.dgid.raw, gid.unwrap_or_default());
            assert_eq!((attr.grh.sgid_index, attr.port_num), (4, 2));
        }
    }
}
