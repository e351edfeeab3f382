//! Macros that define types from tables: structures from the offsets of their fields, codes from
//! their names.

/// A structure in its memory layout: each field with its offset, which is checked, the bytes of the
/// whole, and methods for the bits of its fields.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        $name:ident: $bytes:ty {
            $($(#[$doc:meta])* $offset:literal $field:ident: $type:ty,)*
        } $(means {
            $($(#[$what:meta])* $get:ident(&$self:ident) -> $value:ty = $is:expr;)*
        })?
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        const _: () = {
            assert!(size_of::<$name>() == size_of::<$bytes>());
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };

        impl $name {
            /// The bytes, in the order of memory.
            #[inline]
            pub const fn to_bytes(self) -> $bytes {
                zerocopy::transmute!(self)
            }

            /// The structure with these bytes.
            #[inline]
            pub const fn from_bytes(bytes: $bytes) -> $name {
                zerocopy::transmute!(bytes)
            }

            $($(
                $(#[$what])*
                #[inline]
                pub const fn $get(&$self) -> $value {
                    $is
                }
            )*)?
        }
    };
}

/// A code of one byte. A known code has a name; an unknown code keeps its number.
macro_rules! codes {
    ($(#[$meta:meta])* $code:ident { $($(#[$doc:meta])* $name:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $code(pub u8);

        impl $code {
            $($(#[$doc])* pub const $name: $code = $code($value);)*

            /// The code's name; `None` for an unknown code.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $($code::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $code {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.pad(name),
                    None => write!(f, "{:#04x}", self.0),
                }
            }
        }
    };
}
