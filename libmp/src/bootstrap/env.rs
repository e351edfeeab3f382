//! The rank and the job of this process, from the environment variables of its launcher.
//!
//! The first of these launchers that names a rank counts: explicit (`MP_RANK`), torchrun (`RANK`
//! and `WORLD_SIZE`), Open MPI and PMIx, PMI, SLURM. Without any, the job has one rank. `MP_STORE`
//! (`tcp://host:port` or `file:///directory`) says where the ranks meet. Without it, ranks of one
//! host meet in a private directory, named by the launcher's job. Ranks that torchrun started on
//! several hosts then meet at a store of rank 0. `docs/env.md` lists all variables.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gdsync_sys::launcher::{Get, LAUNCHERS};
use rustix::process::getpid;

use super::job_dir;
use super::tcp::{Join, Server};
use super::{Bootstrap, Directory, Local, Secret, Tcp, lock};
use crate::error::{Error, Kind, Result};

const READ: &str = "read environment";

/// The default time limit for the other ranks to join.
const LIMIT: Duration = Duration::from_secs(60);

/// How long a process that hosts the store waits at its exit for the other ranks to leave.
const LINGER: Duration = Duration::from_secs(2);

/// The rank, the job and the meeting place that an environment describes; [`join`](Plan::join)
/// joins there. [`from_env`] does both with the variables of the process.
///
/// ```
/// use mp::bootstrap::env::{Plan, Rendezvous};
///
/// let vars = |name: &str| match name {
///     "MP_RANK" => Some("2".to_owned()),
///     "MP_SIZE" => Some("4".to_owned()),
///     "MP_STORE" => Some("file:///shared/job-17".to_owned()),
///     _ => None,
/// };
/// let plan = Plan::from_vars(&vars)?;
/// assert_eq!((plan.rank, plan.size, plan.launcher), (2, 4, "MP_RANK"));
/// assert!(matches!(plan.rendezvous, Rendezvous::Directory(_)));
/// # Ok::<(), mp::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// This rank's number, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    /// The launcher that set the rank: `MP_RANK`, `torchrun`, `Open MPI`, `PMIx`, `PMI`, `SLURM` or
    /// `nothing`.
    pub launcher: &'static str,
    /// Where the ranks meet.
    pub rendezvous: Rendezvous,
    /// The job's name; empty if it has none.
    pub name: String,
    /// The time limit for the other ranks to join: `MP_START_TIMEOUT`, default 60 s.
    pub limit: Duration,
}

/// The place where the ranks of a job meet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rendezvous {
    /// No place: the job has one rank.
    Alone,
    /// At a store over TCP: [`Tcp`].
    Store {
        /// The host and port of the store: `host:port`.
        address: String,
        /// The job's secret.
        secret: Secret,
        /// The address on which this process, as rank 0, hosts the store. None if another process
        /// hosts it.
        bind: Option<SocketAddr>,
    },
    /// In this directory: [`Directory`].
    Directory(PathBuf),
    /// On this host, in a private directory with a name derived from this one.
    OneHost(String),
}

impl Plan {
    /// Reads the plan from variables; `get` returns the value of a variable.
    ///
    /// # Errors
    /// `Invalid` for a variable with an invalid value, with its name; `Unsupported` if the ranks
    /// have no place to meet, with the variables to set.
    pub fn from_vars(get: &dyn Fn(&str) -> Option<String>) -> Result<Plan> {
        let vars = Vars(get);
        let identity = vars.identity()?;
        let name = vars.text("MP_JOB").unwrap_or_default();
        let limit = match vars.text("MP_START_TIMEOUT") {
            None => LIMIT,
            Some(text) => {
                let seconds = text.parse::<f64>().ok();
                let limit = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
                let limit = limit.filter(|l| !l.is_zero());
                limit.ok_or_else(|| {
                    invalid("MP_START_TIMEOUT", &text, "a number of seconds above 0")
                })?
            }
        };
        if identity.rank >= identity.size {
            let what = format!(
                "{} sets rank {} of {} ranks, and ranks are numbered from 0",
                identity.launcher, identity.rank, identity.size
            );
            return Err(Error::new(READ, Kind::Invalid, what));
        }
        let rendezvous = vars.rendezvous(&identity, &name)?;
        Ok(Plan {
            rank: identity.rank,
            size: identity.size,
            launcher: identity.launcher,
            rendezvous,
            name,
            limit,
        })
    }

    /// Joins the job and waits until all ranks have joined, at most [`limit`](Plan::limit). If this
    /// rank hosts the store, the call starts it; the store runs until all ranks have left, or the
    /// process ends.
    ///
    /// # Errors
    /// As [`Tcp::join`], [`Server::start`] and [`Directory::join`]; `Absent` if ranks of one host
    /// have no directory to meet in.
    pub fn join(&self) -> Result<Arc<dyn Bootstrap>> {
        let Plan {
            rank, size, limit, ..
        } = *self;
        Ok(match &self.rendezvous {
            Rendezvous::Alone => Local::ranks(1).remove(0),
            Rendezvous::Directory(path) => Arc::new(Directory::join(path, rank, size, limit)?),
            Rendezvous::OneHost(name) => {
                let path = job_dir::path_of(name)?;
                Arc::new(Directory::join_in(&path, rank, size, limit, true)?)
            }
            Rendezvous::Store {
                address,
                secret,
                bind,
            } => {
                let join = Join::new(address, (rank, size), secret, limit).name(&self.name);
                let server = match bind.filter(|_| rank == 0) {
                    Some(bind) => Some(Server::start(bind, secret, &self.name, size)?),
                    None => None,
                };
                let tcp = Tcp::join(&join)?;
                if let Some(server) = server {
                    *lock(&HOSTED) = server.release();
                }
                Arc::new(tcp)
            }
        })
    }
}

/// Rank and job of this process, as its launcher sets them.
struct Identity {
    rank: u32,
    size: u32,
    launcher: &'static str,
    /// The launcher's name or number of the job.
    job: String,
    /// Whether all ranks are on this host. None if the launcher does not say.
    one_host: Option<bool>,
}

struct Vars<'a>(Get<'a>);

impl Vars<'_> {
    /// The value of a variable that is set and not empty.
    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|text| !text.is_empty())
    }

    /// The first of these variables that is set, as a number.
    fn number(&self, names: &[&str]) -> Result<Option<u32>> {
        for name in names {
            if let Some(text) = self.text(name) {
                let number = text.parse().map_err(|_| invalid(name, &text, "a number"));
                return number.map(Some);
            }
        }
        Ok(None)
    }

    /// The number that must be set because `with` is set.
    fn needed(&self, names: &[&str], with: &str) -> Result<u32> {
        self.number(names)?.ok_or_else(|| {
            let names = names.join(" or ");
            let what = format!("{with} is set and {names} is not; set both");
            Error::new(READ, Kind::Invalid, what)
        })
    }

    fn first(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.text(name))
    }

    fn identity(&self) -> Result<Identity> {
        for launcher in &LAUNCHERS {
            let rank = self.number(&[launcher.rank])?;
            if launcher.name == "torchrun" {
                // A value that is not a number is refused, whether or not a rank is set.
                self.number(launcher.with)?;
            }
            let Some(rank) = rank.filter(|_| self.first(launcher.with).is_some()) else {
                // MP_SIZE may be set beside PMIX_RANK.
                let explicit = launcher.name == "MP_RANK" && self.text("MP_SIZE").is_some();
                if explicit && self.text("PMIX_RANK").is_none() {
                    let what =
                        "MP_SIZE is set and MP_RANK is not; set both for each rank, or neither";
                    return Err(Error::new(READ, Kind::Invalid, what));
                }
                continue;
            };
            let size = self.needed(launcher.size, launcher.rank)?;
            let here = self.number(launcher.here)?.map(|here| here == size);
            let one = self.number(launcher.hosts)?.map(|hosts| hosts == 1);
            let master = self.text("MASTER_ADDR");
            let local = launcher.name == "torchrun" && master.is_none_or(|host| is_loopback(&host));
            let job = launcher.job.iter();
            let job = job.map(|part| self.first(part).unwrap_or_default());
            return Ok(Identity {
                rank,
                size,
                launcher: launcher.name,
                job: job.collect::<Vec<_>>().join("."),
                one_host: here.or(one).or(local.then_some(true)),
            });
        }
        Ok(Identity {
            rank: 0,
            size: 1,
            launcher: "nothing",
            job: String::new(),
            one_host: Some(true),
        })
    }

    fn rendezvous(&self, identity: &Identity, name: &str) -> Result<Rendezvous> {
        if identity.size == 1 {
            return Ok(Rendezvous::Alone);
        }
        if let Some(store) = self.text("MP_STORE") {
            if let Some(path) = store.strip_prefix("file://") {
                return match path.starts_with('/') {
                    true => Ok(Rendezvous::Directory(path.into())),
                    false => Err(invalid("MP_STORE", &store, "file:///directory")),
                };
            }
            let Some(address) = store.strip_prefix("tcp://") else {
                let may = "tcp://host:port or file:///directory";
                return Err(invalid("MP_STORE", &store, may));
            };
            let address = address.trim_end_matches('/');
            return self.store(identity.rank, address, &|| {
                invalid("MP_STORE", &store, "tcp://host:port")
            });
        }
        match (identity.launcher, identity.one_host) {
            ("torchrun", Some(false) | None) => {
                let host = self.text("MASTER_ADDR").unwrap_or_default();
                // Torch's own store uses MASTER_PORT itself.
                let port = u64::from(self.needed(&["MASTER_PORT"], "MASTER_ADDR")?) + 1;
                let address = match host.contains(':') {
                    true => format!("[{host}]:{port}"),
                    false => format!("{host}:{port}"),
                };
                let may = "the host of rank 0, and MASTER_PORT to a port below 65535";
                self.store(identity.rank, &address, &|| {
                    invalid("MASTER_ADDR", &host, may)
                })
            }
            ("MP_RANK", _) if name.is_empty() => Err(unsupported(
                "MP_RANK is set and neither MP_STORE nor MP_JOB is; set MP_STORE to tcp://host:port \
                 or file:///directory, or, on one host, MP_JOB to a name",
            )),
            (_, Some(false)) => Err(unsupported(&format!(
                "{} started ranks on several hosts, which need a store; set MP_STORE to \
                 file:///directory on a shared file system, or to tcp://host:port on the host of \
                 rank 0 with MP_SECRET and MP_BIND",
                identity.launcher
            ))),
            _ => {
                let job = match (name, identity.job.as_str()) {
                    ("", "") => job_dir::name_of_parent(),
                    ("", job) => job.into(),
                    (name, _) => name.into(),
                };
                Ok(Rendezvous::OneHost(format!(
                    "{}.{}.{job}",
                    identity.launcher, identity.size
                )))
            }
        }
    }

    /// A store over TCP; `wrong` is the error for an address that is not valid.
    fn store(&self, rank: u32, address: &str, wrong: &dyn Fn() -> Error) -> Result<Rendezvous> {
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse::<u16>().map_err(|_| wrong())?;
        if host.is_empty() {
            return Err(wrong());
        }
        let Some(secret) = self.text("MP_SECRET") else {
            let what = "a store over TCP needs a secret; set MP_SECRET to one random text for all \
                        ranks";
            return Err(Error::new(READ, Kind::Invalid, what));
        };
        let bind = match self.text("MP_SERVE").as_deref() {
            Some("0") => None,
            None | Some("1") => {
                let address = match self.text("MP_BIND") {
                    // Rank 0 would listen on loopback, where ranks of other hosts cannot connect.
                    None if rank == 0 && !is_loopback(host) => {
                        let what = format!(
                            "rank 0 hosts the store at {address} and listens on loopback by \
                             default; set MP_BIND to an address of this host, or to 0.0.0.0"
                        );
                        return Err(Error::new(READ, Kind::Invalid, what));
                    }
                    None => IpAddr::from(Ipv4Addr::LOCALHOST),
                    Some(text) => text
                        .parse()
                        .map_err(|_| invalid("MP_BIND", &text, "an address to listen on"))?,
                };
                Some(SocketAddr::new(address, port))
            }
            Some(other) => return Err(invalid("MP_SERVE", other, "0 or 1")),
        };
        Ok(Rendezvous::Store {
            address: address.into(),
            secret: Secret::from_text(&secret)?,
            bind,
        })
    }
}

/// Whether a host's name or address is loopback, which only this host can reach.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|a| a.is_loopback())
}

#[cold]
fn invalid(name: &str, value: &str, may: &str) -> Error {
    let what = format!("{name}={value:?} is not valid; set it to {may}");
    Error::new(READ, Kind::Invalid, what)
}

#[cold]
fn unsupported(text: &str) -> Error {
    Error::new(READ, Kind::Unsupported, text)
}

/// Joins the job that the launcher of this process started, and returns its bootstrap. It waits
/// until all ranks have joined, at most 60 s (`MP_START_TIMEOUT`).
///
/// The process joins once: every call returns the same bootstrap. The process leaves the job when
/// it ends normally. If rank 0 hosts the store, its process then waits up to two seconds for the
/// other ranks. A rank that runs longer than that cannot reach ranks that it has not connected to
/// yet.
///
/// # Errors
/// As [`Plan::from_vars`] and [`Plan::join`].
pub fn from_env() -> Result<Arc<dyn Bootstrap>> {
    let mut joined = lock(&JOINED);
    if let Some(joined) = joined.as_ref() {
        return Ok(Arc::clone(joined));
    }
    let plan = Plan::from_vars(&|name| std::env::var(name).ok())?;
    let bootstrap = plan.join()?;
    if !matches!(plan.rendezvous, Rendezvous::Alone) {
        PROCESS.store(getpid().as_raw_pid(), Ordering::Relaxed);
        job_dir::at_exit(leave);
    }
    *joined = Some(Arc::clone(&bootstrap));
    Ok(bootstrap)
}

/// The thread of the store that this process hosts.
static HOSTED: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// The bootstrap of the job that this process has joined.
static JOINED: Mutex<Option<Arc<dyn Bootstrap>>> = Mutex::new(None);

/// The process that has joined: a forked copy of it must not leave the job.
/// Relaxed: the value is stored before the thread that joins registers the function that loads it.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Leaves the job at exit, so that other ranks see it and no files remain.
extern "C" fn leave() {
    let ours = PROCESS.load(Ordering::Relaxed) == getpid().as_raw_pid();
    // If another thread is joining at this moment, the process ends without leaving.
    if ours && let Ok(mut joined) = JOINED.try_lock() {
        let left = joined.take();
        drop(joined);
        drop(left);
        linger();
    }
}

/// Waits up to [`LINGER`] for the other ranks, which need the store that this process hosts to
/// leave.
fn linger() {
    if let Ok(hosted) = HOSTED.try_lock()
        && let Some(thread) = hosted.as_ref()
    {
        let end = Instant::now() + LINGER;
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
