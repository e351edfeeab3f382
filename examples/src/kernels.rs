//! The kernels of the examples and their parameters. The sources are in `device/`. The build script
//! compiles them for the software GPU, and `./build.sh kernels` compiles them to PTX for CUDA.

use mp::Result;
use mp::gdsync::Gpu;
use mp::gdsync::gpu::{DevicePtr, Kernel, KernelImage, Stream};
use zerocopy::{Immutable, IntoBytes};

pub(crate) static KERNELS: KernelImage = mp::gdsync::kernel_image!("examples_kernels");

/// Bytes of a word, the unit of the kernels.
pub const WORD: usize = size_of::<u64>();

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Add {
    words: u64,
    count: u64,
    value: u64,
}

/// A step of the stencil over one tile. A field has `pitch` words per row; the tile begins at
/// column 1 of row 1, and a ring of one cell surrounds it.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Step {
    from: u64,
    to: u64,
    pitch: u32,
    width: u32,
    height: u32,
    reserved: u32,
}

impl Step {
    /// A step of a tile of `width` by `height` cells.
    pub fn new(from: DevicePtr, to: DevicePtr, width: u32, height: u32) -> Step {
        Step {
            from: from.0,
            to: to.0,
            pitch: width + 2,
            width,
            height,
            reserved: 0,
        }
    }
}

/// A copy of `cells` words with strides of `from_step` and `to_step` words.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct Strip {
    /// Address of the first source word.
    pub from: u64,
    /// Address of the first destination word.
    pub to: u64,
    /// Source stride in words.
    pub from_step: u32,
    /// Destination stride in words.
    pub to_step: u32,
    /// Number of words.
    pub cells: u64,
}

/// The new value of a cell, for serial runs. The function `rule` of `device/halo2d.cu` is the same.
pub fn rule(centre: u64, north: u64, south: u64, west: u64, east: u64) -> u64 {
    let mut x = centre
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(north.wrapping_mul(0xbf58_476d_1ce4_e5b9))
        .wrapping_add(south.wrapping_mul(0x94d0_49bb_1331_11eb))
        .wrapping_add(west.wrapping_mul(0xd6e8_feb8_6659_fd93))
        .wrapping_add(east.wrapping_mul(0xff51_afd7_ed55_8ccd));
    x ^= x >> 29;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 32)
}

/// Most strips of one launch.
const STRIPS: usize = 4;

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Move {
    strips: [Strip; STRIPS],
    count: u64,
}

const _: () = assert!(size_of::<Add>() == 24 && size_of::<Step>() == 32);
const _: () = assert!(size_of::<Strip>() == 32 && size_of::<Move>() == 136);

/// The kernels, loaded on one GPU.
#[derive(Clone, Debug)]
pub struct Kernels {
    gpu: Gpu,
    add: Kernel,
    interior: Kernel,
    boundary: Kernel,
    copies: Kernel,
}

impl Kernels {
    /// Loads the kernels. Call it before any stream of `gpu` waits: CUDA's driver blocks a load
    /// behind waits.
    ///
    /// # Errors
    /// The errors of [`Gpu::load`].
    pub fn load(gpu: &Gpu) -> Result<Kernels> {
        let module = gpu.load(&KERNELS)?;
        Ok(Kernels {
            gpu: gpu.clone(),
            add: module.kernel("examples_add")?,
            interior: module.kernel("examples_halo2d_interior")?,
            boundary: module.kernel("examples_halo2d_boundary")?,
            copies: module.kernel("examples_halo2d_move")?,
        })
    }

    /// Enqueues an addition to each of `count` words at `words`.
    ///
    /// # Safety
    /// The words are aligned memory of the stream's GPU. The memory stays allocated until the
    /// stream has executed the kernel, and no code relies on its contents.
    ///
    /// # Errors
    /// The errors of a launch.
    pub unsafe fn add(
        &self,
        stream: &Stream,
        words: DevicePtr,
        count: u64,
        value: u64,
    ) -> Result<()> {
        let add = Add {
            words: words.0,
            count,
            value,
        };
        // SAFETY: the caller's promise.
        unsafe { stream.launch(&self.add, self.gpu.dims_for(count), &add)? };
        Ok(())
    }

    /// Enqueues the step of the cells that have no neighbour in the halo.
    ///
    /// # Safety
    /// Both fields are as [`Step`] describes, in memory of the stream's GPU that stays allocated
    /// until the stream has executed the kernel. No code relies on the contents of `to`.
    ///
    /// # Errors
    /// The errors of a launch.
    pub unsafe fn interior(&self, stream: &Stream, step: &Step) -> Result<()> {
        let cells = u64::from(step.width) * u64::from(step.height);
        // SAFETY: the caller's promise.
        unsafe { stream.launch(&self.interior, self.gpu.dims_for(cells), step)? };
        Ok(())
    }

    /// Enqueues the step of the cells along the edge.
    ///
    /// # Safety
    /// As [`Kernels::interior`].
    ///
    /// # Errors
    /// The errors of a launch.
    pub unsafe fn boundary(&self, stream: &Stream, step: &Step) -> Result<()> {
        let cells = 2 * (u64::from(step.width) + u64::from(step.height));
        // SAFETY: the caller's promise.
        unsafe { stream.launch(&self.boundary, self.gpu.dims_for(cells), step)? };
        Ok(())
    }

    /// Enqueues copies of strips that do not overlap.
    ///
    /// # Safety
    /// Every strip is aligned memory of the stream's GPU that stays allocated until the stream has
    /// executed the kernel. No code relies on the contents that are overwritten.
    ///
    /// # Errors
    /// The errors of a launch.
    pub unsafe fn copy(&self, stream: &Stream, strips: &[Strip]) -> Result<()> {
        for strips in strips.chunks(STRIPS) {
            let mut copies = Move {
                strips: [Strip::default(); STRIPS],
                count: strips.len() as u64,
            };
            copies.strips[..strips.len()].copy_from_slice(strips);
            let cells = strips.iter().map(|s| s.cells).max().unwrap_or(0);
            // SAFETY: the caller's promise.
            unsafe { stream.launch(&self.copies, self.gpu.dims_for(cells), &copies)? };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mp::gdsync::gpu::{MemoryKind, Region};

    use super::*;

    struct Bench {
        kernels: Kernels,
        stream: Stream,
    }

    fn bench() -> Bench {
        let gpu = Gpu::soft().unwrap();
        Bench {
            kernels: Kernels::load(&gpu).unwrap(),
            stream: gpu.stream().unwrap(),
        }
    }

    impl Bench {
        fn memory(&self, words: &[u64]) -> Region {
            let gpu = self.stream.gpu();
            let region = gpu.alloc(MemoryKind::Device, words.len() * WORD).unwrap();
            region.write(0, words.as_bytes()).unwrap();
            region
        }

        fn words(&self, region: &Region) -> Vec<u64> {
            assert!(self.stream.synchronize(Duration::from_secs(60)).unwrap());
            let mut bytes = vec![0; region.len()];
            region.read(0, &mut bytes).unwrap();
            let (words, _) = bytes.as_chunks();
            words.iter().copied().map(u64::from_ne_bytes).collect()
        }
    }

    #[test]
    fn add_changes_only_its_words() {
        let b = bench();
        let memory = b.memory(&[1, 2, u64::MAX, 4]);
        let at = DevicePtr(memory.addr().0 + 8);
        // SAFETY: the region stays until the stream is done.
        unsafe { b.kernels.add(&b.stream, at, 2, 5).unwrap() };
        assert_eq!(b.words(&memory), [1, 7, 4, 4]);
    }

    #[test]
    fn interior_and_boundary_apply_the_rule_to_each_cell_once() {
        let b = bench();
        for (width, height) in (1..6).flat_map(|w| (1..6).map(move |h| (w, h))) {
            let pitch = width as usize + 2;
            let before: Vec<u64> = (0..pitch as u64 * (u64::from(height) + 2))
                .map(|i| (i + 1).wrapping_mul(0x0123_4567_89ab_cdef))
                .collect();
            let (from, to) = (b.memory(&before), b.memory(&vec![7; before.len()]));
            let step = Step::new(from.addr(), to.addr(), width, height);
            let inside = |i: usize, by: usize| {
                let (x, y) = (i % pitch, i / pitch);
                (by..pitch - by).contains(&x) && (by..height as usize + 2 - by).contains(&y)
            };
            let f = &before;
            let expected = |i: usize| rule(f[i], f[i - pitch], f[i + pitch], f[i - 1], f[i + 1]);
            // SAFETY: the regions stay until the stream is done.
            unsafe { b.kernels.interior(&b.stream, &step).unwrap() };
            for (i, cell) in b.words(&to).into_iter().enumerate() {
                let deep = pitch > 4 && height > 2 && inside(i, 2);
                assert_eq!(
                    cell,
                    if deep { expected(i) } else { 7 },
                    "{width}x{height} {i}"
                );
            }
            to.write(0, vec![7u64; before.len()].as_bytes()).unwrap();
            // SAFETY: as above.
            unsafe { b.kernels.boundary(&b.stream, &step).unwrap() };
            for (i, cell) in b.words(&to).into_iter().enumerate() {
                let deep = pitch > 4 && height > 2 && inside(i, 2);
                let edge = inside(i, 1) && !deep;
                assert_eq!(
                    cell,
                    if edge { expected(i) } else { 7 },
                    "{width}x{height} {i}"
                );
            }
            assert_eq!(b.words(&from), before);
        }
    }

    #[test]
    fn strips_are_copied_with_their_strides() {
        let b = bench();
        let from = b.memory(&(0..20).collect::<Vec<u64>>());
        let to = b.memory(&[99; 12]);
        let strip = |a: u64, b: u64, from_step, to_step, cells| Strip {
            from: from.addr().0 + 8 * a,
            to: to.addr().0 + 8 * b,
            from_step,
            to_step,
            cells,
        };
        // More than the strips of one launch.
        let strips = [
            strip(3, 0, 5, 1, 3),
            strip(0, 4, 1, 3, 3),
            strip(19, 3, 1, 1, 1),
            strip(0, 0, 1, 1, 0),
            strip(18, 11, 9, 9, 1),
        ];
        // SAFETY: the regions stay until the stream is done.
        unsafe { b.kernels.copy(&b.stream, &strips).unwrap() };
        assert_eq!(b.words(&to), [3, 8, 13, 19, 0, 99, 99, 1, 99, 99, 2, 18]);
    }
}
