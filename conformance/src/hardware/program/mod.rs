//! Random programs of messages over queue pairs between two sides or more: the streams fill each
//! payload, send it, wait for it and look at it, while the CPU only enqueues, a ring's length ahead.
//! Payloads change from message to message.
//!
//! `draw` draws the messages, `play` plays them: of two sides on one GPU, or of one side whose peers
//! play elsewhere. On real threads and real GPUs ([`run`]) kernels fill and verify. Under the
//! simulation ([`exchange`](crate::exchange)) there are [`Hazards`] as well: requests that are
//! aborted, patched by the stream or refused, words that one stream hands to another, receives early
//! and late, lists that grow over several messages, and memory that is written over as soon as a wait
//! has passed.

mod draw;
mod play;
mod todo;

pub use draw::Program;
pub use play::{Ends, Memory, play, play_on};

use gdsync::gpu::{Caps, MemoryKind};
use gdsync::rdma::QpConfig;

use super::settings;
use crate::cover::{self, Axis, Cell};
use crate::live::rig::{Pair, Rig, Runtime};
use crate::live::verdict::Verdict;

/// What the programs of a matrix differ in.
pub const AXES: [Axis; 9] = [
    ("posts", &["memops", "kernel", "auto", "proxy"]),
    ("payload", &["pinned", "device"]),
    // In device memory only where the CPU reaches it; else the library takes pinned.
    ("queues", &["pinned", "device"]),
    ("blocks", &["4", "8", "16"]),
    ("from", &["0", "2^16-9", "2^32-9"]),
    ("streams", &["one", "by turns", "sender and receiver"]),
    ("receives", &["by stream", "by CPU"]),
    ("NICs", &["one", "two", "as of two processes"]),
    (
        "operations",
        &["sends", "writes", "reads", "atomics", "all"],
    ),
];

/// Whether a cell means something: receives that the CPU has posted may be matched before the
/// receiver's stream has looked at what lay there before.
pub fn makes_sense(cell: &Cell) -> bool {
    !(setting(cell, "streams") == "sender and receiver" && setting(cell, "receives") == "by CPU")
}

fn setting(cell: &Cell, axis: &str) -> &'static str {
    cover::setting(&AXES, cell, axis)
}

/// What a program is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its sides.
    pub sides: Vec<Side>,
    /// Which streams send and look, as the axis calls it.
    pub streams: &'static str,
    /// Whether the CPU posts receives.
    pub cpu_receives: bool,
    /// What the messages are, as the axes of [`AXES`] or of the matrix call it.
    pub operations: &'static str,
    /// How many there are.
    pub messages: usize,
    /// What they are drawn from.
    pub seed: u64,
}

impl Settings {
    /// Whether more happens than messages.
    pub fn hazards(&self) -> bool {
        self.sides.iter().all(|side| side.hazards.is_some())
    }
}

/// One side of a program.
#[derive(Clone, Debug)]
pub struct Side {
    /// Where messages are sent from.
    pub source: MemoryKind,
    /// Where messages land.
    pub landing: MemoryKind,
    /// What else happens.
    pub hazards: Option<Hazards>,
}

impl Side {
    /// One where nothing else happens.
    pub fn plain(payload: MemoryKind) -> Side {
        Side {
            source: payload,
            landing: payload,
            hazards: None,
        }
    }
}

/// What else a program may do.
#[derive(Clone, Debug)]
pub struct Hazards {
    /// What the GPU can do.
    pub caps: Caps,
    /// Whether a stream takes so much that a receive may be posted behind what waits for it.
    pub late: bool,
}

/// A number of a cell.
pub fn seed_of(cell: &Cell) -> u64 {
    cell.iter().fold(1, |seed, n| 31 * seed + *n as u64)
}

/// Runs the program of a cell: so many laps of each ring.
pub fn run(rig: &Rig, cell: &Cell, laps: usize) -> Verdict {
    let mut blocks: u32 = setting(cell, "blocks").parse()?;
    let payload = settings::memory(setting(cell, "payload"));
    let may_spin = matches!(setting(cell, "posts"), "kernel" | "auto");
    if rig.runtime == Runtime::Cuda && payload == MemoryKind::Device && may_spin {
        // Each copy of the virtual NIC's waits for a time slice of the kernel that waits for it.
        blocks = 4;
    }
    let queues = settings::memory(setting(cell, "queues"));
    let (lowering, doorbell) = settings::posting(setting(cell, "posts"));
    let config = QpConfig::default()
        .send_blocks(blocks)
        .recv_entries(blocks)
        .ring_memory(queues)
        .cq_memory(queues)
        .record_memory(queues)
        .lowering(lowering)
        .doorbell(doorbell)
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
    rig.lie(&pair.qps, &config)?;
    play(rig, pair, &Program::draw(settings))
}
