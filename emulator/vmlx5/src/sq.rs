//! The ring of a send queue and its fetched work queue entries, checked.

use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{
    BASIC_BLOCK, CtrlSeg, Data, MAX_SEGMENTS, ParsedWqe, SEGMENT, Sge, WqeFlags, basic_blocks,
    parse_datagram, parse_send,
};
use zerocopy::FromBytes;

use crate::attr::{Service, SqAttr};
use crate::error::{Fault, vendor};
use crate::frame::{MAX_MESSAGE, MTU_LOGS};
use crate::mr::{Access, MrTable};
use crate::object::PdId;

/// Bytes of the largest entry, in whole basic blocks.
pub(crate) const MAX_WQE: usize = 1024;
const _: () = assert!(MAX_SEGMENTS * SEGMENT <= MAX_WQE && MAX_WQE.is_multiple_of(BASIC_BLOCK));

/// A fetched entry.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub opcode: SendOpcode,
    pub blocks: u8,
    pub flags: WqeFlags,
    /// Bytes of the entry's message.
    pub total: u32,
}

/// The queue pair that fetches, and the memory that it may use.
pub(crate) struct Checks<'a> {
    pub mrs: &'a MrTable,
    pub pd: PdId,
    pub qpn: u32,
    pub max_rd_atomic: u8,
    pub service: Service,
}

/// Returns true for operations with an answer that goes into local memory.
pub(crate) fn wants_answer(op: SendOpcode) -> bool {
    op == SendOpcode::RDMA_READ || is_atomic(op)
}

pub(crate) fn is_atomic(op: SendOpcode) -> bool {
    op == SendOpcode::ATOMIC_CS || op == SendOpcode::ATOMIC_FA
}

/// Returns true for operations that a datagram queue pair supports.
fn for_datagrams(op: SendOpcode) -> bool {
    matches!(
        op,
        SendOpcode::NOP | SendOpcode::SEND | SendOpcode::SEND_IMM
    )
}

const fn malformed(vendor: u8) -> Fault {
    Fault::new(Syndrome::LOCAL_QP_OP, vendor)
}

impl SqAttr {
    /// Copies basic blocks from `index` on, with the wrap of the ring, until `into` is full.
    fn copy(&self, index: u16, into: &mut [u8]) -> Result<(), Fault> {
        let blocks = 1_usize << self.log_blocks;
        let at = usize::from(index) & (blocks - 1);
        let before_end = into.len().min((blocks - at) * BASIC_BLOCK);
        let (head, tail) = into.split_at_mut(before_end);
        let from = self.offset + (at * BASIC_BLOCK) as u64;
        self.mem
            .read(from, head)
            .map_err(|_| malformed(vendor::MEMORY))?;
        if tail.is_empty() {
            return Ok(());
        }
        self.mem
            .read(self.offset, tail)
            .map_err(|_| malformed(vendor::MEMORY))
    }

    /// The control segment at `index`.
    pub(crate) fn ctrl(&self, index: u16) -> Option<CtrlSeg> {
        let mut segment = [0; SEGMENT];
        self.copy(index, &mut segment).ok()?;
        CtrlSeg::read_from_bytes(&segment).ok()
    }

    /// Copies the entry at `index` into `wqe` and checks it; the doorbell announced `left` blocks.
    ///
    /// # Errors
    /// The reason why the entry is invalid, and the entry as far as it could be decoded.
    pub(crate) fn fetch(
        &self,
        index: u16,
        left: u16,
        wqe: &mut [u8; MAX_WQE],
        checks: &Checks<'_>,
    ) -> Result<Entry, (Entry, Fault)> {
        let mut entry = Entry {
            opcode: SendOpcode::NOP,
            blocks: 1,
            flags: WqeFlags::default(),
            total: 0,
        };
        if let Err(fault) = self.copy(index, &mut wqe[..BASIC_BLOCK]) {
            return Err((entry, fault));
        }
        let Ok((ctrl, _)) = CtrlSeg::read_from_prefix(&wqe[..]) else {
            return Err((entry, malformed(vendor::WQE_FORMAT)));
        };
        entry.opcode = ctrl.opcode();
        entry.flags = ctrl.flags();
        let ds = ctrl.ds();
        if ctrl.index() != index {
            return Err((entry, malformed(vendor::WQE_INDEX)));
        }
        if ctrl.qpn() != checks.qpn {
            return Err((entry, malformed(vendor::WQE_QPN)));
        }
        if ds == 0 || usize::from(ds) > MAX_SEGMENTS {
            return Err((entry, malformed(vendor::WQE_FORMAT)));
        }
        entry.blocks = basic_blocks(ds);
        let blocks = u16::from(entry.blocks);
        if blocks > left || blocks > 1 << self.log_blocks {
            entry.blocks = entry.blocks.min(left.min(63) as u8);
            return Err((entry, malformed(vendor::WQE_SIZE)));
        }
        if blocks > 1 {
            let rest = BASIC_BLOCK..usize::from(blocks) * BASIC_BLOCK;
            if let Err(fault) = self.copy(index.wrapping_add(1), &mut wqe[rest]) {
                return Err((entry, fault));
            }
        }
        match check(wqe, ds, checks) {
            Ok(total) => Ok(Entry { total, ..entry }),
            Err(fault) => Err((entry, fault)),
        }
    }
}

/// Checks the entry in `wqe`; returns the bytes of its message.
fn check(wqe: &[u8; MAX_WQE], ds: u8, checks: &Checks<'_>) -> Result<u32, Fault> {
    let wqe = &wqe[..usize::from(ds) * SEGMENT];
    let datagram = checks.service == Service::Ud;
    let opcode = CtrlSeg::read_from_prefix(wqe).map(|(ctrl, _)| ctrl.opcode());
    if datagram && opcode.is_ok_and(|op| !for_datagrams(op)) {
        return Err(malformed(vendor::WQE_OPCODE));
    }
    let parse = if datagram { parse_datagram } else { parse_send };
    let parsed = parse(wqe).map_err(|_| malformed(vendor::WQE_FORMAT))?;
    let opcode = parsed.opcode();
    let writes_back = wants_answer(opcode);
    match opcode {
        SendOpcode::NOP
        | SendOpcode::SEND
        | SendOpcode::SEND_IMM
        | SendOpcode::RDMA_WRITE
        | SendOpcode::RDMA_WRITE_IMM => {}
        SendOpcode::SEND_INV if checks.service == Service::Rc => {}
        _ if writes_back && checks.service != Service::Rc => {
            return Err(malformed(vendor::WQE_OPCODE));
        }
        _ if writes_back && checks.max_rd_atomic == 0 => {
            return Err(malformed(vendor::READ_LIMIT));
        }
        _ if writes_back => {}
        _ => return Err(malformed(vendor::WQE_OPCODE)),
    }
    let need = if writes_back {
        Access::LOCAL_WRITE
    } else {
        Access::NONE
    };
    let mut total = 0;
    for data in parsed.data() {
        total += data.len();
        if let Data::Sge(Sge { addr, lkey, len }) = data {
            let found = checks.mrs.find(checks.pd, lkey, need, addr, u64::from(len));
            found.map_err(|why| Fault::new(Syndrome::LOCAL_PROT, why))?;
        }
    }
    let most = match checks.service {
        Service::Ud => 1 << MTU_LOGS.1,
        _ => MAX_MESSAGE,
    };
    if total > u64::from(most) || is_atomic(opcode) && total != 8 {
        return Err(Fault::new(Syndrome::LOCAL_LENGTH, vendor::LENGTH));
    }
    Ok(total as u32)
}

/// Fills `into` with the bytes of an entry's message from byte `skip` on.
pub(crate) fn gather(
    wqe: &ParsedWqe<'_>,
    mrs: &MrTable,
    pd: PdId,
    skip: u32,
    mut into: &mut [u8],
) -> Result<(), Fault> {
    let mut skip = u64::from(skip);
    for data in wqe.data() {
        let len = data.len();
        if skip >= len {
            skip -= len;
            continue;
        }
        let (now, later) = into.split_at_mut((len - skip).min(into.len() as u64) as usize);
        match data {
            Data::Inline(bytes) => now.copy_from_slice(&bytes[skip as usize..][..now.len()]),
            Data::Sge(Sge { addr, lkey, .. }) => {
                let fault = |why| Fault::new(Syndrome::LOCAL_PROT, why);
                let va = addr.wrapping_add(skip);
                let (mem, offset) = mrs
                    .find(pd, lkey, Access::NONE, va, now.len() as u64)
                    .map_err(fault)?;
                mem.read(offset, now).map_err(|_| fault(vendor::MEMORY))?;
            }
        }
        into = later;
        skip = 0;
        if into.is_empty() {
            break;
        }
    }
    Ok(())
}
