//! Memory as elements of a type: slices by index and count, and copies of elements.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Memory, Slice};
use crate::error::{Error, Kind, Result};

impl Memory {
    /// A slice of `count` elements of `T`, from element `index` of the memory on; `count` may be 0.
    ///
    /// ```
    /// # use mp::{Context, bootstrap::Local, gdsync::Gpu};
    /// use mp::gdsync::gpu::MemoryKind;
    /// # let alone = Local::ranks(1).remove(0);
    /// # let ctx = Context::builder().bootstrap(alone).gpu(&Gpu::soft()?).build()?;
    ///
    /// let field = ctx.alloc(MemoryKind::Device, 100 * size_of::<f64>())?;
    /// field.write_slice(0, &[1.5, 2.5])?; // elements 0 and 1
    /// let edge = field.slice_of::<f64>(1, 10)?; // what sends and receives take
    /// assert_eq!((edge.offset(), edge.len()), (8, 80));
    ///
    /// let mut values = [0.0; 3];
    /// field.read_slice(0, &mut values)?;
    /// assert_eq!(values, [1.5, 2.5, 0.0]);
    /// # Ok::<(), mp::Error>(())
    /// ```
    ///
    /// A structure of the program derives the traits of zerocopy. A type that has bytes without a
    /// value is refused:
    ///
    /// ```compile_fail,E0277
    /// # fn flags(memory: &mp::Memory) -> mp::Result<mp::Slice> {
    /// memory.slice_of::<bool>(0, 8) // a peer may send the byte 2
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if the elements exceed the memory, with the limit in elements, or if their address
    /// is not aligned for `T`.
    pub fn slice_of<T>(&self, index: usize, count: usize) -> Result<Slice>
    where
        T: FromBytes + IntoBytes + Immutable,
    {
        self.all().slice_of::<T>(index, count)
    }

    /// Copies the elements from element `index` on into `into`, as [`read`](Memory::read) copies
    /// bytes. [`slice_of`](Memory::slice_of) has an example.
    ///
    /// # Errors
    /// As [`slice_of`](Memory::slice_of) and [`read`](Memory::read).
    pub fn read_slice<T: FromBytes + IntoBytes>(&self, index: usize, into: &mut [T]) -> Result<()> {
        self.all().read_slice(index, into)
    }

    /// Copies `from` to the elements from element `index` on, as [`write`](Memory::write) copies
    /// bytes. [`slice_of`](Memory::slice_of) has an example.
    ///
    /// # Errors
    /// As [`slice_of`](Memory::slice_of) and [`write`](Memory::write).
    pub fn write_slice<T: IntoBytes + Immutable>(&self, index: usize, from: &[T]) -> Result<()> {
        self.all().write_slice(index, from)
    }
}

impl Slice {
    /// A slice of `count` elements of `T`, from element `index` of this slice on; `count` may be 0.
    ///
    /// # Errors
    /// `Invalid` if the elements exceed the slice, with the limit in elements, or if their address
    /// is not aligned for `T`.
    pub fn slice_of<T>(&self, index: usize, count: usize) -> Result<Slice>
    where
        T: FromBytes + IntoBytes + Immutable,
    {
        self.elements::<T>("slice memory", index, count)
    }

    /// Copies the elements from element `index` of the slice on into `into`, as [`Memory::read`]
    /// copies bytes.
    ///
    /// # Errors
    /// As [`slice_of`](Slice::slice_of) and [`Memory::read`].
    pub fn read_slice<T: FromBytes + IntoBytes>(&self, index: usize, into: &mut [T]) -> Result<()> {
        let elements = self.elements::<T>("read elements", index, into.len())?;
        elements.memory.read(elements.offset, into.as_mut_bytes())
    }

    /// Copies `from` to the elements from element `index` of the slice on, as [`Memory::write`]
    /// copies bytes.
    ///
    /// # Errors
    /// As [`slice_of`](Slice::slice_of) and [`Memory::write`].
    pub fn write_slice<T: IntoBytes + Immutable>(&self, index: usize, from: &[T]) -> Result<()> {
        let elements = self.elements::<T>("write elements", index, from.len())?;
        elements.memory.write(elements.offset, from.as_bytes())
    }

    fn elements<T>(&self, operation: &'static str, index: usize, count: usize) -> Result<Slice> {
        let (size, align) = (size_of::<T>(), align_of::<T>());
        let start = index.checked_mul(size).filter(|start| *start <= self.len);
        let len = count.checked_mul(size);
        let inside = start
            .zip(len)
            .filter(|(start, len)| *len <= self.len - start);
        let Some((start, len)) = inside else {
            let what = format!(
                "{count} elements of {size} bytes, from element {index} on, exceed {self:?}"
            );
            let error = Error::new(operation, Kind::Invalid, what);
            return Err(error.with_limit(self.len / size.max(1), "elements"));
        };
        let elements = Slice {
            memory: self.memory.clone(),
            offset: self.offset + start,
            len,
        };
        if !elements.addr().is_multiple_of(align as u64) {
            let what = format!(
                "{elements:?} is not aligned for {}, which needs an address that is a multiple of \
                 {align} bytes",
                std::any::type_name::<T>()
            );
            return Err(Error::new(operation, Kind::Invalid, what));
        }
        Ok(elements)
    }
}
