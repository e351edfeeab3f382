//! Tests of a wait of which the GPU accepts the waits alone, and of steps by mapped memory of which one rank
//! uses puts.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gdsync::Gpu;
use gdsync::gpu::MemoryKind;

use super::Neighbour;
use crate::bootstrap::Local;
use crate::{Context, Kind, Neighbourhood, PathChoice};

const LIMIT: Duration = Duration::from_secs(60);
const LEN: usize = 500;

/// The exchange of a rank of two, whose data a kernel unpacks.
fn neighbour(ctx: &Context) -> Neighbour {
    let field = ctx.alloc(MemoryKind::Device, 2 * LEN).unwrap();
    Neighbour::new(1 - ctx.rank(), 7, 7)
        .send(&field.slice(0, 250).unwrap())
        .receive(field.strided(LEN, 5, 10, 50).unwrap())
}

/// The neighbour leaves, or lives and does not send; the handle is dropped.
#[test]
fn torn_wait_is_released() {
    for leaves in [true, false] {
        let (torn, is_torn) = mpsc::channel();
        let (end, is_end) = mpsc::channel();
        let mut jobs = Local::ranks(2).into_iter();
        let mut open = move || {
            let gpu = Gpu::soft().unwrap();
            let builder = Context::builder().bootstrap(jobs.next().unwrap());
            let timeout = if leaves { 60 } else { 5 };
            let builder = builder.gpu(&gpu).timeout(Duration::from_secs(timeout));
            // By mapped memory, a wait is one kernel.
            let builder = builder.path(PathChoice::Nic);
            builder.build().unwrap()
        };
        let (ctx, other) = (open(), open());
        let peer = thread::spawn(move || {
            let stream = other.gpu().stream().unwrap();
            let halo = other.neighbourhood().neighbour(neighbour(&other));
            let halo: Neighbourhood = halo.build().unwrap();
            halo.ready_on(&stream).unwrap();
            is_torn.recv().unwrap();
            if !leaves {
                is_end.recv().unwrap();
            }
        });
        let (engine, stream) = (ctx.engine(), ctx.gpu().stream().unwrap());
        let mut x = engine
            .build_neighbourhood(vec![neighbour(&ctx)], false)
            .unwrap();
        // The GPU refuses this kernel.
        for table in x.unpack.tables.iter_mut().flatten() {
            table.dims.block[0] = 1 << 20;
        }
        engine.ready_on(&x, &stream).unwrap();
        engine.send_on(&x, &stream).unwrap();
        let e = engine.wait_on_neighbours(&x, &stream).unwrap_err();
        println!("{e}");
        let e = engine.ready_on(&x, &stream).unwrap_err();
        assert_eq!(e.kind(), Kind::Closed, "{e}");
        drop(x);
        torn.send(()).unwrap();
        let e = ctx.synchronize(&stream, LIMIT).unwrap_err();
        assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e}");
        assert_eq!(e.rank(), Some(1), "{e}");
        let _ = end.send(());
        peer.join().unwrap();
    }
}

/// Kernels of two processes on one GPU do not wait for each other: such ranks put. Both ways have the
/// same words.
#[test]
fn rank_whose_kernels_do_not_wait_exchanges_with_one_whose_kernels_do() {
    for by_kernel in [[true, true], [true, false], [false, false]] {
        let jobs = Local::ranks(2).into_iter().zip(by_kernel);
        let ranks = jobs.map(|(job, by_kernel)| {
            thread::spawn(move || {
                let gpu = Gpu::soft().unwrap();
                let builder = Context::builder().bootstrap(job).gpu(&gpu);
                let ctx = builder.path(PathChoice::Ipc).build().unwrap();
                let field = ctx.alloc(MemoryKind::Device, 2 * LEN).unwrap();
                let one = Neighbour::new(1 - ctx.rank(), 7, 7)
                    .send(field.strided(0, 5, 10, 50).unwrap())
                    .receive(field.strided(LEN, 10, 20, 25).unwrap());
                let (engine, stream) = (ctx.engine(), ctx.gpu().stream().unwrap());
                let mut x = engine.build_neighbourhood(vec![one], true).unwrap();
                assert!(x.by_kernel.is_some());
                if !by_kernel {
                    x.by_kernel = None;
                }
                for step in 0..20 {
                    field.write(0, &[step ^ ctx.rank() as u8; LEN]).unwrap();
                    engine.ready_on(&x, &stream).unwrap();
                    engine.send_on(&x, &stream).unwrap();
                    engine.wait_on_neighbours(&x, &stream).unwrap();
                    ctx.synchronize(&stream, LIMIT).unwrap();
                    let mut got = [0; LEN];
                    field.read(LEN, &mut got).unwrap();
                    let expected = step ^ (1 - ctx.rank() as u8);
                    let wrong = (0..LEN).find(|i| i % 20 < 10 && got[*i] != expected);
                    assert_eq!(wrong, None, "step {step}");
                }
                drop(x);
                ctx.close(LIMIT).unwrap();
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    }
}
