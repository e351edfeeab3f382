//! Counters of a context: the messages and operations that ended, and the waits, by peer. The lock
//! of the context's state guards them, so counting is an addition.
//! [`Context::stats`](crate::Context::stats) copies them.

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::AddAssign;

use gdsync::Status;

use crate::path::Path;
use crate::request::entry::{Entry, Operation};
use crate::request::one_sided::Action;

/// Numbers of one peer, or sums over several. They count from the build of the context.
///
/// A message or an operation counts when it has ended with success, and the calls or the background
/// work of this rank have noticed it: at the latest when its wait on the CPU, [`Context::flush`] or
/// [`Context::close`] has returned, and about a millisecond after its end otherwise.
///
/// [`Context::flush`]: crate::Context::flush
/// [`Context::close`]: crate::Context::close
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Messages sent to the peer.
    pub sends: u64,
    /// Messages received from the peer.
    pub receives: u64,
    /// Of these messages, those up to the eager limit: sends by the length of their segments,
    /// receives by the length of the message.
    pub eager: u64,
    /// Of these messages, those above the eager limit (rendezvous).
    pub large: u64,
    /// Puts to windows of the peer.
    pub puts: u64,
    /// Gets from windows of the peer.
    pub gets: u64,
    /// Signals to windows of the peer, also those behind a put.
    pub signals: u64,
    /// Fetch-adds and compare-swaps on words of the peer.
    pub atomics: u64,
    /// Steps of neighbourhoods. A step counts for each neighbour that the peer is.
    pub steps: u64,
    /// Collective calls with the peer. A call counts for each other rank, when it is posted.
    pub collectives: u64,
    /// Bytes of sends and puts, and those that steps and collective calls send to the peer.
    pub bytes_out: u64,
    /// Bytes of receives and gets, and those that steps and collective calls receive from the peer.
    pub bytes_in: u64,
    /// Waits for requests with the peer and for its signals: calls of the CPU, and waits that were
    /// enqueued on streams. A wait for several requests counts for each.
    pub waits: u64,
    /// Calls that found a queue to the peer full: they were tried again until there was room, or
    /// failed with `QueueFull` ([`Builder::full`](crate::Builder::full)). Retransmissions of the NIC
    /// do not count: the NIC does not report them.
    pub retries: u64,
    /// Requests that reached their time limit.
    pub timeouts: u64,
    /// Requests that failed, for whatever reason.
    pub failures: u64,
}

impl Counts {
    /// Messages in both directions.
    pub fn messages(&self) -> u64 {
        self.sends + self.receives
    }

    /// Counts a request that ends with `status`; its entry has its final length `len`.
    pub(crate) fn ended(&mut self, entry: &Entry, status: Status, len: u64, eager_limit: u64) {
        if status != Status::SUCCESS {
            self.failures += u64::from(status != Status::CANCELLED);
            return;
        }
        match &entry.operation {
            Operation::Send(_) => {
                self.sends += 1;
                self.bytes_out += len;
                self.message(entry.large);
            }
            Operation::Receive(_) => {
                self.receives += 1;
                self.bytes_in += len;
                self.message(len > eager_limit);
            }
            Operation::ZeroSm(message) => {
                let (count, bytes) = match message.sends {
                    true => (&mut self.sends, &mut self.bytes_out),
                    false => (&mut self.receives, &mut self.bytes_in),
                };
                *count += 1;
                *bytes += len;
                self.message(len > eager_limit);
            }
            Operation::Transfer(transfer) => match transfer.action {
                Action::Put => {
                    self.puts += 1;
                    self.bytes_out += len;
                    self.signals += u64::from(transfer.signals);
                }
                Action::Get => {
                    self.gets += 1;
                    self.bytes_in += len;
                }
                Action::Signal => self.signals += 1,
                Action::FetchAdd | Action::CompareSwap => self.atomics += 1,
                _ => {}
            },
            // Steps and collective calls have several peers; see `exchanged`.
            Operation::Signal(_) | Operation::Step(_) | Operation::Collective(_) => {}
        }
    }

    /// Counts the bytes that one step or collective call sends to the peer and receives from it.
    pub(crate) fn exchanged(&mut self, [out, into]: [u64; 2]) {
        self.bytes_out += out;
        self.bytes_in += into;
    }

    fn message(&mut self, large: bool) {
        self.large += u64::from(large);
        self.eager += u64::from(!large);
    }

    /// The columns of the table.
    fn columns(&self) -> [(&'static str, u64); 16] {
        [
            ("sends", self.sends),
            ("receives", self.receives),
            ("eager", self.eager),
            ("large", self.large),
            ("puts", self.puts),
            ("gets", self.gets),
            ("signals", self.signals),
            ("atomics", self.atomics),
            ("steps", self.steps),
            ("collectives", self.collectives),
            ("bytes out", self.bytes_out),
            ("bytes in", self.bytes_in),
            ("waits", self.waits),
            ("retries", self.retries),
            ("timeouts", self.timeouts),
            ("failures", self.failures),
        ]
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.sends += other.sends;
        self.receives += other.receives;
        self.eager += other.eager;
        self.large += other.large;
        self.puts += other.puts;
        self.gets += other.gets;
        self.signals += other.signals;
        self.atomics += other.atomics;
        self.steps += other.steps;
        self.collectives += other.collectives;
        self.bytes_out += other.bytes_out;
        self.bytes_in += other.bytes_in;
        self.waits += other.waits;
        self.retries += other.retries;
        self.timeouts += other.timeouts;
        self.failures += other.failures;
    }
}

/// The numbers of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStats {
    /// The peer; `None`: receives from any rank that matched no message, and calls that found a
    /// queue full which belongs to no peer.
    pub peer: Option<u32>,
    /// The path to the peer.
    pub path: Option<Path>,
    /// Its numbers.
    pub counts: Counts,
}

/// What a context has done so far, by peer: from [`Context::stats`](crate::Context::stats).
///
/// [`Display`](fmt::Display) is a table with a row for each peer and their sum, without the columns
/// that are 0 everywhere.
///
/// ```
/// use std::time::Duration;
///
/// # use mp::{Context, Path, bootstrap::Local, gdsync::{Gpu, gpu::MemoryKind}};
/// # let alone = Local::ranks(1).remove(0);
/// # let ctx = Context::builder().bootstrap(alone).gpu(&Gpu::soft()?).build()?;
/// let memory = ctx.alloc(MemoryKind::Pinned, 16)?;
/// let recv = ctx.irecv(0, 7, &memory.slice(8, 8)?)?; // this rank sends to itself
/// let send = ctx.isend(0, 7, &memory.slice(0, 8)?)?;
/// mp::wait_all(&[recv, send], Duration::from_secs(10))?;
///
/// let stats = ctx.stats();
/// let counts = stats.of(0);
/// assert_eq!((counts.sends, counts.receives, counts.bytes_in), (1, 1, 8));
/// assert_eq!(stats.by(Path::Nic).messages(), 0);
/// println!("{stats}");
/// # Ok::<(), mp::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The rank of the context.
    pub rank: u32,
    /// The peers that this rank has used, by number.
    pub peers: Vec<PeerStats>,
}

impl Stats {
    /// The numbers of one peer; all 0 if this rank has not used it.
    pub fn of(&self, peer: u32) -> Counts {
        self.sum(|row| row.peer == Some(peer))
    }

    /// The sum over the peers of one path.
    pub fn by(&self, path: Path) -> Counts {
        self.sum(|row| row.path == Some(path))
    }

    /// The sum over all.
    pub fn total(&self) -> Counts {
        self.sum(|_| true)
    }

    fn sum(&self, counts: impl Fn(&PeerStats) -> bool) -> Counts {
        let mut sum = Counts::default();
        let rows = self.peers.iter().filter(|row| counts(row));
        rows.for_each(|row| sum += row.counts);
        sum
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total().columns();
        let shown = |column: &usize| total[*column].1 > 0;
        let shown: Vec<usize> = (0..total.len()).filter(shown).collect();
        let row = |f: &mut fmt::Formatter<'_>, name: &str, path: &str, cells: &[(&str, u64)]| {
            write!(f, "{name:<8} {path:<5}")?;
            for column in &shown {
                let width = total[*column]
                    .0
                    .len()
                    .max(total[*column].1.to_string().len());
                write!(f, "  {:>width$}", cells[*column].1)?;
            }
            writeln!(f)
        };
        write!(f, "{:<8} {:<5}", format!("rank {}", self.rank), "path")?;
        for column in &shown {
            let (name, most) = total[*column];
            write!(f, "  {name:>0$}", name.len().max(most.to_string().len()))?;
        }
        writeln!(f)?;
        for peer in &self.peers {
            let name = peer
                .peer
                .map_or("none".to_owned(), |rank| format!("to {rank}"));
            let path = peer.path.map_or("-", |path| match path {
                Path::Nic => "nic",
                Path::Local => "local",
                Path::Ipc => "ipc",
                Path::Tcp => "tcp",
            });
            row(f, &name, path, &peer.counts.columns())?;
        }
        row(f, "total", "", &total)
    }
}
