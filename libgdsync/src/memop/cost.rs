//! The cost of memory operations against a kernel, for lists whose lowering the library chooses.
//!
//! Measured on an H200 host (`benches/results`), stream time and host time of one list in
//! microseconds: `n` memory operations take 1.1 + 0.7 n and 1.0 + 0.1 n, a program kernel takes 3.5
//! and 3.6 for any number of operations. So a kernel saves stream time from four operations on. For
//! longer lists it also saves more stream time than it costs in host time.

/// Stream and host time of memory operations minus those of a kernel, in nanoseconds: fixed and for
/// each operation. If the sum is positive, the kernel is faster.
const FIXED: i64 = (1_100 - 3_500) + (1_000 - 3_600);
const EACH: i64 = 700 + 100;

/// Whether a program kernel is faster for `operations` memory operations.
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
