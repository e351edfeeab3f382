//! [`Wire`]: the two directions of a connection as streams of bytes that do not block. [`Socket`] is one by
//! a socket.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, socket_with, sockopt};

use super::poller::{Interest, Polled, Poller};

/// Memory that a call of the system reads or writes. Devices may use it at the same time, so it is no
/// slice.
pub use libc::iovec;

/// The two directions of a connection. An end that has no bytes, or no room, answers `WouldBlock`.
pub trait Wire: Send {
    /// Reads into the memory, in order; 0 is the end of the peer's bytes.
    ///
    /// # Safety
    /// The memory is valid for writes.
    unsafe fn read(&mut self, into: &[iovec]) -> io::Result<usize>;

    /// Writes from the memory, in order.
    ///
    /// # Safety
    /// The memory is valid for reads.
    unsafe fn write(&mut self, from: &[iovec]) -> io::Result<usize>;

    /// Whether the connection may have bytes, by what the system reported since the last call.
    fn may_read(&mut self) -> bool;

    /// Whether the thread must wake when there is room.
    fn want_room(&mut self, wanted: bool);

    /// No more bytes are written; what the peer sends is read and dropped for a while, so that the
    /// system does not reset the connection before the peer has read the last bytes.
    fn close(self: Box<Self>);
}

/// Memory for a call of the system.
pub fn piece(at: *const u8, len: usize) -> iovec {
    iovec {
        iov_base: at.cast_mut().cast(),
        iov_len: len,
    }
}

/// A connection by one socket, or by a pair of them for a queue pair that is connected to itself.
pub struct Socket {
    read: Polled<OwnedFd>,
    /// The end that is written, if it is not the same.
    write: Option<Polled<OwnedFd>>,
    poller: Poller,
    /// What the poller reports of the end that is written.
    interest: Interest,
    /// Whether the last write found no room. The next one waits for a report, which comes when a third of
    /// the room is free: a thread that polls would write few bytes at a time.
    full: bool,
}

impl Socket {
    /// A connection by a socket of this poller.
    pub fn over(stream: Polled<TcpStream>, poller: &Poller) -> Socket {
        poller.set(&*stream, Interest::BYTES);
        Socket {
            read: stream.map(OwnedFd::from),
            write: None,
            poller: poller.clone(),
            interest: Interest::BYTES,
            full: false,
        }
    }

    /// A connection of a queue pair to itself.
    pub fn to_itself(poller: &Poller) -> io::Result<Socket> {
        let (read, write) = UnixStream::pair()?;
        for end in [&read, &write] {
            end.set_nonblocking(true)?;
        }
        let write = poller.add(write.into(), Interest::BYTES)?;
        Ok(Socket {
            read: poller.add(read.into(), Interest::BYTES)?,
            write: Some(write),
            poller: poller.clone(),
            interest: Interest::BYTES,
            full: false,
        })
    }

    /// Whether the thread must wake when there are bytes. Not for a pair.
    pub fn want_bytes(&mut self, wanted: bool) {
        self.want(Interest {
            bytes: wanted,
            ..self.interest
        });
    }

    fn want(&mut self, interest: Interest) {
        if self.interest != interest && self.poller.set(self.writes(), interest) {
            self.interest = interest;
        }
    }

    /// The error of the connection, if it has failed.
    pub fn failure(&self) -> Option<Errno> {
        match sockopt::socket_error(&*self.read) {
            Ok(Ok(())) => None,
            Ok(Err(e)) | Err(e) => Some(e),
        }
    }

    /// As [`Wire::close`].
    pub fn end(self) {
        let read = self.read.leave();
        if self.write.is_none() {
            let _ = rustix::net::shutdown(&read, Shutdown::Write);
            self.poller.linger(read);
        }
    }

    fn writes(&self) -> &OwnedFd {
        self.write.as_deref().unwrap_or(&self.read)
    }

    /// Writes without a look at what the poller reported.
    ///
    /// # Safety
    /// As [`Wire::write`].
    unsafe fn put(&self, from: &[iovec]) -> io::Result<usize> {
        let fd = self.writes().as_raw_fd();
        if let [one] = from {
            // SAFETY: a live socket; the caller's promise for the memory. A closed peer is an error,
            // no signal.
            let n = unsafe { libc::send(fd, one.iov_base, one.iov_len, libc::MSG_NOSIGNAL) };
            return counted(n);
        }
        // SAFETY: a structure of numbers and pointers, all zero.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = from.as_ptr().cast_mut();
        message.msg_iovlen = from.len();
        // SAFETY: as above.
        counted(unsafe { libc::sendmsg(fd, &message, libc::MSG_NOSIGNAL) })
    }
}

fn counted(n: isize) -> io::Result<usize> {
    match n {
        0.. => Ok(n as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Wire for Socket {
    unsafe fn read(&mut self, into: &[iovec]) -> io::Result<usize> {
        let fd = self.read.as_raw_fd();
        counted(match into {
            // Of both calls the cheaper.
            // SAFETY: a live socket; the caller's promise for the memory.
            [one] => unsafe { libc::recv(fd, one.iov_base, one.iov_len, 0) },
            // SAFETY: as above.
            _ => unsafe { libc::readv(fd, into.as_ptr(), into.len() as i32) },
        })
    }

    unsafe fn write(&mut self, from: &[iovec]) -> io::Result<usize> {
        if self.full && self.interest.room && !self.poller.take_room(self.writes()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // SAFETY: the caller's promise.
        let written = unsafe { self.put(from) };
        let would_block = |e: &io::Error| e.kind() == io::ErrorKind::WouldBlock;
        self.full = written.as_ref().is_err_and(would_block);
        written
    }

    fn may_read(&mut self) -> bool {
        self.poller.take(&*self.read)
    }

    fn want_room(&mut self, wanted: bool) {
        self.want(Interest {
            room: wanted,
            ..self.interest
        });
    }

    fn close(self: Box<Self>) {
        self.end();
    }
}

/// The congestion control of a connection whose ends have the same address: it has no network to share.
/// Others, such as BBR, limit the rate by an estimate.
const SAME_ADDRESS: &str = "cubic";

/// Sets the options of a connection: no delay of short segments, the congestion control, and
/// an end after `limit` without a sign of life from the peer's host.
pub fn prepare(stream: &TcpStream, limit: Option<Duration>) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    if stream.local_addr()?.ip() == stream.peer_addr()?.ip() {
        // If the system refuses it, the connection keeps that of the system.
        let _ = sockopt::set_tcp_congestion(stream, SAME_ADDRESS);
    }
    let Some(limit) = limit else {
        return Ok(());
    };
    let ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    // The system takes whole seconds here.
    let interval = Duration::from_secs(u64::from(ms / 4000).clamp(1, 32767));
    sockopt::set_tcp_user_timeout(stream, ms.max(1))?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, interval)?;
    sockopt::set_tcp_keepintvl(stream, interval)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

/// A socket that is being connected to `to`.
pub fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_to_the_same_address_uses_cubic_if_permitted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        sockopt::set_tcp_congestion(&stream, "reno").unwrap();
        prepare(&stream, None).unwrap();
        // The system may refuse it.
        let allowed = sockopt::set_tcp_congestion(&listener, SAME_ADDRESS).is_ok();
        let expected = match allowed {
            true => SAME_ADDRESS,
            false => "reno",
        };
        assert_eq!(sockopt::tcp_congestion(&stream).unwrap(), expected);
    }

    #[test]
    fn a_full_connection_is_written_behind_a_report_of_room() {
        let poller = Poller::new().unwrap();
        let mut wire = Socket::to_itself(&poller).unwrap();
        let mut bytes = [1_u8; 1 << 16];
        let part = [piece(bytes.as_mut_ptr(), bytes.len())];
        let full = |outcome: io::Result<usize>| match outcome {
            Ok(n) => n == 0,
            Err(e) => e.kind() == io::ErrorKind::WouldBlock,
        };
        for _ in 0..3 {
            // SAFETY: the bytes of this test.
            while !full(unsafe { wire.write(&part) }) {}
            wire.want_room(true);
            // SAFETY: as above.
            while !full(unsafe { wire.read(&part) }) {}
            // SAFETY: as above.
            assert!(full(unsafe { wire.write(&part) }), "nothing is reported");
            poller.look();
            // SAFETY: as above.
            assert!(!full(unsafe { wire.write(&part) }));
            // Reports are not needed where the last write found room.
            // SAFETY: as above.
            assert!(!full(unsafe { wire.write(&part) }));
        }
    }

    #[test]
    fn a_closed_connection_is_not_reported_while_a_forked_child_has_it() {
        let poller = Poller::new().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let stream = poller.add(stream, Interest::BYTES).unwrap();
        let mut copies = vec![stream.try_clone().unwrap().into()];
        let over = Socket::over(stream, &poller);
        let itself = Socket::to_itself(&poller).unwrap();
        for end in [&*itself.read, itself.writes()] {
            copies.push(end.try_clone().unwrap());
        }
        Box::new(over).close();
        Box::new(itself).close();
        // The peer closes its side.
        drop(listener);
        while poller.sweep(true) {}
        assert!(!poller.is_ready());
        drop(copies);
    }
}
