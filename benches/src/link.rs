//! What two ranks say to each other outside the benchmark: address records and barriers, over
//! a socket pair.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

/// Longest message.
const LONGEST: usize = 4096;

/// A rank's end of the socket pair. Messages are a length (32 bits, little-endian) and bytes.
#[derive(Debug)]
pub struct Link {
    socket: UnixStream,
    deadline: Instant,
    barriers: u64,
}

impl Link {
    /// A link that gives up at `deadline`.
    pub fn new(socket: UnixStream, deadline: Instant) -> Link {
        Link {
            socket,
            deadline,
            barriers: 0,
        }
    }

    /// Gives the peer `mine` and returns what it gave.
    pub fn exchange(&mut self, mine: &[u8]) -> Result<Vec<u8>> {
        self.talk(mine).context("talking to the other rank")
    }

    /// Returns once the peer has come here too.
    pub fn barrier(&mut self) -> Result<()> {
        self.barriers += 1;
        let theirs = self.exchange(&self.barriers.to_le_bytes())?;
        if theirs != self.barriers.to_le_bytes() {
            bail!("the ranks are at different barriers");
        }
        Ok(())
    }

    fn talk(&mut self, mine: &[u8]) -> Result<Vec<u8>> {
        assert!(mine.len() <= LONGEST, "a message of {} bytes", mine.len());
        // Both write first: messages are shorter than what a socket holds.
        let mut message = (mine.len() as u32).to_le_bytes().to_vec();
        message.extend_from_slice(mine);
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write_all(&message).map_err(explain)?;
        let mut len = [0; 4];
        self.read(&mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > LONGEST {
            bail!("a message of {len} bytes");
        }
        let mut theirs = vec![0; len];
        self.read(&mut theirs)?;
        Ok(theirs)
    }

    fn read(&mut self, into: &mut [u8]) -> Result<()> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        self.socket.read_exact(into).map_err(explain)
    }

    fn left(&self) -> Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => bail!("the time limit passed"),
            false => Ok(left),
        }
    }
}

fn explain(e: io::Error) -> anyhow::Error {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => anyhow!("the time limit passed"),
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => {
            anyhow!("it has ended")
        }
        _ => e.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(limit: Duration) -> (Link, Link) {
        let (a, b) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + limit;
        (Link::new(a, deadline), Link::new(b, deadline))
    }

    #[test]
    fn ranks_exchange_and_meet() {
        let (mut a, mut b) = pair(Duration::from_secs(60));
        let other = std::thread::spawn(move || {
            let got = b.exchange(b"from b").unwrap();
            b.barrier().unwrap();
            got
        });
        assert_eq!(a.exchange(b"").unwrap(), b"from b");
        a.barrier().unwrap();
        assert_eq!(other.join().unwrap(), b"");
    }

    #[test]
    fn a_peer_that_ends_or_is_silent_is_an_error() {
        let (mut a, b) = pair(Duration::from_secs(60));
        drop(b);
        let e = format!("{:#}", a.barrier().unwrap_err());
        assert!(e.contains("it has ended"), "{e}");
        let (mut a, _b) = pair(Duration::from_millis(20));
        let e = format!("{:#}", a.barrier().unwrap_err());
        assert!(e.contains("time limit"), "{e}");
    }

    #[test]
    fn different_barriers_are_noticed() {
        let (mut a, mut b) = pair(Duration::from_secs(60));
        let other = std::thread::spawn(move || b.exchange(&7u64.to_le_bytes()));
        assert!(a.barrier().is_err());
        other.join().unwrap().unwrap();
    }
}
