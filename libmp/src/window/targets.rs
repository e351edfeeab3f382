//! [`Targets`]: the memory of a window, of this rank and of the ranks that have named theirs, and
//! the check of offsets.

use std::fmt::Display;
use std::sync::OnceLock;

use gdsync::gpu::Word64;

use crate::error::{Error, Kind, Result};
use crate::path::{Path, Paths, Remote, Rights, Span};
use crate::region::{Memory, Slice};
use crate::request::transfer::UsedLanes;
use crate::wire::control::Control;
use crate::wire::record::Record;

/// Length of a word in bytes.
pub(super) const WORD: usize = 8;

/// The memory of one rank in a window.
pub(crate) struct Target {
    remote: Remote,
    /// The memory on the path of atomics: that of the queue pairs also if puts are copies, because the
    /// device executes the atomics of ranks of other hosts.
    atomics: Remote,
    /// The lanes on which puts to the rank were posted.
    pub lanes: UsedLanes,
}

/// The memory of a window.
pub(crate) struct Targets {
    /// The memory of this rank.
    pub memory: Memory,
    /// By rank: its memory, once it is known.
    targets: Vec<OnceLock<Target>>,
    /// Memory for the results of the READs of [`quiet`](crate::Window::quiet), which are not used.
    pub scratch: Memory,
}

impl Targets {
    /// A window with `memory` of this rank, and with none of other ranks yet.
    ///
    /// # Errors
    /// `Invalid` for memory of another context, or that is shorter than a word.
    pub fn new(paths: &Paths, size: u32, memory: &Memory) -> Result<Targets> {
        const OPERATION: &str = "make window";
        paths.check(OPERATION, memory.keys(), memory)?;
        if memory.len() < WORD {
            let what = format!("{memory:?} is too short for a window, which has at least a word");
            return Err(Error::new(OPERATION, Kind::Invalid, what).with_limit(WORD, "bytes"));
        }
        Ok(Targets {
            memory: memory.clone(),
            targets: (0..size).map(|_| OnceLock::new()).collect(),
            scratch: Memory::new(paths.pinned(WORD, Rights::Landing)?),
        })
    }

    /// The bytes that name this rank's memory, for [`Targets::attach`] of any rank.
    pub fn record(&self, rank: u32) -> Vec<u8> {
        let block = self.memory.keys().all_records();
        let number = 0;
        Control::Window {
            number,
            rank,
            block,
        }
        .encode()
    }

    /// The rank that made a record, and its memory.
    ///
    /// # Errors
    /// `Protocol` for bytes that are not a record.
    pub fn named(record: &[u8]) -> Result<(u32, Vec<Record>)> {
        match Control::decode(record)? {
            Control::Window { rank, block, .. } => Ok((rank, block)),
            _ => {
                let what = "the bytes are not the record of a window; pass those that \
                            Window::record returned";
                Err(Error::new("attach window", Kind::Protocol, what))
            }
        }
    }

    /// Adds the memory of this rank itself, `rank`.
    pub fn add_own(&self, rank: u32) -> Result<()> {
        let ways = [Path::Local; 2];
        self.add(ways, rank, &self.memory.keys().records(ways)?)
    }

    /// Adds the memory of `rank`, which these [ways](Paths::ways) reach.
    pub fn add(&self, ways: [Path; 2], rank: u32, block: &[Record]) -> Result<()> {
        const OPERATION: &str = "attach window";
        let cell = self.cell(OPERATION, rank)?;
        let read = |path| Remote::any(path, block).map_err(|e| e.with_rank(rank));
        let remote = read(Remote::path(ways, block))?;
        let atomics = match ways {
            [Path::Ipc, queues] => read(queues)?,
            _ => remote,
        };
        let target = Target {
            remote,
            atomics,
            lanes: UsedLanes::default(),
        };
        cell.set(target).map_err(|_| {
            let what = format!("the window has memory of rank {rank} already; attach it once");
            Error::new(OPERATION, Kind::Busy, what).with_rank(rank)
        })
    }

    fn cell(&self, operation: &'static str, rank: u32) -> Result<&OnceLock<Target>> {
        self.targets.get(rank as usize).ok_or_else(|| {
            let size = self.targets.len() as u32;
            Error::outside_job(operation, rank, size)
        })
    }

    /// The memory of `rank`.
    ///
    /// # Errors
    /// `Invalid` for a rank outside the job or whose memory is not known.
    pub fn of(&self, operation: &'static str, rank: u32) -> Result<&Target> {
        self.cell(operation, rank)?.get().ok_or_else(|| {
            let what =
                format!("the window has no memory of rank {rank}; add it with Window::attach");
            Error::new(operation, Kind::Invalid, what).with_rank(rank)
        })
    }

    /// Whether the memory of `rank` is known.
    pub fn has(&self, rank: u32) -> bool {
        self.of("look up window", rank).is_ok()
    }

    /// The memory of all ranks whose memory is known.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Target)> {
        let targets = (0..).zip(&self.targets);
        targets.filter_map(|(rank, target)| Some((rank, target.get()?)))
    }

    /// A word of this rank's own memory.
    ///
    /// # Errors
    /// `Invalid` for an offset beyond the memory, or that is not a multiple of 8.
    pub fn word(&self, operation: &'static str, offset: u64) -> Result<(Word64, Slice)> {
        let len = self.memory.len() as u64;
        let window = &"this rank's window";
        check(operation, window, (offset, WORD), len)?;
        let region = self.memory.region();
        aligned(operation, window, region.addr().0, offset)?;
        let offset = offset as usize;
        Ok((region.word64(offset)?, self.memory.slice(offset, WORD)?))
    }
}

impl Target {
    /// The path of puts and gets to the memory, which is that of another rank.
    pub fn path(&self) -> Path {
        match self.remote {
            Remote::Nic(remote) => remote.path(),
            Remote::Copy(_) => Path::Ipc,
        }
    }

    /// The length of the memory in bytes.
    pub fn len(&self) -> u64 {
        self.remote.len()
    }

    /// The `len` bytes at `offset`; `word`: they are a word.
    ///
    /// # Errors
    /// `Invalid`, with the window's length as the limit, if they exceed it.
    #[inline]
    pub fn span(
        &self,
        operation: &'static str,
        rank: u32,
        (offset, len): (u64, usize),
        word: bool,
    ) -> Result<Span> {
        let window = &format_args!("the window of rank {rank}");
        let checked = check(operation, window, (offset, len), self.len());
        let checked = checked.and_then(|()| match word {
            true => aligned(operation, window, self.remote.addr(), offset),
            false => Ok(()),
        });
        checked.map_err(|e| e.with_rank(rank))?;
        self.remote.span(offset as usize, len)
    }

    /// The word at `offset`, which [`Target::span`] has checked, for atomics.
    pub fn atomic(&self, offset: u64) -> Result<Span> {
        self.atomics.span(offset as usize, WORD)
    }
}

/// Checks that `len` bytes at `offset` are in a window of `room` bytes.
#[inline]
fn check(
    operation: &'static str,
    window: &dyn Display,
    (offset, len): (u64, usize),
    room: u64,
) -> Result<()> {
    if offset
        .checked_add(len as u64)
        .is_some_and(|end| end <= room)
    {
        return Ok(());
    }
    let what = format!("{len} bytes at offset {offset} exceed {window}");
    Err(Error::new(operation, Kind::Invalid, what).with_limit(room, "bytes"))
}

/// Checks that the word at `offset` of a window that starts at `base` is aligned.
#[inline]
fn aligned(operation: &'static str, window: &dyn Display, base: u64, offset: u64) -> Result<()> {
    if base.wrapping_add(offset).is_multiple_of(WORD as u64) {
        return Ok(());
    }
    let what = format!(
        "the word at offset {offset} of {window} is not aligned to 8 bytes; use an aligned offset"
    );
    Err(Error::new(operation, Kind::Invalid, what))
}
