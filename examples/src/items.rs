//! The kernels of `producer_consumer`: one writes an item, one checks it. The source is
//! `device/items.cu`.

use mp::gdsync::Gpu;
use mp::gdsync::gpu::{Kernel, Stream};
use mp::{Result, Slice};
use zerocopy::{Immutable, IntoBytes};

use crate::kernels::{KERNELS, WORD};

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Item {
    words: u64,
    count: u64,
    number: u64,
    found: u64,
}

const _: () = assert!(size_of::<Item>() == 32);

/// The kernels, loaded on one GPU.
#[derive(Clone, Debug)]
pub struct Items {
    gpu: Gpu,
    write: Kernel,
    check: Kernel,
}

impl Items {
    /// Loads the kernels. Call it before any stream of `gpu` waits: CUDA's driver blocks a load
    /// behind waits.
    ///
    /// # Errors
    /// The errors of [`Gpu::load`].
    pub fn load(gpu: &Gpu) -> Result<Items> {
        let module = gpu.load(&KERNELS)?;
        Ok(Items {
            gpu: gpu.clone(),
            write: module.kernel("examples_item_write")?,
            check: module.kernel("examples_item_check")?,
        })
    }

    /// Enqueues a kernel that fills the words of `slot` with item `number`.
    ///
    /// # Safety
    /// The slice is aligned to 8 bytes. Its memory stays allocated until the stream has executed
    /// the kernel, and no code relies on its contents.
    ///
    /// # Errors
    /// The errors of a launch.
    pub unsafe fn write(&self, stream: &Stream, slot: &Slice, number: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, &self.write, slot, number, 0) }
    }

    /// Enqueues a kernel that compares the words of `slot` with item `number`. It adds to the two
    /// words of `found`: the number of words that it has compared, and of those that differ.
    ///
    /// # Safety
    /// Both slices are aligned to 8 bytes; their memory stays allocated until the stream has
    /// executed the kernel. `found` has 16 bytes in device memory.
    ///
    /// # Errors
    /// The errors of a launch.
    pub unsafe fn check(
        &self,
        stream: &Stream,
        slot: &Slice,
        number: u64,
        found: &Slice,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, &self.check, slot, number, address(found)) }
    }

    /// # Safety
    /// As the callers.
    unsafe fn launch(
        &self,
        stream: &Stream,
        kernel: &Kernel,
        slot: &Slice,
        number: u64,
        found: u64,
    ) -> Result<()> {
        let item = Item {
            words: address(slot),
            count: (slot.len() / WORD) as u64,
            number,
            found,
        };
        let dims = self.gpu.dims_for(item.count);
        // SAFETY: the caller's promise; the kernels take an `Item`.
        unsafe { stream.launch(kernel, dims, &item)? };
        Ok(())
    }
}

fn address(slice: &Slice) -> u64 {
    slice.memory().region().addr().0 + slice.offset() as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mp::bootstrap::Local;
    use mp::gdsync::gpu::MemoryKind;

    use super::*;

    #[test]
    fn check_counts_compared_and_differing_words() {
        let gpu = Gpu::soft().unwrap();
        let alone = Local::ranks(1).remove(0);
        let ctx = mp::Context::builder().bootstrap(alone).gpu(&gpu);
        let ctx = ctx.build().unwrap();
        let (items, stream) = (Items::load(&gpu).unwrap(), gpu.stream().unwrap());
        for words in [1, 7, 5000] {
            let memory = ctx.alloc(MemoryKind::Device, (words + 2) * WORD).unwrap();
            let slot = memory.slice(0, words * WORD).unwrap();
            let found = memory.slice(words * WORD, 2 * WORD).unwrap();
            let check = |number: u64| {
                found.write_slice(0, &[0_u64; 2]).unwrap();
                // SAFETY: the memory stays until the stream is done.
                unsafe { items.check(&stream, &slot, number, &found).unwrap() };
                assert!(stream.synchronize(Duration::from_secs(60)).unwrap());
                let mut counts = [0_u64; 2];
                found.read_slice(0, &mut counts).unwrap();
                counts
            };
            // SAFETY: as above.
            unsafe { items.write(&stream, &slot, 5).unwrap() };
            let all = words as u64;
            assert_eq!(check(5), [all, 0]);
            assert_eq!(check(6), [all, all]);
            let last = slot.slice_of::<u64>(words - 1, 1).unwrap();
            last.write_slice(0, &[7_u64]).unwrap();
            assert_eq!(check(5), [all, 1]);
        }
    }
}
