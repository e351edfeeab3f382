//! mprun's splitting of the output of ranks into lines.

#[path = "../../configure-helpers/mprun/src/lines.rs"]
#[allow(dead_code, missing_docs, reason = "a module of a program")]
mod of_mprun;

use of_mprun::Lines;

use crate::heap::bounded;
use crate::input::Input;

const PREFIX: &[u8] = b"[3] ";
/// Longest line that is kept whole.
const LONGEST: usize = 1 << 20;
/// Most bytes of one run.
const MOST: usize = 4 * LONGEST;

/// Lines are whole, with their prefixes, in order, and none is lost; no more is buffered than the
/// longest line.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut lines = Lines::new("[3] ");
    let mut line: Vec<u8> = Vec::new();
    let mut fed = 0;
    while !input.done() && fed < MOST {
        let bytes = match input.byte() {
            // Output without end of line.
            n @ 0xfc.. => vec![b'x'; LONGEST >> (n & 3)],
            n => input.bytes(usize::from(n % 64)).to_vec(),
        };
        fed += bytes.len();
        let mut expected = Vec::new();
        for byte in &bytes {
            line.push(*byte);
            if *byte == b'\n' {
                expected.extend(PREFIX);
                expected.append(&mut line);
            }
        }
        if line.len() > LONGEST {
            expected.extend(PREFIX);
            expected.append(&mut line);
            expected.push(b'\n');
        }
        // A line that grows by doubling, and is then shown.
        let most = 8 * (LONGEST + bytes.len());
        let shown = bounded(most, || lines.push(&bytes));
        assert!(shown == expected);
    }
    let last = lines.end();
    match line.is_empty() {
        true => assert!(last.is_empty()),
        false => assert!(last == [PREFIX, &line, b"\n"].concat()),
    }
    assert!(lines.end().is_empty());
}
