//! Which sends and receives are zero-SM messages: those that ask for it, and, if the context does, all that name
//! another rank of the host. How their channels open.

use super::engine::Engine;
use super::null::NULL_RANK;
use super::peer::Need;
use super::spec::{On, RecvOp, SendOp, SizeSource, Source};
use super::state::not_connected;
use super::zero_sm::POST;
use crate::error::{Error, Kind, Result};
use crate::path::Path;
use crate::region::Slice;

/// What a call that sends or receives asks for.
struct Asked<'a> {
    /// The choice of the request itself.
    own: Option<bool>,
    on: &'a On<'a>,
    /// `None`: a receive from any rank.
    rank: Option<u32>,
    post: bool,
    /// It has at most one piece, of a fixed length.
    plain: bool,
}

impl Engine {
    /// Whether a send is a zero-SM message.
    ///
    /// # Errors
    /// `Unsupported` if it is to be one and cannot.
    #[inline]
    pub fn is_zero_sm_send(&self, spec: &SendOp<'_>, post: bool) -> Result<bool> {
        if !self.may_be_zero_sm(spec.zero_sm) {
            return Ok(false);
        }
        let plain = matches!(spec.size, SizeSource::Segments) && spec.packed.is_none();
        let asked = Asked {
            own: spec.zero_sm,
            on: &spec.on,
            rank: Some(spec.to),
            post,
            plain: plain && spec.segments.len() <= 1,
        };
        self.is_zero_sm(&asked)
    }

    /// As [`Engine::is_zero_sm_send`], of a receive.
    #[inline]
    pub fn is_zero_sm_recv(&self, spec: &RecvOp<'_>, post: bool) -> Result<bool> {
        if !self.may_be_zero_sm(spec.zero_sm) {
            return Ok(false);
        }
        let asked = Asked {
            own: spec.zero_sm,
            on: &spec.on,
            rank: match spec.from {
                Source::Rank(rank) => Some(rank),
                Source::Any => None,
            },
            post,
            plain: spec.packed.is_none() && spec.segments.len() <= 1,
        };
        self.is_zero_sm(&asked)
    }

    /// Whether a request may be a zero-SM message: by its own choice, or by the default of the context.
    #[inline]
    pub(crate) fn may_be_zero_sm(&self, own: Option<bool>) -> bool {
        own.or(self.config.zero_sm) == Some(true)
    }

    /// Whether a request that asks for it, by itself or by the default of the context, is a zero-SM
    /// message.
    fn is_zero_sm(&self, asked: &Asked<'_>) -> Result<bool> {
        let by_default = asked.own.is_none();
        let applies = match asked.rank {
            Some(NULL_RANK) => return Ok(false),
            Some(rank) if rank >= self.size => return Ok(false),
            Some(rank) => !by_default || self.paths.is_near(rank),
            None => !by_default || self.paths.maps(),
        };
        if !applies {
            return Ok(false);
        }
        let refuse = |why: &str| {
            let whose = match by_default {
                true => {
                    "Builder::zero_sm or MP_ZERO_SM asks for zero-SM messages with ranks of this host"
                }
                false => "zero_sm(true) asks for a zero-SM message",
            };
            let what =
                format!("{whose}: {why}; or call zero_sm(false) on the send and on its receive");
            let error = Error::new(POST, Kind::Unsupported, what);
            Err(match asked.rank {
                Some(rank) => error.with_rank(rank),
                None => error,
            })
        };
        let Some(rank) = asked.rank else {
            return refuse("a receive from any rank is matched by the CPU; name the rank");
        };
        if let Some(stream) = asked.on.captured(&self.gpu, POST)? {
            return refuse(&format!(
                "{stream:?} is being captured, and a graph has none; post the message outside of the \
                 capture"
            ));
        }
        if !asked.post {
            return refuse(
                "the two ranks agree on it when it is posted; prepare and post it by one call, as \
                 isend_on and irecv_on do",
            );
        }
        if !asked.plain {
            return refuse("it must be one piece of a fixed length; send the pieces separately");
        }
        if rank == self.rank {
            return refuse("its peer must be another rank, and this is the rank itself");
        }
        if self.paths.chosen(rank).is_none() {
            drop(self.ensure(rank, &On::Cpu, Need::Lanes)?);
        }
        match self.paths.chosen(rank) {
            Some((Path::Ipc, _)) => Ok(true),
            Some((path, reason)) => refuse(&format!(
                "it needs memory that both ranks map, and the path to rank {rank} is {path:?} \
                 ({reason}); set MP_PATH=ipc"
            )),
            None => Err(not_connected(POST, rank)),
        }
    }

    /// Waits until a channel is open, at most the context's time limit.
    pub fn open_zero_sm(&self, rank: u32, tag: u32, sends: bool) -> Result<()> {
        if self.try_open_zero_sm(rank, tag, sends)? {
            return Ok(());
        }
        drop(self.ensure(rank, &On::Cpu, Need::Lanes)?);
        self.await_answer(POST, rank, || self.try_open_zero_sm(rank, tag, sends))
    }

    fn try_open_zero_sm(&self, rank: u32, tag: u32, sends: bool) -> Result<bool> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let from = self.setup(&state.lanes).zero_sm();
        let Some(peer) = state.peers.get_mut(rank) else {
            return Ok(false);
        };
        if peer.zero_sm.use_open(tag, sends) {
            // Also of a rank that was given up: it may have left a message.
            return Ok(true);
        }
        if !peer.is_here() {
            return Err(peer.error(POST));
        }
        if !peer.is_open(0, Need::Lanes) {
            return Ok(false);
        }
        let mut out = Vec::new();
        let begun = peer.zero_sm.begin(from, (tag, sends), &mut out);
        self.send_control(state, rank, out);
        begun
    }

    /// Makes a rank map the memory of a message.
    pub fn show(&self, rank: u32, memory: Option<&Slice>) -> Result<()> {
        let Some(keys) = memory.map(|slice| slice.memory().keys()) else {
            return Ok(());
        };
        if !keys.can_share() {
            let what = "another rank cannot map the memory, which a zero-SM message needs; use memory of \
                        Context::alloc, or call zero_sm(false) on the send and on its receive";
            return Err(Error::new(POST, Kind::Unsupported, what));
        }
        self.await_mapped(rank, keys)
    }
}
