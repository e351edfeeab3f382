//! The matrix of random programs of messages: its axes, and the program of a cell.

use gdsync::gpu::MemoryKind;

use super::cover::{self, Axis, Cell};
use super::settings;
use crate::program::{self, Program, Settings, Side};
use crate::rig::verdict::Verdict;
use crate::rig::{Pair, Rig};

/// The axes of the matrix.
pub const AXES: [Axis; 9] = [
    ("posts", &["memops", "kernel", "auto", "cpu-thread"]),
    ("payload", &["pinned", "device"]),
    // In device memory only where the CPU reaches it; else the library takes pinned.
    ("queues", &["pinned", "device"]),
    ("blocks", &["4", "8", "16"]),
    ("from", &["0", "2^16-9", "2^32-9"]),
    ("streams", &["one", "alternating", "sender and receiver"]),
    ("receives", &["by stream", "by CPU"]),
    ("NICs", &["one", "two", "as of two processes"]),
    (
        "operations",
        &["sends", "writes", "reads", "atomics", "all"],
    ),
];

/// Whether a cell is valid: a message may match a receive posted by the CPU before the receiver's
/// stream has checked the previous contents of the buffer.
pub fn is_valid(cell: &Cell) -> bool {
    !(setting(cell, "streams") == "sender and receiver" && setting(cell, "receives") == "by CPU")
}

fn setting(cell: &Cell, axis: &str) -> &'static str {
    cover::setting(&AXES, cell, axis)
}

/// The seed of a cell's program, from the numbers of its settings.
pub fn seed_of(cell: &Cell) -> u64 {
    cell.iter().fold(1, |seed, n| 31 * seed + *n as u64)
}

/// Runs the program of a cell, with `laps` laps of each ring.
pub fn run(rig: &Rig, cell: &Cell, laps: usize) -> Verdict {
    let mut blocks: u32 = setting(cell, "blocks").parse()?;
    let payload = settings::memory(setting(cell, "payload"));
    let may_spin = matches!(setting(cell, "posts"), "kernel" | "auto");
    if rig.runtime.has_driver() && payload == MemoryKind::Device && may_spin {
        // Each copy by the virtual NIC waits until the spinning kernel's time slice ends.
        blocks = 4;
    }
    let memory = settings::memory(setting(cell, "queues"));
    let config = settings::queues(setting(cell, "posts"), [memory; 3])
        .send_blocks(blocks)
        .recv_entries(blocks)
        .start(settings::start(setting(cell, "from")));
    let settings = Settings {
        sides: vec![Side::plain(payload); 2],
        streams: setting(cell, "streams"),
        cpu_receives: setting(cell, "receives") == "by CPU",
        operations: setting(cell, "operations"),
        // Each queue pair sends half of the messages, most of them of one block.
        messages: 2 * laps * blocks as usize,
        seed: seed_of(cell),
    };
    let net = settings::nics(setting(cell, "NICs"));
    let pair = Pair::new(rig, net, [&config, &config])?;
    rig.check_queue_memory(&pair.qps, &config)?;
    program::play(rig, pair, &Program::draw(settings))
}
