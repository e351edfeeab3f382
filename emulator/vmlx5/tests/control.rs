//! Control operations: states, limits, and refusals.

mod rig;

use std::sync::Arc;

use gds_step::Machine;
use mlx5_prm::syndrome::Syndrome;
use rig::*;
use vmlx5::*;

#[test]
fn only_valid_transitions_are_accepted() {
    let mut world = World::new(1);
    let a = world.end(0, EndConfig::default());
    let node = world.node(&a);
    let access = remote_rights();
    let ways = [
        Modify::Reset,
        init(access),
        rtr(Path::to(node, a.qpn), 0, 1, 12),
        rts(0, 1),
        Modify::Sqd,
        Modify::Error,
        Modify::Resume,
        Modify::Attr(AttrChange::default()),
    ];
    // From each state (the first `n` transitions of RESET, INIT, RTR, RTS, SQD; 5 is ERR).
    let allowed = [
        [true, true, false, false, false, false, false, false],
        [true, true, true, false, false, true, false, true],
        [true, false, false, true, false, true, false, true],
        [true, false, false, false, true, true, false, true],
        [true, false, false, false, false, true, true, true],
        [true, false, false, false, false, true, false, false],
    ];
    for (n, row) in allowed.iter().enumerate() {
        for (way, &ok) in ways.iter().zip(row) {
            world.modify(&a, Modify::Reset);
            for step in &ways[1..n.min(4) + 1] {
                world.modify(&a, *step);
            }
            if n == 5 {
                world.modify(&a, Modify::Error);
            }
            let from = world.state(&a);
            let result = world.nics[0].modify_qp(a.qpn, *way);
            if ok {
                assert_eq!(result, Ok(()));
                let stays = matches!(way, Modify::Attr(_));
                let to = if stays { from } else { way.target() };
                assert_eq!(world.state(&a), to);
            } else {
                let to = way.target();
                let qpn = a.qpn.0;
                assert_eq!(result, Err(NicError::Transition { qpn, from, to }));
                assert_eq!(world.state(&a), from);
            }
            world.settle();
        }
    }
}

#[test]
fn invalid_control_operations_are_refused() {
    let mut world = World::new(1);
    let a = world.end(0, EndConfig::default());
    let nic = &mut world.nics[0];
    let mem: Arc<dyn Dma> = Arc::new(HostMemory::new(1 << 16));
    let mr = MrAttr {
        pd: a.pd,
        va: 0x1000,
        len: 4096,
        access: Access::LOCAL_WRITE,
        mem: mem.clone(),
        mem_offset: 0,
    };
    let span = |r: Result<MrKeys, NicError>| {
        assert!(
            matches!(
                r,
                Err(NicError::Span {
                    object: Object::Mr,
                    ..
                })
            ),
            "{r:?}"
        );
    };
    span(nic.reg_mr(mr.clone().changed(|m| m.len = 0)));
    span(nic.reg_mr(mr.clone().changed(|m| m.mem_offset = 61441)));
    span(nic.reg_mr(mr.clone().changed(|m| m.mem_offset = u64::MAX)));
    span(nic.reg_mr(mr.clone().changed(|m| m.va = u64::MAX - 4094)));
    for access in [
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC | Access::REMOTE_READ,
    ] {
        let r = nic.reg_mr(mr.clone().changed(|m| m.access = access));
        assert!(matches!(r, Err(NicError::Access { .. })));
    }
    assert_eq!(Access::from_bits(0x31), Err(0x30));
    let r = nic.alloc_uar(mem.clone(), 8);
    assert!(matches!(
        r,
        Err(NicError::Span {
            object: Object::Uar,
            align: 4096,
            ..
        })
    ));
    assert!(nic.alloc_uar(mem.clone(), 1 << 16).is_err());
    let cq = CqAttr::new(mem.clone(), 0, 4);
    assert_eq!(
        nic.create_cq(cq.clone().changed(|c| c.ignore_overrun = false)),
        Err(NicError::NoRecord)
    );
    let r = nic.create_cq(cq.clone().changed(|c| c.log_entries = 23));
    assert!(matches!(
        r,
        Err(NicError::Limit {
            what: "log_entries",
            value: 23,
            limit: 22,
            ..
        })
    ));
    assert!(matches!(
        nic.create_cq(cq.clone().changed(|c| c.log_entries = 11)),
        Err(NicError::Span {
            object: Object::Cq,
            ..
        })
    ));
    let cqn = nic.create_cq(cq).unwrap();
    let sq = SqAttr {
        mem: mem.clone(),
        offset: 0,
        log_blocks: 4,
    };
    let qp = QpAttr {
        rq: Some(RqAttr {
            mem: mem.clone(),
            offset: 4096,
            log_entries: 4,
            stride: 16,
        }),
        ..QpAttr::new(a.pd, a.uar, cqn, sq, (mem.clone(), 8192))
    };
    let mut refused = |change: &dyn Fn(&mut QpAttr)| {
        let mut attr = qp.clone();
        change(&mut attr);
        nic.create_qp(attr).unwrap_err()
    };
    let limit = |what, value, limit| NicError::Limit {
        object: Object::Qp,
        what,
        value,
        limit,
    };
    assert_eq!(
        refused(&|q| q.sq.log_blocks = 16),
        limit("sq.log_blocks", 16, 15)
    );
    let log_entries = limit("rq.log_entries", 16, 15);
    assert_eq!(
        refused(&|q| q.rq.as_mut().unwrap().log_entries = 16),
        log_entries
    );
    for stride in [0, 8, 24, 1024] {
        let error = refused(&|q| q.rq.as_mut().unwrap().stride = stride);
        assert!(
            matches!(error, NicError::Limit { value, limit: 512, .. } if value == stride.into())
        );
    }
    assert!(matches!(
        refused(&|q| q.sq.offset = 16),
        NicError::Span { align: 64, .. }
    ));
    assert!(matches!(
        refused(&|q| q.record.1 = 4),
        NicError::Span { align: 8, .. }
    ));
    assert!(matches!(
        refused(&|q| q.sq.offset = 65536 - 64),
        NicError::Span { .. }
    ));
    let unknown = |object, number| NicError::Unknown { object, number };
    assert_eq!(refused(&|q| q.send_cq = Cqn(1)), unknown(Object::Cq, 1));
    let qpn = nic.create_qp(qp).unwrap();
    // The objects are in use; then each can be removed once.
    let users = |object, number| NicError::InUse {
        object,
        number,
        users: 2,
    };
    assert_eq!(nic.destroy_cq(cqn), Err(users(Object::Cq, cqn.0)));
    assert!(matches!(
        nic.free_uar(a.uar),
        Err(NicError::InUse { users: 2, .. })
    ));
    assert!(matches!(
        nic.dealloc_pd(a.pd),
        Err(NicError::InUse { users: 3, .. })
    ));
    let remote = nic.node();
    let over = nic.modify_qp(qpn, init(Access::LOCAL_WRITE));
    assert!(matches!(
        over,
        Err(NicError::Access {
            object: Object::Qp,
            ..
        })
    ));
    nic.modify_qp(qpn, init(Access::NONE)).unwrap();
    let to = |remote_qpn, psn, reads, rnr| rtr(Path::to(remote, remote_qpn), psn, reads, rnr);
    let init_on = |port| Modify::Init {
        access: Access::NONE,
        qkey: 0,
        port,
    };
    let wide = 1 << 24;
    for (change, what) in [
        (to(Qpn(wide), 0, 1, 0), "remote_qpn"),
        (to(qpn, wide, 1, 0), "rq_psn"),
        (to(qpn, 0, 17, 0), "max_dest_rd_atomic"),
        (to(qpn, 0, 1, 32), "min_rnr_timer"),
        (init_on(2), "port (from 1)"),
        (init_on(0), "port (from 1)"),
    ] {
        let error = nic.modify_qp(qpn, change).unwrap_err();
        assert!(
            matches!(error, NicError::Limit { what: w, .. } if w == what),
            "{error}"
        );
        assert_eq!(nic.query_qp(qpn).unwrap().state, QpState::Init);
    }
    nic.modify_qp(qpn, to(qpn, 0, 1, 31)).unwrap();
    let rts = |sq_psn, max_rd_atomic, timeout, retry_cnt, rnr_retry| Modify::Rts {
        sq_psn,
        max_rd_atomic,
        timeout,
        retry_cnt,
        rnr_retry,
    };
    for (change, what) in [
        (rts(wide, 1, 0, 0, 0), "sq_psn"),
        (rts(0, 17, 0, 0, 0), "max_rd_atomic"),
        (rts(0, 1, 32, 0, 0), "timeout"),
        (rts(0, 1, 0, 8, 0), "retry_cnt"),
        (rts(0, 1, 0, 0, 8), "rnr_retry"),
    ] {
        let error = nic.modify_qp(qpn, change).unwrap_err();
        assert!(
            matches!(error, NicError::Limit { what: w, .. } if w == what),
            "{error}"
        );
        assert_eq!(nic.query_qp(qpn).unwrap().state, QpState::Rtr);
    }
    nic.destroy_qp(qpn).unwrap();
    assert_eq!(nic.destroy_qp(qpn), Err(unknown(Object::Qp, qpn.0)));
    assert_eq!(nic.query_qp(qpn), Err(unknown(Object::Qp, qpn.0)));
    nic.destroy_cq(cqn).unwrap();
    assert_eq!(nic.query_cq(cqn), Err(unknown(Object::Cq, cqn.0)));
    nic.destroy_qp(a.qpn).unwrap();
    nic.free_uar(a.uar).unwrap();
    assert!(nic.free_uar(a.uar).is_err());
    nic.dereg_mr(a.keys.lkey).unwrap();
    nic.dealloc_pd(a.pd).unwrap();
    assert!(nic.dealloc_pd(a.pd).is_err());
    assert!(nic.reg_mr(mr).is_err(), "its domain was removed");
}

#[test]
fn objects_above_the_limit_are_refused() {
    let hub = fabric::hub::Hub::new(Default::default());
    let config = NicConfig {
        log_max_pd: 1,
        log_max_mr: 2,
        log_max_uar: 0,
        log_max_cq: 0,
        ..NicConfig::default()
    };
    let mut nic = Nic::new(config, Box::new(hub.port()));
    let full = |object, limit| NicError::Full { object, limit };
    let pd = nic.alloc_pd().unwrap();
    nic.alloc_pd().unwrap();
    assert_eq!(nic.alloc_pd(), Err(full(Object::Pd, 2)));
    let mem: Arc<dyn Dma> = Arc::new(HostMemory::new(8192));
    let mr = MrAttr {
        pd,
        va: 0,
        len: 8,
        access: Access::NONE,
        mem: mem.clone(),
        mem_offset: 0,
    };
    for _ in 0..4 {
        nic.reg_mr(mr.clone()).unwrap();
    }
    assert_eq!(nic.reg_mr(mr), Err(full(Object::Mr, 4)));
    nic.alloc_uar(mem.clone(), 0).unwrap();
    assert_eq!(nic.alloc_uar(mem, 4096), Err(full(Object::Uar, 1)));
}

#[test]
fn queue_pair_without_receive_queue_refuses_sends() {
    let (mut world, a, _b) = World::connected();
    let mut c = world.end(0, EndConfig::default());
    let uar = a.uar;
    let nic = &mut world.nics[0];
    let sq = SqAttr {
        mem: a.mem.clone(),
        offset: a.sq_at,
        log_blocks: 2,
    };
    let record = a.record + 192;
    let d = nic.create_qp(QpAttr {
        recv_cq: a.recv.cqn,
        ..QpAttr::new(a.pd, uar, a.send.cqn, sq, (a.mem.clone(), record))
    });
    let d = d.unwrap();
    let node = nic.node();
    for (x, y) in [(d, c.qpn), (c.qpn, d)] {
        let access = remote_rights();
        nic.modify_qp(x, init(access)).unwrap();
        nic.modify_qp(x, rtr(Path::to(node, y), 0, 1, 12)).unwrap();
        nic.modify_qp(x, rts(0, 1)).unwrap();
    }
    let w = c.post(&write(a.remote(0), &[c.sge(0, 8)]));
    let s = c.run(&mut world, &send(&[]));
    c.sent(w);
    c.send_failed(s, Syndrome::REMOTE_INVAL_REQ);
}

#[test]
fn nic_has_its_name_in_traces() {
    let world = World::new(1);
    assert_eq!(world.nics[0].name(), "nic0");
    assert_eq!(world.links.name(), "hub.links");
}
