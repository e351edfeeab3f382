//! Shared receive queues by commands: creation, destruction, references to them, and refusals.

mod rig;
mod work;

use mlx5_prm::doorbell;
use rig::*;
use rustix::io::Errno;
use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::abi::mlx5;
use zerocopy::IntoBytes;

const LIMIT: u32 = 2;

fn valid_srq(pd: u32) -> CreateSrq {
    CreateSrq {
        user_handle: 0xbeef,
        pd_handle: pd,
        max_wr: 3,
        max_sge: 1,
        srq_limit: 2,
        ..Default::default()
    }
}

fn create(
    rig: &mut Rig,
    cmd: &CreateSrq,
    own: &mlx5::CreateSrq,
) -> Answer<CreateSrqResp, mlx5::CreateSrqResp> {
    rig.call(cmd, own.as_bytes())
}

struct Srq {
    handle: u32,
    db: u64,
}

/// Four entries of 32 bytes, three of which can be posted; linked as the library does.
fn srq(rig: &mut Rig, pd: u32) -> Srq {
    let (buf, db) = (rig.room(4 * 32), rig.room(8));
    for entry in 0..3_u64 {
        let next = (entry as u16 + 1).to_be_bytes();
        rig.put(buf + entry * 32 + 2, &next);
    }
    let own = mlx5::CreateSrq {
        buf_addr: buf,
        db_addr: db,
        uidx: 0xff,
        ..Default::default()
    };
    let (resp, _) = create(rig, &valid_srq(pd), &own).unwrap();
    assert_eq!((resp.max_wr, resp.max_sge, resp.srqn), (3, 1, 0));
    Srq {
        handle: resp.srq_handle,
        db,
    }
}

fn modify(rig: &Rig, handle: u32, attr_mask: u32, srq_limit: u32) -> Result<usize, Errno> {
    let cmd = ModifySrq {
        srq_handle: handle,
        attr_mask,
        max_wr: 7,
        srq_limit,
    };
    rig.run(command::MODIFY_SRQ, &cmd)
}

fn query(rig: &mut Rig, handle: u32) -> Result<QuerySrqResp, Errno> {
    let cmd = QuerySrq::default().changed(|q| q.srq_handle = handle);
    rig.call(&cmd, &[]).map(|(resp, ())| resp)
}

fn destroy(rig: &mut Rig, handle: u32) -> Result<DestroySrqResp, Errno> {
    let cmd = DestroySrq::default().changed(|d| d.srq_handle = handle);
    rig.call(&cmd, &[]).map(|(resp, ())| resp)
}

/// A QP that takes its receives from the SRQ; its whole buffer is for sends.
fn qp_on(rig: &mut Rig, pd: u32, cq: &Cq, srq: u32) -> Result<(Qp, CreateQpResp), Errno> {
    let mut input = qp_input(pd, cq.handle);
    (input.init.is_srq, input.init.srq_handle) = (1, srq);
    rig.make_qp(&input, |_| ())
}

#[test]
fn invalid_srqs_are_refused_at_creation() {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let (buf, db) = (rig.room(4096), rig.room(8));
    let good = mlx5::CreateSrq::default().changed(|c| (c.buf_addr, c.db_addr) = (buf, db));
    type Spoil = fn(&mut CreateSrq, &mut mlx5::CreateSrq);
    let cases: [(Spoil, Errno); 12] = [
        (|a, _| a.pd_handle = 77, Errno::INVAL),
        (|a, _| a.max_wr = 1 << 15, Errno::INVAL),
        (|a, _| a.max_wr = !0, Errno::INVAL),
        (|a, _| a.max_sge = 32, Errno::INVAL),
        (|a, _| a.max_sge = !0, Errno::INVAL),
        // A signature, and what is reserved.
        (|_, o| o.flags = 1, Errno::INVAL),
        (|_, o| o.reserved0 = 1, Errno::INVAL),
        (|_, o| o.reserved1 = 1, Errno::INVAL),
        (|_, o| o.uidx = 1 << 24, Errno::INVAL),
        (|_, o| o.buf_addr += 8, Errno::INVAL),
        (|_, o| o.db_addr += 4, Errno::INVAL),
        (|_, o| o.buf_addr = NOWHERE, Errno::FAULT),
    ];
    for (i, (spoil, errno)) in cases.iter().enumerate() {
        let (mut a, mut o) = (valid_srq(pd), good);
        spoil(&mut a, &mut o);
        assert_eq!(create(&mut rig, &a, &o).err(), Some(*errno), "case {i}");
    }
    let nowhere = good.changed(|c| c.db_addr = NOWHERE & !7);
    assert_eq!(
        create(&mut rig, &valid_srq(pd), &nowhere).err(),
        Some(Errno::FAULT)
    );
    // Too short for the driver's part, or without room for an answer.
    let short = rig.call(&valid_srq(pd), &good.as_bytes()[..16]);
    assert_eq!(short.err(), Some(Errno::INVAL));
    let mut body = valid_srq(pd).as_bytes().to_vec();
    body.extend_from_slice(good.as_bytes());
    let tight = plain(command::CREATE_SRQ, &body, 12);
    assert_eq!(rig.context.write(&tight), Err(Errno::NOSPC));
    // An unwritable answer creates nothing.
    body[..8].copy_from_slice(&NOWHERE.to_ne_bytes());
    let lost = plain(command::CREATE_SRQ, &body, 24);
    assert_eq!(rig.context.write(&lost), Err(Errno::FAULT));
    let handle = Handle { handle: pd };
    rig.run(command::DEALLOC_PD, &handle).unwrap();
}

#[test]
fn srq_is_modified_queried_and_destroyed() {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let srq = srq(&mut rig, pd);
    let held = QuerySrqResp {
        max_wr: 3,
        max_sge: 1,
        srq_limit: 0,
        reserved: 0,
    };
    // The limit at creation is ignored.
    assert_eq!(query(&mut rig, srq.handle), Ok(held));
    // The record has a count of three receives.
    rig.put32(srq.db, doorbell::record_value(3));
    modify(&rig, srq.handle, LIMIT, 3).unwrap();
    let limited = held.changed(|q| q.srq_limit = 3);
    assert_eq!(query(&mut rig, srq.handle), Ok(limited));
    // Without an attribute nothing changes. Refused: resizing, alone or not, and a limit above its
    // size.
    modify(&rig, srq.handle, 0, 1).unwrap();
    assert_eq!(modify(&rig, srq.handle, 1, 1), Err(Errno::INVAL));
    assert_eq!(modify(&rig, srq.handle, 1 | LIMIT, 1), Err(Errno::INVAL));
    assert_eq!(modify(&rig, srq.handle, LIMIT, 4), Err(Errno::INVAL));
    assert_eq!(modify(&rig, srq.handle, LIMIT, 1 << 16), Err(Errno::INVAL));
    assert_eq!(query(&mut rig, srq.handle), Ok(limited));
    // Objects of other kinds, and none.
    assert_eq!(modify(&rig, pd, LIMIT, 1), Err(Errno::INVAL));
    assert_eq!(query(&mut rig, pd).err(), Some(Errno::INVAL));
    assert_eq!(query(&mut rig, 99).err(), Some(Errno::INVAL));
    assert_eq!(destroy(&mut rig, pd).err(), Some(Errno::INVAL));
    assert_eq!(destroy(&mut rig, 99).err(), Some(Errno::NOENT));
    // The PD is in use.
    let handle = Handle { handle: pd };
    assert_eq!(rig.run(command::DEALLOC_PD, &handle), Err(Errno::BUSY));
    assert_eq!(destroy(&mut rig, srq.handle).unwrap().events_reported, 0);
    assert_eq!(destroy(&mut rig, srq.handle).err(), Some(Errno::NOENT));
    rig.run(command::DEALLOC_PD, &handle).unwrap();
}

#[test]
fn qps_refer_to_an_srq_and_keep_it_alive() {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let srq = srq(&mut rig, pd);
    let cq = rig.cq(-1);
    assert_eq!(qp_on(&mut rig, pd, &cq, 99).err(), Some(Errno::INVAL));
    assert_eq!(qp_on(&mut rig, pd, &cq, pd).err(), Some(Errno::INVAL));
    let (qp, resp) = qp_on(&mut rig, pd, &cq, srq.handle).unwrap();
    // The attributes of a separate receive queue are ignored.
    assert_eq!((resp.max_send_wr, resp.max_recv_wr), (4, 0));
    assert_eq!(rig.query_qp(qp.handle).unwrap().max_recv_wr, 0);
    assert_eq!(destroy(&mut rig, srq.handle).err(), Some(Errno::BUSY));
    rig.destroy_qp(qp.handle).unwrap();
    destroy(&mut rig, srq.handle).unwrap();
}
