//! `MP_PATH=tcp` between processes: the key and the address of the job, by a store and by a directory.
//! A rank is this test program itself.

mod common;
#[path = "common/jobs.rs"]
mod jobs;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::packing::Packing;
use common::*;
use gdsync::gpu::MemoryKind;
use gdsync::rdma::TcpOptions;
use jobs::{Job, Place, all_in};
use mp::bootstrap::from_env;
use mp::{Bootstrap, Context, Path};

/// Keeps a rank's process from being any other test, and says what it does.
const PART: &str = "PART_OF_TEST";

/// A bootstrap that has no key.
#[derive(Debug)]
struct Keyless(Arc<dyn Bootstrap>);

impl Bootstrap for Keyless {
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn size(&self) -> u32 {
        self.0.size()
    }

    fn job(&self) -> u64 {
        self.0.job()
    }

    fn send(&self, to: u32, topic: u64, message: &[u8]) -> mp::Result<()> {
        self.0.send(to, topic, message)
    }

    fn receive(&self, topic: u64) -> mp::Result<Option<(u32, Vec<u8>)>> {
        self.0.receive(topic)
    }
}

#[test]
#[ignore = "a rank of the other tests"]
fn rank() {
    let job = from_env().unwrap();
    let job = match std::env::var(PART).unwrap().as_str() {
        "keyless" => Arc::new(Keyless(job)),
        _ => job,
    };
    let built = Context::builder()
        .bootstrap(job.clone())
        .gpu(&gpu())
        .timeout(Duration::from_secs(20))
        // Receives above it take staging memory.
        .eager_limit(64 << 10)
        .build();
    let ctx = match built {
        Ok(ctx) => ctx,
        Err(e) => return println!("error: {e}"),
    };
    let (me, peer) = (ctx.rank(), 1 - ctx.rank());
    if let Ok("streams") = std::env::var(PART).as_deref() {
        let packing = streams_exchange(&ctx);
        println!(
            "done over {}, {packing} kernels packed",
            ctx.device().name()
        );
        return ctx.close(LIMIT).unwrap();
    }
    let memory = ctx.alloc(MemoryKind::Device, 200_000).unwrap();
    let [out, into] = [0, 100_000].map(|at| memory.slice(at, 100_000).unwrap());
    memory.write(0, &pattern(me, 1, 100_000)).unwrap();
    if let Err(e) = ctx.sendrecv((peer, 1, &out), (peer, 1, &into), LIMIT) {
        return println!("error: {e}");
    }
    assert!(read(&memory, 100_000, 100_000) == pattern(peer, 1, 100_000));
    assert_eq!(ctx.path(peer).unwrap().0, Path::Tcp);
    println!("done over {}", ctx.device().name());
    ctx.close(LIMIT).unwrap();
}

/// Messages of device memory by streams, around the eager limit and that of packing, also into receives with
/// more room, posted before and after their sends. Returns the number of kernels that packed.
fn streams_exchange(ctx: &Context) -> usize {
    const ROOM: usize = 300_000;
    let (me, peer) = (ctx.rank(), 1 - ctx.rank());
    let packing = Packing::of(ctx.gpu());
    let streams = [(); 2].map(|()| ctx.gpu().stream().unwrap());
    let memory = ctx.alloc(MemoryKind::Device, 2 * ROOM).unwrap();
    let lens = [0, 1, 65_536, 65_537, 256 << 10, (256 << 10) + 1];
    for (i, len) in lens.into_iter().enumerate() {
        for more in [0, 1] {
            for early in [false, true] {
                memory.write(0, &pattern(me, i, len)).unwrap();
                memory.write(ROOM, &[0xee; ROOM]).unwrap();
                let out = memory.slice(0, len).unwrap();
                let into = memory.slice(ROOM, len + more).unwrap();
                let receive = || ctx.irecv_on(&streams[0], peer, 1, &into).unwrap();
                let first = early.then(receive);
                let sent = ctx.isend_on(&streams[1], peer, 1, &out).unwrap();
                sent.wait_on(&streams[1]).unwrap();
                let received = first.unwrap_or_else(receive);
                received.wait_on(&streams[0]).unwrap();
                ctx.synchronize(&streams[0], LIMIT).unwrap();
                let mut expected = pattern(peer, i, len);
                expected.resize(ROOM, 0xee);
                assert!(
                    read(&memory, ROOM, ROOM) == expected,
                    "{len} + {more}, {early}"
                );
                assert_eq!(received.wait(LIMIT).unwrap().len, len as u64);
                ctx.synchronize(&streams[1], LIMIT).unwrap();
                assert!(sent.test().unwrap().is_some());
            }
        }
    }
    // The CPU takes in what a stream has posted.
    let (len, [out, into]) = (
        70_001,
        [0, ROOM].map(|at| memory.slice(at, 70_001).unwrap()),
    );
    memory.write(0, &pattern(me, 9, len)).unwrap();
    let received = ctx.irecv_on(&streams[0], peer, 1, &into).unwrap();
    let sent = ctx.isend_on(&streams[1], peer, 1, &out).unwrap();
    received.wait(LIMIT).unwrap();
    assert!(read(&memory, ROOM, len) == pattern(peer, 9, len));
    sent.wait(LIMIT).unwrap();
    packing.count()
}

fn start(part: &str, variables: &[(&str, String)]) -> Vec<Child> {
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "rank", "--ignored", "--nocapture"])
            .env(PART, part)
            .env("MP_PATH", "tcp")
            .env("MP_RANK", rank.to_string())
            .env("MP_SIZE", "2")
            .envs(variables.iter().cloned())
            .stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    (0..2).map(start).collect()
}

/// What the ranks of a job print; `store`: they meet at a store.
fn outputs(part: &str, store: bool, variables: &[(&str, &str)]) -> Vec<String> {
    // Tests of this process run at the same time.
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let place = Place::new(&format!("tcp-{part}-{call}"));
    let mut all: Vec<_> = variables
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()))
        .collect();
    let server = store.then(|| {
        let text = "not much of a secret";
        let secret = mp::bootstrap::Secret::from_text(text).unwrap();
        all.push(("MP_SECRET", text.to_owned()));
        all.push(("MP_SERVE", "0".to_owned()));
        let anywhere = "127.0.0.1:0".parse().unwrap();
        mp::bootstrap::tcp::Server::start(anywhere, &secret, "", 2).unwrap()
    });
    let at = match &server {
        Some(server) => format!("tcp://{}", server.address()),
        None => format!("file://{}", place.0.display()),
    };
    all.push(("MP_STORE", at));
    let outputs = start(part, &all).into_iter().map(|child| {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let line = |line: &&str| line.contains("done over") || line.contains("error: ");
        text.lines().find(line).unwrap_or_default().to_owned()
    });
    outputs.collect()
}

#[test]
fn processes_exchange_messages() {
    for store in [false, true] {
        let encrypted = ("MP_TCP_ENCRYPT", "1");
        let sockets = ("MP_TCP_SOCKETS", "3");
        for more in [&[][..], &[encrypted], &[sockets], &[encrypted, sockets]] {
            for text in outputs("plain", store, more) {
                assert!(text.contains("done over tcp "), "{text}");
            }
        }
    }
}

#[test]
fn kernels_pack_device_memory_if_mp_tcp_pack_is_set() {
    for (value, packs) in [("1", true), ("0", false), ("", false)] {
        for text in outputs("streams", false, &[("MP_TCP_PACK", value)]) {
            assert!(text.contains("done over tcp "), "{text}");
            assert_eq!(!text.contains(", 0 kernels packed"), packs, "{text}");
        }
    }
    for text in outputs("streams", false, &[("MP_TCP_PACK", "yes")]) {
        assert!(
            text.contains("error: ") && text.contains("MP_TCP_PACK=yes is not valid"),
            "{text}"
        );
    }
}

#[test]
fn mp_ifname_selects_the_address() {
    for value in ["lo", "127.0.0.1"] {
        for text in outputs("plain", false, &[("MP_IFNAME", value)]) {
            assert!(text.contains("done over tcp 127.0.0.1:"), "{text}");
        }
    }
    for text in outputs("plain", false, &[("MP_IFNAME", "nothing0")]) {
        assert!(text.contains("MP_IFNAME=nothing0 is neither"), "{text}");
        assert!(text.contains("the interfaces are lo (127.0.0.1)"), "{text}");
    }
}

#[test]
fn bootstrap_without_a_key_is_an_error_that_says_so() {
    let texts = outputs("keyless", false, &[]);
    let all = texts.join("\n");
    assert!(texts.iter().all(|text| text.contains("error: ")), "{all}");
    assert!(all.contains("implement Bootstrap::key"), "{all}");
}

#[test]
fn key_is_that_of_the_job() {
    let keys = |ranks: &[&dyn Bootstrap]| {
        let keys: Vec<_> = ranks.iter().map(|rank| rank.key().unwrap()).collect();
        assert_eq!(keys[0], keys[1]);
        keys[0]
    };
    let store = |job: &Job| {
        let ranks = job.all();
        assert!(ranks[0].local_address().unwrap().is_loopback());
        keys(&[&ranks[0], &ranks[1]])
    };
    let directory = || {
        let place = Place::new("tcp-key");
        let ranks = all_in(&place.0, 2);
        keys(&[&ranks[0], &ranks[1]])
    };
    let (first, mut second) = (Job::new(2), Job::new(2));
    let mut all = vec![store(&first), store(&second), directory(), directory()];
    // Another job with the same secret.
    second.server =
        mp::bootstrap::tcp::Server::start("127.0.0.1:0".parse().unwrap(), &first.secret, "test", 2)
            .unwrap();
    second.secret = first.secret.clone();
    all.push(store(&second));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

/// The program's key and address win.
#[test]
fn contexts_with_different_keys_do_not_connect() {
    let mut ranks = mp::bootstrap::Local::ranks(2).into_iter();
    let contexts = [1, 2].map(|key| {
        let address = std::net::IpAddr::from([127, 0, 0, 1]);
        let options = TcpOptions::default().key([key; 32]).address(address);
        let builder = Context::builder().bootstrap(ranks.next().unwrap());
        let builder = builder.path(mp::PathChoice::Tcp).tcp(options);
        let builder = builder.timeout(Duration::from_secs(10));
        builder.gpu(&gpu()).build().unwrap()
    });
    std::thread::scope(|threads| {
        for ctx in &contexts {
            threads.spawn(|| {
                assert!(ctx.device().name().contains("tcp 127.0.0.1:"));
                let memory = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
                // The other rank may have given this one up already.
                let send = ctx.isend(1 - ctx.rank(), 1, &memory.all());
                let e = send.and_then(|send| send.wait(LIMIT)).unwrap_err();
                assert!(matches!(e.kind(), mp::Kind::PeerFailed(_)), "{e}");
                println!("{e}");
            });
        }
    });
}

/// Both ranks send under as many tags as by a NIC before they receive: the larger rooms of TCP do not reduce
/// the number of tags without a receive.
#[test]
fn messages_under_many_tags_need_no_receive() {
    const TAGS: u32 = 100;
    let contexts: Vec<Context> = (mp::bootstrap::Local::ranks(2).into_iter())
        .map(|rank| {
            let builder = Context::builder().bootstrap(rank).gpu(&gpu());
            builder.path(mp::PathChoice::Tcp).build().unwrap()
        })
        .collect();
    std::thread::scope(|threads| {
        for ctx in &contexts {
            threads.spawn(|| {
                let (me, peer) = (ctx.rank(), 1 - ctx.rank());
                let memory = ctx.alloc(MemoryKind::Pinned, 16).unwrap();
                memory.write(0, &pattern(me, 1, 8)).unwrap();
                let [out, into] = [0, 8].map(|at| memory.slice(at, 8).unwrap());
                let send = |tag| ctx.isend(peer, tag, &out).unwrap();
                let sends: Vec<_> = (0..TAGS).map(send).collect();
                for tag in 0..TAGS {
                    ctx.irecv(peer, tag, &into).unwrap().wait(LIMIT).unwrap();
                    assert_eq!(read(&memory, 8, 8), pattern(peer, 1, 8));
                }
                for send in sends {
                    send.wait(LIMIT).unwrap();
                }
            });
        }
    });
}
