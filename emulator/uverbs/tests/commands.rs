//! The effect and the refusals of each command: bytes in, and an errno out.

mod rig;

use rig::*;
use rustix::io::Errno;
use vmlx5::Dma;
use vmlx5_uverbs::UarMode;
use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::abi::mlx5;
use vmlx5_uverbs::address::{LinkLayer, Place};
use zerocopy::IntoBytes;

/// Every emulated command: number, bytes of input, bytes of answer.
const PLAIN: [(u32, usize, usize); 21] = [
    (command::QUERY_DEVICE, 8, 176),
    (command::QUERY_PORT, 16, 40),
    (command::ALLOC_PD, 8, 4),
    (command::DEALLOC_PD, 4, 0),
    (command::CREATE_AH, 56, 4),
    (command::DESTROY_AH, 4, 0),
    (command::REG_MR, 40, 12),
    (command::REREG_MR, 48, 8),
    (command::DEREG_MR, 4, 0),
    (command::CREATE_COMP_CHANNEL, 8, 4),
    (command::CREATE_CQ, 32, 8),
    (command::DESTROY_CQ, 16, 8),
    (command::CREATE_QP, 56, 32),
    (command::QUERY_QP, 16, 128),
    (command::MODIFY_QP, 112, 0),
    (command::DESTROY_QP, 16, 4),
    (command::ATTACH_MCAST, 24, 0),
    (command::CREATE_SRQ, 32, 16),
    (command::MODIFY_SRQ, 16, 0),
    (command::QUERY_SRQ, 16, 16),
    (command::DESTROY_SRQ, 16, 4),
];
const EXTENDED: [(u32, usize, usize); 4] = [
    (command::QUERY_DEVICE, 8, 304),
    (command::CREATE_CQ, 32, 16),
    (command::CREATE_QP, 64, 40),
    (command::MODIFY_QP, 112, 8),
];

#[test]
fn first_command_is_required_once() {
    let mut rig = Rig::new(LinkLayer::InfiniBand, UarMode::Static);
    for (number, input, answer) in PLAIN {
        let bytes = plain(number, &vec![0; input], answer);
        assert_eq!(rig.context.write(&bytes), Err(Errno::INVAL), "{number}");
    }
    assert_eq!(rig.context.map(0, 4096).err(), Some(Errno::INVAL));
    let (resp, own) = rig.get_context().unwrap();
    assert!(resp.num_comp_vectors > 0 && resp.async_fd > 2);
    assert_eq!(
        (own.tot_bfregs, own.cqe_version, own.response_length),
        (16, 1, 72)
    );
    assert_eq!(rig.get_context().err(), Some(Errno::INVAL));
}

#[test]
fn older_and_newer_libraries_are_answered() {
    let cmd = |rig: &mut Rig, driver: &[u8]| -> Answer<GetContextResp, mlx5::AllocUcontextResp> {
        let input = GetContext::default();
        rig.call(&input, driver)
    };
    let fresh = || Rig::new(LinkLayer::InfiniBand, UarMode::Dynamic);
    let v1 = [16_u32, 4];
    let (_, own) = cmd(&mut fresh(), v1.as_bytes()).unwrap();
    // It cannot request pages one by one.
    assert_eq!((own.tot_bfregs, own.cqe_version), (16, 0));
    let (_, own) = fresh().get_context().unwrap();
    assert_eq!(own.tot_bfregs, 0);
    let v2 = mlx5::AllocUcontextReqV2 {
        total_num_bfregs: 16,
        num_low_latency_bfregs: 4,
        ..Default::default()
    };
    let refused = [
        mlx5::AllocUcontextReqV2 { flags: 2, ..v2 },
        v2.changed(|a| a.total_num_bfregs = 0),
        v2.changed(|a| a.total_num_bfregs = 1 << 30),
        v2.changed(|a| a.num_low_latency_bfregs = 16),
    ];
    for v2 in refused {
        assert_eq!(cmd(&mut fresh(), v2.as_bytes()).err(), Some(Errno::INVAL));
    }
    let v2 = mlx5::AllocUcontextReqV2 { comp_mask: 1, ..v2 };
    assert_eq!(
        cmd(&mut fresh(), v2.as_bytes()).err(),
        Some(Errno::OPNOTSUPP)
    );
    assert_eq!(cmd(&mut fresh(), &[0; 4]).err(), Some(Errno::INVAL));
    let longer = [v1.as_bytes(), &[0; 28], &[1; 4]].concat();
    assert_eq!(cmd(&mut fresh(), &longer).err(), Some(Errno::OPNOTSUPP));
}

#[test]
fn wrong_length_in_a_header_is_refused() {
    let rig = Rig::open();
    let at = rig.process.memory.addr();
    let refused = |number: u32, bytes: &[u8], errno| {
        assert_eq!(rig.context.write(bytes), Err(errno), "{number}");
    };
    refused(0, &[], Errno::INVAL);
    refused(0, &[0; 7], Errno::INVAL);
    for (number, input, answer) in PLAIN {
        let body = vec![0; input];
        let whole = plain(number, &body, answer);
        refused(number, &whole[..whole.len() - 4], Errno::INVAL);
        refused(number, &plain(number, &body[4..], answer), Errno::NOSPC);
        if answer > 0 {
            refused(number, &plain(number, &body, answer - 4), Errno::NOSPC);
        }
        refused(number, &whole.changed(|w| w[2] = 1), Errno::INVAL);
    }
    for (number, input, answer) in EXTENDED {
        let body = vec![0; input];
        let newer = [&body[..], &[1; 8]].concat();
        let whole = extended(number, at, (&body, &[]), (8, 0));
        refused(number, &whole[..whole.len() - 8], Errno::INVAL);
        refused(number, &whole[..16], Errno::INVAL);
        for (at, body, room, errno) in [
            (at, &body[8..], 8, Errno::NOSPC),
            (0, &body, 8, Errno::INVAL),
            (at, &body, 0, Errno::INVAL),
            (at, &newer, answer, Errno::OPNOTSUPP),
        ] {
            let bytes = extended(number, at, (body, &[]), (room, 0));
            refused(number, &bytes, errno);
        }
    }
}

#[test]
fn command_that_is_not_emulated_has_a_kernels_error() {
    let rig = Rig::open();
    let plain_ones: Vec<u32> = PLAIN.iter().map(|c| c.0).collect();
    let extended_ones: Vec<u32> = EXTENDED.iter().map(|c| c.0).collect();
    let detach = command::DETACH_MCAST;
    for number in 1..=255 {
        if !plain_ones.contains(&number) && number != detach {
            let bytes = plain(number, &[0; 64], 64);
            assert_eq!(rig.context.write(&bytes), Err(Errno::OPNOTSUPP), "{number}");
        }
        if !extended_ones.contains(&number) {
            let bytes = extended(number, 0, (&[0; 64], &[]), (0, 0));
            assert_eq!(rig.context.write(&bytes), Err(Errno::OPNOTSUPP), "{number}");
        }
    }
    for number in [command::ATTACH_MCAST, detach] {
        let done = rig.run(number, &McastAttach::default());
        assert_eq!(done, Err(Errno::INVAL));
    }
}

#[test]
fn queries() {
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let mut rig = Rig::new(link, UarMode::Dynamic);
        rig.get_context().unwrap();
        let input = QueryDevice::default();
        let resp = rig.call(&input, &[]).unwrap().0;
        assert_eq!((resp.vendor_id, resp.phys_port_cnt), (0x15b3, 1));
        let port = |rig: &mut Rig, port_num| -> Answer<QueryPortResp, ()> {
            let input = QueryPort::default().changed(|q| q.port_num = port_num);
            rig.call(&input, &[])
        };
        let (resp, ()) = port(&mut rig, 1).unwrap();
        let ib = link == LinkLayer::InfiniBand;
        assert_eq!(
            (resp.state, resp.lid, resp.link_layer),
            (4, ib.into(), 2 - u8::from(ib))
        );
        assert_eq!(port(&mut rig, 0).err(), Some(Errno::INVAL));
        assert_eq!(port(&mut rig, 2).err(), Some(Errno::INVAL));
    }
}

#[test]
fn extended_query_fills_the_answer_buffer() {
    let rig = Rig::open();
    let at = rig.process.memory.addr();
    let cmd = |out, driver| {
        rig.process.memory.write(0, &[0xee; 512]).unwrap();
        let bytes = extended(command::QUERY_DEVICE, at, (&[0; 8], &[]), (out, driver));
        rig.context.write(&bytes).unwrap();
        let mut all = vec![0; 512];
        rig.process.memory.read(0, &mut all).unwrap();
        all
    };
    let word = |all: &[u8], at: usize| u32::from_ne_bytes(all[at..at + 4].try_into().unwrap());
    let all = cmd(304, 104);
    assert_eq!((word(&all, 180), word(&all, 304 + 4)), (304, 104));
    assert!(all[304 + 8..304 + 104].iter().all(|&b| b == 0));
    assert_eq!(all[408], 0xee);
    let all = cmd(184, 8);
    assert_eq!((word(&all, 180), word(&all, 184 + 4)), (184, 8));
    assert_eq!(all[192], 0xee);
    let all = cmd(320, 0);
    assert_eq!((word(&all, 180), all[319], all[320]), (304, 0, 0xee));
}

#[test]
fn handle_of_another_kind_is_refused() {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let cq = rig.cq(-1);
    let none = 4711;
    let run = |rig: &Rig, number, handle| rig.run(number, &Handle { handle }).err();
    for number in [command::DEALLOC_PD, command::DEREG_MR, command::DESTROY_AH] {
        assert_eq!(run(&rig, number, none), Some(Errno::NOENT));
        assert_eq!(run(&rig, number, cq.handle), Some(Errno::INVAL));
    }
    assert_eq!(rig.destroy_cq(none).err(), Some(Errno::NOENT));
    assert_eq!(rig.destroy_cq(pd).err(), Some(Errno::INVAL));
    assert_eq!(rig.destroy_qp(none).err(), Some(Errno::NOENT));
    assert_eq!(rig.destroy_qp(cq.handle).err(), Some(Errno::INVAL));
    assert_eq!(rig.query_qp(none).err(), Some(Errno::INVAL));
    let at = rig.room(4096);
    assert_eq!(rig.mr(none, at, 4096, 1).err(), Some(Errno::INVAL));
    assert_eq!(rig.mr(cq.handle, at, 4096, 1).err(), Some(Errno::INVAL));
    assert_eq!(rig.qp(none, &cq).err(), Some(Errno::INVAL));
    let other = Cq { handle: pd, ..cq };
    assert_eq!(rig.qp(pd, &other).err(), Some(Errno::INVAL));
    let way = rig.ways(none, 0)[0];
    assert_eq!(rig.run(command::MODIFY_QP, &way), Err(Errno::INVAL));
}

#[test]
fn object_in_use_is_not_destroyed() {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let at = rig.room(4096);
    let mr = rig.mr(pd, at, 4096, 1).unwrap();
    let free_pd = |rig: &Rig| rig.run(command::DEALLOC_PD, &Handle { handle: pd });
    assert_eq!(free_pd(&rig), Err(Errno::BUSY));
    let handle = mr.mr_handle;
    rig.run(command::DEREG_MR, &Handle { handle }).unwrap();
    let cq = rig.cq(-1);
    let qp = rig.qp(pd, &cq).unwrap();
    assert_eq!(free_pd(&rig), Err(Errno::BUSY));
    assert_eq!(rig.destroy_cq(cq.handle).err(), Some(Errno::BUSY));
    rig.destroy_qp(qp.handle).unwrap();
    rig.destroy_cq(cq.handle).unwrap();
    free_pd(&rig).unwrap();
    assert_eq!(free_pd(&rig), Err(Errno::NOENT));
}

#[test]
fn regions() {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let at = rig.room(8192);
    assert_eq!(rig.mr(pd, NOWHERE, 1, 1).err(), Some(Errno::FAULT));
    assert_eq!(rig.mr(pd, at, 0, 1).err(), Some(Errno::INVAL));
    assert_eq!(rig.mr(pd, at, u64::MAX, 1).err(), Some(Errno::INVAL));
    // Remote write rights need the local write right.
    assert_eq!(rig.mr(pd, at, 8, 2).err(), Some(Errno::INVAL));
    assert_eq!(rig.mr(pd, at, 8, 8).err(), Some(Errno::INVAL));
    assert_eq!(rig.mr(pd, at, 8, 1 << 6).err(), Some(Errno::OPNOTSUPP));
    assert_eq!(rig.mr(pd, at, 8, 1 << 5).err(), Some(Errno::OPNOTSUPP));
    assert_eq!(rig.mr(pd, at, 8, 1 << 9).err(), Some(Errno::INVAL));
    let mr = rig.mr(pd, at, 8192, 0xf | 1 << 20).unwrap();
    assert_eq!(mr.lkey, mr.rkey);
    let other = rig.mr(pd, at, 8192, 0).unwrap();
    assert_ne!(mr.lkey, other.lkey);
    let rereg = |rig: &mut Rig, flags, start| -> Answer<ReregMrResp, ()> {
        let input = ReregMr {
            mr_handle: mr.mr_handle,
            flags,
            start,
            length: 4096,
            hca_va: at,
            access_flags: 3,
            ..Default::default()
        };
        rig.call(&input, &[])
    };
    assert_eq!(rereg(&mut rig, 0, at).err(), Some(Errno::INVAL));
    assert_eq!(rereg(&mut rig, 8, at).err(), Some(Errno::INVAL));
    assert_eq!(rereg(&mut rig, 1, at + 1).err(), Some(Errno::INVAL));
    assert_eq!(
        rereg(&mut rig, 1, NOWHERE & !0xfff).err(),
        Some(Errno::FAULT)
    );
    let (resp, ()) = rereg(&mut rig, 5, at).unwrap();
    assert_ne!(resp.lkey, mr.lkey);
    let gone = rig.nic.with(|nic| nic.dereg_mr(mr.lkey));
    assert!(gone.is_err(), "the former key is no more");
}

#[test]
fn command_with_an_unwritable_answer_creates_nothing() {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let cq = rig.cq(-1);
    let (buf, db, at) = (rig.room(1024), rig.room(8), rig.room(4096));
    let refused = |number, input: &[u8], driver: &[u8], out| {
        let mut body = input.to_vec();
        body[..8].copy_from_slice(&NOWHERE.to_ne_bytes());
        body.extend_from_slice(driver);
        let done = rig.context.write(&plain(number, &body, out));
        assert_eq!(done, Err(Errno::FAULT));
    };
    let before = rig.nic.with(|nic| format!("{nic:?}"));
    let mr = RegMr {
        start: at,
        length: 4096,
        hca_va: at,
        pd_handle: pd,
        ..Default::default()
    };
    let new_cq = CreateCq::default().changed(|c| (c.cqe, c.comp_channel) = (15, -1));
    let new_qp = qp_input(pd, cq.handle);
    let (cq_own, qp_own) = (cq_driver(buf, db), qp_driver(buf, db));
    for _ in 0..5000 {
        refused(command::ALLOC_PD, &[0; 8], &[], 8);
        refused(command::REG_MR, mr.as_bytes(), &[], 12);
        refused(command::CREATE_CQ, new_cq.as_bytes(), cq_own.as_bytes(), 16);
        refused(command::CREATE_QP, new_qp.as_bytes(), qp_own.as_bytes(), 72);
    }
    assert_eq!(rig.nic.with(|nic| format!("{nic:?}")), before);
    // If they had been created, there would be no room for more.
    rig.qp(pd, &cq).unwrap();
    rig.pd();
}

#[test]
fn invalid_cqs_are_refused() {
    let mut rig = Rig::open();
    let (buf, db) = (rig.room(1024), rig.room(8));
    let good = CreateCq::default().changed(|c| (c.cqe, c.comp_channel) = (15, -1));
    let own = cq_driver(buf, db);
    let mut make = |input: CreateCq, own: mlx5::CreateCq| {
        rig.call(&input, own.as_bytes()).map(|(resp, _)| resp.cqe)
    };
    let wrong = [
        CreateCq { cqe: 0, ..good },
        good.changed(|c| c.cqe = 1 << 22),
        good.changed(|c| c.comp_vector = 4),
    ];
    for input in wrong {
        assert_eq!(make(input, own), Err(Errno::INVAL));
    }
    let channel = good.changed(|c| c.comp_channel = 999);
    assert_eq!(make(channel, own), Err(Errno::BADF));
    let wrong = [
        own.changed(|c| c.cqe_size = 128),
        own.changed(|c| c.cqe_comp_en = 1),
        mlx5::CreateCq { flags: 4, ..own },
        mlx5::CreateCq { flags: 2, ..own },
        own.changed(|c| c.buf_addr = buf + 8),
        own.changed(|c| c.db_addr = db + 4),
    ];
    for (i, own) in wrong.into_iter().enumerate() {
        // The same for a page that does not exist (flags 2).
        let own = own.changed(|c| c.uar_page_index = 99);
        assert_eq!(make(good, own), Err(Errno::INVAL), "{i}");
    }
    let nowhere = own.changed(|c| c.buf_addr = NOWHERE & !63);
    assert_eq!(make(good, nowhere), Err(Errno::FAULT));
    assert_eq!(make(CreateCq { cqe: 4, ..good }, own), Ok(7));
}

#[test]
fn invalid_qps_are_refused() {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let cq = rig.cq(-1);
    let (buf, db) = (rig.room(1024), rig.room(8));
    let good = qp_input(pd, cq.handle);
    let own = qp_driver(buf, db);
    let mut make = |init: QpInit, own: mlx5::CreateQp| {
        let input = CreateQp { init, ..good };
        rig.call(&input, own.as_bytes()).map(drop)
    };
    let init = good.init;
    let wrong = [
        init.changed(|q| q.max_send_wr = 1 << 20),
        init.changed(|q| q.max_recv_sge = 99),
        init.changed(|q| q.max_inline_data = 4096),
        init.changed(|q| q.qp_type = 77),
    ];
    for init in wrong {
        assert_eq!(make(init, own), Err(Errno::INVAL));
    }
    let raw = QpInit { qp_type: 8, ..init };
    assert_eq!(make(raw, own), Err(Errno::OPNOTSUPP));
    let wrong = [
        mlx5::CreateQp { flags: 1, ..own },
        own.changed(|c| (c.flags, c.bfreg_index) = (1 << 10, 77)),
        own.changed(|c| c.sq_wqe_count = 3),
        own.changed(|c| c.sq_wqe_count = 1 << 16),
        own.changed(|c| c.rq_wqe_count = 3),
        own.changed(|c| c.rq_wqe_shift = 3),
        own.changed(|c| c.rq_wqe_shift = 77),
        own.changed(|c| (c.rq_wqe_count, c.rq_wqe_shift) = (1, 4)),
        own.changed(|c| c.buf_addr = buf + 16),
        own.changed(|c| c.db_addr = db + 4),
        own.changed(|c| (c.sq_wqe_count, c.rq_wqe_count) = (0, 0)),
    ];
    for (i, own) in wrong.into_iter().enumerate() {
        assert_eq!(make(init, own), Err(Errno::INVAL), "{i}");
    }
    let nowhere = own.changed(|c| c.buf_addr = NOWHERE & !63);
    assert_eq!(make(init, nowhere), Err(Errno::FAULT));
    make(init, own).unwrap();
}

#[test]
fn qp_changes_its_state_and_query_returns_it() {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let cq = rig.cq(-1);
    let qp = rig.qp(pd, &cq).unwrap();
    let ways = rig.ways(qp.handle, qp.qpn);
    assert_eq!(rig.query_qp(qp.handle).unwrap().qp_state, 0);
    // Refused: a wrong order, a missing attribute, an attribute too many.
    assert_eq!(rig.run(command::MODIFY_QP, &ways[1]), Err(Errno::INVAL));
    for way in ways {
        // All that is named here is needed, but the state, which then stays.
        let highest = 1 << way.attr_mask.ilog2();
        let few = way.changed(|m| m.attr_mask &= !highest);
        assert_eq!(rig.run(command::MODIFY_QP, &few), Err(Errno::INVAL));
        let many = way.changed(|m| m.attr_mask |= attr::QKEY);
        assert_eq!(rig.run(command::MODIFY_QP, &many), Err(Errno::INVAL));
        let invalid = ModifyQp {
            attr_mask: way.attr_mask | attr::CUR_STATE,
            cur_qp_state: 5,
            ..way
        };
        assert_eq!(rig.run(command::MODIFY_QP, &invalid), Err(Errno::INVAL));
        rig.run(command::MODIFY_QP, &way).unwrap();
        let resp = rig.query_qp(qp.handle).unwrap();
        assert_eq!(resp.qp_state, way.qp_state);
    }
    let resp = rig.query_qp(qp.handle).unwrap();
    assert_eq!((resp.dest_qp_num, resp.rq_psn, resp.sq_psn), (qp.qpn, 7, 7));
    assert_eq!((resp.timeout, resp.retry_cnt, resp.path_mtu), (14, 7, 3));
    assert_eq!((resp.max_recv_wr, resp.dest.dlid), (4, 1));
    let to = |state| ModifyQp {
        qp_handle: qp.handle,
        attr_mask: attr::STATE,
        qp_state: state,
        ..Default::default()
    };
    rig.run(command::MODIFY_QP, &to(6)).unwrap();
    assert_eq!(rig.query_qp(qp.handle).unwrap().qp_state, 6);
    rig.run(command::MODIFY_QP, &to(6)).unwrap();
    rig.run(command::MODIFY_QP, &to(0)).unwrap();
    let resp = rig.query_qp(qp.handle).unwrap();
    assert_eq!((resp.qp_state, resp.dest_qp_num), (0, 0));
    // The extended command does the same.
    let at = rig.process.memory.addr();
    let body = ways[0].as_bytes();
    let bytes = extended(command::MODIFY_QP, at, (body, &[]), (8, 0));
    rig.context.write(&bytes).unwrap();
    assert_eq!(rig.query_qp(qp.handle).unwrap().qp_state, 1);
}

#[test]
fn values_beyond_their_range_are_refused() {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let cq = rig.cq(-1);
    let qp = rig.qp(pd, &cq).unwrap();
    let [init, rtr, rts] = rig.ways(qp.handle, qp.qpn);
    let refused = |rig: &Rig, way: ModifyQp| {
        assert_eq!(rig.run(command::MODIFY_QP, &way), Err(Errno::INVAL));
    };
    refused(&rig, init.changed(|m| m.port_num = 2));
    refused(&rig, init.changed(|m| m.pkey_index = 1));
    rig.run(command::MODIFY_QP, &init).unwrap();
    let wrong = [
        ModifyQp { path_mtu: 0, ..rtr },
        ModifyQp { path_mtu: 6, ..rtr },
        rtr.changed(|m| m.dest_qp_num = 1 << 24),
        rtr.changed(|m| m.max_dest_rd_atomic = 17),
        rtr.changed(|m| m.min_rnr_timer = 32),
        rtr.changed(|m| m.dest = rtr.dest.changed(|q| q.port_num = 3)),
    ];
    for way in wrong {
        refused(&rig, way);
    }
    rig.run(command::MODIFY_QP, &rtr).unwrap();
    for way in [
        ModifyQp { timeout: 32, ..rts },
        rts.changed(|m| m.retry_cnt = 8),
        rts.changed(|m| m.rnr_retry = 8),
        rts.changed(|m| m.max_rd_atomic = 17),
    ] {
        refused(&rig, way);
    }
    rig.run(command::MODIFY_QP, &rts).unwrap();
}

#[test]
fn ethernet_ports_have_their_own_addresses() {
    let mut rig = Rig::new(LinkLayer::Ethernet, UarMode::Static);
    rig.get_context().unwrap();
    let pd = rig.pd();
    let mut attr = AhAttr::default().changed(|a| (a.port_num, a.is_global) = (1, 1));
    let mut make = |attr: AhAttr| -> Answer<CreateAhResp, mlx5::CreateAhResp> {
        let input = CreateAh::default().changed(|c| (c.pd_handle, c.attr) = (pd, attr));
        rig.call(&input, &[])
    };
    let place = Place { device: 0, port: 1 };
    let fabric = fabric(LinkLayer::Ethernet);
    (attr.grh.sgid_index, attr.grh.dgid) = (4, fabric.gids(place)[3].0);
    assert_eq!(make(attr).err(), Some(Errno::INVAL));
    attr.grh.sgid_index = 3;
    let local = attr.changed(|a| a.is_global = 0);
    assert_eq!(make(local).err(), Some(Errno::INVAL));
    assert_eq!(
        make(attr.changed(|a| a.port_num = 0)).err(),
        Some(Errno::INVAL)
    );
    let (resp, own) = make(attr).unwrap();
    assert_eq!(own.response_length, 16);
    assert_eq!(own.dmac, fabric.mac(place));
    let handle = resp.ah_handle;
    let used = rig.run(command::DEALLOC_PD, &Handle { handle: pd });
    assert_eq!(used, Err(Errno::BUSY));
    rig.run(command::DESTROY_AH, &Handle { handle }).unwrap();
    let again = rig.run(command::DESTROY_AH, &Handle { handle });
    assert_eq!(again, Err(Errno::NOENT));
    // A connection without a global route has no destination.
    let cq = rig.cq(-1);
    let qp = rig.qp(pd, &cq).unwrap();
    let [init, rtr, _] = rig.ways(qp.handle, qp.qpn);
    rig.run(command::MODIFY_QP, &init).unwrap();
    assert_eq!(rig.run(command::MODIFY_QP, &rtr), Err(Errno::INVAL));
}
