//! How a rank posts the receives and sends of a round.

use std::ops::Range;

use gdsync::gpu::MemoryKind;
use gdsync::rdma::{Descriptor, post_on};
use mp::{Kind, RecvOp, Request, SendOp, SizeSource, Source};

use super::{BATCH, Channel, Line, Player, Sent, Taken, tag};
use crate::live::verdict::{Verdict, ensure};
use crate::mp::memory::POISON;
use crate::mp::plan::{By, Landing, Message, hands};
use crate::mp::setup::Form;

/// Takes back a request that was prepared.
fn cancel(request: &Request) -> Verdict {
    request.cancel()?;
    let kind = request.test().map_err(|e| e.kind());
    ensure(matches!(kind, Err(Kind::Cancelled)), || {
        format!("{request:?} was cancelled: {kind:?}")
    })
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
        let mut due = lines.map(|(i, line)| (i, range(line.width))).collect();
        let mut open = Vec::new();
        let mut posted = Vec::new();
        while let Some((line, k)) = self.draw(&mut due) {
            let taken = self.receive(line, k)?;
            self.truncated |= taken.too_long;
            open.push(posted.len());
            posted.push(taken);
            if open.len() == BATCH || due.is_empty() {
                self.post(&mut open, &posted, |taken| &taken.request)?;
            }
        }
        Ok(posted)
    }

    /// The next one of a line or channel that is drawn.
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

    fn post<T>(
        &self,
        open: &mut Vec<usize>,
        all: &[T],
        request: impl Fn(&T) -> &Option<Request>,
    ) -> Verdict {
        for i in open.drain(..) {
            if let (true, Some(request)) = (self.setup.prepared, request(&all[i])) {
                request.post()?;
            }
        }
        Ok(())
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
        let landing = Landing::draw(setup, name, k, room, cut);
        let stream = (line + 1) % self.streams.len();
        let hands = hands(setup, setup.receiver, [name, k as u64, 1], stream);
        let slot = slots.start + k % slots.len();
        self.follow(&self.into, slot, hands.posts)?;
        match hands.posts.stream() {
            Some(stream) => {
                let poison = self.ink.poison.span(0, setup.slot())?;
                self.copy(stream, &self.into.span(slot)?, &poison)?;
            }
            None => {
                let poison = vec![POISON; setup.slot()];
                self.into.memory().write(slot * setup.slot(), &poison)?;
            }
        }
        let segments = self.into.slices(slot, &landing.pieces)?;
        let source = from.map_or(Source::Any, Source::Rank);
        let recv = RecvOp::new(source, tag(number), &segments);
        let recv = match hands.posts {
            By::Cpu => recv,
            By::Stream(stream) => recv.on(&self.streams[stream]),
            By::Proxy(stream) => recv.by_cpu_thread(&self.streams[stream]),
        };
        if hands.cancelled {
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
            hands,
            too_long: cut.is_some(),
            done: None,
            request: Some(request),
        })
    }

    pub(super) fn post_sends(&mut self, round: usize) -> Verdict {
        let messages = self.numbers(round);
        let channels = 0..self.channels.len();
        let mut due = channels
            .map(|channel| (channel, messages.clone()))
            .collect();
        let mut open = Vec::new();
        let mut posted = Vec::new();
        while let Some((channel, n)) = self.draw(&mut due) {
            let sent = self.send(channel, n)?;
            self.truncated |= sent.too_long;
            open.push(posted.len());
            posted.push(sent);
            if open.len() == BATCH || due.is_empty() {
                self.post(&mut open, &posted, |sent| &sent.request)?;
            }
        }
        self.sent.push(posted);
        Ok(())
    }

    fn by<'s>(&'s self, posts: By, send: SendOp<'s>) -> SendOp<'s> {
        match posts {
            By::Cpu => send,
            By::Stream(stream) => send.on(&self.streams[stream]),
            By::Proxy(stream) => send.by_cpu_thread(&self.streams[stream]),
        }
    }

    fn send(&self, channel: usize, n: usize) -> Verdict<Sent> {
        let setup = self.setup;
        let Channel { to, number } = self.channels[channel];
        let me = self.ctx.rank();
        let message = Message::draw(setup, me, to, number, n);
        let stream = channel % self.streams.len();
        let name = u64::from(me) << 32 | channel as u64;
        let hands = hands(setup, setup.sender, [name, n as u64, 2], stream);
        let slots = setup.window() * (1 + setup.lag);
        let slot = channel * slots + n % slots;
        let mut sent = Sent {
            channel,
            slot,
            len: message.len,
            hands,
            too_long: message.cut.is_some(),
            ended: true,
            request: None,
        };
        if hands.let_go && !setup.prepared {
            let bytes = message.bytes(&self.ink.bytes);
            let memory = self.ctx.alloc(MemoryKind::Pinned, bytes.len().max(1))?;
            memory.write(0, &bytes)?;
            let all = [memory.slice(0, bytes.len())?];
            drop(
                self.ctx
                    .post_send(&self.by(hands.posts, SendOp::new(to, tag(number), &all)))?,
            );
            return Ok(sent);
        }
        self.follow(&self.out, slot, hands.posts)?;
        let values = [message.len as u64, message.skip as u64];
        match hands.posts.stream() {
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
        let send = self.by(hands.posts, send);
        if hands.cancelled {
            cancel(&self.ctx.prepare_send(&send)?)?;
        }
        sent.request = Some(match setup.prepared {
            true => self.ctx.prepare_send(&send)?,
            false => self.ctx.post_send(&send)?,
        });
        sent.ended = false;
        // What a word says to a stream the CPU does not know.
        if hands.posts != By::Cpu {
            sent.len = message.declared();
        }
        Ok(sent)
    }

    /// Has a stream write the words of a slot, if there is anything to say.
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
