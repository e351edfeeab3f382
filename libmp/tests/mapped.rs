//! Messages between ranks of one host by mapped memory (`Path::Ipc`): the path that contexts
//! report, memory that cannot be mapped, memory that is released, and ranks with other settings.
//! The other tests of messages run over this path, too, unless they select the NIC or `MP_PATH` does.

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use gdsync::gpu::MemoryKind;
use mp::{Builder, Context, Kind, Path, PathChoice, RecvOp, SendOp, Source};

/// Longer than the eager limit.
const LONG: usize = 100_000;

fn by_ipc(builder: Builder) -> Builder {
    builder.path(PathChoice::Ipc)
}

#[test]
fn contexts_report_the_path_and_its_reason() {
    ranks_with(2, by_ipc, |ctx| {
        let (me, peer) = (ctx.rank(), 1 - ctx.rank());
        let (path, reason) = ctx.path(peer).unwrap();
        assert_eq!(path, Path::Ipc);
        assert!(reason.contains("MP_PATH"), "{reason}");
        assert_eq!(ctx.path(me).unwrap().0, Path::Local);
        assert_eq!(ctx.path(2), None);
        let memory = ctx.alloc(MemoryKind::Device, 2 * LONG).unwrap();
        memory.write(0, &pattern(me, 0, LONG)).unwrap();
        let [out, into] = [0, LONG].map(|at| memory.slice(at, LONG).unwrap());
        ctx.sendrecv((peer, 1, &out), (peer, 1, &into), LIMIT)
            .unwrap();
        assert!(read(&memory, LONG, LONG) == pattern(peer, 0, LONG));
        let stats = ctx.stats();
        assert_eq!(stats.by(Path::Ipc).messages(), 2);
        assert_eq!(stats.by(Path::Nic).messages(), 0);
    });
}

/// Memory of the application that no other process can map: the message goes to staging memory.
#[test]
fn long_messages_arrive_in_memory_that_cannot_be_mapped() {
    ranks_with(2, by_ipc, |ctx| {
        let (me, peer) = (ctx.rank(), 1 - ctx.rank());
        let stream = ctx.gpu().stream().unwrap();
        let from = ctx.adopt_vec(pattern(me, 3, LONG)).unwrap();
        let into = ctx.adopt_vec(vec![0; 4 * LONG]).unwrap();
        let at = |i: usize| into.slice(i * LONG, LONG).unwrap();
        let mut requests = vec![
            ctx.irecv(peer, 1, &at(0)).unwrap(),
            ctx.irecv_on(&stream, peer, 2, &at(1)).unwrap(),
            ctx.irecv(Source::Any, 3, &at(2)).unwrap(),
        ];
        let prepared = [at(3)];
        let prepared = ctx.prepare_recv(&RecvOp::new(peer, 4, &prepared)).unwrap();
        prepared.post_on(&stream).unwrap();
        requests.push(prepared);
        for request in &requests[..2] {
            request.wait_on(&stream).unwrap();
        }
        for tag in 1..=4 {
            drop(ctx.isend(peer, tag, &from.all()).unwrap());
        }
        mp::wait_all(&requests, LIMIT).unwrap();
        ctx.synchronize(&stream, LIMIT).unwrap();
        for i in 0..4 {
            assert!(read(&into, i * LONG, LONG) == pattern(peer, 3, LONG), "{i}");
        }
        ctx.close(LIMIT).unwrap();
    });
}

/// Number of mappings of pinned memory in this process.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let pinned = |line: &&str| line.contains("gdsync-pinned");
    maps.lines().filter(pinned).count()
}

#[test]
fn peers_unmap_memory_that_was_released() {
    const ROUNDS: usize = 60;
    static ROUND: Barrier = Barrier::new(2);
    static EARLY: AtomicUsize = AtomicUsize::new(0);
    ranks_with(2, by_ipc, |ctx| {
        let (me, peer) = (ctx.rank(), 1 - ctx.rank());
        let from = ctx.alloc(MemoryKind::Pinned, 1 << 20).unwrap();
        for round in 0..ROUNDS {
            let into = ctx.alloc(MemoryKind::Pinned, 1 << 20).unwrap();
            from.write(0, &pattern(me, round, 1000)).unwrap();
            ctx.sendrecv((peer, 1, &from.all()), (peer, 1, &into.all()), LIMIT)
                .unwrap();
            assert!(read(&into, 0, 1000) == pattern(peer, round, 1000));
            drop(into);
            // Both ranks have the memory of this round only.
            ROUND.wait();
            if me == 0 && round == 9 {
                EARLY.store(mappings(), Ordering::SeqCst);
                assert_ne!(EARLY.load(Ordering::SeqCst), 0);
            }
            ROUND.wait();
        }
        let host = ctx.gpu().host();
        let bounded = || mappings() <= EARLY.load(Ordering::SeqCst) + 12;
        let ended = host.wait_until(Some(host.now() + LIMIT), &mut || {
            ctx.progress();
            bounded()
        });
        assert!(ended, "{} mappings, {EARLY:?} at first", mappings());
        ROUND.wait();
    });
}

/// A rank that maps memory and one that does not: both report it.
#[test]
fn ranks_with_different_paths_refuse_each_other() {
    let build = |ctx: &Context| ctx.path(1 - ctx.rank()).unwrap().0;
    let started = AtomicUsize::new(0);
    let started: &'static AtomicUsize = Box::leak(Box::new(started));
    ranks_with(
        2,
        move |builder| {
            let choice = match started.fetch_add(1, Ordering::SeqCst) {
                0 => PathChoice::Ipc,
                _ => PathChoice::Nic,
            };
            builder.path(choice).timeout(Duration::from_secs(10))
        },
        move |ctx| {
            let _ = build(&ctx);
            let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            let segments = [memory.all()];
            let peer = 1 - ctx.rank();
            let e = match ctx.rank() {
                0 => ctx.post_send(&SendOp::new(peer, 1, &segments)).map(drop),
                _ => ctx.post_recv(&RecvOp::new(peer, 1, &segments)).map(drop),
            };
            let e = e.unwrap_err();
            assert!(
                matches!(e.kind(), Kind::Protocol | Kind::PeerFailed(_)),
                "{e}"
            );
            assert_eq!(e.rank(), Some(peer), "{e}");
        },
    );
}
