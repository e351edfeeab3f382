//! The times at which the library calls the NIC: not while a queue pair is locked, and not while a
//! stream may still write the doorbell. A virtual NIC checks the queue pairs when it is called.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Instant;

use gds_step::Mutex;

use super::odd_nic::OddNic;
use crate::common::*;
use crate::nic::Transport;
use crate::rdma::verbs::QpCore;

/// The calls of a NIC: the name of each, and whether a queue pair was locked.
#[derive(Clone, Default)]
pub(super) struct Calls(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    cores: Vec<Weak<QpCore>>,
    calls: Vec<(&'static str, bool)>,
    /// The next call of this name blocks until the receiver's sender is dropped.
    hangs: Option<(&'static str, Receiver<()>)>,
}

impl Calls {
    /// Makes the next call of this name block until the returned sender is dropped.
    fn hang(&self, call: &'static str) -> Sender<()> {
        let (sender, receiver) = channel();
        self.0.lock().hangs = Some((call, receiver));
        sender
    }

    /// Checks this queue pair from now on.
    fn look_at(&self, qp: &Qp) {
        self.0.lock().cores.push(Arc::downgrade(&qp.core));
    }

    pub fn note(&self, call: &'static str) {
        let (cores, known) = {
            let seen = self.0.lock();
            let known = seen.calls.iter().any(|(_, locked)| *locked);
            (seen.cores.clone(), known)
        };
        // Another thread holds a lock only briefly. A lock of the calling thread stays held during
        // this call, so the check waits for the first lock that it finds, and for no later one.
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

    /// Waits until the NIC gets this call.
    fn wait_for(&self, gpu: &Gpu, call: &str) {
        until(gpu, call, || self.count(call) > 0);
    }
}

/// Whether the lock of a queue pair is free now or becomes free within `limit`.
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

fn config(transport: Transport) -> QpConfig {
    sized(&QpConfig::default(), 8, 4).transport(transport)
}

/// Two queue pairs that are checked when their NIC is called, not connected yet.
fn apart(config: &QpConfig) -> (Pair, Calls) {
    let gpu = Gpu::soft().unwrap();
    let nic = OddNic::new(&gpu);
    let calls = nic.calls.clone();
    let pd = nic.open(&gpu).alloc_pd().unwrap();
    let pair = Pair::of_domain(&pd, config);
    calls.look_at(&pair.a);
    calls.look_at(&pair.b);
    (pair, calls)
}

fn connected(config: &QpConfig) -> (Pair, Calls) {
    let (mut pair, calls) = apart(config);
    pair.connect();
    (pair, calls)
}

fn memory(pair: &Pair) -> Mr {
    pair.memory(MemoryKind::Pinned, 64)
}

/// A slow call of the NIC does not block the queue pair: neither the end of a registration or
/// destination with its request, nor a change of state.
#[test]
fn no_lock_is_held_while_the_nic_is_called() {
    for transport in [Transport::Rc, Transport::Ud { qkey: 5 }] {
        let (mut p, calls) = apart(&config(transport));
        for round in 0..3 {
            let to = match transport {
                Transport::Rc => {
                    p.connect();
                    None
                }
                Transport::Ud { .. } => {
                    p.a.activate().unwrap();
                    p.b.activate().unwrap();
                    Some(p.pd_a.destination(&p.b.address()).unwrap())
                }
            };
            // One request is done, one is flushed, one aborted; each holds a separate registration.
            let into = memory(&p);
            let receive = p.b.receive(&[into.sge(0, 64)]);
            let send = |p: &mut Pair| {
                let from = memory(p);
                let list = [from.sge(0, 8)];
                let work = to.iter().fold(Work::send(&list), |work, to| work.to(to));
                p.a.signaled(&work)
            };
            let first = send(&mut p);
            p.a.post(first).unwrap();
            drop(into);
            p.a.wait(first, LIMIT).unwrap();
            p.b.wait(receive, LIMIT).unwrap();
            let last = send(&mut p);
            p.a.abort(last).unwrap();
            let into = memory(&p);
            p.b.receive(&[into.sge(0, 64)]);
            drop((into, to));
            for qp in [&mut p.a, &mut p.b] {
                if round % 2 == 0 {
                    qp.fail(Status::CLOSED);
                }
                qp.quiet(LIMIT).unwrap();
                qp.reset().unwrap();
            }
        }
        let device = p.a.device().clone();
        drop(p);
        device.close(LIMIT).unwrap();
        for call in ["dereg_mr", "modify_to_error", "reset_qp", "destroy_qp"] {
            assert!(calls.count(call) >= 2, "the NIC got no {call}");
        }
        let seen = calls.0.lock();
        let held: Vec<_> = seen.calls.iter().filter(|(_, held)| *held).collect();
        assert!(held.is_empty(), "with a lock: {held:?}");
    }
}

/// A NIC that hangs in a call for one queue pair does not block its device: other queue pairs can
/// be made, and time limits hold.
#[test]
fn device_stays_usable_while_a_call_for_one_queue_pair_hangs() {
    for (call, doorbell) in [
        ("destroy_qp", Doorbell::Direct),
        ("modify_to_error", Doorbell::Direct),
        ("dereg_mr", Doorbell::Direct),
        ("dereg_mr", Doorbell::CpuThread),
    ] {
        let config = config(Transport::Rc)
            .doorbell(doorbell)
            .timeout((call == "modify_to_error").then_some(Duration::from_millis(5)));
        let (mut p, calls) = connected(&config);
        let (gpu, device, pd) = (p.gpu.clone(), p.a.device().clone(), p.pd_a.clone());
        let (from, into) = (memory(&p), memory(&p));
        // The send is in flight until there is a receive.
        let send = p.a.signaled(&Work::send(&[from.sge(0, 8)]));
        if call != "destroy_qp" {
            p.a.post(send).unwrap();
        }
        let hanging = calls.hang(call);
        match call {
            "destroy_qp" => drop((p.a, p.b)),
            "dereg_mr" => {
                drop(from);
                p.b.receive(&[into.sge(0, 8)]);
            }
            _ => {}
        }
        calls.wait_for(&gpu, call);
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

/// A queue pair whose doorbell no stream has written is destroyed when `close` returns: a peer's
/// messages no longer reach it.
#[test]
fn close_returns_after_idle_queue_pairs_are_destroyed() {
    let (p, calls) = connected(&config(Transport::Rc));
    let hanging = calls.hang("destroy_qp");
    let device = p.a.device().clone();
    drop(p.a);
    calls.wait_for(&p.gpu, "destroy_qp");
    let early = device.close(Duration::from_millis(20));
    drop(hanging);
    let e = early.expect_err("the NIC has not destroyed it yet");
    assert_eq!(e.kind(), Kind::Timeout, "{e}");
    device.close(LIMIT).unwrap();
}

/// One CPU thread writes the doorbells of all NICs.
#[test]
fn cpu_thread_serves_other_nics_while_one_nic_hangs() {
    let config = config(Transport::Rc).doorbell(Doorbell::CpuThread);
    let [(mut p, calls), (mut other, _)] = [(); 2].map(|()| connected(&config));
    let (from, into) = (memory(&p), memory(&p));
    p.a.start(&Work::send(&[from.sge(0, 8)]));
    let hanging = calls.hang("dereg_mr");
    drop(from);
    p.b.receive(&[into.sge(0, 8)]);
    calls.wait_for(&p.gpu, "dereg_mr");
    let memory = memory(&other);
    let span = memory.remote().span(32, 8).unwrap();
    let stream = other.gpu.stream().unwrap();
    let list = [memory.sge(0, 8)];
    other.a.start_on(&stream, &Work::write(&list, span));
    let passed = stream.synchronize(Duration::from_secs(5)).unwrap();
    drop(hanging);
    assert!(passed, "the CPU thread is held up by a call of another NIC");
}

/// The NIC may read the doorbell record at any time, also for an earlier doorbell: so a request may
/// complete before its stream writes its doorbell.
#[test]
fn queue_pair_is_kept_until_streams_have_passed_its_doorbell() {
    let (mut p, calls) = connected(&config(Transport::Rc));
    let (memory, gate) = (memory(&p), Gate::new(&p.gpu));
    let stream = p.gpu.stream().unwrap();
    let span = memory.remote().span(32, 8).unwrap();
    let write = p.a.signaled(&Work::write(&[memory.sge(0, 8)], span));
    let post = [gate.wait(), Descriptor::Send(write)];
    p.a.post_on(&stream, &post).unwrap();
    // Stands in for the stream, which waits at the gate: the record is written, and the NIC reads
    // it.
    let posted = {
        let state = p.a.core.lock();
        state.send.ring_for(state.send.fifo.posted()).unwrap()
    };
    p.a.core.ring(posted.index, posted.doorbell);
    p.a.wait(write, LIMIT).unwrap();
    p.a.quiet(LIMIT).unwrap();
    let device = p.a.device().clone();
    drop(p.a);
    // For the application the queue pair is gone.
    device.close(LIMIT).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(calls.count("destroy_qp"), 0, "the stream has yet to ring");
    gate.open();
    passes(&stream);
    until(&p.gpu, "it is gone", || calls.count("destroy_qp") == 1);
}

/// The word by which a stream marks its arrival at a wait with a limit keeps the value of the last
/// wait with a limit. A value from 2^31 waits ago must not count as an arrival at the current wait.
#[test]
fn time_limit_starts_at_the_arrival_of_the_stream_after_any_number_of_waits() {
    for marks in [0, 1 << 31, (1 << 31) + 7, u32::MAX - 1, u32::MAX] {
        let (mut p, _) = connected(&config(Transport::Rc));
        let (memory, gate) = (memory(&p), Gate::new(&p.gpu));
        let stream = p.gpu.stream().unwrap();
        p.a.core.lock().send.cq.age(stream.id(), marks).unwrap();
        let span = memory.remote().span(32, 8).unwrap();
        let list = [memory.sge(0, 8)];
        let write = p.a.signaled(&Work::write(&list, span));
        let limit = Duration::from_millis(250);
        let post = |send| [Descriptor::Send(send), Descriptor::wait(send).within(limit)];
        p.a.post_on(&stream, &[gate.wait()]).unwrap();
        p.a.post_on(&stream, &post(write)).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let error = p.a.error();
        assert_eq!(error, None, "after {marks:#x} waits: still at the gate");
        gate.open();
        passes(&stream);
        p.a.wait(write, LIMIT).unwrap();
        // The limit does start: there is no receiver.
        let send = p.a.signaled(&Work::send(&list));
        p.a.post_on(&stream, &post(send)).unwrap();
        passes(&stream);
        let timeout = Some(Kind::Failed(Status::TIMEOUT));
        assert_eq!(kind(p.a.wait(send, LIMIT)), timeout, "{marks:#x}");
    }
}
