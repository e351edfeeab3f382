//! What the NIC refuses, as the errors of a kernel.

use rustix::io::Errno;
use vmlx5::NicError;

/// The error number for a refusal.
pub(crate) fn errno(error: NicError) -> Errno {
    match error {
        NicError::Full { .. } | NicError::Link { .. } => Errno::NOMEM,
        NicError::InUse { .. } => Errno::BUSY,
        _ => Errno::INVAL,
    }
}
