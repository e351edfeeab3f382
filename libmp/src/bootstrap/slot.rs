//! [`RankSlot`]: the files of one rank in a shared directory; how a rank takes them, waits for the
//! others, and removes them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::descriptors::Descriptors;
use super::host::host;
use super::notes::{JobNote, Member, RANK_NOTE, RankNote, mailbox_name, note_name};
use super::secret::{Nonce, random_bytes, random_number};
use super::wire::MAX_RANKS;
use super::{JOIN, Secret, missing};
use crate::error::{Error, Kind, Result};

/// The longest interval between two polls of the directory during the wait for the start.
const PAUSE: Duration = Duration::from_millis(10);

const JOB: &str = "job";

/// Bytes of the longest job note.
const MAX_JOB: u64 = 16 + 40 * MAX_RANKS as u64;

/// A rank's files. They are removed when the value is dropped.
#[derive(Debug)]
pub(super) struct RankSlot {
    path: PathBuf,
    note: RankNote,
    descriptors: Descriptors,
    /// The lock shows that the rank lives. It is held, never read.
    _lock: File,
    /// Whether the last rank removes the directory.
    temporary: bool,
}

/// Creates a directory that only this user can write to, or checks an existing one.
///
/// # Errors
/// `Invalid` if another user owns it or can write to it, `System`.
pub(super) fn private(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(system(path, e)),
        _ => {}
    }
    // A symbolic link is refused, because its owner could redirect it.
    let data = fs::symlink_metadata(path).map_err(|e| system(path, e))?;
    let shown = path.display();
    let what = if data.is_symlink() {
        format!("{shown} is a symbolic link; use the directory itself")
    } else if !data.is_dir() {
        format!("{shown} is not a directory; use another path")
    } else if data.uid() != rustix::process::geteuid().as_raw() {
        format!("{shown} belongs to another user; use a directory of this user")
    } else if data.mode() & 0o022 != 0 {
        format!("other users can write to {shown}; run `chmod go-w` on it")
    } else {
        return Ok(());
    };
    Err(Error::new(JOIN, Kind::Invalid, what))
}

/// Puts a complete file into a directory: writes it under a hidden name, then renames it.
pub(super) fn put(directory: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let hidden = directory.join(format!(".{name}"));
    let mut file = fresh(&hidden)?;
    file.write_all(bytes)?;
    fs::rename(&hidden, directory.join(name))
}

/// Creates a file that only the user can read.
fn fresh(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)
}

#[cold]
fn system(path: &Path, e: impl Into<std::io::Error>) -> Error {
    let what = format!("{} cannot be created, read or written", path.display());
    Error::new(JOIN, Kind::System, what).with_source(e.into())
}

impl RankSlot {
    /// Takes the slot of `rank`, and replaces the files of a dead process.
    ///
    /// # Errors
    /// `Protocol` if another process has it, `System`.
    pub fn take(path: &Path, rank: u32, size: u32, temporary: bool) -> Result<RankSlot> {
        if let Some(there) = read_note(path, rank)
            && there.1
        {
            return Err(duplicate_rank(rank));
        }
        let note = RankNote {
            rank,
            size,
            host: host(),
            nonce: random_bytes()?,
        };
        let failed = |e: std::io::Error| system(path, e);
        // Mailbox and socket exist and the note is locked before other ranks see the note.
        let mailbox = mailbox_name(rank, &note.nonce);
        let made = DirBuilder::new().mode(0o700).create(path.join(&mailbox));
        made.map_err(failed)?;
        let secret = Secret::from_bytes(note.nonce);
        let descriptors = Descriptors::open(&secret, 0, rank)?;
        if rank == 0 {
            remove(&path.join(JOB)).map_err(failed)?;
        }
        let hidden = path.join(format!(".{}-{mailbox}", note_name(rank)));
        let mut lock = fresh(&hidden).map_err(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|e| system(path, e))?;
        lock.write_all(&note.encode()).map_err(failed)?;
        fs::rename(&hidden, path.join(note_name(rank))).map_err(failed)?;
        Ok(RankSlot {
            path: path.to_path_buf(),
            note,
            descriptors,
            _lock: lock,
            temporary,
        })
    }

    /// Waits until all ranks have joined.
    ///
    /// # Errors
    /// `Missing`, `Protocol`, `System`.
    pub fn wait(&self, limit: Duration, end: Instant) -> Result<JobNote> {
        let rank = self.note.rank;
        let mut pause = Duration::from_millis(1);
        loop {
            if !read_note(&self.path, rank).is_some_and(|(note, _)| note == self.note) {
                // Two processes took the slot at the same time, and the note of the other one is in
                // place.
                return Err(duplicate_rank(rank));
            }
            if rank == 0 {
                let (ranks, missing) = self.gather()?;
                if missing.is_empty() {
                    let job = random_number()?;
                    let note = JobNote { job, ranks };
                    let written = put(&self.path, JOB, &note.encode());
                    return written.map(|()| note).map_err(|e| system(&self.path, e));
                }
            } else if let Some(note) = self.job()? {
                return Ok(note);
            }
            if Instant::now() >= end {
                return Err(match &self.gather()?.1[..] {
                    // Rank 0 has joined and has not written the job note: it was too slow, or is
                    // writing it now.
                    [] => missing(limit, 1, &[0]),
                    some => missing(limit, some.len() as u32, some),
                });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE);
        }
    }

    /// The ranks that have joined, and the numbers of those that have not.
    fn gather(&self) -> Result<(Vec<Member>, Vec<u32>)> {
        let size = self.note.size;
        let (mut ranks, mut missing) = (Vec::new(), Vec::new());
        for rank in 0..size {
            match read_note(&self.path, rank) {
                Some((note, true)) if note.size != size => {
                    let what = format!(
                        "rank {rank} expects {} ranks, and this rank expects {size}; start all \
                         with one number of ranks",
                        note.size
                    );
                    return Err(Error::new(JOIN, Kind::Protocol, what).with_rank(rank));
                }
                Some((note, true)) => ranks.push((note.host, note.nonce)),
                _ => missing.push(rank),
            }
        }
        Ok((ranks, missing))
    }

    /// The job's note, if it names this rank's note.
    fn job(&self) -> Result<Option<JobNote>> {
        let path = self.path.join(JOB);
        let mut bytes = Vec::new();
        match File::open(&path).and_then(|f| f.take(MAX_JOB + 1).read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(system(&path, e)),
        }
        let note = JobNote::decode(&bytes).map_err(|e| {
            let what = format!("the file {} of the job is malformed: {e}", path.display());
            Error::new(JOIN, Kind::Protocol, what)
        })?;
        let ours = note.ranks.get(self.note.rank as usize);
        let ours = ours.is_some_and(|(_, nonce)| *nonce == self.note.nonce);
        Ok((ours && note.ranks.len() == self.note.size as usize).then_some(note))
    }

    /// Removes the files of earlier processes of this rank. The caller calls it only once the job
    /// has started: before then, a file could belong to a process that took the slot at the same
    /// time.
    pub fn clean(&self) -> Result<()> {
        let failed = |e: std::io::Error| system(&self.path, e);
        let rank = self.note.rank;
        let ours = mailbox_name(rank, &self.note.nonce);
        let (mail, notes) = (format!("to-{rank}-"), format!(".rank-{rank}-"));
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // A file that is already gone needs no removal.
            if name.starts_with(&mail) && name != ours {
                let _ = fs::remove_dir_all(entry.path());
            } else if name.starts_with(&notes) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    /// The number of this rank.
    pub fn rank(&self) -> u32 {
        self.note.rank
    }

    /// The socket for descriptors of this rank.
    pub fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// The path of this rank's mailbox.
    pub fn mailbox(&self) -> PathBuf {
        self.mailbox_of(self.note.rank, &self.note.nonce)
    }

    /// The path of another rank's mailbox.
    pub fn mailbox_of(&self, rank: u32, nonce: &Nonce) -> PathBuf {
        self.path.join(mailbox_name(rank, nonce))
    }

    /// Whether the rank with this nonce still lives.
    pub fn lives(&self, rank: u32, nonce: &Nonce) -> bool {
        read_note(&self.path, rank).is_some_and(|(note, locked)| locked && note.nonce == *nonce)
    }
}

impl Drop for RankSlot {
    fn drop(&mut self) {
        // The next process that takes this slot removes what cannot be removed here.
        let _ = fs::remove_dir_all(self.mailbox());
        let RankNote { rank, nonce, .. } = self.note;
        if read_note(&self.path, rank).is_some_and(|(note, _)| note.nonce == nonce) {
            let _ = remove(&self.path.join(note_name(rank)));
        }
        if !any_rank_lives(&self.path) {
            if self.temporary {
                let _ = fs::remove_dir_all(&self.path);
            } else if matches!(self.job(), Ok(Some(_))) {
                let _ = remove(&self.path.join(JOB));
            }
        }
    }
}

/// Whether any rank with a note in the directory lives.
pub(super) fn any_rank_lives(path: &Path) -> bool {
    let lives = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name();
        let rank = name.to_str()?.strip_prefix("rank-")?.parse().ok()?;
        read_note(path, rank).filter(|(_, locked)| *locked)
    };
    fs::read_dir(path).is_ok_and(|mut entries| entries.any(|e| lives(e).is_some()))
}

/// Removes a file if it exists.
fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// A rank's note, and whether its process lives. None if there is no note.
fn read_note(path: &Path, rank: u32) -> Option<(RankNote, bool)> {
    let file = File::open(path.join(note_name(rank))).ok()?;
    let locked = match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => false,
        Err(e) => e == Errno::WOULDBLOCK,
    };
    let mut bytes = Vec::new();
    file.take(RANK_NOTE as u64 + 1)
        .read_to_end(&mut bytes)
        .ok()?;
    let note = RankNote::decode(&bytes).ok()?;
    (note.rank == rank).then_some((note, locked))
}

#[cold]
fn duplicate_rank(rank: u32) -> Error {
    let what = format!("another process is already rank {rank}; start each rank once");
    Error::new(JOIN, Kind::Protocol, what).with_rank(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_alive_while_its_own_note_is_locked() {
        let directory = std::env::temp_dir().join(format!("mp-test-slot-{}", std::process::id()));
        private(&directory).unwrap();
        let first = RankSlot::take(&directory, 1, 2, true).unwrap();
        let nonce = first.note.nonce;
        assert!(first.lives(1, &nonce));
        // A note under another rank's name, and a note that no process has locked.
        let (note, other) = (directory.join(note_name(1)), directory.join(note_name(0)));
        fs::hard_link(&note, &other).unwrap();
        assert!(read_note(&directory, 0).is_none());
        remove(&other).unwrap();
        let copy = fs::read(&note).unwrap();
        put(&directory, &note_name(1), &copy).unwrap();
        assert!(!first.lives(1, &nonce));
        remove(&note).unwrap();
        let second = RankSlot::take(&directory, 1, 2, true).unwrap();
        assert!(second.lives(1, &second.note.nonce) && !second.lives(1, &nonce));
        // A rank whose note is not locked has not joined.
        let absent = RankNote {
            rank: 0,
            ..first.note
        };
        put(&directory, &note_name(0), &absent.encode()).unwrap();
        assert_eq!(second.gather().unwrap().1, [0]);
        drop((first, second));
        assert!(!directory.exists());
    }
}
