//! The same computation by one thread over one array: the reference for every parallel run.
//!
//! Cells are 64-bit integers. The new value of a cell is a bijection of each of its five inputs:
//! one wrong cell makes every cell that depends on it wrong. There is no rounding, so results must
//! be equal bit by bit.

use mp_examples::kernels::rule;

use crate::grid::{Size, Tile};

/// A bijection that mixes all bits.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The initial value of the cell in this column and row.
pub fn initial(seed: u64, column: u32, row: u32) -> u64 {
    mix(mix(seed) ^ u64::from(row) << 32 ^ u64::from(column))
}

/// The contribution of a cell to the checksum of a field, which is the sum over all cells. It
/// depends on the position of the cell in the field, and not on the rank that owns it.
pub fn checksum(column: u32, row: u32, cell: u64) -> u64 {
    mix(cell ^ mix(u64::from(row) << 32 ^ u64::from(column)))
}

/// A whole periodic field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    size: Size,
    /// Row by row.
    cells: Vec<u64>,
}

impl Field {
    /// The initial field.
    pub fn new(size: Size, seed: u64) -> Field {
        let cell = |(row, column)| initial(seed, column, row);
        let places = (0..size.height).flat_map(|row| (0..size.width).map(move |x| (row, x)));
        Field {
            size,
            cells: places.map(cell).collect(),
        }
    }

    /// The field after `iterations` steps.
    pub fn after(size: Size, seed: u64, iterations: u64) -> Field {
        let mut now = Field::new(size, seed);
        let mut next = now.clone();
        for _ in 0..iterations {
            now.step(&mut next);
            std::mem::swap(&mut now, &mut next);
        }
        now
    }

    fn row(&self, row: usize) -> &[u64] {
        let width = self.size.width as usize;
        &self.cells[row * width..][..width]
    }

    fn step(&self, next: &mut Field) {
        let (width, height) = (self.size.width as usize, self.size.height as usize);
        for y in 0..height {
            let north = self.row((y + height - 1) % height);
            let here = self.row(y);
            let south = self.row((y + 1) % height);
            let to = &mut next.cells[y * width..][..width];
            for x in 0..width {
                let (west, east) = (here[(x + width - 1) % width], here[(x + 1) % width]);
                to[x] = rule(here[x], north[x], south[x], west, east);
            }
        }
    }

    /// The cells of `tile`, row by row.
    pub fn cut(&self, tile: &Tile) -> Vec<u64> {
        let columns = tile.columns.start as usize..tile.columns.end as usize;
        tile.rows
            .clone()
            .flat_map(|y| self.row(y as usize)[columns.clone()].iter().copied())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const SIZE: Size = Size {
        width: 7,
        height: 5,
    };

    fn whole(size: Size) -> Tile {
        Tile {
            columns: 0..size.width,
            rows: 0..size.height,
        }
    }

    /// The same rule as a recursion: a cell is a function of five cells of the past.
    fn cell(past: &mut HashMap<(i64, i64, u64), u64>, size: Size, x: i64, y: i64, t: u64) -> u64 {
        let (x, y) = (
            x.rem_euclid(i64::from(size.width)),
            y.rem_euclid(i64::from(size.height)),
        );
        if t == 0 {
            return initial(9, x as u32, y as u32);
        }
        if let Some(known) = past.get(&(x, y, t)) {
            return *known;
        }
        let [c, n, s, w, e] = [(0, 0), (0, -1), (0, 1), (-1, 0), (1, 0)]
            .map(|(dx, dy)| cell(past, size, x + dx, y + dy, t - 1));
        let value = rule(c, n, s, w, e);
        past.insert((x, y, t), value);
        value
    }

    #[test]
    fn steps_equal_the_recursive_definition() {
        let sizes = [(7, 5), (1, 1), (1, 4), (4, 1), (2, 2), (3, 8)];
        for size in sizes.map(|(width, height)| Size { width, height }) {
            let mut past = HashMap::new();
            let field = Field::after(size, 9, 6);
            for (y, x) in (0..size.height).flat_map(|y| (0..size.width).map(move |x| (y, x))) {
                let expected = cell(&mut past, size, x.into(), y.into(), 6);
                assert_eq!(
                    field.row(y as usize)[x as usize],
                    expected,
                    "{size} {x},{y}"
                );
            }
        }
    }

    #[test]
    fn one_wrong_bit_changes_every_dependent_cell() {
        for at in [0, 17, 34] {
            let mut right = Field::new(SIZE, 1);
            let mut wrong = right.clone();
            wrong.cells[at] ^= 1 << 63;
            for t in 1..=6 {
                for field in [&mut right, &mut wrong] {
                    let now = field.clone();
                    now.step(field);
                }
                let (x, y) = (at % 7, at / 7);
                let far = |a: usize, b: usize, n: usize| a.abs_diff(b).min(n - a.abs_diff(b));
                for (i, (r, w)) in right.cells.iter().zip(&wrong.cells).enumerate() {
                    let reached = far(i % 7, x, 7) + far(i / 7, y, 5) <= t;
                    assert_eq!(r != w, reached, "cell {i} after {t} steps");
                }
            }
        }
    }

    #[test]
    fn rule_distinguishes_its_neighbours() {
        let all = [
            [1, 2, 3, 4, 5],
            [1, 3, 2, 4, 5],
            [1, 2, 3, 5, 4],
            [2, 1, 3, 4, 5],
        ];
        let values = all.map(|[c, n, s, w, e]| rule(c, n, s, w, e));
        for (i, value) in values.iter().enumerate() {
            assert!(!values[i + 1..].contains(value));
        }
    }

    #[test]
    fn checksum_depends_on_the_position_of_a_cell() {
        assert_ne!(checksum(1, 2, 7), checksum(2, 1, 7));
        assert_ne!(checksum(1, 2, 7), checksum(1, 2, 8));
        assert_ne!(initial(1, 2, 3), initial(1, 3, 2));
        assert_ne!(initial(1, 2, 3), initial(2, 2, 3));
    }

    #[test]
    fn cut_returns_a_rectangle() {
        let field = Field::new(SIZE, 4);
        assert_eq!(field.cut(&whole(SIZE)), field.cells);
        let tile = Tile {
            columns: 2..4,
            rows: 3..5,
        };
        assert_eq!(
            field.cut(&tile),
            [(2, 3), (3, 3), (2, 4), (3, 4)].map(|(x, y)| initial(4, x, y))
        );
    }
}
