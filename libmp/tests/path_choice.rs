//! The path that ranks of one host agree on by themselves ([`PathChoice::Auto`]): mapped memory if
//! each of two ranks can map the other's, else the NIC, on both sides and without an error.

mod common;
#[path = "../../libgdsync/tests/standin/mod.rs"]
mod standin;

use std::sync::Arc;

use common::*;
use gds_step::Live;
use gdsync::Gpu;
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use gdsync::rdma::Device;
use mp::bootstrap::Local;
use mp::{Bootstrap, Context, Path, PathChoice, Result};
use standin::{Variant, cases};

/// Longer than the eager limit.
const LONG: usize = 100_000;

/// What a rank of a test consists of.
struct Place {
    bootstrap: Arc<dyn Bootstrap>,
    gpu: Gpu,
    choice: PathChoice,
}

/// Two ranks of one host with software GPUs and [`PathChoice::Auto`].
fn places() -> [Place; 2] {
    let mut ranks = Local::ranks(2).into_iter();
    [0, 1].map(|_| Place {
        bootstrap: ranks.next().unwrap(),
        gpu: Gpu::soft().unwrap(),
        choice: PathChoice::Auto,
    })
}

fn contexts(places: [Place; 2]) -> [Context; 2] {
    places.map(
        |Place {
             bootstrap,
             gpu,
             choice,
         }| {
            let builder = Context::builder().bootstrap(bootstrap).path(choice);
            let device = Device::emulated(&gpu).unwrap();
            builder.gpu(&gpu).device(&device).build().unwrap()
        },
    )
}

/// Exchanges messages of the CPU and memory of a window between two ranks; rank `first` begins.
/// Returns the path of each, and its reason.
fn paths(places: [Place; 2], first: u32) -> [(Path, String); 2] {
    let contexts = contexts(places);
    let exchange = |ctx: &Context| {
        let (me, peer) = (ctx.rank(), 1 - ctx.rank());
        let memory = ctx.alloc(MemoryKind::Device, 2 * LONG).unwrap();
        let [out, into] = [0, LONG].map(|at| memory.slice(at, LONG).unwrap());
        for (tag, len) in [(1, 8), (2, LONG)] {
            memory.write(0, &pattern(me, len, len)).unwrap();
            let [out, into] = [0, LONG].map(|at| memory.slice(at, len).unwrap());
            ctx.sendrecv((peer, tag, &out), (peer, tag, &into), LIMIT)
                .unwrap();
            assert!(read(&memory, LONG, len) == pattern(peer, len, len));
        }
        let window = ctx.window(&memory).unwrap();
        let (path, reason) = ctx.path(peer).unwrap();
        assert_eq!(window.path(peer), Some(path));
        drop(window.put(peer, 0, &out).unwrap());
        window.quiet(LIMIT).unwrap();
        ctx.sendrecv((peer, 3, &out), (peer, 3, &into), LIMIT)
            .unwrap();
        let stats = ctx.stats();
        assert_eq!(stats.by(path).messages(), 6, "{stats}");
        (path, reason)
    };
    let [a, b] = std::thread::scope(|threads| {
        let early = &contexts[first as usize];
        // The other rank only does its background work meanwhile.
        let memory = early.alloc(MemoryKind::Pinned, 8).unwrap();
        drop(early.irecv(1 - first, 9, &memory.all()).unwrap());
        let run = |ctx| threads.spawn(move || exchange(ctx));
        contexts
            .each_ref()
            .map(run)
            .map(|thread| thread.join().unwrap())
    });
    [a, b]
}

/// Both ranks use the NIC, for these reasons, whichever begins.
fn by_nic(places: impl Fn() -> [Place; 2], reasons: [&str; 2]) {
    for first in 0..2 {
        for ((path, text), reason) in paths(places(), first).iter().zip(reasons) {
            assert_eq!(*path, Path::Nic, "{text}");
            assert!(text.contains(reason), "{text}");
        }
    }
}

#[test]
fn ranks_of_a_host_map_each_others_memory() {
    for first in 0..2 {
        for (path, reason) in paths(places(), first) {
            assert_eq!(path, Path::Ipc);
            assert!(
                reason.contains("whose GPU memory this rank maps"),
                "{reason}"
            );
        }
    }
}

/// A software GPU that runs no kernels.
fn without_kernels() -> Gpu {
    let mut options = SoftOptions::default();
    options.caps.kernels = false;
    Gpu::soft_with(Live::global().unwrap(), options).unwrap()
}

/// Ready words need no connection: the first call for a rank chooses the path, on either side.
#[test]
fn ready_words_are_the_first_use_of_a_rank() {
    let places = [
        places,
        || {
            let mut places = places();
            places[1].gpu = without_kernels();
            places
        },
        || {
            let mut places = places();
            places[1].choice = PathChoice::Nic;
            places
        },
    ];
    for (case, sender) in (0..3).flat_map(|case| [(case, 0), (case, 1)]) {
        let places = places[case]();
        let contexts = contexts(places);
        let (sends, waits) = (&contexts[sender], &contexts[1 - sender]);
        std::thread::scope(|threads| {
            threads.spawn(|| sends.send_ready(waits.rank()).unwrap());
            waits.wait_ready(sends.rank(), LIMIT).unwrap();
        });
        let expected = [Path::Ipc, Path::Nic][case.min(1)];
        assert_eq!(waits.path(sends.rank()).unwrap().0, expected);
        assert_eq!(sends.path(waits.rank()).unwrap().0, expected);
    }
}

#[test]
fn gpu_without_kernels_keeps_both_ranks_on_the_nic() {
    let without = || {
        let mut places = places();
        places[1].gpu = without_kernels();
        places
    };
    by_nic(
        without,
        [
            "the other rank cannot map this rank's memory: its GPU runs no kernels",
            "this rank maps no memory of its host: its GPU runs no kernels",
        ],
    );
}

/// A bootstrap that passes no descriptors.
#[derive(Debug)]
struct Bare(Arc<dyn Bootstrap>);

impl Bootstrap for Bare {
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn size(&self) -> u32 {
        self.0.size()
    }

    fn job(&self) -> u64 {
        self.0.job()
    }

    fn send(&self, to: u32, topic: u64, message: &[u8]) -> Result<()> {
        self.0.send(to, topic, message)
    }

    fn receive(&self, topic: u64) -> Result<Option<(u32, Vec<u8>)>> {
        self.0.receive(topic)
    }

    fn host(&self, rank: u32) -> Option<u64> {
        self.0.host(rank)
    }
}

#[test]
fn bootstrap_without_descriptors_keeps_both_ranks_on_the_nic() {
    let bare = || {
        places().map(|place| Place {
            bootstrap: Arc::new(Bare(place.bootstrap)),
            ..place
        })
    };
    by_nic(
        bare,
        ["this rank maps no memory of its host: this bootstrap passes no"; 2],
    );
}

/// Settings that differ between the ranks are not supported, but one of the NIC is understood.
#[test]
fn rank_that_selects_the_nic_keeps_the_other_one_on_it() {
    let differ = || {
        let mut places = places();
        places[1].choice = PathChoice::Nic;
        places
    };
    by_nic(differ, ["", "MP_PATH or Builder::path selects the NIC"]);
}

/// Two ranks on two GPUs of the stand-in for CUDA's driver.
fn two_gpus() -> [Place; 2] {
    let mut places = places();
    for (at, place) in (0..).zip(&mut places) {
        place.gpu = Gpu::cuda(at).unwrap();
    }
    places
}

const TWO: (&str, &str) = ("STANDIN_DEVICES", "2");

cases! {
    gpus_with_peer_access_map_each_others_memory in Variant::env(&[TWO]) => {
        for (path, reason) in paths(two_gpus(), 0) {
            assert_eq!(path, Path::Ipc, "{reason}");
        }
    };
    gpus_without_peer_access_use_the_nic in Variant::env(&[TWO, ("STANDIN_PEERS", "0")]) => {
        by_nic(two_gpus, ["the GPUs cannot reach each other: cuda gpu"; 2]);
    };
    gpus_of_two_runtimes_use_the_nic => {
        let mixed = || {
            let mut places = places();
            places[0].gpu = Gpu::cuda(0).unwrap();
            places
        };
        by_nic(mixed, ["have different runtimes"; 2]);
    };
}
