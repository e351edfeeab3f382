//! Requests that fail, and peers that do not answer: the CPU gets a typed status, streams find the
//! status in the error word, the streams pass, and the GPU works afterwards.

use std::time::Duration;

use gdsync::gpu::{Condition, MemoryKind};
use gdsync::internals::{Batch, Op, Width};
use gdsync::rdma::{Access, Descriptor, Qp, QpConfig, SendRequest, Work};
use gdsync::{Kind, Status};

use super::settings;
use crate::rig::limits::time_limit;
use crate::rig::provider::Net;
use crate::rig::verdict::{Verdict, ensure, refused};
use crate::rig::{Pair, Rig, finish};

/// Every path from a stream to the NIC, by name.
pub const PATHS: [&str; 3] = ["memops", "kernel", "cpu-thread"];

/// The configuration of a path.
pub fn config(path: &str) -> QpConfig {
    let queues = settings::queues(path, [MemoryKind::Pinned; 3]);
    queues.send_blocks(16).recv_entries(16)
}

/// Checks by a separate stream that the error word of `qp` becomes `status`: the stream waits for
/// this value.
pub fn error_word(rig: &Rig, qp: &Qp, status: Status) -> Verdict {
    let stream = rig.gpu.stream()?;
    let mut batch = Batch::new();
    let wait = Op::wait(Width::Bits32, qp.error_word(), Condition::Eq, status.0);
    batch.push(wait);
    // SAFETY: the word is part of the queue pair, which outlives this call.
    unsafe { stream.submit(&batch)? };
    finish(&stream, "a look at the error word")
}

fn failed(qp: &mut Qp, request: SendRequest, status: Status, what: &str) -> Verdict {
    refused(qp.wait(request, time_limit()), Kind::Failed(status), what)?;
    Ok(())
}

/// A request that its peer refuses.
pub fn bad_key(rig: &Rig, path: &str, payload: MemoryKind) -> Verdict {
    let config = config(path);
    for net in [Net::One, Net::Hub] {
        let mut pair = Pair::new(rig, net, [&config, &config])?;
        let (source, landing) = (pair.memory(0, payload, 64)?, pair.memory(1, payload, 64)?);
        let hidden = rig.gpu.alloc(payload, 64)?;
        let hidden = pair.pds[1].register(&hidden, Access::LOCAL_WRITE)?;
        let stream = rig.gpu.stream()?;
        let word = rig.gpu.alloc(MemoryKind::Pinned, 64)?.word32(0)?;
        let finding = rig.finding()?;
        rig.fill(&stream, source.region(), 0, 64, 1)?;
        let list = [source.sge(0, 64)];
        let good = Work::write(&list, landing.remote().span(0, 64)?).signaled();
        let bad = Work::write(&list, hidden.remote().span(0, 64)?).signaled();
        let first = pair.qps[0].prepare(&good)?;
        let second = pair.qps[0].prepare(&bad)?;
        let third = pair.qps[0].prepare(&good)?;
        let list = [
            Descriptor::Send(first),
            Descriptor::wait(first),
            Descriptor::Send(second),
            Descriptor::wait(second),
            Descriptor::write_value(&word, 1),
            Descriptor::Send(third),
            Descriptor::wait(third),
        ];
        pair.qps[0].post_on(&stream, &list)?;
        failed(&mut pair.qps[0], second, Status::REMOTE_ACCESS, "a bad key")?;
        failed(&mut pair.qps[0], third, Status::FLUSHED, "behind a bad key")?;
        finish(&stream, "the stream of a bad key")?;
        ensure(word.load()? == 1, || "the stream did not go on".to_owned())?;
        ensure(pair.qps[0].poll(first)? == Some(Status::SUCCESS), || {
            "a request before the bad key has failed too".to_owned()
        })?;
        rig.verify(&stream, landing.region(), 0, 64, 1, &finding)?;
        finish(&stream, "behind the failure")?;
        finding.clean("messages before the bad key")?;
        error_word(rig, &pair.qps[0], Status::REMOTE_ACCESS)?;
        // Both QPs can be used again.
        for qp in &mut pair.qps {
            qp.quiet(time_limit())?;
            qp.reset()?;
        }
        pair.connect()?;
        pair.message(rig, 40)?;
        pair.leave("after a reset")?;
        rig.check(&config)?;
    }
    Ok(())
}

/// A peer that never posts the receive, and a message that never arrives.
pub fn silent_peer(rig: &Rig, path: &str) -> Verdict {
    let soon = Duration::from_millis(200);
    // The time limit of the queue pair.
    let plain = config(path);
    let config = plain.clone().timeout(soon);
    let mut pair = Pair::new(rig, Net::Hub, [&config, &config])?;
    let source = pair.memory(0, MemoryKind::Device, 64)?;
    let stream = rig.gpu.stream()?;
    let list = [source.sge(0, 64)];
    let send = pair.qps[0].prepare(&Work::send(&list).signaled())?;
    pair.qps[0].post_on(&stream, &[Descriptor::Send(send), Descriptor::wait(send)])?;
    failed(&mut pair.qps[0], send, Status::TIMEOUT, "a silent peer")?;
    finish(&stream, "the stream of a silent peer")?;
    error_word(rig, &pair.qps[0], Status::TIMEOUT)?;
    drop(pair);

    // The time limit of one wait.
    let config = config.timeout(None);
    let mut pair = Pair::new(rig, Net::Hub, [&config, &config])?;
    let landing = pair.memory(1, MemoryKind::Device, 64)?;
    let receive = pair.qps[1].prepare_receive(&[landing.sge(0, 64)])?;
    let list = [
        Descriptor::Receive(receive),
        Descriptor::wait(receive).within(soon),
    ];
    pair.qps[1].post_on(&stream, &list)?;
    let kind = Kind::Failed(Status::TIMEOUT);
    refused(pair.qps[1].wait(receive, time_limit()), kind, "no message")?;
    finish(&stream, "the stream whose message did not arrive")?;
    error_word(rig, &pair.qps[1], Status::TIMEOUT)?;
    drop(pair);
    rig.check(&plain)
}
