//! The library's own kernels: names, parameters, code.
//!
//! Each is one function of C++ in `device/`: compiled to PTX that is part of the library, for
//! CUDA, and by the host compiler, for the soft GPU. An [`Entry`] names one; the structures here
//! are the parameters, to the byte. Their code is `gdsync::gpu::KERNELS`.

mod params;

use crate::memop::program::Program;

pub use params::*;

/// One of the library's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Entry {
    /// Runs a program of up to 8 operations. One block of 32 threads.
    Program8,
    /// Runs a program of up to 40 operations. One block of 32 threads.
    Program40,
    /// Runs a program of up to 120 operations. One block of 32 threads.
    Program,
    /// Posts the next entries on up to [`QUEUES`] queues, see [`Trigger`]. One block of 32 threads.
    Trigger,
    /// Waits for the next completion on up to [`QUEUES`] completion queues, see [`Wait`]. One block
    /// of 32 threads.
    Wait,
    /// Writes a pattern, see [`Fill`]. Any number of blocks and threads.
    Fill,
    /// Compares with a pattern, see [`Verify`]. Any number of blocks and threads.
    Verify,
    /// Copies, see [`Transfer`]. Any number of blocks and threads.
    Transfer,
}

impl Entry {
    /// All kernels.
    pub const ALL: [Entry; 8] = [
        Entry::Program8,
        Entry::Program40,
        Entry::Program,
        Entry::Trigger,
        Entry::Wait,
        Entry::Fill,
        Entry::Verify,
        Entry::Transfer,
    ];

    /// The kernel's name in the module.
    pub const fn name(self) -> &'static str {
        match self {
            Entry::Program8 => "gds_program_8",
            Entry::Program40 => "gds_program_40",
            Entry::Program => "gds_program",
            Entry::Trigger => "gds_trigger",
            Entry::Wait => "gds_wait",
            Entry::Fill => "gds_fill",
            Entry::Verify => "gds_verify",
            Entry::Transfer => "gds_copy",
        }
    }

    /// The size of the kernel's one parameter in bytes.
    pub const fn param_size(self) -> usize {
        match self {
            Entry::Program8 => 8 + 32 * 8,
            Entry::Program40 => 8 + 32 * 40,
            Entry::Program => Program::LEN,
            Entry::Trigger => size_of::<Trigger>(),
            Entry::Wait => size_of::<Wait>(),
            Entry::Fill => size_of::<Fill>(),
            Entry::Verify => size_of::<Verify>(),
            Entry::Transfer => size_of::<Transfer>(),
        }
    }

    /// The smallest kernel that holds the program, and its parameter. The kernel is launched with
    /// one block of 32 threads.
    pub(crate) fn of_program(program: &Program) -> (Entry, &[u8]) {
        let entry = match program.ops().len() {
            0..=8 => Entry::Program8,
            9..=40 => Entry::Program40,
            _ => Entry::Program,
        };
        (entry, &program.bytes()[..entry.param_size()])
    }
}
