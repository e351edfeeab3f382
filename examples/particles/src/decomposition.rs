//! The decomposition: a grid of ranks over the cells of a periodic box.

use std::fmt;
use std::str::FromStr;

/// Numbers along the three axes: of ranks, or of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid(pub [u32; 3]);

impl Grid {
    /// The grid of `ranks` ranks with the smallest surface; the longest edge comes first.
    pub fn of(ranks: u32) -> Grid {
        let ranks = ranks.max(1);
        let divisors = |n: u32| (1..=n).filter(move |d| n.is_multiple_of(*d));
        let grids = divisors(ranks).flat_map(|z| divisors(ranks / z).map(move |y| (z, y)));
        let grids = grids.map(|(z, y)| [ranks / z / y, y, z]);
        let surface = |[x, y, z]: [u32; 3]| (x * y + y * z + z * x, y, z);
        let least = grids
            .filter(|[x, y, z]| x >= y && y >= z)
            .min_by_key(|g| surface(*g));
        Grid(least.unwrap_or([ranks, 1, 1]))
    }

    /// The product of the three numbers; `None` if it exceeds 32 bits.
    pub fn product(self) -> Option<u32> {
        let [x, y, z] = self.0;
        x.checked_mul(y)?.checked_mul(z)
    }

    /// The place of a rank; rank 1 is beside rank 0 along the first axis.
    pub fn place(self, rank: u32) -> [u32; 3] {
        let [x, y, _] = self.0;
        [rank % x, rank / x % y, rank / x / y]
    }

    /// The neighbour of a rank along an axis, on the lower side (0) or the upper side (1). The box
    /// is periodic, so there always is one; it may be the rank itself.
    pub fn neighbour(self, rank: u32, axis: usize, side: u32) -> u32 {
        let mut place = self.place(rank);
        let n = self.0[axis];
        place[axis] = (place[axis] + if side == 0 { n - 1 } else { 1 }) % n;
        (place[2] * self.0[1] + place[1]) * self.0[0] + place[0]
    }

    /// The cells of each rank if this is the grid of all cells.
    ///
    /// # Errors
    /// What is wrong with the cells, as the end of a sentence.
    pub fn share(self, ranks: Grid) -> Result<Grid, String> {
        let mut own = [0; 3];
        for (axis, own) in own.iter_mut().enumerate() {
            let (cells, ranks) = (self.0[axis], ranks.0[axis]);
            *own = cells.checked_div(ranks).unwrap_or(0);
            if *own < 2 || *own * ranks != cells || !(3..=MOST_CELLS).contains(&cells) {
                return Err(format!(
                    "{cells} cells along an axis of {ranks} ranks are not possible; it needs 3 to \
                     {MOST_CELLS} cells, a multiple of the ranks, and 2 cells on each rank"
                ));
            }
        }
        Ok(Grid(own))
    }
}

/// Most cells along an axis of the box. The sums of energies fit 64 bits with it.
const MOST_CELLS: u32 = 128;

impl FromStr for Grid {
    type Err = String;

    fn from_str(text: &str) -> Result<Grid, String> {
        let numbers: Option<Vec<u32>> = text.split('x').map(|n| n.parse().ok()).collect();
        match numbers.as_deref() {
            Some([x, y, z]) if Grid([*x, *y, *z]).product().unwrap_or(0) > 0 => {
                Ok(Grid([*x, *y, *z]))
            }
            _ => Err(format!(
                "{text:?} is not a grid; write three numbers as in 2x2x1"
            )),
        }
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.0;
        write!(f, "{x}x{y}x{z}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_of_ranks_has_the_smallest_surface() {
        let grids = [1, 2, 3, 4, 6, 8, 12, 27].map(|ranks| Grid::of(ranks).to_string());
        let right = [
            "1x1x1", "2x1x1", "3x1x1", "2x2x1", "3x2x1", "2x2x2", "3x2x2", "3x3x3",
        ];
        assert_eq!(grids, right);
    }

    #[test]
    fn neighbours_of_neighbours_are_the_rank_itself() {
        for grid in [Grid([1, 1, 1]), Grid([2, 1, 3]), Grid([4, 3, 2])] {
            for rank in 0..grid.product().unwrap() {
                for axis in 0..3 {
                    let up = grid.neighbour(rank, axis, 1);
                    assert_eq!(grid.neighbour(up, axis, 0), rank);
                    let mut place = grid.place(rank);
                    place[axis] = (place[axis] + 1) % grid.0[axis];
                    assert_eq!(grid.place(up), place);
                }
            }
        }
    }

    #[test]
    fn invalid_grids_and_shares_are_refused() {
        for bad in [
            "",
            "2x2",
            "2x2x0",
            "2x2x2x2",
            "axbxc",
            "-1x1x1",
            "99999x99999x99999",
        ] {
            assert!(bad.parse::<Grid>().is_err(), "{bad}");
        }
        let share = |cells, ranks| Grid(cells).share(Grid(ranks)).is_ok();
        assert!(share([4, 4, 6], [2, 1, 3]) && share([3, 3, 3], [1, 1, 1]));
        assert!(!share([5, 4, 4], [2, 1, 1]), "not a multiple");
        assert!(!share([4, 4, 4], [4, 1, 1]), "one cell on each rank");
        assert!(!share([2, 4, 4], [1, 1, 1]), "two cells along the box");
        assert!(!share([4, 4, 4], [0, 1, 1]) && !share([129, 4, 4], [1, 1, 1]));
    }
}
