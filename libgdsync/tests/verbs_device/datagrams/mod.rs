//! Behaviour of queue pairs of datagrams, with any provider.

mod refused;

use gdsync::rdma::{Destination, Field, GRH, QpAddress, Received, Source, Transport};

use refused::{invalid_datagram_requests_are_refused, wrong_destinations_are_refused};

use super::{paths, pattern};
use crate::common::*;

const QKEY: u32 = 0x1234_5678;
const ROOM: u64 = GRH as u64;

/// All tests of this file that hold on any kind of link.
pub fn all(open: Open) {
    datagram_carries_its_source_and_is_answered(open);
    one_queue_pair_sends_to_many(open);
    messages_of_every_shape_arrive(open);
    dropped_datagram_when_no_receive_is_posted(open);
    a_stream_changes_what_is_sent(open);
    failure_flushes_all_requests_and_a_reset_recovers_the_queue_pair(open);
    a_receive_that_is_too_small_fails(open);
    invalid_datagram_requests_are_refused(open);
    wrong_destinations_are_refused(open);
}

/// Queue pairs of one NIC, and memory.
struct Ends {
    gpu: Gpu,
    pd: Pd,
    qps: Vec<Qp>,
}

fn ud(config: &QpConfig, qkey: u32) -> QpConfig {
    config.clone().transport(Transport::Ud { qkey })
}

impl Ends {
    /// `many` active queue pairs; number `i` has the key `QKEY + i`.
    fn new(open: Open, config: &QpConfig, many: u32) -> Ends {
        let gpu = Gpu::soft().unwrap();
        let pd = open(&gpu).unwrap().alloc_pd().unwrap();
        let make = |i| {
            let mut qp = pd.create_qp(&ud(config, QKEY + i)).unwrap();
            qp.activate().unwrap();
            qp
        };
        let qps = (0..many).map(make).collect();
        Ends { gpu, pd, qps }
    }

    fn memory(&self, kind: MemoryKind, len: usize) -> Mr {
        memory(&self.pd, kind, len, Access::ALL)
    }

    fn memories(&self, kind: MemoryKind, len: usize) -> [Mr; 2] {
        [(); 2].map(|()| self.memory(kind, len))
    }

    fn to(&self, i: usize) -> Destination {
        self.pd.destination(&self.qps[i].address()).unwrap()
    }

    /// Posts a receive of that queue pair for `len` bytes and the header in front of them.
    fn receive(&mut self, i: usize, mr: &Mr, at: u64, len: u32) -> ReceiveRequest {
        self.qps[i].receive(&[mr.sge(at, GRH as u32 + len)])
    }

    fn received(&mut self, i: usize, recv: ReceiveRequest) -> Received {
        self.qps[i].wait(recv, LIMIT).unwrap();
        self.qps[i].received(recv).unwrap()
    }

    /// Sends by the CPU.
    fn send(&mut self, i: usize, work: &Work<'_>) {
        self.qps[i].complete(work);
    }
}

fn bytes(mr: &Mr, at: u64, len: usize) -> Vec<u8> {
    mr.region().vec(at as usize, len)
}

fn front(mr: &Mr, at: u64) -> [u8; GRH] {
    bytes(mr, at, GRH).try_into().unwrap()
}

/// Whether a receive that a stream posts reaches the NIC only a moment later.
fn hands_over_later(qp: &Qp) -> bool {
    qp.doorbell() == Doorbell::CpuThread || qp.device().name().starts_with("verbs ")
}

/// The NIC's status for this failure: the kernel's soft-RoCE has one status for all failures of
/// datagrams.
fn status_of(qp: &Qp, status: Status) -> Status {
    match qp.device().name().starts_with("verbs rxe") {
        true => Status::LOCAL_QP_OPERATION,
        false => status,
    }
}

/// Streams send, receive and wait; the receiver answers to the source of the message.
fn datagram_carries_its_source_and_is_answered(open: Open) {
    for (path, config) in paths() {
        for kind in [MemoryKind::Pinned, MemoryKind::Device] {
            let mut e = Ends::new(open, &config, 2);
            let [near, far] = e.memories(kind, 4096);
            let (here, there) = (e.gpu.stream().unwrap(), e.gpu.stream().unwrap());
            let ready = e.gpu.word();
            let to = e.to(1);
            assert_eq!(to.qpn(), e.qps[1].address().qpn);
            for round in 0..40 {
                let len = [1, 8, 64, 1000][round % 4];
                let sent = pattern(round, len);
                near.region().write(0, &sent).unwrap();
                let room = [far.sge(1024, (GRH + len) as u32)];
                let ping = e.qps[1].prepare_receive(&room).unwrap();
                let list = [near.sge(0, len as u32)];
                let work = Work::send(&list).to(&to).with_imm(round as u32).signaled();
                let send = e.qps[0].prepare(&work).unwrap();
                // Without a receive the datagram would be lost.
                let value = round as u32 + 1;
                let list = [
                    geq(&ready, value),
                    Descriptor::Send(send),
                    Descriptor::wait(send),
                ];
                e.qps[0].post_on(&here, &list).unwrap();
                let mut list = vec![write32(&ready, value), Descriptor::wait_flushed(ping)];
                match hands_over_later(&e.qps[1]) {
                    true => e.qps[1].post_receive(ping).unwrap(),
                    false => list.insert(0, Descriptor::Receive(ping)),
                }
                e.qps[1].post_on(&there, &list).unwrap();
                passes(&here);
                passes(&there);
                let got = e.qps[1].received(ping).unwrap();
                assert_eq!(got.len as usize, GRH + len, "{path}");
                assert_eq!(got.imm, Some(round as u32), "{path}");
                let source = got.source.expect("a datagram");
                assert_eq!(source.qpn, e.qps[0].address().qpn, "{path}");
                assert_eq!(bytes(&far, 1024 + ROOM, len), sent, "{path}");
                // The answer, with the received bytes.
                let back = e.pd.answer_to(&source, &front(&far, 1024), QKEY).unwrap();
                let pong = e.receive(0, &near, 2048, 1000);
                let list = [far.sge(1024 + ROOM, len as u32)];
                e.qps[1].start_on(&there, &Work::send(&list).to(&back));
                passes(&there);
                assert_eq!(e.received(0, pong).imm, None, "{path}");
                assert_eq!(bytes(&near, 2048 + ROOM, len), sent, "{path}");
            }
            let errors = (e.qps[0].error(), e.qps[1].error());
            assert_eq!(errors, (None, None), "{path}");
        }
    }
}

/// Alternating, in one list of a stream; no other handle of the destinations exists meanwhile.
fn one_queue_pair_sends_to_many(open: Open) {
    const MANY: usize = 6;
    for (path, config) in paths() {
        let mut e = Ends::new(open, &config, MANY as u32 + 1);
        let memory = e.memory(MemoryKind::Pinned, 4096);
        let stream = e.gpu.stream().unwrap();
        let at = |i: usize| 128 * i as u64;
        for round in 0..30 {
            let receives: Vec<_> = (0..MANY)
                .map(|i| e.receive(i, &memory, at(i), 16))
                .collect();
            let mut sends = Vec::new();
            for i in 0..MANY {
                let i = (i + round) % MANY;
                let to = e.to(i);
                let text = pattern(round * MANY + i, 16);
                let pieces = [&text[..5], &text[5..]];
                let work = Work::send_inline(&pieces).to(&to);
                let last = sends.len() + 1 == MANY;
                let work = if last { work.signaled() } else { work };
                sends.push(e.qps[MANY].prepare(&work).unwrap());
            }
            let mut list: Vec<_> = sends.iter().map(|send| Descriptor::Send(*send)).collect();
            list.push(Descriptor::wait(sends[MANY - 1]));
            e.qps[MANY].post_on(&stream, &list).unwrap();
            passes(&stream);
            for (i, recv) in receives.into_iter().enumerate() {
                let got = e.received(i, recv);
                assert_eq!(got.len as usize, GRH + 16, "{path}");
                let from = got.source.map(|source| source.qpn);
                assert_eq!(from, Some(e.qps[MANY].address().qpn), "{path}");
                let sent = pattern(round * MANY + i, 16);
                assert_eq!(bytes(&memory, at(i) + ROOM, 16), sent, "{path}, {i}");
            }
        }
    }
}

fn messages_of_every_shape_arrive(open: Open) {
    for (path, config) in paths() {
        let mut e = Ends::new(open, &config, 2);
        let near = e.memory(MemoryKind::Device, 8192);
        let far = e.memory(MemoryKind::Device, 8192);
        let to = e.to(1);
        let most = to.max_len();
        assert!(most.is_power_of_two() && (256..=4096).contains(&most));
        let text = pattern(7, 8192);
        near.region().write(0, &text).unwrap();
        let arrived = |e: &mut Ends, recv, len: usize, imm, what: &str| {
            let got = e.received(1, recv);
            let expected = (GRH + len, imm);
            assert_eq!((got.len as usize, got.imm), expected, "{path}: {what}");
        };
        for len in [0, 1, 15, 16, 17, most - 1, most] {
            for imm in [None, Some(0), Some(0xfedc_ba98)] {
                // The whole in three pieces, and scattered over three pieces.
                let (a, b) = (len / 3, len / 2);
                let pieces = [
                    near.sge(0, a),
                    near.sge(u64::from(a), b),
                    near.sge(u64::from(a + b), len - a - b),
                ];
                let into = [
                    far.sge(0, 10),
                    far.sge(512, GRH as u32 - 10),
                    far.sge(1024, most),
                ];
                let recv = e.qps[1].receive(&into);
                let work = Work::send(&pieces).to(&to);
                let work = imm.map_or(work, |imm| work.with_imm(imm));
                e.send(0, &work);
                arrived(&mut e, recv, len as usize, imm, &format!("{len} bytes"));
                let got = bytes(&far, 1024, len as usize);
                assert_eq!(got, text[..len as usize], "{path}, {len} bytes");
            }
        }
        for len in [0, 1, 12, 13, 500] {
            let recv = e.receive(1, &far, 0, 500);
            let pieces = [&text[..len / 2], &text[len / 2..len]];
            e.send(0, &Work::send_inline(&pieces).to(&to).with_imm(5));
            arrived(&mut e, recv, len, Some(5), "inline");
            assert_eq!(bytes(&far, ROOM, len), text[..len], "{path}, {len} inline");
        }
        // A NOP needs no destination.
        e.send(0, &Work::nop());
    }
}

/// On InfiniBand: within a subnet a LID is enough; a datagram from another subnet has a header.
pub fn other_subnets_are_reached_by_a_header(open: Open) {
    let mut e = Ends::new(open, &QpConfig::default(), 2);
    let memory = e.memory(MemoryKind::Pinned, 4096);
    let near = e.qps[1].address();
    let port = near.port.expect("a real port");
    assert_ne!(port.lid, 0);
    let mut gid = port.gid;
    gid[7] ^= 1;
    let far = near.port(port.gid(gid));
    for (address, grh) in [(near, false), (far, true)] {
        let to = e.pd.destination(&address).unwrap();
        let recv = e.receive(1, &memory, 0, 8);
        e.send(0, &Work::send_inline(&[&[6; 8]]).to(&to));
        let source = e.received(1, recv).source.expect("a datagram");
        let expected = Source {
            qpn: e.qps[0].address().qpn,
            lid: port.lid,
            service_level: 0,
            grh,
        };
        assert_eq!(source, expected);
        assert_eq!(bytes(&memory, ROOM, 8), [6; 8]);
        if grh {
            // The source and the destination.
            assert_eq!(bytes(&memory, 8, 16), port.gid);
            assert_eq!(bytes(&memory, 24, 16), gid);
        }
        let back = e.pd.answer_to(&source, &front(&memory, 0), QKEY).unwrap();
        let recv = e.receive(0, &memory, 1024, 8);
        e.send(1, &Work::send_inline(&[&[7; 8]]).to(&back));
        e.received(0, recv);
    }
}

/// Sends are complete when they have left, and the next datagram with a receive arrives.
fn dropped_datagram_when_no_receive_is_posted(open: Open) {
    for (path, config) in paths() {
        let mut e = Ends::new(open, &config, 3);
        let memory = e.memory(MemoryKind::Pinned, 4096);
        let there = e.qps[1].address();
        let name = |address: QpAddress| e.pd.destination(&address).unwrap();
        let qpn = e.qps[2].address().qpn + 100;
        let nobody = name(there.qpn(qpn));
        let qkey = Some(QKEY);
        let wrong_key = name(there.qkey(qkey));
        let good = name(there);
        for round in 0..20_u8 {
            let text = [round; 8];
            let pieces: [&[u8]; 1] = [&text];
            let lost: [&[u8]; 1] = [b"lost"];
            e.send(0, &Work::send_inline(&lost).to(&good));
            // When this one has arrived, the earlier ones on the same path have too: they found no
            // receive.
            let recv = e.receive(2, &memory, 2048, 8);
            let other = e.to(2);
            e.send(0, &Work::send_inline(&pieces).to(&other));
            e.received(2, recv);
            let recv = e.receive(1, &memory, 0, 8);
            for to in [&nobody, &wrong_key] {
                e.send(0, &Work::send_inline(&lost).to(to));
            }
            e.send(0, &Work::send_inline(&pieces).to(&good));
            assert_eq!(e.received(1, recv).len as usize, GRH + 8, "{path}");
            assert_eq!(bytes(&memory, ROOM, 8), text, "{path}");
        }
        assert_eq!(e.qps[0].error(), None, "{path}");
        assert_eq!(e.qps[1].error(), None, "{path}");
    }
}

/// Fields of an entry are behind its address.
fn a_stream_changes_what_is_sent(open: Open) {
    for (path, config) in paths() {
        let mut e = Ends::new(open, &config, 2);
        let near = e.memory(MemoryKind::Pinned, 4096);
        let far = e.memory(MemoryKind::Pinned, 4096);
        near.region().write(0, &pattern(1, 4096)).unwrap();
        let stream = e.gpu.stream().unwrap();
        let to = e.to(1);
        let recv = e.receive(1, &far, 0, 200);
        let list = [near.sge(0, 10), near.sge(100, 10)];
        let qp = &mut e.qps[0];
        let send = qp.signaled(&Work::send(&list).to(&to));
        let length = qp.field32(send, Field::Length(0)).unwrap();
        let address = qp.field64(send, Field::Address(1)).unwrap();
        for field in [Field::RemoteKey, Field::Length(2)] {
            assert_eq!(kind(qp.field32(send, field)), Some(Kind::Invalid), "{path}");
        }
        let elsewhere = near.region().addr().0 + 1000;
        let list = [
            write32(&length, 20_u32.to_be()),
            write64(&address, elsewhere.to_be()),
            Descriptor::Send(send),
            Descriptor::wait(send),
        ];
        qp.post_on(&stream, &list).unwrap();
        passes(&stream);
        assert_eq!(e.received(1, recv).len as usize, GRH + 30, "{path}");
        let text = pattern(1, 4096);
        let sent = [&text[..20], &text[1000..1010]].concat();
        assert_eq!(bytes(&far, ROOM, 30), sent, "{path}");
    }
}

/// A failure of a send flushes the receives of the queue pair too, and waiting streams continue.
fn failure_flushes_all_requests_and_a_reset_recovers_the_queue_pair(open: Open) {
    for (path, config) in paths() {
        let mut e = Ends::new(open, &config, 2);
        let memory = e.memory(MemoryKind::Pinned, 4096);
        let stream = e.gpu.stream().unwrap();
        let waiting = e.gpu.stream().unwrap();
        let to = e.to(1);
        for round in 0..5 {
            let list = [memory.sge(0, 8)];
            let recv = e.receive(0, &memory, 1024, 8);
            let work = Work::send(&list).to(&to).signaled();
            let qp = &mut e.qps[0];
            qp.post_on(&waiting, &[Descriptor::wait(recv)]).unwrap();
            let [good, bad, after] = [(); 3].map(|()| qp.prepare(&work).unwrap());
            let key = qp.field32(bad, Field::Key(0)).unwrap();
            let wrong = memory.lkey() ^ 0x5500;
            let list = [
                Descriptor::Send(good),
                Descriptor::wait(good),
                write32(&key, wrong.to_be()),
                Descriptor::Send(bad),
                Descriptor::wait(bad),
                Descriptor::Send(after),
                Descriptor::wait(after),
            ];
            qp.post_on(&stream, &list).unwrap();
            passes(&stream);
            passes(&waiting);
            qp.wait(good, LIMIT).unwrap();
            let protection = status_of(qp, Status::LOCAL_PROTECTION);
            let failed = Some(Kind::Failed(protection));
            let flushed = Some(Kind::Failed(Status::FLUSHED));
            assert_eq!(kind(qp.wait(bad, LIMIT)), failed, "{path}");
            assert_eq!(kind(qp.wait(after, LIMIT)), flushed, "{path}");
            assert_eq!(kind(qp.wait(recv, LIMIT)), flushed, "{path}");
            assert_eq!(qp.error(), Some(protection), "{path}");
            assert_eq!(kind(qp.prepare(&work)), failed, "{path}");
            assert_eq!(kind(qp.activate()), Some(Kind::WrongState));
            qp.quiet(LIMIT).unwrap();
            qp.reset().unwrap();
            qp.activate().unwrap();
            // In both directions.
            memory.region().write(0, &[round; 8]).unwrap();
            let list = [memory.sge(0, 8)];
            for (from, into) in [(0, 1), (1, 0)] {
                let recv = e.receive(into, &memory, 2048, 8);
                let to = e.to(into);
                e.qps[from].start_on(&stream, &Work::send(&list).to(&to));
                passes(&stream);
                e.received(into, recv);
                assert_eq!(bytes(&memory, 2048 + ROOM, 8), [round; 8], "{path}");
            }
        }
    }
}

/// The sender gets no error.
fn a_receive_that_is_too_small_fails(open: Open) {
    for (path, config) in paths() {
        let mut e = Ends::new(open, &config, 2);
        let memory = e.memory(MemoryKind::Pinned, 4096);
        let to = e.to(1);
        let small = e.receive(1, &memory, 0, 7);
        let next = e.receive(1, &memory, 0, 8);
        e.send(0, &Work::send_inline(&[&[1; 8]]).to(&to));
        let qp = &mut e.qps[1];
        let length = status_of(qp, Status::LOCAL_LENGTH);
        for (recv, status) in [(small, length), (next, Status::FLUSHED)] {
            let failed = Some(Kind::Failed(status));
            assert_eq!(kind(qp.wait(recv, LIMIT)), failed, "{path}");
        }
        qp.quiet(LIMIT).unwrap();
        qp.reset().unwrap();
        qp.activate().unwrap();
        let recv = e.receive(1, &memory, 0, 8);
        e.send(0, &Work::send_inline(&[&[2; 8]]).to(&to));
        e.received(1, recv);
        assert_eq!(bytes(&memory, ROOM, 8), [2; 8], "{path}");
    }
}
