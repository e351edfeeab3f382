//! What memory operations cost against a kernel, for lists whose lowering is left to the library.
//!
//! Measured on an H200 host (`benches/results`), stream time and host time of one list in
//! microseconds: `n` memory operations take 1.1 + 0.7 n and 1.0 + 0.1 n, a program kernel takes
//! 3.5 and 3.6 whatever it does. So a kernel leaves the stream sooner from four operations on,
//! and is worth the host's time for more when what the stream gains is more than that.

/// Stream and host time that memory operations take in place of a kernel, in nanoseconds:
/// fixed and for each operation. Positive: the kernel wins.
const FIXED: i64 = (1_100 - 3_500) + (1_000 - 3_600);
const EACH: i64 = 700 + 100;

/// Whether a program kernel serves `operations` memory operations better.
pub fn kernel_wins(operations: usize) -> bool {
    FIXED + EACH * operations as i64 > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_goes_by_memory_operations_and_many_by_a_kernel() {
        assert!(!kernel_wins(0) && !kernel_wins(2) && !kernel_wins(5));
        assert!(kernel_wins(8) && kernel_wins(26 * 5));
        let first = (0..100).find(|n| kernel_wins(*n)).unwrap();
        assert!((first..1000).all(kernel_wins), "it stays so");
    }
}
