//! The thread that writes the output, so that a slow reader delays only the output.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Capacity of the channel, in pieces of output.
const WAITING: usize = 64;

/// The target of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Writes pieces in order, each one whole.
pub struct Writer {
    queue: SyncSender<(To, Vec<u8>)>,
    /// Output for which the channel has no room.
    held: VecDeque<(To, Vec<u8>)>,
    /// True once a write has failed because the reader is gone. Relaxed: no other data depends on
    /// it.
    broken: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start() -> std::io::Result<Writer> {
        let (queue, pieces) = sync_channel::<(To, Vec<u8>)>(WAITING);
        let broken = Arc::new(AtomicBool::new(false));
        let failed = Arc::clone(&broken);
        let thread = std::thread::Builder::new().name("mprun-output".into());
        let thread = thread.spawn(move || {
            for (to, piece) in pieces {
                let done = match to {
                    To::Out => write(&mut std::io::stdout().lock(), &piece),
                    To::Err => write(&mut std::io::stderr().lock(), &piece),
                };
                if done.is_err() {
                    failed.store(true, Ordering::Relaxed);
                }
            }
        })?;
        Ok(Writer {
            queue,
            held: VecDeque::new(),
            broken,
            thread,
        })
    }

    /// Passes a piece to the thread, only if there is room or the piece is short.
    pub fn push(&mut self, to: To, piece: Vec<u8>) {
        if !piece.is_empty() {
            self.held.push_back((to, piece));
            self.has_room();
        }
    }

    /// Whether there is room for another piece.
    pub fn has_room(&mut self) -> bool {
        while let Some(piece) = self.held.pop_front() {
            match self.queue.try_send(piece) {
                Ok(()) => {}
                Err(TrySendError::Full(piece)) => {
                    self.held.push_front(piece);
                    return false;
                }
                // The thread ends only after this end of the channel is dropped.
                Err(TrySendError::Disconnected(_)) => self.broken.store(true, Ordering::Relaxed),
            }
        }
        true
    }

    /// Whether the reader of the output is gone.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, or `limit` has passed.
    pub fn finish(mut self, limit: Duration) {
        let end = Instant::now() + limit;
        let pause = || {
            std::thread::sleep(Duration::from_millis(1));
            Instant::now() < end
        };
        while !self.has_room() && pause() {}
        drop(self.queue);
        while !self.thread.is_finished() && pause() {}
    }
}

fn write(to: &mut impl Write, piece: &[u8]) -> std::io::Result<()> {
    to.write_all(piece)?;
    to.flush()
}
