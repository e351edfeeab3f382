//! The settings of a context ([`Config`]), their defaults and their limits.

use std::path::PathBuf;
use std::time::Duration;

use gdsync::rdma::Doorbell;

use super::channels::MOST_CHANNELS;
use crate::error::{Error, Kind, Result};
use crate::path::{Path, PathChoice, switch};
use crate::trace::MOST_EVENTS;
use crate::wire::control::Shape;

/// When a context connects its peers, for [`Builder::connect`](crate::Builder::connect).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Connect {
    /// With the first message to or from the peer: that call waits for the background work of the
    /// peer, at most the timeout of the context.
    #[default]
    Lazy,
    /// All peers, before [`Builder::build`](crate::Builder::build) returns.
    UpFront,
}

/// What drives the background work of a context, for
/// [`Builder::progress`](crate::Builder::progress).
///
/// It is the work that neither streams nor NICs can do: opening connections, detecting failures,
/// retiring requests, matching receives from any rank, and advancing CPU requests while no call
/// waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Progress {
    /// A thread of the context, about once a millisecond.
    #[default]
    Background,
    /// The program, by [`Context::progress`](crate::Context::progress); calls that wait do the work
    /// too. Without these calls, other ranks that connect to this rank, or wait for a message that
    /// its CPU sends, wait until their timeout.
    Manual,
}

/// What a call does if the queues are full of work in flight, for
/// [`Builder::full`](crate::Builder::full).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Full {
    /// Waits for room, at most twice the context's timeout, then fails with `QueueFull`. The time
    /// starts again if a peer is given up meanwhile. If a receive from any rank matches meanwhile,
    /// the call waits at most one more timeout, for the connection.
    #[default]
    Wait,
    /// Fails with `QueueFull` at once. The call may be repeated when messages have ended.
    Fail,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub name: String,
    /// `None`: that of the path.
    pub eager_limit: Option<usize>,
    pub depth: u32,
    pub timeout: Duration,
    pub watchdog: Duration,
    pub connect: Connect,
    pub progress: Progress,
    pub full: Full,
    pub doorbell: Doorbell,
    /// `None`: `MP_PATH`.
    pub path: Option<PathChoice>,
    /// `None`: `MP_ZERO_SM`.
    pub zero_sm: Option<bool>,
    pub channels: usize,
    pub start: u64,
    /// `MP_TCP_PACK`: whether kernels pack messages of device memory that TCP carries. `None`: if the GPU
    /// is not the software GPU.
    pub packs: Option<bool>,
    /// The file of the timeline, without the rank.
    pub trace: Option<PathBuf>,
    pub trace_events: usize,
}

impl Config {
    /// The longest eager message of a path in bytes. By TCP a longer one waits until its receiver has named its
    /// memory, which takes longer between streams of GPUs than a copy of 256 KiB (decision 142).
    pub fn eager_limit(&self, path: Path) -> usize {
        self.eager_limit.unwrap_or(match path {
            Path::Tcp => 256 << 10,
            _ => 4096,
        })
    }

    /// The shape of channels by a path.
    pub fn shape(&self, path: Path) -> Shape {
        Shape {
            depth: self.depth,
            eager: self.eager_limit(path) as u32,
            start: self.start,
            zero_sm: self.zero_sm.unwrap_or_default(),
        }
    }

    /// Reads the settings that are not given and that the environment has.
    ///
    /// # Errors
    /// `Invalid` for an unknown value.
    pub fn read_env(&mut self) -> Result<()> {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        if self.path.is_none() {
            self.path = Some(PathChoice::from_env()?);
        }
        if self.zero_sm.is_none() {
            self.zero_sm = Some(switch("MP_ZERO_SM", &variable("MP_ZERO_SM"))?.unwrap_or_default());
        }
        self.packs = switch("MP_TCP_PACK", &variable("MP_TCP_PACK"))?;
        Ok(())
    }

    pub fn check(&self) -> Result<()> {
        let refuse = |what: String, limit: usize, unit| {
            Err(Error::new("build context", Kind::Invalid, what).with_limit(limit, unit))
        };
        if !self.depth.is_power_of_two() || !(2..=1024).contains(&self.depth) {
            let what = format!(
                "a depth of {} messages is invalid; use a power of two, at least 2",
                self.depth
            );
            return refuse(what, 1024, "messages");
        }
        if let Some(limit) = self.eager_limit
            && !(1..=1 << 20).contains(&limit)
        {
            let what = format!("an eager limit of {limit} bytes is invalid; use at least 1 byte");
            return refuse(what, 1 << 20, "bytes");
        }
        if !(4..=MOST_CHANNELS).contains(&self.channels) {
            let tags = self.channels;
            let what =
                format!("Builder::channels is {tags} tags, which is invalid; use at least 4");
            return refuse(what, MOST_CHANNELS, "tags");
        }
        Ok(())
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            name: "mp".to_owned(),
            eager_limit: None,
            depth: 16,
            timeout: Duration::from_secs(30),
            watchdog: Duration::from_secs(10),
            connect: Connect::Lazy,
            progress: Progress::Background,
            full: Full::Wait,
            doorbell: Doorbell::Auto,
            path: None,
            zero_sm: None,
            channels: 256,
            start: 0,
            packs: None,
            trace: None,
            trace_events: MOST_EVENTS,
        }
    }
}
