//! The path that ranks agree on by themselves ([`PathChoice::Auto`]), on both sides and without an
//! error: mapped memory if each of two ranks of a host can map the other's, else the NIC if the two
//! NICs reach each other, else TCP.

mod common;
#[path = "../../libgdsync/tests/standin/mod.rs"]
mod standin;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use gds_step::Live;
use gdsync::Gpu;
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use gdsync::rdma::{Device, DeviceOptions, Provider};
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
    provider: Provider,
}

/// Two ranks of one host with software GPUs and [`PathChoice::Auto`].
fn places() -> [Place; 2] {
    let mut ranks = Local::ranks(2).into_iter();
    [0, 1].map(|_| Place {
        bootstrap: ranks.next().unwrap(),
        gpu: Gpu::soft().unwrap(),
        choice: PathChoice::Auto,
        provider: Provider::Emulated,
    })
}

fn contexts(places: [Place; 2]) -> [Context; 2] {
    places.map(|place| {
        let Place { gpu, provider, .. } = &place;
        let options = DeviceOptions::default().provider(*provider);
        let device = Device::open_with(gpu, &options).unwrap();
        let builder = Context::builder().bootstrap(place.bootstrap.clone());
        let builder = builder.path(place.choice).timeout(Duration::from_secs(10));
        builder.gpu(gpu).device(&device).build().unwrap()
    })
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
    both_by(Path::Nic, places, reasons);
}

/// Both ranks use this path, for these reasons, whichever begins.
fn both_by(expected: Path, places: impl Fn() -> [Place; 2], reasons: [&str; 2]) {
    for first in 0..2 {
        for ((path, text), reason) in paths(places(), first).iter().zip(reasons) {
            assert_eq!(*path, expected, "{text}");
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

/// A bootstrap that passes no descriptors. Its ranks are of one host, of two (rank 1 is alone on one),
/// or of unknown ones.
#[derive(Debug)]
struct Bare(Arc<dyn Bootstrap>, Hosts);

#[derive(Clone, Copy, Debug)]
enum Hosts {
    One,
    Two,
    Unknown,
}

impl Hosts {
    /// The ranks, with such a bootstrap.
    fn of(self, places: [Place; 2]) -> [Place; 2] {
        places.map(|place| Place {
            bootstrap: Arc::new(Bare(place.bootstrap, self)),
            ..place
        })
    }
}

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
        match self.1 {
            Hosts::One => self.0.host(rank),
            Hosts::Two => Some(u64::from(rank == 1)),
            Hosts::Unknown => None,
        }
    }
}

#[test]
fn bootstrap_without_descriptors_keeps_both_ranks_on_the_nic() {
    by_nic(
        || Hosts::One.of(places()),
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

/// Ranks with these providers.
fn with(providers: [Provider; 2]) -> [Place; 2] {
    let mut places = places();
    for (place, provider) in places.iter_mut().zip(providers) {
        place.provider = provider;
    }
    places
}

const VIRTUAL: [Provider; 2] = [Provider::Emulated; 2];
const MIXED: [Provider; 2] = [Provider::Emulated, Provider::Tcp];

#[test]
fn ranks_of_two_hosts_use_tcp_beside_their_virtual_nics() {
    let reason = "a rank of another host; the NIC of this rank is virtual";
    both_by(Path::Tcp, || Hosts::Two.of(with(VIRTUAL)), [reason; 2]);
}

/// Runs `body` as each of two ranks of two hosts with virtual NICs.
fn apart(body: impl Fn(&Context, u32) + Sync) {
    let contexts = contexts(Hosts::Two.of(with(VIRTUAL)));
    std::thread::scope(|threads| {
        let body = &body;
        let run = |ctx| threads.spawn(move || body(ctx, 1 - Context::rank(ctx)));
        for thread in contexts.each_ref().map(run) {
            thread.join().unwrap();
        }
    });
}

/// The calls of streams of rank 0 are lists over queue pairs of its NIC and of its TCP device.
#[test]
fn lists_have_queue_pairs_of_both_devices() {
    let job = Local::ranks(3).into_iter();
    let threads = job.map(|bootstrap| {
        std::thread::spawn(move || {
            let gpu = Gpu::soft().unwrap();
            let device = Device::emulated(&gpu).unwrap();
            let builder = Context::builder().bootstrap(Arc::new(Bare(bootstrap, Hosts::Two)));
            let ctx = builder.gpu(&gpu).device(&device).path(PathChoice::Auto);
            let ctx = ctx.build().unwrap();
            let (me, stream) = (ctx.rank(), gpu.stream().unwrap());
            let memory = ctx.alloc(MemoryKind::Device, 4 * 64).unwrap();
            memory.write(0, &pattern(me, 0, 64)).unwrap();
            let (mine, all) = (
                memory.slice(0, 64).unwrap(),
                memory.slice(64, 3 * 64).unwrap(),
            );
            let mut collectives = ctx.collectives(64).unwrap();
            for _ in 0..3 {
                collectives.all_gather_on(&stream, &mine, &all).unwrap();
            }
            ctx.synchronize(&stream, LIMIT).unwrap();
            for rank in 0..3 {
                let at = 64 * (1 + rank as usize);
                assert_eq!(read(&memory, at, 64), pattern(rank, 0, 64));
            }
            let path = |rank| ctx.path(rank).unwrap().0;
            if me == 0 {
                assert_eq!([path(1), path(2)], [Path::Tcp, Path::Nic]);
            }
            ctx.close(LIMIT).unwrap();
        })
    });
    let threads: Vec<_> = threads.collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// A buffer is registered with the NIC, and with the TCP device when it is sent.
#[test]
fn buffer_that_tcp_has_sent_is_returned() {
    apart(|ctx, peer| {
        let buffer = pattern(ctx.rank(), 1, LONG);
        let memory = ctx.adopt_vec(buffer).map_err(|(_, e)| e).unwrap();
        let into = ctx.alloc(MemoryKind::Pinned, LONG).unwrap();
        ctx.sendrecv((peer, 1, &memory.all()), (peer, 1, &into.all()), LIMIT)
            .unwrap();
        assert!(read(&into, 0, LONG) == pattern(peer, 1, LONG));
        let buffer = memory.into_vec(LIMIT).map_err(|(_, e)| e).unwrap();
        assert!(buffer == pattern(ctx.rank(), 1, LONG));
    });
}

/// The record of a window that the program passes names the memory for TCP, too.
#[test]
fn attached_window_is_reached_by_tcp() {
    apart(|ctx, peer| {
        let memory = ctx.alloc(MemoryKind::Pinned, 4096).unwrap();
        let window = ctx.expose(&memory).unwrap();
        let record = window.record();
        let names = ctx.alloc(MemoryKind::Pinned, 2 * 512).unwrap();
        names.write(0, &record).unwrap();
        let [out, into] = [0, 512].map(|at| names.slice(at, record.len()).unwrap());
        ctx.sendrecv((peer, 1, &out), (peer, 1, &into), LIMIT)
            .unwrap();
        let theirs = read(&names, 512, record.len());
        assert_eq!(window.attach(&theirs).unwrap(), peer);
        assert_eq!(window.path(peer), Some(Path::Tcp));
        let old = names.slice(0, 8).unwrap();
        let add = window.fetch_add(peer, 8, 5, &old).unwrap();
        add.wait(LIMIT).unwrap();
        drop(window.put(peer, 16, &into).unwrap());
        window.quiet(LIMIT).unwrap();
        ctx.sendrecv((peer, 2, &old), (peer, 2, &old), LIMIT)
            .unwrap();
        assert_eq!(read(&memory, 8, 8), 5_u64.to_le_bytes());
        assert_eq!(read(&memory, 16, record.len()), record);
    });
}

#[test]
fn rank_without_a_nic_is_reached_by_tcp() {
    let reasons = ["the other rank has no NIC", "this rank has no NIC"];
    both_by(Path::Tcp, || Hosts::One.of(with(MIXED)), reasons);
    both_by(Path::Tcp, || Hosts::Unknown.of(with(MIXED)), reasons);
    let reasons = ["the NIC of this rank is virtual", reasons[1]];
    both_by(Path::Tcp, || Hosts::Two.of(with(MIXED)), reasons);
}

#[test]
fn ranks_of_unknown_hosts_use_their_virtual_nics() {
    let reason =
        "the bootstrap does not know the hosts of the ranks; both ranks have a virtual NIC";
    by_nic(|| Hosts::Unknown.of(with(VIRTUAL)), [reason; 2]);
}

#[test]
fn tcp_device_is_used_in_place_of_the_nic() {
    let tcp = |choice| {
        let mut places = with([Provider::Tcp; 2]);
        places.iter_mut().for_each(|place| place.choice = choice);
        places
    };
    let reason = "GDS_PROVIDER or Builder::device selects TCP";
    both_by(Path::Tcp, || tcp(PathChoice::Nic), [reason; 2]);
    let reason = "MP_PATH or Builder::path selects TCP";
    both_by(Path::Tcp, || tcp(PathChoice::Tcp), [reason; 2]);
    both_by(Path::Ipc, || tcp(PathChoice::Auto), [""; 2]);
}

#[test]
fn rank_that_selects_tcp_is_followed_by_one_that_selects_nothing() {
    for hosts in [Hosts::One, Hosts::Two, Hosts::Unknown] {
        let differ = || {
            let mut places = hosts.of(places());
            places[1].choice = PathChoice::Tcp;
            places
        };
        both_by(
            Path::Tcp,
            differ,
            ["", "MP_PATH or Builder::path selects TCP"],
        );
    }
}

/// Two ranks that select different paths give each other up, with an error that says so.
#[test]
fn different_selections_are_errors_that_name_the_variable() {
    use PathChoice::{Auto, Ipc, Nic, Tcp};
    for choices in [[Nic, Tcp], [Ipc, Tcp], [Ipc, Nic], [Auto, Ipc]] {
        let mut places = places();
        for (place, choice) in places.iter_mut().zip(choices) {
            place.choice = choice;
        }
        let contexts = contexts(places);
        let send = |ctx: &Context| {
            let memory = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
            let send = ctx.isend(1 - ctx.rank(), 1, &memory.all());
            let e = send.and_then(|send| send.wait(LIMIT)).unwrap_err();
            e.to_string()
        };
        let errors = std::thread::scope(|threads| {
            let run = |ctx| threads.spawn(move || send(ctx));
            let threads = contexts.each_ref().map(run);
            threads.map(|thread| thread.join().unwrap())
        });
        // The other rank may only find that it was given up.
        let names = |e: &String| e.contains("MP_PATH");
        assert!(errors.iter().any(names), "{choices:?}: {errors:?}");
    }
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
