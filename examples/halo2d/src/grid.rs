//! The decomposition: a grid of ranks over a periodic field, and the tile of each rank.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// The direction in which a message travels; also its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Towards row 0.
    North,
    /// Away from row 0.
    South,
    /// Towards column 0.
    West,
    /// Away from column 0.
    East,
}

impl Direction {
    /// All four directions.
    pub const ALL: [Direction; 4] = [Self::North, Self::South, Self::West, Self::East];

    /// The opposite direction.
    pub fn opposite(self) -> Direction {
        match self {
            Direction::North => Direction::South,
            Direction::South => Direction::North,
            Direction::West => Direction::East,
            Direction::East => Direction::West,
        }
    }

    /// The tag of messages in this direction. If two neighbours are the same rank, it distinguishes
    /// their messages.
    pub fn tag(self) -> u32 {
        self as u32
    }
}

/// Ranks in columns and rows; rank 0 is in the north-west, rank 1 east of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Ranks in a row.
    pub columns: u32,
    /// Ranks in a column.
    pub rows: u32,
}

impl Grid {
    /// The grid of `ranks` ranks that is nearest to a square, not higher than wide.
    pub fn of(ranks: u32) -> Grid {
        let ranks = ranks.max(1);
        let fits = |rows: &u32| ranks.is_multiple_of(*rows) && rows * rows <= ranks;
        let rows = (1..=ranks.isqrt()).rev().find(fits).unwrap_or(1);
        Grid {
            columns: ranks / rows,
            rows,
        }
    }

    /// The number of ranks; `None` if it exceeds 32 bits.
    pub fn ranks(self) -> Option<u32> {
        self.columns.checked_mul(self.rows)
    }

    /// The neighbour of `rank`. The field is periodic, so there always is one; it may be the rank
    /// itself.
    pub fn neighbour(self, rank: u32, direction: Direction) -> u32 {
        let Grid { columns, rows } = self;
        let (x, y) = (rank % columns, rank / columns);
        let (x, y) = match direction {
            Direction::North => (x, (y + rows - 1) % rows),
            Direction::South => (x, (y + 1) % rows),
            Direction::West => ((x + columns - 1) % columns, y),
            Direction::East => ((x + 1) % columns, y),
        };
        y * columns + x
    }

    /// The part of a field of `cells` that `rank` owns. Widths and heights differ by one cell if
    /// the field does not divide evenly.
    pub fn tile(self, rank: u32, cells: Size) -> Tile {
        Tile {
            columns: part(rank % self.columns, self.columns, cells.width),
            rows: part(rank / self.columns, self.rows, cells.height),
        }
    }
}

/// The `index`-th of `parts` parts of `cells` cells.
fn part(index: u32, parts: u32, cells: u32) -> Range<u32> {
    let end = |i: u32| (u64::from(cells) * u64::from(i) / u64::from(parts)) as u32;
    end(index)..end(index + 1)
}

/// Parses two numbers with an `x` between them.
fn pair(text: &str) -> Option<(u32, u32)> {
    let (a, b) = text.split_once('x')?;
    let number = |t: &str| t.parse().ok().filter(|n| *n > 0);
    Some((number(a)?, number(b)?))
}

impl FromStr for Grid {
    type Err = String;

    fn from_str(text: &str) -> Result<Grid, String> {
        let (columns, rows) = pair(text)
            .ok_or_else(|| format!("{text:?} is not a grid; write columns and rows as in 3x2"))?;
        Ok(Grid { columns, rows })
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.columns, self.rows)
    }
}

/// The size of a field in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Cells in a row.
    pub width: u32,
    /// Cells in a column.
    pub height: u32,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let (width, height) = pair(text)
            .ok_or_else(|| format!("{text:?} is not a size; write width and height as in 64x48"))?;
        Ok(Size { width, height })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// A rectangle of the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Its columns.
    pub columns: Range<u32>,
    /// Its rows.
    pub rows: Range<u32>,
}

impl Tile {
    /// Cells in a row.
    pub fn width(&self) -> u32 {
        self.columns.end - self.columns.start
    }

    /// Cells in a column.
    pub fn height(&self) -> u32 {
        self.rows.end - self.rows.start
    }

    /// The column and row of each cell, row by row.
    pub fn places(&self) -> impl Iterator<Item = (u32, u32)> {
        let row = |y| self.columns.clone().map(move |x| (x, y));
        self.rows.clone().flat_map(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_of_ranks_is_nearest_to_a_square() {
        let grids = [1, 2, 3, 4, 5, 6, 8, 9, 12].map(|ranks| Grid::of(ranks).to_string());
        assert_eq!(
            grids,
            [
                "1x1", "2x1", "3x1", "2x2", "5x1", "3x2", "4x2", "3x3", "4x3"
            ]
        );
        assert_eq!(Grid::of(0).ranks(), Some(1));
    }

    #[test]
    fn every_cell_belongs_to_one_tile() {
        for (columns, rows) in (1..=4).flat_map(|c| (1..=4).map(move |r| (c, r))) {
            let grid = Grid { columns, rows };
            for (width, height) in [(4, 4), (5, 4), (7, 13), (64, 33)] {
                let mut owners = vec![0; (width * height) as usize];
                for rank in 0..grid.ranks().unwrap() {
                    let tile = grid.tile(rank, Size { width, height });
                    assert!(tile.width().abs_diff(width / columns) <= 1);
                    assert!(tile.height().abs_diff(height / rows) <= 1);
                    for (x, y) in tile.places() {
                        owners[(y * width + x) as usize] += 1;
                    }
                }
                assert!(
                    owners.iter().all(|o| *o == 1),
                    "{grid} over {width}x{height}"
                );
            }
        }
    }

    #[test]
    fn neighbours_own_the_cells_beyond_the_edge() {
        let cells = Size {
            width: 11,
            height: 10,
        };
        for (columns, rows) in (1..=3).flat_map(|c| (1..=3).map(move |r| (c, r))) {
            let grid = Grid { columns, rows };
            for rank in 0..grid.ranks().unwrap() {
                let tile = grid.tile(rank, cells);
                let of = |d| grid.tile(grid.neighbour(rank, d), cells);
                assert_eq!(of(Direction::East).columns.start, tile.columns.end % 11);
                assert_eq!(of(Direction::West).columns.end % 11, tile.columns.start);
                assert_eq!(of(Direction::South).rows.start, tile.rows.end % 10);
                assert_eq!(of(Direction::North).rows.end % 10, tile.rows.start);
                assert_eq!(of(Direction::East).rows, tile.rows);
                assert_eq!(of(Direction::South).columns, tile.columns);
                for d in Direction::ALL {
                    let there = grid.neighbour(rank, d);
                    assert_eq!(grid.neighbour(there, d.opposite()), rank);
                }
            }
        }
    }

    #[test]
    fn text_of_grids_and_sizes_round_trips() {
        let grid: Grid = "3x2".parse().unwrap();
        assert_eq!((grid.columns, grid.rows), (3, 2));
        let size: Size = "64x48".parse().unwrap();
        assert_eq!(size.to_string(), "64x48");
        for bad in ["", "3", "x", "3x", "0x3", "3x0", "-1x2", "3x2x1", "3 x 2"] {
            assert!(bad.parse::<Grid>().is_err(), "{bad}");
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }
}
