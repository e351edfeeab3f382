//! The requests and answers of the peer: each frame is executed when its last byte has arrived. The
//! payload of a long one is in place before ([`input`](super::super::input)).

use std::collections::VecDeque;
use std::ffi::c_int;

use gdsync_sys::verbs::consts::*;
use gdsync_sys::verbs::types::{ibv_recv_wr, ibv_wc};

use super::connection::Link;
use super::requests::FETCHES;
use super::{TcpQueues, completion, pieces_of};
use crate::nic::{Access, Report};
use crate::provider::tcp::Broken;
use crate::provider::tcp::frame::{HEAD, Head, Kind, OPERANDS};
use crate::provider::tcp::input::{Payload, Sink};
use crate::provider::tcp::memory::{Piece, Pieces};
use crate::provider::tcp::output::Output;
use crate::status::Status;

/// A posted receive.
struct Receive {
    wr_id: u64,
    /// `None`: its keys are wrong. It fails when a message takes it.
    sink: Option<Sink>,
}

/// The frame whose payload is being received.
#[derive(Default)]
enum Body {
    /// None: the next bytes are a head.
    #[default]
    Head,
    Payload(Head, Payload),
    Operands(Head, Piece),
}

/// What the peer has begun.
#[derive(Default)]
pub struct Peer {
    receives: VecDeque<Receive>,
    body: Body,
}

/// A request of the peer was refused: no later request is executed, no request of this side is sent,
/// and the connection ends when it has taken the output.
pub struct Refusal {
    status: c_int,
    /// The completion of the receive that the request took, for that end.
    receive: Option<ibv_wc>,
}

/// The statuses with which a peer refuses a request.
fn status_of(syndrome: u8) -> c_int {
    match c_int::from(syndrome) {
        status @ (IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_ACCESS_ERR) => status,
        _ => IBV_WC_REM_OP_ERR,
    }
}

impl Peer {
    /// The payload that is being received.
    pub fn payload(&mut self) -> Option<&mut Payload> {
        match &mut self.body {
            Body::Payload(_, payload) => Some(payload),
            _ => None,
        }
    }

    /// Forgets the frame that is being received.
    pub fn forget(&mut self) {
        self.body = Body::Head;
    }

    /// Flushes all receives.
    pub fn flush(&mut self, done: &mut VecDeque<ibv_wc>) {
        let flushed = self.receives.drain(..);
        done.extend(flushed.map(|receive| completion(receive.wr_id, IBV_WC_WR_FLUSH_ERR)));
    }
}

impl TcpQueues {
    pub(super) fn post_receive(&mut self, wr: &ibv_recv_wr) {
        // SAFETY: the relay passes a list of this length.
        let sges = unsafe { pieces_of(wr.sg_list, wr.num_sge) };
        let pieces = self.gather(sges, Access::LOCAL_WRITE);
        self.counts.posted();
        self.peer.receives.push_back(Receive {
            wr_id: wr.wr_id,
            sink: pieces.map(Sink::new),
        });
    }

    /// Executes what is buffered; returns whether there was anything.
    pub(super) fn execute(&mut self) -> Result<bool, Broken> {
        let mut busy = false;
        loop {
            match std::mem::take(&mut self.peer.body) {
                Body::Head => {
                    let Some(bytes) = self.input.take::<HEAD>() else {
                        return Ok(busy);
                    };
                    let head = Head::decode(&bytes)?;
                    self.counts.heard(head.receives);
                    self.confirmed = true;
                    // The answer itself is not there yet.
                    if head.kind != Kind::Response {
                        self.retire(head.ack)?;
                    }
                    self.begin(head)?;
                }
                Body::Operands(head, word) => {
                    let Some(operands) = self.input.take::<{ OPERANDS as usize }>() else {
                        self.peer.body = Body::Operands(head, word);
                        return Ok(busy);
                    };
                    self.atomic(&head, &word, &operands)?;
                }
                Body::Payload(head, mut payload) => {
                    if !self.input.store(&mut payload)? {
                        self.peer.body = Body::Payload(head, payload);
                        return Ok(busy);
                    }
                    self.end_payload(&head)?;
                }
            }
            busy = true;
        }
    }

    /// Completes the requests that the peer has executed.
    fn retire(&mut self, ack: u64) -> Result<(), Broken> {
        let taken = self.output.taken();
        self.requests.retire(ack, taken, &mut self.done)
    }

    /// The registration with this key has ended: a request of the peer that is being executed in its memory
    /// ends the connection. Returns whether there was one.
    pub fn withdraw(&mut self, key: u32) -> bool {
        let executed = match &self.peer.body {
            Body::Head => false,
            Body::Payload(_, payload) => payload.is_of(key, self.input.is_copying()),
            Body::Operands(_, word) => word.key == key,
        };
        let withdrawn = executed || self.output.is_of(key);
        if withdrawn {
            self.end_connection(Broken::Withdrawn, IBV_WC_RETRY_EXC_ERR);
        }
        withdrawn
    }

    /// The memory that a request of the peer names, if it may access it like this.
    fn named(&self, head: &Head, need: Access) -> Option<Pieces> {
        if !self.access.permits(need) {
            return None;
        }
        if head.len == 0 {
            return Some(Pieces::new());
        }
        let all = &self.shared.registrations;
        let piece = all.find(head.rkey, self.pd, head.addr, head.len, need)?;
        Some(Pieces::from_iter([piece]))
    }

    /// Begins what a head announces.
    fn begin(&mut self, head: Head) -> Result<(), Broken> {
        let sink = match head.kind {
            Kind::Ack => return Ok(()),
            Kind::Refuse => {
                self.end_connection(Broken::Refused, status_of(head.syndrome));
                return Err(Broken::Refused);
            }
            Kind::Response => (self.requests.take_sink(head.len))
                .ok_or(Broken::Frame("it answers a request that was not sent"))?,
            // Its bytes are dropped.
            _ if self.refusal.is_some() => Sink::default(),
            kind if kind.takes_receive() && self.peer.receives.is_empty() => {
                return Err(Broken::Frame("there is no receive for it"));
            }
            // A peer that keeps the limit has received the answer to an earlier one.
            kind if kind.fetches() && self.output.answers() >= FETCHES => {
                return Err(Broken::Frame("too many READs and atomics are outstanding"));
            }
            Kind::Write | Kind::WriteImm => match self.named(&head, Access::REMOTE_WRITE) {
                Some(pieces) => Sink::new(pieces),
                None => return self.refuse(head, IBV_WC_REM_ACCESS_ERR, None),
            },
            Kind::Send | Kind::SendImm | Kind::SendInvalidate => {
                let (own, theirs) = match self.peer.receives[0].sink.take() {
                    Some(sink) if sink.room() >= head.len.into() => return self.store(head, sink),
                    Some(_) => (IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR),
                    None => (IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR),
                };
                let receive = self.end_receive(&head, own);
                return self.refuse(head, theirs, receive);
            }
            Kind::Read => {
                let Some(pieces) = self.named(&head, Access::REMOTE_READ) else {
                    return self.refuse(head, IBV_WC_REM_ACCESS_ERR, None);
                };
                return self.answer(head.len, |output| {
                    pieces.into_iter().all(|piece| output.push_memory(piece))
                });
            }
            Kind::CompareSwap | Kind::FetchAdd => {
                let named = self.named(&head, Access::REMOTE_ATOMIC);
                let Some(word) = named.and_then(|mut pieces| pieces.pop()) else {
                    return self.refuse(head, IBV_WC_REM_ACCESS_ERR, None);
                };
                if !head.addr.is_multiple_of(8) {
                    return self.refuse(head, IBV_WC_REM_INV_REQ_ERR, None);
                }
                self.peer.body = Body::Operands(head, word);
                return Ok(());
            }
        };
        self.store(head, sink)
    }

    /// Stores the payload behind this head as it arrives.
    fn store(&mut self, head: Head, sink: Sink) -> Result<(), Broken> {
        let payload = Payload::new(sink, head.kind.payload(head.len) as usize);
        self.input.begins(&payload);
        self.peer.body = Body::Payload(head, payload);
        Ok(())
    }

    /// Answers a READ or an atomic of the peer.
    fn answer(&mut self, len: u32, push: impl FnOnce(&mut Output) -> bool) -> Result<(), Broken> {
        self.counts.executed();
        self.push_head(Head::new(Kind::Response, len));
        let pushed = push(&mut self.output);
        self.output.end_answer();
        match pushed {
            true => Ok(()),
            false => Err(Broken::Gpu),
        }
    }

    fn atomic(&mut self, head: &Head, word: &Piece, operands: &[u8; 16]) -> Result<(), Broken> {
        let mut numbers = [0; 2];
        for (number, bytes) in numbers.iter_mut().zip(operands.as_chunks::<8>().0) {
            *number = u64::from_le_bytes(*bytes);
        }
        let before = {
            let _one = self.shared.atomics.lock();
            word.atomic(head.kind == Kind::FetchAdd, numbers)
        };
        let before = before.ok_or(Broken::Gpu)?.to_ne_bytes();
        self.answer(8, |output| {
            output.push_bytes(&before);
            true
        })
    }

    /// The completion of the oldest receive, which a request has taken.
    fn end_receive(&mut self, head: &Head, status: c_int) -> Option<ibv_wc> {
        let receive = self.peer.receives.pop_front()?;
        self.counts.taken();
        let opcode = match head.kind {
            Kind::WriteImm => IBV_WC_RECV_RDMA_WITH_IMM,
            _ => IBV_WC_RECV,
        };
        let wc_flags = match head.kind {
            Kind::WriteImm | Kind::SendImm => IBV_WC_WITH_IMM,
            Kind::SendInvalidate => IBV_WC_WITH_INV,
            _ => 0,
        };
        Some(ibv_wc {
            opcode,
            wc_flags,
            byte_len: head.len,
            imm_data: head.imm,
            ..completion(receive.wr_id, status)
        })
    }

    /// The payload of a request or an answer is stored.
    fn end_payload(&mut self, head: &Head) -> Result<(), Broken> {
        if head.kind == Kind::Response {
            self.requests.answered();
            return self.retire(head.ack);
        }
        if self.refusal.is_some() {
            return Ok(());
        }
        if head.kind.takes_receive() {
            let receive = self.end_receive(head, IBV_WC_SUCCESS);
            self.done.extend(receive);
        }
        self.counts.executed();
        Ok(())
    }

    /// Refuses a request of the peer. It and those behind it have no effect; this side still executes
    /// the peer's answers, as the peer may wait for room before it reads those of this side.
    fn refuse(
        &mut self,
        refused: Head,
        status: c_int,
        receive: Option<ibv_wc>,
    ) -> Result<(), Broken> {
        let head = Head {
            syndrome: status as u8,
            ..Head::new(Kind::Refuse, 0)
        };
        self.push_head(head);
        self.refusal = Some(Refusal { status, receive });
        // An invalid frame may follow and end the connection before the next flush.
        let _ = self.write();
        self.begin(refused)
    }

    /// Whether the connection has taken the refusal. A queue pair that is connected to itself must
    /// first read it.
    pub(super) fn has_refused(&self) -> bool {
        let [own, peer] = self.ends;
        let open = matches!(self.link, Link::Open(_));
        open && self.refusal.is_some() && self.output.is_empty() && own != peer
    }

    /// Reports a refusal at the end of the connection.
    pub(super) fn report_refusal(&mut self) {
        let Some(refusal) = &mut self.refusal else {
            return;
        };
        self.done.extend(refusal.receive.take());
        let status = match refusal.status {
            IBV_WC_REM_ACCESS_ERR => Status::PEER_ACCESS,
            IBV_WC_REM_INV_REQ_ERR => Status::PEER_REQUEST,
            // The receive has its own status.
            _ => return,
        };
        let events = &self.shared.events;
        events.qp(self.ends[0].qpn, Report::Closed(status));
    }
}
