//! [`Engine`]: what a context consists of (GPU, paths, kernels, bootstrap, settings), and the one
//! lock over its mutable state. The other files of this folder add its operations.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gds_step::{Host, Time};
use gdsync::Gpu;
use gdsync::Status;
use gdsync::gpu::{MemoryKind, Region, Word32, Word64};
use gdsync::rdma::Device;

use super::config::{Config, Progress};
use super::state::{Guard, State};
use crate::bootstrap::Bootstrap;
use crate::error::{Error, Kind, Result};
use crate::kernels::Kernels;
use crate::path::{Can, Choices, Chosen, NicOptions, Paths, TcpSetup, export, sort_of};
use crate::trace::{Observers, file_of};
use crate::wire::word;

/// The period of the background work.
pub(crate) const PERIOD: Duration = Duration::from_millis(1);

/// The objects of a context, and its operations.
pub(crate) struct Engine {
    pub rank: u32,
    pub size: u32,
    /// The bootstrap topic of the contexts of this name.
    pub topic: u64,
    pub config: Config,
    pub gpu: Gpu,
    pub paths: Paths,
    kernels: Option<Arc<Kernels>>,
    pub bootstrap: Arc<dyn Bootstrap>,
    pub error: Word32,
    /// The result of captured messages with the null rank.
    pub null_result: Word64,
    /// Whether a wait of any stream has left the end of a packed send to [`Engine::synchronize`]; never reset.
    /// [`Engine::leave_end`] stores it under the lock of `state`; [`Engine::synchronize`] loads it without the lock,
    /// to save a search of the requests. Relaxed: the caller orders these two calls, and the requests are read
    /// under the lock.
    pub leaves_ends: AtomicBool,
    /// Observes the calls.
    pub observers: Observers,
    state: Mutex<State>,
}

impl Engine {
    pub fn new(
        bootstrap: Arc<dyn Bootstrap>,
        gpu: &Gpu,
        device: &Device,
        tcp: TcpSetup,
        nic: &NicOptions,
        config: Config,
    ) -> Result<Engine> {
        const OPERATION: &str = "build context";
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        if !device.gpu().is(gpu) {
            let what = format!("{device:?} does not belong to {gpu:?}; open it for this GPU");
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        }
        if rank >= size {
            let what = format!("rank {rank} is not in the job of {size} ranks");
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        }
        let kernels = match gpu.caps().kernels {
            true => Some(Arc::new(Kernels::of(gpu)?)),
            false => None,
        };
        let file = |path| (file_of(path, &config.name, rank), config.trace_events);
        let observers = Observers::open((rank, size), gpu, config.trace.as_deref().map(file))?;
        let error = gpu.alloc(MemoryKind::Pinned, 64)?.word32(0)?;
        error.store(0)?;
        let null_result = error.region().word64(8)?;
        null_result.store(word::result(Status::SUCCESS, 0))?;
        let here = bootstrap.host(rank);
        let of_here = |other| Some(here? == bootstrap.host(other)?);
        let choices = Choices::new(
            rank,
            config.path.unwrap_or_default(),
            (0..size).map(of_here).collect(),
            can_map(&*bootstrap, error.region()),
            sort_of(device),
        );
        let paths = Paths::open(
            choices,
            device,
            tcp,
            nic,
            config.timeout,
            &error,
            kernels.clone(),
        )?;
        log_paths(&paths, rank, size);
        let copier = paths.maps().then(|| paths.copier().clone());
        let state = State::new(gpu, (rank, size), config.doorbell, copier);
        Ok(Engine {
            rank,
            size,
            topic: topic(&config.name, &*bootstrap),
            gpu: gpu.clone(),
            paths,
            kernels,
            error,
            null_result,
            leaves_ends: AtomicBool::new(false),
            observers,
            state: Mutex::new(state),
            bootstrap,
            config,
        })
    }

    /// The kernels.
    ///
    /// # Errors
    /// `Unsupported` on a GPU that runs no kernels.
    #[inline]
    pub fn kernels(&self, operation: &'static str) -> Result<&Kernels> {
        let what = "the GPU runs no kernels; a stream needs them to receive a message, and to send \
                    one whose length or offset is in a word; post the request from the CPU";
        let none = || Error::new(operation, Kind::Unsupported, what);
        self.kernels.as_deref().ok_or_else(none)
    }

    pub fn host(&self) -> &Arc<dyn Host> {
        self.gpu.host()
    }

    /// Waits on the host. If no thread does the background work, this call does it once in each
    /// period.
    pub fn wait(&self, deadline: Time, condition: &mut dyn FnMut() -> bool) -> bool {
        if self.config.progress == Progress::Background {
            return self.paths.wait_until(deadline, condition);
        }
        loop {
            let next = (self.host().now() + PERIOD).min(deadline);
            if self.paths.wait_until(next, condition) {
                return true;
            }
            self.progress();
            if self.host().now() >= deadline {
                return condition();
            }
        }
    }

    pub fn lock(&self) -> Guard<'_> {
        Guard::new(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether this rank shares memory like `region` with ranks of its host, and maps theirs.
fn can_map(bootstrap: &dyn Bootstrap, region: &Region) -> Can {
    let gpu = region.gpu();
    if !gpu.caps().kernels {
        return Err("its GPU runs no kernels, by which streams copy".to_owned());
    }
    // No context has this topic.
    if let Err(e) = bootstrap.receive_fd(u64::MAX)
        && e.kind() == Kind::Unsupported
    {
        return Err(e.sentence());
    }
    gpu.reaches(&gpu.identity()).map_err(|e| e.to_string())?;
    match export(region, 0) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err("its GPU shares no memory by descriptors".to_owned()),
        Err(e) => Err(e.sentence()),
    }
}

/// Logs one line for each path that is chosen: the ranks that it leads to, and the reason.
fn log_paths(paths: &Paths, me: u32, size: u32) {
    if !tracing::enabled!(target: "mp", tracing::Level::INFO) {
        return;
    }
    let mut ranks = BTreeMap::<&Chosen, Vec<u32>>::new();
    for rank in 0..size {
        if let Some(chosen) = paths.chosen(rank) {
            ranks.entry(chosen).or_default().push(rank);
        }
    }
    for ((path, reason), ranks) in ranks {
        let ranks = ranges(&ranks);
        tracing::info!(target: "mp", "rank {me}: path {path:?} to rank {ranks}: {reason}");
    }
}

/// Sorted ranks in short form: `0, 2-5`.
fn ranges(ranks: &[u32]) -> String {
    let runs = ranks.chunk_by(|a, b| a + 1 == *b);
    let text = runs.filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    text.collect::<Vec<_>>().join(", ")
}

/// The topic of the contexts of one name: FNV-1a, which is the same on every rank. Successive
/// contexts of one name have different topics, so a message of an old context is never taken for
/// one of a new context.
fn topic(name: &str, bootstrap: &dyn Bootstrap) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut topic = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    while bootstrap.is_forgotten(topic) {
        topic = step(topic, 0xff);
    }
    topic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_ranks_are_written_as_ranges() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[3]), "3");
        assert_eq!(ranges(&[0, 2, 3, 4, 5, 9, 10]), "0, 2-5, 9-10");
    }
}
