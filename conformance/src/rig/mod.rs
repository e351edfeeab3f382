//! The resources of programs: a GPU of one runtime with the kernels that fill and verify payloads,
//! and queue pairs on it. `provider` opens the NICs that the environment chooses, `limits` has the
//! time limits, `verdict` the result of a trial or a program.

pub mod limits;
pub mod provider;
pub mod verdict;

use gdsync::gpu::{
    Condition, DevicePtr, Dims, KERNELS, Kernel, MemoryKind, Region, Stream, Word32,
};
use gdsync::internals::{Fill, Report, Verify, pattern};
use gdsync::rdma::{Access, Descriptor, Device, Mr, Pd, Provider, Qp, QpConfig, Work};
use gdsync::{Gpu, Kind};

use limits::time_limit;
use provider::Net;
use verdict::{Verdict, ensure};

/// A GPU runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// The software GPU.
    Soft,
    /// A GPU of NVIDIA.
    Cuda,
    /// A GPU of AMD.
    Hip,
}

impl Runtime {
    /// All of them.
    pub const ALL: [Runtime; 3] = [Runtime::Soft, Runtime::Cuda, Runtime::Hip];

    /// Its name, as `GDS_REQUIRE` and `GDS_GPU` have it.
    pub fn name(self) -> &'static str {
        match self {
            Runtime::Soft => "soft",
            Runtime::Cuda => "cuda",
            Runtime::Hip => "hip",
        }
    }

    /// Whether its GPUs are devices with a driver.
    pub fn has_driver(self) -> bool {
        self != Runtime::Soft
    }

    /// The GPU with this number.
    pub fn gpu(self, number: u32) -> gdsync::Result<Gpu> {
        Gpu::open(&format!("{}:{number}", self.name()))
    }

    /// The runtime of this name.
    pub fn named(name: &str) -> Option<Runtime> {
        Runtime::ALL.into_iter().find(|r| r.name() == name)
    }
}

/// A GPU and the kernels for payloads.
#[derive(Clone, Debug)]
pub struct Rig {
    /// The runtime of the GPU.
    pub runtime: Runtime,
    /// The provider of the NICs.
    pub provider: Provider,
    /// The GPU.
    pub gpu: Gpu,
    fill: Kernel,
    verify: Kernel,
}

impl Rig {
    /// Opens the runtime's first GPU, for the provider that the environment chooses.
    pub fn open(runtime: Runtime) -> Verdict<Rig> {
        Rig::of(runtime, Gpu::open(runtime.name())?)
    }

    /// The kernels for a GPU that is open.
    pub fn of(runtime: Runtime, gpu: Gpu) -> Verdict<Rig> {
        Rig::with(runtime, gpu, provider::chosen()?.provider)
    }

    /// The kernels for a GPU that is open, and a provider.
    pub fn with(runtime: Runtime, gpu: Gpu, provider: Provider) -> Verdict<Rig> {
        let module = gpu.load(&KERNELS)?;
        let fill = module.kernel(Fill::ENTRY.name())?;
        let verify = module.kernel(Verify::ENTRY.name())?;
        Ok(Rig {
            runtime,
            provider,
            gpu,
            fill,
            verify,
        })
    }

    /// Enqueues the pattern `seed` into `len` bytes of `region`.
    pub fn fill(
        &self,
        stream: &Stream,
        region: &Region,
        at: usize,
        len: usize,
        seed: u64,
    ) -> gdsync::Result<()> {
        let fill = Fill {
            at: inside(region, at, len),
            len: len as u64,
            seed,
        };
        // SAFETY: the memory is inside a region, as checked, and the trials keep the region until
        // the stream is done.
        unsafe { stream.launch(&self.fill, Dims::linear(1, 64), fill.bytes()) }
    }

    /// Enqueues a comparison of `len` bytes of `region` with the pattern `seed`; differences are
    /// added to `report`.
    pub fn verify(
        &self,
        stream: &Stream,
        region: &Region,
        at: usize,
        len: usize,
        seed: u64,
        report: &Finding,
    ) -> gdsync::Result<()> {
        let verify = Verify {
            at: inside(region, at, len),
            len: len as u64,
            seed,
            report: report.0.addr(),
        };
        // SAFETY: as in `fill`; the report is a region too.
        unsafe { stream.launch(&self.verify, Dims::linear(1, 64), verify.bytes()) }
    }

    /// An empty report.
    pub fn finding(&self) -> gdsync::Result<Finding> {
        let region = self.gpu.alloc(MemoryKind::Device, 64)?;
        region.write(0, &Report::CLEAN.to_bytes())?;
        Ok(Finding(region))
    }

    /// Checks that the queues of these QPs are in the memory that `wanted` names. It checks nothing
    /// for a linked-in NIC with another GPU than the software GPU: the CPU cannot access the memory
    /// of other GPUs, so that NIC uses pinned memory.
    ///
    /// # Errors
    /// The queues are in other memory. The table of unsupported features has this error.
    pub fn check_queue_memory<'q>(
        &self,
        qps: impl IntoIterator<Item = &'q Qp>,
        wanted: &QpConfig,
    ) -> Verdict {
        let wanted = [wanted.ring_memory, wanted.cq_memory, wanted.record_memory];
        if self.runtime != Runtime::Soft && self.provider == Provider::Emulated {
            return Ok(());
        }
        for found in qps.into_iter().map(Qp::memory) {
            ensure(found == wanted, || {
                format!("queues are in pinned memory: {found:?} instead of {wanted:?}")
            })?;
        }
        Ok(())
    }

    /// Shows that the GPU works: memory, a kernel, a copy, and a message on fresh queue pairs.
    pub fn check(&self, config: &QpConfig) -> Verdict {
        let stream = self.gpu.stream()?;
        let (from, to) = (
            self.gpu.alloc(MemoryKind::Device, 4096)?,
            self.gpu.alloc(MemoryKind::Device, 4096)?,
        );
        let finding = self.finding()?;
        self.fill(&stream, &from, 0, 4096, 99)?;
        stream.copy(&to.span(0, 4096)?, &from.span(0, 4096)?)?;
        self.verify(&stream, &to, 0, 4096, 99, &finding)?;
        finish(&stream, "a kernel and a copy")?;
        finding.clean("a kernel and a copy")?;
        let mut pair = Pair::new(self, Net::One, [config, config])?;
        pair.message(self, 77)
    }
}

/// The address of `len` bytes at `at`. Panics if they exceed the region.
fn inside(region: &Region, at: usize, len: usize) -> DevicePtr {
    assert!(
        at + len <= region.len(),
        "{len} bytes at {at} of {region:?}"
    );
    region.addr().offset(at as u64)
}

/// The differences that verifying kernels found, in device memory.
#[derive(Debug)]
pub struct Finding(Region);

impl Finding {
    /// Checks that no difference was found; the streams must be done.
    pub fn clean(&self, what: &str) -> Verdict {
        let mut bytes = [0; 16];
        self.0.read(0, &mut bytes)?;
        let Report { wrong, first } = Report::from_bytes(bytes);
        ensure(wrong == 0, || {
            format!("{what}: the GPU finds {wrong} wrong bytes, the first at {first} of a payload")
        })
    }
}

/// The first `len` bytes of a pattern, as the GPU's kernels write them.
pub fn expected(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).flat_map(|w| pattern(seed, w).to_le_bytes());
    words.take(len).collect()
}

/// Waits until the stream is idle.
pub fn finish(stream: &Stream, what: &str) -> Verdict {
    let done = stream.synchronize(time_limit())?;
    ensure(done, || {
        format!("{what}: {stream:?} is not idle within the limit")
    })
}

/// Retries while a queue is full, at most for [`time_limit`].
///
/// # Errors
/// Those of the attempt; `QueueFull` after the limit.
pub fn retry<T>(gpu: &Gpu, attempt: impl FnMut() -> gdsync::Result<T>) -> gdsync::Result<T> {
    retry_while(gpu, Kind::QueueFull, attempt)
}

/// Retries while the call is refused with this kind, at most for [`time_limit`].
///
/// # Errors
/// Those of the attempt; after the limit, this kind too.
pub fn retry_while<T>(
    gpu: &Gpu,
    kind: Kind,
    mut attempt: impl FnMut() -> gdsync::Result<T>,
) -> gdsync::Result<T> {
    let again = |r: &gdsync::Result<T>| matches!(r, Err(e) if e.kind() == kind);
    let mut result = attempt();
    let deadline = gpu.host().now() + time_limit();
    gpu.host().wait_until(Some(deadline), &mut || {
        if again(&result) {
            result = attempt();
        }
        !again(&result)
    });
    result
}

/// A wait until a word has at least this value.
pub fn reaches(word: &Word32, value: u32) -> Descriptor<'_> {
    Descriptor::wait_value(word, Condition::Geq, value)
}

/// A word that blocks streams until it is opened.
#[derive(Debug)]
pub struct Gate(Word32);

impl Gate {
    /// A closed gate.
    pub fn new(gpu: &Gpu) -> gdsync::Result<Gate> {
        Ok(Gate(gpu.alloc(MemoryKind::Pinned, 64)?.word32(0)?))
    }

    /// The wait of a stream at the gate.
    pub fn wait(&self) -> Descriptor<'_> {
        reaches(&self.0, 1)
    }

    /// Opens the gate for all streams.
    pub fn open(&self) -> gdsync::Result<()> {
        self.0.store(1)
    }
}

/// A gate that opens on drop, so that a trial that fails leaves no waiting stream behind.
impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.open();
    }
}

/// Two connected queue pairs on one GPU.
#[derive(Debug)]
pub struct Pair {
    /// Their NICs.
    pub devices: [Device; 2],
    /// Their protection domains.
    pub pds: [Pd; 2],
    /// The queue pairs.
    pub qps: [Qp; 2],
    /// Entries of each receive queue, at least.
    pub entries: usize,
    /// Segments of each receive entry, at least.
    pub recv_sges: usize,
}

impl Pair {
    /// Opens NICs, creates queue pairs, and connects them.
    pub fn new(rig: &Rig, net: Net, configs: [&QpConfig; 2]) -> gdsync::Result<Pair> {
        let [first, second] = provider::open_two(rig.provider, &rig.gpu, net)?;
        let pd = first.alloc_pd()?;
        let other = match net {
            Net::One => pd.clone(),
            Net::Hub | Net::Host => second.alloc_pd()?,
        };
        Pair::on([first, second], [pd, other], configs)
    }

    /// Creates queue pairs on open NICs, and connects them.
    pub fn on(devices: [Device; 2], pds: [Pd; 2], configs: [&QpConfig; 2]) -> gdsync::Result<Pair> {
        let qp = |i: usize| pds[i].create_qp(configs[i]);
        let least = |f: fn(&QpConfig) -> u32| configs.map(f).into_iter().min().unwrap_or(1);
        let mut pair = Pair {
            qps: [qp(0)?, qp(1)?],
            entries: least(|config| config.recv_entries) as usize,
            recv_sges: least(|config| config.recv_sges) as usize,
            devices,
            pds,
        };
        pair.connect()?;
        Ok(pair)
    }

    /// Connects the two queue pairs, after creation or reset.
    pub fn connect(&mut self) -> gdsync::Result<()> {
        let [a, b] = &mut self.qps;
        a.connect(&b.address())?;
        b.connect(&a.address())
    }

    /// New memory that queue pair `of` may access, with all rights.
    pub fn memory(&self, of: usize, kind: MemoryKind, len: usize) -> gdsync::Result<Mr> {
        memory(&self.pds[of], kind, len)
    }

    /// One message in each direction, filled and verified by the GPU.
    pub fn message(&mut self, rig: &Rig, seed: u64) -> Verdict {
        let stream = rig.gpu.stream()?;
        let finding = rig.finding()?;
        for from in 0..2 {
            let source = self.memory(from, MemoryKind::Device, 256)?;
            let landing = self.memory(1 - from, MemoryKind::Device, 256)?;
            let seed = seed + from as u64;
            rig.fill(&stream, source.region(), 0, 200, seed)?;
            let receive = self.qps[1 - from].prepare_receive(&[landing.sge(8, 248)])?;
            let list = [source.sge(0, 200)];
            let send = self.qps[from].prepare(&Work::send(&list).signaled())?;
            let list = [
                Descriptor::Receive(receive),
                Descriptor::Send(send),
                Descriptor::wait(send),
                Descriptor::wait_flushed(receive),
            ];
            let [a, b] = &mut self.qps;
            gdsync::rdma::post_on(&stream, &mut [a, b], &list)?;
            rig.verify(&stream, landing.region(), 8, 200, seed, &finding)?;
            finish(&stream, "a message")?;
            finding.clean("a message")?;
            let got = self.qps[1 - from].received(receive)?;
            ensure(got.len == 200, || format!("{got:?} of 200 bytes"))?;
        }
        Ok(())
    }

    /// Waits until nothing is in flight, checks that there is no error, and closes everything.
    pub fn leave(self, what: &str) -> Verdict {
        leave(self.devices, self.qps, what)
    }
}

/// New memory that queue pairs of a domain may access, with all rights.
pub fn memory(pd: &Pd, kind: MemoryKind, len: usize) -> gdsync::Result<Mr> {
    pd.register(&pd.device().gpu().alloc(kind, len)?, Access::ALL)
}

/// Waits until nothing is in flight, checks that there is no error, and closes queue pairs and
/// NICs.
pub fn leave(
    devices: impl IntoIterator<Item = Device>,
    qps: impl IntoIterator<Item = Qp>,
    what: &str,
) -> Verdict {
    let mut qps: Vec<Qp> = qps.into_iter().collect();
    for qp in &mut qps {
        let error = qp.error();
        ensure(error.is_none(), || format!("{what}: {qp:?}: {error:?}"))?;
        qp.quiet(time_limit())?;
    }
    drop(qps);
    for device in devices {
        device.close(time_limit())?;
    }
    Ok(())
}
