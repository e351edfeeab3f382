//! Bindings of GDRCopy: the CPU reads and writes device memory with loads and stores.
//!
//! [`ffi::Gdrapi`] is the table of libgdrapi 2.x, opened at run time as
//! [`gdsync_sys`]'s tables are (`GDS_GDRAPI_LIB` names another library). Above it, [`Gdr`] is an
//! open library and [`Mapping`] a piece of device memory mapped for the CPU. The library is not
//! thread-safe, so calls into it take one lock of the process; loads and stores through
//! [`Mapping::as_ptr`] take none.
//!
//! Mapped device memory is write-combined on most machines: stores are fast, but they may become
//! visible late and out of order until a store fence. Loads go over PCIe and are slow.

pub mod ffi;
mod gdr;

pub use gdr::{Gdr, GdrError, Mapping, MappingKind, Pin};
pub use gdsync_sys::LoadError;
