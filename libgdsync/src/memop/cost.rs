//! What memory operations cost against a kernel, for lists whose lowering is left to the library.
//!
//! Measured on an H200 host (`benches/results`), stream time and host time of one list in
//! microseconds: `n` memory operations take 1.1 + 0.7 n and 1.0 + 0.1 n, a program kernel takes
//! 3.5 and 3.6 whatever it does. So a kernel leaves the stream sooner from four operations on,
//! and is worth the host's time for more when what the stream gains is more than that.

use super::{Batch, Op};

/// Stream and host time that memory operations take in place of a kernel, in nanoseconds:
/// fixed and for each operation. Positive: the kernel wins.
const FIXED: i64 = (1_100 - 3_500) + (1_000 - 3_600);
const EACH: i64 = 700 + 100;

/// Whether a program kernel serves `operations` memory operations better.
pub fn kernel_wins(operations: usize) -> bool {
    FIXED + EACH * operations as i64 > 0
}

/// Memory operations that `list` becomes, at most.
pub fn operations(list: &Batch) -> usize {
    let each = list.ops().iter().map(|op| match op {
        // At an address that is not a multiple of 8, one more.
        Op::Copy { data, .. } => data.bytes().len() / 8 + 1,
        Op::WaitEntry(_) => 2,
        _ => 1,
    });
    each.sum()
}

#[cfg(test)]
mod tests {
    use super::super::{DevicePtr, Inline};
    use super::*;

    #[test]
    fn one_message_goes_by_memory_operations_and_many_by_a_kernel() {
        assert!(!kernel_wins(0) && !kernel_wins(2) && !kernel_wins(5));
        assert!(kernel_wins(8) && kernel_wins(26 * 5));
        let first = (0..100).find(|n| kernel_wins(*n)).unwrap();
        assert!((first..1000).all(kernel_wins), "it stays so");
    }

    #[test]
    fn an_inline_copy_counts_as_the_words_it_becomes() {
        let data = Inline::new(&[0; 32]).unwrap();
        let at = DevicePtr(64);
        let mut list = Batch::new();
        list.push(Op::Copy { at, data });
        assert_eq!(operations(&list), 5);
        list.push(Op::Fence);
        assert_eq!(operations(&list), 6);
    }
}
