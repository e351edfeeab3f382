//! The side channel of two ranks, for address records and barriers: a socket pair, or the bootstrap
//! of ranks on two hosts.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use mp::Bootstrap;
use mp::bootstrap::MAX_MESSAGE;

/// Longest message over a socket, in bytes.
const LONGEST: usize = 4096;
/// Pause between two polls of a bootstrap.
const NAP: Duration = Duration::from_micros(200);

/// The transport of a link.
#[derive(Debug)]
enum Transport {
    /// A rank's end of a socket pair. Messages are a length (32 bits, little-endian) and bytes.
    Socket(UnixStream),
    /// Control messages between this rank and `peer`.
    Bootstrap {
        bootstrap: Arc<dyn Bootstrap>,
        peer: u32,
        topic: u64,
    },
}

/// A rank's link to the other one.
#[derive(Debug)]
pub struct Link {
    transport: Transport,
    deadline: Instant,
    barriers: u64,
}

impl Link {
    /// A link whose operations fail at `deadline`.
    pub fn new(socket: UnixStream, deadline: Instant) -> Link {
        Link {
            transport: Transport::Socket(socket),
            deadline,
            barriers: 0,
        }
    }

    /// A link to the rank `peer` of a job, under the topic `name`, which no other link of these ranks has.
    pub fn over(bootstrap: &Arc<dyn Bootstrap>, peer: u32, name: &str, deadline: Instant) -> Link {
        let mut topic = [0; 8];
        for (i, byte) in name.bytes().enumerate() {
            topic[i % 8] ^= byte.rotate_left(i as u32 / 8);
        }
        Link {
            transport: Transport::Bootstrap {
                bootstrap: Arc::clone(bootstrap),
                peer,
                topic: u64::from_le_bytes(topic),
            },
            deadline,
            barriers: 0,
        }
    }

    /// Sends `mine` to the peer and returns the peer's message.
    pub fn exchange(&mut self, mine: &[u8]) -> Result<Vec<u8>> {
        self.exchange_bytes(mine)
            .context("exchanging records with the other rank")
    }

    /// Barrier: returns once the peer has entered it too.
    pub fn barrier(&mut self) -> Result<()> {
        self.barriers += 1;
        let theirs = self.exchange(&self.barriers.to_le_bytes())?;
        if theirs != self.barriers.to_le_bytes() {
            bail!("the ranks are at different barriers");
        }
        Ok(())
    }

    fn exchange_bytes(&mut self, mine: &[u8]) -> Result<Vec<u8>> {
        match &mut self.transport {
            Transport::Socket(socket) => talk_over(socket, mine, self.deadline),
            Transport::Bootstrap {
                bootstrap,
                peer,
                topic,
            } => meet_over(&**bootstrap, *peer, *topic, mine, self.deadline),
        }
    }
}

fn left(deadline: Instant) -> Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => bail!("the time limit expired"),
        false => Ok(left),
    }
}

fn talk_over(socket: &mut UnixStream, mine: &[u8], deadline: Instant) -> Result<Vec<u8>> {
    assert!(mine.len() <= LONGEST, "a message of {} bytes", mine.len());
    // Both ranks send first, which cannot block: messages are shorter than a socket's buffer.
    let mut message = (mine.len() as u32).to_le_bytes().to_vec();
    message.extend_from_slice(mine);
    socket.set_write_timeout(Some(left(deadline)?))?;
    socket.write_all(&message).map_err(explain)?;
    let mut read = |into: &mut [u8]| {
        socket.set_read_timeout(Some(left(deadline)?))?;
        socket.read_exact(into).map_err(explain)
    };
    let mut len = [0; 4];
    read(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > LONGEST {
        bail!("a message of {len} bytes");
    }
    let mut theirs = vec![0; len];
    read(&mut theirs)?;
    Ok(theirs)
}

fn meet_over(
    bootstrap: &dyn Bootstrap,
    peer: u32,
    topic: u64,
    mine: &[u8],
    deadline: Instant,
) -> Result<Vec<u8>> {
    assert!(
        mine.len() <= MAX_MESSAGE,
        "a message of {} bytes",
        mine.len()
    );
    bootstrap.send(peer, topic, mine)?;
    loop {
        // Checked first: the peer's last message is received before its end is reported.
        let gone = bootstrap.gone(peer);
        match bootstrap.receive(topic)? {
            Some((_, theirs)) => return Ok(theirs),
            None if gone => bail!("it has ended"),
            None => std::thread::sleep(NAP.min(left(deadline)?)),
        }
    }
}

fn explain(e: io::Error) -> anyhow::Error {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => anyhow!("the time limit expired"),
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
    fn ranks_exchange_records_and_enter_a_barrier() {
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
    fn ranks_of_a_job_exchange_records_and_enter_a_barrier() {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut ranks = mp::bootstrap::Local::ranks(2).into_iter();
        let (a, b) = (ranks.next().unwrap(), ranks.next().unwrap());
        let other = std::thread::spawn(move || {
            let mut link = Link::over(&b, 0, "test", deadline);
            let got = link.exchange(b"from b").unwrap();
            link.barrier().unwrap();
            got
        });
        let mut link = Link::over(&a, 1, "test", deadline);
        assert_eq!(link.exchange(b"").unwrap(), b"from b");
        link.barrier().unwrap();
        assert_eq!(other.join().unwrap(), b"");
        let soon = Instant::now() + Duration::from_millis(20);
        let e = Link::over(&a, 1, "unknown", soon).barrier().unwrap_err();
        let e = format!("{e:#}");
        assert!(
            e.contains("time limit") || e.contains("left") || e.contains("ended"),
            "{e}"
        );
    }

    #[test]
    fn peer_that_ends_or_is_silent_is_an_error() {
        let (mut a, b) = pair(Duration::from_secs(60));
        drop(b);
        let e = format!("{:#}", a.barrier().unwrap_err());
        assert!(e.contains("it has ended"), "{e}");
        let (mut a, _b) = pair(Duration::from_millis(20));
        let e = format!("{:#}", a.barrier().unwrap_err());
        assert!(e.contains("time limit"), "{e}");
    }

    #[test]
    fn barrier_against_an_exchange_is_an_error() {
        let (mut a, mut b) = pair(Duration::from_secs(60));
        let other = std::thread::spawn(move || b.exchange(&7u64.to_le_bytes()));
        assert!(a.barrier().is_err());
        other.join().unwrap().unwrap();
    }
}
