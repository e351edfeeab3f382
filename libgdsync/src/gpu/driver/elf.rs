//! The length of binary code. The drivers get code without its length: they would read past the end of
//! a truncated image.

use crate::error::{Error, Kind, Result};

const ELF: &[u8] = b"\x7fELF";
/// A bundle of NVIDIA's compiler.
const FATBIN: &[u8] = b"\x50\xed\x55\xba";

/// Whether the code is binary, not text.
pub(in crate::gpu) fn is_binary(code: &[u8]) -> bool {
    code.starts_with(ELF) || code.starts_with(FATBIN)
}

/// Refuses binary code that is truncated.
pub(in crate::gpu) fn check(operation: &'static str, code: &[u8]) -> Result<()> {
    if is_whole(code) {
        return Ok(());
    }
    let what = format!("the binary code of {} bytes is truncated", code.len());
    Err(Error::new(operation, Kind::Invalid, what))
}

/// Whether binary code is at least as long as its header states: up to the end of the table of
/// section headers in an ELF file, header and body in a fatbin.
fn is_whole(image: &[u8]) -> bool {
    let number = |at: usize, len: usize| {
        let bytes = image.get(at..at + len)?;
        let joined = |n, b: &u8| n << 8 | u64::from(*b);
        Some(bytes.iter().rev().fold(0_u64, joined))
    };
    let end = if image.starts_with(ELF) {
        // e_shoff, e_shentsize, e_shnum of a 64-bit file.
        let table = number(0x28, 8).zip(number(0x3a, 2).zip(number(0x3c, 2)));
        table.and_then(|(start, (size, n))| start.checked_add(size * n))
    } else {
        // The size of the header and the size of the body after it.
        let sizes = number(6, 2).zip(number(8, 8));
        sizes.and_then(|(header, body)| header.checked_add(body))
    };
    end.is_some_and(|end| end <= image.len() as u64)
}
