//! Reads the known-answer vectors.

use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{Atomic, AvSeg, Payload, Remote, SendWqe, Sge, WqeFlags};
use serde_json::Value;

/// The vectors.
pub fn load() -> Value {
    serde_json::from_str(include_str!("../vectors/mlx5_wqe.json")).expect("the vectors are JSON")
}

/// The send vectors.
pub fn sends() -> Vec<SendVector> {
    sends_of(&load())
}

/// The send vectors in `all`.
pub fn sends_of(all: &Value) -> Vec<SendVector> {
    list(&all["send"]).iter().map(send).collect()
}

/// A send request and the entry that the vendor's library wrote for it.
pub struct SendVector {
    pub name: String,
    pub opcode: SendOpcode,
    pub flags: WqeFlags,
    pub imm: [u8; 4],
    pub remote: Option<Remote>,
    pub atomic: Option<Atomic>,
    pub av: Option<AvSeg>,
    pub sges: Vec<Sge>,
    /// The pieces, if the request is inline.
    pub inline: Option<Vec<Vec<u8>>>,
    pub index: u32,
    pub qpn: u32,
    pub wqe: Vec<u8>,
    pub ds: u8,
    pub basic_blocks: u8,
    pub record: u32,
    pub doorbell: Vec<u8>,
}

impl SendVector {
    /// Hands the request to `f`, which may change it.
    pub fn with<R>(&self, f: impl FnOnce(SendWqe<'_>) -> R) -> R {
        let pieces: Vec<&[u8]> = self.inline.iter().flatten().map(Vec::as_slice).collect();
        f(SendWqe {
            opcode: self.opcode,
            flags: self.flags,
            imm: self.imm,
            remote: self.remote,
            atomic: self.atomic,
            av: self.av,
            payload: match &self.inline {
                Some(_) => Payload::Inline(&pieces),
                None => Payload::Gather(&self.sges),
            },
        })
    }
}

fn send(v: &Value) -> SendVector {
    let opcode = match number(&v["opcode"]) {
        0 => SendOpcode::RDMA_WRITE,
        1 => SendOpcode::RDMA_WRITE_IMM,
        2 => SendOpcode::SEND,
        3 => SendOpcode::SEND_IMM,
        4 => SendOpcode::RDMA_READ,
        5 => SendOpcode::ATOMIC_CS,
        6 => SendOpcode::ATOMIC_FA,
        other => panic!("verbs opcode {other}"),
    };
    let (flags, ud) = (number(&v["send_flags"]), text(&v["qp_type"]) == "UD");
    let (addr, rkey) = (number(&v["remote_addr"]), number(&v["rkey"]) as u32);
    let has_remote = !matches!(opcode, SendOpcode::SEND | SendOpcode::SEND_IMM);
    let (compare_add, swap) = (number(&v["compare_add"]), number(&v["swap"]));
    SendVector {
        name: text(&v["name"]).to_owned(),
        opcode,
        flags: WqeFlags {
            fence: flags & 1 != 0,
            signaled: flags & 2 != 0,
            solicited: flags & 4 != 0,
        },
        imm: hex(&v["imm_be"]).try_into().expect("four bytes"),
        remote: has_remote.then_some(Remote { addr, rkey }),
        atomic: match opcode {
            SendOpcode::ATOMIC_CS => Some(Atomic::CompareSwap {
                compare: compare_add,
                swap,
            }),
            SendOpcode::ATOMIC_FA => Some(Atomic::FetchAdd { add: compare_add }),
            _ => None,
        },
        // The field of the rkey contains the destination QP. The program that made the vectors has
        // a fixed queue key and a fixed LID.
        av: ud.then(|| AvSeg::infiniband(0x1111_1111, rkey, 1, 0)),
        sges: sges(&v["sge"]),
        inline: (flags & 8 != 0).then(|| list(&v["sge"]).iter().map(|s| hex(&s["data"])).collect()),
        index: number(&v["wqe_index"]) as u32,
        qpn: number(&v["qpn"]) as u32,
        wqe: hex(&v["wqe"]),
        ds: number(&v["ds"]) as u8,
        basic_blocks: number(&v["basic_blocks"]) as u8,
        record: number(&v["doorbell_record_send"]) as u32,
        doorbell: hex(&v["doorbell_qword"]),
    }
}

/// The pieces of memory of a request.
pub fn sges(v: &Value) -> Vec<Sge> {
    let one = |s: &Value| Sge {
        addr: number(&s["addr"]),
        lkey: number(&s["lkey"]) as u32,
        len: number(&s["length"]) as u32,
    };
    list(v).iter().map(one).collect()
}

pub fn list(v: &Value) -> &[Value] {
    v.as_array().expect("a list")
}

pub fn text(v: &Value) -> &str {
    v.as_str().expect("a string")
}

/// A number, or a string with a number in it, decimal or hexadecimal.
pub fn number(v: &Value) -> u64 {
    match (v.as_u64(), v.as_str()) {
        (Some(n), _) => n,
        (None, Some(s)) => match s.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).expect("a number"),
            None => s.parse().expect("a number"),
        },
        _ => panic!("{v} is no number"),
    }
}

pub fn hex(v: &Value) -> Vec<u8> {
    let s = text(v);
    assert!(s.len().is_multiple_of(2));
    (0..s.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&s[i..i + 2], 16).expect("hexadecimal"))
        .collect()
}
