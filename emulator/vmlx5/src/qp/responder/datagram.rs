//! Received datagrams: the checks of their source and keys, and the place of their bytes.

use mlx5_prm::cqe::{Source, Success};
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;

use super::Outcome;
use crate::error::Fault;
use crate::frame::{FIRST, Frame, GRH, IMM, Kind, LAST, SOLICITED};
use crate::qp::Ctx;
use crate::qp::Qp;
use crate::route::{Label, ROOM};

/// The bit of a partition key that marks a full member; two limited members do not exchange
/// datagrams.
const FULL_MEMBER: u16 = 1 << 15;

/// Returns true if members with these keys exchange datagrams.
fn same_partition(a: u16, b: u16) -> bool {
    (a ^ b) & !FULL_MEMBER == 0 && (a | b) & FULL_MEMBER != 0
}

impl Qp {
    /// Handles a datagram. Returns false if it is dropped; no end gets a report of it.
    pub fn take_datagram(&mut self, ctx: &mut Ctx, frame: &Frame, payload: &[u8]) -> bool {
        let Some(ud) = &self.ud else {
            return false;
        };
        let label = Label::unpack(frame.compare);
        let whole = frame.kind == Kind::Send && frame.is(FIRST) && frame.is(LAST);
        let may = frame.rkey == ud.qkey && same_partition(label.pkey, ud.pkey);
        if !whole || !may || label.port != ud.port {
            return false;
        }
        let grh = frame.is(GRH);
        // Without a header, the first 40 bytes of the receive remain unchanged.
        let at = if grh { 0 } else { ROOM };
        let total = at + payload.len();
        if total < ROOM || total > ROOM + (1 << self.mtu_log) {
            return false;
        }
        let wanted = Frame {
            total: total as u32,
            ..*frame
        };
        let begun = match self.begin_send(ctx, &wanted) {
            Ok(()) => {
                let list = &self.resp.sges;
                let put = ctx
                    .mrs
                    .scatter(self.recv_pd, list, at as u64, payload, true);
                put.map_err(|why| Some(Fault::new(Syndrome::LOCAL_PROT, why)))
            }
            Err(Outcome::Refused(_, ours)) => Err(ours),
            Err(_) => Err(None),
        };
        match begun {
            Ok(()) => {}
            // No receive is posted, or the queue pair has no receive queue.
            Err(None) => return false,
            Err(Some(ours)) => {
                self.recv_error(ctx, ours);
                self.enter_error();
                return true;
            }
        }
        let imm = frame.is(IMM);
        let content = Success {
            opcode: match imm {
                true => CqeOpcode::RESP_SEND_IMM,
                false => CqeOpcode::RESP_SEND,
            },
            byte_cnt: wanted.total,
            imm: if imm { frame.imm } else { [0; 4] },
            solicited: frame.is(SOLICITED),
            source: Source {
                qpn: frame.src_qpn,
                slid: label.slid,
                sl: label.sl,
                path_bits: label.path_bits,
                grh,
            },
            ..Success::default()
        };
        self.recv_success(ctx, content, None);
        true
    }
}
