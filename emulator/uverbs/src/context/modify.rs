//! Modification of QPs.

use rustix::io::Errno;
use vmlx5::fabric::NodeId;
use vmlx5::{Access, AttrChange, Modify, Mtu, Path, Qpn, Service};

use crate::abi::core::*;
use crate::abi::mlx5;
use crate::address::LinkLayer;
use crate::command::{Call, Done};
use crate::context::Open;
use crate::context::queues::QueuePair;
use crate::device::{Device, MAX_RD_ATOMIC};
use crate::event::lock;
use crate::transitions::{self, ERR, INIT, RESET, RTR, RTS, SQD, SQE};

impl Open {
    pub fn modify_qp(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: ModifyQp = call.input()?;
        self.modify(device, &cmd)
    }

    pub fn modify_qp_extended(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: ModifyQp = call.input()?;
        if cmd.attr_mask & attr::RATE_LIMIT != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        self.modify(device, &cmd)?;
        call.answer(&ExModifyQpResp {
            comp_mask: 0,
            response_length: size_of::<ExModifyQpResp>() as u32,
        })?;
        let mut own = mlx5::ModifyQpResp::default();
        own.response_length = call.driver_room().min(size_of_val(&own)) as u32;
        call.driver_answer(&own)
    }

    fn modify(&mut self, device: &Device, cmd: &ModifyQp) -> Done {
        let qp = self.objects.get_mut::<Box<QueuePair>>(cmd.qp_handle)?;
        let info = device.with_nic(|nic| nic.query_qp(qp.qpn))?;
        let now = transitions::number(info.state);
        let has = |bit| cmd.attr_mask & bit != 0;
        let from = if has(attr::CUR_STATE) {
            cmd.cur_qp_state
        } else {
            now
        };
        if from != now {
            return Err(Errno::INVAL);
        }
        let to = if has(attr::STATE) { cmd.qp_state } else { now };
        transitions::check(qp.service, from, to, cmd.attr_mask)?;
        let set = merge(&qp.set, cmd);
        check_values(device, cmd)?;
        let access = remote_rights(set.qp_access_flags)?;
        let init = Modify::Init {
            access,
            qkey: set.qkey,
            port: set.port_num,
        };
        let change = match (from, to) {
            (_, RESET) => Some(Modify::Reset),
            // In RESET there is no work that could fail: the NIC does nothing.
            (RESET, ERR) | (ERR, ERR) => None,
            (_, ERR) => Some(Modify::Error),
            (RESET | INIT, INIT) => Some(init),
            (INIT, RTR) if qp.service == Service::Ud => Some(Modify::UdRtr),
            (INIT, RTR) => Some(Modify::Rtr {
                path: path(device, &set)?,
                rq_psn: set.rq_psn,
                max_dest_rd_atomic: set.max_dest_rd_atomic,
                min_rnr_timer: set.min_rnr_timer,
            }),
            (RTR, RTS) if qp.service == Service::Ud => Some(Modify::UdRts { sq_psn: set.sq_psn }),
            (RTR, RTS) => Some(Modify::Rts {
                sq_psn: set.sq_psn,
                max_rd_atomic: set.max_rd_atomic,
                timeout: set.timeout,
                retry_cnt: set.retry_cnt,
                rnr_retry: set.rnr_retry,
            }),
            (RTS, SQD) => {
                let requested = has(attr::EN_SQD_ASYNC_NOTIFY) && cmd.en_sqd_async_notify != 0;
                lock(&device.targets).request_drained(qp.owner, requested);
                Some(Modify::Sqd)
            }
            (SQD | SQE, RTS) => Some(Modify::Resume),
            _ => None,
        };
        // INIT to RTR may also change access rights and Q_Key, which the NIC takes in INIT.
        let initial = has(attr::ACCESS_FLAGS) || has(attr::QKEY);
        let first = (from == INIT && to == RTR && initial).then_some(init);
        let also = match (from, to) {
            (RTR | RTS | SQD | SQE, RTS) | (SQD, SQD) => changes(cmd, access, to == SQD),
            _ => AttrChange::default(),
        };
        let also = (also != AttrChange::default()).then_some(Modify::Attr(also));
        for change in [first, change, also].into_iter().flatten() {
            device.with_nic(|nic| nic.modify_qp(qp.qpn, change))?;
            device.user.ring();
        }
        qp.set = if to == RESET {
            ModifyQp::default()
        } else {
            set
        };
        Ok(())
    }
}

/// The attributes that a modification changes in addition to the state; `rest`: also those that
/// only a modification in SQD changes.
fn changes(cmd: &ModifyQp, access: Access, rest: bool) -> AttrChange {
    let has = |bit| cmd.attr_mask & bit != 0;
    let named = |bit, value| has(bit).then_some(value);
    let at_rest = |bit, value| named(bit, value).filter(|_| rest);
    AttrChange {
        access: has(attr::ACCESS_FLAGS).then_some(access),
        qkey: has(attr::QKEY).then_some(cmd.qkey),
        min_rnr_timer: named(attr::MIN_RNR_TIMER, cmd.min_rnr_timer),
        max_dest_rd_atomic: at_rest(attr::MAX_DEST_RD_ATOMIC, cmd.max_dest_rd_atomic),
        max_rd_atomic: at_rest(attr::MAX_QP_RD_ATOMIC, cmd.max_rd_atomic),
        timeout: at_rest(attr::TIMEOUT, cmd.timeout),
        retry_cnt: at_rest(attr::RETRY_CNT, cmd.retry_cnt),
        rnr_retry: at_rest(attr::RNR_RETRY, cmd.rnr_retry),
    }
}

/// The earlier attributes, overwritten by the new ones.
fn merge(before: &ModifyQp, cmd: &ModifyQp) -> ModifyQp {
    let mut set = *before;
    macro_rules! take {
        ($($bit:ident: $($field:ident),+;)*) => {$(
            if cmd.attr_mask & attr::$bit != 0 {
                $(set.$field = cmd.$field;)+
            }
        )*};
    }
    take! {
        ACCESS_FLAGS: qp_access_flags;
        PKEY_INDEX: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        AV: dest;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        ALT_PATH: alt_dest, alt_port_num, alt_timeout, alt_pkey_index;
        MIN_RNR_TIMER: min_rnr_timer;
        SQ_PSN: sq_psn;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        DEST_QPN: dest_qp_num;
    }
    set.rq_psn &= 0xff_ffff;
    set.sq_psn &= 0xff_ffff;
    set
}

/// Checks the values of a modification.
fn check_values(device: &Device, cmd: &ModifyQp) -> Done {
    let has = |bit| cmd.attr_mask & bit != 0;
    let fabric = &device.config.fabric;
    let ports = 1..=fabric.ports;
    let reads = MAX_RD_ATOMIC as u8;
    let wrong = has(attr::PORT) && !ports.contains(&cmd.port_num)
        || has(attr::PKEY_INDEX) && cmd.pkey_index != 0
        || has(attr::PATH_MTU) && !(1..=5).contains(&cmd.path_mtu)
        || has(attr::MAX_QP_RD_ATOMIC) && cmd.max_rd_atomic > reads
        || has(attr::MAX_DEST_RD_ATOMIC) && cmd.max_dest_rd_atomic > reads
        || has(attr::TIMEOUT) && cmd.timeout > 31
        || has(attr::RETRY_CNT) && cmd.retry_cnt > 7
        || has(attr::RNR_RETRY) && cmd.rnr_retry > 7
        || has(attr::MIN_RNR_TIMER) && cmd.min_rnr_timer > 31
        || has(attr::DEST_QPN) && cmd.dest_qp_num > 0xff_ffff
        || has(attr::AV) && !ports.contains(&cmd.dest.port_num);
    if wrong {
        return Err(Errno::INVAL);
    }
    if has(attr::AV) {
        let gids = fabric.gids(device.place(cmd.dest.port_num)).len();
        let global = cmd.dest.is_global != 0;
        let needs_global = fabric.link == LinkLayer::Ethernet;
        if global && usize::from(cmd.dest.sgid_index) >= gids || needs_global && !global {
            return Err(Errno::INVAL);
        }
    }
    Ok(())
}

/// The remote access rights.
fn remote_rights(flags: u32) -> Result<Access, Errno> {
    let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    Access::from_bits(flags & remote.bits()).map_err(|_| Errno::INVAL)
}

/// The path to the peer: its node, QP number and MTU. The other fields of the address vector are
/// stored for queries only.
pub(crate) fn path(device: &Device, set: &ModifyQp) -> Result<Path, Errno> {
    Ok(Path {
        remote: remote(device, set)?,
        remote_qpn: Qpn(set.dest_qp_num),
        mtu: Mtu::from_verbs(set.path_mtu).ok_or(Errno::INVAL)?,
        port: set.port_num,
    })
}

/// The node of the peer's NIC. An address without a NIC gives a node that never answers.
fn remote(device: &Device, set: &ModifyQp) -> Result<NodeId, Errno> {
    let fabric = &device.config.fabric;
    let dest = &set.dest;
    let place = match fabric.link {
        LinkLayer::Ethernet => fabric.by_gid(&dest.dgid),
        LinkLayer::InfiniBand if dest.dlid != 0 || dest.is_global == 0 => fabric.by_lid(dest.dlid),
        LinkLayer::InfiniBand => fabric.by_gid(&dest.dgid),
    };
    let unused = fabric.node(u32::MAX, u32::MAX);
    let node = place.and_then(|place| fabric.node_of(place.device, set.dest_qp_num));
    Ok(node.unwrap_or(unused))
}
