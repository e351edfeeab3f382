//! One of several requests that were enqueued ahead fails.
//!
//! The stream stays at the wait for the request until the watcher or the CPU handles the failure,
//! and then continues. Every request has its own status, which the stream sees when it continues.
//! The peer's streams continue as well, and the failure does not affect other queue pairs. After a
//! reset on both sides there is traffic again.

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::gpu::{MemoryKind, Word32};
use gdsync::rdma::{
    Access, Descriptor, Doorbell, Field, Mr, Qp, ReceiveRequest, RemoteMemory, SendRequest, Work,
};
use gdsync::{Kind, Status};

use super::{LONG, again, config, note, noted, passes, traffic, weak};
use crate::rig::reaches;
use crate::sim::world::{Devices, LIMIT, Rank, play};

/// The error of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// An rkey that the peer never gave.
    WrongKey,
    /// Bytes behind the end of the peer's memory.
    Beyond,
    /// Memory that the peer grants for reading only.
    NotWritable,
    /// Memory that the peer grants for writing only.
    NotReadable,
    /// An atomic on half a word.
    Misaligned,
    /// A message longer than its receive.
    ShortReceive,
    /// A local key that the stream overwrites.
    LocalKey,
}

impl Cause {
    const ALL: [Cause; 7] = [
        Cause::WrongKey,
        Cause::Beyond,
        Cause::NotWritable,
        Cause::NotReadable,
        Cause::Misaligned,
        Cause::ShortReceive,
        Cause::LocalKey,
    ];

    fn status(self) -> Status {
        match self {
            Cause::LocalKey => Status::LOCAL_PROTECTION,
            Cause::Misaligned | Cause::ShortReceive => Status::REMOTE_INVALID_REQUEST,
            _ => Status::REMOTE_ACCESS,
        }
    }

    /// The statuses of the peer's receives, of the first and of the others; `None` if the request
    /// never reaches the peer.
    fn receives(self) -> Option<(Status, Status)> {
        match self {
            Cause::LocalKey => None,
            Cause::ShortReceive => Some((Status::LOCAL_LENGTH, Status::FLUSHED)),
            _ => Some((Status::FLUSHED, Status::FLUSHED)),
        }
    }
}

/// The parameters that the seed draws; they are the same on both ranks.
struct Case {
    cause: Cause,
    failing: usize,
    /// By request. The failing one shows in any case, the last one ends the wait.
    signaled: Vec<bool>,
    /// All requests in one list, or each in a separate list.
    one_list: bool,
    /// The peer's receives.
    receives: usize,
}

fn draw(rng: &mut Rng) -> Case {
    let count = rng.usize(2..9);
    let failing = rng.usize(0..count);
    Case {
        cause: Cause::ALL[rng.usize(0..Cause::ALL.len())],
        failing,
        signaled: (0..count).map(|i| i == count - 1 || rng.bool()).collect(),
        one_list: rng.bool(),
        receives: rng.usize(1..5),
    }
}

/// The scenario of this module.
///
/// # Errors
/// The first difference, with the seed.
pub fn failure(seed: u64) -> Result<SimReport, SimError> {
    play(seed, 2, move |rank| {
        let mut rng = Rng::with_seed(seed);
        let case = draw(&mut rng);
        let mut own = Rng::with_seed(seed ^ rank.me as u64);
        let devices = rank.open(weak(&mut own));
        let mut qp = devices.pd.create_qp(&config(&mut own)).unwrap();
        let bystander = config(&mut own)
            // The CPU thread is frozen for a while.
            .doorbell(Doorbell::Direct);
        let mut bystander = devices.pd.create_qp(&bystander).unwrap();
        rank.connect(&mut bystander, rank.peer());
        match rank.me {
            0 => fails(&rank, &devices, &mut qp, &mut bystander, &case),
            _ => is_asked(&rank, &devices, &mut qp, &mut bystander, &case),
        }
        again(&rank, &devices, &mut qp);
        traffic(&rank, &devices, &mut bystander, 5);
        for qp in [&mut qp, &mut bystander] {
            qp.quiet(LIMIT).unwrap();
        }
        rank.barrier();
        drop((qp, bystander));
        devices.device.close(LIMIT).unwrap();
    })
}

/// The memory that the peer exposes: writable, readable only, writable only.
fn exposed(devices: &Devices) -> [Mr; 3] {
    [
        Access::ALL,
        Access::LOCAL_WRITE | Access::REMOTE_READ,
        Access::REMOTE_WRITE,
    ]
    .map(|access| devices.memory_with(MemoryKind::Pinned, 1024, access))
}

/// A request of the case.
fn prepare(
    qp: &mut Qp,
    mine: &Mr,
    theirs: &[RemoteMemory; 3],
    case: &Case,
    i: usize,
) -> SendRequest {
    let cause = (i == case.failing).then_some(case.cause);
    let at = 8 * i as u64;
    let [sound, mut bad, read_only, write_only] = [0, 0, 1, 2].map(|m| {
        let memory: &RemoteMemory = &theirs[m];
        memory.span(at, 8).unwrap()
    });
    match cause {
        Some(Cause::WrongKey) => bad.rkey ^= 0x7700,
        Some(Cause::Beyond) => bad.addr += 1024 - at - 4,
        Some(Cause::Misaligned) => bad.addr += 4,
        _ => {}
    }
    let sges = [mine.sge(at, 8)];
    let long = [mine.sge(0, 9)];
    let work = match cause {
        None | Some(Cause::LocalKey) => Work::write(&sges, sound),
        Some(Cause::WrongKey | Cause::Beyond) => Work::write(&sges, bad),
        Some(Cause::NotWritable) => Work::write(&sges, read_only),
        Some(Cause::NotReadable) => Work::read(&sges, write_only),
        Some(Cause::Misaligned) => Work::fetch_add(&sges, bad, 1),
        Some(Cause::ShortReceive) => Work::send(&long),
    };
    let work = if case.signaled[i] {
        work.signaled()
    } else {
        work
    };
    qp.prepare(&work).unwrap()
}

/// The rank whose request fails.
fn fails(rank: &Rank, devices: &Devices, qp: &mut Qp, bystander: &mut Qp, case: &Case) {
    let mine = devices.memory(MemoryKind::Pinned, 4096);
    let theirs = [(); 3].map(|()| rank.swap_memory(&mine, rank.peer()));
    rank.connect(qp, rank.peer());
    let stream = devices.gpu.stream().unwrap();
    let word = |at: usize| mine.region().word32(at).unwrap();
    let gate = word(2048);
    let mark = |i: usize| word(2052 + 4 * i);
    let count = case.signaled.len();
    let requests: Vec<SendRequest> = (0..count)
        .map(|i| prepare(qp, &mine, &theirs, case, i))
        .collect();
    enqueue(qp, &stream, case, &requests, &mine, &gate, &mark);
    // The copies of the statuses of request and queue pair that the stream made.
    let seen = |i: usize| [0, 4].map(|k| noted(&mine, 3072 + 8 * i as u64 + k));

    let looking_after = [devices.nic() + ".watcher", devices.nic() + ".cpu"];
    looking_after.iter().for_each(|m| rank.control.freeze(m));
    gate.store(1).unwrap();
    // While this stream waits, the other one continues.
    traffic(rank, devices, bystander, 10);
    rank.pass(LONG);
    if qp.doorbell() == Doorbell::Direct {
        let wrong =
            (case.failing..count).find(|i| case.signaled[*i] && mark(*i).load().unwrap() == 1);
        assert_eq!(
            wrong, None,
            "a stream passed a failure that has not been handled"
        );
    }
    looking_after.iter().for_each(|m| rank.control.unfreeze(m));
    passes(&stream, "behind the failure");
    let failed = case.cause.status();
    for (i, request) in requests.iter().enumerate() {
        let expected = match i {
            i if i < case.failing => Status::SUCCESS,
            i if i == case.failing => failed,
            _ => Status::FLUSHED,
        };
        let status = qp.poll(*request).unwrap();
        assert_eq!(
            status,
            Some(expected),
            "request {i} of {count}, {:?}",
            case.cause
        );
        if case.one_list || !case.signaled[i] {
            continue;
        }
        match i < case.failing {
            true => assert_eq!(seen(i)[0], 0, "request {i} of {count} as the stream saw it"),
            false => assert_eq!(
                seen(i),
                [expected.0, failed.0],
                "request {i} of {count} and the queue pair as the stream saw them"
            ),
        }
    }
    assert_eq!(qp.error(), Some(failed));
    let refused = qp.prepare(&Work::nop()).unwrap_err();
    assert_eq!(refused.kind(), Kind::Failed(failed));
    rank.barrier();
}

/// Enqueues everything behind a closed gate: requests, waits, and stores that show the progress of
/// the stream and what it sees.
fn enqueue(
    qp: &mut Qp,
    stream: &gdsync::Stream,
    case: &Case,
    requests: &[SendRequest],
    mine: &Mr,
    gate: &Word32,
    mark: &dyn Fn(usize) -> Word32,
) {
    let marks: Vec<Word32> = (0..requests.len()).map(mark).collect();
    let spoiled = match case.cause {
        Cause::LocalKey => {
            let key = Field::Key(0);
            Some(qp.field32(requests[case.failing], key).unwrap())
        }
        _ => None,
    };
    let mut list = vec![reaches(gate, 1)];
    for (i, request) in requests.iter().enumerate() {
        if let Some(word) = spoiled.as_ref().filter(|_| i == case.failing) {
            list.push(Descriptor::write_value(
                word,
                (mine.lkey() ^ 0x7700).to_be(),
            ));
        }
        list.push(Descriptor::Send(*request));
        if case.signaled[i] {
            list.push(Descriptor::wait(*request));
            let arrived = Descriptor::write_value(&marks[i], 1);
            if case.one_list {
                list.push(arrived);
                continue;
            }
            qp.post_on(stream, &list).unwrap();
            list.clear();
            let at = 3072 + 8 * i as u64;
            note(stream, qp.status_word(*request).unwrap(), mine, at);
            note(stream, qp.error_word(), mine, at + 4);
            list.push(arrived);
        }
    }
    qp.post_on(stream, &list).unwrap();
}

/// The rank whose memory does not grant the access.
fn is_asked(rank: &Rank, devices: &Devices, qp: &mut Qp, bystander: &mut Qp, case: &Case) {
    let exposed = exposed(devices);
    for memory in &exposed {
        rank.swap_memory(memory, rank.peer());
    }
    let landing = devices.memory(MemoryKind::Pinned, 1024);
    let stream = devices.gpu.stream().unwrap();
    // If only the peer's queue pair fails, waits for its messages would never end.
    let ahead = case.cause.receives().map_or(0, |_| case.receives);
    let receives: Vec<ReceiveRequest> = (0..ahead)
        .map(|i| {
            let request = qp.prepare_receive(&[landing.sge(8 * i as u64, 8)]).unwrap();
            let list = [Descriptor::Receive(request), Descriptor::wait(request)];
            qp.post_on(&stream, &list).unwrap();
            let at = 512 + 4 * i as u64;
            note(&stream, qp.status_word(request).unwrap(), &landing, at);
            request
        })
        .collect();
    rank.connect(qp, rank.peer());
    traffic(rank, devices, bystander, 10);
    // The memory stays until the other rank is done with it.
    rank.barrier();
    let Some((first, others)) = case.cause.receives() else {
        return;
    };
    passes(&stream, "of the peer");
    for (i, request) in receives.iter().enumerate() {
        let expected = if i == 0 { first } else { others };
        assert_eq!(qp.poll(*request).unwrap(), Some(expected), "receive {i}");
        let seen = noted(&landing, 512 + 4 * i as u64);
        assert_eq!(seen, expected.0, "receive {i} as the stream saw it");
    }
    assert_eq!(qp.error(), Some(first));
}
