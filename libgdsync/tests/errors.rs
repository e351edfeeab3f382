//! Every way in which a request fails, from its real cause: what the CPU, streams and kernels
//! are told, what becomes of the requests around it, and that the queue pair comes back.

mod common;

use common::witness::Witness;
use common::*;
use gdsync::gpu::{Word32, Word64};
use gdsync::rdma::{Field, RemoteSpan};

/// What the other end makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// Nothing: it never heard of the request.
    Untouched,
    /// Its queue pair is in error: receives are flushed.
    Flushed,
    /// As `Flushed`, and the receive that the request found fails by itself.
    Victim(Status),
}

struct Case {
    name: &'static str,
    status: Status,
    peer: Peer,
    /// What `b` lets its peer do.
    access: Access,
    /// Prepares the request that will fail.
    make: fn(&mut Scene, bool) -> SendRequest,
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
    patches: Vec<Patch>,
    keep: Vec<Mr>,
}

impl Scene {
    fn new(pair: Pair) -> Scene {
        Scene {
            near: pair.mem_a(MemoryKind::Pinned, 4096),
            far: pair.mem_b(MemoryKind::Device, 4096),
            pair,
            patches: Vec::new(),
            keep: Vec::new(),
        }
    }

    fn prepare(&mut self, work: Work<'_>, signaled: bool) -> SendRequest {
        let work = if signaled { work.signaled() } else { work };
        self.pair.a.prepare(&work).unwrap()
    }

    fn patch(&mut self, request: SendRequest, field: Field, value: u32) {
        let word = self.pair.a.field32(request, field).unwrap();
        self.patches.push(Patch::Narrow(word, value.to_be()));
    }

    /// A write of 8 bytes whose local key the stream replaces.
    fn write_with_key(&mut self, key: u32, signaled: bool) -> SendRequest {
        let (near, to) = (self.near.clone(), self.far.remote().span(0, 8).unwrap());
        let request = self.prepare(Work::write(&[sge(&near, 0, 8)], to), signaled);
        self.patch(request, Field::Key(0), key);
        request
    }

    /// A SEND of 8 bytes with another word of its control segment.
    fn send_with_control(&mut self, word: usize, change: u32, signaled: bool) -> SendRequest {
        let near = self.near.clone();
        let request = self.prepare(Work::send(&[sge(&near, 0, 8)]), signaled);
        let length = self.pair.a.field32(request, Field::Length(0)).unwrap();
        let ring = length.region().clone();
        // The control segment lies before the only data segment, which begins with its length.
        let at = (length.addr().0 - ring.addr().0) as usize - 16 + 4 * word;
        let word = ring.word32(at).unwrap();
        let value = u32::from_be(word.load().unwrap()) ^ change;
        self.patches.push(Patch::Narrow(word, value.to_be()));
        request
    }

    fn write_to(&mut self, to: RemoteSpan, signaled: bool) -> SendRequest {
        let near = self.near.clone();
        self.prepare(Work::write(&[sge(&near, 0, 8)], to), signaled)
    }

    /// The kinds of access that a peer grants, on memory or a queue pair that lacks them.
    fn write_read_atomic(&mut self, which: Access, to: RemoteSpan, signaled: bool) -> SendRequest {
        let near = self.near.clone();
        let list = [sge(&near, 0, 8)];
        let work = match which {
            Access::REMOTE_WRITE => Work::write(&list, to),
            Access::REMOTE_READ => Work::read(&list, to),
            _ => Work::fetch_add(&list, to, 1),
        };
        self.prepare(work, signaled)
    }

    /// Memory of `b` with these rights alone.
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
        protection("unknown local key", |s, signaled| {
            let key = s.near.lkey() ^ 0x00ab_cd00;
            s.write_with_key(key, signaled)
        }),
        protection("deregistered memory", |s, signaled| {
            let key = s.pair.mem_a(MemoryKind::Pinned, 64).lkey();
            s.write_with_key(key, signaled)
        }),
        protection("local key of another PD", |s, signaled| {
            let other = s.pair.pd_a.device().alloc_pd().unwrap();
            // Memory of the same addresses: only the domain is wrong.
            let mr = other.register(s.near.region(), Access::ALL).unwrap();
            let request = s.write_with_key(mr.lkey(), signaled);
            s.keep.push(mr);
            request
        }),
        protection("beyond the local memory", |s, signaled| {
            let (near, to) = (s.near.clone(), s.far_span());
            let request = s.prepare(Work::write(&[sge(&near, 4088, 8)], to), signaled);
            s.patch(request, Field::Length(0), 9);
            request
        }),
        protection("a READ into memory that is read-only", |s, signaled| {
            let (near, from) = (s.near.clone(), s.far_span());
            let request = s.prepare(Work::read(&[sge(&near, 0, 8)], from), signaled);
            let pd = &s.pair.pd_a;
            let mr = pd.register(near.region(), Access::LOCAL_READ).unwrap();
            s.patch(request, Field::Key(0), mr.lkey());
            s.keep.push(mr);
            request
        }),
        local("an atomic of four bytes", S::LOCAL_LENGTH, |s, signaled| {
            let (near, to) = (s.near.clone(), s.far_span());
            let request = s.prepare(Work::fetch_add(&[sge(&near, 0, 8)], to, 1), signaled);
            s.patch(request, Field::Length(0), 4);
            request
        }),
        local(
            "a message of more than 2 GiB",
            S::LOCAL_LENGTH,
            |s, signaled| {
                // Thirty pieces of the same 72 MiB, which nobody touches.
                let mr = s.pair.mem_a(MemoryKind::Device, 72 << 20);
                let list = [sge(&mr, 0, 72 << 20); 30];
                let to = s.far_span();
                s.prepare(Work::write(&list, to), signaled)
            },
        ),
        operation("an opcode that is none", |s, signaled| {
            s.send_with_control(0, 0x55, signaled)
        }),
        operation("the index of another entry", |s, signaled| {
            s.send_with_control(0, 0x100, signaled)
        }),
        operation("the number of another QP", |s, signaled| {
            s.send_with_control(1, 0x100, signaled)
        }),
        denied("unknown remote key", |s, signaled| {
            let mut to = s.far_span();
            to.rkey ^= 0x00ab_cd00;
            s.write_to(to, signaled)
        }),
        denied("remote key that the stream patched", |s, signaled| {
            let to = s.far_span();
            let request = s.write_to(to, signaled);
            s.patch(request, Field::RemoteKey, to.rkey ^ 0x00ab_cd00);
            request
        }),
        denied("remote memory deregistered", |s, signaled| {
            let to = s.pair.mem_b(MemoryKind::Pinned, 64).remote();
            s.write_to(to.span(0, 8).unwrap(), signaled)
        }),
        denied("remote key of another PD", |s, signaled| {
            let other = s.pair.pd_b.device().alloc_pd().unwrap();
            let mr = other.register(s.far.region(), Access::ALL).unwrap();
            let to = mr.remote().span(0, 8).unwrap();
            s.keep.push(mr);
            s.write_to(to, signaled)
        }),
        denied("beyond the remote memory", |s, signaled| {
            let mut to = s.far_span();
            to.addr += 4089;
            s.write_to(to, signaled)
        }),
        denied("before the remote memory, by the stream", |s, signaled| {
            let to = s.far_span();
            let request = s.write_to(to, signaled);
            let word = s.pair.a.field64(request, Field::RemoteAddress).unwrap();
            s.patches.push(Patch::Wide(word, (to.addr - 1).to_be()));
            request
        }),
        denied("memory without remote write", |s, signaled| {
            let to = s.far_with(Access::LOCAL_WRITE | Access::REMOTE_READ);
            s.write_read_atomic(Access::REMOTE_WRITE, to, signaled)
        }),
        denied("memory without remote read", |s, signaled| {
            let to = s.far_with(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
            s.write_read_atomic(Access::REMOTE_READ, to, signaled)
        }),
        denied("memory without remote atomics", |s, signaled| {
            let to = s.far_with(Access::REMOTE_WRITE | Access::REMOTE_READ);
            s.write_read_atomic(Access::REMOTE_ATOMIC, to, signaled)
        }),
        remote(
            "misaligned atomic",
            S::REMOTE_INVALID_REQUEST,
            |s, signaled| {
                let (near, mut to) = (s.near.clone(), s.far_span());
                to.addr += 4;
                let old = [sge(&near, 0, 8)];
                s.prepare(Work::compare_swap(&old, to, 0, 1), signaled)
            },
        ),
        granted(
            "QP without remote write",
            Access::REMOTE_READ,
            |s, signaled| {
                let to = s.far_span();
                s.write_read_atomic(Access::REMOTE_WRITE, to, signaled)
            },
        ),
        granted("QP without remote read", WRITE_READ, |s, signaled| {
            let to = s.far_span();
            s.write_read_atomic(Access::REMOTE_READ, to, signaled)
        }),
        granted("QP without remote atomics", WRITE_READ, |s, signaled| {
            let to = s.far_span();
            s.write_read_atomic(Access::REMOTE_ATOMIC, to, signaled)
        }),
        Case {
            peer: Peer::Victim(S::LOCAL_LENGTH),
            ..remote(
                "receive too short",
                S::REMOTE_INVALID_REQUEST,
                |s, signaled| {
                    let near = s.near.clone();
                    s.prepare(Work::send(&[sge(&near, 0, 17)]), signaled)
                },
            )
        },
        Case {
            peer: Peer::Victim(S::LOCAL_PROTECTION),
            ..remote(
                "receive with a bad key",
                S::REMOTE_OPERATION,
                |s, signaled| {
                    spoil_second_receive(s);
                    let near = s.near.clone();
                    s.prepare(Work::send(&[sge(&near, 0, 8)]), signaled)
                },
            )
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

/// Where the second receive puts its message.
const SECOND: u64 = 1024 + 16;

#[test]
fn every_error_is_seen_by_cpu_stream_and_kernel() {
    for (path, config) in paths() {
        for net in [Net::One, Net::Hub, Net::Host] {
            let gpu = Gpu::soft().unwrap();
            // One pair goes through all cases that its rights allow, so that each begins where
            // the reset after the one before left it.
            let mut scene = Scene::new(Pair::new(&gpu, net, &config));
            for case in cases() {
                for signaled in [true, false] {
                    let what = format!("{path}, {net:?}, {}, signaled {signaled}", case.name);
                    if case.access == Access::ALL {
                        run(&mut scene, &case, signaled, &what);
                        continue;
                    }
                    let narrow = config.clone().access(case.access);
                    let pair = Pair::of(&gpu, net, &config, &narrow);
                    run(&mut Scene::new(pair), &case, signaled, &what);
                }
            }
        }
    }
}

fn run(s: &mut Scene, case: &Case, signaled: bool, what: &str) {
    let gpu = s.pair.gpu.clone();
    let (stream, peer_stream) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let (gate, seen) = (Gate::new(&gpu), Flag::new(&gpu));
    let (near, far) = (s.near.clone(), s.far.clone());

    // The peer: three receives by its stream, which waits for the first.
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
    let bad = (case.make)(s, signaled);
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
            Patch::Wide(word, value) => Descriptor::WriteValue64 {
                word,
                value: *value,
            },
        })
        .collect();
    list.push(Descriptor::Send(bad));
    if signaled {
        list.push(Descriptor::wait(bad));
    } else {
        // It cannot be waited for, but the one behind it can.
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

    // Half of the time nobody but the library looks until the streams are through.
    if signaled {
        finish(&stream, what);
    }
    let expect = Kind::Failed(case.status);
    assert_eq!(kind(a.wait(bad, LIMIT)), Some(expect), "{what}");
    finish(&stream, what);
    assert!(seen.is_set(), "{what}");
    assert_eq!(
        saw_bad.seen().error,
        case.status,
        "{what}: seen by a kernel"
    );
    assert_eq!(
        saw_bad.seen().status,
        case.status,
        "{what}: seen by a kernel"
    );
    assert_eq!(
        saw_last.seen().error,
        case.status,
        "{what}: seen by a kernel"
    );
    assert_eq!(saw_last.seen().status, Status::FLUSHED, "{what}");
    assert_eq!(kind(a.wait(good, LIMIT)), None, "{what}");
    assert_eq!(a.poll(silent).unwrap(), Some(Status::SUCCESS), "{what}");
    assert_eq!(a.poll(bad).unwrap(), Some(case.status), "{what}");
    let flushed = Some(Kind::Failed(Status::FLUSHED));
    for request in behind {
        assert_eq!(kind(a.wait(request, LIMIT)), flushed, "{what}");
    }
    assert_eq!(kind(a.wait(own, LIMIT)), flushed, "{what}");
    assert_eq!(a.error(), Some(case.status), "{what}");
    // A queue pair in error takes no more.
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
        assert_eq!(saw.seen().status, status, "{what}: seen by a kernel");
        assert_eq!(saw.seen().error, error, "{what}: seen by a kernel");
    }
    assert_eq!(b.error(), Some(error), "{what}");
}
