//! Receives: posted early, in turn, or late.

use gdsync::Kind;
use gdsync::rdma::{ReceiveRequest, Sge};

use super::{Play, pieces};
use crate::program::draw::GUARD;
use crate::program::owned::OwnedDescriptor;
use crate::rig::limits::time_limit;
use crate::rig::verdict::{Verdict, ensure};
use crate::rig::{retry, retry_while};

impl Play<'_> {
    fn prepare_receive(&mut self, i: usize) -> gdsync::Result<ReceiveRequest> {
        let step = &self.steps[i];
        let (at, len) = (self.places(i)[1], step.len);
        let memory = &self.ends.memory[&step.to].landing;
        let qp = &mut **self
            .ends
            .qps
            .get_mut(&(step.to, step.from))
            .expect("an end");
        let Some(odd) = step.odd else {
            return qp.prepare_receive(&[memory.sge(at as u64, len as u32)]);
        };
        let all = pieces(memory, at as u64, odd.cuts[1], len + GUARD);
        // Empty segments are omitted, which leaves room for fewer segments.
        let all = all.iter().copied().filter(|sge| sge.len > 0);
        let all: Vec<Sge<'_>> = all.collect();
        let whole = [memory.sge(at as u64, (len + GUARD) as u32)];
        match all.len() <= self.ends.recv_sges {
            true => qp.prepare_receive(&all),
            false => qp.prepare_receive(&whole),
        }
    }

    /// The queue pair that receives a message.
    fn receiver(&self, i: usize) -> (usize, usize) {
        (self.steps[i].to, self.steps[i].from)
    }

    /// Posts receives of later messages, if there is room for them.
    pub(super) fn receive_early(&mut self, i: usize) -> Verdict {
        let Some(odd) = self.steps[i].odd.filter(|odd| odd.early > 0) else {
            return Ok(());
        };
        let end = self.receiver(i);
        let early = self.early.entry(end).or_default();
        let next = early.back().map_or(i, |(last, _)| last + 1);
        let later = next..self.steps.len().min(i + 12);
        let later = later.filter(|k| self.receiver(*k) == end);
        let later = later.filter(|k| self.steps[*k].operation.takes_receive());
        let later: Vec<usize> = later.take(odd.early).collect();
        for k in later {
            match self.prepare_receive(k) {
                Ok(request) => {
                    self.flush()?;
                    self.post_by_cpu(end, request)?;
                    self.early.entry(end).or_default().push_back((k, request));
                }
                Err(e) if e.kind() == Kind::QueueFull => break,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// The receive of a message, and whether it is posted.
    pub(super) fn receive(&mut self, i: usize) -> Verdict<(ReceiveRequest, bool)> {
        let end = self.receiver(i);
        let early = self.early.entry(end).or_default();
        let early = early.pop_front_if(|(k, _)| *k == i);
        while self.receives.len() >= self.ahead {
            self.look()?;
        }
        let request = match early {
            Some((_, request)) => request,
            None => self.prepare_in_turn(i)?,
        };
        let newest = self.steps[i].odd.is_some_and(|o| o.newest_aborted[1]);
        if newest
            && self.early[&end].is_empty()
            && let Ok(newest) = self.prepare_receive(i)
        {
            self.qp(end).abort_receive(newest)?;
        }
        self.receives.push_back((i, request));
        Ok((request, early.is_some()))
    }

    fn prepare_in_turn(&mut self, i: usize) -> Verdict<ReceiveRequest> {
        match self.prepare_receive(i) {
            Err(e) if e.kind() == Kind::QueueFull => self.flush()?,
            done => return Ok(done?),
        }
        // A stream that has not reported its progress still holds completion entries.
        let gpu = self.rig.gpu.clone();
        Ok(retry(&gpu, || self.prepare_receive(i))?)
    }

    pub(super) fn post_receive(
        &mut self,
        i: usize,
        receive: ReceiveRequest,
        stream: usize,
    ) -> Verdict {
        let by_cpu = match self.steps[i].odd {
            Some(odd) => odd.by_cpu[1],
            None => self.settings.cpu_receives,
        };
        if by_cpu {
            self.flush()?;
            return self.post_by_cpu(self.receiver(i), receive);
        }
        self.list(stream)?
            .descriptors
            .push(OwnedDescriptor::Receive(receive));
        Ok(())
    }

    pub(super) fn post_by_cpu(&mut self, to: (usize, usize), receive: ReceiveRequest) -> Verdict {
        let (rig, qp) = (self.rig, self.qp(to));
        // Busy until the receives of streams are posted.
        retry_while(&rig.gpu, Kind::Busy, || qp.post_receive(receive))?;
        Ok(())
    }

    /// Waits for the oldest receive and checks its completion.
    pub(super) fn look(&mut self) -> Verdict {
        self.flush()?;
        let Some((i, request)) = self.receives.pop_front() else {
            return Ok(());
        };
        let (step, end) = (&self.steps[i], self.receiver(i));
        let qp = self.qp(end);
        let result = match qp.wait(request, time_limit()) {
            Ok(()) => qp.received(request),
            Err(e) => Err(e),
        };
        let got = match result {
            // Later receives may have been prepared so early that the entry is in use again.
            Err(e) if step.odd.is_some() && e.kind() == Kind::NoSuchRequest => return Ok(()),
            result => result?,
        };
        ensure((got.len as usize, got.imm) == (step.len, step.imm), || {
            format!(
                "message {i}: {got:?} instead of {} bytes and {:?}",
                step.len, step.imm
            )
        })
    }
}
