//! [`Directory`]: the bootstrap of ranks that meet in a directory, without a network and without a
//! thread; all belong to one user.
//!
//! The directory contains these entries; a rename puts each there complete:
//! - `rank-R`: rank R's note. The process of rank R holds a lock on it, so other ranks detect its
//!   death by the released lock.
//! - `job`: rank 0 writes it when all ranks have joined. It names the note of each rank, so that
//!   files of earlier jobs are never used.
//! - `to-R-..`: rank R's mailbox, one file per message, named by sender and number.

use std::collections::VecDeque;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use gds_step::deadline;

use super::inbox::{Inbox, room};
use super::notes::{JobNote, mail_name, parse_mail_name};
use super::slot::{RankSlot, private, put};
use super::{
    Bootstrap, MAX_MESSAGE, RECEIVE, SEND, Secret, WINDOW, check, check_host, fits, full, gone,
    key_of, lock,
};
use crate::error::{Error, Kind, Result};

/// One rank of a job whose ranks meet in a directory; they need no network and no secret.
///
/// The directory must belong to the user, and other users must not be able to write to it: this
/// protects the job. It may be shared by several hosts if its file system has locks. A poll for
/// messages lists the rank's mailbox, so this suits jobs of some dozen ranks. Other ranks detect
/// that the process of a rank has ended. When the value is dropped, the rank is gone and its files
/// are removed.
///
/// ```
/// use std::time::Duration;
///
/// use mp::Bootstrap;
/// use mp::bootstrap::Directory;
///
/// let path = std::env::temp_dir().join(format!("mp-job-{}", std::process::id()));
/// std::thread::scope(|ranks| {
///     for rank in 0..2 {
///         let path = &path; // in a job of processes each rank has the same path
///         ranks.spawn(move || {
///             let job = Directory::join(path, rank, 2, Duration::from_secs(10)).unwrap();
///             assert_eq!((job.rank(), job.size()), (rank, 2));
///         });
///     }
/// });
/// # std::fs::remove_dir_all(&path).unwrap();
/// ```
#[derive(Debug)]
pub struct Directory {
    slot: RankSlot,
    job: JobNote,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    inbox: Inbox,
    /// Indexed by rank.
    peers: Vec<Peer>,
}

#[derive(Clone, Debug, Default)]
struct Peer {
    /// The number of the next message to this peer.
    sending: u64,
    /// The number of the next message from this peer.
    receiving: u64,
    /// Number and room of each message that the peer may not have fetched yet.
    in_flight: VecDeque<(u64, u32)>,
    /// The sum of that room, in bytes.
    in_flight_room: u32,
    /// Whether the peer was found gone.
    gone: bool,
}

impl Directory {
    /// Joins as rank `rank` of `size` in the directory, creates it if it is absent (not its
    /// parents), and waits until all ranks have joined, at most `limit`.
    ///
    /// # Errors
    /// - `Missing`, with the numbers of the ranks that have not joined within `limit`.
    /// - `Invalid` if the directory does not belong to the user or other users can write to it, or
    ///   if the job has no rank `rank`, or more than 65,536 ranks.
    /// - `Protocol` if another process is this rank, or if another rank has another job size.
    /// - `System` if files cannot be written or read.
    pub fn join(path: &Path, rank: u32, size: u32, limit: Duration) -> Result<Directory> {
        Directory::join_in(path, rank, size, limit, false)
    }

    /// As [`join`](Directory::join). The last rank that leaves removes a `temporary` directory.
    pub(super) fn join_in(
        path: &Path,
        rank: u32,
        size: u32,
        limit: Duration,
        temporary: bool,
    ) -> Result<Directory> {
        fits(rank, size)?;
        let end = deadline(limit);
        private(path)?;
        let slot = RankSlot::take(path, rank, size, temporary)?;
        let job = slot.wait(limit, end)?;
        slot.clean()?;
        let peers = vec![Peer::default(); size as usize];
        let inbox = Inbox::default();
        Ok(Directory {
            slot,
            job,
            state: Mutex::new(State { inbox, peers }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Moves messages from this rank's mailbox to the inbox, in the order of each sender, while
    /// there is room.
    fn fetch(&self, state: &mut State) -> Result<()> {
        let mailbox = self.slot.mailbox();
        let failed = |e| {
            let what = format!("the mailbox {} cannot be read", mailbox.display());
            Error::new(RECEIVE, Kind::System, what).with_source(e)
        };
        let mut mail = Vec::new();
        for entry in fs::read_dir(&mailbox).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            mail.extend(name.to_str().and_then(parse_mail_name));
        }
        mail.sort_unstable_by_key(|(from, number)| (*number, *from));
        for (from, number) in mail {
            // A listing may show a message and miss an earlier one; the next listing shows both.
            let peer = state.peers.get_mut(from as usize);
            let Some(peer) = peer.filter(|p| p.receiving == number) else {
                continue;
            };
            let path = mailbox.join(mail_name(from, number));
            let Some((topic, message)) = open(&path).map_err(failed)? else {
                let what = format!("a control message of rank {from} has an invalid length");
                return Err(Error::new(RECEIVE, Kind::Protocol, what).with_rank(from));
            };
            if !state.inbox.has_room(from, message.len()) {
                continue;
            }
            state.inbox.push(from, topic, message);
            peer.receiving += 1;
            fs::remove_file(&path).map_err(failed)?;
        }
        Ok(())
    }

    /// Whether a message of `len` bytes to `to` has room. Checks first what the peer has fetched.
    fn has_room(&self, peer: &mut Peer, to: u32, len: usize) -> bool {
        let mailbox = self.slot.mailbox_of(to, &self.job.ranks[to as usize].1);
        while peer.in_flight_room + room(len) > WINDOW {
            let Some((number, taken)) = peer.in_flight.front().copied() else {
                return true;
            };
            if mailbox.join(mail_name(self.slot.rank(), number)).exists() {
                return false;
            }
            peer.in_flight.pop_front();
            peer.in_flight_room -= taken;
        }
        true
    }
}

/// Topic and bytes of the message in a file. None if the file is not a message.
fn open(path: &Path) -> std::io::Result<Option<(u64, Vec<u8>)>> {
    let mut bytes = Vec::new();
    let longest = (8 + MAX_MESSAGE + 1) as u64;
    fs::File::open(path)?
        .take(longest)
        .read_to_end(&mut bytes)?;
    let whole = bytes.split_first_chunk::<8>();
    let fits = whole.filter(|(_, message)| message.len() <= MAX_MESSAGE);
    Ok(fits.map(|(topic, message)| (u64::from_le_bytes(*topic), message.to_vec())))
}

impl Bootstrap for Directory {
    fn rank(&self) -> u32 {
        self.slot.rank()
    }

    fn size(&self) -> u32 {
        self.job.ranks.len() as u32
    }

    fn job(&self) -> u64 {
        self.job.job
    }

    fn send(&self, to: u32, topic: u64, message: &[u8]) -> Result<()> {
        check(self.size(), to, message)?;
        let from = self.rank();
        if Bootstrap::gone(self, to) {
            return Err(gone(to));
        }
        let mut state = self.state();
        if to == from {
            if !state.inbox.has_room(from, message.len()) {
                return Err(full(to));
            }
            state.inbox.push(from, topic, message.to_vec());
            return Ok(());
        }
        let peer = &mut state.peers[to as usize];
        if !self.has_room(peer, to, message.len()) {
            return Err(full(to));
        }
        let mailbox = self.slot.mailbox_of(to, &self.job.ranks[to as usize].1);
        let bytes = [&topic.to_le_bytes(), message].concat();
        match put(&mailbox, &mail_name(from, peer.sending), &bytes) {
            Ok(()) => {}
            // The rank left after the check above.
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(gone(to)),
            Err(e) => {
                let shown = mailbox.display();
                let what = format!("the mailbox {shown} of rank {to} cannot be written");
                let error = Error::new(SEND, Kind::System, what).with_rank(to);
                return Err(error.with_source(e));
            }
        }
        let taken = room(message.len());
        peer.in_flight.push_back((peer.sending, taken));
        peer.in_flight_room += taken;
        peer.sending += 1;
        Ok(())
    }

    fn receive(&self, topic: u64) -> Result<Option<(u32, Vec<u8>)>> {
        let mut state = self.state();
        if let Some(message) = state.inbox.take(topic) {
            return Ok(Some(message));
        }
        self.fetch(&mut state)?;
        Ok(state.inbox.take(topic))
    }

    fn forget(&self, topic: u64) {
        self.state().inbox.forget(topic);
        self.slot.descriptors().forget(topic);
    }

    fn is_forgotten(&self, topic: u64) -> bool {
        self.state().inbox.is_forgotten(topic)
    }

    fn gone(&self, rank: u32) -> bool {
        let Some((_, nonce)) = self.job.ranks.get(rank as usize) else {
            return false;
        };
        if rank == self.rank() {
            return false;
        }
        if self.state().peers[rank as usize].gone {
            return true;
        }
        // The lock on the state is not held here, because the file system may be slow.
        let gone = !self.slot.lives(rank, nonce);
        if gone {
            self.state().peers[rank as usize].gone = true;
        }
        gone
    }

    fn host(&self, rank: u32) -> Option<u64> {
        self.job.ranks.get(rank as usize).map(|(host, _)| *host)
    }

    fn key(&self) -> Option<[u8; 32]> {
        // Only processes of the user can read the random number of rank 0, in its note.
        let (_, nonce) = self.job.ranks.first()?;
        Some(key_of(&Secret::from_bytes(*nonce), self.job.job))
    }

    fn send_fd(&self, to: u32, topic: u64, fd: BorrowedFd<'_>) -> Result<()> {
        check_host(self, to)?;
        let secret = Secret::from_bytes(self.job.ranks[to as usize].1);
        self.slot.descriptors().send(&secret, to, topic, fd)
    }

    fn receive_fd(&self, topic: u64) -> Result<Option<(u32, OwnedFd)>> {
        self.slot.descriptors().take(self.size(), topic)
    }
}
