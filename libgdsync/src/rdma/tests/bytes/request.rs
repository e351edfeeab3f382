//! A request in the form of this library and in the form of libmlx5; and the set of requests.

use gdsync_sys::verbs::consts::*;
use gdsync_sys::verbs::types::*;
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{Atomic, WqeFlags};

use crate::nic::RemoteSpan;
use crate::provider::ibv::Handle;
use crate::provider::mlx5::tests::no_send;
use crate::rdma::{Destination, Mr, Sge, Work};

const IBV_SEND_INLINE: u32 = 1 << 3;

/// The operations of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Nop,
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    Datagram,
    DatagramImm,
}

impl Kind {
    /// The operations of datagram queue pairs.
    pub const UD: [Kind; 2] = [Kind::Datagram, Kind::DatagramImm];
    /// The operations of connections, which have one opcode each.
    pub const ALL: [Kind; 8] = [
        Kind::Nop,
        Kind::Send,
        Kind::SendImm,
        Kind::Write,
        Kind::WriteImm,
        Kind::Read,
        Kind::CompareSwap,
        Kind::FetchAdd,
    ];

    pub const fn opcode(self) -> SendOpcode {
        match self {
            Kind::Nop => SendOpcode::NOP,
            Kind::Send | Kind::Datagram => SendOpcode::SEND,
            Kind::SendImm | Kind::DatagramImm => SendOpcode::SEND_IMM,
            Kind::Write => SendOpcode::RDMA_WRITE,
            Kind::WriteImm => SendOpcode::RDMA_WRITE_IMM,
            Kind::Read => SendOpcode::RDMA_READ,
            Kind::CompareSwap => SendOpcode::ATOMIC_CS,
            Kind::FetchAdd => SendOpcode::ATOMIC_FA,
        }
    }

    pub fn takes_inline(self) -> bool {
        use Kind::*;
        matches!(self, Send | SendImm | Write | WriteImm) || self.is_datagram()
    }

    pub fn is_datagram(self) -> bool {
        matches!(self, Kind::Datagram | Kind::DatagramImm)
    }

    pub fn is_atomic(self) -> bool {
        matches!(self, Kind::CompareSwap | Kind::FetchAdd)
    }

    /// The maximum number of inline bytes that this library accepts: an entry has 63 segments.
    pub fn most_inline(self) -> usize {
        let head = match self {
            Kind::Send | Kind::SendImm => 1,
            Kind::Datagram | Kind::DatagramImm => 4,
            _ => 2,
        };
        16 * (63 - head) - 4
    }
}

/// Opcodes of the format for which the library builds no requests.
const NOT_BUILT: [SendOpcode; 1] = [SendOpcode::SEND_INV];

/// A new opcode must be added here.
const _: () = {
    let mut code = 0;
    while code <= u8::MAX as u32 {
        let mut listed = NOT_BUILT[0].0 as u32 == code;
        let mut i = 0;
        while i < Kind::ALL.len() {
            listed |= Kind::ALL[i].opcode().0 as u32 == code;
            i += 1;
        }
        let known = SendOpcode(code as u8).name().is_some();
        assert!(
            known == listed,
            "an opcode that is not compared with libmlx5's"
        );
        code += 1;
    }
};

/// Offsets into the registered memory and lengths, or bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Data {
    Gather(Vec<(u64, u32)>),
    Inline(Vec<Vec<u8>>),
}

impl Data {
    /// The name in the table.
    pub fn name(&self) -> &'static str {
        match self {
            Data::Gather(_) => "pointers",
            Data::Inline(_) => "inline",
        }
    }
}

/// A request in a neutral form.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub kind: Kind,
    pub flags: WqeFlags,
    pub imm: u32,
    pub data: Data,
    pub remote: RemoteSpan,
    /// The operands of an atomic.
    pub operands: (u64, u64),
    /// The destination of a datagram, by index.
    pub to: usize,
}

impl Request {
    /// A signaled request without data.
    pub fn empty(kind: Kind) -> Request {
        Request {
            kind,
            flags: WqeFlags {
                signaled: true,
                ..WqeFlags::default()
            },
            imm: 0x0102_0304,
            data: Data::Gather(Vec::new()),
            remote: RemoteSpan::new(0x1122_3344_5566_7788, 0x99aa_bbcc),
            operands: (0xf1f2_f3f4_f5f6_f7f8, 0xe1e2_e3e4_e5e6_e7e8),
            to: 0,
        }
    }

    /// The segments of its entry.
    pub fn segments(&self) -> usize {
        super::fields::of_send(self)
            .iter()
            .map(|f| f.len)
            .sum::<usize>()
            / 16
    }

    /// Passes the request on in the form of the public interface.
    pub fn with_work<R>(
        &self,
        memory: &Mr,
        destinations: &[(Destination, Handle)],
        f: impl FnOnce(&Work<'_>) -> R,
    ) -> R {
        let (mut sges, mut pieces): (Vec<Sge<'_>>, Vec<&[u8]>) = Default::default();
        match &self.data {
            Data::Gather(list) => {
                sges.extend(list.iter().map(|(offset, len)| memory.sge(*offset, *len)));
            }
            Data::Inline(list) => pieces.extend(list.iter().map(Vec::as_slice)),
        }
        let inline = matches!(self.data, Data::Inline(_));
        let (first, second) = self.operands;
        let mut work = match (self.kind, inline) {
            (Kind::Nop, _) => Work::nop(),
            (Kind::Send | Kind::SendImm | Kind::Datagram | Kind::DatagramImm, false) => {
                Work::send(&sges)
            }
            (Kind::Send | Kind::SendImm | Kind::Datagram | Kind::DatagramImm, true) => {
                Work::send_inline(&pieces)
            }
            (Kind::Write | Kind::WriteImm, false) => Work::write(&sges, self.remote),
            (Kind::Write | Kind::WriteImm, true) => Work::write_inline(&pieces, self.remote),
            (Kind::Read, _) => Work::read(&sges, self.remote),
            (Kind::CompareSwap, _) => Work::compare_swap(&sges, self.remote, first, second),
            (Kind::FetchAdd, _) => Work::fetch_add(&sges, self.remote, first),
        };
        if self.kind.is_datagram() {
            work = work.to(&destinations[self.to].0);
        }
        if matches!(
            self.kind,
            Kind::SendImm | Kind::WriteImm | Kind::DatagramImm
        ) {
            work = work.with_imm(self.imm);
        }
        let WqeFlags {
            signaled,
            solicited,
            fence,
        } = self.flags;
        if signaled {
            work = work.signaled();
        }
        if solicited {
            work = work.solicited();
        }
        if fence {
            work = work.fenced();
        }
        f(&work)
    }
}

/// The same request in verbs. Its segments are put into `sges`. Verbs cannot express a NOP, which
/// becomes an empty SEND with the same flags.
pub(super) fn as_verbs(
    work: &Work<'_>,
    destinations: &[(Destination, Handle)],
    sges: &mut Vec<ibv_sge>,
) -> ibv_send_wr {
    // Without "..": a new field of a request must be translated here.
    let Work {
        opcode,
        sges: gather,
        inline,
        remote,
        atomic,
        imm,
        flags: WqeFlags {
            signaled,
            solicited,
            fence,
        },
        to: destination,
    } = *work;
    let flag = |set: bool, bit: u32| if set { bit } else { 0 };
    let mut wr = no_send();
    wr.send_flags = flag(signaled, IBV_SEND_SIGNALED)
        | flag(solicited, IBV_SEND_SOLICITED)
        | flag(fence, IBV_SEND_FENCE)
        | flag(inline.is_some(), IBV_SEND_INLINE);
    sges.clear();
    for Sge { mr, offset, len } in gather {
        sges.push(ibv_sge {
            addr: mr.region().addr().0 + offset,
            length: *len,
            lkey: mr.lkey(),
        });
    }
    for piece in inline.into_iter().flatten() {
        sges.push(ibv_sge {
            addr: piece.as_ptr() as u64,
            length: piece.len() as u32,
            lkey: 0,
        });
    }
    wr.sg_list = sges.as_mut_ptr();
    wr.num_sge = sges.len() as i32;
    wr.imm_data = u32::from_ne_bytes(imm);
    wr.opcode = match opcode {
        SendOpcode::SEND | SendOpcode::NOP => IBV_WR_SEND,
        SendOpcode::SEND_IMM => IBV_WR_SEND_WITH_IMM,
        SendOpcode::RDMA_WRITE => IBV_WR_RDMA_WRITE,
        SendOpcode::RDMA_WRITE_IMM => IBV_WR_RDMA_WRITE_WITH_IMM,
        SendOpcode::RDMA_READ => IBV_WR_RDMA_READ,
        SendOpcode::ATOMIC_CS => IBV_WR_ATOMIC_CMP_AND_SWP,
        SendOpcode::ATOMIC_FA => IBV_WR_ATOMIC_FETCH_AND_ADD,
        other => panic!("{other} is no opcode of a request"),
    };
    let to = remote.unwrap_or(RemoteSpan::new(0, 0));
    wr.wr = match atomic {
        None => ibv_send_remote {
            rdma: ibv_send_rdma {
                remote_addr: to.addr,
                rkey: to.rkey,
            },
        },
        Some(operands) => {
            let (compare_add, swap) = match operands {
                Atomic::CompareSwap { compare, swap } => (compare, swap),
                Atomic::FetchAdd { add } => (add, 0),
            };
            ibv_send_remote {
                atomic: ibv_send_atomic {
                    remote_addr: to.addr,
                    compare_add,
                    swap,
                    rkey: to.rkey,
                },
            }
        }
    };
    if let Some(to) = destination {
        let known = destinations.iter().find(|(known, _)| known.av() == to.av());
        let (_, handle) = known.expect("a destination of the rig's");
        wr.wr.ud = ibv_send_ud {
            ah: handle.raw(),
            remote_qpn: to.qpn(),
            remote_qkey: to.av().qkey.get(),
        };
    }
    wr
}
