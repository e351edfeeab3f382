//! A peer stops answering in the middle of an exchange. A wait for it returns a typed error within
//! its time limit, the waiting streams continue, and other traffic is not affected. A peer that
//! answers again can be connected again.

use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport, When};
use gdsync::gpu::{MemoryKind, Stream};
use gdsync::rdma::{Completion, Descriptor, Mr, Qp, RemoteMemory, Work};
use gdsync::{Kind, Status};

use super::{again, config, passes, weak};
use crate::sim::world::{Devices, LIMIT, Rank, play};

/// Time limit of the remaining rank's waits.
const PEER_LIMIT: Duration = Duration::from_millis(20);

/// How the peer becomes silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fall {
    /// Its NIC pauses and continues later.
    Freezes,
    /// Its process dies, with all its machines.
    Dies,
    /// Its link is cut: its NIC is unreachable, without any report.
    IsCut,
}

/// The completion or message that the remaining rank waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// The completion of a send; the queue pair has a time limit.
    Send,
    /// A message; the wait has a time limit.
    Message,
}

/// The scenario of this module.
///
/// # Errors
/// The first difference, with the seed.
pub fn silence(seed: u64) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let fall = [Fall::Freezes, Fall::Dies, Fall::IsCut][rng.usize(0..3)];
    let wait = [For::Send, For::Message][rng.usize(0..2)];
    let longest = 1 << rng.u32(1..20);
    let when = Duration::from_nanos(rng.u64(1..longest));
    let report = play(seed, 2, move |rank| {
        let mut own = Rng::with_seed(seed ^ 0x55 ^ rank.me as u64);
        let devices = rank.open(weak(&mut own));
        let config = config(&mut own).timeout((wait == For::Send).then_some(PEER_LIMIT));
        let mut qp = devices.pd.create_qp(&config).unwrap();
        rank.connect(&mut qp, rank.peer());
        match rank.me {
            0 => is_left(&rank, &devices, &mut qp, fall, wait),
            _ => falls(&rank, &devices, &mut qp, fall, wait, when),
        }
        if fall == Fall::Freezes {
            rank.barrier();
            again(&rank, &devices, &mut qp);
        }
        drop(qp);
        devices.device.close(LIMIT).unwrap();
    })?;
    let dead: &[&str] = if fall == Fall::Dies { &["rank1"] } else { &[] };
    assert_eq!(report.unfinished, dead);
    Ok(report)
}

/// The target memory of the ranks.
struct Memories {
    mine: Mr,
    theirs: RemoteMemory,
}

impl Memories {
    fn swap(rank: &Rank, devices: &Devices) -> Memories {
        let mine = devices.memory(MemoryKind::Pinned, 64);
        let theirs = rank.swap_memory(&mine, rank.peer());
        Memories { mine, theirs }
    }
}

/// The rank that remains.
fn is_left(rank: &Rank, devices: &Devices, qp: &mut Qp, fall: Fall, wait: For) {
    let stream = devices.gpu.stream().unwrap();
    let memories = Memories::swap(rank, devices);
    let fallen = String::from_utf8(rank.receive(1)).unwrap();
    let mut round = 0;
    let (request, took) = loop {
        let before = rank.host.now();
        let request = exchange(qp, &stream, &memories, wait);
        passes(&stream, &format!("in round {round}, {fall:?}"));
        if qp.error().is_some() {
            break (request, rank.host.now().since(before));
        }
        round += 1;
        assert!(round < 100_000, "the peer never falls");
    };
    let error = qp.error().expect("as seen above");
    // The time limit is shorter than the NIC's retries.
    assert_eq!(error, Status::TIMEOUT, "after {fall:?}");
    assert!(took >= PEER_LIMIT && took < PEER_LIMIT * 20, "{took:?}");
    // The request of the wait failed, or was flushed with the one that failed. It succeeded if its
    // message arrived in the last moment.
    if let Some(Err(e)) = request.map(|r| qp.wait(r, LIMIT)) {
        let known = [Kind::Failed(error), Kind::Failed(Status::FLUSHED)];
        assert!(known.contains(&e.kind()), "{e}");
    }
    if fall == Fall::Freezes {
        rank.control.unfreeze(&fallen);
    }
}

/// The rank that becomes silent.
fn falls(rank: &Rank, devices: &Devices, qp: &mut Qp, fall: Fall, wait: For, after: Duration) {
    let stream = devices.gpu.stream().unwrap();
    let memories = Memories::swap(rank, devices);
    rank.send(0, devices.nic().as_bytes());
    let at = When::Time(rank.host.now() + after);
    match fall {
        Fall::Freezes => rank.control.freeze_at(at, &devices.nic()),
        Fall::Dies => {
            let watcher = devices.nic() + ".watcher";
            let cpu_thread = devices.nic() + ".cpu";
            for name in [
                &devices.nic(),
                &devices.engine(),
                &watcher,
                &cpu_thread,
                "rank1",
            ] {
                rank.control.kill_at(at, name);
            }
        }
        Fall::IsCut => {}
    }
    let end = rank.host.now() + after;
    let mut cut = false;
    for round in 0..200_000 {
        if fall == Fall::IsCut && !cut && rank.host.now() >= end {
            cut = true;
            rank.cut(qp.address().node);
        }
        let posted = exchange(qp, &stream, &memories, wait).is_some();
        passes(
            &stream,
            &format!("of the fallen in round {round}, {fall:?}, {wait:?}"),
        );
        if !posted || qp.error().is_some() {
            return;
        }
    }
    panic!("no wait has failed");
}

/// One step of an exchange on a stream: a write, or a message in each direction. Returns the
/// request that the last wait is for; `None` if the queue pair is in error.
fn exchange(qp: &mut Qp, stream: &Stream, memories: &Memories, wait: For) -> Option<Completion> {
    let sges = [memories.mine.sge(0, 8)];
    let limit = (wait == For::Message).then_some(PEER_LIMIT);
    let mut attempt = || -> gdsync::Result<Completion> {
        let to = memories.theirs.span(16, 8)?;
        let work = match wait {
            For::Send => Work::write(&sges, to),
            For::Message => Work::send(&sges),
        };
        let send = qp.prepare_within(&work.signaled(), LIMIT)?;
        let mut list = vec![Descriptor::Send(send), Descriptor::wait(send).within(limit)];
        let mut last = send.into();
        if wait == For::Message {
            let recv = qp.prepare_receive(&[memories.mine.sge(8, 8)])?;
            list.insert(0, Descriptor::Receive(recv));
            list.push(Descriptor::wait(recv).within(limit));
            last = recv.into();
        }
        qp.post_on(stream, &list)?;
        Ok(last)
    };
    match attempt() {
        Ok(last) => Some(last),
        Err(e) => {
            assert!(matches!(e.kind(), Kind::Failed(_)), "{e}");
            None
        }
    }
}
