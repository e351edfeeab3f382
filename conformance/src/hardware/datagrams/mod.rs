//! The matrix of programs of datagrams: its axes, and the program of a cell. [`directed`] tests
//! datagrams that are dropped, too long, or received by a receive that a stream posts.

pub mod directed;

use gdsync::rdma::Provider;

use super::cover::{self, Axis, Cell};
use super::settings;
use crate::datagrams::Stations;
use crate::datagrams::program::{MANY, Play, rounds_of};
use crate::rig::Rig;
use crate::rig::verdict::Verdict;

/// The axes of the matrix.
pub const AXES: [Axis; 6] = [
    ("posts", &["CPU", "memops", "kernel", "cpu-thread"]),
    ("payload", &["pinned", "device"]),
    ("queues", &["pinned", "device"]),
    ("from", &["0", "2^16-9", "2^32-9"]),
    // "by both": the CPU posts the last receive, behind those of the stream.
    ("receives", &["by CPU", "by stream", "by both"]),
    ("NICs", &["one", "two", "as of two processes"]),
];

/// Whether a cell is valid: a receive that a stream posts by a thread may be too late for a
/// datagram, unless the CPU posts one behind it. [`directed`] tests this case.
pub fn is_valid(provider: Provider, cell: &Cell) -> bool {
    let late = setting(cell, "posts") == "cpu-thread" || provider == Provider::Verbs;
    !(late && setting(cell, "receives") == "by stream")
}

fn setting(cell: &Cell, axis: &str) -> &'static str {
    cover::setting(&AXES, cell, axis)
}

/// Runs the program of a cell, with the given number of rounds.
pub fn run(rig: &Rig, cell: &Cell, rounds: u32) -> Verdict {
    let posts = setting(cell, "posts");
    let memory = settings::memory(setting(cell, "queues"));
    let play = Play {
        config: settings::queues(posts, [memory; 3])
            .send_blocks(32)
            .recv_entries(16)
            .start(settings::start(setting(cell, "from"))),
        payload: settings::memory(setting(cell, "payload")),
        cpu_sends: posts == "CPU",
        receives: setting(cell, "receives"),
    };
    let net = settings::nics(setting(cell, "NICs"));
    let stations = Stations::new(rig, net, &play.config, MANY)?;
    rig.check_queue_memory(stations.all.iter().map(|one| &one.qp), &play.config)?;
    let seed = cell.iter().fold(2, |seed, n| 31 * seed + *n as u64);
    rounds_of(rig, stations, &play, rounds, seed)
}
