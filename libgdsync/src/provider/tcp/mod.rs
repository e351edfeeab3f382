//! Queue pairs whose requests are carried by TCP: for hosts without an RDMA NIC.
//!
//! The rings of a queue pair are in memory of the library, and the CPU reads them
//! ([`relay`](super::relay)). [`queues`] is one queue pair: it sends requests as frames ([`frame`])
//! and executes those of the peer, in memory that is registered ([`memory`]); [`output`] and
//! [`input`] are its two directions, [`seal`] encrypts them, [`delay`] says when counts are sent.
//! [`wire`] is a connection, [`bundle`] one by several sockets; [`dial`] connects, [`accept`] accepts, and
//! both prove by [`greeting`] that they are of the same job. [`poller`] has all sockets of a device,
//! [`address`] the address where peers connect to it.
//!
//! A thread of the device does the work, unless a thread of the application that waits does it
//! ([`Nic::wait_until`]).

mod accept;
mod address;
mod bundle;
mod delay;
mod dial;
#[allow(missing_docs, reason = "public for tests alone")]
mod frame;
#[allow(missing_docs, reason = "public for tests alone")]
mod greeting;
mod input;
mod memory;
mod output;
mod poller;
mod queues;
#[allow(missing_docs, reason = "public for tests alone")]
mod seal;
mod wire;

/// What the two sides of a connection send each other, for tests that are one of them.
#[cfg(feature = "internals")]
pub mod protocol {
    pub use super::Broken;
    pub use super::frame::{HEAD, Head, KINDS, Kind, MOST, OPERANDS};
    pub use super::greeting::{
        CLAIM, CLAIMED, Claim, End, MOST_SOCKETS, OPENING, Session, VERDICT, Verdict, opening,
        read_opening,
    };
    pub use super::seal::{PLAIN, Seal};
}

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gds_step::{Awaits, Host, Machine, MachineId, Shared as SharedMachine, Step, Thread, Time};
use mlx5_prm::wqe::{BASIC_BLOCK, SEGMENT};

use self::accept::Acceptor;
use self::greeting::{End, Key, MOST_SOCKETS};
use self::memory::Registrations;
use self::poller::Poller;
use self::queues::{Shared, TcpQueues};
use self::wire::Socket;
use super::relay::thread::{Common, Round, SPIN, SharedRelay};
use super::relay::{Limits, Relay, Rings, gone};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Chunks, Gpu, Region};
use crate::nic::{
    Access, Ah, AhAttr, Events, Layout, MrKeys, Nic, PathSettings, PdId, PortAddress, Provider,
    QpAddress, QpMade, QpObjects, QpRings, Report, TcpOptions,
};

/// The operation of opening, for errors.
const OPEN: &str = "open TCP device";
/// Outstanding requests of a queue pair; further ones stay in its ring.
const REQUESTS: usize = 256;
/// Bytes of inline data of a request, at most: those of the longest entry.
const INLINE: usize = 1024;
/// Sockets of a connection to another address by default, with enough processors.
const DEFAULT_SOCKETS: u8 = 4;
/// Retries, for the time limit of a connection.
const RETRIES: u8 = 7;
/// The shortest time limit of a connection.
const SHORTEST: Duration = Duration::from_secs(5);
/// The longest time that the end of a connection or a device waits for its last bytes and copies.
const LAST: Duration = Duration::from_millis(50);
/// With this many processors, the threads of GPU and device have one each, and the system receives on
/// several sockets at once.
const ENOUGH: usize = 4;
/// How long the thread spins with fewer processors, where it takes one from a rank.
const SHORT_SPIN: Duration = Duration::from_micros(20);

/// Why a connection has ended, or was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "public for tests alone")]
pub enum Broken {
    Greeting(&'static str),
    Frame(&'static str),
    Closed,
    /// The peer has closed the connection in place of a verdict.
    Unanswered,
    /// An error of the system, by number.
    Connection(i32),
    /// The peer's queue pair is not there.
    NotNow,
    Late,
    Refused,
    /// The registration of memory in use has ended.
    Withdrawn,
    Stopped,
    Gpu,
}

impl Broken {
    fn of(e: &io::Error) -> Broken {
        Broken::Connection(e.raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Greeting(why) => write!(f, "the greeting of the other side is refused: {why}"),
            Broken::Frame(why) => write!(f, "a frame of the other side is invalid: {why}"),
            Broken::Closed => write!(f, "the other side has closed the connection"),
            Broken::Unanswered => write!(
                f,
                "the other side has closed the connection without an answer: its key differs, or its \
                 queue pair was not connected in time"
            ),
            Broken::Connection(errno) => write!(f, "{}", io::Error::from_raw_os_error(*errno)),
            Broken::NotNow => write!(f, "the queue pair of the other side is not connected"),
            Broken::Late => write!(f, "the other side did not answer in time"),
            Broken::Refused => write!(f, "a request was refused"),
            Broken::Withdrawn => write!(f, "the registration of memory in use has ended"),
            Broken::Stopped => write!(f, "the queue pair was put in error"),
            Broken::Gpu => write!(f, "the memory of the GPU cannot be accessed"),
        }
    }
}

/// Random bytes.
fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    // A request of at most 256 bytes is not cut short.
    let n = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    match n == bytes.len() {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A random number.
fn random_number() -> io::Result<u64> {
    let [a, b, c, d, e, f, g, h, ..] = random()?;
    Ok(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}

/// The key of devices that have none: a random one of this process.
fn process_key() -> io::Result<Key> {
    static KEY: OnceLock<Key> = OnceLock::new();
    let new = random()?;
    Ok(*KEY.get_or_init(|| new))
}

/// A device: the sockets of its queue pairs, and the thread that is their NIC.
struct TcpNic {
    name: String,
    at: SocketAddr,
    /// Numbers of sockets of a connection that this side begins: to a device at the same address, and
    /// to others.
    sockets: [u8; 2],
    shared: Arc<Shared>,
    common: Arc<Common<Acceptor>>,
    thread: Option<JoinHandle<()>>,
    /// The machine by which the thread of a software GPU assists, and the GPU.
    assistant: Option<(MachineId, Gpu)>,
    pds: AtomicU32,
    qpns: AtomicU32,
}

pub(crate) fn open(gpu: &Gpu, options: &TcpOptions) -> Result<Arc<dyn Nic>> {
    let system = |call: &str, e: io::Error| {
        let what = format!("{call} failed: {e}");
        Error::new(OPEN, Kind::System, what).with_source(e)
    };
    if gpu.host().epoch().is_zero() {
        let what =
            "the time of the host is virtual, and that of a socket is real; use a virtual NIC";
        return Err(Error::new(OPEN, Kind::Unsupported, what));
    }
    if let Some(sockets) = options.sockets
        && !(1..=MOST_SOCKETS).contains(&sockets)
    {
        let what = format!("a connection cannot have {sockets} sockets; set 1 to {MOST_SOCKETS}");
        return Err(Error::new(OPEN, Kind::Invalid, what));
    }
    let ip = options.address.unwrap_or_else(address::default);
    if !address::is_for_peers(ip) {
        let what = format!(
            "peers cannot connect to the address {ip}: it is unspecified, multicast or link-local; \
             select another one of an interface"
        );
        return Err(Error::new(OPEN, Kind::Invalid, what));
    }
    let listener = TcpListener::bind((ip, 0)).map_err(|e| match e.kind() {
        io::ErrorKind::AddrNotAvailable => {
            let what = format!("this host does not have the address {ip}");
            Error::new(OPEN, Kind::Invalid, what).with_source(e)
        }
        _ => system(&format!("listening on {ip}"), e),
    })?;
    let at = listener
        .local_addr()
        .map_err(|e| system("getsockname", e))?;
    let own_key = || process_key().map_err(|e| system("getrandom", e));
    let shared = Arc::new(Shared {
        registrations: Registrations::default(),
        chunks: Chunks::of(gpu)?,
        poller: Poller::new().map_err(|e| system("epoll_create", e))?,
        node: random_number().map_err(|e| system("getrandom", e))?,
        key: options.key.map_or_else(own_key, Ok)?,
        encrypted: options.encrypted,
        atomics: Default::default(),
        events: Events::default(),
    });
    let name = at.to_string();
    let acceptor = Acceptor::new(name.clone(), Arc::clone(&shared), listener);
    let acceptor = acceptor.map_err(|e| system("listening", e))?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let (spin, sockets) = match processors < ENOUGH {
        true => (SHORT_SPIN, 1),
        false => (SPIN, DEFAULT_SOCKETS),
    };
    let common = Arc::new(Common::new(
        acceptor,
        Arc::clone(gpu.host()),
        false,
        spin,
        OPEN,
    )?);
    let thread = Some(common.spawn("gds-tcp", OPEN)?);
    let assistant = (gpu.is_software() && processors < ENOUGH).then(|| {
        let assistant = Assistant {
            gpu: gpu.clone(),
            common: Arc::clone(&common),
        };
        let machine = gpu.host().attach(Thread::Device, Box::new(assistant));
        (machine, gpu.clone())
    });
    Ok(Arc::new(TcpNic {
        name,
        at,
        sockets: [
            options.sockets.unwrap_or(1),
            options.sockets.unwrap_or(sockets),
        ],
        shared,
        common,
        thread,
        assistant,
        pds: AtomicU32::new(1),
        qpns: AtomicU32::new(1),
    }))
}

/// The thread of a software GPU assists while a stream waits: with few processors two threads that
/// spin would take turns at the scheduler's pace.
struct Assistant {
    gpu: Gpu,
    common: Arc<Common<Acceptor>>,
}

impl Machine for Assistant {
    fn step(&mut self, now: Time) -> Step {
        match self.gpu.runtime().waits() && self.common.assist(now) != Round::Idle {
            true => Step::Progress,
            false => Step::IdleUntil(None),
        }
    }

    fn name(&self) -> String {
        format!("{}.assistant", self.common.source.name)
    }

    fn awaits(&self) -> Awaits {
        Awaits::Rings
    }
}

impl TcpNic {
    fn relay(&self, qpn: u32, operation: &'static str) -> Result<SharedRelay<TcpQueues>> {
        let qps = self.common.source.qps.lock();
        qps.get(&qpn).cloned().ok_or_else(|| gone(qpn, operation))
    }

    /// How long a peer may show no sign of life; `None`: for any time.
    fn limit(path: &PathSettings) -> Option<Duration> {
        path.retry_time(RETRIES).map(|limit| limit.max(SHORTEST))
    }
}

impl Nic for TcpNic {
    fn provider(&self) -> Provider {
        Provider::Tcp
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn node(&self) -> u64 {
        self.shared.node
    }

    fn port(&self) -> Option<PortAddress> {
        Some(address::port(self.at))
    }

    fn layout(&self) -> Layout {
        Layout {
            align: BASIC_BLOCK,
            most_pieces: usize::MAX,
            takes_uar: true,
            reads_doorbell: false,
            // The CPU polls the queues all the time.
            device_queues: false,
        }
    }

    fn alloc_pd(&self) -> Result<PdId> {
        Ok(PdId(self.pds.fetch_add(1, Ordering::Relaxed)))
    }

    fn dealloc_pd(&self, _: PdId) {}

    fn reg_mr(&self, pd: PdId, region: &Region, access: Access) -> Result<MrKeys> {
        Ok(self.shared.registrations.add(pd, region, access))
    }

    fn dereg_mr(&self, keys: MrKeys) {
        self.shared.registrations.remove(keys);
        // No later request finds the memory. A request of a peer that is being executed in it ends.
        let relays: Vec<_> = self.common.source.qps.lock().values().cloned().collect();
        let withdraw =
            |relay: &SharedRelay<TcpQueues>| relay.with(|relay| relay.queues.withdraw(keys.rkey));
        if relays.iter().filter(|relay| withdraw(relay)).count() > 0 {
            self.common.ring();
        }
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn holds(&self, _: &Region) -> usize {
        1
    }

    fn create_qp(&self, pd: PdId, rings: &QpRings<'_>) -> Result<QpMade> {
        if rings.transport.is_ud() {
            let what = "TCP carries no datagrams; connect the queue pair, or use a NIC";
            return Err(Error::new("create queue pair", Kind::Unsupported, what));
        }
        // The numbers wrap.
        let qpn = loop {
            let qpn = self.qpns.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
            if !self.common.source.qps.lock().contains_key(&qpn) {
                break qpn;
            }
        };
        let (.., slots, stride) = rings.recv_ring;
        let limits = Limits {
            sends: REQUESTS,
            receives: slots as usize,
            send_sges: usize::MAX,
            recv_sges: stride as usize / SEGMENT,
            inline: INLINE,
        };
        let mut own = Rings::of(rings, qpn)?;
        let ring = self.reg_mr(pd, rings.send_ring.0, Access::LOCAL_READ)?;
        own.send_memory.lkey = ring.lkey;
        let limit = TcpNic::limit(&rings.path);
        let queues = TcpQueues::new(&self.shared, pd, rings.access, ring, limit);
        let relay = SharedMachine::new(Relay::new(queues, own, limits));
        self.shared.events.add(qpn, Vec::new(), 1, None);
        self.common.source.qps.lock().insert(qpn, relay.clone());
        self.common.change(|relays| relays.push(relay));
        Ok(QpMade {
            objects: QpObjects {
                qpn,
                start: rings.start,
            },
            doorbell: None,
        })
    }

    fn connect_qp(&self, qpn: u32, psn: u32, peer: &QpAddress) -> Result<()> {
        const OPERATION: &str = "connect";
        let Some(at) = address::socket(peer) else {
            let what = format!(
                "QP {:#x} of the peer is of a NIC, and this one is carried by TCP; use the same \
                 provider on both sides",
                peer.qpn
            );
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        };
        let own = End {
            node: self.shared.node,
            qpn,
            psn,
        };
        let there = End {
            node: peer.node,
            qpn: peer.qpn,
            psn: peer.psn,
        };
        let itself = match own == there {
            false => None,
            true => Some(Socket::to_itself(&self.shared.poller).map_err(|e| {
                let what = format!("the call socketpair failed: {e}");
                Error::new(OPERATION, Kind::System, what).with_source(e)
            })?),
        };
        let sockets = self.sockets[usize::from(at.ip() != self.at.ip())];
        self.relay(qpn, OPERATION)?.with(|relay| {
            match itself {
                Some(wire) => relay.queues.connect_to_itself([own; 2], Box::new(wire)),
                // Of the two sides, one connects.
                None => relay
                    .queues
                    .connect([own, there], (own < there).then_some((at, sockets))),
            }
            relay.up();
            relay.receive();
        });
        self.common.ring();
        Ok(())
    }

    fn activate_qp(&self, _: u32, _: u32, _: u32) -> Result<()> {
        let what = "TCP carries no datagrams";
        Err(Error::new("activate", Kind::Unsupported, what))
    }

    fn create_ah(&self, _: PdId, _: &AhAttr) -> Result<Ah> {
        let what = "TCP carries no datagrams";
        Err(Error::new("create destination", Kind::Unsupported, what))
    }

    fn destroy_ah(&self, _: u64) {}

    fn modify_to_error(&self, qpn: u32) -> bool {
        if let Ok(relay) = self.relay(qpn, "modify to error") {
            relay.with(|relay| relay.fail());
            self.common.ring();
        }
        true
    }

    fn reset_qp(&self, qpn: u32) -> Result<()> {
        self.relay(qpn, "reset queue pair")?.with(|relay| {
            relay.queues.reset();
            relay.down();
        });
        self.shared.events.reset(qpn);
        Ok(())
    }

    fn reports(&self) -> u32 {
        self.shared.events.changes()
    }

    fn report(&self, qpn: u32, now: Time) -> Report {
        self.shared.events.of(qpn, now)
    }

    fn cq_indices(&self, objects: &QpObjects) -> Result<Option<(u64, u64)>> {
        let relay = self.relay(objects.qpn, "query completion queues")?;
        let (send, recv) = relay.with(|relay| relay.positions());
        Ok(Some((send.into(), recv.into())))
    }

    fn destroy_qp(&self, objects: &QpObjects) {
        let Ok(relay) = self.relay(objects.qpn, "destroy queue pair") else {
            return;
        };
        self.shared.events.forget(objects.qpn);
        // The thread may hold the relay for a while: the connection is closed now.
        let ring = relay.with(|relay| {
            relay.queues.reset();
            relay.down();
            relay.queues.ring()
        });
        // Only now: `dereg_mr` must find a queue pair that may use registered memory.
        self.common.source.qps.lock().remove(&objects.qpn);
        self.common
            .change(|relays| relays.retain(|other| !other.is(&relay)));
        self.shared.registrations.remove(ring);
    }

    fn is_on_host(&self) -> bool {
        false
    }

    fn ring(&self) {
        self.common.ring();
    }

    fn ring_sends(&self, qpn: u32) {
        // By the thread that posts: no change of threads before the first byte.
        if let Ok(relay) = self.relay(qpn, "post send") {
            self.common.push(&relay);
        }
    }

    fn wait_until(
        &self,
        _: &dyn Host,
        deadline: Option<Time>,
        condition: &mut dyn FnMut() -> bool,
    ) -> bool {
        self.common.wait_until(deadline, condition)
    }

    fn expects(&self) -> bool {
        true
    }

    fn expect(&self, qpn: u32, send: u32, recv: u32) {
        if let Ok(relay) = self.relay(qpn, "expect posts") {
            relay.with(|relay| relay.expect(send, recv));
            // An assistant finds the posts, as long as a stream waits; the thread naps meanwhile, and finds
            // those behind the last wait.
            let assisted = |(_, gpu): &(_, Gpu)| gpu.runtime().waits();
            match self.assistant.as_ref().is_some_and(assisted) {
                true => self.common.ring_sleeper(),
                false => self.common.ring_for_posts(),
            }
        }
    }
}

impl Drop for TcpNic {
    fn drop(&mut self) {
        if let Some((machine, _)) = self.assistant.take() {
            self.common.host().detach(machine);
        }
        self.common.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported where it happened.
            let _ = thread.join();
        }
        self.common.source.qps.lock().clear();
        self.common.change(Vec::clear);
        let end = Instant::now() + LAST;
        while self.shared.poller.sweep(true) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
