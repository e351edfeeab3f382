//! How options are set: by a method for each field, `QpConfig::default().send_blocks(16)`.

/// Gives a structure of options, or a record, a method for each of these fields that sets it.
macro_rules! setters {
    ($Options:ident { $($field:ident: $type:ty,)* }) => {
        impl $Options { $(
            #[doc = concat!("Sets [`", stringify!($field), "`](field@", stringify!($Options), "::", stringify!($field), ").")]
            #[must_use]
            pub fn $field(mut self, $field: $type) -> $Options {
                self.$field = $field;
                self
            }
        )* }
    };
}
pub(crate) use setters;
