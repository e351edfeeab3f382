//! [`Builder`]: the settings of a context, and how a context is built from them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gdsync::Gpu;
use gdsync::rdma::{Device, DeviceOptions, Doorbell, Provider, TcpOptions};

use super::Context;
use crate::bootstrap::{self, Bootstrap};
use crate::error::{Error, Kind, Result};
use crate::path::{NicOptions, PathChoice, TcpSetup};
use crate::two_sided::config::{Config, Connect, Full, Progress};
use crate::two_sided::engine::Engine;

/// The settings of a [`Context`] before it is built. [`Context::builder`] makes one.
///
/// A setting that is not given comes from the environment or has a default. All ranks must use the
/// same [`eager_limit`](Builder::eager_limit), [`depth`](Builder::depth) and
/// [`zero_sm`](Builder::zero_sm): otherwise the first
/// use of a peer fails with [`Kind::Protocol`](crate::Kind::Protocol).
///
/// ```
/// use std::time::Duration;
///
/// use mp::{Context, Full};
/// # use mp::{bootstrap::Local, gdsync::Gpu};
/// # let job = Local::ranks(1).remove(0);
///
/// let gpu = Gpu::soft()?; // default: the GPU that GDS_GPU names
/// let ctx = Context::builder()
///     .bootstrap(job) // default: the job that the launcher started
///     .gpu(&gpu)
///     .eager_limit(16 << 10) // bytes
///     .timeout(Duration::from_secs(5))
///     .full(Full::Fail) // no call waits for room
///     .build()?;
/// assert_eq!((ctx.rank(), ctx.size()), (0, 1));
/// # Ok::<(), mp::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Builder {
    bootstrap: Option<Arc<dyn Bootstrap>>,
    gpu: Option<Gpu>,
    device: Option<Device>,
    nic: NicOptions,
    tcp: Option<TcpOptions>,
    config: Config,
}

impl Builder {
    /// Sets the bootstrap of the job, which gives the rank and the number of ranks. Default:
    /// [`bootstrap::from_env`].
    #[must_use]
    pub fn bootstrap(mut self, bootstrap: Arc<dyn Bootstrap>) -> Builder {
        self.bootstrap = Some(bootstrap);
        self
    }

    /// Sets the GPU whose streams and memory the context uses. Default: the GPU of the device, or
    /// [`Gpu::from_env`] (`GDS_GPU`).
    #[must_use]
    pub fn gpu(mut self, gpu: &Gpu) -> Builder {
        self.gpu = Some(gpu.clone());
        self
    }

    /// Sets the NIC, which must be opened for the GPU of the context. Default:
    /// [`Device::from_env`] (`GDS_PROVIDER`, `GDS_NIC`); if it finds no NIC, and neither the
    /// environment nor the path names one, a TCP device ([`Device::tcp`]). With
    /// [`PathChoice::Tcp`] a NIC is not used.
    #[must_use]
    pub fn device(mut self, device: &Device) -> Builder {
        self.device = Some(device.clone());
        self
    }

    /// Sets the path of messages to other ranks. Default: `MP_PATH`, else [`PathChoice::Auto`]. All
    /// ranks must use the same.
    #[must_use]
    pub fn path(mut self, choice: PathChoice) -> Builder {
        self.config.path = Some(choice);
        self
    }

    /// Sets whether the sends and receives that name another rank of this host are
    /// [zero-SM messages](crate::Context#zero-sm-messages) by default. All ranks must use the same; otherwise the
    /// first use of a peer fails with [`Kind::Protocol`](crate::Kind::Protocol). With these ranks, what
    /// cannot be such a message is then refused with `Unsupported`, and so is a receive from any rank if the
    /// path to a rank may be [`Path::Ipc`](crate::Path::Ipc), unless
    /// [`SendOp::zero_sm`](crate::SendOp::zero_sm) and [`RecvOp::zero_sm`](crate::RecvOp::zero_sm) switch the
    /// default off for it. Default: `MP_ZERO_SM` (1 or 0), else `false`.
    #[must_use]
    pub fn zero_sm(mut self, on: bool) -> Builder {
        self.config.zero_sm = Some(on);
        self
    }

    /// Sets the name, by which contexts of different ranks find each other: contexts of equal name
    /// belong together. A rank has one context of each name at a time; the n-th of a name on one
    /// rank belongs to the n-th on the other ranks. Default: `mp`.
    #[must_use]
    pub fn name(mut self, name: &str) -> Builder {
        name.clone_into(&mut self.config.name);
        self
    }

    /// Sets the eager limit: the longest message, in bytes, that a sender may write before the
    /// receive is posted. A stream that sends a longer message waits until the receive is posted. A
    /// rank keeps [`depth`](Builder::depth) times this much memory for each peer and tag from which
    /// messages up to the limit come. 1 byte to 1 MiB; default 4096 bytes, or 256 KiB for a peer by
    /// [`Path::Tcp`](crate::Path::Tcp).
    #[must_use]
    pub fn eager_limit(mut self, bytes: usize) -> Builder {
        self.config.eager_limit = Some(bytes);
        self
    }

    /// Sets the depth: the number of messages of one peer and tag that may be in flight, a power of
    /// two from 2 to 1024. The sender of one more message waits until the receiver has taken one
    /// (back-pressure). The same number of receives may be posted for which neither a stream nor a
    /// call waits yet. Default 16.
    ///
    /// Receivers return room when that of half the depth is due. Two streams that both send more than
    /// `depth / 2 + 1` messages of a tag to each other before they wait for one may wait for each
    /// other (case 6 of docs/deadlocks.md).
    #[must_use]
    pub fn depth(mut self, slots: u32) -> Builder {
        self.config.depth = slots;
        self
    }

    /// Sets the number of tags whose memory is kept at a time, for each peer and direction: 4 to
    /// 2048, default 256. When most are in use, the least recently used ones are released; their
    /// next use costs a connection. A peer applies its own limit. A peer can also open tags by
    /// sending before this rank receives. If more than 16 of these tags have received nothing yet
    /// and their mailboxes take 32 MiB, the peer's next send under a new tag waits for a receive. By
    /// [`Path::Tcp`](crate::Path::Tcp) the number of these tags is the same, and their mailboxes take up
    /// to 2 GiB by default.
    #[must_use]
    pub fn channels(mut self, tags: usize) -> Builder {
        self.config.channels = tags;
        self
    }

    /// Sets the timeout of a send, of a receive that a stream waits for, and of a NIC that does not
    /// answer; after it the peer is given up: all requests with it fail with
    /// [`Kind::PeerFailed`](crate::Kind::PeerFailed). Calls wait this long for connections and
    /// twice as long for room. [`SendOp::timeout`](crate::SendOp::timeout) and
    /// [`RecvOp::timeout`](crate::RecvOp::timeout) set it for one request. Default 30 s.
    ///
    /// In a step of a [`Neighbourhood`](crate::Neighbourhood), a neighbour that answers has an eighth more,
    /// because it may itself wait this long for a dead neighbour before it continues.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Builder {
        self.config.timeout = limit;
        self
    }

    /// Sets the time after which a waiting stream is reported, by a `tracing` warning (target `mp`)
    /// and by [`Context::stuck`]. The stream continues to wait. Default 10 s.
    #[must_use]
    pub fn watchdog(mut self, limit: Duration) -> Builder {
        self.config.watchdog = limit;
        self
    }

    /// Sets when peers are connected. Default: [`Connect::Lazy`].
    #[must_use]
    pub fn connect(mut self, when: Connect) -> Builder {
        self.config.connect = when;
        self
    }

    /// Sets what drives the background work: a thread or the program. Default:
    /// [`Progress::Background`].
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Builder {
        self.config.progress = progress;
        self
    }

    /// Sets what a call does if a queue is full. Default: [`Full::Wait`].
    #[must_use]
    pub fn full(mut self, what: Full) -> Builder {
        self.config.full = what;
        self
    }

    /// Sets the side that writes the NIC's doorbell for streams: the stream, or a CPU thread.
    /// [`SendOp::by_cpu_thread`](crate::SendOp::by_cpu_thread) and
    /// [`RecvOp::by_cpu_thread`](crate::RecvOp::by_cpu_thread) set it for one request. Default:
    /// from `GDS_DOORBELL`.
    #[must_use]
    pub fn doorbell(mut self, doorbell: Doorbell) -> Builder {
        self.config.doorbell = doorbell;
        self
    }

    /// Sets the options of the NIC path: queue sizes, and the order of a message's words.
    #[must_use]
    pub fn nic(mut self, options: NicOptions) -> Builder {
        self.nic = options;
        self
    }

    /// Sets the options of [`Path::Tcp`](crate::Path::Tcp). Without an address, `MP_IFNAME` names the
    /// address or its interface. Without that, it is the address by which this rank reached the store
    /// of the job, unless that is a loopback address, else that of the interface of the default
    /// route. Without a key, it is that of the job ([`Bootstrap::key`]). `MP_TCP_ENCRYPT=1`
    /// encrypts whatever the options say. Default: `MP_IFNAME`, `MP_TCP_ENCRYPT`, `MP_TCP_SOCKETS`.
    #[must_use]
    pub fn tcp(mut self, options: TcpOptions) -> Builder {
        self.tcp = Some(options);
        self
    }

    /// Sets the file of the timeline: the calls of the CPU, the submissions of each stream, and
    /// when the stream passed them. They are trace events in JSON, which Perfetto
    /// (<https://ui.perfetto.dev>) opens. Each rank writes a file: `trace.json` becomes
    /// `trace.0.json`, `trace.1.json` and so on, with the [`name`](Builder::name) before the rank
    /// if it is not `mp`. The n-th context of a name replaces the file of the one before; two jobs at
    /// the same time need two names of files. Default: `MP_TRACE`; without both, no timeline.
    ///
    /// The file has its content after [`Context::close`], or when the last handle on the context is
    /// dropped. While a GPU has a timeline, each submission on its streams costs one more (a stamp),
    /// and a waiting CUDA stream accepts about 750 submissions in place of 1,000. A stream that is
    /// half full gets no stamps; the end of this work is then unknown. `docs/seeing.md` explains the
    /// rows and the precision of the times.
    #[must_use]
    pub fn trace(mut self, file: impl Into<PathBuf>) -> Builder {
        self.config.trace = Some(file.into());
        self
    }

    /// Sets how many events the timeline keeps, the newest ones: default 65536, about 20 MB. The
    /// file has the number of older events, by thread and stream.
    #[must_use]
    pub fn trace_events(mut self, events: usize) -> Builder {
        self.config.trace_events = events;
        self
    }

    /// Sets the number of the first message under every tag, equal on all ranks; for tests of the
    /// wrap of numbers.
    #[doc(hidden)]
    #[must_use]
    pub fn start(mut self, number: u64) -> Builder {
        self.config.start = number;
        self
    }

    /// Builds the context. Without [`bootstrap`](Builder::bootstrap), the first call in a process
    /// joins the job and waits for the other ranks, at most 60 s (`MP_START_TIMEOUT`). With
    /// [`Connect::UpFront`] the call then waits for all peers, at most the
    /// [`timeout`](Builder::timeout). Otherwise it waits for no other rank.
    ///
    /// # Errors
    /// - `Invalid` for a setting out of range, and for a NIC of another GPU.
    /// - `Missing` and the other errors of [`bootstrap::from_env`].
    /// - Errors of [`Gpu::from_env`] and [`Device::from_env`], and of GPU and NIC: `Absent`,
    ///   `Unsupported`, `System`, `Gdsync` and others.
    /// - `System` if the file of the timeline cannot be written.
    /// - With [`Connect::UpFront`]: `Missing`, naming the ranks, if peers do not answer within the
    ///   timeout; `PeerFailed`, `Protocol` or `BootstrapLost` if one cannot be connected.
    pub fn build(mut self) -> Result<Context> {
        if self.config.trace.is_none() {
            let file = std::env::var_os("MP_TRACE").filter(|file| !file.is_empty());
            self.config.trace = file.map(PathBuf::from);
        }
        self.config.read_env()?;
        self.config.check()?;
        self.nic.check()?;
        let bootstrap = match self.bootstrap {
            Some(bootstrap) => bootstrap,
            None => bootstrap::from_env()?,
        };
        let gpu = match (self.gpu, &self.device) {
            (Some(gpu), _) => gpu,
            (None, Some(device)) => device.gpu().clone(),
            (None, None) => Gpu::from_env()?,
        };
        let is_tcp = |device: &Device| device.provider() == Provider::Tcp;
        let far = |address: &IpAddr| !address.is_loopback();
        let key = self.tcp.and_then(|tcp| tcp.key).or(bootstrap.key());
        let tcp = TcpSetup {
            given: self.tcp,
            key,
            alone: key.is_none() && !self.device.as_ref().is_some_and(is_tcp),
            address: bootstrap.local_address().filter(far),
            watched: self.config.progress == Progress::Background,
        };
        let choice = self.config.path.unwrap_or_default();
        let by_tcp = choice == PathChoice::Tcp;
        let device = match self.device {
            Some(device) if !by_tcp || is_tcp(&device) => device,
            None if !by_tcp => open_device(&gpu, &tcp, choice)?,
            _ => tcp.open(&gpu)?,
        };
        let engine = Engine::new(bootstrap, &gpu, &device, tcp, &self.nic, self.config)?;
        Context::open(engine)
    }
}

/// Opens the device that the environment names, else the first that works: a NIC, or TCP unless the
/// path is that of a NIC.
fn open_device(gpu: &Gpu, tcp: &TcpSetup, choice: PathChoice) -> Result<Device> {
    let set = |name| std::env::var(name).unwrap_or_default();
    let provider = set("GDS_PROVIDER");
    if provider == "tcp" {
        return tcp.open(gpu);
    }
    let options = DeviceOptions::default().watched(tcp.watched);
    let opened = Device::open_with(gpu, &options).map_err(Error::from);
    let unnamed = choice != PathChoice::Nic
        && ["", "auto"].contains(&&*provider)
        && ["GDS_NIC", "GDS_GID_INDEX"].map(set).concat().is_empty();
    match opened {
        Err(e) if unnamed && matches!(e.kind(), Kind::Absent | Kind::Unsupported) => {
            tracing::info!(target: "mp", "TCP is used in place of a NIC: {e}");
            tcp.open(gpu)
        }
        opened => opened,
    }
}
