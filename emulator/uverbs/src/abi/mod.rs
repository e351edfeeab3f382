//! The structures of the kernel interface, as its public headers lay them out: [`core`] those of
//! all devices, [`mlx5`] what the mlx5 driver adds, and [`prm`] the commands that it passes on to
//! the device. The first two are in the machine's byte order unless said
//! otherwise; names are the headers' own, without their prefixes.
#![allow(
    missing_docs,
    reason = "the fields are those of the public headers, under the same names"
)]

pub mod core;
pub mod mlx5;
pub mod prm;

/// Declares structures of the interface.
macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident = $size:literal { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[repr(C)]
        pub struct $name { $(pub $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}
pub(crate) use structures;
