//! Conversion of the library's entries to requests of verbs, and of completions of verbs to
//! completion entries. Pure.

use std::ffi::{c_int, c_uint};
use std::ptr;

use gdsync_sys::verbs::consts::*;
use gdsync_sys::verbs::types::{
    ibv_ah, ibv_recv_wr, ibv_send_atomic, ibv_send_rdma, ibv_send_remote, ibv_send_ud, ibv_send_wr,
    ibv_sge, ibv_wc,
};
use mlx5_prm::cqe::Source;
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{
    Atomic, AvSeg, Data, ParsedWqe, WqeFlags, parse_datagram, parse_recv, parse_send,
};

/// The send ring, as the NIC may read it.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider) struct RingMemory {
    /// Its address in the registration.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    pub lkey: u32,
}

impl RingMemory {
    /// The `len` bytes from `at` on, which may go around the end of the ring.
    fn pieces(&self, at: u64, len: u64, out: &mut Vec<ibv_sge>) {
        let at = at % self.len;
        let first = len.min(self.len - at);
        for (at, len) in [(at, first), (0, len - first)] {
            if len > 0 {
                out.push(ibv_sge {
                    addr: self.addr + at,
                    length: len as u32,
                    lkey: self.lkey,
                });
            }
        }
    }
}

/// The limits of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider) struct Most {
    /// Pieces.
    pub sges: usize,
    /// Bytes that are copied when the request is posted.
    pub inline: usize,
}

/// The request of the entry in `bytes`, with its data in `sges`; `None` for an entry without
/// effect. Inline data are copied from `bytes` when the request is posted. If they are more than
/// the device copies, or are combined with other pieces, the NIC reads them from the ring, where
/// the entry begins at byte `at`: they stay there until the request has completed.
///
/// # Errors
/// The syndrome of the completion of an invalid entry, or of one with more than `most` pieces.
pub(in crate::provider) fn send(
    bytes: &[u8],
    at: u64,
    ring: &RingMemory,
    most: Most,
    sges: &mut Vec<ibv_sge>,
) -> Result<Option<ibv_send_wr>, Syndrome> {
    let entry = parse_send(bytes).map_err(|_| Syndrome::LOCAL_QP_OP)?;
    request(&entry, bytes, at, ring, most, sges)
}

/// As [`send`], for a queue pair of datagrams; `find` returns the address handle that an entry
/// names.
///
/// # Errors
/// As [`send`]; also for an entry that names no address handle.
pub(in crate::provider) fn datagram(
    bytes: &[u8],
    at: u64,
    ring: &RingMemory,
    most: Most,
    sges: &mut Vec<ibv_sge>,
    find: impl FnOnce(&AvSeg) -> Option<*mut ibv_ah>,
) -> Result<Option<ibv_send_wr>, Syndrome> {
    let entry = parse_datagram(bytes).map_err(|_| Syndrome::LOCAL_QP_OP)?;
    let Some(mut wr) = request(&entry, bytes, at, ring, most, sges)? else {
        return Ok(None);
    };
    let av = entry.av.ok_or(Syndrome::LOCAL_QP_OP)?;
    wr.wr.ud = ibv_send_ud {
        ah: find(&av).ok_or(Syndrome::LOCAL_QP_OP)?,
        remote_qpn: av.qpn(),
        remote_qkey: av.qkey.get(),
    };
    Ok(Some(wr))
}

fn request(
    entry: &ParsedWqe<'_>,
    bytes: &[u8],
    at: u64,
    ring: &RingMemory,
    most: Most,
    sges: &mut Vec<ibv_sge>,
) -> Result<Option<ibv_send_wr>, Syndrome> {
    let opcode = match entry.opcode() {
        SendOpcode::NOP => return Ok(None),
        SendOpcode::SEND => IBV_WR_SEND,
        SendOpcode::SEND_IMM => IBV_WR_SEND_WITH_IMM,
        SendOpcode::SEND_INV => IBV_WR_SEND_WITH_INV,
        SendOpcode::RDMA_WRITE => IBV_WR_RDMA_WRITE,
        SendOpcode::RDMA_WRITE_IMM => IBV_WR_RDMA_WRITE_WITH_IMM,
        SendOpcode::RDMA_READ => IBV_WR_RDMA_READ,
        SendOpcode::ATOMIC_CS => IBV_WR_ATOMIC_CMP_AND_SWP,
        SendOpcode::ATOMIC_FA => IBV_WR_ATOMIC_FETCH_AND_ADD,
        _ => return Err(Syndrome::LOCAL_QP_OP),
    };
    let mut flags = flags(entry.flags());
    let fetches = matches!(opcode, IBV_WR_RDMA_READ) || entry.atomic.is_some();
    let all_inline = entry.data().all(|data| matches!(data, Data::Inline(_)));
    let short = (1..=most.inline as u64).contains(&entry.data_len());
    let copied = all_inline && short && !fetches;
    if copied {
        flags |= IBV_SEND_INLINE;
    }
    sges.clear();
    for data in entry.data() {
        match data {
            Data::Inline(inline) if copied => sges.push(ibv_sge {
                addr: inline.as_ptr() as u64,
                length: inline.len() as u32,
                lkey: 0,
            }),
            Data::Sge(sge) => sges.push(ibv_sge {
                addr: sge.addr,
                length: sge.len,
                lkey: sge.lkey,
            }),
            Data::Inline(inline) => {
                let offset = inline.as_ptr() as usize - bytes.as_ptr() as usize;
                ring.pieces(at + offset as u64, inline.len() as u64, sges);
            }
        }
    }
    if sges.len() > most.sges {
        return Err(Syndrome::LOCAL_QP_OP);
    }
    if entry.atomic.is_some() && entry.data_len() != 8 {
        return Err(Syndrome::LOCAL_LENGTH);
    }
    let remote = entry.remote.unwrap_or_default();
    let (compare_add, swap) = match entry.atomic {
        None => (0, 0),
        Some(Atomic::CompareSwap { compare, swap }) => (compare, swap),
        Some(Atomic::FetchAdd { add }) => (add, 0),
    };
    // All bytes are set: a provider that reads another member finds no garbage.
    let mut wr = ibv_send_remote {
        atomic: ibv_send_atomic {
            remote_addr: remote.addr,
            compare_add,
            swap,
            rkey: remote.rkey,
        },
    };
    if entry.atomic.is_none() {
        wr.rdma = ibv_send_rdma {
            remote_addr: remote.addr,
            rkey: remote.rkey,
        };
    }
    let imm_data = match entry.opcode() {
        // A key, no longer in network order.
        SendOpcode::SEND_INV => u32::from_be_bytes(entry.ctrl.imm),
        _ => u32::from_ne_bytes(entry.ctrl.imm),
    };
    Ok(Some(ibv_send_wr {
        wr_id: 0,
        next: ptr::null_mut(),
        sg_list: sges.as_mut_ptr(),
        num_sge: sges.len() as c_int,
        opcode,
        send_flags: flags,
        imm_data,
        wr,
        qp_type: 0,
        _others: [0; 6],
    }))
}

/// Every request reports its end to the thread.
fn flags(flags: WqeFlags) -> c_uint {
    let mut out = IBV_SEND_SIGNALED;
    if flags.fence {
        out |= IBV_SEND_FENCE;
    }
    if flags.solicited {
        out |= IBV_SEND_SOLICITED;
    }
    out
}

/// The receive of a whole slot.
///
/// # Errors
/// As [`send`].
pub(in crate::provider) fn receive(
    slot: &[u8],
    limit: usize,
    sges: &mut Vec<ibv_sge>,
) -> Result<ibv_recv_wr, Syndrome> {
    let list = parse_recv(slot).map_err(|_| Syndrome::LOCAL_QP_OP)?;
    sges.clear();
    sges.extend(list.map(|sge| ibv_sge {
        addr: sge.addr,
        length: sge.len,
        lkey: sge.lkey,
    }));
    if sges.len() > limit {
        return Err(Syndrome::LOCAL_QP_OP);
    }
    Ok(ibv_recv_wr {
        wr_id: 0,
        next: ptr::null_mut(),
        sg_list: sges.as_mut_ptr(),
        num_sge: sges.len() as c_int,
    })
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::provider) struct Outcome {
    /// The reason of the failure, if it failed, and the vendor's code.
    pub failure: Option<(Syndrome, u8)>,
    /// The opcode of a receive's completion entry.
    pub received: CqeOpcode,
    pub len: u32,
    /// The immediate data in the byte order of a completion entry.
    pub imm: [u8; 4],
    /// The source, if it was a datagram.
    pub source: Source,
}

/// The outcome in a completion of verbs.
pub(in crate::provider) fn outcome(wc: &ibv_wc) -> Outcome {
    if wc.status != IBV_WC_SUCCESS {
        return Outcome {
            failure: Some((syndrome(wc.status), wc.vendor_err as u8)),
            ..Outcome::default()
        };
    }
    let with = |flag| wc.wc_flags & flag != 0;
    let (received, imm) = match wc.opcode {
        IBV_WC_RECV_RDMA_WITH_IMM => (CqeOpcode::RESP_WR_IMM, wc.imm_data.to_ne_bytes()),
        _ if with(IBV_WC_WITH_IMM) => (CqeOpcode::RESP_SEND_IMM, wc.imm_data.to_ne_bytes()),
        _ if with(IBV_WC_WITH_INV) => (CqeOpcode::RESP_SEND_INV, wc.imm_data.to_be_bytes()),
        _ => (CqeOpcode::RESP_SEND, [0; 4]),
    };
    Outcome {
        failure: None,
        received,
        len: wc.byte_len,
        imm,
        source: Source {
            qpn: wc.src_qp,
            slid: wc.slid,
            sl: wc.sl,
            path_bits: wc.dlid_path_bits,
            grh: with(IBV_WC_GRH),
        },
    }
}

/// The syndrome for failures without one: a number that no NIC uses.
pub(in crate::provider) const UNNAMED: Syndrome = Syndrome(0xff);

/// The syndrome for a status of verbs.
fn syndrome(status: c_int) -> Syndrome {
    match status {
        IBV_WC_LOC_LEN_ERR => Syndrome::LOCAL_LENGTH,
        IBV_WC_LOC_QP_OP_ERR => Syndrome::LOCAL_QP_OP,
        IBV_WC_LOC_PROT_ERR => Syndrome::LOCAL_PROT,
        IBV_WC_WR_FLUSH_ERR => Syndrome::WR_FLUSH,
        IBV_WC_MW_BIND_ERR => Syndrome::MW_BIND,
        IBV_WC_BAD_RESP_ERR => Syndrome::BAD_RESP,
        IBV_WC_LOC_ACCESS_ERR => Syndrome::LOCAL_ACCESS,
        IBV_WC_REM_INV_REQ_ERR => Syndrome::REMOTE_INVAL_REQ,
        IBV_WC_REM_ACCESS_ERR => Syndrome::REMOTE_ACCESS,
        IBV_WC_REM_OP_ERR => Syndrome::REMOTE_OP,
        IBV_WC_RETRY_EXC_ERR => Syndrome::TRANSPORT_RETRY,
        IBV_WC_RNR_RETRY_EXC_ERR => Syndrome::RNR_RETRY,
        IBV_WC_REM_ABORT_ERR => Syndrome::REMOTE_ABORTED,
        _ => UNNAMED,
    }
}

#[cfg(test)]
mod tests;
