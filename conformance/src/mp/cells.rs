//! Which cells there are: a pairwise cover of everything, and the whole product of what matters most
//! with the rest drawn.

use crate::cover::{self, Axis, Cell};

use super::setup::{AXES, Setup};

/// How many axes [`whole`] multiplies out.
const MAIN: usize = 6;

/// What a cell sets, for people.
pub fn name(cell: &Cell) -> String {
    cover::name(&AXES, cell)
}

/// A cell as one word.
pub fn word(cell: &Cell) -> String {
    let settings: Vec<String> = cell.iter().map(usize::to_string).collect();
    settings.join(".")
}

/// The cell of a word; `None` if there is none.
pub fn parse(word: &str) -> Option<Cell> {
    let cell: Cell = word
        .split('.')
        .map(|n| n.parse().ok())
        .collect::<Option<_>>()?;
    let fits = |(setting, (_, settings)): (&usize, &Axis)| *setting < settings.len();
    (cell.len() == AXES.len() && cell.iter().zip(&AXES).all(fits)).then_some(cell)
}

/// What ranks can be spread over, as far as it limits the cells.
#[derive(Clone, Copy, Debug)]
pub struct Ground {
    /// Streams that all ranks together may have; `None`: any number.
    pub streams: Option<u32>,
    /// Whether ranks share a GPU from several processes: kernels of one that spin would keep those
    /// of another out.
    pub shared: bool,
}

impl Ground {
    fn carries(&self, setup: &Setup) -> bool {
        self.streams
            .is_none_or(|most| setup.streams * setup.ranks <= most)
            && !(self.shared && setup.spins())
    }
}

/// A pairwise cover of all axes.
pub fn pairwise(ground: Ground) -> Vec<Cell> {
    let sense = |cell: &Cell| {
        let setup = Setup::of(cell);
        setup.makes_sense() && ground.carries(&setup) && setup.is_small()
    };
    cover::pairwise(&AXES, sense)
}

/// All settings of the main axes, each with others that are drawn.
pub fn whole(ground: Ground) -> Vec<Cell> {
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
            if setup.makes_sense() && ground.carries(&setup) && setup.is_affordable() {
                break;
            }
        }
    }
    cells
}

/// A few cells of the cover, for ranks that are processes: each model and number of ranks.
pub fn few(ground: Ground) -> Vec<Cell> {
    that_meet(pairwise(ground), &["model", "ranks"])
}

/// Cells of the cover in which each setting is met, those with the fewest messages first: for
/// slow machines.
pub fn fewer(ground: Ground) -> Vec<Cell> {
    cover::each(cheapest_first(ground))
}

/// As [`fewer`], for ranks that are processes: each number of ranks.
pub fn fewer_apart(ground: Ground) -> Vec<Cell> {
    that_meet(cheapest_first(ground), &["ranks"])
}

fn cheapest_first(ground: Ground) -> Vec<Cell> {
    let mut cells = pairwise(ground);
    cells.sort_by_key(|cell| {
        let (messages, bytes) = Setup::of(cell).cost();
        // A message costs as much as so many bytes of it.
        messages + bytes / (64 << 10)
    });
    cells
}

/// The cells with a setting of these axes that none before has.
fn that_meet(cells: Vec<Cell>, axes: &[&str]) -> Vec<Cell> {
    cover::each_of(cells, |axis| axes.contains(&AXES[axis].0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUNDS: [Ground; 3] = [
        Ground {
            streams: None,
            shared: false,
        },
        Ground {
            streams: Some(28),
            shared: false,
        },
        Ground {
            streams: None,
            shared: true,
        },
    ];

    #[test]
    fn every_setting_is_met_in_the_cover_and_every_main_one_in_the_whole() {
        for ground in GROUNDS {
            let cells = pairwise(ground);
            assert!(cells.len() < 120, "{} cells", cells.len());
            for (axis, (name, settings)) in AXES.iter().enumerate() {
                let left_out = |setting: usize| {
                    ground.shared && (*name, settings[setting]) == ("lowering", "kernel")
                };
                for setting in (0..settings.len()).filter(|s| !left_out(*s)) {
                    let met = cells.iter().any(|cell| cell[axis] == setting);
                    assert!(met, "{name} {} with {ground:?}", settings[setting]);
                }
            }
            let product: usize = AXES[..MAIN].iter().map(|(_, s)| s.len()).product();
            assert_eq!(whole(ground).len(), product);
            for cell in few(ground) {
                assert_eq!(parse(&word(&cell)).as_ref(), Some(&cell));
            }
            assert!((7..12).contains(&few(ground).len()));
            assert_eq!(fewer_apart(ground).len(), 4);
            let messages = |cells: Vec<Cell>| -> usize {
                cells.iter().map(|cell| Setup::of(cell).cost().0).sum()
            };
            let (some, all) = (messages(fewer(ground)), messages(cells));
            assert!(some < all / 5, "{some} of {all} messages");
        }
    }
}
