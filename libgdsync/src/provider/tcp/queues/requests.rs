//! The requests of this side, from the post to the completion.

use std::collections::VecDeque;
use std::ffi::c_int;

use gdsync_sys::verbs::consts::*;
use gdsync_sys::verbs::types::{ibv_send_wr, ibv_sge, ibv_wc};
use smallvec::SmallVec;

use super::connection::Link;
use super::{TcpQueues, completion, pieces_of};
use crate::nic::Access;
use crate::provider::tcp::Broken;
use crate::provider::tcp::frame::{Head, Kind, MOST, OPERANDS};
use crate::provider::tcp::input::Sink;
use crate::provider::tcp::memory::Pieces;

/// Maximum number of outstanding READs and atomics; further ones wait.
pub const FETCHES: usize = 16;

/// A request that is not complete.
struct Request {
    wr_id: u64,
    kind: Kind,
    /// Where the answer of a READ or an atomic goes.
    sink: Sink,
    len: u32,
    answered: bool,
    /// The position of its last byte in the output, once it is queued for the connection.
    end: u64,
}

/// The bytes behind the head of a request.
enum Data<'a> {
    /// Inline data of an entry.
    Inline(&'a [ibv_sge]),
    Bytes(SmallVec<[u8; OPERANDS as usize]>),
    Memory(Pieces),
}

#[derive(Default)]
pub struct Requests {
    outstanding: VecDeque<Request>,
    /// Number of the oldest one: so many are complete.
    first: u64,
    /// The last of the outstanding ones, if they wait for a receive of the peer.
    held: VecDeque<(Head, Data<'static>)>,
    /// Whether a request was refused on this side: those behind it are not sent.
    stopped: bool,
}

impl Data<'_> {
    /// The same, for longer than the call of the relay.
    fn kept(self) -> Data<'static> {
        match self {
            Data::Inline(sges) => Data::Bytes(sges.iter().flat_map(inline).copied().collect()),
            Data::Bytes(bytes) => Data::Bytes(bytes),
            Data::Memory(pieces) => Data::Memory(pieces),
        }
    }
}

/// A piece of inline data.
fn inline(sge: &ibv_sge) -> &[u8] {
    // SAFETY: inline data of the entry, which the relay keeps during its call.
    unsafe { std::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) }
}

/// The kind of a request of verbs.
fn kind_of(wr: &ibv_send_wr) -> Option<Kind> {
    Some(match wr.opcode {
        IBV_WR_RDMA_WRITE => Kind::Write,
        IBV_WR_RDMA_WRITE_WITH_IMM => Kind::WriteImm,
        IBV_WR_SEND => Kind::Send,
        IBV_WR_SEND_WITH_IMM => Kind::SendImm,
        IBV_WR_SEND_WITH_INV => Kind::SendInvalidate,
        IBV_WR_RDMA_READ => Kind::Read,
        IBV_WR_ATOMIC_CMP_AND_SWP => Kind::CompareSwap,
        IBV_WR_ATOMIC_FETCH_AND_ADD => Kind::FetchAdd,
        _ => return None,
    })
}

impl Requests {
    pub fn is_empty(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// Number of outstanding requests that wait for no receive.
    fn queued(&self) -> usize {
        self.outstanding.len() - self.held.len()
    }

    /// Whether a request must wait for answers to earlier ones.
    fn must_wait(&self, wr: &ibv_send_wr) -> bool {
        let fetches = kind_of(wr).is_some_and(Kind::fetches);
        let fenced = wr.send_flags & IBV_SEND_FENCE != 0;
        if !fetches && !fenced {
            return false;
        }
        let all = self.outstanding.iter();
        let open = all.filter(|request| request.kind.fetches()).count();
        open >= FETCHES || fenced && open > 0
    }

    /// Where the answer to the oldest READ or atomic without one goes, if the answer has this length.
    pub fn take_sink(&mut self, len: u32) -> Option<Sink> {
        let fetch = self.unanswered()?;
        (fetch.len == len).then(|| std::mem::take(&mut fetch.sink))
    }

    /// The oldest READ or atomic without an answer is answered.
    pub fn answered(&mut self) {
        if let Some(fetch) = self.unanswered() {
            fetch.answered = true;
        }
    }

    fn unanswered(&mut self) -> Option<&mut Request> {
        let queued = self.queued();
        let mut all = self.outstanding.iter_mut().take(queued);
        all.find(|request| request.kind.fetches() && !request.answered)
    }

    /// Completes the requests that the peer has executed: all with lower numbers than `ack`. The
    /// connection has taken so many bytes of the output: a peer that counts more would make memory free
    /// that is still sent.
    pub fn retire(
        &mut self,
        ack: u64,
        taken: u64,
        done: &mut VecDeque<ibv_wc>,
    ) -> Result<(), Broken> {
        let executed = ack.wrapping_sub(self.first);
        let sent =
            |last: u64| last < self.queued() as u64 && self.outstanding[last as usize].end <= taken;
        if !executed.checked_sub(1).is_none_or(sent) {
            return Err(Broken::Frame("it counts requests that were not sent"));
        }
        for _ in 0..executed {
            match self.outstanding.front() {
                Some(oldest) if oldest.answered || !oldest.kind.fetches() => {
                    done.push_back(completion(oldest.wr_id, IBV_WC_SUCCESS));
                }
                _ => break,
            }
            self.outstanding.pop_front();
            self.first += 1;
        }
        Ok(())
    }

    /// Completes the oldest request with this status, and flushes those behind it.
    pub fn fail(&mut self, mut status: c_int, done: &mut VecDeque<ibv_wc>) {
        self.held.clear();
        for request in self.outstanding.drain(..) {
            done.push_back(completion(request.wr_id, status));
            self.first += 1;
            status = IBV_WC_WR_FLUSH_ERR;
        }
    }
}

impl TcpQueues {
    pub(super) fn post(&mut self, wr: &ibv_send_wr) -> c_int {
        if self.requests.must_wait(wr) {
            return libc::ENOMEM;
        }
        let outcome = match self.link {
            _ if self.requests.stopped => Err(IBV_WC_WR_FLUSH_ERR),
            Link::Broken => Err(IBV_WC_RETRY_EXC_ERR),
            _ => self.send(wr),
        };
        if let Err(status) = outcome {
            // What is behind a request that fails must not take effect.
            self.requests.stopped = true;
            self.done.push_back(completion(wr.wr_id, status));
        }
        0
    }

    /// Prepares and queues a request; the status of its completion if it is refused.
    fn send(&mut self, wr: &ibv_send_wr) -> Result<(), c_int> {
        // SAFETY: the relay passes a list of this length.
        let sges = unsafe { pieces_of(wr.sg_list, wr.num_sge) };
        let len: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if len > MOST.into() {
            return Err(IBV_WC_LOC_LEN_ERR);
        }
        let kind = kind_of(wr).ok_or(IBV_WC_LOC_QP_OP_ERR)?;
        // SAFETY: plain numbers; the relay sets all bytes of the union.
        let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
        let (addr, rkey) = match kind {
            Kind::CompareSwap | Kind::FetchAdd => (atomic.remote_addr, atomic.rkey),
            _ => (rdma.remote_addr, rdma.rkey),
        };
        let head = Head {
            addr,
            rkey,
            imm: wr.imm_data,
            ..Head::new(kind, len as u32)
        };
        let mut sink = Sink::default();
        let data = if wr.send_flags & IBV_SEND_INLINE != 0 {
            Data::Inline(sges)
        } else if kind.fetches() {
            let pieces = self.gather(sges, Access::LOCAL_WRITE);
            sink = Sink::new(pieces.ok_or(IBV_WC_LOC_PROT_ERR)?);
            let operands = [atomic.compare_add, atomic.swap].map(u64::to_le_bytes);
            match kind {
                Kind::Read => Data::Bytes(SmallVec::new()),
                _ => Data::Bytes(SmallVec::from_slice(operands.as_flattened())),
            }
        } else {
            let pieces = self.gather(sges, Access::LOCAL_READ);
            Data::Memory(pieces.ok_or(IBV_WC_LOC_PROT_ERR)?)
        };
        self.requests.outstanding.push_back(Request {
            wr_id: wr.wr_id,
            kind,
            sink,
            len: len as u32,
            answered: false,
            end: 0,
        });
        if !self.requests.held.is_empty() || !self.may_send(kind) {
            self.requests.held.push_back((head.used(), data.kept()));
        } else if !self.push(head.used(), data) {
            self.end_connection(Broken::Gpu, IBV_WC_LOC_PROT_ERR);
        }
        Ok(())
    }

    /// Whether a request of this kind may be sent: the peer has a receive for it, if it takes one.
    fn may_send(&self, kind: Kind) -> bool {
        self.refusal.is_none() && (!kind.takes_receive() || self.counts.may_take())
    }

    /// Queues a request for the connection. `false`: the GPU is lost.
    fn push(&mut self, head: Head, data: Data<'_>) -> bool {
        if head.kind.takes_receive() {
            self.counts.take();
        }
        self.push_head(head);
        let mut there = true;
        match data {
            Data::Inline(sges) => {
                for sge in sges {
                    self.output.push_bytes(inline(sge));
                }
            }
            Data::Bytes(bytes) => self.output.push_bytes(&bytes),
            Data::Memory(pieces) => {
                let mut pieces = pieces.into_iter();
                there = pieces.all(|piece| self.output.push_memory(piece));
            }
        }
        // It is the last one that is not held.
        let last = self.requests.queued().checked_sub(1);
        let request = last.and_then(|last| self.requests.outstanding.get_mut(last));
        if let Some(request) = request {
            request.end = self.output.pushed();
        }
        there
    }

    /// Queues the held requests for which the peer has receives.
    pub(super) fn release(&mut self) {
        while let Some((head, _)) = self.requests.held.front()
            && self.may_send(head.kind)
            && let Some((head, data)) = self.requests.held.pop_front()
        {
            if !self.push(head, data) {
                return self.end_connection(Broken::Gpu, IBV_WC_LOC_PROT_ERR);
            }
        }
    }
}
