//! Paths: how bytes reach a peer. Each peer has one path, chosen once (`choice`).
//!
//! Messages need four operations of a path: put bytes into a peer's memory ([`Batch::put`]), put a
//! 64-bit word after them ([`Batch::announce`]), wait for a word in this rank's memory
//! ([`List::wait_for`]), and check that a put is done on this side ([`Lane::poll`]). Windows also
//! need a get ([`Batch::get`]), atomics ([`Batch::atomic`]) and an order of puts
//! ([`Batch::fence`]). [`Lists`] posts on the lanes of several peers at once. Messages of streams by
//! mapped memory also use flagged rooms, names and credits ([`Batch::flag`], [`Exported`],
//! [`Report`]). Only `nic` uses queue pairs, work requests and keys, and only `copy` uses WQEs in
//! memory.
//!
//! `nic` and `copy` have types of the same names; the types of this module are enums over them. The
//! paths of a rank to itself and to ranks of its host are both copies: `ipc` maps the memory of
//! other ranks. The paths by NICs and by TCP are both queue pairs, of two devices (`tcp`): what has
//! `nic` in its name is one of the two. A new path is a variant of [`Path`] and a kind of
//! [`wire::record::Record`](crate::wire::record::Record), by which ranks name their ends and their
//! memory; if it neither uses a queue pair nor copies, it is a folder beside these.

mod batch;
mod choice;
mod copy;
mod ipc;
mod lane;
mod link;
mod list;
mod lists;
mod memory;
mod nic;
mod order;
mod tcp;
mod word;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use gds_step::Time;
use gdsync::gpu::{GpuIdentity, MemoryKind, Region, Word32};
use gdsync::rdma::Device;
use gdsync::{Gpu, Stream};

use crate::error::{Error, Kind, Result};
use crate::kernels::Kernels;
use crate::wire::control::{Answer, Control, NicSort, Shape};
use crate::wire::record::{self, Record};

pub(crate) use batch::{Batch, Put};
pub use choice::PathChoice;
pub(crate) use choice::{Can, Choices, Chosen};
pub(crate) use copy::{Copier, Exported, Report, check_gpu};
pub(crate) use ipc::{Named, Shared, export, keys_in, refused};
pub(crate) use lane::Lane;
pub(crate) use link::{LANES, Link};
pub(crate) use list::List;
pub(crate) use lists::{Item, Lists, emptied, submissions};
pub(crate) use memory::{Keys, Piece, Remote, Span};
pub use nic::NicOptions;
pub(crate) use nic::{Rights, sort_of};
pub use order::WordOrder;
use tcp::Second;
pub(crate) use tcp::{TcpSetup, switch};
pub(crate) use word::Word;

/// Maximum number of pieces of one put.
pub(crate) const MOST_PIECES: usize = 30;
/// Maximum number of bytes of a put that are copied when it is prepared (inline).
pub(crate) const INLINE: usize = 256;
/// Maximum number of bytes of one put.
pub(crate) const MOST_BYTES: u64 = 1 << 30;

/// The path by which bytes reach a peer: from [`Context::path`](crate::Context::path).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Path {
    /// RDMA WRITEs through queue pairs of this rank's NIC, which reaches the peer's: to ranks of
    /// other hosts, and to those of this host that cannot map memory of this rank, or whose memory
    /// this rank cannot map.
    Nic,
    /// Copies within the memory of this rank's GPU and host: to the rank itself.
    Local,
    /// Copies into memory of another rank of this host, which this rank has mapped: by the CPU for
    /// what the CPU posts, by a kernel for what a stream posts. Atomics of windows use the NIC, or
    /// TCP, and so does memory that cannot be mapped ([`Context::window`](crate::Context::window)).
    Ipc,
    /// As [`Path::Nic`], by queue pairs that TCP connections carry and a CPU thread executes: to
    /// ranks that no NIC of this rank reaches.
    Tcp,
}

impl Path {
    /// The kind of the records of the path.
    fn record(self) -> u8 {
        match self {
            Path::Nic => record::NIC,
            Path::Local => record::LOCAL,
            Path::Ipc => record::IPC,
            Path::Tcp => record::TCP,
        }
    }

    /// Whether queue pairs write the messages, not copies.
    #[inline]
    pub(crate) fn has_queues(self) -> bool {
        matches!(self, Path::Nic | Path::Tcp)
    }
}

/// The paths of a rank, each opened once.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    choices: Choices,
    /// Whether the path to another rank is or may become [`Path::Ipc`].
    maps: bool,
    /// The NIC, or the TCP device of a rank without one.
    nic: nic::Nic,
    second: Second,
    copier: copy::Copier,
}

impl Paths {
    /// Opens the paths that `choices` selects: by `device`, and beside it by one that `tcp` opens when
    /// a rank needs it. Queue pairs fail after `timeout`, and store failures in `error`.
    ///
    /// # Errors
    /// `Invalid` for options out of range; errors of gdsync.
    pub fn open(
        choices: Choices,
        device: &Device,
        tcp: TcpSetup,
        options: &NicOptions,
        timeout: Duration,
        error: &Word32,
        kernels: Option<Arc<Kernels>>,
    ) -> Result<Paths> {
        let maps = choices.may_map();
        let mut nic = nic::Nic::open(choices.me, device, options, timeout, error)?;
        nic.alone = tcp.alone && nic.path == Path::Tcp;
        let second = Second::new(&nic, tcp, choices.may_use_tcp(false));
        if nic.path != Path::Tcp && choices.may_use_tcp(true) {
            // Before a message needs it: the errors of its options are those of the build.
            second.of(Path::Tcp)?;
        }
        Ok(Paths {
            nic,
            second,
            copier: copy::Copier::new(device.gpu(), kernels, maps),
            choices,
            maps,
        })
    }

    /// Paths for tests that need only memory; no test sends to this rank.
    #[cfg(test)]
    pub fn for_test(device: &Device) -> Paths {
        let word = device.gpu().alloc(MemoryKind::Pinned, 64).unwrap();
        let (options, error) = (NicOptions::default(), word.word32(0).unwrap());
        let kernels = Kernels::of(device.gpu()).ok().map(Arc::new);
        Paths::open(
            Choices::for_test(1 << 16, PathChoice::Nic, vec![None; 4]),
            device,
            TcpSetup::default(),
            &options,
            Duration::ZERO,
            &error,
            kernels,
        )
        .unwrap()
    }

    /// The same paths, by [`Path::Ipc`] to the first `ranks` ranks.
    #[cfg(test)]
    pub fn with_mapped(mut self, ranks: usize) -> Paths {
        let here = vec![Some(true); ranks];
        self.choices = Choices::for_test(1 << 16, PathChoice::Ipc, here);
        self.maps = true;
        self
    }

    /// The path to `peer`; before it is chosen, that of this rank's device.
    #[inline]
    pub fn to(&self, peer: u32) -> Path {
        self.chosen(peer).map_or(self.nic.path, |(path, _)| *path)
    }

    /// The path to `peer`, and that of the queue pairs to it: of one-sided operations that mapped
    /// memory cannot do, and on memory that the peer has not named for the path.
    #[inline]
    pub fn ways(&self, peer: u32) -> [Path; 2] {
        [self.to(peer), self.choices.queues(peer)]
    }

    /// The device whose queue pairs are `path`.
    ///
    /// # Errors
    /// `Unsupported` if this rank has none; errors of its opening.
    pub(super) fn device_of(&self, path: Path) -> Result<&nic::Nic> {
        match path == self.nic.path {
            true => Ok(&self.nic),
            false => self.second.of(path),
        }
    }

    /// The path to `peer` and the reason for it, once it is chosen.
    #[inline]
    pub fn chosen(&self, peer: u32) -> Option<&Chosen> {
        self.choices.of(peer)
    }

    /// Whether `peer` is another rank of this host.
    pub fn is_near(&self, peer: u32) -> bool {
        self.choices.is_near(peer)
    }

    /// Whether the path to another rank is or may become [`Path::Ipc`].
    pub fn maps(&self) -> bool {
        self.maps
    }

    /// What this rank sends to `peer` before all other messages, for the choice of the path.
    pub fn introduction(&self, peer: u32, shape: Shape) -> Option<Control> {
        match self.chosen(peer) {
            None => Some(Control::AskPath {
                gpu: self.gpu().identity().to_bytes(),
                shape,
            }),
            Some(_) => self.choices.unasked(peer).map(Control::AnswerPath),
        }
    }

    /// What the ends of a peer that has connected without a question answer.
    pub fn unasked(&self, ends: &[Record]) -> Answer {
        let by_tcp = ends.iter().any(|end| end.path == record::TCP);
        Answer {
            can: Err("it has connected without a question; MP_PATH may differ".to_owned()),
            nic: match by_tcp {
                true => NicSort::Absent,
                false => sort_of(self.device()),
            },
        }
    }

    /// The answer to `peer`, whose GPU has this name.
    pub fn answer(&self, peer: u32, gpu: &[u8]) -> Answer {
        self.choices.answer(peer, || {
            let other = GpuIdentity::from_bytes(gpu).map_err(|e| e.to_string())?;
            self.gpu().reaches(&other).map_err(|e| e.to_string())
        })
    }

    /// Chooses the path to `peer` if it is not chosen and the answers of this rank and of the peer
    /// decide it.
    pub fn settle(&self, peer: u32, ours: Option<&Answer>, theirs: Option<&Answer>) {
        let can = ours.map(|answer| &answer.can);
        if let Some((path, reason)) = self.choices.settle(peer, can, theirs) {
            let me = self.choices.me;
            tracing::info!(target: "mp", "rank {me}: path {path:?} to rank {peer}: {reason}");
        }
    }

    /// What copies use.
    pub fn copier(&self) -> &copy::Copier {
        &self.copier
    }

    pub fn gpu(&self) -> &Gpu {
        self.device().gpu()
    }

    /// Bytes of the longest message that has room in a long room: above it, a copy into the memory of
    /// the receive is faster than twice the bytes, on NVLink. Lines of the soft GPU are slow, and few of
    /// its messages use them.
    pub fn long_message(&self) -> usize {
        match self.gpu().is_software() {
            true => 6 << 10,
            false => 256 << 10,
        }
    }

    /// The NIC, or the TCP device of a rank without one.
    pub fn device(&self) -> &Device {
        &self.nic.device
    }

    /// Whether the device whose queue pairs are `path` executes READs.
    pub fn reads(&self, path: Path) -> bool {
        self.device_of(path).is_ok_and(|nic| nic.device.reads())
    }

    /// Waits on the host until `condition` holds, and does work of TCP meanwhile.
    pub fn wait_until(&self, deadline: Time, condition: &mut dyn FnMut() -> bool) -> bool {
        let nic = self.second.get().unwrap_or(&self.nic);
        nic.device.wait_until(Some(deadline), condition)
    }

    /// Number of blocks of the smallest send queue.
    pub fn queue_blocks(&self) -> u32 {
        self.nic.queue_blocks()
    }

    /// Registers `region` with the paths: with a TCP device beside the NIC when a peer needs it.
    pub fn register(&self, region: &Region, rights: Rights) -> Result<Keys> {
        let nic = self.nic.register(region, rights)?;
        let keys = Keys::new(nic, &self.copier, &self.second, rights);
        if self.maps() && matches!(rights, Rights::All) && keys.can_share() {
            keys.note();
        }
        Ok(keys)
    }

    /// Allocates and registers pinned memory.
    pub fn pinned(&self, len: usize, rights: Rights) -> Result<Keys> {
        self.register(&self.gpu().alloc(MemoryKind::Pinned, len)?, rights)
    }

    /// Checks that memory, which `name` describes, was registered with these paths.
    ///
    /// # Errors
    /// `Invalid`.
    #[inline]
    pub fn check(&self, operation: &'static str, keys: &Keys, name: &dyn Debug) -> Result<()> {
        if self.knows(keys) {
            return Ok(());
        }
        let what = format!("{name:?} is registered by another context; use memory of this context");
        Err(Error::new(operation, Kind::Invalid, what))
    }

    /// Whether memory was registered with these paths.
    pub fn knows(&self, keys: &Keys) -> bool {
        self.nic.knows(keys.nic())
    }

    /// Executes the work of the paths that has no thread.
    pub fn progress(&self) {
        self.nic.device.progress();
        if let Some(second) = self.second.get() {
            second.device.progress();
        }
    }
}

/// An atomic operation on a 64-bit word of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    /// Adds, modulo 2^64.
    FetchAdd(u64),
    /// Stores `swap` if the word is `compare`.
    CompareSwap { compare: u64, swap: u64 },
}

/// The error for an object of one path that is used on another.
#[cold]
fn foreign(operation: &'static str) -> Error {
    Error::new(
        operation,
        Kind::Invalid,
        "the memory or the put belongs to another path than the lane",
    )
}

/// Calls `enqueue`. `waits` says whether it enqueues a wait: the stream then counts as waiting during the call, so
/// that the wait is not refused behind other work of the call, and the room of the stream is limited as behind the
/// wait.
///
/// # Errors
/// Those of `enqueue`; those of [`Stream::hold_wait`], and `enqueue` is not called then.
pub(crate) fn while_held<T>(
    stream: &Stream,
    waits: bool,
    enqueue: impl FnOnce() -> Result<T>,
) -> Result<T> {
    match waits {
        true => stream.hold_wait(enqueue).map_err(Error::from).flatten(),
        false => enqueue(),
    }
}

/// Refuses a stream that is being captured: the numbers of what is enqueued are of one run, and a graph
/// may run many times.
///
/// # Errors
/// `Unsupported`; errors of gdsync if the state of the stream cannot be read.
pub(crate) fn uncaptured(stream: &Stream, operation: &'static str) -> Result<()> {
    if !stream.is_capturing()? {
        return Ok(());
    }
    let what = format!(
        "{stream:?} is being captured into a graph, which can contain isend_on, irecv_on, \
         sendrecv_on, wait_on, wait_all_on and the steps of neighbourhoods alone; end the capture first"
    );
    Err(Error::new(operation, Kind::Unsupported, what))
}
