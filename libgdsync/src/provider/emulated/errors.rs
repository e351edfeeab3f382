//! Refusals of the virtual NIC as errors of this crate.

use vmlx5::NicError as E;
use vmlx5::fabric::LinkError;

use crate::error::{Error, Kind};

/// The error of a call that the NIC refused.
pub(super) fn refused(operation: &'static str, e: E) -> Error {
    let kind = match &e {
        E::Link {
            source: LinkError::Version { .. } | LinkError::Garbage(_) | LinkError::Greeting(_),
            ..
        } => Kind::Protocol,
        E::Transition { .. } => Kind::WrongState,
        E::Limit { .. } | E::Access { .. } | E::Span { .. } => Kind::Invalid,
        _ => Kind::System,
    };
    let what = match &e {
        E::Limit {
            object,
            what,
            value,
            ..
        } => format!("the {what} of the {object} cannot be {value}"),
        E::Span {
            object,
            offset,
            len,
            align,
            ..
        } => format!(
            "the {object} of {len:#x} bytes at offset {offset:#x} exceeds its memory or is not \
             aligned to {align} bytes"
        ),
        E::Full { object, .. } => format!("the NIC has no room for another {object}"),
        e => e.to_string(),
    };
    let error = Error::new(operation, kind, what);
    let error = match &e {
        E::Limit { limit, .. } => error.with_limit(*limit, "as the highest value"),
        E::Span { limit, .. } => error.with_limit(*limit, "bytes"),
        E::Full { limit, .. } => error.with_limit(*limit, "objects"),
        _ => error,
    };
    error.with_source(e)
}
