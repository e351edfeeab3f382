//! Datagrams without a receive, datagrams that are too long for their receive, and datagrams that
//! arrive while a stream posts the receive.

use std::time::Duration;

use gdsync::gpu::MemoryKind;
use gdsync::rdma::{
    Descriptor, Destination, Doorbell, GRH, Mr, Provider, Qp, QpAddress, ReceiveRequest, Received,
    Transport, Work,
};
use gdsync::{Kind, Status};

use super::super::faults::{config, error_word};
use crate::datagrams::{Station, Stations, qkey};
use crate::rig::limits::time_limit;
use crate::rig::provider::{self, Net};
use crate::rig::verdict::{Verdict, ensure, refused};
use crate::rig::{Finding, Rig, expected, finish};

/// Length of the messages in bytes, an odd number.
const LEN: usize = 333;
/// Offset of the payload in a receive, behind the header.
const AT: usize = 64;
/// Guard bytes around the payload, which are compared too.
const ROOM: usize = 512;
/// Value of the bytes before a message arrives.
const GUARD: u64 = 0x6a4d;
/// The immediate data of the message behind the last copy.
const LAST: u32 = u32::MAX;

/// Whether a thread posts the receives of a stream, so that they reach the NIC a moment later.
fn hands_over_later(qp: &Qp) -> bool {
    qp.doorbell() == Doorbell::CpuThread || qp.device().provider() == Provider::Verbs
}

/// Two stations: the first sends, the second receives into guarded memory.
struct Scene<'r> {
    rig: &'r Rig,
    stations: Stations,
    /// The first station, and its destination for the second.
    here: QpAddress,
    to: Destination,
    out: Mr,
    landing: Mr,
    finding: Finding,
}

impl Scene<'_> {
    fn new<'r>(rig: &'r Rig, net: Net, path: &str, kind: MemoryKind) -> Verdict<Scene<'r>> {
        let stations = Stations::new(rig, net, &config(path), 2)?;
        Ok(Scene {
            rig,
            here: stations.all[0].qp.address(),
            to: stations.destination(0, 1)?,
            out: stations.memory(0, kind, LEN)?,
            landing: stations.memory(1, kind, ROOM)?,
            finding: rig.finding()?,
            stations,
        })
    }

    fn receiver(&mut self) -> &mut Station {
        &mut self.stations.all[1]
    }

    /// A receive for `len` bytes, into memory with the guards. It is not posted.
    fn prepare(&mut self, len: usize) -> Verdict<ReceiveRequest> {
        let station = &mut self.stations.all[1];
        let (rig, stream) = (self.rig, &station.stream);
        rig.fill(stream, self.landing.region(), 0, ROOM, GUARD)?;
        finish(stream, "guards")?;
        let list = [self.landing.sge((AT - GRH) as u64, (GRH + len) as u32)];
        Ok(station.qp.prepare_receive(&list)?)
    }

    /// A receive that the CPU posts.
    fn post(&mut self, len: usize) -> Verdict<ReceiveRequest> {
        let request = self.prepare(len)?;
        self.receiver().qp.post_receive(request)?;
        Ok(request)
    }

    /// Makes the stream of the first station fill the message `seed` and send it to each.
    fn send(&mut self, seed: u64, to: &[&Destination], imm: u32) -> Verdict {
        let station = &mut self.stations.all[0];
        let (rig, out) = (self.rig, &self.out);
        rig.fill(&station.stream, out.region(), 0, LEN, seed)?;
        let list = [out.sge(0, LEN as u32)];
        let mut posts = Vec::new();
        for to in to {
            let work = Work::send(&list).to(to).with_imm(imm).signaled();
            posts.push(station.qp.prepare_within(&work, time_limit())?);
        }
        let last = *posts.last().ok_or("no destination")?;
        let mut list: Vec<_> = posts.into_iter().map(Descriptor::Send).collect();
        list.push(Descriptor::wait(last));
        station.qp.post_on(&station.stream, &list)?;
        finish(&station.stream, "sends")?;
        ensure(station.qp.poll(last)? == Some(Status::SUCCESS), || {
            format!("{:?}: a send has failed", station.qp)
        })
    }

    /// Waits for a receive.
    fn take(&mut self, request: ReceiveRequest) -> Verdict<Received> {
        let station = self.receiver();
        // The stream waits too, and the GPU compares behind this wait.
        let list = [Descriptor::wait_flushed(request)];
        station.qp.wait(request, time_limit())?;
        station.qp.post_on(&station.stream, &list)?;
        Ok(station.qp.received(request)?)
    }

    /// Checks that the received message is `seed` with `imm`: the GPU compares it, and the guards
    /// around it.
    fn judge(&self, got: Received, imm: u32, seed: u64, what: &str) -> Verdict {
        let found = (got.len as usize, got.imm, got.source.map(|s| s.qpn));
        let want = (GRH + LEN, Some(imm), Some(self.here.qpn));
        ensure(found == want, || format!("{what}: {found:?}, not {want:?}"))?;
        let stream = &self.stations.all[1].stream;
        let (rig, region, before) = (self.rig, self.landing.region(), AT - GRH);
        rig.verify(stream, region, 0, before, GUARD, &self.finding)?;
        rig.verify(stream, region, AT, LEN, seed, &self.finding)?;
        finish(stream, what)?;
        self.finding.clean(what)?;
        // The CPU compares the bytes behind, the pattern's later words.
        let mut bytes = vec![0; ROOM];
        region.read(0, &mut bytes)?;
        let end = AT + LEN;
        ensure(bytes[end..] == expected(GUARD, ROOM)[end..], || {
            format!("{what}: bytes behind the message are written")
        })
    }
}

/// Datagrams without a receive, to an unknown QP, or with a wrong key are dropped, and the sender
/// gets no error. The next datagram arrives, in a receive that none of these has written.
pub fn lost(rig: &Rig, path: &str) -> Verdict {
    let mut scene = Scene::new(rig, Net::Hub, path, MemoryKind::Pinned)?;
    let there = scene.receiver().qp.address();
    let good = scene.to.clone();
    // A second QP of the receiver, on the same path: when its message has arrived, all earlier
    // messages of the path have arrived or were dropped.
    let mut behind = scene
        .receiver()
        .pd
        .create_qp(&config(path).transport(Transport::Ud { qkey: qkey(2) }))?;
    behind.activate()?;
    let [unknown, wrong, marker] = [
        there.qpn(behind.address().qpn + 100),
        there.qkey(qkey(0)),
        behind.address(),
    ]
    .map(|address| scene.stations.all[0].pd.destination(&address));
    let (unknown, wrong, marker) = (unknown?, wrong?, marker?);
    for (round, kind) in [MemoryKind::Pinned, MemoryKind::Device, MemoryKind::Device]
        .into_iter()
        .enumerate()
    {
        let seed = 100 * (round as u64 + 1);
        scene.out = scene.stations.memory(0, kind, LEN)?;
        scene.landing = scene.stations.memory(1, kind, ROOM)?;
        let seen = scene.stations.memory(1, kind, ROOM)?;
        let request = behind.prepare_receive(&[seen.sge(0, ROOM as u32)])?;
        behind.post_receive(request)?;
        scene.send(seed, &[&good, &marker], 1)?;
        behind.wait(request, time_limit())?;
        // From here on a receive is posted.
        let receive = scene.post(LEN)?;
        scene.send(seed + 1, &[&unknown, &wrong], 2)?;
        scene.send(seed + 2, &[&good], 3)?;
        let got = scene.take(receive)?;
        scene.judge(got, 3, seed + 2, "behind the lost datagrams")?;
    }
    drop(behind);
    scene.stations.leave("lost datagrams")
}

/// A datagram that is longer than its receive fails this receive and all later ones. The waiting
/// stream continues, the sender gets no error, and the QP works again after a reset.
pub fn too_long(rig: &Rig, path: &str) -> Verdict {
    // The kernel's soft-RoCE has one status for all failures of datagrams.
    let rxe = provider::chosen()?.nic.starts_with("rxe");
    let status = match rxe {
        true => Status::LOCAL_QP_OPERATION,
        false => Status::LOCAL_LENGTH,
    };
    for kind in [MemoryKind::Pinned, MemoryKind::Device] {
        let mut scene = Scene::new(rig, Net::Hub, path, kind)?;
        let to = scene.to.clone();
        let small = scene.post(LEN - 1)?;
        let next = scene.post(LEN)?;
        let station = scene.receiver();
        let waits = [Descriptor::wait(small), Descriptor::wait(next)];
        station.qp.post_on(&station.stream, &waits)?;
        scene.send(1, &[&to], 1)?;
        let station = scene.receiver();
        for (receive, status) in [(small, status), (next, Status::FLUSHED)] {
            let verdict = station.qp.wait(receive, time_limit());
            refused(verdict, Kind::Failed(status), "a receive that is too small")?;
        }
        finish(&station.stream, "the stream of a receive that is too small")?;
        let error = station.qp.error();
        ensure(error == Some(status), || format!("{error:?}"))?;
        error_word(rig, &station.qp, status)?;
        // The part that fits may have been written.
        station.qp.quiet(time_limit())?;
        station.qp.reset()?;
        station.qp.activate()?;
        let receive = scene.post(LEN)?;
        scene.send(2, &[&to], 2)?;
        let got = scene.take(receive)?;
        scene.judge(got, 2, 2, "after a reset")?;
        scene.stations.leave("after a reset")?;
    }
    Ok(())
}

/// A receive that a stream posts is at the NIC when the stream continues, or a moment later where a
/// thread posts it for the stream. Copies of a datagram are sent until the receive takes one: this
/// is the first copy or a later one, and it is always complete.
pub fn posted_by_a_stream(rig: &Rig, path: &str) -> Verdict {
    for kind in [MemoryKind::Pinned, MemoryKind::Device] {
        let mut scene = Scene::new(rig, Net::One, path, kind)?;
        let to = scene.to.clone();
        let late = hands_over_later(&scene.receiver().qp);
        let receive = scene.prepare(LEN)?;
        let station = scene.receiver();
        let list = [Descriptor::Receive(receive)];
        station.qp.post_on(&station.stream, &list)?;
        finish(&station.stream, "a receive by a stream")?;
        let seed = |copy: u32| 500 + u64::from(copy);
        let mut sent = 0;
        loop {
            scene.send(seed(sent), &[&to], sent)?;
            let limit = match late && sent < 12 {
                true => Duration::from_millis(1 << sent),
                false => time_limit(),
            };
            sent += 1;
            match scene.receiver().qp.wait(receive, limit) {
                Err(e) if e.kind() == Kind::Timeout && late && sent <= 12 => {}
                other => break other?,
            }
        }
        let got = scene.take(receive)?;
        let copy = got.imm.unwrap_or(LAST);
        ensure(copy < sent && (late || copy == 0), || {
            format!("{got:?}, of {sent} copies")
        })?;
        scene.judge(got, copy, seed(copy), "a receive by a stream")?;
        // Later copies may still arrive, each once and in order, then the marker.
        let mut before = copy;
        loop {
            let receive = scene.post(LEN)?;
            scene.send(seed(LAST), &[&to], LAST)?;
            let got = scene.take(receive)?;
            let copy = got.imm.unwrap_or(0);
            ensure(copy > before, || format!("{got:?} behind {before}"))?;
            scene.judge(got, copy, seed(copy), "a later copy")?;
            if copy == LAST {
                break;
            }
            before = copy;
        }
        scene.stations.leave("receives by a stream")?;
    }
    Ok(())
}
