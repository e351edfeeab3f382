//! Setters of options: one method for each field, `QpConfig::default().send_blocks(16)`.

/// Gives a structure of options, or a record, a setter method for each of these fields. A setter of
/// a field behind `optional` takes the value, or `None`.
macro_rules! setters {
    ($Options:ident {
        $($field:ident: $type:ty,)*
    } $(optional { $($option:ident: $value:ty,)* })?) => {
        impl $Options {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@", stringify!($Options), "::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> $Options {
                    self.$field = $field;
                    self
                }
            )*
            $($(
                #[doc = concat!("Sets [`", stringify!($option), "`](field@", stringify!($Options), "::", stringify!($option), "), or unsets it by `None`.")]
                #[must_use]
                pub fn $option(mut self, $option: impl Into<Option<$value>>) -> $Options {
                    self.$option = $option.into();
                    self
                }
            )*)?
        }
    };
}
pub(crate) use setters;
