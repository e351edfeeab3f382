//! Modifications of UD QPs, which send to themselves. `emulator/programs/ud.c` shows datagrams to
//! every kind of address.

mod rig;
mod work;

use mlx5_prm::cqe::Cqe64;
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::wqe::{AvSeg, Payload, SendWqe, Sge, WqeFlags};
use rig::*;
use vmlx5_uverbs::abi::core::*;
use work::sge;

const OUR_KEY: u32 = 0x1111_1111;
/// The kind of QP, as verbs number it.
const UD: u8 = 4;

/// The transitions from RESET to RTS.
fn ways(qp: u32) -> [ModifyQp; 3] {
    use attr::*;
    let base = ModifyQp {
        qp_handle: qp,
        port_num: 1,
        qkey: OUR_KEY,
        sq_psn: 5,
        ..Default::default()
    };
    let way = |attr_mask, qp_state| ModifyQp {
        attr_mask: attr_mask | STATE,
        qp_state,
        ..base
    };
    [way(PKEY_INDEX | PORT | QKEY, 1), way(0, 2), way(SQ_PSN, 3)]
}

struct Setup {
    rig: Rig,
    cq: Cq,
    qp: Qp,
    mr: RegMrResp,
    data: u64,
}

fn setup() -> Setup {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let cq = rig.cq(-1);
    let qp = rig.qp_of(UD, pd, &cq).unwrap();
    for way in ways(qp.handle) {
        rig.run(command::MODIFY_QP, &way).unwrap();
    }
    let data = rig.room(4096);
    let mr = rig.mr(pd, data, 4096, 1).unwrap();
    Setup {
        rig,
        cq,
        qp,
        mr,
        data,
    }
}

impl Setup {
    fn sge(&self, at: u64, len: u32) -> Sge {
        sge(&self.mr, self.data + at, len)
    }

    /// Posts the first receive, of 48 bytes.
    fn receive(&self) {
        self.rig.post_receive(&self.qp, 0, self.sge(100, 48));
    }

    /// Sends eight bytes from the start of the data to itself; two blocks an entry.
    fn send(&mut self, index: u32, av: AvSeg) {
        let wqe = SendWqe {
            opcode: SendOpcode::SEND,
            flags: WqeFlags::default().changed(|w| w.signaled = true),
            av: Some(av),
            payload: Payload::Gather(&[self.sge(0, 8)]),
            ..SendWqe::default()
        };
        self.rig.post(&self.qp, index, &wqe);
        self.rig.settle();
    }

    fn entry(&self, index: u64) -> Cqe64 {
        Cqe64::from_bytes(self.rig.entry(&self.cq, index))
    }

    fn own(&self) -> AvSeg {
        AvSeg::infiniband(OUR_KEY, self.qp.qpn, 1, 2)
    }
}

#[test]
fn qkey_is_changed_by_commands() {
    let mut s = setup();
    let change = |qkey| ModifyQp {
        qp_handle: s.qp.handle,
        attr_mask: attr::QKEY | attr::STATE,
        qp_state: 3,
        qkey,
        ..Default::default()
    };
    s.rig.run(command::MODIFY_QP, &change(7)).unwrap();
    assert_eq!(s.rig.query_qp(s.qp.handle).unwrap().qkey, 7);
    s.receive();
    let old = s.own();
    s.send(0, old);
    assert_eq!(s.entry(0).opcode(), CqeOpcode::REQ);
    assert_eq!(s.entry(1).opcode(), CqeOpcode::INVALID, "dropped");
    s.send(2, old.changed(|a| a.qkey = 7.into()));
    let later = [s.entry(1).opcode(), s.entry(2).opcode()];
    assert!(later.contains(&CqeOpcode::RESP_SEND), "{later:?}");
}

#[test]
fn ud_qp_continues_after_failed_sends() {
    let mut s = setup();
    let mr = s.mr.lkey;
    s.mr.lkey ^= 1;
    let av = s.own();
    s.send(0, av);
    assert_eq!(s.entry(0).opcode(), CqeOpcode::REQ_ERR);
    assert_eq!(s.rig.query_qp(s.qp.handle).unwrap().qp_state, 5);
    s.mr.lkey = mr;
    let resume = ModifyQp {
        qp_handle: s.qp.handle,
        attr_mask: attr::STATE | attr::CUR_STATE,
        cur_qp_state: 5,
        qp_state: 3,
        ..Default::default()
    };
    s.rig.run(command::MODIFY_QP, &resume).unwrap();
    s.send(2, av);
    assert_eq!(s.entry(1).opcode(), CqeOpcode::REQ);
}
