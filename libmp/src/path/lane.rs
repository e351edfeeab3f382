//! A lane to a peer: where puts are prepared, posted, and keep their order.

use gdsync::rdma::Descriptor;
use gdsync::{Status, Stream};

use super::{Put, foreign, local, nic};
use crate::error::{Error, Kind, Result};
use crate::kernels::{MOST_CHUNKS, Stamp};

/// A lane to a peer, by its path.
pub(crate) enum Lane {
    Nic(nic::Lane),
    Local(Box<local::Lane>),
}

impl Lane {
    /// What has become of a put; `None`: it is under way.
    ///
    /// # Errors
    /// It is so old that the lane has forgotten it.
    pub fn poll(&mut self, put: Put) -> Result<Option<Status>> {
        match (self, put) {
            (Lane::Nic(lane), Put::Nic(put)) => lane.poll(put),
            (Lane::Local(lane), Put::Local(put)) => lane.poll(put),
            _ => Err(foreign("poll put")),
        }
    }

    /// Whether a put is under way.
    pub fn is_pending(&mut self, put: Put) -> bool {
        matches!(self.poll(put), Ok(None))
    }

    /// Takes a put back that was prepared and not posted: the newest first.
    pub fn abort(&mut self, put: Put) -> Result<()> {
        match (self, put) {
            (Lane::Nic(lane), Put::Nic(put)) => lane.abort(put),
            (Lane::Local(lane), Put::Local(put)) => lane.abort(put),
            _ => Err(foreign("abort put")),
        }
    }

    /// Has `stream` wait until a put is done.
    pub fn wait_on(&mut self, stream: &Stream, put: Put) -> Result<()> {
        match (self, put) {
            (Lane::Nic(lane), Put::Nic(put)) => lane.wait_on(stream, put),
            (Lane::Local(lane), Put::Local(put)) => lane.wait_on(stream, put),
            _ => Err(foreign("wait for put")),
        }
    }

    /// Whether a kernel may wait for words that arrive by this lane.
    pub fn may_spin(&self) -> bool {
        match self {
            Lane::Nic(lane) => lane.may_spin(),
            // What would bring the word is a kernel of the same GPU.
            Lane::Local(_) => false,
        }
    }

    /// Whether nothing that was posted is under way, on the NIC or a stream.
    pub fn is_quiet(&mut self) -> bool {
        match self {
            Lane::Nic(lane) => lane.is_quiet(),
            Lane::Local(lane) => lane.is_quiet(),
        }
    }

    /// Submissions that a late message of so many puts takes on a stream, its kernel included.
    pub fn submissions(&self, puts: usize) -> u32 {
        match self {
            Lane::Nic(_) => nic::Lane::SUBMISSIONS,
            Lane::Local(_) => local::Lane::submissions(puts),
        }
    }

    /// Whether puts reach the peer.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        match self {
            Lane::Nic(lane) => lane.is_open(),
            Lane::Local(_) => true,
        }
    }

    /// Why it is in error, if it is.
    pub(super) fn error(&mut self) -> Option<Status> {
        match self {
            Lane::Nic(lane) => lane.error(),
            Lane::Local(lane) => lane.error(),
        }
    }

    /// Nothing of the peer reaches this side any more.
    pub(super) fn fail(&mut self, status: Status) {
        match self {
            Lane::Nic(lane) => lane.fail(status),
            Lane::Local(lane) => lane.fail(status),
        }
    }

    /// Hands puts over that belong together, by the CPU.
    #[inline]
    pub(super) fn post(&mut self, puts: impl Iterator<Item = Put>) -> Result<()> {
        for put in puts {
            match (&mut *self, put) {
                (Lane::Nic(lane), Put::Nic(put)) => lane.post(put)?,
                (Lane::Local(lane), Put::Local(put)) => lane.post(put)?,
                _ => return Err(foreign("post put")),
            }
        }
        if let Lane::Local(lane) = self {
            lane.go_on(local::AT_ONCE);
        }
        Ok(())
    }

    /// Enqueues a list; `items` describe its descriptors to a local lane.
    #[inline]
    pub(super) fn post_on(
        &mut self,
        stream: &Stream,
        list: &[Descriptor<'_>],
        items: &[local::Item],
    ) -> Result<()> {
        match self {
            Lane::Nic(lane) => lane.post_on(stream, list),
            Lane::Local(lane) => lane.post_on(stream, list, items),
        }
    }

    /// Tells a kernel, in `params`, where the work requests of a message lie that it completes. The
    /// last of `puts` is the stamp, and is answered. `large`: the kernel fills in the destination;
    /// `late`: length and offset too, one flag each.
    pub fn patch(
        &self,
        puts: &[Put],
        large: bool,
        late: [bool; 2],
        params: &mut Stamp<MOST_CHUNKS>,
    ) -> Result<Put> {
        match self {
            Lane::Nic(lane) => {
                let puts = puts.iter().filter_map(Put::nic);
                lane.patch(puts, large, late, params)?;
            }
            Lane::Local(lane) => {
                let puts = puts.iter().filter_map(Put::local);
                lane.patch(puts, large, late, params);
            }
        }
        puts.last().copied().ok_or_else(|| {
            let what = "a message without puts";
            Error::new("patch message", Kind::Invalid, what)
        })
    }
}
