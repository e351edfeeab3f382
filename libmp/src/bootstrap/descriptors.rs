//! Passing of file descriptors between the ranks of one host: datagrams on Unix sockets, each with
//! one descriptor and a proof that its sender belongs to the job.
//!
//! A socket's name is abstract: it disappears with its process. It is derived from the job's
//! secret, so that no process outside the job can bind it first.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::bytes::{Bytes, Malformed};
use super::inbox::Inbox;
use super::secret::Proof;
use super::{PASS, RECEIVE_FD, Secret, gone, lock, too_many};
use crate::error::{Error, Kind, Result};

/// Length of a datagram in bytes: {magic, sender, topic, proof}.
const LEN: usize = 8 + 4 + 8 + 32;

const MAGIC: [u8; 8] = *b"mp-fd\0\0\x01";

/// Most datagrams that one call reads.
const MAX_DATAGRAMS: usize = 64;

/// The data beside a descriptor in a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    from: u32,
    topic: u64,
}

impl Note {
    fn proof(self, secret: &Secret, job: u64, to: u32) -> Proof {
        let parts: [&[u8]; 4] = [
            &job.to_le_bytes(),
            &self.from.to_le_bytes(),
            &to.to_le_bytes(),
            &self.topic.to_le_bytes(),
        ];
        secret.proof("descriptor", &parts)
    }

    fn encode(self, proof: Proof) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.from.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.topic.to_le_bytes());
        bytes[20..].copy_from_slice(proof.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<(Note, Proof), Malformed> {
        let mut bytes = Bytes(bytes, "the datagram is too short");
        if bytes.array()? != MAGIC {
            return Err(Malformed("the datagram has another version"));
        }
        let (from, topic) = (bytes.u32()?, bytes.u64()?);
        let proof = Proof::from_bytes(bytes.array()?);
        bytes.end("the datagram has trailing bytes")?;
        Ok((Note { from, topic }, proof))
    }
}

/// Whether the bytes of a datagram decode as a note.
pub(super) fn is_note(bytes: &[u8]) -> bool {
    Note::decode(bytes).is_ok()
}

/// The socket on which a rank sends and receives descriptors.
#[derive(Debug)]
pub(super) struct Descriptors {
    socket: OwnedFd,
    secret: Secret,
    job: u64,
    rank: u32,
    /// Descriptors that have arrived.
    inbox: Mutex<Inbox>,
}

impl Descriptors {
    /// Opens the socket of `rank`, whose name only holders of the secret can derive.
    ///
    /// # Errors
    /// `Protocol` if another process has bound the name, `System` if the socket cannot be opened.
    pub fn open(secret: &Secret, job: u64, rank: u32) -> Result<Descriptors> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        let bound = socket.and_then(|socket| {
            rustix::net::bind(&socket, &address(secret, job, rank)?)?;
            Ok(socket)
        });
        let socket = bound.map_err(|e| {
            let (kind, what) = match e {
                Errno::ADDRINUSE => (
                    Kind::Protocol,
                    format!("another process is already rank {rank}; start each rank once"),
                ),
                _ => (
                    Kind::System,
                    format!("rank {rank} cannot open or bind its Unix socket"),
                ),
            };
            let error = Error::new("open descriptor socket", kind, what);
            error.with_rank(rank).with_source(e)
        })?;
        Ok(Descriptors {
            socket,
            secret: secret.clone(),
            job,
            rank,
            inbox: Mutex::default(),
        })
    }

    /// Sends a copy of a descriptor to the rank of this host that opened its socket with `secret`.
    ///
    /// # Errors
    /// `PeerFailed` if the rank is gone, `QueueFull` if it does not receive, `System` otherwise.
    pub fn send(&self, secret: &Secret, to: u32, topic: u64, fd: BorrowedFd<'_>) -> Result<()> {
        let from = self.rank;
        let note = Note { from, topic };
        let bytes = note.encode(note.proof(secret, self.job, to));
        let sent =
            address(secret, self.job, to).and_then(|address| self.say(&address, &bytes, &[fd]));
        match sent {
            Ok(()) => Ok(()),
            Err(Errno::CONNREFUSED) => Err(gone(to)),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS | Errno::INTR) => {
                Err(too_many(to))
            }
            Err(e) => {
                let what = format!("the call sendmsg to rank {to} failed");
                let error = Error::new(PASS, Kind::System, what).with_rank(to);
                Err(error.with_source(e))
            }
        }
    }

    /// Sends a datagram with at most 16 descriptors.
    fn say(
        &self,
        to: &SocketAddrUnix,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(fds));
        let (bytes, flags) = ([IoSlice::new(bytes)], SendFlags::NOSIGNAL);
        rustix::net::sendmsg_addr(&self.socket, to, &bytes, &mut control, flags).map(drop)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        lock(&self.inbox)
    }

    /// Drops the descriptors that have arrived under `topic` and those that arrive later.
    pub fn forget(&self, topic: u64) {
        self.inbox().forget(topic);
    }

    /// Takes the next descriptor under `topic`, in a job of `size` ranks.
    ///
    /// # Errors
    /// `System` if the socket is unusable.
    pub fn take(&self, size: u32, topic: u64) -> Result<Option<(u32, OwnedFd)>> {
        let mut inbox = self.inbox();
        if let Some(fd) = inbox.take_fd(topic) {
            return Ok(Some(fd));
        }
        self.receive(size, &mut inbox)?;
        Ok(inbox.take_fd(topic))
    }

    /// Moves arrived datagrams into the inbox while it has room. Drops datagrams that do not come
    /// from a rank of the job.
    fn receive(&self, size: u32, inbox: &mut Inbox) -> Result<()> {
        for _ in 0..MAX_DATAGRAMS {
            if !inbox.has_room_for_fd() {
                break;
            }
            match self.next() {
                Ok(Some((note, fd))) if note.from < size => {
                    // The inbox returns the descriptor if its topic is forgotten; the drop closes
                    // it.
                    drop(inbox.push_fd(note.from, note.topic, fd));
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(e) => {
                    let error = Error::new(RECEIVE_FD, Kind::System, "the call recvmsg failed");
                    return Err(error.with_source(e));
                }
            }
        }
        Ok(())
    }

    /// The next datagram. None if it is not of this job or contains no descriptor.
    fn next(&self) -> rustix::io::Result<Option<(Note, OwnedFd)>> {
        let mut bytes = [0; LEN + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut into = [IoSliceMut::new(&mut bytes)];
        let message = rustix::net::recvmsg(self.socket.as_fd(), &mut into, &mut control, flags)?;
        let mut fd = None;
        for item in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = item {
                fd = rights.last();
            }
        }
        let cut = ReturnFlags::CTRUNC | ReturnFlags::TRUNC;
        if message.flags.intersects(cut) {
            return Ok(None);
        }
        let Ok((note, proof)) = Note::decode(&bytes[..message.bytes]) else {
            return Ok(None);
        };
        let ours = proof == note.proof(&self.secret, self.job, self.rank);
        Ok(fd.filter(|_| ours).map(|fd| (note, fd)))
    }
}

/// The name of a rank's socket.
fn address(secret: &Secret, job: u64, rank: u32) -> rustix::io::Result<SocketAddrUnix> {
    let name = secret.proof("socket", &[&job.to_le_bytes(), &rank.to_le_bytes()]);
    SocketAddrUnix::new_abstract_name(format!("mp-{}", name.to_hex()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(to: &Descriptors, topic: u64) -> Option<u32> {
        to.take(2, topic).unwrap().map(|(from, _)| from)
    }

    #[test]
    fn descriptors_from_outside_the_job_are_dropped() {
        let (ours, theirs) = (Secret::random().unwrap(), Secret::random().unwrap());
        let a = Descriptors::open(&ours, 7, 0).unwrap();
        let b = Descriptors::open(&ours, 7, 1).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        a.send(&ours, 1, 5, file.as_fd()).unwrap();
        assert_eq!(received(&b, 5), Some(0));

        // A sender without the secret, and malformed datagrams.
        let to = address(&ours, 7, 1).unwrap();
        let note = Note { from: 0, topic: 5 };
        let stranger = note.encode(note.proof(&theirs, 7, 1));
        let of_another_job = note.encode(note.proof(&ours, 8, 1));
        let for_another = note.encode(note.proof(&ours, 7, 0));
        let right = note.encode(note.proof(&ours, 7, 1));
        let cases: [&[u8]; 6] = [
            &stranger,
            &of_another_job,
            &for_another,
            &right[..LEN - 1],
            &[right.as_slice(), &[0]].concat(),
            b"",
        ];
        for bytes in cases {
            a.say(&to, bytes, &[file.as_fd()]).unwrap();
        }
        // Too many descriptors, and a sender that is not a rank of the job.
        a.say(&to, &right, &[file.as_fd(); 16]).unwrap();
        let of_none = Note { from: 2, topic: 5 };
        let of_none = of_none.encode(of_none.proof(&ours, 7, 1));
        a.say(&to, &of_none, &[file.as_fd()]).unwrap();
        // A valid datagram without a descriptor.
        rustix::net::sendto(&a.socket, &right, SendFlags::empty(), &to).unwrap();
        assert_eq!(received(&b, 5), None);
        assert_eq!(received(&b, 5), None);
        a.send(&ours, 1, 5, file.as_fd()).unwrap();
        assert_eq!(received(&b, 5), Some(0));

        drop(b);
        let e = a.send(&ours, 1, 5, file.as_fd()).unwrap_err();
        assert_eq!(e.rank(), Some(1));
        assert!(matches!(e.kind(), Kind::PeerFailed(_)));
    }

    /// Every user of the host can read the socket's name and send to it. The socket's queue holds
    /// foreign datagrams until the rank reads and drops them.
    #[test]
    fn foreign_datagrams_are_drained_from_the_socket() {
        let (ours, theirs) = (Secret::random().unwrap(), Secret::random().unwrap());
        let a = Descriptors::open(&ours, 7, 0).unwrap();
        let b = Descriptors::open(&ours, 7, 1).unwrap();
        let stranger = Descriptors::open(&theirs, 7, 0).unwrap();
        let to = address(&ours, 7, 1).unwrap();
        let note = Note { from: 0, topic: 5 };
        let bytes = note.encode(note.proof(&theirs, 7, 1));
        let flags = SendFlags::DONTWAIT;
        while rustix::net::sendto(&stranger.socket, &bytes, flags, &to).is_ok() {}
        let file = std::fs::File::open("/dev/null").unwrap();
        let e = a.send(&ours, 1, 5, file.as_fd()).unwrap_err();
        assert_eq!(e.kind(), Kind::QueueFull, "{e}");
        while rustix::net::sendto(&stranger.socket, &bytes, flags, &to).is_err() {
            assert_eq!(received(&b, 5), None);
        }
        assert_eq!(received(&b, 5), None);
        a.send(&ours, 1, 5, file.as_fd()).unwrap();
        assert_eq!(received(&b, 5), Some(0));
    }
}
