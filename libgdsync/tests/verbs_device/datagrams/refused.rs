//! Requests that datagrams do not support, and invalid destinations.

use gdsync::gpu::MemoryKind;
use gdsync::rdma::{GRH, Pd, PortAddress, QpConfig, Source, Transport, Work};

use super::*;

/// As in the tests of the whole path, without a text.
#[track_caller]
fn refused<T>(result: gdsync::Result<T>, kind: Kind, limit: Option<u64>) {
    crate::common::refused(result, kind, limit, &[]);
}

pub fn invalid_datagram_requests_are_refused(open: Open) {
    let config = QpConfig::default();
    let mut e = Ends::new(open, &config, 1);
    let memory = e.memory(MemoryKind::Pinned, 8192);
    let to = e.to(0);
    let list = [memory.sge(0, 8)];
    let span = memory.remote().span(0, 8).unwrap();
    let send = Work::send(&list);
    let qp = &mut e.qps[0];
    assert_eq!(qp.transport(), Transport::Ud { qkey: QKEY });
    let invalid = Kind::Invalid;
    refused(qp.activate(), Kind::WrongState, None);
    refused(qp.prepare(&send), invalid, None);
    for other in [
        Work::write(&list, span),
        Work::write(&list, span).with_imm(1),
        Work::read(&list, span),
        Work::fetch_add(&list, span, 1),
        Work::compare_swap(&list, span, 1, 2),
    ] {
        refused(qp.prepare(&other), invalid, None);
        refused(qp.prepare(&other.to(&to)), invalid, None);
    }
    // One byte more than the packet holds, in registered memory and in the entry.
    let most = to.max_len();
    let long = [memory.sge(0, most), memory.sge(0, 1)];
    let limit = Some(u64::from(most));
    refused(qp.prepare(&Work::send(&long).to(&to)), invalid, limit);
    let text = vec![0; most as usize + 1];
    let pieces = [text.as_slice()];
    refused(
        qp.prepare(&Work::send_inline(&pieces).to(&to)),
        invalid,
        limit,
    );

    // A connection, before and after it is connected.
    let mut rc = e.pd.create_qp(&config).unwrap();
    assert_eq!((rc.transport(), rc.address().qkey), (Transport::Rc, None));
    refused(rc.activate(), invalid, None);
    refused(rc.connect(&e.qps[0].address()), invalid, None);
    refused(e.qps[0].connect(&rc.address()), invalid, None);
    rc.connect(&rc.address()).unwrap();
    refused(rc.prepare(&send.to(&to)), invalid, None);
    refused(e.pd.destination(&rc.address()), invalid, None);

    // Before activation only receives are possible.
    let mut new = e.pd.create_qp(&ud(&config, QKEY)).unwrap();
    refused(new.prepare(&send.to(&to)), Kind::WrongState, None);
    let recv = new.receive(&[memory.sge(4096, 100)]);
    new.activate().unwrap();
    let there = e.pd.destination(&new.address()).unwrap();
    e.send(0, &send.to(&there));
    new.wait(recv, LIMIT).unwrap();

    // Keys reserved for the system, and destinations of another device.
    let limit = Some(0x7fff_ffff);
    refused(e.pd.create_qp(&ud(&config, 1 << 31)), invalid, limit);
    let other: Pd = e.pd.device().alloc_pd().unwrap();
    let foreign = other.destination(&new.address()).unwrap();
    refused(e.qps[0].prepare(&send.to(&foreign)), Kind::Foreign, None);
    assert!(foreign.is_of(&other) && !foreign.is_of(&e.pd));
}

pub fn wrong_destinations_are_refused(open: Open) {
    let e = Ends::new(open, &QpConfig::default(), 1);
    let good = e.qps[0].address();
    let with = |port| good.port(port);
    let real = good
        .port
        .unwrap_or(PortAddress::default().lid(1).mtu(5).gid([1; 16]));
    let invalid = Kind::Invalid;
    let name = |address| e.pd.destination(&address);
    let wide = good.qpn(1 << 24);
    refused(name(wide), invalid, Some(0xff_ffff));
    let qkey = Some(1 << 31);
    refused(name(good.qkey(qkey)), invalid, Some(0x7fff_ffff));
    for mtu in [0, 6, 255] {
        refused(name(with(real.mtu(mtu))), invalid, Some(5));
    }
    let gid = [0x60; GRH];
    let source = Source {
        qpn: good.qpn,
        lid: real.lid,
        service_level: 0,
        grh: true,
    };
    // No header, though the source promises one.
    refused(
        e.pd.answer_to(&source, &[0; GRH], QKEY),
        Kind::Protocol,
        None,
    );
    match good.port {
        None => {
            refused(name(with(real)), invalid, None);
            let bare = Source {
                grh: false,
                ..source
            };
            refused(e.pd.answer_to(&bare, &gid, QKEY), invalid, None);
        }
        Some(port) => {
            refused(name(good.port(None)), invalid, None);
            let lid = u16::from(port.lid == 0);
            refused(name(with(port.lid(lid))), invalid, None);
            // Both ends accept the smaller of the two packet sizes.
            let small = name(with(port.mtu(2))).unwrap();
            assert_eq!(small.max_len(), 512);
            if port.lid == 0 {
                let bare = Source {
                    grh: false,
                    ..source
                };
                refused(e.pd.answer_to(&bare, &gid, QKEY), invalid, None);
            }
        }
    }
}
