//! A proxy between two devices, which does to a connection what networks and peers do.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often threads that wait look whether they are to end.
const TICK: Duration = Duration::from_millis(5);

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Act {
    #[default]
    Nothing,
    /// The connection is reset.
    Reset,
    /// Both sides find the end of the other's bytes.
    End,
    /// Nothing is read or written any more, in both directions.
    Stall,
    /// One byte is changed: XOR.
    Corrupt(u8),
}

/// The plan of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// What happens behind this many bytes.
    pub at: u64,
    pub act: Act,
    /// Bytes are forwarded one by one.
    pub split: bool,
    /// The seed of lengths and pauses; 0: none.
    pub pauses: u64,
}

/// From the side that connects, and to it.
pub type Plan = [Way; 2];

struct Link {
    streams: [TcpStream; 2],
    /// Forwarded bytes of each direction.
    counts: [AtomicU64; 2],
    stalled: AtomicBool,
    /// Bytes of each direction, if they are recorded.
    record: Option<[Mutex<Vec<u8>>; 2]>,
}

struct Shared {
    target: Mutex<SocketAddr>,
    /// For the next connections, in this order; later ones are forwarded as they are.
    plans: Mutex<Vec<Plan>>,
    records: AtomicBool,
    links: Mutex<Vec<Arc<Link>>>,
    stop: AtomicBool,
}

pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    pub fn to(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            plans: Mutex::default(),
            records: AtomicBool::new(false),
            links: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let address = listener.local_addr().unwrap();
        let accepting = Arc::clone(&shared);
        let thread = std::thread::spawn(move || accept(&accepting, &listener));
        Proxy {
            address,
            shared,
            thread: Some(thread),
        }
    }

    /// Where later connections go.
    pub fn aim(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap() = target;
    }

    /// What happens to the next connections. Closes the present ones.
    pub fn plan(&self, plans: impl IntoIterator<Item = Plan>) {
        self.close();
        *self.shared.plans.lock().unwrap() = plans.into_iter().collect();
    }

    /// Keeps the bytes of later connections.
    pub fn record(&self) {
        self.shared.records.store(true, SeqCst);
    }

    /// Number of connections since the last [`Proxy::plan`].
    pub fn connections(&self) -> usize {
        self.shared.links.lock().unwrap().len()
    }

    /// Bytes of the last connection.
    pub fn counts(&self) -> [u64; 2] {
        let links = self.shared.links.lock().unwrap();
        let last = links.last();
        last.map_or([0; 2], |link| {
            link.counts.each_ref().map(|n| n.load(SeqCst))
        })
    }

    /// The bytes of the first connection since the last [`Proxy::plan`], if they are recorded.
    pub fn recorded(&self) -> [Vec<u8>; 2] {
        let links = self.shared.links.lock().unwrap();
        let record = links.first().and_then(|link| link.record.as_ref());
        record
            .unwrap()
            .each_ref()
            .map(|bytes| bytes.lock().unwrap().clone())
    }

    /// Ends what the present connections do from now on with an act.
    pub fn act(&self, act: Act) {
        for link in &*self.shared.links.lock().unwrap() {
            link.act(act);
        }
    }

    fn close(&self) {
        for link in self.shared.links.lock().unwrap().drain(..) {
            link.act(Act::Reset);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().unwrap().join();
        self.close();
    }
}

impl Link {
    fn act(&self, act: Act) {
        match act {
            Act::Nothing | Act::Corrupt(_) => {}
            Act::Stall => self.stalled.store(true, SeqCst),
            Act::End => {
                for stream in &self.streams {
                    let _ = stream.shutdown(Shutdown::Write);
                }
            }
            Act::Reset => {
                self.stalled.store(false, SeqCst);
                for stream in &self.streams {
                    // Linux resets a connection that is disconnected like this.
                    let _ = rustix::net::connect_unspec(stream);
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        // A test may leave the process without descriptors.
        let Ok((near, _)) = listener.accept() else {
            std::thread::sleep(TICK);
            continue;
        };
        if shared.stop.load(SeqCst) {
            return;
        }
        let target = *shared.target.lock().unwrap();
        let Ok(far) = TcpStream::connect(target) else {
            continue;
        };
        let streams = [near, far];
        for stream in &streams {
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(TICK)).unwrap();
            stream.set_write_timeout(Some(TICK)).unwrap();
        }
        let mut plans = shared.plans.lock().unwrap();
        let plan = match plans.is_empty() {
            true => Plan::default(),
            false => plans.remove(0),
        };
        let link = Arc::new(Link {
            streams,
            counts: Default::default(),
            stalled: AtomicBool::new(false),
            record: shared.records.load(SeqCst).then(Default::default),
        });
        shared.links.lock().unwrap().push(Arc::clone(&link));
        drop(plans);
        for (way, plan) in plan.into_iter().enumerate() {
            let link = Arc::clone(&link);
            std::thread::spawn(move || pump(&link, way, plan));
        }
    }
}

fn write(link: &Link, way: usize, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match (&link.streams[1 - way]).write(bytes) {
            Ok(n) => {
                if let Some(record) = &link.record {
                    record[way].lock().unwrap().extend_from_slice(&bytes[..n]);
                }
                link.counts[way].fetch_add(n as u64, SeqCst);
                bytes = &bytes[n..];
            }
            Err(e) if waits(&e) => {}
            Err(_) => return false,
        }
    }
    true
}

fn waits(e: &std::io::Error) -> bool {
    let again = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
    again.contains(&e.kind()) || e.kind() == ErrorKind::Interrupted
}

/// Forwards one direction until its end.
fn pump(link: &Link, way: usize, plan: Way) {
    let mut rng = fastrand::Rng::with_seed(plan.pauses);
    let mut buffer = vec![0; 64 * 1024];
    let (mut position, mut act) = (0, plan.act);
    loop {
        if link.stalled.load(SeqCst) {
            // Until the test closes the connection.
            std::thread::sleep(TICK);
            continue;
        }
        // Without a byte of the connection, as an act before the first one.
        if act != Act::Nothing && !matches!(act, Act::Corrupt(_)) && position == plan.at {
            link.act(act);
            act = Act::Nothing;
            continue;
        }
        let most = match (plan.pauses, act) {
            (0, _) => buffer.len(),
            _ => rng.usize(1..2000),
        };
        let n = match (&link.streams[way]).read(&mut buffer[..most]) {
            Ok(0) => {
                let _ = link.streams[1 - way].shutdown(Shutdown::Write);
                return;
            }
            Ok(n) => n,
            Err(e) if waits(&e) => continue,
            Err(_) => return link.act(Act::Reset),
        };
        if plan.pauses != 0 && rng.u32(..4) == 0 {
            std::thread::sleep(Duration::from_micros(rng.u64(..300)));
        }
        let mut bytes = &mut buffer[..n];
        let behind = plan.at.wrapping_sub(position);
        let hit =
            act != Act::Nothing && behind < n as u64 + u64::from(!matches!(act, Act::Corrupt(_)));
        if let (true, Act::Corrupt(mask)) = (hit, act) {
            bytes[behind as usize] ^= mask;
            act = Act::Nothing;
        } else if hit {
            bytes = &mut bytes[..behind as usize];
        }
        position += n as u64;
        let done = match plan.split {
            true => bytes.chunks(1).all(|byte| write(link, way, byte)),
            false => write(link, way, bytes),
        };
        if !done {
            return link.act(Act::Reset);
        }
        if hit && act != Act::Nothing {
            link.act(act);
            act = Act::Nothing;
            if matches!(plan.act, Act::End) {
                return drain(link, way);
            }
        }
    }
}

/// Drops bytes until the end of the connection.
fn drain(link: &Link, way: usize) {
    let mut buffer = [0; 4096];
    loop {
        match (&link.streams[way]).read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(e) if waits(&e) => {}
            Err(_) => return,
        }
    }
}
