//! Pairwise covers of settings: a selection of cells from a matrix that is too large to be run
//! whole, in which every two settings of different axes occur together in at least one cell.

use std::collections::BTreeSet;

/// An axis of a matrix: its name and its settings, by name.
pub type Axis = (&'static str, &'static [&'static str]);

/// One setting of each axis, by number.
pub type Cell = Vec<usize>;

/// A greedy pairwise cover: while a pair of settings is not covered, adds the cell that covers most
/// new pairs. Pairs that `is_valid` allows in no cell are left out. The result is the same on
/// every run.
pub fn pairwise(axes: &[Axis], is_valid: impl Fn(&Cell) -> bool) -> Vec<Cell> {
    let mut open: Vec<[usize; 4]> = Vec::new();
    for (a, (_, xs)) in axes.iter().enumerate() {
        for (b, (_, ys)) in axes.iter().enumerate().skip(a + 1) {
            open.extend((0..xs.len()).flat_map(|x| (0..ys.len()).map(move |y| [a, x, b, y])));
        }
    }
    let meets = |c: &Cell, p: &[usize; 4]| c[p[0]] == p[1] && c[p[2]] == p[3];
    let mut rng = fastrand::Rng::with_seed(7);
    let mut cells: Vec<Cell> = Vec::new();
    while let Some([a, x, b, y]) = open.first().copied() {
        let candidate = |rng: &mut fastrand::Rng| {
            let settings = axes
                .iter()
                .map(|(_, settings)| rng.usize(0..settings.len()));
            let mut cell: Cell = settings.collect();
            (cell[a], cell[b]) = (x, y);
            cell
        };
        let candidates = (0..300).map(|_| candidate(&mut rng));
        let best = candidates
            .filter(|cell| is_valid(cell))
            .max_by_key(|cell| open.iter().filter(|pair| meets(cell, pair)).count());
        match best {
            Some(cell) => {
                open.retain(|pair| !meets(&cell, pair));
                cells.push(cell);
            }
            None => {
                open.remove(0);
            }
        }
    }
    cells
}

/// A selection of `cells` in which each setting of the axes with `is_counted` occurs: a cell is
/// selected if it has a setting of these axes that no earlier cell has.
pub fn each_of(cells: Vec<Cell>, is_counted: impl Fn(usize) -> bool) -> Vec<Cell> {
    let mut met = BTreeSet::new();
    let mut few = cells;
    few.retain(|cell| {
        let before = met.len();
        let settings = cell.iter().copied().enumerate();
        met.extend(settings.filter(|(axis, _)| is_counted(*axis)));
        met.len() > before
    });
    few
}

/// As [`each_of`], for all axes.
pub fn each(cells: Vec<Cell>) -> Vec<Cell> {
    each_of(cells, |_| true)
}

/// The settings of a cell as text.
pub fn name(axes: &[Axis], cell: &Cell) -> String {
    let parts = axes.iter().zip(cell);
    let parts = parts.map(|((axis, settings), which)| format!("{axis} {}", settings[*which]));
    parts.collect::<Vec<_>>().join(", ")
}

/// The setting of a cell on an axis.
///
/// # Panics
/// There is no axis of this name.
pub fn setting(axes: &[Axis], cell: &Cell, axis: &str) -> &'static str {
    let at = axes.iter().position(|(name, _)| *name == axis);
    let at = at.expect("an axis of this name");
    axes[at].1[cell[at]]
}

#[cfg(test)]
mod tests {
    use super::*;

    const AXES: [Axis; 4] = [
        ("size", &["s", "m", "l"]),
        ("colour", &["red", "green"]),
        ("taste", &["sweet", "sour", "salty", "bitter"]),
        ("shape", &["round", "flat"]),
    ];

    #[test]
    fn cover_contains_exactly_the_valid_pairs_of_settings() {
        let valid = |cell: &Cell| !(cell[1] == 0 && cell[2] == 3);
        let cells = pairwise(&AXES, valid);
        assert!(cells.len() < 3 * 2 * 4 * 2 / 2, "{} cells", cells.len());
        for (a, (_, xs)) in AXES.iter().enumerate() {
            for (b, (_, ys)) in AXES.iter().enumerate().skip(a + 1) {
                for (x, y) in (0..xs.len()).flat_map(|x| (0..ys.len()).map(move |y| (x, y))) {
                    let met = cells.iter().any(|cell| cell[a] == x && cell[b] == y);
                    assert_eq!(met, (a, x, b, y) != (1, 0, 2, 3), "{a} {x} {b} {y}");
                }
            }
        }
        let few = each(cells.clone());
        assert!(few.len() < cells.len(), "{few:?}");
        for (axis, (_, settings)) in AXES.iter().enumerate() {
            for setting in 0..settings.len() {
                assert!(few.iter().any(|cell| cell[axis] == setting), "{few:?}");
            }
        }
        assert_eq!(
            name(&AXES, &vec![0, 1, 2, 0]),
            "size s, colour green, taste salty, shape round"
        );
    }
}
