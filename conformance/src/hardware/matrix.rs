//! The matrix of what can be switched on the soft GPU: endpoint and lowering x memories x
//! capabilities x operation, with real threads. A pairwise cover runs: any two settings meet in at
//! least one cell. The cells' names are printed as the trials' names. What is not there is shown as
//! ignored, and `GDS_REQUIRE` turns that into a failure.

use std::sync::Arc;

use gds_step::Host;
use gds_step::Live;
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use gdsync::memop::Caps;
use gdsync::rdma::{
    Access, Descriptor, Endpoint, Lowering, Mr, Provider, Qp, QpConfig, Sge, WaitOptions, Work,
    post_on,
};
use gdsync::{Gpu, Status};
use libtest_mimic::Arguments;

use super::gear::{Runtime, Verdict, ensure};
use super::patience::patience;
use super::provider;
use super::suite::Suite;
use super::{few, is_required, laps, told, unsupported};
use crate::cover::{self, Axis, Cell};

/// Entries of the rings.
const ENTRIES: u32 = 16;
/// Messages each way in one cell: several laps of every ring, or fewer if `GDS_LAPS` says so.
const MESSAGES: usize = 150;

/// The settings of each axis, by name.
pub(super) const AXES: [Axis; 7] = [
    ("posts", &["memops", "kernel", "proxy"]),
    (
        "caps",
        &[
            "cuda",
            "masks",
            "no-nor",
            "32-bit",
            "flush-by-cpu",
            "flush-by-nic",
            "small-batches",
        ],
    ),
    ("rings", &["pinned", "device"]),
    ("completions", &["pinned", "device"]),
    ("record", &["pinned", "device"]),
    ("payload", &["pinned", "device"]),
    (
        "operation",
        &["send", "send-inline", "write-imm", "write", "read"],
    ),
];

/// Whether a cell means something: all do.
fn makes_sense(_: &Cell) -> bool {
    true
}

fn memory(which: usize) -> MemoryKind {
    [MemoryKind::Pinned, MemoryKind::Device][which]
}

fn caps(which: usize) -> Caps {
    let cuda = SoftOptions::default().caps;
    match AXES[1].1[which] {
        "masks" => Caps {
            mask: true,
            nor: false,
            ..cuda
        },
        "no-nor" => Caps { nor: false, ..cuda },
        "32-bit" => Caps {
            memops64: false,
            fence: false,
            ..cuda
        },
        "flush-by-cpu" => Caps {
            flush: false,
            ..cuda
        },
        "flush-by-nic" => Caps {
            flush: false,
            host_flush: false,
            ..cuda
        },
        "small-batches" => Caps {
            batch_limit: 4,
            inline_copy: true,
            ..cuda
        },
        _ => cuda,
    }
}

struct Bench {
    gpu: Gpu,
    qps: [Qp; 2],
    source: Mr,
    landing: Mr,
    seen: gdsync::gpu::Region,
}

const SLOT: usize = 4096;

fn open(provider: Provider, cell: &Cell) -> Verdict<Bench> {
    let [posts, which, rings, completions, record, payload, _] = cell[..] else {
        unreachable!("a cell has a setting of each axis")
    };
    let options = SoftOptions {
        caps: caps(which),
        ..SoftOptions::default()
    };
    let live: Arc<dyn Host> = Live::global()?;
    let gpu = Gpu::soft_with(live, options)?;
    let pd = provider::open(provider, &gpu)?.alloc_pd()?;
    let config = QpConfig {
        send_blocks: ENTRIES,
        recv_entries: ENTRIES,
        ring_memory: memory(rings),
        cq_memory: memory(completions),
        record_memory: memory(record),
        lowering: if posts == 1 {
            Lowering::Kernel
        } else {
            Lowering::MemOps
        },
        endpoint: if posts == 2 {
            Endpoint::Proxy
        } else {
            Endpoint::Ring
        },
        start: provider::shortly_before_the_wrap(provider),
        ..QpConfig::default()
    };
    let mut qps = [pd.create_qp(&config)?, pd.create_qp(&config)?];
    let lie = qps[0].memory();
    let wanted = [config.ring_memory, config.cq_memory, config.record_memory];
    ensure(lie == wanted, || {
        format!("queues lie in pinned memory: {lie:?} in place of {wanted:?}")
    })?;
    let addresses = [qps[0].address(), qps[1].address()];
    qps[0].connect(&addresses[1])?;
    qps[1].connect(&addresses[0])?;
    let region = |kind| gpu.alloc(kind, 2 * SLOT);
    Ok(Bench {
        source: pd.register(&region(memory(payload))?, Access::ALL)?,
        landing: pd.register(&region(memory(payload))?, Access::ALL)?,
        seen: region(MemoryKind::Pinned)?,
        qps,
        gpu,
    })
}

/// Sizes that change from message to message, odd ones among them.
fn len(i: usize, operation: &str) -> usize {
    let sizes = [8, 1, 64, 100, 0, 4096, 777, 1024];
    match operation {
        "send-inline" => sizes[i % 4],
        "read" => sizes[i % 8].max(1),
        _ => sizes[i % 8],
    }
}

fn run(provider: Provider, cell: &Cell) -> Verdict {
    let operation = AXES[6].1[cell[6]];
    let mut b = open(provider, cell)?;
    let stream = b.gpu.stream()?;
    for i in 0..MESSAGES.min(laps()? * ENTRIES as usize) {
        for from in 0..2 {
            let n = len(i, operation);
            let bytes: Vec<u8> = (0..n).map(|at| (i * 7 + from * 131 + at) as u8).collect();
            let at = from * SLOT;
            b.source.region().write(at, &bytes)?;
            b.landing.region().write(at, &[0xee; SLOT])?;
            message(&mut b, operation, from, &bytes, &stream)
                .map_err(|e| format!("message {i}: {e:?}"))?;
            let done = stream.synchronize(patience())?;
            ensure(done, || {
                format!("message {i} from {from}: the stream hangs")
            })?;
            let mut got = vec![0; SLOT];
            b.seen.read(at, &mut got)?;
            let mut want = bytes;
            want.resize(SLOT, 0xee);
            ensure(got == want, || {
                format!("message {i} from {from} of {n} bytes: wrong bytes")
            })?;
        }
    }
    let errors = [b.qps[0].error(), b.qps[1].error()];
    ensure(errors == [None, None], || format!("{errors:?}"))
}

/// One message from one queue pair to the other; the stream copies what it sees behind its wait.
fn message(
    b: &mut Bench,
    operation: &str,
    from: usize,
    bytes: &[u8],
    stream: &gdsync::Stream,
) -> gdsync::Result<()> {
    let (source, landing) = (b.source.clone(), b.landing.clone());
    let at = (from * SLOT) as u64;
    let out: [Sge<'_>; 1] = [source.sge(at, bytes.len() as u32)];
    let into = [landing.sge(at, bytes.len() as u32)];
    let room = [landing.sge(at, SLOT as u32)];
    let there = landing.remote().span(at, SLOT as u64)?;
    let pieces = [bytes];
    let takes_receive = matches!(operation, "send" | "send-inline" | "write-imm");
    let work = match operation {
        "send" => Work::send(&out),
        "send-inline" => Work::send_inline(&pieces),
        "write-imm" => Work::write(&out, there).with_imm(5),
        "write" => Work::write(&out, there),
        _ => Work::read(&into, source.remote().span(at, bytes.len() as u64)?),
    };
    let wait = |completion| {
        let options = WaitOptions {
            flush: true,
            timeout: None,
        };
        Descriptor::Wait(completion, options)
    };
    let send = b.qps[from].prepare_within(&work.signaled(), patience())?;
    let mut list = Vec::new();
    let mut receive = None;
    if takes_receive {
        let r = b.qps[1 - from].prepare_receive(&room)?;
        list.push(Descriptor::Receive(r));
        receive = Some(r);
    }
    list.push(Descriptor::Send(send));
    list.push(wait(send.into()));
    list.extend(receive.map(|r| wait(r.into())));
    let [a, z] = &mut b.qps;
    post_on(stream, &mut [a, z], &list)?;
    let span = |region: &gdsync::gpu::Region| region.span(from * SLOT, SLOT);
    stream.copy(&span(&b.seen)?, &span(landing.region())?)?;
    b.qps[from].wait(send, patience())?;
    assert_eq!(b.qps[from].poll(send)?, Some(Status::SUCCESS));
    Ok(())
}

/// What this version cannot run at all, and why. (CUDA runs in the other trials: what its streams
/// can do is not ours to switch.)
const ABSENT: (&str, &str) = ("hip", "this version has no HIP runtime");

/// The command `conformance matrix`.
pub fn command(words: impl Iterator<Item = String>) -> ! {
    let (few, words) = few(words);
    let words = std::iter::once("conformance matrix".to_owned()).chain(words);
    let arguments = Arguments::from_iter(words);
    let mut suite = told(Suite::new("matrix"));
    let provider = suite.chosen.provider;
    let cells = unsupported::cells(provider, &AXES, few, |keep| {
        cover::pairwise(&AXES, |cell| makes_sense(cell) && keep(cell))
    });
    for cell in cells {
        let title = cover::name(&AXES, &cell);
        suite.add(Runtime::Soft, title, move || run(provider, &cell));
    }
    let (hip, why) = ABSENT;
    suite.lacking(hip, why, !is_required(hip));
    let required = std::env::var("GDS_REQUIRE").unwrap_or_default();
    let known = ["", "soft", "virt", "cuda", "hip", "rdma_core"];
    for unknown in required.split(',').map(str::trim) {
        if !known.contains(&unknown) {
            let why = format!("GDS_REQUIRE knows{}", known.join(" "));
            suite.lacking(unknown, why, false);
        }
    }
    suite.run(arguments, |_| {})
}
