//! Datagrams that nobody takes, that are too long for who takes them, and that come while a
//! stream posts the receive.

use std::time::Duration;

use gdsync::gpu::MemoryKind;
use gdsync::rdma::{
    Descriptor, Destination, GRH, Mr, QpAddress, ReceiveRequest, Received, SendRequest, Transport,
    Work,
};
use gdsync::{Kind, Status};

use super::super::faults::{config, error_word};
use super::{Stations, hands_over_later, qkey};
use crate::live::limits::time_limit;
use crate::live::provider;
use crate::live::provider::Net;
use crate::live::rig::{Finding, Rig, expected, finish};
use crate::live::verdict::{Verdict, ensure, refused};

/// Bytes of the messages here, an odd number.
const LEN: usize = 333;
/// Where a message lands, behind its header.
const AT: usize = 64;
/// Bytes around it are looked at too.
const ROOM: usize = 512;
/// What lies there before.
const GUARD: u64 = 0x6a4d;
/// The immediate data of what ends a row of copies.
const LAST: u32 = u32::MAX;

/// Receives, and what is there before and behind.
struct Landing {
    mr: Mr,
    finding: Finding,
}

impl Landing {
    fn new(rig: &Rig, stations: &Stations, of: usize, kind: MemoryKind) -> Verdict<Landing> {
        Ok(Landing {
            mr: stations.memory(of, kind, ROOM)?,
            finding: rig.finding()?,
        })
    }

    /// A receive for `len` bytes, into memory that holds the guards. It is not posted.
    fn prepare(
        &self,
        rig: &Rig,
        stations: &mut Stations,
        of: usize,
        len: usize,
    ) -> Verdict<ReceiveRequest> {
        let station = &mut stations.all[of];
        rig.fill(&station.stream, self.mr.region(), 0, ROOM, GUARD)?;
        finish(&station.stream, "guards")?;
        let list = [self.mr.sge((AT - GRH) as u64, (GRH + len) as u32)];
        Ok(station.qp.prepare_receive(&list)?)
    }

    /// One that the CPU posts.
    fn post(
        &self,
        rig: &Rig,
        stations: &mut Stations,
        of: usize,
        len: usize,
    ) -> Verdict<ReceiveRequest> {
        let request = self.prepare(rig, stations, of, len)?;
        stations.all[of].qp.post_receive(request)?;
        Ok(request)
    }

    /// Looks for the message `seed` by the GPU, and for the guards around it.
    fn check(&self, rig: &Rig, stations: &Stations, of: usize, seed: u64, what: &str) -> Verdict {
        let stream = &stations.all[of].stream;
        let (region, before) = (self.mr.region(), AT - GRH);
        rig.verify(stream, region, 0, before, GUARD, &self.finding)?;
        rig.verify(stream, region, AT, LEN, seed, &self.finding)?;
        finish(stream, what)?;
        self.finding.clean(what)?;
        // What is behind, the pattern's later words, is for the CPU to see.
        let mut bytes = vec![0; ROOM];
        region.read(0, &mut bytes)?;
        let end = AT + LEN;
        ensure(bytes[end..] == expected(GUARD, ROOM)[end..], || {
            format!("{what}: bytes behind the message are written")
        })
    }
}

/// Has the stream of a station fill `out` with message `seed` and send it to each.
fn send_on(
    rig: &Rig,
    stations: &mut Stations,
    from: usize,
    out: &Mr,
    seed: u64,
    to: &[&Destination],
    imm: u32,
) -> Verdict<SendRequest> {
    let station = &mut stations.all[from];
    rig.fill(&station.stream, out.region(), 0, LEN, seed)?;
    let list = [out.sge(0, LEN as u32)];
    let mut posts = Vec::new();
    for to in to {
        let work = Work::send(&list).to(to).with_imm(imm).signaled();
        posts.push(station.qp.prepare_within(&work, time_limit())?);
    }
    let last = *posts.last().ok_or("to nobody")?;
    let mut list: Vec<_> = posts.into_iter().map(Descriptor::Send).collect();
    list.push(Descriptor::wait(last));
    station.qp.post_on(&station.stream, &list)?;
    finish(&station.stream, "sends")?;
    ensure(station.qp.poll(last)? == Some(Status::SUCCESS), || {
        format!("{:?}: a send has failed", station.qp)
    })?;
    Ok(last)
}

/// Waits for a receive.
fn take(stations: &mut Stations, of: usize, request: ReceiveRequest) -> Verdict<Received> {
    let station = &mut stations.all[of];
    // On the stream too, behind which the GPU looks.
    let list = [Descriptor::wait_flushed(request)];
    station.qp.wait(request, time_limit())?;
    station.qp.post_on(&station.stream, &list)?;
    Ok(station.qp.received(request)?)
}

/// That a message is the one that was sent.
fn is_due(got: Received, imm: u32, from: &QpAddress, what: &str) -> Verdict {
    let said = (got.len as usize, got.imm, got.source.map(|s| s.qpn));
    let want = (GRH + LEN, Some(imm), Some(from.qpn));
    ensure(said == want, || format!("{what}: {said:?}, not {want:?}"))
}

/// Datagrams without a receive, to nobody, and with a wrong key are lost, of which the sender
/// learns nothing; the next one arrives, in a receive that none of them has touched.
///
/// # Errors
/// Whatever goes wrong.
pub fn lost(rig: &Rig, path: &str) -> Verdict {
    let mut stations = Stations::new(rig, Net::Hub, &config(path), 2)?;
    let there = stations.all[1].qp.address();
    let here = stations.all[0].qp.address();
    let good = stations.destination(0, 1)?;
    // On the way of the others: what is before it on this way was there when it is.
    let mut behind = stations.all[1]
        .pd
        .create_qp(&config(path).transport(Transport::Ud { qkey: qkey(2) }))?;
    behind.activate()?;
    let [nobody, wrong, marker] = [
        there.qpn(behind.address().qpn + 100),
        there.qkey(Some(qkey(0))),
        behind.address(),
    ]
    .map(|address| stations.all[0].pd.destination(&address));
    let (nobody, wrong, marker) = (nobody?, wrong?, marker?);
    for (round, kind) in [MemoryKind::Pinned, MemoryKind::Device, MemoryKind::Device]
        .into_iter()
        .enumerate()
    {
        let seed = 100 * (round as u64 + 1);
        let out = stations.memory(0, kind, LEN)?;
        let seen = stations.memory(1, kind, ROOM)?;
        let landing = Landing::new(rig, &stations, 1, kind)?;
        let request = behind.prepare_receive(&[seen.sge(0, ROOM as u32)])?;
        behind.post_receive(request)?;
        send_on(rig, &mut stations, 0, &out, seed, &[&good, &marker], 1)?;
        behind.wait(request, time_limit())?;
        // Now there is one.
        let receive = landing.post(rig, &mut stations, 1, LEN)?;
        send_on(rig, &mut stations, 0, &out, seed + 1, &[&nobody, &wrong], 2)?;
        send_on(rig, &mut stations, 0, &out, seed + 2, &[&good], 3)?;
        let got = take(&mut stations, 1, receive)?;
        is_due(got, 3, &here, "behind what was lost")?;
        landing.check(rig, &stations, 1, seed + 2, "behind what was lost")?;
    }
    drop(behind);
    stations.leave("what was lost")
}

/// A datagram that is longer than its receive fails that, and all that are behind it; the stream
/// that waits goes on, the sender knows nothing, and a reset mends it.
///
/// # Errors
/// Whatever goes wrong.
pub fn too_long(rig: &Rig, path: &str) -> Verdict {
    // The kernel's soft-RoCE knows one word for all that goes wrong with datagrams.
    let rxe = provider::chosen()?.nic.starts_with("rxe");
    let status = match rxe {
        true => Status::LOCAL_QP_OPERATION,
        false => Status::LOCAL_LENGTH,
    };
    for kind in [MemoryKind::Pinned, MemoryKind::Device] {
        let mut stations = Stations::new(rig, Net::Hub, &config(path), 2)?;
        let here = stations.all[0].qp.address();
        let out = stations.memory(0, kind, LEN)?;
        let landing = Landing::new(rig, &stations, 1, kind)?;
        let to = stations.destination(0, 1)?;
        let small = landing.post(rig, &mut stations, 1, LEN - 1)?;
        let next = landing.post(rig, &mut stations, 1, LEN)?;
        let station = &mut stations.all[1];
        let waits = [Descriptor::wait(small), Descriptor::wait(next)];
        station.qp.post_on(&station.stream, &waits)?;
        send_on(rig, &mut stations, 0, &out, 1, &[&to], 1)?;
        let station = &mut stations.all[1];
        for (receive, status) in [(small, status), (next, Status::FLUSHED)] {
            let verdict = station.qp.wait(receive, time_limit());
            refused(verdict, Kind::Failed(status), "a receive that is too small")?;
        }
        finish(&station.stream, "the stream of a receive that is too small")?;
        let error = station.qp.error();
        ensure(error == Some(status), || format!("{error:?}"))?;
        error_word(rig, &station.qp, status)?;
        // As far as it fits, it may be there.
        station.qp.quiet(time_limit())?;
        station.qp.reset()?;
        station.qp.activate()?;
        let receive = landing.post(rig, &mut stations, 1, LEN)?;
        send_on(rig, &mut stations, 0, &out, 2, &[&to], 2)?;
        let got = take(&mut stations, 1, receive)?;
        is_due(got, 2, &here, "after a reset")?;
        landing.check(rig, &stations, 1, 2, "after a reset")?;
        stations.leave("after a reset")?;
    }
    Ok(())
}

/// A receive that a stream posts is there when the stream goes on, or a moment later where a thread
/// hands it over: of copies that are sent until one is taken, that is the first, or a later
/// one, and never half of one.
///
/// # Errors
/// Whatever goes wrong.
pub fn posted_by_a_stream(rig: &Rig, path: &str) -> Verdict {
    for kind in [MemoryKind::Pinned, MemoryKind::Device] {
        let mut stations = Stations::new(rig, Net::One, &config(path), 2)?;
        let here = stations.all[0].qp.address();
        let out = stations.memory(0, kind, LEN)?;
        let landing = Landing::new(rig, &stations, 1, kind)?;
        let to = stations.destination(0, 1)?;
        let late = hands_over_later(&stations.all[1].qp);
        let receive = landing.prepare(rig, &mut stations, 1, LEN)?;
        let station = &mut stations.all[1];
        let list = [Descriptor::Receive(receive)];
        station.qp.post_on(&station.stream, &list)?;
        finish(&station.stream, "a receive by a stream")?;
        let seed = |copy: u32| 500 + u64::from(copy);
        let mut sent = 0;
        loop {
            send_on(rig, &mut stations, 0, &out, seed(sent), &[&to], sent)?;
            let limit = match late && sent < 12 {
                true => Duration::from_millis(1 << sent),
                false => time_limit(),
            };
            sent += 1;
            match stations.all[1].qp.wait(receive, limit) {
                Err(e) if e.kind() == Kind::Timeout && late && sent <= 12 => {}
                other => break other?,
            }
        }
        let got = take(&mut stations, 1, receive)?;
        let copy = got.imm.unwrap_or(LAST);
        ensure(copy < sent && (late || copy == 0), || {
            format!("{got:?}, of {sent} copies")
        })?;
        is_due(got, copy, &here, "a receive by a stream")?;
        landing.check(rig, &stations, 1, seed(copy), "a receive by a stream")?;
        // Copies behind it may still come, each once and in order, and what is behind them.
        let mut before = copy;
        loop {
            let receive = landing.post(rig, &mut stations, 1, LEN)?;
            send_on(rig, &mut stations, 0, &out, seed(LAST), &[&to], LAST)?;
            let got = take(&mut stations, 1, receive)?;
            let copy = got.imm.unwrap_or(0);
            ensure(copy > before, || format!("{got:?} behind {before}"))?;
            is_due(got, copy, &here, "a later copy")?;
            landing.check(rig, &stations, 1, seed(copy), "a later copy")?;
            if copy == LAST {
                break;
            }
            before = copy;
        }
        stations.leave("receives by a stream")?;
    }
    Ok(())
}
