//! The matrix of the soft GPU's capabilities: doorbell and lowering x memories x capabilities x
//! operation, with real threads. A pairwise cover runs: every two settings occur together in at
//! least one cell. The names of the cells are the names of the trials. A cell that cannot run here
//! is reported as ignored, and `GDS_REQUIRE` turns that into a failure.

use std::sync::Arc;

use gds_step::{Host, Live};
use gdsync::Gpu;
use gdsync::gpu::Caps;
use gdsync::gpu::soft::SoftOptions;
use gdsync::rdma::Provider;

use super::cover::{self, Axis, Cell};
use super::programs::seed_of;
use super::suite::Suite;
use super::{Options, laps, or_exit, parsed, settings, unsupported};
use crate::program::{self, Program, Settings, Side};
use crate::rig::provider::{self, Net};
use crate::rig::verdict::Verdict;
use crate::rig::{Pair, Rig, Runtime};

/// Entries of the rings.
const ENTRIES: u32 = 16;
/// Messages in each direction in one cell: several laps of every ring, or fewer with `GDS_LAPS`.
const MESSAGES: usize = 150;

/// The settings of each axis, by name.
pub(super) const AXES: [Axis; 7] = [
    ("posts", &["memops", "kernel", "cpu-thread"]),
    (
        "caps",
        &[
            "cuda",
            "masks",
            "hip",
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

fn caps(which: &str) -> Caps {
    let cuda = SoftOptions::default().caps;
    match which {
        "masks" => cuda.mask(true).nor(false),
        "hip" => SoftOptions::hip().caps,
        "no-nor" => cuda.nor(false),
        "32-bit" => cuda.memops64(false).fence(false),
        "flush-by-cpu" => cuda.flush(false),
        "flush-by-nic" => cuda.flush(false).host_flush(false),
        "small-batches" => cuda.batch_limit(4).inline_copy(true),
        _ => cuda,
    }
}

/// The program of a cell, on a soft GPU with the capabilities of the cell.
fn run(provider: Provider, cell: &Cell) -> Verdict {
    let setting = |axis| cover::setting(&AXES, cell, axis);
    let memory = |axis| settings::memory(setting(axis));
    let options = SoftOptions::default().caps(caps(setting("caps")));
    let live: Arc<dyn Host> = Live::global()?;
    let rig = Rig::with(Runtime::Soft, Gpu::soft_with(live, options)?, provider)?;
    let memories = ["rings", "completions", "record"].map(memory);
    let config = settings::queues(setting("posts"), memories)
        .send_blocks(ENTRIES)
        .recv_entries(ENTRIES)
        .start(provider::shortly_before_the_wrap(provider));
    let settings = Settings {
        sides: vec![Side::plain(memory("payload")); 2],
        streams: "one",
        cpu_receives: false,
        operations: setting("operation"),
        messages: 2 * MESSAGES.min(laps()? * ENTRIES as usize),
        seed: seed_of(cell),
    };
    let pair = Pair::new(&rig, Net::One, [&config, &config])?;
    rig.check_queue_memory(&pair.qps, &config)?;
    program::play(&rig, pair, &Program::draw(settings))
}

/// The command `conformance matrix`.
pub fn command(words: impl Iterator<Item = String>) -> ! {
    let options: Options = parsed("conformance matrix", words);
    let mut suite = or_exit(Suite::new("matrix"));
    let provider = suite.chosen.provider;
    let cells = unsupported::cells(provider, &AXES, options.few, |keep| {
        cover::pairwise(&AXES, keep)
    });
    for cell in cells {
        let title = cover::name(&AXES, &cell);
        suite.add(Runtime::Soft, title, move || run(provider, &cell));
    }
    let required = std::env::var("GDS_REQUIRE").unwrap_or_default();
    let known = [
        "",
        "soft",
        "virt",
        "cuda",
        "hip",
        "hip_headers",
        "rdma_core",
    ];
    for unknown in required.split(',').map(str::trim) {
        if !known.contains(&unknown) {
            let why = format!("GDS_REQUIRE accepts{}", known.join(" "));
            suite.lacking(unknown, why, false);
        }
    }
    suite.run(options.trials, |_| {})
}
