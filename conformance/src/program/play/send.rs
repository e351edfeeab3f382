//! Sends: the message itself, prepare, patch, abort, post.

use gdsync::gpu::Condition;
use gdsync::rdma::{Field, RemoteMemory, RemoteSpan, SendRequest, Sge, Work};
use gdsync::{Kind, Status};

use super::{JUNK, Play, pieces, seeds};
use crate::program::draw::{Ink, Odd, Operation};
use crate::program::owned::{OwnedDescriptor, Word};
use crate::rig::expected;
use crate::rig::limits::time_limit;
use crate::rig::verdict::{Verdict, ensure, refused};

impl Play<'_> {
    /// Writes the message into the source, before stream `s` writes the doorbell.
    pub(super) fn ink(&mut self, i: usize, s: usize) -> Verdict {
        let (to, len) = (self.source(i)?, self.steps[i].len);
        let bytes = || expected(seeds(i).0, len);
        match self.steps[i].ink {
            Ink::Kernel => {
                let (region, at) = (self.source_memory(i), self.places(i)[0]);
                let stream = &self.streams[s];
                self.rig.fill(stream, region, at, len, seeds(i).0)?;
            }
            Ink::Cpu => self.source_memory(i).write(self.places(i)[0], &bytes())?,
            Ink::Copy => self.copy(s, &to, &self.inked(i)?)?,
            Ink::Words => self
                .list(s)?
                .descriptors
                .push(OwnedDescriptor::Bytes(to, bytes())),
            Ink::Handed(condition, wide) => {
                // Word by word if possible: only the fence before the token orders such writes.
                match (4..=256).contains(&len) && len.is_multiple_of(4) {
                    true => self
                        .list(1 - s)?
                        .descriptors
                        .push(OwnedDescriptor::Bytes(to, bytes())),
                    false => self.copy(1 - s, &to, &self.inked(i)?)?,
                }
                let value = match condition {
                    Condition::Nor => u64::MAX >> 1,
                    _ => 1,
                };
                let (word, value) = match wide {
                    true => (Word::Wide(self.tokens.word64(8 * i)?), value),
                    false => {
                        let word = Word::Narrow(self.tokens.word32(8 * i)?);
                        (word, value & u64::from(u32::MAX >> 1))
                    }
                };
                let write = OwnedDescriptor::Write(word.clone(), value);
                self.list(1 - s)?.descriptors.push(write);
                let wait = OwnedDescriptor::WaitValue(word, condition, value);
                self.list(s)?.descriptors.push(wait);
            }
        }
        Ok(())
    }

    pub(super) fn prepare(&mut self, i: usize, signaled: bool) -> Verdict<SendRequest> {
        let step = &self.steps[i];
        let end = (step.from, step.to);
        let Some(odd) = step.odd else {
            let qp = self.qp(end);
            let hole = match step.hole {
                true => Some(qp.prepare_within(&Work::nop().signaled(), time_limit())?),
                false => None,
            };
            let send = self.attempt(i, signaled, true)?;
            if let Some(hole) = hole {
                self.qp(end).abort(hole)?;
            }
            return Ok(send);
        };
        let hole = match step.hole {
            true => self.prepare_junk(end)?,
            false => None,
        };
        let mut send = self.attempt(i, signaled, false);
        if let Some(hole) = hole {
            // The hole is behind the request, or before it if there was no room for both.
            self.abort(end, hole)?;
        }
        if matches!(&send, Err(e) if e.kind() == Kind::QueueFull) {
            self.flush()?;
            send = self.attempt(i, signaled, true);
        }
        let send = send?;
        if odd.newest_aborted[0]
            && let Some(newest) = self.prepare_junk(end)?
        {
            self.abort(end, newest)?;
        }
        self.sent.push((end, send));
        Ok(send)
    }

    /// A request that must never run; `None` if the queue has no room.
    fn prepare_junk(&mut self, end: (usize, usize)) -> Verdict<Option<SendRequest>> {
        let there = self.ends.remote[end.1][1].span(0, 64)?;
        let bytes = [JUNK; 64];
        let pieces = [&bytes[..]];
        match self
            .qp(end)
            .prepare(&Work::write_inline(&pieces, there).signaled())
        {
            Err(e) if e.kind() == Kind::QueueFull => Ok(None),
            prepared => Ok(Some(prepared?)),
        }
    }

    fn abort(&mut self, end: (usize, usize), request: SendRequest) -> Verdict {
        let qp = self.qp(end);
        qp.abort(request)?;
        let status = match qp.poll(request) {
            Err(e) if e.kind() == Kind::NoSuchRequest => Some(Status::ABORTED),
            status => status?,
        };
        ensure(status == Some(Status::ABORTED), || format!("{status:?}"))?;
        refused(qp.post(request), Kind::NoSuchRequest, "aborted")?;
        Ok(())
    }

    fn attempt(&mut self, i: usize, signaled: bool, block: bool) -> gdsync::Result<SendRequest> {
        let step = &self.steps[i];
        let [source, received, written] = self.places(i);
        let words = self.program.room + 16 * step.from;
        let memory = &self.ends.memory[&step.from];
        let [their_source, their_landing] = &self.ends.remote[step.to];
        let qp = &mut **self
            .ends
            .qps
            .get_mut(&(step.from, step.to))
            .expect("an end");
        let (mr, local) = match step.operation.brings() {
            true => (&memory.landing, written),
            false => (&memory.source, source),
        };
        let odd = step.odd;
        let cuts = odd.map_or([step.len; 2], |odd| odd.cuts[0]);
        let [wrong, wrong_remote] = odd.map_or([false; 2], |odd| odd.patched);
        let all = pieces(mr, local as u64, cuts, step.len);
        let junk = [memory.junk.sge(0, 1)];
        let sges: &[Sge<'_>] = match odd {
            _ if wrong => &junk,
            Some(_) if !step.operation.is_atomic() => &all,
            _ => &all[..1],
        };
        let bytes = match step.operation.is_inline() {
            true => expected(seeds(i).0, step.len),
            false => vec![0; step.len],
        };
        let inline = [&bytes[..cuts[0]], &bytes[cuts[0]..]];
        let span = |there: &RemoteMemory, at: usize| match wrong_remote {
            true => Ok(RemoteSpan::new(1, 2)),
            false => there.span(at as u64, step.len as u64),
        };
        let word = |which: usize| their_source.span((words + 8 * which) as u64, 8);
        let work = match step.operation {
            Operation::Send => Work::send(sges),
            Operation::SendInline => Work::send_inline(&inline),
            Operation::WriteImm => Work::write(sges, span(their_landing, received)?),
            Operation::Write => Work::write(sges, span(their_landing, written)?),
            Operation::WriteInline => Work::write_inline(&inline, span(their_landing, written)?),
            Operation::Read => Work::read(sges, span(their_source, source)?),
            Operation::FetchAdd(add) => Work::fetch_add(sges, word(0)?, add),
            Operation::CompareSwap(old, new) => Work::compare_swap(sges, word(1)?, old, new),
            Operation::Nop => Work::nop(),
        };
        let work = match step.imm {
            Some(imm) => work.with_imm(imm),
            None => work,
        };
        let work = if signaled { work.signaled() } else { work };
        let work = match odd.is_some_and(|odd| odd.fenced) {
            true => work.fenced(),
            false => work,
        };
        match block {
            true => qp.prepare_within(&work, time_limit()),
            false => qp.prepare(&work),
        }
    }

    /// The fields that the stream must patch in a request that was prepared with wrong ones.
    fn patches(&self, i: usize, odd: &Odd, request: SendRequest) -> Verdict<Vec<OwnedDescriptor>> {
        let (step, [source, received, written]) = (&self.steps[i], self.places(i));
        let qp = &self.ends.qps[&(step.from, step.to)];
        let word32 = |field, value: u32| -> gdsync::Result<OwnedDescriptor> {
            let word = Word::Narrow(qp.field32(request, field)?);
            Ok(OwnedDescriptor::Write(word, value.to_be().into()))
        };
        let word64 = |field, value: u64| -> gdsync::Result<OwnedDescriptor> {
            let word = Word::Wide(qp.field64(request, field)?);
            Ok(OwnedDescriptor::Write(word, value.to_be()))
        };
        let mut descriptors = Vec::new();
        if odd.patched[0] {
            let memory = self.memory(step.from);
            let (mr, at) = match step.operation.brings() {
                true => (&memory.landing, written),
                false => (&memory.source, source),
            };
            descriptors.push(word32(Field::Length(0), step.len as u32)?);
            descriptors.push(word64(Field::Address(0), mr.region().addr().0 + at as u64)?);
            descriptors.push(word32(Field::Key(0), mr.lkey())?);
        }
        if odd.patched[1] {
            let [their_source, their_landing] = &self.ends.remote[step.to];
            let (there, at) = match step.operation {
                Operation::Read => (their_source, source),
                Operation::WriteImm => (their_landing, received),
                _ => (their_landing, written),
            };
            let there = there.span(at as u64, step.len as u64)?;
            descriptors.push(word64(Field::RemoteAddress, there.addr)?);
            descriptors.push(word32(Field::RemoteKey, there.rkey)?);
        }
        Ok(descriptors)
    }

    pub(super) fn post(&mut self, i: usize, send: SendRequest, stream: usize) -> Verdict {
        let Some(odd) = self.steps[i].odd else {
            self.list(stream)?
                .descriptors
                .push(OwnedDescriptor::Send(send));
            return Ok(());
        };
        if odd.by_cpu[0] {
            self.flush()?;
            let step = &self.steps[i];
            let qp = self.qp((step.from, step.to));
            return Ok(qp.post_within(send, time_limit())?);
        }
        let patches = self.patches(i, &odd, send)?;
        let list = self.list(stream)?;
        list.descriptors.extend(patches);
        list.descriptors.push(OwnedDescriptor::Send(send));
        list.spoiled |= odd.spoiled;
        Ok(())
    }
}
