//! Devices over TCP on the loopback interface, and two queue pairs whose connection goes through a
//! proxy.

#![allow(dead_code, reason = "each test uses a part")]

pub mod proxy;
pub mod speaker;
mod traffic;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use gdsync::rdma::{PortAddress, QpAddress, TcpOptions};

use crate::common::*;
use proxy::Proxy;

/// The key of the job.
pub const KEY: [u8; 32] = [7; 32];
/// Bytes of each side's memory.
pub const MEMORY: usize = 4096;
/// Statuses of requests and receives of a connection that has ended.
pub const LOST: [Status; 3] = [Status::TRANSPORT_RETRY, Status::FLUSHED, Status::CANCELLED];

pub fn options() -> TcpOptions {
    let loopback = IpAddr::from([127, 0, 0, 1]);
    TcpOptions::default().address(loopback).key(KEY)
}

pub fn device(gpu: &Gpu, encrypted: bool) -> Device {
    Device::tcp(gpu, options().encrypted(encrypted)).unwrap()
}

/// Where the device of a queue pair accepts connections.
pub fn socket(address: &QpAddress) -> SocketAddr {
    let port = address.port.unwrap();
    SocketAddr::new(Ipv6Addr::from(port.gid).to_canonical(), port.lid)
}

/// The address of a queue pair to which another device leads.
pub fn through(address: QpAddress, proxy: SocketAddr) -> QpAddress {
    let IpAddr::V4(ip) = proxy.ip() else {
        panic!("of IPv4");
    };
    let port = PortAddress::default()
        .lid(proxy.port())
        .gid(ip.to_ipv6_mapped().octets());
    address.port(port)
}

/// One side of a connection.
pub struct Side {
    pub qp: Qp,
    pub mem: Mr,
}

impl Side {
    pub fn new(device: &Device, config: &QpConfig) -> Side {
        Side::with(device, config, MemoryKind::Pinned, MEMORY)
    }

    pub fn with(device: &Device, config: &QpConfig, kind: MemoryKind, len: usize) -> Side {
        let pd = device.alloc_pd().unwrap();
        let qp = pd.create_qp(config).unwrap();
        let mem = memory(&pd, kind, len, Access::ALL);
        Side { qp, mem }
    }

    fn put(&self, at: usize, value: u64) {
        self.mem.region().write(at, &value.to_le_bytes()).unwrap();
    }

    fn get(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.mem.region().bytes(at))
    }

    /// Posts a request; the status of the queue pair if that is in error.
    fn post(&mut self, work: &Work<'_>) -> Result<SendRequest, Status> {
        let failed = |e: gdsync::Error| match e.kind() {
            Kind::Failed(status) => status,
            _ => panic!("{e}"),
        };
        let send = self.qp.prepare(&work.signaled()).map_err(failed)?;
        self.qp.post(send).map_err(failed)?;
        Ok(send)
    }
}

/// The status of a request or a receive that must end.
pub fn end(qp: &mut Qp, request: impl Into<gdsync::rdma::Completion>, what: &str) -> Status {
    match qp.wait(request, LIMIT) {
        Ok(()) => Status::SUCCESS,
        Err(e) => match e.kind() {
            Kind::Failed(status) => status,
            _ => panic!("{what}: {e}"),
        },
    }
}

/// Two queue pairs of two devices; `a` connects, through the proxy.
pub struct Couple {
    pub a: Side,
    pub b: Side,
    pub devices: [Device; 2],
    pub proxy: Proxy,
}

impl Couple {
    /// Not connected yet.
    pub fn new(gpu: &Gpu, encrypted: bool, config: &QpConfig) -> Couple {
        let devices = [(); 2].map(|()| device(gpu, encrypted));
        Couple::of(devices, config)
    }

    pub fn of(devices: [Device; 2], config: &QpConfig) -> Couple {
        Couple::with(devices, config, MemoryKind::Pinned, MEMORY)
    }

    pub fn with(
        mut devices: [Device; 2],
        config: &QpConfig,
        kind: MemoryKind,
        len: usize,
    ) -> Couple {
        let side = |device| Side::with(device, config, kind, len);
        let mut sides = devices.each_ref().map(side);
        // The side with the smaller number connects.
        if sides[0].qp.address().node > sides[1].qp.address().node {
            sides.reverse();
            devices.reverse();
        }
        let [a, b] = sides;
        let proxy = Proxy::to(socket(&b.qp.address()));
        Couple {
            a,
            b,
            devices,
            proxy,
        }
    }

    pub fn connect(&mut self) {
        let [a, b] = [&self.a, &self.b].map(|side| side.qp.address());
        let b = through(b, self.proxy.address);
        self.a.qp.connect(&b).unwrap();
        self.b.qp.connect(&a).unwrap();
    }

    /// Resets both, in any state.
    pub fn reset(&mut self, what: &str) {
        for qp in [&mut self.a.qp, &mut self.b.qp] {
            qp.fail(Status::CANCELLED);
            qp.quiet(LIMIT).unwrap_or_else(|e| panic!("{what}: {e}"));
            qp.reset().unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }

    /// Requests of every kind in both directions, with values that no other round has. Checks that
    /// they end, with success or one of these statuses, in order; that each that succeeds has had its
    /// effect; and that each has had its whole effect or none. Returns whether all succeeded.
    pub fn exchange(&mut self, round: u64, lost: &[Status], what: &str) -> bool {
        let (a, b) = (&mut self.a, &mut self.b);
        let value = |i: u64| round << 8 | 0x80 | i;
        for (at, i) in [(0, 1), (8, 2), (128, 0), (136, 0), (144, 0), (152, 0)] {
            a.put(at, if i > 0 { value(i) } else { 0 });
        }
        for (at, i) in [(64, 4), (72, 5), (80, 6), (128, 0), (136, 0), (144, 0)] {
            b.put(at, if i > 0 { value(i) } else { 0 });
        }
        let (near, far) = (a.mem.clone(), b.mem.clone());
        let span = |mem: &Mr, at| mem.remote().span(at, 8).unwrap();
        let check = |statuses: &[Status]| {
            let ok = statuses
                .iter()
                .take_while(|s| **s == Status::SUCCESS)
                .count();
            for (i, status) in statuses.iter().enumerate().skip(ok) {
                assert!(
                    lost.contains(status),
                    "{what}: request {i}: {status}: {statuses:?}"
                );
            }
            ok
        };
        let at_b = [(); 2].map(|()| b.qp.prepare_receive(&[far.sge(128, 8)]));
        let at_b = at_b.map(|receive| {
            let receive = receive.unwrap_or_else(|e| panic!("{what}: {e}"));
            b.qp.post_receive(receive).unwrap();
            receive
        });
        let at_a = a.qp.receive(&[near.sge(128, 8)]);
        let sends = [
            a.post(&Work::send(&[near.sge(0, 8)])),
            a.post(&Work::write(&[near.sge(8, 8)], span(&far, 136))),
            a.post(&Work::read(&[near.sge(136, 8)], span(&far, 64))),
            a.post(&Work::fetch_add(&[near.sge(144, 8)], span(&far, 72), 1)),
            a.post(&Work::write_inline(&[&value(3).to_le_bytes()], span(&far, 144)).with_imm(9)),
        ];
        let mut end_of = |send: Result<SendRequest, Status>| match send {
            Ok(send) => end(&mut a.qp, send, what),
            Err(status) => status,
        };
        let ends = sends.map(&mut end_of);
        let ok = check(&ends);
        // Receives at the peer do not end if their sender is gone.
        if ok < ends.len() {
            b.qp.fail(Status::CANCELLED);
        }
        let receives = at_b.map(|receive| end(&mut b.qp, receive, what));
        let received = check(&receives);
        assert!(
            received >= usize::from(ok >= 1) + usize::from(ok >= 5),
            "{what}: {ends:?}"
        );
        let whole = |got: u64, wanted: u64, sure: bool| {
            let good = got == wanted || got == 0 && !sure;
            assert!(good, "{what}: {got:#x} in place of {wanted:#x}: {ends:?}");
        };
        whole(b.get(128), value(1), received >= 1);
        whole(b.get(136), value(2), ok >= 2);
        whole(a.get(136), value(4), ok >= 3);
        whole(a.get(144), value(5), ok >= 4);
        whole(b.get(72) - value(5), 1, ok >= 4);
        whole(b.get(144), value(3), received >= 2);
        if received == 2 {
            assert_eq!(b.qp.received(at_b[1]).unwrap().imm, Some(9), "{what}");
        }
        if ok < ends.len() {
            a.qp.fail(Status::CANCELLED);
            check(&[end(&mut a.qp, at_a, what)]);
            return false;
        }
        let sends = [
            b.post(&Work::write(&[far.sge(80, 8)], span(&near, 152))),
            b.post(&Work::send(&[far.sge(80, 8)])),
        ];
        let mut end_of = |send: Result<SendRequest, Status>| match send {
            Ok(send) => end(&mut b.qp, send, what),
            Err(status) => status,
        };
        let ends = sends.map(&mut end_of);
        let ok = check(&ends);
        if ok < 2 {
            a.qp.fail(Status::CANCELLED);
        }
        let received = check(&[end(&mut a.qp, at_a, what)]);
        assert!(received == 1 || ok < 2, "{what}: {ends:?}");
        whole(a.get(152), value(6), ok >= 1);
        whole(a.get(128), value(6), received == 1);
        ok == 2
    }

    /// Requests of every kind from `a`, on a connection that forges bytes without a check: they end,
    /// with any status.
    pub fn forged(&mut self, what: &str) {
        let (a, b) = (&mut self.a, &mut self.b);
        let (near, far) = (a.mem.clone(), b.mem.clone());
        let span = |mem: &Mr, at| mem.remote().span(at, 8).unwrap();
        let receives = [(); 2].map(|()| b.qp.receive(&[far.sge(128, 8)]));
        let sends = [
            a.post(&Work::send(&[near.sge(0, 8)])),
            a.post(&Work::write(&[near.sge(8, 8)], span(&far, 136))),
            a.post(&Work::read(&[near.sge(136, 8)], span(&far, 64))),
            a.post(&Work::fetch_add(&[near.sge(144, 8)], span(&far, 72), 1)),
            a.post(&Work::write_inline(&[&[1; 8]], span(&far, 144)).with_imm(9)),
        ];
        for send in sends.into_iter().flatten() {
            end(&mut a.qp, send, what);
        }
        b.qp.fail(Status::CANCELLED);
        for receive in receives {
            end(&mut b.qp, receive, what);
        }
    }
}
