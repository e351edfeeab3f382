//! Asynchronous events: delivery on the file of a context, and the counts at the destruction of
//! objects.

mod rig;

use rig::*;
use rustix::io::Errno;
use vmlx5_uverbs::UarMode;
use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::address::LinkLayer;

const SQD: u8 = 4;
const RTS: u8 = 3;

/// A process, its file of asynchronous events, and a QP with the user's name `handle`, connected
/// with itself.
fn opened(handle: u64) -> (Rig, u32, Qp) {
    let mut rig = Rig::new(LinkLayer::InfiniBand, UarMode::Static);
    let (resp, _) = rig.get_context().unwrap();
    let pd = rig.pd();
    let cq = rig.cq(-1);
    let qp = named_qp(&mut rig, pd, &cq, handle);
    (rig, resp.async_fd, qp)
}

fn named_qp(rig: &mut Rig, pd: u32, cq: &Cq, handle: u64) -> Qp {
    let input = qp_input(pd, cq.handle).changed(|c| c.user_handle = handle);
    let (qp, _) = rig.make_qp(&input, |_| ()).unwrap();
    rig.connect(&qp, &qp);
    qp
}

/// Changes the state, with this value of the notification attribute.
fn to(rig: &Rig, qp: &Qp, state: u8, notify: Option<u8>) -> Result<usize, Errno> {
    let notified = notify.map_or(0, |_| attr::EN_SQD_ASYNC_NOTIFY);
    let cmd = ModifyQp {
        qp_handle: qp.handle,
        attr_mask: attr::STATE | notified,
        qp_state: state,
        en_sqd_async_notify: notify.unwrap_or(0),
        ..Default::default()
    };
    rig.run(command::MODIFY_QP, &cmd)
}

/// The number of events that the user must acknowledge before a QP is destroyed.
fn reported(rig: &mut Rig, qp: &Qp) -> u32 {
    let input = DestroyQp::default().changed(|d| d.qp_handle = qp.handle);
    rig.call(&input, &[]).unwrap().0.events_reported
}

#[test]
fn drained_qp_raises_an_event_on_request() {
    let (mut rig, file, qp) = opened(0xabcd);
    assert_eq!(to(&rig, &qp, 5, None), Err(Errno::INVAL));
    for (notify, events) in [(None, 0), (Some(0), 0), (Some(1), 1), (Some(1), 1)] {
        to(&rig, &qp, SQD, notify).unwrap();
        let expected = vec![(0xabcd, async_event::SQ_DRAINED); events];
        assert_eq!(delivered(&mut rig, file), expected);
        let resp = rig.query_qp(qp.handle).unwrap();
        assert_eq!((resp.qp_state, resp.sq_draining), (SQD, 0));
        to(&rig, &qp, RTS, None).unwrap();
    }
    assert_eq!(delivered(&mut rig, file), []);
    assert_eq!(reported(&mut rig, &qp), 2);
}

#[test]
fn unread_events_are_taken_back_and_not_counted() {
    let (mut rig, file, qp) = opened(0xabcd);
    // A QP whose name is the number of a port.
    let pd = rig.pd();
    let cq = rig.cq(-1);
    let other = named_qp(&mut rig, pd, &cq, 1);
    for qp in [&qp, &other, &qp] {
        to(&rig, qp, SQD, Some(1)).unwrap();
        rig.settle();
        to(&rig, qp, RTS, None).unwrap();
    }
    for up in [false, true] {
        rig.nic.with(|nic| nic.set_port(1, up)).unwrap();
    }
    rig.settle();
    assert_eq!(reported(&mut rig, &qp), 0);
    assert_eq!(reported(&mut rig, &other), 0);
    let port = [(1, async_event::PORT_ERR), (1, async_event::PORT_ACTIVE)];
    assert_eq!(delivered(&mut rig, file), port);
}

#[test]
fn every_context_receives_port_events() {
    let (mut rig, first, _) = opened(0xabcd);
    let second = rig.device.open();
    let before = std::mem::replace(&mut rig.context, second);
    let (resp, _) = rig.get_context().unwrap();
    let state = |rig: &mut Rig| {
        let cmd = QueryPort::default().changed(|q| q.port_num = 1);
        let port = rig.call(&cmd, &[]).unwrap().0;
        (port.state, port.phys_state)
    };
    assert_eq!(state(&mut rig), (4, 5));
    rig.nic.with(|nic| nic.set_port(1, false)).unwrap();
    assert_eq!(state(&mut rig), (1, 2));
    for file in [first, resp.async_fd] {
        assert_eq!(delivered(&mut rig, file), [(1, async_event::PORT_ERR)]);
    }
    // A closed context receives no event.
    drop(before);
    rig.nic.with(|nic| nic.set_port(1, true)).unwrap();
    assert_eq!(
        delivered(&mut rig, resp.async_fd),
        [(1, async_event::PORT_ACTIVE)]
    );
    assert_eq!(state(&mut rig), (4, 5));
}
