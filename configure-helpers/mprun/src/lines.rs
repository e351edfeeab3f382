//! Output split into lines, so that lines of different ranks are never mixed.

/// Longest line that is kept whole, in bytes.
const LONGEST: usize = 1 << 20;

/// The line buffer of one stream of a rank.
#[derive(Debug)]
pub struct Lines {
    prefix: Vec<u8>,
    partial: Vec<u8>,
}

impl Lines {
    /// A buffer whose lines get `prefix`.
    pub fn new(prefix: &str) -> Lines {
        Lines {
            prefix: prefix.into(),
            partial: Vec::new(),
        }
    }

    /// Takes `bytes` and returns the whole lines so far, with their prefixes.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.partial.extend(bytes);
        let mut shown = Vec::new();
        let mut at = 0;
        let rest = &self.partial;
        while let Some(end) = rest[at..].iter().position(|b| *b == b'\n') {
            shown.extend(&self.prefix);
            shown.extend(&rest[at..=at + end]);
            at += end + 1;
        }
        self.partial.drain(..at);
        if self.partial.len() > LONGEST {
            shown.extend(self.end());
        }
        shown
    }

    /// Returns the rest at the end of the stream: a last line without a line feed.
    pub fn end(&mut self) -> Vec<u8> {
        if self.partial.is_empty() {
            return Vec::new();
        }
        let last = std::mem::take(&mut self.partial);
        [self.prefix.as_slice(), &last, b"\n"].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_whole_for_any_split_of_the_bytes() {
        let text = b"one\n\ntwo and \xff\nlast";
        for piece in 1..text.len() {
            let mut lines = Lines::new("[3] ");
            let mut shown = Vec::new();
            for bytes in text.chunks(piece) {
                let now = lines.push(bytes);
                assert!(now.is_empty() || now.ends_with(b"\n"));
                shown.extend(now);
            }
            shown.extend(lines.end());
            assert_eq!(shown, b"[3] one\n[3] \n[3] two and \xff\n[3] last\n");
            assert!(lines.end().is_empty());
        }
    }

    #[test]
    fn too_long_line_is_split() {
        let mut lines = Lines::new("");
        let shown = (0..3)
            .map(|_| lines.push(&[b'x'; LONGEST / 2]))
            .collect::<Vec<_>>();
        assert_eq!(shown.iter().map(Vec::len).max(), Some(LONGEST / 2 * 3 + 1));
        assert!(lines.end().is_empty());
    }
}
