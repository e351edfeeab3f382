//! A stencil of 27 points over two fields of a periodic 3-D box, on a grid of ranks.
//!
//! A cell needs all cells around it, so a rank exchanges faces, edges and corners with 26
//! neighbours. One [`mp::Neighbourhood`] has all of them, for both fields. In each step the stream
//! sends its ready words, sends the data, computes the cells that need no halo, waits for the data,
//! and computes the other cells:
//!
//! ```text
//! ready_on, send_on, inner cells, wait_on, cells beside the halo, keep, ready_on, ...
//! ```
//!
//! Along a short axis, a neighbour may be the rank itself, and one rank may be several neighbours.

use std::ops::Range;
use std::time::Duration;

use mp::gdsync::gpu::{KernelImage, MemoryKind};
use mp::{Context, Error, Kind, Memory, Neighbour, Neighbourhood, Result, Strided};
use mp_examples::grid::Grid;
use zerocopy::{Immutable, IntoBytes};

static KERNELS: KernelImage = mp::gdsync::kernel_image!("halo3d_kernels");

const WORD: usize = size_of::<u64>();
/// Steps that are enqueued between two waits of the CPU.
const BATCH: u64 = 20;

/// The parameters of the kernels.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Step {
    now: [u64; 2],
    next: [u64; 2],
    size: [u32; 3],
    edge: u32,
}

const _: () = assert!(size_of::<Step>() == 48);

/// The parameters of a run. They are the same in all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The grid of ranks; `None`: [`Grid::of`] their number.
    pub grid: Option<Grid>,
    /// Cells of the whole box.
    pub cells: Grid,
    /// Number of steps.
    pub steps: u64,
    /// Longest single wait of the CPU.
    pub limit: Duration,
}

/// The cells of one rank, with a layer of halo cells around them.
#[derive(Debug)]
struct Block {
    /// Its cells in the box, along each axis.
    part: [Range<u32>; 3],
    size: [u32; 3],
}

impl Block {
    fn new(grid: Grid, cells: Grid, rank: u32) -> Block {
        let place = grid.place(rank);
        let end =
            |k: usize, i: u32| (u64::from(cells.0[k]) * u64::from(i) / u64::from(grid.0[k])) as u32;
        let part = [0, 1, 2].map(|k| end(k, place[k])..end(k, place[k] + 1));
        let size = [0, 1, 2].map(|k: usize| part[k].end - part[k].start);
        Block { part, size }
    }

    /// The bytes of a field.
    fn bytes(&self) -> usize {
        self.size.iter().map(|n| *n as usize + 2).product::<usize>() * WORD
    }

    /// The offset of a cell in a field, in bytes; the cells of the rank count from 1.
    fn offset(&self, [x, y, z]: [u32; 3]) -> usize {
        let [row, rows] = [0, 1].map(|k| self.size[k] as usize + 2);
        ((z as usize * rows + y as usize) * row + x as usize) * WORD
    }

    /// The cells that the neighbour at `offset` gets, or the halo cells that it writes.
    fn piece(&self, field: &Memory, offset: [i32; 3], halo: bool) -> Result<Strided> {
        let range = |k: usize| match (offset[k], halo) {
            (0, _) => (1, self.size[k]),
            (-1, halo) => (u32::from(!halo), 1),
            (_, halo) => (self.size[k] + u32::from(halo), 1),
        };
        let [(x, width), (y, rows), (z, planes)] = [0, 1, 2].map(range);
        let pitch = [[0, 1, 0], [0, 0, 1]].map(|cell| self.offset(cell));
        let start = self.offset([x, y, z]);
        let row = field.strided(start, width as usize * WORD, pitch[0], rows as usize)?;
        row.repeated(pitch[1], planes as usize)
    }
}

/// Runs this rank's part of the box, and compares all its cells with a serial run. Returns the
/// number of cells of the two fields, and how many of them differ.
///
/// # Errors
/// `Invalid` if the grid does not fit the ranks or has more ranks along an axis than cells.
/// `PeerFailed`, naming a rank, if that rank is lost. `Timeout` if the stream exceeds the limit.
/// Other errors of the context if a message failed otherwise.
pub fn run(ctx: &Context, config: &Config) -> Result<(usize, usize)> {
    let grid = config.grid.unwrap_or_else(|| Grid::of(ctx.size()));
    let fits = (0..3).all(|k| grid.0[k] <= config.cells.0[k]);
    if grid.product() != Some(ctx.size()) || !fits {
        let (size, cells) = (ctx.size(), config.cells);
        let what = format!("a grid of {grid} does not fit {size} ranks and {cells} cells");
        return Err(Error::new("run halo3d", Kind::Invalid, what));
    }
    let block = Block::new(grid, config.cells, ctx.rank());
    let module = ctx.gpu().load(&KERNELS)?;
    let (step, keep) = (module.kernel("halo3d_step")?, module.kernel("halo3d_keep")?);
    let stream = ctx.gpu().stream()?;
    let field = || ctx.alloc(MemoryKind::Device, block.bytes());
    let (now, next) = ([field()?, field()?], [field()?, field()?]);
    for (field, memory) in now.iter().enumerate() {
        write(
            &block,
            memory,
            &serial(config.cells, 0)[field],
            config.cells,
        )?;
    }

    let halo = neighbourhood(ctx, grid, &block, &now)?;

    let address = |memory: &Memory| memory.region().addr().0;
    let [inner, edge] = [0, 1].map(|edge| Step {
        now: [address(&now[0]), address(&now[1])],
        next: [address(&next[0]), address(&next[1])],
        size: block.size,
        edge,
    });
    let dims = ctx
        .gpu()
        .dims_for(block.size.map(u64::from).iter().product());
    for i in 1..=config.steps {
        halo.ready_on(&stream)?;
        halo.send_on(&stream)?;
        // SAFETY: the context keeps the fields until the stream has executed the kernels. Only this
        // kernel uses the cells of `next`; the exchange writes the halo alone.
        unsafe { stream.launch(&step, dims, &inner)? };
        halo.wait_on(&stream)?;
        // SAFETY: as above; the halo has arrived, and the data has left.
        unsafe { stream.launch(&step, dims, &edge)? };
        // SAFETY: as above.
        unsafe { stream.launch(&keep, dims, &edge)? };
        if i % BATCH == 0 || i == config.steps {
            ctx.synchronize(&stream, config.limit)?;
        }
    }
    drop(halo);
    let right = serial(config.cells, config.steps);
    let mut differing = 0;
    for (memory, right) in now.iter().zip(&right) {
        differing += compare(&block, memory, right, config.cells)?;
    }
    Ok((
        block.size.map(|n| n as usize).iter().product::<usize>() * 2,
        differing,
    ))
}

/// The exchange of the halos of both fields with all 26 neighbours.
fn neighbourhood(
    ctx: &Context,
    grid: Grid,
    block: &Block,
    fields: &[Memory; 2],
) -> Result<Neighbourhood> {
    let mut neighbours = ctx.neighbourhood();
    for n in (0..27_u32).filter(|n| *n != 13) {
        let offset = [n % 3, n / 3 % 3, n / 9].map(|by| by as i32 - 1);
        // The tag is the direction of the data; 26 - n is the opposite one.
        let mut neighbour = Neighbour::new(grid.neighbour(ctx.rank(), offset), n, 26 - n);
        for field in fields {
            neighbour = neighbour
                .send(&block.piece(field, offset, false)?)
                .receive(&block.piece(field, offset, true)?);
        }
        neighbours = neighbours.neighbour(neighbour);
    }
    neighbours.build()
}

/// Each row of the rank's cells: its offset in a field, and its cells in the whole box.
fn rows(block: &Block, cells: Grid) -> impl Iterator<Item = (usize, Range<usize>)> {
    let [x, y, z] = block.part.clone();
    let places = z.clone().flat_map(move |k| y.clone().map(move |j| (j, k)));
    places.map(move |(j, k)| {
        let from = (((k * cells.0[1]) + j) * cells.0[0] + x.start) as usize;
        let place = [1, j - block.part[1].start + 1, k - block.part[2].start + 1];
        (block.offset(place), from..from + block.size[0] as usize)
    })
}

fn write(block: &Block, field: &Memory, whole: &[u64], cells: Grid) -> Result<()> {
    rows(block, cells).try_for_each(|(offset, row)| field.write(offset, whole[row].as_bytes()))
}

fn compare(block: &Block, field: &Memory, whole: &[u64], cells: Grid) -> Result<usize> {
    let mut mine = vec![0_u64; block.size[0] as usize];
    let mut differing = 0;
    for (offset, row) in rows(block, cells) {
        field.read(offset, mine.as_mut_bytes())?;
        differing += mine.iter().zip(&whole[row]).filter(|(a, b)| a != b).count();
    }
    Ok(differing)
}

/// The two fields of the whole box after so many steps, by one CPU thread.
fn serial(cells: Grid, steps: u64) -> [Vec<u64>; 2] {
    let [x, y, z] = cells.0;
    let count = x * y * z;
    let first = |field: u64| (0..u64::from(count)).map(|i| i * 2 + field).collect();
    let mut fields: [Vec<u64>; 2] = [first(0), first(1)];
    for _ in 0..steps {
        let rule = |field: &[u64], other: u64, cell: u32| {
            let [i, j, k] = cells.place(cell);
            let sum = (0..27).fold(other, |sum: u64, n| {
                let place = [
                    (i + x + n % 3 - 1) % x,
                    (j + y + n / 3 % 3 - 1) % y,
                    (k + z + n / 9 - 1) % z,
                ];
                let value = field[((place[2] * y + place[1]) * x + place[0]) as usize];
                (sum ^ value)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .wrapping_add(u64::from(n))
            });
            sum ^ (sum >> 29)
        };
        let next = |a: &[u64], b: &[u64]| {
            (0..count)
                .map(|cell| rule(a, b[cell as usize], cell))
                .collect()
        };
        fields = [next(&fields[0], &fields[1]), next(&fields[1], &fields[0])];
    }
    fields
}
