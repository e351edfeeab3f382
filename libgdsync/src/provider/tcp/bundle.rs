//! [`over`]: several sockets as one connection, for networks that limit the rate of one.
//!
//! The stream of bytes is cut into stripes of [`STRIPE`] bytes, and the sockets carry them in turn. Both
//! sides count the bytes, so a stripe needs no head, and everything above sees one stream.

use std::io;
use std::mem;
use std::net::TcpStream;

use rustix::io::Errno;
use smallvec::SmallVec;

use super::poller::{Polled, Poller};
use super::wire::{Socket, Wire, iovec, piece};

/// Bytes of a stripe.
const STRIPE: usize = 128 * 1024;
/// A call ends with the stripe in which it has moved this many bytes: a peer that is as fast as this side
/// would not let it end, and other queue pairs wait.
const MOST: usize = 4 * STRIPE;

/// The socket that has the next byte of a direction, and the rest of its stripe.
struct Turn {
    socket: usize,
    left: usize,
}

impl Turn {
    const FIRST: Turn = Turn {
        socket: 0,
        left: STRIPE,
    };

    /// Counts `n` bytes of the stripe. If they end it, returns its socket.
    fn advance(&mut self, n: usize, sockets: usize) -> Option<usize> {
        self.left -= n;
        if self.left > 0 {
            return None;
        }
        let next = Turn {
            socket: (self.socket + 1) % sockets,
            left: STRIPE,
        };
        Some(mem::replace(self, next).socket)
    }
}

/// A connection by several sockets. The poller reports bytes only of the one that is read: those of later
/// stripes would keep the thread awake.
struct Bundle {
    sockets: Vec<Socket>,
    read: Turn,
    write: Turn,
    /// Whether the poller reported a socket that is not read, which may have failed.
    suspect: bool,
    /// The error of such a socket: the system reports it once.
    failed: Option<Errno>,
}

/// The memory behind its first `skip` bytes, at most `most` bytes.
fn part(memory: &[iovec], mut skip: usize, mut most: usize) -> SmallVec<[iovec; 20]> {
    let mut list = SmallVec::new();
    for one in memory {
        let skipped = skip.min(one.iov_len);
        skip -= skipped;
        let len = (one.iov_len - skipped).min(most);
        if len > 0 {
            let at = one.iov_base.cast::<u8>().wrapping_add(skipped);
            list.push(piece(at, len));
            most -= len;
        }
    }
    list
}

/// Moves the bytes of `memory` by `transfer`, a stripe at a time, until one call moves fewer than it is
/// given, or [`MOST`] are moved. Calls `turned` with the sockets of a stripe that ends and of the next one.
/// Returns the number of bytes. An error behind moved bytes is left to the next call, which finds it or
/// the end of the bytes.
fn by_stripes(
    memory: &[iovec],
    sockets: &mut [Socket],
    turn: &mut Turn,
    transfer: impl Fn(&mut Socket, &[iovec]) -> io::Result<usize>,
    turned: impl Fn(&mut [Socket], usize, usize),
) -> io::Result<usize> {
    let mut done = 0;
    loop {
        let part = part(memory, done, turn.left);
        let given: usize = part.iter().map(|part| part.iov_len).sum();
        if given == 0 || done >= MOST {
            return Ok(done);
        }
        match transfer(&mut sockets[turn.socket], &part) {
            Ok(n) => {
                done += n;
                if let Some(before) = turn.advance(n, sockets.len()) {
                    turned(sockets, before, turn.socket);
                }
                if n < given {
                    return Ok(done);
                }
            }
            Err(_) if done > 0 => return Ok(done),
            Err(e) => return Err(e),
        }
    }
}

/// A connection by these sockets, in the order of their places.
pub fn over(streams: Vec<Polled<TcpStream>>, poller: &Poller) -> Box<dyn Wire> {
    let socket = |stream| Socket::over(stream, poller);
    let sockets: Vec<Socket> = streams.into_iter().map(socket).collect();
    match <[Socket; 1]>::try_from(sockets) {
        Ok([one]) => Box::new(one),
        Err(sockets) => Box::new(Bundle::of(sockets)),
    }
}

impl Bundle {
    /// A connection by two sockets or more, in the same order on both sides.
    fn of(mut sockets: Vec<Socket>) -> Bundle {
        for later in sockets.iter_mut().skip(1) {
            later.want_bytes(false);
        }
        Bundle {
            sockets,
            read: Turn::FIRST,
            write: Turn::FIRST,
            suspect: false,
            failed: None,
        }
    }

    /// The error of a socket, if the poller reported one that is not read. The end of a peer's bytes is no
    /// error: those of earlier stripes may still arrive.
    fn failure(&mut self) -> Option<io::Error> {
        if mem::take(&mut self.suspect) && self.failed.is_none() {
            self.failed = self.sockets.iter().find_map(Socket::failure);
        }
        self.failed.map(io::Error::from)
    }
}

impl Wire for Bundle {
    unsafe fn read(&mut self, into: &[iovec]) -> io::Result<usize> {
        let outcome = by_stripes(
            into,
            &mut self.sockets,
            &mut self.read,
            // SAFETY: parts of the caller's memory.
            |socket, part| unsafe { socket.read(part) },
            |sockets, before, next| {
                sockets[before].want_bytes(false);
                sockets[next].want_bytes(true);
            },
        );
        match outcome {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(self.failure().unwrap_or(e)),
            outcome => outcome,
        }
    }

    unsafe fn write(&mut self, from: &[iovec]) -> io::Result<usize> {
        by_stripes(
            from,
            &mut self.sockets,
            &mut self.write,
            // SAFETY: parts of the caller's memory.
            |socket, part| unsafe { socket.write(part) },
            |sockets, before, _| sockets[before].want_room(false),
        )
    }

    fn may_read(&mut self) -> bool {
        let mut may = false;
        for (at, socket) in self.sockets.iter_mut().enumerate() {
            let ready = socket.may_read();
            may |= ready;
            self.suspect |= ready && at != self.read.socket;
        }
        may
    }

    fn want_room(&mut self, wanted: bool) {
        self.sockets[self.write.socket].want_room(wanted);
    }

    fn close(self: Box<Self>) {
        for socket in self.sockets {
            socket.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;
    use crate::provider::tcp::poller::Interest;

    const SOCKETS: usize = 3;

    /// Connections on the loopback interface: the sockets of both sides.
    fn pairs() -> [Vec<TcpStream>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let pair = |_| {
            (
                TcpStream::connect(at).unwrap(),
                listener.accept().unwrap().0,
            )
        };
        let (a, b) = (0..SOCKETS).map(pair).unzip();
        [a, b]
    }

    fn bundle(streams: Vec<TcpStream>, poller: &Poller) -> Box<dyn Wire> {
        let polled = |stream: TcpStream| {
            stream.set_nonblocking(true).unwrap();
            poller.add(stream, Interest::BYTES).unwrap()
        };
        over(streams.into_iter().map(polled).collect(), poller)
    }

    fn read(wire: &mut dyn Wire, bytes: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the bytes of this test.
        unsafe { wire.read(&[piece(bytes.as_ptr(), bytes.len())]) }
    }

    fn waits(outcome: &io::Result<usize>) -> bool {
        let would_block = |e: &io::Error| e.kind() == io::ErrorKind::WouldBlock;
        outcome.as_ref().is_err_and(would_block)
    }

    /// Reads until something else than "no bytes now".
    fn outcome(wire: &mut dyn Wire, poller: &Poller) -> io::Result<usize> {
        loop {
            poller.look();
            wire.may_read();
            let outcome = read(wire, &mut [0; 8]);
            if !waits(&outcome) {
                return outcome;
            }
            sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn bytes_pass_in_their_order_whatever_the_lengths_are() {
        let poller = Poller::new().unwrap();
        let mut ends = pairs().map(|streams| bundle(streams, &poller));
        let mut rng = fastrand::Rng::with_seed(1);
        let sent: Vec<u8> = std::iter::repeat_with(|| rng.u8(..))
            .take(40 * STRIPE + 77)
            .collect();
        for from in [0, 1] {
            let (mut written, mut got) = (0, Vec::new());
            while got.len() < sent.len() {
                let mut rest = &sent[written..];
                let parts = [(); 4].map(|()| {
                    let most = [100, 3 * STRIPE][rng.usize(..2)];
                    let len = rng.usize(..most);
                    let part;
                    (part, rest) = rest.split_at(len.min(rest.len()));
                    piece(part.as_ptr(), part.len())
                });
                if written < sent.len() {
                    // SAFETY: the bytes of this test.
                    let n = unsafe { ends[from].write(&parts) };
                    assert!(n.is_ok() || waits(&n), "{n:?}");
                    written += n.unwrap_or(0);
                    ends[from].want_room(written < sent.len());
                }
                poller.look();
                let mut room = vec![0; rng.usize(1..2 * STRIPE)];
                let n = read(&mut *ends[1 - from], &mut room);
                assert!(n.is_ok() || waits(&n), "{n:?}");
                got.extend_from_slice(&room[..n.unwrap_or(0)]);
            }
            assert!(got == sent);
        }
    }

    #[test]
    fn bytes_of_later_stripes_make_nothing_ready() {
        let poller = Poller::new().unwrap();
        let [ours, mut theirs] = pairs();
        let mut wire = bundle(ours, &poller);
        theirs[1].write_all(b"later").unwrap();
        sleep(Duration::from_millis(20));
        assert!(!poller.is_ready());
        poller.look();
        assert!(!wire.may_read());
        theirs[0].write_all(&[1; STRIPE]).unwrap();
        let mut bytes = vec![0; STRIPE + 5];
        let mut got = 0;
        while got < bytes.len() {
            got += read(&mut *wire, &mut bytes[got..]).unwrap_or(0);
        }
        assert_eq!(bytes[STRIPE..], *b"later");
        assert!(!poller.is_ready());
        theirs[1].write_all(b".").unwrap();
        assert_eq!(outcome(&mut *wire, &poller).unwrap(), 1);
    }

    #[test]
    fn a_call_ends_although_the_sockets_take_more() {
        let poller = Poller::new().unwrap();
        let [ours, _theirs] = pairs();
        let mut sockets: Vec<_> = ours
            .into_iter()
            .map(|stream| poller.add(stream, Interest::BYTES).unwrap())
            .map(|stream| Socket::over(stream, &poller))
            .collect();
        let mut turn = Turn::FIRST;
        let all = |_: &mut Socket, part: &[iovec]| Ok(part.iter().map(|part| part.iov_len).sum());
        let mut move_from = |bytes: &[u8]| {
            let memory = [piece(bytes.as_ptr(), bytes.len())];
            by_stripes(&memory, &mut sockets, &mut turn, all, |_, _, _| {}).unwrap()
        };
        let bytes = vec![0; 3 * MOST];
        assert_eq!(move_from(&bytes[..7]), 7);
        assert_eq!(move_from(&bytes), MOST + STRIPE - 7);
        assert_eq!(move_from(&bytes), MOST);
    }

    #[test]
    fn failure_of_another_socket_ends_the_connection_behind_the_bytes_that_are_there() {
        let poller = Poller::new().unwrap();
        let [ours, mut theirs] = pairs();
        let mut wire = bundle(ours, &poller);
        theirs[0].write_all(b"first").unwrap();
        // Linux resets a connection that is disconnected like this.
        rustix::net::connect_unspec(&theirs[2]).unwrap();
        assert_eq!(outcome(&mut *wire, &poller).unwrap(), 5);
        let reset = |outcome: io::Result<usize>| outcome.map_err(|e| e.kind());
        let failed = reset(outcome(&mut *wire, &poller));
        assert_eq!(failed, Err(io::ErrorKind::ConnectionReset));
        // A queue pair whose bytes are being copied ends the connection later.
        poller.look();
        wire.may_read();
        let failed = reset(read(&mut *wire, &mut [0; 8]));
        assert_eq!(failed, Err(io::ErrorKind::ConnectionReset));
    }

    #[test]
    fn the_end_of_a_later_socket_does_not_end_the_bytes_before_it() {
        let poller = Poller::new().unwrap();
        let [ours, mut theirs] = pairs();
        let mut wire = bundle(ours, &poller);
        drop(theirs.split_off(1));
        sleep(Duration::from_millis(20));
        poller.look();
        wire.may_read();
        assert!(waits(&read(&mut *wire, &mut [0; 8])));
        theirs[0].write_all(b"last").unwrap();
        assert_eq!(outcome(&mut *wire, &poller).unwrap(), 4);
        drop(theirs);
        assert_eq!(outcome(&mut *wire, &poller).unwrap(), 0);
    }
}
