//! [`CollectiveCall`]: what a collective call sends to which rank, and from where.

use std::ffi::CStr;

use gdsync::Stream;

use super::op::{Number, Op};
use crate::error::{Error, Kind, Result};
use crate::kernels::Shape;
use crate::trace::Facts;
use crate::two_sided::engine::Engine;
use crate::wire::collective::{self, Call};

/// A collective call of one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollectiveCall<'a> {
    pub kind: Call,
    /// The length of a contribution in bytes, unless the lengths vary.
    pub len: usize,
    /// By rank, of contributions whose lengths vary: the bytes that this rank sends there, and that
    /// it receives from there.
    varied: Option<[&'a [usize]; 2]>,
}

impl<'a> CollectiveCall<'a> {
    pub fn new(kind: Call, len: usize) -> CollectiveCall<'a> {
        CollectiveCall {
            kind,
            len,
            varied: None,
        }
    }

    /// An all-reduce of `len` bytes of `T`.
    ///
    /// # Errors
    /// `Invalid` for a bitwise operation on floating-point numbers.
    pub fn reduce<T: Number>(op: Op, len: usize) -> Result<CollectiveCall<'a>> {
        let (element, code) = (T::TYPE, op as u32);
        let call = CollectiveCall::new(Call::AllReduce { element, op: code }, len);
        if op.is_bitwise() && !T::IS_INTEGER {
            let what = format!("{} has no bitwise operations", std::any::type_name::<T>());
            return Err(Error::new(call.name(), Kind::Invalid, what));
        }
        Ok(call)
    }

    /// An all-to-all with the lengths that this rank sends and receives, in bytes.
    pub fn varied(sends: &'a [usize], receives: &'a [usize]) -> CollectiveCall<'a> {
        CollectiveCall {
            varied: Some([sends, receives]),
            ..CollectiveCall::new(Call::AllToAllV, 0)
        }
    }

    /// Its name in errors.
    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// The name of its call, for observers.
    pub fn call_name(&self, on_stream: bool) -> &'static CStr {
        match (self.kind, on_stream) {
            (Call::Barrier, false) => c"barrier",
            (Call::Barrier, true) => c"barrier_on",
            (Call::Broadcast { .. }, false) => c"broadcast",
            (Call::Broadcast { .. }, true) => c"broadcast_on",
            (Call::AllGather, false) => c"all_gather",
            (Call::AllGather, true) => c"all_gather_on",
            (Call::AllToAll, false) => c"all_to_all",
            (Call::AllToAll, true) => c"all_to_all_on",
            (Call::AllToAllV, false) => c"all_to_all_v",
            (Call::AllToAllV, true) => c"all_to_all_v_on",
            (Call::AllReduce { .. }, false) => c"all_reduce",
            (Call::AllReduce { .. }, true) => c"all_reduce_on",
        }
    }

    /// What observers of the call show.
    pub fn facts(&self, engine: &Engine, stream: Option<&Stream>) -> Facts {
        Facts {
            bytes: Some(self.sent(engine.rank, engine.size) as u64),
            stream: stream.map(Stream::id),
            ..Facts::default()
        }
    }

    /// Checks the call of rank `me` of `ranks` against the greatest length of a contribution.
    ///
    /// # Errors
    /// `Invalid`, with the limit.
    pub fn check(&self, me: u32, ranks: u32, most: usize) -> Result<()> {
        let refuse = |what: String| Error::new(self.name(), Kind::Invalid, what);
        let too_long = |len: usize| {
            let what = format!(
                "a contribution of {len} bytes is too long; make the object with a greater limit"
            );
            Err(refuse(what).with_limit(most, "bytes"))
        };
        if let Call::Broadcast { root } = self.kind
            && root >= ranks
        {
            let what = format!("the root, rank {root}, is not in the job of {ranks} ranks");
            return Err(refuse(what).with_rank(root));
        }
        let Some(both @ [sends, receives]) = self.varied else {
            return match self.len <= most {
                true => Ok(()),
                false => too_long(self.len),
            };
        };
        for lens in both {
            if lens.len() != ranks as usize {
                let what = format!("{} lengths are given for {ranks} ranks", lens.len());
                return Err(refuse(what).with_limit(ranks, "lengths"));
            }
            if let Some(len) = lens.iter().find(|len| **len > most) {
                return too_long(*len);
            }
        }
        let (sent, received) = (sends[me as usize], receives[me as usize]);
        if sent != received {
            let what = format!(
                "this rank sends {sent} bytes to itself and receives {received}; use one length"
            );
            return Err(refuse(what).with_rank(me));
        }
        Ok(())
    }

    /// Whether each rank has another contribution for each other rank.
    pub fn is_personal(&self) -> bool {
        matches!(self.kind, Call::AllToAll | Call::AllToAllV)
    }

    /// The bytes of the contribution to `rank`, and their offset behind those to the lower ranks.
    pub fn to(&self, me: u32, rank: u32) -> (usize, usize) {
        match (self.kind, self.varied) {
            (_, Some([sends, _])) => {
                let rank = rank as usize;
                (sends[rank], sends[..rank].iter().sum())
            }
            (Call::Barrier, _) => (0, 0),
            (Call::Broadcast { root }, _) if root != me => (0, 0),
            (Call::AllToAll, _) => (self.len, self.len * rank as usize),
            _ => (self.len, 0),
        }
    }

    /// The bytes that rank `me`, this rank, sends to `rank` and receives from it.
    pub fn between(&self, me: u32, rank: u32) -> [u64; 2] {
        let sent = match self.varied {
            Some([sends, _]) => sends[rank as usize],
            None => self.to(me, rank).0,
        };
        let received = match self.kind {
            Call::Broadcast { root } if root != rank => 0,
            _ => self.from(rank),
        };
        [sent as u64, received as u64]
    }

    /// The bytes of all contributions of rank `me`, in the memory of its application.
    pub fn sent(&self, me: u32, ranks: u32) -> usize {
        match (self.kind, self.varied) {
            (_, Some([sends, _])) => sends.iter().sum(),
            (Call::AllToAll, _) => self.len * ranks as usize,
            _ => self.to(me, me).0,
        }
    }

    /// The bytes of the result.
    pub fn received(&self, ranks: u32) -> usize {
        match (self.kind, self.varied) {
            (_, Some([_, receives])) => receives.iter().sum(),
            (Call::Barrier, _) => 0,
            (Call::AllGather | Call::AllToAll, _) => self.len * ranks as usize,
            _ => self.len,
        }
    }

    /// The bytes that `rank` contributes to the result of this rank, in calls to which all ranks
    /// contribute.
    pub fn from(&self, rank: u32) -> usize {
        self.varied
            .map_or(self.len, |[_, receives]| receives[rank as usize])
    }

    /// The word of call `number` that this rank stores at `rank`.
    pub fn word_to(&self, number: u64, rank: u32) -> u64 {
        let len = self
            .varied
            .map_or(self.len, |[sends, _]| sends[rank as usize]);
        collective::word(number, self.kind, len)
    }

    /// The word of call `number` that `rank` stores here.
    pub fn word_from(&self, number: u64, rank: u32) -> u64 {
        collective::word(number, self.kind, self.from(rank))
    }

    /// What a kernel does with the contributions on rank `me`.
    pub fn shape(&self, me: u32) -> Shape {
        match self.kind {
            Call::Barrier => Shape::Nothing,
            Call::Broadcast { root } if root == me => Shape::Nothing,
            Call::Broadcast { .. } => Shape::One,
            Call::AllGather | Call::AllToAll => Shape::All,
            Call::AllToAllV => Shape::Varied,
            Call::AllReduce { .. } => Shape::Reduced,
        }
    }
}
