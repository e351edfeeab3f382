//! A digest of everything that happens in a world: two runs with the same one were alike.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Where the world that is made next on this thread shall count its trace.
    static DIGEST: Cell<Option<&'static AtomicU64>> = const { Cell::new(None) };
}

/// What `run` returns, and a digest of every line of the trace of the worlds that it plays.
pub fn with_digest<R>(run: impl FnOnce() -> R) -> (R, u64) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    static WORD: AtomicU64 = AtomicU64::new(0);
    let _guard = ONE_AT_A_TIME.lock();
    // Relaxed throughout: it is written and read on this thread.
    WORD.store(0, Ordering::Relaxed);
    DIGEST.set(Some(&WORD));
    let result = run();
    DIGEST.set(None);
    (result, WORD.load(Ordering::Relaxed))
}

/// A writer for the trace of the world that is made now, if anybody wants its digest.
pub fn wanted() -> Option<Digest> {
    DIGEST.get().map(Digest::new)
}

/// Folds the lines of a trace into a word. GPUs and NICs are numbered through the life of the
/// process, so that a world has other names each time: what counts is the order in which
/// names appear.
pub struct Digest {
    word: &'static AtomicU64,
    names: BTreeMap<String, usize>,
    line: Vec<u8>,
}

impl Digest {
    fn new(word: &'static AtomicU64) -> Digest {
        Digest {
            word,
            names: BTreeMap::new(),
            line: Vec::new(),
        }
    }

    fn fold(&self, bytes: &[u8]) {
        let mut word = self.word.load(Ordering::Relaxed);
        for byte in bytes {
            word = (word ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.word.store(word ^ word >> 29, Ordering::Relaxed);
    }
}

impl io::Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        while let Some(end) = self.line.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            for token in String::from_utf8_lossy(&line).split_whitespace() {
                let device = token.split('.').next().unwrap_or(token);
                if device.starts_with("gpu") || device.starts_with("nic") {
                    let next = self.names.len();
                    let number = *self.names.entry(device.to_owned()).or_insert(next);
                    self.fold(&number.to_le_bytes());
                    self.fold(&token.as_bytes()[device.len()..]);
                } else {
                    self.fold(token.as_bytes());
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
