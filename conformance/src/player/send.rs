//! Acting in a step: prepare, put right, abort, post, wait.

use gdsync::memop::Condition;
use gdsync::rdma::{Completion, Field, RemoteMemory, RemoteSpan, SendRequest, Sge, Work};
use gdsync::{Kind as ErrorKind, Status};

use super::{Player, pieces};
use crate::list::{After, Todo};
use crate::oracle::message;
use crate::plan::{By, Ink, Kind, Step, Waiter, is_words};
use crate::world::LIMIT;

impl Player {
    pub(super) fn act(&mut self, i: usize, step: &Step) {
        let hole = match step.hole {
            true => self.prepare_junk(step.to),
            false => None,
        };
        let mut prepared = self.prepare(i, step, false);
        if let Some(hole) = hole {
            // Behind the request, or, where there was no room for both, before it.
            self.abort(step.to, hole);
        }
        if matches!(&prepared, Err(e) if e.kind() == ErrorKind::QueueFull) {
            self.settle();
            prepared = self.prepare(i, step, true);
        }
        let request = prepared.unwrap();
        if step.newest_aborted
            && let Some(newest) = self.prepare_junk(step.to)
        {
            self.abort(step.to, newest);
        }
        self.sent.push((step.to, request));
        match step.by {
            By::Cpu => {
                self.write_source(i, step);
                self.settle();
                self.qp(step.to).post_within(request, LIMIT).unwrap();
            }
            By::Stream(s) => {
                self.ink(i, step, s);
                let patches = self.patches(i, step, request);
                let list = self.list(s);
                list.todos.extend(patches);
                list.todos.push(Todo::Send(request));
                list.spoiled |= step.spoiled;
            }
        }
        self.await_send(i, step, request);
        if !step.left_open {
            self.hand_over();
        }
    }

    /// A request that must never run; `None` if there is no room just now.
    fn prepare_junk(&mut self, to: usize) -> Option<SendRequest> {
        let junk = self.junk.clone();
        let link = self.links[to].as_mut().expect("a peer");
        let work = [junk.sge(0, 64)];
        let there = link.landing.span(0, 64).unwrap();
        match link.qp.prepare(&Work::write(&work, there).signaled()) {
            Ok(request) => Some(request),
            Err(e) if e.kind() == ErrorKind::QueueFull => None,
            Err(e) => panic!("{e:?}"),
        }
    }

    fn abort(&mut self, to: usize, request: SendRequest) {
        let qp = self.qp(to);
        qp.abort(request).unwrap();
        match qp.poll(request) {
            Ok(status) => assert_eq!(status, Some(Status::ABORTED)),
            Err(e) => assert_eq!(e.kind(), ErrorKind::NoSuchRequest),
        }
        let again = qp.post(request).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::NoSuchRequest, "{again:?}");
    }

    fn prepare(&mut self, i: usize, step: &Step, block: bool) -> gdsync::Result<SendRequest> {
        let (source, landing, junk) =
            (self.source.clone(), self.landing.clone(), self.junk.clone());
        let me = self.rank.me as u64;
        let at = self.plan.slots[i] as u64;
        let len = step.len as u64;
        let link = self.links[step.to].as_mut().expect("a peer");
        let local = match step.kind.brings() {
            true => &landing,
            false => &source,
        };
        let cut = pieces(local, at, step.cuts, step.len);
        let wrong = [junk.sge(0, 1)];
        let sges: &[Sge<'_>] = match step.patched {
            true => &wrong,
            false => &cut,
        };
        let bytes = message(i, step.len);
        let (a, b) = (step.cuts[0], step.cuts[1]);
        let inline: [&[u8]; 3] = [&bytes[..a], &bytes[a..b], &bytes[b..]];
        let remote = |memory: &RemoteMemory| match step.patched_remote {
            true => RemoteSpan::new(1, 2),
            false => memory.span(at, len).unwrap(),
        };
        let word = |offset: u64| link.words.span(16 * me + offset, 8).unwrap();
        let work = match step.kind {
            Kind::Send(_) if step.inline => Work::send_inline(&inline),
            Kind::Send(_) => Work::send(sges),
            Kind::Write(_) if step.inline => Work::write_inline(&inline, remote(&link.landing)),
            Kind::Write(_) => Work::write(sges, remote(&link.landing)),
            Kind::Read => Work::read(sges, remote(&link.source)),
            Kind::FetchAdd(add) => Work::fetch_add(&cut[..1], word(0), add),
            Kind::CompareSwap { compare, swap } => {
                Work::compare_swap(&cut[..1], word(8), compare, swap)
            }
            Kind::Nop => Work::nop(),
        };
        let work = match step.kind {
            Kind::Send(Some(imm)) | Kind::Write(Some(imm)) => work.with_imm(imm),
            _ => work,
        };
        let work = if step.signaled { work.signaled() } else { work };
        let work = if step.fenced { work.fenced() } else { work };
        match block {
            true => link.qp.prepare_within(&work, LIMIT),
            false => link.qp.prepare(&work),
        }
    }

    fn write_source(&self, i: usize, step: &Step) {
        if step.kind.carries() {
            let at = self.plan.slots[i];
            self.source
                .region()
                .write(at, &message(i, step.len))
                .unwrap();
        }
    }

    /// Sees to it that the message lies in the source when stream `s` rings.
    fn ink(&mut self, i: usize, step: &Step, s: usize) {
        let copy = |player: &Player, s: usize| {
            let from = player.ink.span(player.plan.slots[i], step.len).unwrap();
            player.streams[s]
                .copy(&player.source_span(i, step.len), &from)
                .unwrap();
        };
        match step.ink {
            Ink::Cpu => self.write_source(i, step),
            Ink::Copy => {
                // In stream order with what the open list says.
                self.hand_over();
                copy(self, s);
            }
            Ink::Words => {
                let to = self.source_span(i, step.len);
                let bytes = Todo::Bytes(to, message(i, step.len));
                self.list(s).todos.push(bytes);
            }
            Ink::Handed { condition, wide } => {
                // In words, where that is possible: nothing but the fence before the token
                // keeps those in order.
                if is_words(step.len) {
                    let to = self.source_span(i, step.len);
                    let bytes = Todo::Bytes(to, message(i, step.len));
                    self.list(1 - s).todos.push(bytes);
                } else {
                    self.hand_over();
                    copy(self, 1 - s);
                }
                let value = match condition {
                    Condition::Nor => u64::MAX >> 1,
                    _ => 1,
                };
                let narrow = value as u32 & (u32::MAX >> 1);
                let (write, wait) = match wide {
                    true => {
                        let word = self.tokens.word64(8 * i).unwrap();
                        (
                            Todo::Write64(word.clone(), value),
                            Todo::WaitValue64(word, condition, value),
                        )
                    }
                    false => {
                        let word = self.tokens.word32(8 * i).unwrap();
                        (
                            Todo::Write32(word.clone(), narrow),
                            Todo::WaitValue32(word, condition, narrow),
                        )
                    }
                };
                self.list(1 - s).todos.push(write);
                self.list(s).todos.push(wait);
            }
        }
    }

    /// What the stream has to put right in a request that was prepared with wrong fields.
    fn patches(&mut self, i: usize, step: &Step, request: SendRequest) -> Vec<Todo> {
        let at = self.plan.slots[i] as u64;
        let local = match step.kind.brings() {
            true => self.landing.clone(),
            false => self.source.clone(),
        };
        let link = self.links[step.to].as_ref().expect("a peer");
        let word32 = |field, value: u32| {
            Todo::Write32(link.qp.field32(request, field).unwrap(), value.to_be())
        };
        let word64 = |field, value: u64| {
            Todo::Write64(link.qp.field64(request, field).unwrap(), value.to_be())
        };
        let mut todos = Vec::new();
        if step.patched {
            todos.push(word32(Field::Length(0), step.len as u32));
            todos.push(word64(Field::Address(0), local.region().addr().0 + at));
            todos.push(word32(Field::Key(0), local.lkey()));
        }
        if step.patched_remote {
            let memory = match step.kind {
                Kind::Read => &link.source,
                _ => &link.landing,
            };
            let there = memory.span(at, step.len as u64).unwrap();
            todos.push(word64(Field::RemoteAddress, there.addr));
            todos.push(word32(Field::RemoteKey, there.rkey));
        }
        todos
    }

    /// Waits for a request, and then looks at what it brought or writes over what it took.
    fn await_send(&mut self, i: usize, step: &Step, request: SendRequest) {
        let brings = step.kind.brings();
        let after = match step.kind {
            Kind::Nop => None,
            _ if brings => Some(After::Take(i)),
            _ => Some(After::Forget(i)),
        };
        let flush = brings && self.must_flush();
        self.wait_for(step.to, request.into(), step.wait, flush, after);
    }

    /// Has `waiter` wait for a completion and a stream do what comes after.
    pub(super) fn wait_for(
        &mut self,
        peer: usize,
        completion: Completion,
        waiter: Waiter,
        flush: bool,
        after: Option<After>,
    ) {
        match waiter {
            Waiter::Nobody => {}
            Waiter::Cpu => {
                self.settle();
                self.qp(peer).wait(completion, LIMIT).unwrap();
                if flush {
                    self.list(0).todos.push(Todo::Flush);
                }
                self.list(0).after.extend(after);
                self.hand_over();
            }
            Waiter::Stream(s) => {
                let list = self.list(s);
                list.todos.push(Todo::Wait(completion, flush));
                list.after.extend(after);
            }
            Waiter::Both(s) => {
                self.list(s).todos.push(Todo::Wait(completion, flush));
                self.list(s).after.extend(after);
                self.list(1 - s).todos.push(Todo::Wait(completion, false));
            }
        }
    }
}
