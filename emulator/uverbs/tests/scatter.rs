//! Which flags of a queue pair bring small payloads into completion entries.

mod rig;
mod work;

use mlx5_prm::cqe::Cqe64;
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::wqe::{Payload, Remote, SendWqe, WqeFlags};
use rig::*;
use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::abi::mlx5::qp_flag;
use work::sge;

const NONE: u32 = 0;
const SCATTER: u32 = qp_flag::SCATTER_CQE;
const ALLOW: u32 = qp_flag::ALLOW_SCATTER_CQE;
const UC: u8 = 3;

/// A send and, on a reliable connection, a read of eight bytes each, of a queue pair to itself:
/// whether each brought its bytes in its entry.
fn scattered(qp_type: u8, flags: u32, sq_sig_all: u8) -> (bool, bool) {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let (sends, receives) = (rig.cq(-1), rig.cq(-1));
    let data = rig.room(4096);
    let mut input = qp_input(pd, sends.handle);
    input.init.recv_cq_handle = receives.handle;
    (input.init.qp_type, input.init.sq_sig_all) = (qp_type, sq_sig_all);
    let (qp, _) = rig.make_qp(&input, |c| c.flags = flags).unwrap();
    for mut way in rig.ways(qp.handle, qp.qpn) {
        if qp_type == UC {
            use attr::*;
            let reliable = MAX_DEST_RD_ATOMIC
                | MIN_RNR_TIMER
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | MAX_QP_RD_ATOMIC;
            way.attr_mask &= !reliable;
        }
        rig.tell(command::MODIFY_QP, &way).unwrap();
    }
    let mr = rig.mr(pd, data, 4096, 0xf).unwrap();
    rig.put(data, b"payload!");
    rig.post_receive(&qp, 0, sge(&mr, data + 1024, 64));
    let flags = WqeFlags::default().changed(|w| w.signaled = true);
    let (from, into) = ([sge(&mr, data, 8)], [sge(&mr, data + 2048, 8)]);
    let send = SendWqe {
        opcode: SendOpcode::SEND,
        flags,
        payload: Payload::Gather(&from),
        ..SendWqe::default()
    };
    rig.post(&qp, 0, &send);
    let reliable = qp_type != UC;
    if reliable {
        let remote = Remote {
            addr: data,
            rkey: mr.rkey,
        };
        let read = SendWqe {
            opcode: SendOpcode::RDMA_READ,
            remote: Some(remote),
            payload: Payload::Gather(&into),
            ..send
        };
        rig.post(&qp, 1, &read);
    }
    rig.settle();
    let brought = |cq: &Cq, number: u64, opcode, place: u64| {
        let entry = Cqe64::from_bytes(rig.entry(cq, number));
        assert_eq!((entry.opcode(), entry.owner()), (opcode, 0));
        let there: [u8; 8] = rig.read(data + place);
        let bytes = entry.to_bytes();
        match entry.scattered() {
            true => assert_eq!((&bytes[..8], there), (&b"payload!"[..], [0; 8])),
            false => assert_eq!((&bytes[..8], &there), (&[0; 8][..], b"payload!")),
        }
        entry.scattered()
    };
    let received = brought(&receives, 0, CqeOpcode::RESP_SEND, 1024);
    (
        received,
        reliable && brought(&sends, 1, CqeOpcode::REQ, 2048),
    )
}

#[test]
fn by_flags() {
    let rc = 2;
    for (qp_type, flags, sq_sig_all, expected) in [
        (rc, NONE, 0, (false, false)),
        (rc, NONE, 1, (false, false)),
        (rc, ALLOW, 1, (false, false)),
        (rc, SCATTER, 0, (true, false)),
        (rc, SCATTER, 1, (true, true)),
        (rc, SCATTER | ALLOW, 0, (true, true)),
        (UC, NONE, 1, (false, false)),
        (UC, SCATTER, 1, (true, false)),
    ] {
        let got = scattered(qp_type, flags, sq_sig_all);
        assert_eq!(got, expected, "{qp_type} {flags:#x} {sq_sig_all}");
    }
}
