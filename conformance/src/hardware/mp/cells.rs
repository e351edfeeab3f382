//! The axes of cells, a cell as numbers with its cost, and the selections of cells: a pairwise
//! cover of all axes, and the product of the main axes with the other settings drawn.

use std::time::Duration;

use gdsync::rdma::{Doorbell, Lowering, Provider, QpConfig};
use mp::{Builder, Connect, NicOptions, Progress};

use super::super::cover::{self, Axis, Cell};
use crate::mp::memory::BufferKind;
use crate::mp::setup::{Form, ODD, Poster, Reach, Setup, Size, Waiter};
use crate::rig::limits::scaled;
use crate::rig::provider;

/// The axes of cells. [`whole`] runs the product of the first six.
const AXES: [Axis; 20] = [
    (
        "model",
        &[
            "cpu",
            "stream",
            "cpu-thread",
            "cpu to stream",
            "stream to cpu",
            "cpu-thread to stream",
            "mixed",
        ],
    ),
    ("doorbell", &["direct", "cpu-thread"]),
    ("from", &["device", "pinned", "pageable", "registered"]),
    (
        "size",
        &["0", "1", "4", "64", "4K", "64K", "1M", "4M", "odd"],
    ),
    ("ranks", &["2", "3", "4", "8"]),
    ("laps", &["part", "2", "8"]),
    ("into", &["device", "pinned", "pageable", "registered"]),
    // The waiter of a request, relative to its poster.
    ("ended", &["poster", "other", "another stream", "mixed"]),
    ("form", &["single", "vectors", "words"]),
    ("source", &["named", "any rank"]),
    ("eager", &["1", "4K", "64K", "1M"]),
    ("depth", &["2", "4", "16"]),
    ("first", &["0", "2^16-5", "2^32-5"]),
    ("tags", &["1", "3", "17"]),
    ("streams", &["1", "2", "9"]),
    ("peers", &["next", "all", "itself"]),
    ("lowering", &["memops", "kernel"]),
    ("connect", &["lazy", "up front"]),
    ("progress", &["background", "manual"]),
    ("posts", &["at once", "prepared", "bound late"]),
];

/// The setting of a cell on an axis.
///
/// # Panics
/// There is no axis of this name.
fn setting(cell: &Cell, axis: &str) -> &'static str {
    cover::setting(&AXES, cell, axis)
}

/// The number of main axes, of which [`whole`] runs the product.
const MAIN: usize = 6;

/// The settings of a cell as text.
pub fn name(cell: &Cell) -> String {
    cover::name(&AXES, cell)
}

/// A cell as one word, for the command line.
pub fn word(cell: &Cell) -> String {
    let settings: Vec<String> = cell.iter().map(usize::to_string).collect();
    settings.join(".")
}

/// Parses a word of [`word`]; `None` if it is not a cell.
pub fn parse(word: &str) -> Option<Cell> {
    let cell: Cell = word
        .split('.')
        .map(|n| n.parse().ok())
        .collect::<Option<_>>()?;
    let fits = |(setting, (_, settings)): (&usize, &Axis)| *setting < settings.len();
    (cell.len() == AXES.len() && cell.iter().zip(&AXES).all(fits)).then_some(cell)
}

/// Time limit of messages without an answer: the default of contexts.
const TIMEOUT: Duration = Duration::from_secs(30);

const MIB: usize = 1 << 20;

impl Setup {
    /// The parameters of `cell`.
    pub fn of(cell: &Cell) -> Setup {
        let seed = seed_of(cell);
        let is = |axis, what| setting(cell, axis) == what;
        let number = |axis| match setting(cell, axis) {
            "2^16-5" => (1 << 16) - 5,
            "2^32-5" => (1 << 32) - 5,
            text => bytes(text) as u64,
        };
        let memory = |axis| match setting(cell, axis) {
            "device" => BufferKind::Device,
            "pinned" => BufferKind::Pinned,
            "pageable" => BufferKind::Pageable,
            _ => BufferKind::Registered,
        };
        let (sender, receiver) = match setting(cell, "model") {
            "cpu" => (Poster::Cpu, Poster::Cpu),
            "stream" => (Poster::Stream, Poster::Stream),
            "cpu-thread" => (Poster::CpuThread, Poster::CpuThread),
            "cpu to stream" => (Poster::Cpu, Poster::Stream),
            "stream to cpu" => (Poster::Stream, Poster::Cpu),
            "cpu-thread to stream" => (Poster::CpuThread, Poster::Stream),
            _ => (Poster::Mixed, Poster::Mixed),
        };
        let depth = number("depth") as u32;
        let tags = number("tags") as u32;
        let wild = if is("source", "any rank") { tags } else { 0 };
        Setup {
            sender,
            receiver,
            waiter: match setting(cell, "ended") {
                "poster" => Waiter::Poster,
                "other" => Waiter::Other,
                "another stream" => Waiter::Another,
                _ => Waiter::Mixed,
            },
            doorbell: match setting(cell, "doorbell") {
                "cpu-thread" => Doorbell::CpuThread,
                _ => Doorbell::Direct,
            },
            lowering: match setting(cell, "lowering") {
                "kernel" => Lowering::Kernel,
                _ => Lowering::MemOps,
            },
            from: memory("from"),
            into: memory("into"),
            size: match setting(cell, "size") {
                "odd" => Size::Odd,
                text => Size::Bytes(bytes(text)),
            },
            ranks: number("ranks") as u32,
            form: match setting(cell, "form") {
                "vectors" => Form::Vectors,
                "words" => Form::Words,
                _ => Form::Single,
            },
            wild,
            wild_ahead: false,
            eager: number("eager") as usize,
            depth,
            first: number("first"),
            tags,
            streams: number("streams") as u32,
            reach: match setting(cell, "peers") {
                "all" => Reach::All,
                "itself" => Reach::Itself,
                _ => Reach::Next,
            },
            one_way: false,
            up_front: is("connect", "up front"),
            manual: is("progress", "manual"),
            prepared: !is("posts", "at once"),
            late: is("posts", "bound late"),
            // A rank that receives from any rank meets the others after each round.
            lag: if wild > 0 {
                0
            } else {
                (seed >> 7 & 1) as usize
            },
            messages: match setting(cell, "laps") {
                "part" => (depth / 2) as usize,
                laps => bytes(laps) * depth as usize + 1,
            },
            hazards: false,
            seed,
        }
    }

    /// Whether the combination of settings is valid.
    pub fn is_valid(&self) -> bool {
        // Memory of slots and mailboxes, of one rank.
        let slots = (2 + self.lag + self.ahead()) * self.window() * self.channels();
        let eager = self.eager.next_multiple_of(64);
        let mailboxes = self.depth as usize * self.channels() * eager;
        slots * self.slot() <= 160 * MIB && mailboxes <= 32 * MIB
    }

    /// Number of messages of all ranks, and of their bytes.
    pub fn cost(&self) -> (usize, usize) {
        let messages = self.messages * self.channels() * self.ranks as usize;
        let each = match self.size {
            Size::Bytes(bytes) | Size::Around(bytes) => bytes,
            Size::Odd => ODD.iter().sum::<usize>() / ODD.len(),
        };
        (messages, messages * each)
    }

    /// Whether it is small enough to be tested with every change.
    pub fn is_small(&self) -> bool {
        let (messages, bytes) = self.cost();
        messages <= 2500 && bytes <= 150 * MIB
    }

    /// Whether its cost is close to the minimum.
    pub fn is_affordable(&self) -> bool {
        let (messages, bytes) = self.cost();
        let least = Setup {
            depth: 2,
            tags: 1,
            reach: Reach::Next,
            messages: match self.messages < self.depth as usize {
                true => 1,
                false => self.messages / self.depth as usize * 2 + 1,
            },
            ..self.clone()
        };
        messages <= 1500 && bytes <= least.cost().1.max(24 * MIB)
    }

    /// Whether its kernels may spin.
    pub fn spins(&self) -> bool {
        self.lowering == Lowering::Kernel
    }

    /// A context with the settings of the cell, over a provider.
    #[must_use]
    pub fn build(&self, builder: Builder, provider: Provider) -> Builder {
        builder
            .timeout(scaled(TIMEOUT))
            .eager_limit(self.eager)
            .depth(self.depth)
            .start(self.first)
            .doorbell(self.doorbell)
            .connect(match self.up_front {
                true => Connect::UpFront,
                false => Connect::Lazy,
            })
            .progress(match self.manual {
                true => Progress::Manual,
                false => Progress::Background,
            })
            .nic(
                NicOptions::default().queues(
                    QpConfig::default()
                        // Few, so that rings are used again; their indices wrap soon.
                        .send_blocks(32)
                        .recv_entries(4)
                        .recv_sges(1)
                        .lowering(self.lowering)
                        .start(provider::shortly_before_the_wrap(provider)),
                ),
            )
    }
}

/// `4K` is 4096.
fn bytes(text: &str) -> usize {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], MIB),
        _ => (text, 1),
    };
    digits.parse::<usize>().expect("settings are numbers") * unit
}

/// A pseudo-random number of the cell, which changes with `GDS_SEED`.
fn seed_of(cell: &Cell) -> u64 {
    let chosen = std::env::var("GDS_SEED").ok();
    let chosen = chosen.and_then(|text| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    });
    let start = chosen.unwrap_or(0xcbf2_9ce4_8422_2325);
    cell.iter().fold(start, |hash, setting| {
        (hash ^ *setting as u64).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The resources that ranks share, where they limit the cells.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    /// Streams that all ranks together may have; `None`: no limit.
    pub streams: Option<u32>,
    /// Whether ranks of several processes share a GPU: a spinning kernel of one process would block
    /// those of another.
    pub shared: bool,
}

impl Resources {
    fn allow(&self, setup: &Setup) -> bool {
        self.streams
            .is_none_or(|most| setup.streams * setup.ranks <= most)
            && !(self.shared && setup.spins())
    }
}

/// A pairwise cover of all axes.
pub fn pairwise(resources: Resources) -> Vec<Cell> {
    let sense = |cell: &Cell| {
        let setup = Setup::of(cell);
        setup.is_valid() && resources.allow(&setup) && setup.is_small()
    };
    cover::pairwise(&AXES, sense)
}

/// All combinations of the main axes, each with drawn settings of the other axes.
pub fn whole(resources: Resources) -> Vec<Cell> {
    let sizes = AXES[..MAIN].iter().map(|(_, settings)| settings.len());
    let mut cells: Vec<Cell> = vec![Vec::new()];
    for settings in sizes {
        let longer = |cell: &Cell| -> Vec<Cell> {
            let with = |setting| cell.iter().copied().chain([setting]).collect();
            (0..settings).map(with).collect()
        };
        cells = cells.iter().flat_map(longer).collect();
    }
    let mut rng = fastrand::Rng::with_seed(11);
    for cell in &mut cells {
        // Some draw always fits: the smallest settings do.
        loop {
            cell.truncate(MAIN);
            let rest = AXES[MAIN..].iter();
            cell.extend(rest.map(|(_, settings)| rng.usize(0..settings.len())));
            let setup = Setup::of(cell);
            if setup.is_valid() && resources.allow(&setup) && setup.is_affordable() {
                break;
            }
        }
    }
    cells
}

/// A few cells of the cover, for ranks that are processes: each model and each number of ranks.
pub fn few(resources: Resources) -> Vec<Cell> {
    that_meet(pairwise(resources), &["model", "ranks"])
}

/// Cells of the cover in which each setting occurs, those with the fewest messages first: for slow
/// machines.
pub fn fewer(resources: Resources) -> Vec<Cell> {
    cover::each(cheapest_first(resources))
}

/// As [`fewer`], for ranks that are processes: each number of ranks.
pub fn fewer_apart(resources: Resources) -> Vec<Cell> {
    that_meet(cheapest_first(resources), &["ranks"])
}

fn cheapest_first(resources: Resources) -> Vec<Cell> {
    let mut cells = pairwise(resources);
    cells.sort_by_key(|cell| {
        let (messages, bytes) = Setup::of(cell).cost();
        // A message costs as much as so many bytes of it.
        messages + bytes / (64 << 10)
    });
    cells
}

/// The cells that have a setting of these axes that no earlier cell has.
fn that_meet(cells: Vec<Cell>, axes: &[&str]) -> Vec<Cell> {
    cover::each_of(cells, |axis| axes.contains(&AXES[axis].0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESOURCES: [Resources; 3] = [
        Resources {
            streams: None,
            shared: false,
        },
        Resources {
            streams: Some(28),
            shared: false,
        },
        Resources {
            streams: None,
            shared: true,
        },
    ];

    #[test]
    fn cover_has_every_setting_and_whole_every_main_combination() {
        for resources in RESOURCES {
            let cells = pairwise(resources);
            assert!(cells.len() < 120, "{} cells", cells.len());
            for (axis, (name, settings)) in AXES.iter().enumerate() {
                let left_out = |setting: usize| {
                    resources.shared && (*name, settings[setting]) == ("lowering", "kernel")
                };
                for setting in (0..settings.len()).filter(|s| !left_out(*s)) {
                    let met = cells.iter().any(|cell| cell[axis] == setting);
                    assert!(met, "{name} {} with {resources:?}", settings[setting]);
                }
            }
            let product: usize = AXES[..MAIN].iter().map(|(_, s)| s.len()).product();
            assert_eq!(whole(resources).len(), product);
            for cell in few(resources) {
                assert_eq!(parse(&word(&cell)).as_ref(), Some(&cell));
            }
            assert!((7..12).contains(&few(resources).len()));
            assert_eq!(fewer_apart(resources).len(), 4);
            let messages = |cells: Vec<Cell>| -> usize {
                cells.iter().map(|cell| Setup::of(cell).cost().0).sum()
            };
            let (some, all) = (messages(fewer(resources)), messages(cells));
            assert!(some < all / 5, "{some} of {all} messages");
        }
    }
}
