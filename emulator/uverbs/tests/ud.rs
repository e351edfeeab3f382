//! Queue pairs of datagrams, made and told by commands, talk to themselves.

mod rig;
mod work;

use mlx5_prm::cqe::{Cqe64, Source};
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::wqe::{AvSeg, Payload, SendWqe, Sge, WqeFlags};
use rig::*;
use rustix::io::Errno;
use vmlx5_uverbs::UarMode;
use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::address::{LinkLayer, Place};
use work::sge;

const OUR_KEY: u32 = 0x1111_1111;
/// The kind of queue pair, as verbs number it.
const UD: u8 = 4;

/// The ways from RESET to RTS.
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
    pd: u32,
    cq: Cq,
    qp: Qp,
    mr: RegMrResp,
    data: u64,
}

fn setup(link: LinkLayer) -> Setup {
    let mut rig = Rig::new(link, UarMode::Static);
    rig.get_context().unwrap();
    let pd = rig.pd();
    let cq = rig.cq(-1);
    let qp = rig.qp_of(UD, pd, &cq).unwrap();
    for way in ways(qp.handle) {
        rig.tell(command::MODIFY_QP, &way).unwrap();
    }
    let data = rig.room(4096);
    let mr = rig.mr(pd, data, 4096, 1).unwrap();
    Setup {
        rig,
        pd,
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
fn a_datagram_goes_by_lid() {
    let mut s = setup(LinkLayer::InfiniBand);
    s.rig.put(s.data, b"datagram");
    s.receive();
    let av = s.own();
    s.send(0, av);
    // The order of the two depends on who is looked at first.
    let mut both = [s.entry(0), s.entry(1)];
    both.sort_by_key(|cqe| cqe.opcode().0);
    assert_eq!(
        both.map(|c| c.opcode()),
        [CqeOpcode::REQ, CqeOpcode::RESP_SEND]
    );
    assert_eq!(both[1].byte_cnt.get(), 48);
    let from = Source {
        qpn: s.qp.qpn,
        slid: 1,
        sl: 2,
        path_bits: 0,
        grh: false,
    };
    assert_eq!(both[1].source(), from);
    let got: [u8; 8] = s.rig.read(s.data + 140);
    assert_eq!(&got, b"datagram");
    let query = s.rig.query_qp(s.qp.handle).unwrap();
    assert_eq!((query.qkey, query.sq_psn, query.qp_state), (OUR_KEY, 5, 3));
}

#[test]
fn a_datagram_goes_by_gid_and_its_receiver_learns_whom_to_answer() {
    let mut s = setup(LinkLayer::Ethernet);
    let fabric = fabric(LinkLayer::Ethernet);
    let place = Place { device: 0, port: 1 };
    let (gid, _) = fabric.gids(place)[3];
    let attr = AhAttr {
        grh: GlobalRoute {
            dgid: gid,
            sgid_index: 3,
            hop_limit: 64,
            ..Default::default()
        },
        port_num: 1,
        is_global: 1,
        ..Default::default()
    };
    let input = CreateAh::default().changed(|c| (c.pd_handle, c.attr) = (s.pd, attr));
    let (ah, own) = s.rig.ask(&input, &[]).unwrap();
    assert_eq!(own.dmac, fabric.mac(place));
    s.receive();
    let av = AvSeg {
        rlid: 0xc000.into(),
        rmac: own.dmac,
        hop_limit: 64,
        grh_gid_fl: (3 << 20).into(),
        rgid: gid,
        ..s.own()
    };
    s.send(0, av);
    let received = [s.entry(0), s.entry(1)];
    let received = received.iter().find(|c| c.opcode() == CqeOpcode::RESP_SEND);
    // IPv4, as the entry tells in place of the service level.
    let from = Source {
        qpn: s.qp.qpn,
        slid: 0,
        sl: 2,
        path_bits: 0,
        grh: true,
    };
    assert_eq!(received.unwrap().source(), from);
    let header: [u8; 20] = s.rig.read(s.data + 120);
    assert_eq!((header[0], header[8], header[9]), (0x45, 64, 17));
    assert_eq!((&header[12..16], &header[16..]), (&gid[12..], &gid[12..]));
    let handle = ah.ah_handle;
    s.rig.tell(command::DESTROY_AH, &Handle { handle }).unwrap();
}

#[test]
fn a_key_is_changed_by_commands() {
    let mut s = setup(LinkLayer::InfiniBand);
    let change = |qkey| ModifyQp {
        qp_handle: s.qp.handle,
        attr_mask: attr::QKEY | attr::STATE,
        qp_state: 3,
        qkey,
        ..Default::default()
    };
    s.rig.tell(command::MODIFY_QP, &change(7)).unwrap();
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
fn sends_that_failed_are_taken_up_again() {
    let mut s = setup(LinkLayer::InfiniBand);
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
    s.rig.tell(command::MODIFY_QP, &resume).unwrap();
    s.send(2, av);
    assert_eq!(s.entry(1).opcode(), CqeOpcode::REQ);
}

#[test]
fn what_connections_need_is_refused() {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let cq = rig.cq(-1);
    let qp = rig.qp_of(UD, pd, &cq).unwrap();
    let of_connections = rig.ways(qp.handle, qp.qpn);
    for (own, other) in ways(qp.handle).into_iter().zip(of_connections) {
        let refused = rig.tell(command::MODIFY_QP, &other);
        assert_eq!(refused, Err(Errno::INVAL));
        rig.tell(command::MODIFY_QP, &own).unwrap();
    }
    // Nothing is left of it after RESET.
    let reset = ModifyQp {
        qp_handle: qp.handle,
        attr_mask: attr::STATE,
        ..Default::default()
    };
    rig.tell(command::MODIFY_QP, &reset).unwrap();
    let query = rig.query_qp(qp.handle).unwrap();
    assert_eq!((query.qp_state, query.qkey), (0, 0));
    rig.destroy_qp(qp.handle).unwrap();
}
