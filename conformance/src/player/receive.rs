//! Receives: early, in turn, late.

use gdsync::Kind as ErrorKind;
use gdsync::rdma::{ReceiveRequest, Received, Sge};

use super::{Player, pieces};
use crate::list::{After, Todo};
use crate::plan::{By, GUARD, Kind, Receive, Step, Waiter};

impl Player {
    fn wanted(&self, i: usize) -> (usize, Receive) {
        let step = &self.plan.steps[i];
        (step.from, step.receive.expect("a receive"))
    }

    fn prepare_receive(&mut self, i: usize) -> gdsync::Result<ReceiveRequest> {
        let (from, receive) = self.wanted(i);
        let landing = self.landing.clone();
        let (at, len) = (self.plan.slots[i] as u64, self.plan.steps[i].len);
        let all = pieces(&landing, at, receive.cuts, len + GUARD);
        let limit = self.plan.seats[self.rank.me].queues[from].as_ref();
        let limit = limit.map_or(1, |q| q.recv_sges as usize);
        // Where there may be fewer segments, those left out have no bytes.
        let kept: Vec<Sge<'_>> = match limit {
            0..3 => all.iter().copied().filter(|sge| sge.len > 0).collect(),
            _ => all.to_vec(),
        };
        self.qp(from).prepare_receive(&kept)
    }

    /// Whether a receive of this rank that comes before step `i`'s on its queue is not posted.
    fn is_ahead(&self, i: usize) -> bool {
        let from = self.plan.steps[i].from;
        let of_queue = |s: &Step| s.from == from && s.to == self.rank.me && s.receive.is_some();
        let steps = self.plan.steps[..i].iter().enumerate();
        steps
            .filter(|(_, s)| of_queue(s))
            .any(|(k, _)| !self.receives.contains_key(&k))
    }

    /// Posts a receive if that is possible now; `false`: it is not.
    pub(super) fn try_receive(&mut self, i: usize) -> bool {
        if self.is_ahead(i) {
            return false;
        }
        let (from, receive) = self.wanted(i);
        let request = match self.prepare_receive(i) {
            Ok(request) => request,
            Err(e) if e.kind() == ErrorKind::QueueFull => return false,
            Err(e) => panic!("{e:?}"),
        };
        match receive.by {
            By::Stream(s) => self.list(s).todos.push(Todo::Receive(request)),
            By::Cpu => {
                self.hand_over();
                match self.qp(from).post_receive(request) {
                    Ok(()) => {}
                    Err(e) if e.kind() == ErrorKind::Busy => {
                        self.qp(from).abort_receive(request).unwrap();
                        return false;
                    }
                    Err(e) => panic!("{e:?}"),
                }
            }
        }
        self.receives.insert(i, request);
        true
    }

    pub(super) fn receive(&mut self, i: usize) {
        if self.receives.contains_key(&i) {
            return;
        }
        let from = self.plan.steps[i].from;
        if self
            .put_off
            .iter()
            .any(|k| self.plan.steps[*k].from == from)
        {
            self.settle();
        }
        if !self.receives.contains_key(&i) {
            self.post_receive(i);
        }
    }

    /// Posts a receive in its turn.
    fn post_receive(&mut self, i: usize) {
        let (from, receive) = self.wanted(i);
        let mut prepared = self.prepare_receive(i);
        if matches!(&prepared, Err(e) if e.kind() == ErrorKind::QueueFull) {
            self.settle();
            let rank = self.rank.clone();
            prepared = rank.retry(ErrorKind::QueueFull, || self.prepare_receive(i));
        }
        let request = prepared.unwrap();
        self.receives.insert(i, request);
        if receive.newest_aborted
            && let Ok(newest) = self.prepare_receive(i)
        {
            self.qp(from).abort_receive(newest).unwrap();
        }
        match receive.by {
            By::Stream(s) => self.list(s).todos.push(Todo::Receive(request)),
            By::Cpu => {
                self.settle();
                let rank = self.rank.clone();
                let qp = self.qp(from);
                rank.retry(ErrorKind::Busy, || qp.post_receive(request))
                    .unwrap();
            }
        }
    }

    pub(super) fn await_receive(&mut self, i: usize) {
        let (from, receive) = self.wanted(i);
        let request = self.receives[&i];
        let flush = self.must_flush();
        self.wait_for(
            from,
            request.into(),
            receive.wait,
            flush,
            Some(After::Take(i)),
        );
        if receive.wait == Waiter::Cpu {
            let step = &self.plan.steps[i];
            let (Kind::Send(imm) | Kind::Write(imm)) = step.kind else {
                return;
            };
            let want = Received {
                len: step.len as u32,
                imm,
                source: None,
            };
            // Later ones may have been prepared so early that the entry is used again.
            let younger = self.receives.range(i + 1..).next().is_some();
            match self.qp(from).received(request) {
                Err(e) if younger && e.kind() == ErrorKind::NoSuchRequest => {}
                got => assert_eq!(got.unwrap(), want, "step {i}"),
            }
        }
        if !self.plan.steps[i].left_open {
            self.hand_over();
        }
    }
}
