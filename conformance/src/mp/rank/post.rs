//! How a rank posts the receives and sends of a round.

use std::ops::Range;

use gdsync::gpu::MemoryKind;
use gdsync::rdma::{Descriptor, post_on};
use mp::{Kind, RecvOp, Request, SendOp, SizeSource, Source};

use super::{BATCH, Channel, Line, Player, Sent, Taken, tag};
use crate::mp::memory::POISON;
use crate::mp::plan::{By, Message, handling, landing};
use crate::mp::setup::Form;
use crate::rig::verdict::{Verdict, ensure};

/// Cancels a prepared request.
fn cancel(request: &Request) -> Verdict {
    request.cancel()?;
    let kind = request.test().map_err(|e| e.kind());
    ensure(matches!(kind, Err(Kind::Cancelled)), || {
        format!("{request:?} was cancelled: {kind:?}")
    })
}

/// A request that is posted.
trait Part {
    fn too_long(&self) -> bool;
    fn by(&self) -> By;
    fn request(&mut self) -> &mut Option<Request>;
}

impl Part for Taken {
    fn too_long(&self) -> bool {
        self.too_long
    }

    fn by(&self) -> By {
        self.handling.posts
    }

    fn request(&mut self) -> &mut Option<Request> {
        &mut self.request
    }
}

impl Part for Sent {
    fn too_long(&self) -> bool {
        self.too_long
    }

    fn by(&self) -> By {
        self.handling.posts
    }

    fn request(&mut self) -> &mut Option<Request> {
        &mut self.request
    }
}

impl Player<'_> {
    /// Posts the receives of these messages on some lines.
    pub(super) fn post_receives(
        &mut self,
        messages: Range<usize>,
        on: impl Fn(&Line) -> bool,
    ) -> Verdict<Vec<Taken>> {
        let lines = self.lines.iter().enumerate().filter(|(_, line)| on(line));
        let range = |width: usize| messages.start * width..messages.end * width;
        let due = lines.map(|(i, line)| (i, range(line.width))).collect();
        self.post_all(due, Player::receive)
    }

    /// Prepares requests of lines or channels in a drawn order, and posts a few at a time.
    fn post_all<T: Part>(
        &mut self,
        mut due: Vec<(usize, Range<usize>)>,
        prepare: fn(&Self, usize, usize) -> Verdict<T>,
    ) -> Verdict<Vec<T>> {
        let (mut all, mut open) = (Vec::new(), 0);
        while let Some((which, k)) = self.draw(&mut due) {
            let one = prepare(self, which, k)?;
            self.truncated |= one.too_long();
            all.push(one);
            if all.len() - open == BATCH || due.is_empty() {
                if self.setup.prepared {
                    self.post_batch(&mut all[open..])?;
                }
                open = all.len();
            }
        }
        Ok(all)
    }

    /// Posts prepared requests in their order: one by one, or at once those that follow each other
    /// on a stream.
    fn post_batch<T: Part>(&self, batch: &mut [T]) -> Verdict {
        let late = |one: &T| one.by().stream().filter(|_| self.setup.late);
        for run in batch.chunk_by_mut(|one, next| late(one).is_some() && late(one) == late(next)) {
            let mut slots: Vec<_> = run
                .iter_mut()
                .filter_map(|one| one.request().is_some().then_some(one))
                .collect();
            let stream = slots.first().and_then(|one| late(one));
            let requests: Vec<_> = slots
                .iter_mut()
                .filter_map(|one| one.request().take())
                .collect();
            match stream {
                Some(stream) => self.ctx.post_all_on(&self.streams[stream], &requests)?,
                None => requests.iter().try_for_each(Request::post)?,
            }
            for (slot, request) in slots.into_iter().zip(requests) {
                *slot.request() = Some(request);
            }
        }
        Ok(())
    }

    /// The next request of a drawn line or channel.
    fn draw(&mut self, due: &mut Vec<(usize, Range<usize>)>) -> Option<(usize, usize)> {
        due.retain(|(_, range)| !range.is_empty());
        let (which, range) = match due.len() {
            0 => return None,
            n => &mut due[self.rng.usize(0..n)],
        };
        let next = (*which, range.next()?);
        due.retain(|(_, range)| !range.is_empty());
        Some(next)
    }

    fn receive(&self, line: usize, k: usize) -> Verdict<Taken> {
        let setup = self.setup;
        let Line {
            from,
            number,
            ref slots,
            ..
        } = self.lines[line];
        let me = self.ctx.rank();
        let (room, cut) = match from {
            Some(from) => {
                let message = Message::draw(setup, from, me, number, k);
                (message.declared(), message.cut)
            }
            None => (setup.longest(), None),
        };
        let name = u64::from(me) << 32 | line as u64;
        let landing = landing(setup, name, k, room, cut);
        let stream = (line + 1) % self.streams.len();
        let handling = handling(setup, setup.receiver, [name, k as u64, 1], stream);
        let slot = slots.start + k % slots.len();
        self.follow(&self.into, slot, handling.posts)?;
        match handling.posts.stream() {
            Some(stream) => {
                let poison = self.ink.poison.span(0, setup.slot())?;
                self.copy(stream, &self.into.span(slot)?, &poison)?;
            }
            None => {
                let poison = vec![POISON; setup.slot()];
                self.into.memory().write(slot * setup.slot(), &poison)?;
            }
        }
        let segments = self.into.slices(slot, &landing)?;
        let source = from.map_or(Source::Any, Source::Rank);
        let recv = RecvOp::new(source, tag(number), &segments);
        let recv = match handling.posts {
            By::Cpu => recv,
            // On the same lane, no request is prepared that is not posted.
            By::Stream(_) | By::CpuThread(_) if setup.prepared && setup.late => recv,
            By::Stream(stream) => recv.on(&self.streams[stream]),
            By::CpuThread(stream) => recv.by_cpu_thread(&self.streams[stream]),
        };
        if handling.cancelled {
            cancel(&self.ctx.prepare_recv(&recv)?)?;
        }
        let request = match setup.prepared {
            true => self.ctx.prepare_recv(&recv)?,
            false => self.ctx.post_recv(&recv)?,
        };
        Ok(Taken {
            line,
            slot,
            k,
            landing,
            handling,
            too_long: cut.is_some(),
            done: None,
            request: Some(request),
        })
    }

    pub(super) fn post_sends(&mut self, round: usize) -> Verdict {
        let messages = self.numbers(round);
        let channels = 0..self.channels.len();
        let due = channels.map(|channel| (channel, messages.clone()));
        let posted = self.post_all(due.collect(), Player::send)?;
        self.sent.push(posted);
        Ok(())
    }

    fn by<'s>(&'s self, posts: By, send: SendOp<'s>) -> SendOp<'s> {
        match posts {
            By::Cpu => send,
            By::Stream(_) | By::CpuThread(_) if self.setup.prepared && self.setup.late => send,
            By::Stream(stream) => send.on(&self.streams[stream]),
            By::CpuThread(stream) => send.by_cpu_thread(&self.streams[stream]),
        }
    }

    fn send(&self, channel: usize, n: usize) -> Verdict<Sent> {
        let setup = self.setup;
        let Channel { to, number } = self.channels[channel];
        let me = self.ctx.rank();
        let message = Message::draw(setup, me, to, number, n);
        let stream = channel % self.streams.len();
        let name = u64::from(me) << 32 | channel as u64;
        let handling = handling(setup, setup.sender, [name, n as u64, 2], stream);
        let slots = setup.window() * (1 + setup.lag);
        let slot = channel * slots + n % slots;
        let mut sent = Sent {
            channel,
            slot,
            len: message.len,
            handling,
            too_long: message.cut.is_some(),
            ended: true,
            request: None,
        };
        if handling.let_go && !setup.prepared {
            let bytes = message.bytes(&self.ink.bytes);
            let memory = self.ctx.alloc(MemoryKind::Pinned, bytes.len().max(1))?;
            memory.write(0, &bytes)?;
            let all = [memory.slice(0, bytes.len())?];
            drop(
                self.ctx
                    .post_send(&self.by(handling.posts, SendOp::new(to, tag(number), &all)))?,
            );
            return Ok(sent);
        }
        self.follow(&self.out, slot, handling.posts)?;
        let values = [message.len as u64, message.skip as u64];
        match handling.posts.stream() {
            Some(stream) => {
                let bytes = self.ink.row.span(message.window, setup.slot())?;
                self.copy(stream, &self.out.span(slot)?, &bytes)?;
                self.write_words(stream, slot, values)?;
            }
            None => {
                let bytes = &self.ink.bytes[message.window..][..setup.slot()];
                self.out.memory().write(slot * setup.slot(), bytes)?;
                for (word, value) in self.words[slot].iter().zip(values) {
                    word.store(value)?;
                }
            }
        }
        let segments = self.out.slices(slot, &message.pieces)?;
        let [len, offset] = &self.words[slot];
        let send = SendOp::new(to, tag(number), &segments);
        let send = match setup.form {
            Form::Words => send.size(SizeSource::Word {
                len,
                offset: (message.skip > 0).then_some(offset),
            }),
            _ => send,
        };
        let send = self.by(handling.posts, send);
        if handling.cancelled {
            cancel(&self.ctx.prepare_send(&send)?)?;
        }
        sent.request = Some(match setup.prepared {
            true => self.ctx.prepare_send(&send)?,
            false => self.ctx.post_send(&send)?,
        });
        sent.ended = false;
        // The CPU does not read the words from which a stream takes the length.
        if handling.posts != By::Cpu {
            sent.len = message.declared();
        }
        Ok(sent)
    }

    /// Makes a stream write the words of a slot, if there are any.
    pub(super) fn write_words(&self, stream: usize, slot: usize, values: [u64; 2]) -> Verdict {
        if self.setup.form != Form::Words {
            return Ok(());
        }
        let words = self.words[slot].iter().zip(values);
        let list = words.map(|(word, value)| Descriptor::write_value(word, value));
        let list: Vec<_> = list.collect();
        self.again(|| post_on(&self.streams[stream], &mut [], &list))
    }
}
