//! Every way in which a request fails, from its real cause: the status that the CPU, streams and
//! kernels see, the effect on neighbouring requests, and the recovery of the queue pair.

mod common;

use common::witness::{Seen, Witness};
use common::*;
use gdsync::gpu::{Word32, Word64};
use gdsync::rdma::{Field, RemoteSpan};

/// The effect on the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// None: the request did not reach it.
    Untouched,
    /// Its queue pair is in error: receives are flushed.
    Flushed,
    /// As `Flushed`, and the receive that the request matched fails with this status.
    Victim(Status),
}

struct Case {
    name: &'static str,
    status: Status,
    peer: Peer,
    /// The rights that `b` grants its peer.
    access: Access,
    /// Prepares the request that is going to fail.
    make: fn(&mut Scene) -> SendRequest,
}

/// Words that the stream overwrites before it rings for the request, big-endian.
enum Patch {
    Narrow(Word32, u32),
    Wide(Word64, u64),
}

struct Scene {
    pair: Pair,
    near: Mr,
    far: Mr,
    /// Whether the request that is going to fail raises a completion.
    signaled: bool,
    patches: Vec<Patch>,
    keep: Vec<Mr>,
}

impl Scene {
    fn new(pair: Pair) -> Scene {
        Scene {
            near: pair.mem_a(MemoryKind::Pinned, 4096),
            far: pair.mem_b(MemoryKind::Device, 4096),
            pair,
            signaled: true,
            patches: Vec::new(),
            keep: Vec::new(),
        }
    }

    fn prepare(&mut self, work: Work<'_>, signaled: bool) -> SendRequest {
        let work = if signaled { work.signaled() } else { work };
        self.pair.a.prepare(&work).unwrap()
    }

    /// Prepares the request that is going to fail.
    fn bad(&mut self, work: Work<'_>) -> SendRequest {
        self.prepare(work, self.signaled)
    }

    fn patch(&mut self, request: SendRequest, field: Field, value: u32) {
        let word = self.pair.a.field32(request, field).unwrap();
        self.patches.push(Patch::Narrow(word, value.to_be()));
    }

    /// A write of 8 bytes whose local key the stream replaces.
    fn write_with_key(&mut self, key: u32) -> SendRequest {
        let (near, to) = (self.near.clone(), self.far.remote().span(0, 8).unwrap());
        let request = self.bad(Work::write(&[sge(&near, 0, 8)], to));
        self.patch(request, Field::Key(0), key);
        request
    }

    /// A SEND of 8 bytes with another word of its control segment.
    fn send_with_control(&mut self, word: usize, change: u32) -> SendRequest {
        let near = self.near.clone();
        let request = self.bad(Work::send(&[sge(&near, 0, 8)]));
        let length = self.pair.a.field32(request, Field::Length(0)).unwrap();
        let ring = length.region().clone();
        // The control segment is in front of the only data segment, which begins with its length.
        let at = (length.addr().0 - ring.addr().0) as usize - 16 + 4 * word;
        let word = ring.word32(at).unwrap();
        let value = u32::from_be(word.load().unwrap()) ^ change;
        self.patches.push(Patch::Narrow(word, value.to_be()));
        request
    }

    fn write_to(&mut self, to: RemoteSpan) -> SendRequest {
        let near = self.near.clone();
        self.bad(Work::write(&[sge(&near, 0, 8)], to))
    }

    /// The kinds of access that a peer grants, on memory or a queue pair that lacks them.
    fn write_read_atomic(&mut self, which: Access, to: RemoteSpan) -> SendRequest {
        let near = self.near.clone();
        let list = [sge(&near, 0, 8)];
        let work = match which {
            Access::REMOTE_WRITE => Work::write(&list, to),
            Access::REMOTE_READ => Work::read(&list, to),
            _ => Work::fetch_add(&list, to, 1),
        };
        self.bad(work)
    }

    /// Memory of `b` with only these rights.
    fn far_with(&mut self, access: Access) -> RemoteSpan {
        let mr = memory(&self.pair.pd_b, MemoryKind::Pinned, 64, access);
        let span = mr.remote().span(0, 8).unwrap();
        self.keep.push(mr);
        span
    }

    fn far_span(&self) -> RemoteSpan {
        self.far.remote().span(0, 8).unwrap()
    }
}

const WRITE_READ: Access = Access::REMOTE_WRITE;

fn cases() -> Vec<Case> {
    use Status as S;
    let local = |name, status, make| Case {
        name,
        status,
        peer: Peer::Untouched,
        access: Access::ALL,
        make,
    };
    let remote = |name, status, make| Case {
        peer: Peer::Flushed,
        ..local(name, status, make)
    };
    let granted = |name, access, make| Case {
        access,
        ..remote(name, S::REMOTE_ACCESS, make)
    };
    let protection = |name, make| local(name, S::LOCAL_PROTECTION, make);
    let operation = |name, make| local(name, S::LOCAL_QP_OPERATION, make);
    let denied = |name, make| remote(name, S::REMOTE_ACCESS, make);
    vec![
        protection("unknown local key", |s| {
            let key = s.near.lkey() ^ 0x00ab_cd00;
            s.write_with_key(key)
        }),
        protection("deregistered memory", |s| {
            let key = s.pair.mem_a(MemoryKind::Pinned, 64).lkey();
            s.write_with_key(key)
        }),
        protection("local key of another PD", |s| {
            let other = s.pair.pd_a.device().alloc_pd().unwrap();
            // Memory of the same addresses: only the domain is wrong.
            let mr = other.register(s.near.region(), Access::ALL).unwrap();
            let request = s.write_with_key(mr.lkey());
            s.keep.push(mr);
            request
        }),
        protection("beyond the local memory", |s| {
            let (near, to) = (s.near.clone(), s.far_span());
            let request = s.bad(Work::write(&[sge(&near, 4088, 8)], to));
            s.patch(request, Field::Length(0), 9);
            request
        }),
        protection("a READ into memory that is read-only", |s| {
            let (near, from) = (s.near.clone(), s.far_span());
            let request = s.bad(Work::read(&[sge(&near, 0, 8)], from));
            let pd = &s.pair.pd_a;
            let mr = pd.register(near.region(), Access::LOCAL_READ).unwrap();
            s.patch(request, Field::Key(0), mr.lkey());
            s.keep.push(mr);
            request
        }),
        local("an atomic of four bytes", S::LOCAL_LENGTH, |s| {
            let (near, to) = (s.near.clone(), s.far_span());
            let request = s.bad(Work::fetch_add(&[sge(&near, 0, 8)], to, 1));
            s.patch(request, Field::Length(0), 4);
            request
        }),
        local("a message of more than 2 GiB", S::LOCAL_LENGTH, |s| {
            // Thirty pieces of the same 72 MiB, which no CPU or stream accesses.
            let mr = s.pair.mem_a(MemoryKind::Device, 72 << 20);
            let list = [sge(&mr, 0, 72 << 20); 30];
            let to = s.far_span();
            s.bad(Work::write(&list, to))
        }),
        operation("an opcode that is none", |s| s.send_with_control(0, 0x55)),
        operation("the index of another entry", |s| {
            s.send_with_control(0, 0x100)
        }),
        operation("the number of another QP", |s| {
            s.send_with_control(1, 0x100)
        }),
        denied("unknown remote key", |s| {
            let mut to = s.far_span();
            to.rkey ^= 0x00ab_cd00;
            s.write_to(to)
        }),
        denied("remote key that the stream patched", |s| {
            let to = s.far_span();
            let request = s.write_to(to);
            s.patch(request, Field::RemoteKey, to.rkey ^ 0x00ab_cd00);
            request
        }),
        denied("remote memory deregistered", |s| {
            let to = s.pair.mem_b(MemoryKind::Pinned, 64).remote();
            s.write_to(to.span(0, 8).unwrap())
        }),
        denied("remote key of another PD", |s| {
            let other = s.pair.pd_b.device().alloc_pd().unwrap();
            let mr = other.register(s.far.region(), Access::ALL).unwrap();
            let to = mr.remote().span(0, 8).unwrap();
            s.keep.push(mr);
            s.write_to(to)
        }),
        denied("beyond the remote memory", |s| {
            let mut to = s.far_span();
            to.addr += 4089;
            s.write_to(to)
        }),
        denied("before the remote memory, by the stream", |s| {
            let to = s.far_span();
            let request = s.write_to(to);
            let word = s.pair.a.field64(request, Field::RemoteAddress).unwrap();
            s.patches.push(Patch::Wide(word, (to.addr - 1).to_be()));
            request
        }),
        denied("memory without remote write", |s| {
            let to = s.far_with(Access::LOCAL_WRITE | Access::REMOTE_READ);
            s.write_read_atomic(Access::REMOTE_WRITE, to)
        }),
        denied("memory without remote read", |s| {
            let to = s.far_with(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
            s.write_read_atomic(Access::REMOTE_READ, to)
        }),
        denied("memory without remote atomics", |s| {
            let to = s.far_with(Access::REMOTE_WRITE | Access::REMOTE_READ);
            s.write_read_atomic(Access::REMOTE_ATOMIC, to)
        }),
        remote("misaligned atomic", S::REMOTE_INVALID_REQUEST, |s| {
            let (near, mut to) = (s.near.clone(), s.far_span());
            to.addr += 4;
            let old = [sge(&near, 0, 8)];
            s.bad(Work::compare_swap(&old, to, 0, 1))
        }),
        granted("QP without remote write", Access::REMOTE_READ, |s| {
            let to = s.far_span();
            s.write_read_atomic(Access::REMOTE_WRITE, to)
        }),
        granted("QP without remote read", WRITE_READ, |s| {
            let to = s.far_span();
            s.write_read_atomic(Access::REMOTE_READ, to)
        }),
        granted("QP without remote atomics", WRITE_READ, |s| {
            let to = s.far_span();
            s.write_read_atomic(Access::REMOTE_ATOMIC, to)
        }),
        Case {
            peer: Peer::Victim(S::LOCAL_LENGTH),
            ..remote("receive too short", S::REMOTE_INVALID_REQUEST, |s| {
                let near = s.near.clone();
                s.bad(Work::send(&[sge(&near, 0, 17)]))
            })
        },
        Case {
            peer: Peer::Victim(S::LOCAL_PROTECTION),
            ..remote("receive with a bad key", S::REMOTE_OPERATION, |s| {
                spoil_second_receive(s);
                let near = s.near.clone();
                s.bad(Work::send(&[sge(&near, 0, 8)]))
            })
        },
    ]
}

/// Overwrites the local key of `b`'s second receive, found by its address.
fn spoil_second_receive(s: &mut Scene) {
    let far = s.far.clone();
    let probe = s.pair.b.prepare(&Work::send(&[sge(&far, 0, 8)])).unwrap();
    let word = s.pair.b.field32(probe, Field::Length(0)).unwrap();
    s.pair.b.abort(probe).unwrap();
    let ring = word.region();
    let bytes = ring.vec(0, ring.len());
    let address = (far.region().addr().0 + SECOND).to_be_bytes();
    let mut entries = (8..bytes.len()).step_by(16);
    let at = entries.find(|at| bytes[*at..*at + 8] == address).unwrap();
    let key = 0x00ab_cd00u32.to_be_bytes();
    ring.write(at - 4, &key).unwrap();
}

/// Where the second receive stores its message.
const SECOND: u64 = 1024 + 16;

#[test]
fn every_error_is_seen_by_cpu_stream_and_kernel() {
    for (path, config) in paths() {
        for net in [Net::One, Net::Hub, Net::Host] {
            let gpu = Gpu::soft().unwrap();
            // One pair runs all cases that its rights allow, so that each begins where the reset of
            // the previous case left the queues.
            let mut scene = Scene::new(Pair::new(&gpu, net, &config));
            for case in cases() {
                for signaled in [true, false] {
                    let what = format!("{path}, {net:?}, {}, signaled {signaled}", case.name);
                    if case.access == Access::ALL {
                        scene.signaled = signaled;
                        run(&mut scene, &case, &what);
                        continue;
                    }
                    let narrow = config.clone().access(case.access);
                    let mut scene = Scene::new(Pair::of(&gpu, net, &config, &narrow));
                    scene.signaled = signaled;
                    run(&mut scene, &case, &what);
                }
            }
        }
    }
}

fn run(s: &mut Scene, case: &Case, what: &str) {
    let signaled = s.signaled;
    let gpu = s.pair.gpu.clone();
    let (stream, peer_stream) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let (gate, seen) = (Gate::new(&gpu), Flag::new(&gpu));
    let (near, far) = (s.near.clone(), s.far.clone());

    // The peer: its stream posts three receives and waits for the first.
    let receives: Vec<_> = (0..3u64)
        .map(|i| {
            let list = [sge(&far, 1024 + 16 * i, 16)];
            s.pair.b.prepare_receive(&list).unwrap()
        })
        .collect();
    let own = s.pair.a.receive(&[sge(&near, 64, 16)]);

    // The requests: two good ones, the bad one, and three behind it.
    let list = [sge(&near, 0, 8)];
    let to = far.remote().span(2048, 8).unwrap();
    let good = s.prepare(Work::send(&list), true);
    let silent = s.prepare(Work::nop(), false);
    let bad = (case.make)(s);
    let behind = [
        s.prepare(Work::write(&list, to), true),
        s.prepare(Work::write(&list, to), false),
        s.prepare(Work::write(&list, to), true),
    ];

    for r in &receives {
        let post = [Descriptor::Receive(*r)];
        s.pair.b.post_on(&peer_stream, &post).unwrap();
    }
    let wait = [Descriptor::wait_flushed(receives[0])];
    s.pair.b.post_on(&peer_stream, &wait).unwrap();
    let mut peer_saw = Vec::new();
    if case.peer != Peer::Untouched {
        for r in &receives[1..] {
            let wait = [Descriptor::wait_flushed(*r)];
            s.pair.b.post_on(&peer_stream, &wait).unwrap();
            peer_saw.push(Witness::launch(&peer_stream, &s.pair.b, *r));
        }
    }

    let a = &mut s.pair.a;
    let head = [
        gate.wait(),
        Descriptor::Send(good),
        Descriptor::wait(good),
        Descriptor::Send(silent),
    ];
    a.post_on(&stream, &head).unwrap();
    let mut list: Vec<_> = s
        .patches
        .iter()
        .map(|patch| match patch {
            Patch::Narrow(word, value) => write32(word, *value),
            Patch::Wide(word, value) => write64(word, *value),
        })
        .collect();
    list.push(Descriptor::Send(bad));
    if signaled {
        list.push(Descriptor::wait(bad));
    } else {
        // The CPU cannot wait for it, but for the next request.
        list.push(Descriptor::Send(behind[0]));
        list.push(Descriptor::wait(behind[0]));
    }
    a.post_on(&stream, &list).unwrap();
    let saw_bad = Witness::launch(&stream, a, bad);
    let mut list = Vec::new();
    if signaled {
        list.push(Descriptor::Send(behind[0]));
        list.push(Descriptor::wait(behind[0]));
    }
    list.extend([
        Descriptor::Send(behind[1]),
        Descriptor::Send(behind[2]),
        Descriptor::wait(behind[2]),
        seen.set(),
    ]);
    a.post_on(&stream, &list).unwrap();
    let saw_last = Witness::launch(&stream, a, behind[2]);
    assert!(a.poll(good).unwrap().is_none(), "{what}: before the gate");
    gate.open();

    // In half of the runs only the library polls until the streams have finished.
    if signaled {
        finish(&stream, what);
    }
    let expect = Kind::Failed(case.status);
    assert_eq!(kind(a.wait(bad, LIMIT)), Some(expect), "{what}");
    finish(&stream, what);
    assert!(seen.is_set(), "{what}");
    for (saw, status) in [(saw_bad, case.status), (saw_last, Status::FLUSHED)] {
        let error = case.status;
        let expect = Seen { error, status };
        assert_eq!(saw.seen(), expect, "{what}: seen by a kernel");
    }
    assert_eq!(kind(a.wait(good, LIMIT)), None, "{what}");
    assert_eq!(a.poll(silent).unwrap(), Some(Status::SUCCESS), "{what}");
    assert_eq!(a.poll(bad).unwrap(), Some(case.status), "{what}");
    let flushed = Some(Kind::Failed(Status::FLUSHED));
    for request in behind {
        assert_eq!(kind(a.wait(request, LIMIT)), flushed, "{what}");
    }
    assert_eq!(kind(a.wait(own, LIMIT)), flushed, "{what}");
    assert_eq!(a.error(), Some(case.status), "{what}");
    // A queue pair in error accepts no more requests.
    assert_eq!(kind(a.prepare(&Work::nop())), Some(expect), "{what}");
    assert_eq!(kind(a.prepare_receive(&[])), Some(expect), "{what}");
    let late = [Descriptor::wait(good)];
    assert_eq!(kind(a.post_on(&stream, &late)), Some(expect), "{what}");

    check_peer(s, case, &receives, &peer_saw, &peer_stream, what);
    s.patches.clear();
    s.pair.recover(what);
    s.keep.clear();
}

fn check_peer(
    s: &mut Scene,
    case: &Case,
    receives: &[gdsync::rdma::ReceiveRequest],
    saw: &[Witness],
    stream: &gdsync::Stream,
    what: &str,
) {
    let b = &mut s.pair.b;
    finish(stream, what);
    assert_eq!(kind(b.wait(receives[0], LIMIT)), None, "{what}");
    assert_eq!(b.received(receives[0]).unwrap().len, 8, "{what}");
    let (first, error) = match case.peer {
        Peer::Untouched => {
            assert_eq!(b.error(), None, "{what}");
            for r in &receives[1..] {
                assert_eq!(b.poll(*r).unwrap(), None, "{what}");
            }
            return;
        }
        Peer::Flushed => (Status::FLUSHED, Status::FLUSHED),
        Peer::Victim(status) => (status, status),
    };
    for (r, (saw, status)) in receives[1..]
        .iter()
        .zip(saw.iter().zip([first, Status::FLUSHED]))
    {
        let failed = Some(Kind::Failed(status));
        assert_eq!(kind(b.wait(*r, LIMIT)), failed, "{what}");
        assert_eq!(kind(b.received(*r)), failed, "{what}");
        let expect = Seen { error, status };
        assert_eq!(saw.seen(), expect, "{what}: seen by a kernel");
    }
    assert_eq!(b.error(), Some(error), "{what}");
}
