//! The refusals of the NIC, as a kernel's errno values.

use rustix::io::Errno;
use vmlx5::NicError;

/// The errno of a refusal.
pub(crate) fn errno(error: NicError) -> Errno {
    match error {
        NicError::Full { .. } | NicError::Link { .. } => Errno::NOMEM,
        NicError::InUse { .. } => Errno::BUSY,
        _ => Errno::INVAL,
    }
}
