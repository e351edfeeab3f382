//! QPs that DEVX commands create, and their state transitions.

use std::sync::Arc;

use mlx5_prm::wqe::BASIC_BLOCK;
use vmlx5::{Access, AttrChange, Modify, QpAttr, QpState, Qpn, RqAttr, Scatter, Service, SqAttr};

use super::Umem;
use super::mailbox::{Mailbox, Refusal};
use super::umem::ring_at;
use crate::abi::core::{ModifyQp, QpDest};
use crate::abi::prm::qpc::{self, create, modify, opt, path};
use crate::abi::prm::{Field, input, opcode, output, status};
use crate::address::LinkLayer;
use crate::context::Open;
use crate::device::{Device, MAX_RD_ATOMIC, MAX_WQE};

/// A queue pair.
pub(crate) struct QueuePair {
    pub qpn: Qpn,
    /// Its context: as it was made, and what was changed since.
    context: Vec<u8>,
    #[expect(dead_code, reason = "as long as it lives its memory stays registered")]
    held: [Arc<Umem>; 2],
}

pub(super) fn create(
    device: &Device,
    open: &Open,
    command: Mailbox<'_>,
) -> Result<QueuePair, Refusal> {
    command.lengths(qpc::MAILBOX, &[], 0)?;
    let context = command.context(qpc::AT, qpc::SIZE);
    let service = match context.get(qpc::ST) {
        qpc::ST_RC => Service::Rc,
        qpc::ST_UC => Service::Uc,
        _ => return Err(context.wrong(qpc::ST)),
    };
    context.must(qpc::WQ_SIGNATURE, 0)?;
    context.must(qpc::SEND_DBR_MODE, 0)?;
    let scatter = Scatter {
        requester: requests(context, qpc::CS_REQ, qpc::CS_REQ_32)? && service == Service::Rc,
        responder: requests(context, qpc::CS_RES, qpc::CS_RES_32)?,
    };
    let (receives, srq) = match context.get(qpc::RQ_TYPE) {
        qpc::RQ_REGULAR => (true, None),
        qpc::RQ_SRQ => {
            let srq = open.srq_numbered(context.get32(qpc::SRQN));
            (false, Some(srq.ok_or(context.unknown(qpc::SRQN))?))
        }
        qpc::RQ_ZERO => (false, None),
        _ => return Err(context.wrong(qpc::RQ_TYPE)),
    };
    let sends = !context.is_set(qpc::NO_SQ);
    let pd = { open }.pd_numbered(context.get32(qpc::PD));
    let pd = pd.ok_or(context.unknown(qpc::PD))?;
    let uar = open.page(context, qpc::UAR_PAGE)?;
    let cq = |field| {
        let cq = open.cq_numbered(context.get32(field));
        cq.ok_or(context.unknown(field))
    };
    // A queue that does not exist has no completions.
    let send_cq = match sends {
        true => cq(qpc::CQN_SND)?,
        false => cq(qpc::CQN_SND).or_else(|_| cq(qpc::CQN_RCV))?,
    };
    let recv_cq = match receives || srq.is_some() {
        true => cq(qpc::CQN_RCV)?,
        false => cq(qpc::CQN_RCV).unwrap_or(send_cq),
    };
    // The buffer contains the receive queue, then the send queue.
    let most = MAX_WQE.ilog2().into();
    let log_receives = context.at_most(qpc::LOG_RQ_SIZE, most)? as u8;
    let log_blocks = context.at_most(qpc::LOG_SQ_SIZE, most)? as u8;
    let stride = 16_u32 << context.at_most(qpc::LOG_RQ_STRIDE, 5)?;
    let rq_bytes = if receives {
        u64::from(stride) << log_receives
    } else {
        0
    };
    if !rq_bytes.is_multiple_of(BASIC_BLOCK as u64) {
        return Err(context.wrong(qpc::LOG_RQ_SIZE));
    }
    // A queue without entries has one block, which the NIC never reads.
    let log_blocks = if sends { log_blocks } else { 0 };
    let sq_bytes = if sends {
        (BASIC_BLOCK as u64) << log_blocks
    } else {
        0
    };
    let bytes = (rq_bytes + sq_bytes).max(BASIC_BLOCK as u64);
    let start = ring_at(
        command,
        create::WQ_UMEM_OFFSET,
        context,
        (qpc::PAGE_OFFSET, qpc::LOG_PAGE_SIZE),
    )?;
    let at = (create::WQ_UMEM_OFFSET, start);
    let size = (bytes, BASIC_BLOCK as u64);
    let ring = open.span(command, create::WQ_UMEM_ID, at, size, false)?;
    let at = (qpc::DBR_ADDR, context.get(qpc::DBR_ADDR));
    let record = open.span(context, qpc::DBR_UMEM_ID, at, (8, 8), false)?;
    let memory = &ring.umem.memory;
    let rq = receives.then(|| RqAttr {
        mem: Arc::clone(memory),
        offset: ring.offset,
        log_entries: log_receives,
        stride,
    });
    let sq = SqAttr {
        mem: Arc::clone(memory),
        offset: ring.offset + if sends { rq_bytes } else { 0 },
        log_blocks,
    };
    let attr = QpAttr {
        recv_cq,
        rq,
        srq,
        scatter,
        uidx: context.get32(qpc::USER_INDEX),
        service,
        ..QpAttr::new(
            pd,
            uar,
            send_cq,
            sq,
            (Arc::clone(&record.umem.memory), record.offset),
        )
    };
    let qpn = device.nic.with(|nic| nic.create_qp(attr))?;
    Ok(QueuePair {
        qpn,
        context: context.bytes().to_vec(),
        held: [ring.umem, record.umem],
    })
}

/// Whether a field requests inline scatter into CQEs of 64 bytes.
fn requests(context: Mailbox<'_>, field: Field, yes: u64) -> Result<bool, Refusal> {
    match context.get(field) {
        0 => Ok(false),
        value if value == yes => Ok(true),
        _ => Err(context.wrong(field)),
    }
}

/// Whether a command modifies a QP.
pub(super) fn modifies(command: u16) -> bool {
    use opcode::*;
    matches!(
        command,
        RST2INIT_QP | INIT2INIT_QP | INIT2RTR_QP | RTR2RTS_QP | RTS2RTS_QP | TO_ERR_QP | TO_RST_QP
    )
}

/// Fields that a modification copies into the context.
const INIT: [Field; 5] = [
    qpc::RRE,
    qpc::RWE,
    qpc::RAE,
    qpc::ATOMIC_MODE,
    path::VHCA_PORT_NUM,
];
const RTR: [Field; 13] = [
    qpc::MTU,
    qpc::LOG_MSG_MAX,
    qpc::REMOTE_QPN,
    qpc::LOG_RRA_MAX,
    qpc::MIN_RNR_NAK,
    qpc::NEXT_RCV_PSN,
    path::GRH,
    path::RLID,
    path::SRC_ADDR_INDEX,
    path::HOP_LIMIT,
    path::TCLASS,
    path::FLOW_LABEL,
    path::SL,
];
const RTS: [Field; 6] = [
    qpc::LOG_ACK_REQ_FREQ,
    qpc::LOG_SRA_MAX,
    qpc::RETRY_COUNT,
    qpc::RNR_RETRY,
    qpc::NEXT_SEND_PSN,
    path::ACK_TIMEOUT,
];
/// The fields that a bit of the option mask selects.
const OPTIONS: [(u64, Field); 9] = [
    (opt::RRE, qpc::RRE),
    (opt::RAE, qpc::RAE),
    (opt::RWE, qpc::RWE),
    (opt::RNR_TIMEOUT, qpc::MIN_RNR_NAK),
    (opt::SRA_MAX, qpc::LOG_SRA_MAX),
    (opt::RRA_MAX, qpc::LOG_RRA_MAX),
    (opt::RETRY_COUNT, qpc::RETRY_COUNT),
    (opt::RNR_RETRY, qpc::RNR_RETRY),
    (opt::ACK_TIMEOUT, path::ACK_TIMEOUT),
];
/// The options that each modification permits.
const RIGHTS: u64 = opt::RRE | opt::RAE | opt::RWE;
const WITH_RTR: u64 = RIGHTS | opt::PKEY_INDEX;
const WITH_RTS: u64 = RIGHTS | opt::RNR_TIMEOUT;

impl QueuePair {
    /// Executes one of the commands that [`modifies`] recognises.
    pub(super) fn modify(
        &mut self,
        device: &Device,
        command: Mailbox<'_>,
        answer: &[u8],
    ) -> Result<(), Refusal> {
        use opcode::*;
        let code = command.opcode();
        let short = matches!(code, TO_ERR_QP | TO_RST_QP);
        let least = if short { input::HEADER } else { qpc::MAILBOX };
        command.lengths(least, answer, output::HEADER)?;
        let info = device.nic.with(|nic| nic.query_qp(self.qpn))?;
        let may = match (code, info.state) {
            (TO_RST_QP, _) => return self.change(device, &[Modify::Reset]),
            // In RESET there is no work that could fail: the NIC does nothing.
            (TO_ERR_QP, QpState::Reset | QpState::Err) => return Ok(()),
            (TO_ERR_QP, _) => return self.change(device, &[Modify::Error]),
            (RST2INIT_QP, QpState::Reset) | (INIT2INIT_QP, QpState::Init) => WITH_RTR,
            (INIT2RTR_QP, QpState::Init) => WITH_RTR,
            (RTR2RTS_QP, QpState::Rtr) | (RTS2RTS_QP, QpState::Rts) => WITH_RTS,
            _ => return Err(Refusal::new(status::BAD_QP_STATE)),
        };
        let options = command.get(modify::OPT_PARAM_MASK);
        if options & !may != 0 {
            return Err(command.wrong(modify::OPT_PARAM_MASK));
        }
        let request = command.context(qpc::AT, qpc::SIZE);
        let mut next = self.context.clone();
        let mut take = |fields: &[Field]| {
            for field in fields {
                field.set(&mut next, request.get(*field));
            }
        };
        match code {
            RST2INIT_QP | INIT2INIT_QP => take(&INIT),
            INIT2RTR_QP => take(&RTR),
            RTR2RTS_QP => take(&RTS),
            _ => {}
        }
        for (bit, field) in OPTIONS {
            if options & bit != 0 {
                take(&[field]);
            }
        }
        if code == INIT2RTR_QP {
            next[path::RGID].copy_from_slice(&request.bytes()[path::RGID]);
        }
        check(device, request, code)?;
        let set = Mailbox::new(&next);
        let mut changes = Vec::with_capacity(2);
        match code {
            RST2INIT_QP | INIT2INIT_QP => changes.push(init(set)?),
            INIT2RTR_QP => {
                // The rights in the same command.
                if options & RIGHTS != 0 {
                    changes.push(init(set)?);
                }
                changes.push(Modify::Rtr {
                    path: crate::context::modify::path(device, &verbs(device, set))
                        .map_err(|_| request.wrong(qpc::MTU))?,
                    rq_psn: set.get32(qpc::NEXT_RCV_PSN),
                    max_dest_rd_atomic: 1 << set.get8(qpc::LOG_RRA_MAX),
                    min_rnr_timer: set.get8(qpc::MIN_RNR_NAK),
                });
            }
            _ => {
                if code == RTR2RTS_QP {
                    changes.push(Modify::Rts {
                        sq_psn: set.get32(qpc::NEXT_SEND_PSN),
                        max_rd_atomic: 1 << set.get8(qpc::LOG_SRA_MAX),
                        timeout: set.get8(path::ACK_TIMEOUT),
                        retry_cnt: set.get8(qpc::RETRY_COUNT),
                        rnr_retry: set.get8(qpc::RNR_RETRY),
                    });
                }
                if options != 0 {
                    let timer = options & opt::RNR_TIMEOUT != 0;
                    changes.push(Modify::Attr(AttrChange {
                        access: Some(rights(set)),
                        min_rnr_timer: timer.then(|| set.get8(qpc::MIN_RNR_NAK)),
                        ..AttrChange::default()
                    }));
                }
            }
        }
        self.change(device, &changes)?;
        self.context = next;
        Ok(())
    }

    fn change(&self, device: &Device, changes: &[Modify]) -> Result<(), Refusal> {
        for &change in changes {
            device.nic.with(|nic| nic.modify_qp(self.qpn, change))?;
        }
        device.user.ring();
        Ok(())
    }

    pub(super) fn query(
        &self,
        device: &Device,
        command: Mailbox<'_>,
        answer: &mut [u8],
    ) -> Result<(), Refusal> {
        command.lengths(input::HEADER, answer, qpc::MAILBOX)?;
        let info = device.nic.with(|nic| nic.query_qp(self.qpn))?;
        let context = &mut answer[qpc::AT..][..qpc::SIZE];
        context.copy_from_slice(&self.context);
        qpc::STATE.set(context, state(info.state));
        qpc::HW_SQ_WQEBB_COUNTER.set(context, info.sq_next.into());
        qpc::SW_SQ_WQEBB_COUNTER.set(context, info.sq_rung.into());
        qpc::HW_RQ_COUNTER.set(context, info.rq_next.into());
        Ok(())
    }
}

/// A state's number in a context.
fn state(state: QpState) -> u64 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqe => 4,
        QpState::Sqd => 5,
        QpState::Err => 6,
    }
}

/// Checks the values of a modification.
fn check(device: &Device, request: Mailbox<'_>, code: u16) -> Result<(), Refusal> {
    let fabric = &device.config.fabric;
    let port = request.get8(path::VHCA_PORT_NUM);
    let named = matches!(code, opcode::RST2INIT_QP | opcode::INIT2INIT_QP);
    if port > fabric.ports || named && port == 0 {
        return Err(request.wrong(path::VHCA_PORT_NUM));
    }
    request.must(path::PKEY_INDEX, 0)?;
    let most = u64::from(MAX_RD_ATOMIC.ilog2());
    if code == opcode::INIT2RTR_QP {
        if !(1..=5).contains(&request.get(qpc::MTU)) {
            return Err(request.wrong(qpc::MTU));
        }
        request.at_most(qpc::LOG_RRA_MAX, most)?;
        let gids = fabric.gids(device.place(port.max(1))).len() as u64;
        request.at_most(path::SRC_ADDR_INDEX, gids - 1)?;
    }
    if code == opcode::RTR2RTS_QP {
        request.at_most(qpc::LOG_SRA_MAX, most)?;
    }
    Ok(())
}

/// The remote access rights.
fn rights(set: Mailbox<'_>) -> Access {
    [
        (qpc::RRE, Access::REMOTE_READ),
        (qpc::RWE, Access::REMOTE_WRITE),
        (qpc::RAE, Access::REMOTE_ATOMIC),
    ]
    .into_iter()
    .filter(|(field, _)| set.is_set(*field))
    .fold(Access::NONE, |all, (_, right)| all | right)
}

fn init(set: Mailbox<'_>) -> Result<Modify, Refusal> {
    Ok(Modify::Init {
        access: rights(set),
        qkey: set.get32(qpc::Q_KEY),
        port: set.get8(path::VHCA_PORT_NUM),
    })
}

/// The address vector of the peer in the form of verbs.
fn verbs(device: &Device, set: Mailbox<'_>) -> ModifyQp {
    let mut dgid = [0; 16];
    dgid.copy_from_slice(&set.bytes()[path::RGID]);
    let port = set.get8(path::VHCA_PORT_NUM);
    // Ethernet has no other address vector.
    let global = set.is_set(path::GRH) || device.config.fabric.link == LinkLayer::Ethernet;
    ModifyQp {
        dest: QpDest {
            dgid,
            flow_label: set.get32(path::FLOW_LABEL),
            dlid: set.get(path::RLID) as u16,
            sgid_index: set.get8(path::SRC_ADDR_INDEX),
            hop_limit: set.get8(path::HOP_LIMIT),
            traffic_class: set.get8(path::TCLASS),
            sl: set.get8(path::SL),
            is_global: global.into(),
            port_num: port,
            ..QpDest::default()
        },
        dest_qp_num: set.get32(qpc::REMOTE_QPN),
        path_mtu: set.get8(qpc::MTU),
        port_num: port,
        ..ModifyQp::default()
    }
}
