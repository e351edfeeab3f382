//! Objects that commands created are used: rights, completions, events, pages, registers.

mod rig;
mod work;

use mlx5_prm::doorbell;
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{Payload, Remote, SendWqe, Sge, WqeFlags};
use rig::*;
use rustix::io::Errno;
use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::abi::mlx5;
use vmlx5_uverbs::address::LinkLayer;
use vmlx5_uverbs::{Context, UarMode};
use work::sge;

/// A QP that is connected with itself.
fn connected(rig: &mut Rig, channel: i32) -> (Cq, Qp, u32, RegMrResp, u64) {
    let pd = rig.pd();
    let cq = rig.cq(channel);
    let qp = rig.qp(pd, &cq).unwrap();
    rig.connect(&qp, &qp);
    let data = rig.room(8192);
    let mr = rig.mr(pd, data, 8192, 0xf).unwrap();
    (cq, qp, pd, mr, data)
}

fn write_of<'a>(sges: &'a [Sge], addr: u64, mr: &RegMrResp) -> SendWqe<'a> {
    SendWqe {
        opcode: SendOpcode::RDMA_WRITE,
        flags: WqeFlags::default().changed(|w| w.signaled = true),
        remote: Some(Remote {
            addr,
            rkey: mr.rkey,
        }),
        payload: Payload::Gather(sges),
        ..SendWqe::default()
    }
}

#[test]
fn rights_change_with_the_attribute_that_names_them() {
    use attr::*;
    let mut rig = Rig::open();
    let pd = rig.pd();
    let cq = rig.cq(-1);
    let data = rig.room(8192);
    let mr = rig.mr(pd, data, 8192, 0xf).unwrap();
    let sges = [sge(&mr, data, 8)];
    let rights = |qp: &Qp, qp_state, flags| ModifyQp {
        qp_handle: qp.handle,
        attr_mask: STATE | ACCESS_FLAGS,
        qp_state,
        qp_access_flags: flags,
        ..Default::default()
    };
    // Removed in INIT, on the transition to RTR, and in RTS, where they are also restored.
    for (n, back) in [(0, false), (1, false), (2, false), (2, true)] {
        let qp = rig.qp(pd, &cq).unwrap();
        for (i, mut way) in rig.ways(qp.handle, qp.qpn).into_iter().enumerate() {
            if n == 1 && i == 1 {
                way.attr_mask |= ACCESS_FLAGS;
                way.qp_access_flags = 0;
            }
            rig.run(command::MODIFY_QP, &way).unwrap();
            if n != 1 && i == n {
                let none = rights(&qp, way.qp_state, 0);
                rig.run(command::MODIFY_QP, &none).unwrap();
            }
        }
        if back {
            rig.run(command::MODIFY_QP, &rights(&qp, 3, 0xf)).unwrap();
        }
        rig.post(&qp, 0, &write_of(&sges, data + 4096, &mr));
        rig.settle();
        // Requester and responder are one QP: a refusal as responder flushes its sends.
        let query = rig.query_qp(qp.handle).unwrap();
        assert_eq!(query.qp_state, if back { 3 } else { 6 }, "{n}");
        rig.destroy_qp(qp.handle).unwrap();
    }
}

/// The events of completions in a channel.
fn events(fd: u32) -> Vec<u64> {
    let all = messages(fd).into_iter();
    all.map(|m| u64::from_ne_bytes(m.try_into().unwrap()))
        .collect()
}

fn arm(rig: &Rig, cq: &Cq, sequence: u32, solicited: bool, ci: u32) {
    let word = doorbell::cq_arm_value(sequence, solicited, ci);
    rig.put32(cq.db + doorbell::ARM as u64, word);
    rig.ring_at(0x20);
}

#[test]
fn armed_cq_raises_one_event() {
    let mut rig = Rig::open();
    let channel = rig.channel();
    let (cq, qp, _, mr, data) = connected(&mut rig, channel as i32);
    let sges = [sge(&mr, data, 8)];
    let wqe = write_of(&sges, data, &mr);
    rig.post(&qp, 0, &wqe);
    rig.settle();
    assert_eq!(events(channel), [], "it was not armed");
    // Armed after the completion, at an earlier index: the event is raised at once. The first word
    // is zero.
    arm(&rig, &cq, 0, false, 0);
    rig.settle();
    assert_eq!(events(channel), [0xc0ffee]);
    rig.post(&qp, 1, &wqe);
    rig.settle();
    assert_eq!(events(channel), [], "it was not armed again");
    arm(&rig, &cq, 1, false, 2);
    rig.settle();
    assert_eq!(events(channel), [], "there is nothing new");
    rig.post(&qp, 2, &wqe);
    rig.settle();
    assert_eq!(events(channel), [0xc0ffee]);
    // Armed for solicited completions: this completion raises no event, but an error does.
    arm(&rig, &cq, 2, true, 3);
    rig.post(&qp, 3, &wqe);
    rig.settle();
    assert_eq!(events(channel), []);
    let wrong = [Sge { lkey: 1, ..sges[0] }];
    rig.post(&qp, 4, &write_of(&wrong, data, &mr));
    rig.settle();
    assert_eq!(events(channel), [0xc0ffee]);
    rig.destroy_qp(qp.handle).unwrap();
    let resp = rig.destroy_cq(cq.handle).unwrap();
    assert_eq!(resp.comp_events_reported, 3);
}

#[test]
fn unread_events_are_not_counted() {
    let mut rig = Rig::open();
    let channel = rig.channel();
    let (cq, qp, pd, mr, data) = connected(&mut rig, channel as i32);
    let other = rig.cq(channel as i32);
    let second = rig.qp(pd, &other).unwrap();
    rig.connect(&second, &second);
    let sges = [sge(&mr, data, 8)];
    arm(&rig, &cq, 0, false, 0);
    arm(&rig, &other, 0, false, 0);
    rig.post(&qp, 0, &write_of(&sges, data, &mr));
    rig.post(&second, 0, &write_of(&sges, data, &mr));
    rig.settle();
    rig.destroy_qp(qp.handle).unwrap();
    // Both CQs have the same user handle here, so the first takes back both events.
    assert_eq!(rig.destroy_cq(cq.handle).unwrap().comp_events_reported, 0);
    assert_eq!(events(channel), []);
}

fn alloc_page(rig: &Rig) -> Result<(u32, u64, u32), Errno> {
    let out = rig.process.memory.addr() + 2048;
    let attrs = [
        (0x1000, 0, 0),
        (0x1001, 8, 0),
        (0x1002, 8, out),
        (0x1003, 4, out + 8),
        (0x1004, 4, out + 16),
    ];
    let at = rig.ioctl(0x1008, 0x1000, &attrs)?;
    assert_eq!(rig.read::<u32>(out + 8), 4096);
    Ok((rig.read(at + 24 + 8), rig.read(out), rig.read(out + 16)))
}

#[test]
fn pages_one_by_one() {
    let mut rig = Rig::new(LinkLayer::InfiniBand, UarMode::Dynamic);
    assert_eq!(alloc_page(&rig).err(), Some(Errno::INVAL), "not open yet");
    rig.get_context().unwrap();
    let (handle, offset, page) = alloc_page(&rig).unwrap();
    let mapping = rig.context.map(offset, 4096).unwrap();
    assert_eq!(rustix::fs::fstat(&mapping).unwrap().st_size, 4096);
    assert_eq!(rig.context.map(offset, 8192).err(), Some(Errno::INVAL));
    assert_eq!(
        rig.context.map(offset + 4096, 4096).err(),
        Some(Errno::INVAL)
    );
    // A page with a QP on it stays.
    let pd = rig.pd();
    let cq = rig.cq(-1);
    let mut make = |page| -> Result<u32, Errno> {
        let flags = mlx5::qp_flag::UAR_PAGE_INDEX;
        let named = |c: &mut mlx5::CreateQp| (c.flags, c.bfreg_index) = (flags, page);
        let made = rig.make_qp(&qp_input(pd, cq.handle), named);
        made.map(|(qp, _)| qp.handle)
    };
    assert_eq!(make(page + 1).err(), Some(Errno::INVAL));
    let qp = make(page).unwrap();
    let destroy = |rig: &Rig| rig.ioctl(0x1008, 0x1001, &[(0x1000, 0, handle.into())]);
    assert_eq!(destroy(&rig).err(), Some(Errno::BUSY));
    rig.destroy_qp(qp).unwrap();
    destroy(&rig).unwrap();
    assert_eq!(destroy(&rig).err(), Some(Errno::NOENT));
    assert_eq!(rig.context.map(offset, 4096).err(), Some(Errno::INVAL));
}

#[test]
fn unknown_ioctls_are_refused() {
    let rig = Rig::open();
    for (object, method) in [(0, 1), (0, 3), (0x1000, 0x1003), (7, 0), (0x1008, 0x1002)] {
        let done = rig.ioctl(object, method, &[]);
        assert_eq!(
            done.err(),
            Some(Errno::PROTONOSUPPORT),
            "{object:#x}.{method:#x}"
        );
    }
    assert_eq!(rig.context.ioctl(NOWHERE), Err(Errno::FAULT));
    let foreign = [(0x1000, 0, 0), (0x77, 0, 0)];
    let done = rig.ioctl(0x1008, 0x1001, &foreign);
    assert_eq!(done.err(), Some(Errno::PROTONOSUPPORT));
    assert_eq!(rig.ioctl(0x1008, 0x1000, &[]).err(), Some(Errno::INVAL));
    let large = [(0x1000, 0, 0), (0x1001, 9, 0)];
    assert_eq!(rig.ioctl(0x1008, 0x1000, &large).err(), Some(Errno::INVAL));
    // The header must contain its length.
    let at = rig.process.memory.addr();
    rig.put(at, &[1, 0]);
    assert_eq!(rig.context.ioctl(at), Err(Errno::INVAL));
}

#[test]
fn pages_all_at_once() {
    let rig = Rig::open();
    let page = |command: u64, index: u64| 4096 * (command << 8 | index & 0xff | (index >> 8) << 16);
    for index in 0..8 {
        rig.context.map(page(0, index), 4096).unwrap();
    }
    rig.context.map(page(2, 7), 4096).unwrap();
    let refused = |offset| rig.context.map(offset, 4096).err() == Some(Errno::INVAL);
    assert!(refused(page(0, 8)));
    assert!(refused(page(3, 0)));
    assert!(refused(page(5, 0)));
    assert!(refused(page(7, 0)));
    assert!(refused(u64::MAX));
    // The additional pages are counted from zero.
    rig.context.map(page(6, 0), 4096).unwrap();
    rig.context.map(page(6, 255), 4096).unwrap();
    assert!(refused(page(6, 256)));
}

#[test]
fn qps_have_separate_registers_as_long_as_any_is_free() {
    let mut rig = Rig::open();
    let pd = rig.pd();
    let cq = rig.cq(-1);
    let qps: Vec<Qp> = (0..18).map(|_| rig.qp(pd, &cq).unwrap()).collect();
    let names: Vec<u32> = qps.iter().map(|qp| qp.bfreg).collect();
    // Four registers without a lock in the library, then eleven shared ones in turn, then these
    // again.
    assert_eq!(names[..4], [24, 25, 28, 29]);
    assert_eq!(names[4..15], [1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21]);
    assert_eq!(names[15..], [1, 4, 5]);
    rig.destroy_qp(qps[2].handle).unwrap();
    assert_eq!(rig.qp(pd, &cq).unwrap().bfreg, 28);
}

#[test]
fn closed_file_leaves_no_objects() {
    let mut rig = Rig::open();
    // More than the limit of PDs and CQs, if any were left.
    for _ in 0..300 {
        connected(&mut rig, -1);
        let next = rig.device.open();
        drop::<Context>(std::mem::replace(&mut rig.context, next));
        rig.forget_room();
        rig.get_context().unwrap();
    }
    let channel = rig.channel();
    connected(&mut rig, channel as i32);
    assert!(rig.device.has_targets());
    let next = rig.device.open();
    drop::<Context>(std::mem::replace(&mut rig.context, next));
    assert!(!rig.device.has_targets());
}
