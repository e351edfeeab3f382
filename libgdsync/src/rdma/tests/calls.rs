//! When the library calls the NIC: not with a queue pair's lock held, and not while a stream may
//! still ring. A virtual NIC looks at the queue pairs when it is called.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use gds_step::Mutex;

use crate::error::{Kind, Result};
use crate::gpu::{Gpu, MemoryKind, Region, Word32};
use crate::memop::Condition;
use crate::nic::{
    Access, Ah, AhAttr, MrKeys, Nic, PdId, QpAddress, QpMade, QpObjects, QpRings, Transport,
};
use crate::provider::emulated::{EmulatedNic, EmulatedOptions};
use crate::rdma::verbs::QpCore;
use crate::rdma::{Descriptor, Device, Doorbell, Mr, Pd, Qp, QpConfig, Work};
use crate::status::Status;

const LIMIT: Duration = Duration::from_secs(60);

/// What a NIC was asked for: the call, and whether a queue pair was locked.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    cores: Vec<Weak<QpCore>>,
    calls: Vec<(&'static str, bool)>,
    /// The next call of this name does not return before this has no sender any more.
    hangs: Option<(&'static str, Receiver<()>)>,
}

impl Calls {
    /// Has the next such call hang until what is returned is dropped.
    fn hang(&self, call: &'static str) -> Sender<()> {
        let (sender, receiver) = channel();
        self.0.lock().hangs = Some((call, receiver));
        sender
    }

    /// Looks at this queue pair from now on.
    fn look_at(&self, qp: &Qp) {
        self.0.lock().cores.push(Arc::downgrade(&qp.core));
    }

    fn note(&self, call: &'static str) {
        let (cores, known) = {
            let seen = self.0.lock();
            let known = seen.calls.iter().any(|(_, locked)| *locked);
            (seen.cores.clone(), known)
        };
        // Another thread holds a lock for a moment only. A lock of the calling thread stays held
        // during this call, so the first one that is found is waited for, and no later one.
        let limit = if known { Duration::ZERO } else { LIMIT };
        let locked = |core: &Weak<QpCore>| core.upgrade().is_some_and(|c| !unlocks(&c, limit));
        let locked = cores.iter().any(locked);
        let mut seen = self.0.lock();
        seen.calls.push((call, locked));
        let hangs = seen.hangs.take_if(|(hangs, _)| *hangs == call);
        drop(seen);
        if let Some((_, until)) = hangs {
            let _ = until.recv();
        }
    }

    fn count(&self, call: &str) -> usize {
        self.0
            .lock()
            .calls
            .iter()
            .filter(|(c, _)| *c == call)
            .count()
    }
}

/// Whether the lock of a queue pair is free now or within `limit`.
fn unlocks(core: &QpCore, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    while core.try_lock().is_none() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

struct LookingNic {
    nic: EmulatedNic,
    calls: Calls,
}

impl LookingNic {
    fn note(&self, call: &'static str) {
        self.calls.note(call);
    }
}

impl Nic for LookingNic {
    delegate_to_nic!();
    delegate_to_nic! {
        modify_to_error(qpn: u32) -> bool;
    }
}

struct Rig {
    gpu: Gpu,
    calls: Calls,
    device: Device,
    pd: Pd,
    a: Qp,
    b: Qp,
}

impl Rig {
    fn config(transport: Transport) -> QpConfig {
        QpConfig::default()
            .send_blocks(8)
            .recv_entries(4)
            .transport(transport)
    }

    fn new(transport: Transport) -> Rig {
        Rig::with(&Rig::config(transport))
    }

    fn with(config: &QpConfig) -> Rig {
        let gpu = Gpu::soft().unwrap();
        let nic = EmulatedNic::open(&gpu, EmulatedOptions::default()).unwrap();
        let calls = Calls::default();
        let nic = LookingNic {
            nic,
            calls: calls.clone(),
        };
        let device = Device::open(&gpu, Arc::new(nic), true, Vec::new()).unwrap();
        let pd = device.alloc_pd().unwrap();
        let [a, b] = [(); 2].map(|()| pd.create_qp(config).unwrap());
        calls.look_at(&a);
        calls.look_at(&b);
        Rig {
            gpu,
            calls,
            device,
            pd,
            a,
            b,
        }
    }

    fn connected() -> Rig {
        let mut rig = Rig::new(Transport::Rc);
        rig.connect();
        rig
    }

    fn connect(&mut self) {
        self.a.connect(&self.b.address()).unwrap();
        self.b.connect(&self.a.address()).unwrap();
    }

    fn memory(&self) -> Mr {
        let memory = self.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        self.pd.register(&memory, Access::ALL).unwrap()
    }

    fn word(&self) -> Word32 {
        let memory = self.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        memory.word32(0).unwrap()
    }
}

fn gate(word: &Word32) -> Descriptor<'_> {
    Descriptor::WaitValue32 {
        word,
        condition: Condition::Geq,
        value: 1,
        flush: false,
    }
}

/// A slow call of the NIC does not block the queue pair: not the end of a registration or of a
/// destination with its request, and no change of state.
#[test]
fn no_lock_is_held_while_the_nic_is_called() {
    for transport in [Transport::Rc, Transport::Ud { qkey: 5 }] {
        let mut rig = Rig::new(transport);
        for round in 0..3 {
            let to = match transport {
                Transport::Rc => {
                    rig.connect();
                    None
                }
                Transport::Ud { .. } => {
                    rig.a.activate().unwrap();
                    rig.b.activate().unwrap();
                    Some(rig.pd.destination(&rig.b.address()).unwrap())
                }
            };
            // One request is done, one is flushed, one aborted; each holds memory of its own.
            let into = rig.memory();
            let receive = rig.b.prepare_receive(&[into.sge(0, 64)]).unwrap();
            rig.b.post_receive(receive).unwrap();
            let send = |rig: &mut Rig| {
                let from = rig.memory();
                let list = [from.sge(0, 8)];
                let work = Work::send(&list).signaled();
                let work = to.iter().fold(work, |work, to| work.to(to));
                rig.a.prepare(&work).unwrap()
            };
            let first = send(&mut rig);
            rig.a.post(first).unwrap();
            drop(into);
            rig.a.wait(first, LIMIT).unwrap();
            rig.b.wait(receive, LIMIT).unwrap();
            let last = send(&mut rig);
            rig.a.abort(last).unwrap();
            let into = rig.memory();
            let flushed = rig.b.prepare_receive(&[into.sge(0, 64)]).unwrap();
            rig.b.post_receive(flushed).unwrap();
            drop((into, to));
            for qp in [&mut rig.a, &mut rig.b] {
                if round % 2 == 0 {
                    qp.fail(Status::CLOSED);
                }
                qp.quiet(LIMIT).unwrap();
                qp.reset().unwrap();
            }
        }
        let Rig {
            calls,
            device,
            a,
            b,
            pd,
            ..
        } = rig;
        drop((a, b, pd));
        device.close(LIMIT).unwrap();
        for call in ["dereg_mr", "modify_to_error", "reset_qp", "destroy_qp"] {
            assert!(calls.count(call) >= 2, "{call} was not tried");
        }
        let seen = calls.0.lock();
        let held: Vec<_> = seen.calls.iter().filter(|(_, held)| *held).collect();
        assert!(held.is_empty(), "with a lock: {held:?}");
    }
}

/// A NIC that hangs in a call for one queue pair keeps nobody from its device: others are made, and
/// limits hold.
#[test]
fn a_device_is_of_use_while_its_nic_is_called_for_one_queue_pair() {
    for (call, doorbell) in [
        ("destroy_qp", Doorbell::Direct),
        ("modify_to_error", Doorbell::Direct),
        ("dereg_mr", Doorbell::Direct),
        ("dereg_mr", Doorbell::CpuThread),
    ] {
        let config = Rig::config(Transport::Rc)
            .doorbell(doorbell)
            .timeout((call == "modify_to_error").then_some(Duration::from_millis(5)));
        let mut rig = Rig::with(&config);
        rig.connect();
        let (device, pd, calls) = (rig.device.clone(), rig.pd.clone(), rig.calls.clone());
        let (from, into) = (rig.memory(), rig.memory());
        // In flight until there is a receive.
        let list = [from.sge(0, 8)];
        let send = rig.a.prepare(&Work::send(&list).signaled()).unwrap();
        if call != "destroy_qp" {
            rig.a.post(send).unwrap();
        }
        let hanging = calls.hang(call);
        match call {
            "destroy_qp" => drop((rig.a, rig.b)),
            "dereg_mr" => {
                drop(from);
                let receive = rig.b.prepare_receive(&[into.sge(0, 8)]).unwrap();
                rig.b.post_receive(receive).unwrap();
            }
            _ => {}
        }
        let host = Arc::clone(device.gpu().host());
        let deadline = host.now() + LIMIT;
        assert!(host.wait_until(Some(deadline), &mut || calls.count(call) > 0));
        let (sender, done) = channel();
        std::thread::spawn(move || {
            drop(pd.create_qp(&config).unwrap());
            let _ = device.close(Duration::from_millis(10));
            let _ = sender.send(());
        });
        let returned = done.recv_timeout(Duration::from_secs(5));
        drop(hanging);
        assert!(returned.is_ok(), "{call} of {doorbell:?} keeps the device");
    }
}

/// A queue pair that no stream has rung for is destroyed when `close` returns: a peer's messages
/// no longer reach it.
#[test]
fn close_returns_after_idle_queue_pairs_are_destroyed() {
    let rig = Rig::connected();
    let hanging = rig.calls.hang("destroy_qp");
    let Rig {
        device, calls, a, ..
    } = rig;
    drop(a);
    let host = Arc::clone(device.gpu().host());
    let deadline = host.now() + LIMIT;
    assert!(host.wait_until(Some(deadline), &mut || calls.count("destroy_qp") > 0));
    let early = device.close(Duration::from_millis(20));
    drop(hanging);
    let e = early.expect_err("the NIC has not destroyed it yet");
    assert_eq!(e.kind(), Kind::Timeout, "{e}");
    device.close(LIMIT).unwrap();
}

/// One CPU thread rings for all NICs.
#[test]
fn the_proxy_goes_on_for_others_while_a_nic_hangs() {
    let config = Rig::config(Transport::Rc).doorbell(Doorbell::CpuThread);
    let [mut rig, mut other] = [(); 2].map(|()| Rig::with(&config));
    rig.connect();
    other.connect();
    let (from, into) = (rig.memory(), rig.memory());
    let list = [from.sge(0, 8)];
    let send = rig.a.prepare(&Work::send(&list).signaled()).unwrap();
    rig.a.post(send).unwrap();
    let hanging = rig.calls.hang("dereg_mr");
    drop(from);
    let receive = rig.b.prepare_receive(&[into.sge(0, 8)]).unwrap();
    rig.b.post_receive(receive).unwrap();
    let (host, calls) = (Arc::clone(rig.gpu.host()), rig.calls.clone());
    let deadline = host.now() + LIMIT;
    assert!(host.wait_until(Some(deadline), &mut || calls.count("dereg_mr") > 0));
    let memory = other.memory();
    let list = [memory.sge(0, 8)];
    let span = memory.remote().span(32, 8).unwrap();
    let write = other
        .a
        .prepare(&Work::write(&list, span).signaled())
        .unwrap();
    let stream = other.gpu.stream().unwrap();
    let post = [Descriptor::Send(write), Descriptor::wait(write)];
    other.a.post_on(&stream, &post).unwrap();
    let passed = stream.synchronize(Duration::from_secs(5)).unwrap();
    drop(hanging);
    assert!(passed, "the CPU thread is held up by a call of another NIC");
}

/// The NIC reads the doorbell record when it likes, also for an earlier doorbell: so a request may
/// be done before its stream rings for it.
#[test]
fn a_queue_pair_is_kept_until_streams_are_past_its_doorbell() {
    let mut rig = Rig::connected();
    let (memory, word) = (rig.memory(), rig.word());
    let stream = rig.gpu.stream().unwrap();
    let span = memory.remote().span(32, 8).unwrap();
    let list = [memory.sge(0, 8)];
    let write = rig.a.prepare(&Work::write(&list, span).signaled()).unwrap();
    let post = [gate(&word), Descriptor::Send(write)];
    rig.a.post_on(&stream, &post).unwrap();
    // In place of the stream, which stands at the gate: the record is there, and the NIC reads it.
    let posted = {
        let state = rig.a.core.lock();
        state.send.ring_for(state.send.fifo.posted()).unwrap()
    };
    rig.a.core.ring(posted.index, posted.doorbell);
    rig.a.wait(write, LIMIT).unwrap();
    rig.a.quiet(LIMIT).unwrap();
    let (device, calls) = (rig.device.clone(), rig.calls.clone());
    drop(rig.a);
    // For the application it is gone.
    device.close(LIMIT).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(calls.count("destroy_qp"), 0, "the stream has still to ring");
    word.store(1).unwrap();
    assert!(stream.synchronize(LIMIT).unwrap());
    let gone = &mut || calls.count("destroy_qp") == 1;
    let deadline = rig.gpu.host().now() + LIMIT;
    assert!(rig.gpu.host().wait_until(Some(deadline), gone));
}

/// The word by which a stream marks its arrival at a wait with a limit keeps the value of the last
/// such wait. A value from 2^31 waits ago must not count as an arrival at the current wait.
#[test]
fn a_time_limit_begins_when_the_stream_arrives_after_any_number_of_waits() {
    for marks in [0, 1 << 31, (1 << 31) + 7, u32::MAX - 1, u32::MAX] {
        let mut rig = Rig::connected();
        let (memory, word) = (rig.memory(), rig.word());
        let stream = rig.gpu.stream().unwrap();
        rig.a.core.lock().send.cq.age(stream.id(), marks).unwrap();
        let span = memory.remote().span(32, 8).unwrap();
        let list = [memory.sge(0, 8)];
        let write = rig.a.prepare(&Work::write(&list, span).signaled()).unwrap();
        let limit = Duration::from_millis(5);
        let post = [
            gate(&word),
            Descriptor::Send(write),
            Descriptor::wait(write).within(limit),
        ];
        rig.a.post_on(&stream, &post).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(
            rig.a.error(),
            None,
            "after {marks:#x} waits: still at the gate"
        );
        word.store(1).unwrap();
        assert!(stream.synchronize(LIMIT).unwrap());
        rig.a.wait(write, LIMIT).unwrap();
        // The limit does begin: there is no receiver.
        let send = rig.a.prepare(&Work::send(&list).signaled()).unwrap();
        let post = [Descriptor::Send(send), Descriptor::wait(send).within(limit)];
        rig.a.post_on(&stream, &post).unwrap();
        assert!(stream.synchronize(LIMIT).unwrap());
        let failed = rig.a.wait(send, LIMIT).unwrap_err();
        assert_eq!(failed.kind(), Kind::Failed(Status::TIMEOUT), "{marks:#x}");
    }
}
