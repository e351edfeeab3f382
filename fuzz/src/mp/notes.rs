//! Notes that ranks read in a shared directory and beside descriptors.

use mp::bootstrap::fuzz::{descriptor, notes};

use crate::heap::bounded;

/// Bytes are a note that encodes to the same bytes, or are refused.
pub fn run(data: &[u8]) {
    // A list of ranks grows by doubling, and is written once more.
    bounded(4 * data.len() + 1024, || notes(data));
    let is = data.len() == 52 && data.starts_with(b"mp-fd\0\0\x01");
    assert_eq!(descriptor(data), is);
}
