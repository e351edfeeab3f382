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

/// A structure: its name, its size, and each field with its place.
pub type Layout = (&'static str, usize, &'static [(&'static str, usize)]);

/// Declares structures of the interface, and lists them in `LAYOUTS`.
macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident = $size:literal { $($field:ident: $type:ty,)* })*) => {
        pub const LAYOUTS: &[super::Layout] = &[$((
            stringify!($name),
            $size,
            &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
        ),)*];
        $(
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

/// Declares the numbers of objects, methods and attributes of ioctls, and lists them in `NAMES`
/// with the headers' names of each.
macro_rules! ioctls {
    ($($name:ident = $value:literal $(, $theirs:literal)*;)*) => {
        $(pub const $name: u16 = $value;)*
        pub const NAMES: &[(&str, u16)] = &[$($(($theirs, $value),)*)*];
    };
}
pub(crate) use ioctls;
