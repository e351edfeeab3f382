//! The serial run of a stencil whose field is cut into strips of rows.

use crate::kernels::rule;

/// The field after `steps` steps by one CPU thread: `rows` rows of `width` cells, with a ring of one
/// cell around them.
pub fn serial(width: usize, rows: usize, steps: u64) -> Vec<u64> {
    let pitch = width + 2;
    let inside =
        |i: &usize| (1..=width).contains(&(i % pitch)) && (1..=rows).contains(&(i / pitch));
    let cells: Vec<usize> = (0..(rows + 2) * pitch).filter(inside).collect();
    let mut now = vec![0; (rows + 2) * pitch];
    for &i in &cells {
        now[i] = i as u64;
    }
    for _ in 0..steps {
        let f = now.clone();
        for &i in &cells {
            now[i] = rule(f[i], f[i - pitch], f[i + pitch], f[i - 1], f[i + 1]);
        }
    }
    now
}
