//! The kernels and their parameters: addresses on the GPU, unless the text says otherwise. The sources
//! are in `device/particles.cu`, which has the same layouts.

use mp::Result;
use mp::gdsync::Gpu;
use mp::gdsync::gpu::{Kernel, KernelImage, Stream};
use zerocopy::{Immutable, IntoBytes};

use crate::physics::{Particle, Physics, Totals};

static KERNELS: KernelImage = mp::gdsync::kernel_image!("particles_kernels");

/// Most particles in a cell.
pub const CAPACITY: usize = 32;
/// Bits of the word that the kernels set on a fault: a cell is full, a particle crossed more than
/// one cell in a step, a message failed (its request says why).
pub const CELL_FULL: u64 = 1;
pub const TOO_FAST: u64 = 2;
#[cfg(test)]
pub const MESSAGE_FAILED: u64 = 4;

/// A set of cells: for each the number of its particles, 32 bits, and [`CAPACITY`] slots.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Cells {
    pub counts: u64,
    pub slots: u64,
}

/// Numbers of cells along the axes, of this rank without its halo and of the whole box, and the
/// fault word.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Space {
    pub own: [u32; 3],
    pub whole: [u32; 3],
    pub fault: u64,
}

/// Moves the particles by one step, from one set of cells to the empty other one, and sets the
/// lengths of the messages to 0. `kicks` are the changes of velocity of the slots of `from`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub struct Advance {
    pub space: Space,
    pub from: Cells,
    pub to: Cells,
    pub kicks: u64,
    pub lengths: u64,
}

/// Copies the particles for the two neighbours along an axis to `out`, and adds their bytes to the
/// two words at `lengths`. `own` is the number of cells along the axis, `stride` the distance of
/// cells along it.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub struct Pack {
    pub space: Space,
    pub cells: Cells,
    pub out: [u64; 2],
    pub lengths: u64,
    pub own: u32,
    pub stride: u32,
}

/// Adds the particles of the two messages at `into` to the cells; `results` are the result words of
/// their receives.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub struct Unpack {
    pub space: Space,
    pub cells: Cells,
    pub into: [u64; 2],
    pub results: [u64; 2],
}

/// Computes the kicks of the particles, and adds them to the velocities if `kick` is 1. Adds the sums
/// over the particles to `totals` unless it is 0, and sets the counts at `empty` to 0.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub struct Force {
    pub space: Space,
    pub cells: Cells,
    pub empty: u64,
    pub kicks: u64,
    pub totals: u64,
    pub kick: u64,
    pub physics: Physics,
}

const _: () = assert!(size_of::<Particle>() == 56 && size_of::<Totals>() == 48);
const _: () = assert!(size_of::<Advance>() == 80 && size_of::<Pack>() == 80);
const _: () = assert!(size_of::<Unpack>() == 80 && size_of::<Force>() == 176);

/// The kernels, loaded on one GPU.
#[derive(Debug)]
pub struct Kernels {
    gpu: Gpu,
    advance: Kernel,
    pack: Kernel,
    unpack: Kernel,
    force: Kernel,
}

/// The parameters of one of the kernels, which select it.
pub trait Params: IntoBytes + Immutable {
    fn kernel(kernels: &Kernels) -> &Kernel;
}

macro_rules! params {
    ($($params:ty: $kernel:ident,)*) => {$(
        impl Params for $params {
            fn kernel(kernels: &Kernels) -> &Kernel {
                &kernels.$kernel
            }
        }
    )*};
}

params! { Advance: advance, Pack: pack, Unpack: unpack, Force: force, }

impl Kernels {
    /// Loads the kernels.
    pub fn load(gpu: &Gpu) -> Result<Kernels> {
        let module = gpu.load(&KERNELS)?;
        Ok(Kernels {
            gpu: gpu.clone(),
            advance: module.kernel("particles_advance")?,
            pack: module.kernel("particles_pack")?,
            unpack: module.kernel("particles_unpack")?,
            force: module.kernel("particles_force")?,
        })
    }

    /// Enqueues the kernel of these parameters, for so many slots of cells.
    ///
    /// # Safety
    /// The addresses are those of memory of the stream's GPU with the layout of the kernel, which
    /// stays allocated until the stream has executed it and which no other work uses meanwhile.
    pub unsafe fn launch<P: Params>(&self, stream: &Stream, params: &P, slots: u64) -> Result<()> {
        let dims = self.gpu.dims_for(slots);
        // SAFETY: the caller's promise; the parameters belong to the kernel.
        unsafe { stream.launch(P::kernel(self), dims, params)? };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mp::gdsync::gpu::{MemoryKind, Region};

    use super::*;

    /// Cells of a box: 3 along each axis, all of one rank.
    const OWN: u32 = 3;
    const CELLS: usize = 125;

    struct Bench {
        gpu: Gpu,
        kernels: Kernels,
        stream: Stream,
        fault: Region,
        counts: [Region; 2],
        slots: [Region; 2],
        /// Zeros: kicks, lengths.
        zeros: Region,
    }

    impl Bench {
        fn new() -> Bench {
            let gpu = Gpu::soft().unwrap();
            let alloc = |len: usize| gpu.alloc(MemoryKind::Device, len).unwrap();
            let slots = CELLS * CAPACITY * size_of::<Particle>();
            Bench {
                kernels: Kernels::load(&gpu).unwrap(),
                stream: gpu.stream().unwrap(),
                fault: alloc(8),
                counts: [alloc(CELLS * 4), alloc(CELLS * 4)],
                slots: [alloc(slots), alloc(slots)],
                zeros: alloc(slots),
                gpu,
            }
        }

        fn space(&self) -> Space {
            Space {
                own: [OWN; 3],
                whole: [OWN; 3],
                fault: self.fault.addr().0,
            }
        }

        fn cells(&self, set: usize) -> Cells {
            Cells {
                counts: self.counts[set].addr().0,
                slots: self.slots[set].addr().0,
            }
        }

        /// Puts particles into a cell of the first set.
        fn put(&self, cell: usize, particles: &[Particle]) {
            let count = particles.len() as u32;
            self.counts[0]
                .write(cell * 4, &count.to_ne_bytes())
                .unwrap();
            let at = cell * CAPACITY * size_of::<Particle>();
            self.slots[0].write(at, particles.as_bytes()).unwrap();
        }

        fn advance(&self) {
            let advance = Advance {
                space: self.space(),
                from: self.cells(0),
                to: self.cells(1),
                kicks: self.zeros.addr().0,
                lengths: self.zeros.addr().0,
            };
            let slots = (CELLS * CAPACITY) as u64;
            // SAFETY: the regions have these layouts and stay until the stream is done.
            unsafe { self.kernels.launch(&self.stream, &advance, slots).unwrap() };
        }

        /// The fault word, and the number of particles in a cell of the second set.
        fn state(&self, cell: usize) -> (u64, u32) {
            assert!(self.stream.synchronize(Duration::from_secs(60)).unwrap());
            let (mut fault, mut count) = ([0; 8], [0; 4]);
            self.fault.read(0, &mut fault).unwrap();
            self.counts[1].read(cell * 4, &mut count).unwrap();
            (u64::from_ne_bytes(fault), u32::from_ne_bytes(count))
        }
    }

    /// The edge of a cell, a third of the box; the upper 32 bits of a position decide.
    const EDGE: u64 = (u32::MAX as u64 / 3 + 1) << 32;
    /// The first own cell, and its neighbour along the first axis.
    const CELL: usize = 31;
    const BESIDE: usize = 32;

    fn particle(x: u64, velocity: i64) -> Particle {
        Particle {
            at: [x, 0, 0],
            velocity: [velocity, 0, 0],
            ..Particle::default()
        }
    }

    #[test]
    fn particle_for_a_full_cell_is_a_fault() {
        let b = Bench::new();
        b.put(CELL, &[particle(7, 0); CAPACITY]);
        b.advance();
        assert_eq!(b.state(CELL), (0, CAPACITY as u32), "the last slot");
        b.counts[1].write(0, &[0; CELLS * 4]).unwrap();
        b.put(BESIDE, &[particle(EDGE, -1)]);
        b.advance();
        assert_eq!(b.state(CELL).0, CELL_FULL);
    }

    #[test]
    fn particle_that_leaves_the_box_is_in_the_halo() {
        let b = Bench::new();
        b.put(CELL, &[particle(0, -1), particle(5, 1)]);
        b.advance();
        assert_eq!(b.state(CELL), (0, 1));
        assert_eq!(b.state(CELL - 1), (0, 1));
    }

    #[test]
    fn failed_message_is_a_fault_and_adds_no_particle() {
        let b = Bench::new();
        let result = |status: u64, particles: u64| (status << 48) | (particles * 56);
        let words = [result(1, 2), result(5, 2)];
        let results = b.gpu.alloc(MemoryKind::Pinned, 16).unwrap();
        results.write(0, words.as_bytes()).unwrap();
        let message = b.gpu.alloc(MemoryKind::Device, 2 * 56).unwrap();
        let mut two = [particle(1, 0); 2];
        two.iter_mut().for_each(|p| p.cell = CELL as u32);
        message.write(0, two.as_bytes()).unwrap();
        let unpack = Unpack {
            space: b.space(),
            cells: b.cells(1),
            into: [message.addr().0; 2],
            results: [results.addr().0, results.addr().0 + 8],
        };
        // SAFETY: the regions have these layouts and stay until the stream is done.
        unsafe { b.kernels.launch(&b.stream, &unpack, 2).unwrap() };
        assert_eq!(b.state(CELL), (MESSAGE_FAILED, 2));
    }
}
