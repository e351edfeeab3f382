//! Grids in three dimensions: of the ranks of a periodic box, and of its cells.

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

    /// The neighbour of a rank at this offset; each of the three numbers is -1, 0 or 1. The box is
    /// periodic, so there always is one; it may be the rank itself.
    pub fn neighbour(self, rank: u32, offset: [i32; 3]) -> u32 {
        let mut place = self.place(rank);
        for ((at, n), by) in place.iter_mut().zip(self.0).zip(offset) {
            *at = (*at + n).wrapping_add_signed(by) % n;
        }
        (place[2] * self.0[1] + place[1]) * self.0[0] + place[0]
    }
}

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
    fn neighbours_are_at_their_offsets() {
        for grid in [Grid([1, 1, 1]), Grid([2, 1, 3]), Grid([4, 3, 2])] {
            for rank in 0..grid.product().unwrap() {
                for n in 0..27 {
                    let offset = [n % 3 - 1, n / 3 % 3 - 1, n / 9 - 1];
                    let there = grid.neighbour(rank, offset);
                    assert_eq!(grid.neighbour(there, offset.map(|by| -by)), rank);
                    let (here, there) = (grid.place(rank), grid.place(there));
                    for k in 0..3 {
                        let right = (here[k] as i32 + offset[k]).rem_euclid(grid.0[k] as i32);
                        assert_eq!(there[k] as i32, right);
                    }
                }
            }
        }
    }

    #[test]
    fn text_that_is_not_three_numbers_is_refused() {
        assert_eq!("2x3x4".parse(), Ok(Grid([2, 3, 4])));
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
    }
}
