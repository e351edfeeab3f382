//! Runs one rank's part of a [`plan`](crate::plan).
//!
//! What a stream sees right behind its wait is copied away by that stream, and then written
//! over: a byte that arrives late, because a flush or a fence is missing, or twice, is found.
//! A source is written over as soon as its completion was waited for: a wait that passes early
//! is found too.

mod receive;
mod send;

use std::collections::BTreeMap;
use std::rc::Rc;

use gdsync::gpu::{MemoryKind, Region, Span, Stream};
use gdsync::memop::Condition;
use gdsync::rdma::{Descriptor, Mr, Qp, ReceiveRequest, RemoteMemory, SendRequest, Sge, post_on};
use gdsync::{Kind as ErrorKind, Status};

use crate::list::{After, List, Todo};
use crate::oracle::{FILL, JUNK, Outcome, TAKEN, message};
use crate::plan::{Action, Ink, Kind, Plan, Victim};
use crate::world::{LIMIT, Place, Rank};

/// The other end of a queue pair.
struct Link {
    qp: Qp,
    landing: RemoteMemory,
    source: RemoteMemory,
    words: RemoteMemory,
}

/// A rank that plays.
pub struct Player {
    rank: Rank,
    plan: Rc<Plan>,
    place: Place,
    /// By rank.
    links: Vec<Option<Link>>,
    streams: [Stream; 2],
    /// Where messages land, whether received, written by a peer or read from one.
    landing: Mr,
    /// What is sent, and what peers read.
    source: Mr,
    /// Two words for each peer's atomics.
    words: Mr,
    /// What must never be sent.
    junk: Mr,
    /// Messages that streams copy into the source.
    ink: Region,
    /// What the streams saw.
    seen: Region,
    /// Eight bytes a step: words that one stream writes for the other.
    tokens: Region,
    open: List,
    put_off: Vec<usize>,
    receives: BTreeMap<usize, ReceiveRequest>,
    /// Every request that was posted, with its peer.
    sent: Vec<(usize, SendRequest)>,
    taken: Vec<bool>,
}

impl Player {
    /// Opens everything and connects with all peers.
    pub fn new(rank: Rank, plan: Rc<Plan>) -> Player {
        let seat = &plan.seats[rank.me];
        let place = rank.open(seat.options.clone());
        let streams = [place.gpu.stream().unwrap(), place.gpu.stream().unwrap()];
        let pinned = |len| place.gpu.alloc(MemoryKind::Pinned, len).unwrap();
        let bytes = plan.bytes();
        let landing = place.memory(seat.landing, bytes);
        let source = place.memory(seat.source, bytes);
        let words = place.memory(seat.source, 16 * rank.ranks);
        let junk = place.memory(MemoryKind::Pinned, 64);
        landing.region().write(0, &vec![FILL; bytes]).unwrap();
        junk.region().write(0, &[JUNK; 64]).unwrap();
        let mut links: Vec<Option<Link>> = Vec::new();
        for (peer, config) in seat.queues.iter().enumerate() {
            let link = config.as_ref().map(|config| Link {
                qp: place.pd.create_qp(config).unwrap(),
                landing: rank.swap_memory(&landing, peer),
                source: rank.swap_memory(&source, peer),
                words: rank.swap_memory(&words, peer),
            });
            links.push(link);
        }
        let mut player = Player {
            ink: pinned(bytes),
            seen: pinned(bytes),
            tokens: pinned(8 * plan.steps.len()),
            taken: vec![false; plan.steps.len()],
            place,
            links,
            streams,
            landing,
            source,
            words,
            junk,
            open: List::default(),
            put_off: Vec::new(),
            receives: BTreeMap::new(),
            sent: Vec::new(),
            rank,
            plan,
        };
        player.fill();
        for (peer, link) in player.links.iter_mut().enumerate() {
            if let Some(link) = link {
                player.rank.connect(&mut link.qp, peer);
            }
        }
        player.rank.barrier();
        player.schedule_hiccups();
        player
    }

    /// What lies in memory before the first step.
    fn fill(&mut self) {
        for (i, step) in self.plan.steps.iter().enumerate() {
            let (at, bytes) = (self.plan.slots[i], message(i, step.len));
            if step.kind == Kind::Read && step.to == self.rank.me {
                self.source.region().write(at, &bytes).unwrap();
            } else if step.from == self.rank.me {
                self.ink.write(at, &bytes).unwrap();
                if let Ink::Handed {
                    condition: Condition::Nor,
                    ..
                } = step.ink
                {
                    self.tokens.write(8 * i, &[0xff; 8]).unwrap();
                }
            }
        }
    }

    fn schedule_hiccups(&self) {
        let mine = |h: &&crate::plan::Hiccup| h.rank == self.rank.me;
        for hiccup in self.plan.hiccups.iter().filter(mine) {
            let name = match hiccup.victim {
                Victim::Gpu => self.place.engine(),
                Victim::Nic => self.place.nic(),
                Victim::Watcher => self.place.nic() + ".watcher",
                Victim::Cpu => format!("rank{}", self.rank.me),
                Victim::Links => "hub.links".to_owned(),
            };
            self.rank.pause(&name, hiccup.after, hiccup.lasts);
        }
    }

    /// Does everything on the agenda and waits until all ranks have.
    pub fn play(&mut self) {
        let plan = Rc::clone(&self.plan);
        for action in &plan.agendas[self.rank.me] {
            match *action {
                Action::Act(i) => self.act(i, &plan.steps[i]),
                Action::TryReceive(i) => {
                    self.try_receive(i);
                }
                Action::PutOff(i) => self.put_off.push(i),
                Action::Receive(i) => self.receive(i),
                Action::Await(i) => self.await_receive(i),
            }
        }
        self.settle();
        for s in 0..2 {
            self.synchronize(s);
        }
        for link in self.links.iter_mut().flatten() {
            link.qp.quiet(LIMIT).unwrap();
            assert_eq!(link.qp.error(), None);
        }
        for (peer, request) in std::mem::take(&mut self.sent) {
            let status = self.qp(peer).poll(request).unwrap();
            assert_eq!(status, Some(Status::SUCCESS), "{request:?}");
        }
        self.rank.barrier();
        self.look_at_the_rest();
    }

    /// Looks at what nobody waited for, now that everything is over.
    fn look_at_the_rest(&mut self) {
        let plan = Rc::clone(&self.plan);
        if self.must_flush() {
            self.open.todos.push(Todo::Flush);
            self.hand_over();
        }
        for i in 0..plan.steps.len() {
            if plan.lands(i, self.rank.me) && !self.taken[i] {
                self.look(i, 0);
            }
        }
        self.synchronize(0);
    }

    /// What was found; to be called when everything is over.
    pub fn outcome(&self) -> Outcome {
        let read = |region: &Region, len: usize| {
            let mut bytes = vec![0; len];
            region.read(0, &mut bytes).unwrap();
            bytes
        };
        let words = read(self.words.region(), 16 * self.rank.ranks);
        let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().unwrap());
        Outcome {
            seen: read(&self.seen, self.plan.bytes()),
            landing: read(self.landing.region(), self.plan.bytes()),
            taken: self.taken.clone(),
            words: (0..self.rank.ranks)
                .map(|r| (word(16 * r), word(16 * r + 8)))
                .collect(),
        }
    }

    /// Takes everything down, in one of the orders that programs do it in.
    pub fn leave(self) {
        self.rank.barrier();
        let Player { place, links, .. } = self;
        drop(links);
        place.device.close(LIMIT).unwrap();
    }

    fn qp(&mut self, peer: usize) -> &mut Qp {
        &mut self.links[peer].as_mut().expect("a peer").qp
    }

    fn synchronize(&self, s: usize) {
        assert!(
            self.streams[s].synchronize(LIMIT).unwrap(),
            "stream {s} hangs"
        );
    }

    /// Whether what the NIC writes has to be flushed to be seen.
    fn must_flush(&self) -> bool {
        self.landing.region().kind() == MemoryKind::Device
    }

    fn source_span(&self, i: usize, len: usize) -> Span {
        self.source.region().span(self.plan.slots[i], len).unwrap()
    }

    /// The list that what stream `s` does next is added to.
    fn list(&mut self, s: usize) -> &mut List {
        if self.open.stream != s {
            self.hand_over();
            self.open.stream = s;
        }
        &mut self.open
    }

    /// Hands the open list to its stream.
    fn hand_over(&mut self) {
        let list = std::mem::take(&mut self.open);
        if !list.todos.is_empty() {
            self.post(&list);
        }
        for after in &list.after {
            match *after {
                After::Take(i) => self.take(i, list.stream),
                After::Forget(i) => self.forget(i, list.stream),
            }
        }
    }

    fn post(&mut self, list: &List) {
        let stream = &self.streams[list.stream];
        let mut queues: Vec<&mut Qp> = self.links.iter_mut().flatten().map(|l| &mut l.qp).collect();
        let descriptors = |flush| -> Vec<Descriptor<'_>> {
            list.todos.iter().map(|t| t.descriptor(flush)).collect()
        };
        // Whatever is refused leaves no trace.
        if list.spoiled {
            let to = self.ink.span(0, 8).unwrap();
            let mut spoiled = descriptors(true);
            spoiled.push(Descriptor::WriteMemory {
                to: &to,
                data: &[0; 4],
            });
            let refused = post_on(stream, &mut queues, &spoiled).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused:?}");
        }
        post_on(stream, &mut queues, &descriptors(false)).unwrap();
    }

    /// Does what was put off: to be called before anything that may block.
    fn settle(&mut self) {
        self.hand_over();
        let mut late = std::mem::take(&mut self.put_off);
        let host = self.rank.host.clone();
        let deadline = host.now() + LIMIT;
        // All of them at once: one may have to wait for what another one lets happen.
        host.wait_until(Some(deadline), &mut || {
            late.retain(|i| !self.try_receive(*i));
            late.is_empty()
        });
        assert_eq!(late, [], "receives that cannot be posted");
    }

    /// Has a stream copy what it sees of a slot.
    fn look(&self, i: usize, s: usize) {
        let (at, len) = (self.plan.slots[i], self.plan.slot(i));
        let span = |region: &Region| region.span(at, len).unwrap();
        self.streams[s]
            .copy(&span(&self.seen), &span(self.landing.region()))
            .unwrap();
    }

    fn overwrite(&self, span: &Span, s: usize, byte: u8) {
        let stream = self.streams[s].as_soft().expect("a soft stream");
        let addr = softgpu::DevAddr::from_raw(span.addr().0);
        stream.fill(addr, byte, span.len()).unwrap();
    }

    /// Has a stream copy what it sees of a slot, and write over it.
    fn take(&mut self, i: usize, s: usize) {
        self.look(i, s);
        let (at, len) = (self.plan.slots[i], self.plan.slot(i));
        self.overwrite(&self.landing.region().span(at, len).unwrap(), s, TAKEN);
        self.taken[i] = true;
    }

    /// Has a stream write over the source of a step.
    fn forget(&self, i: usize, s: usize) {
        let len = self.plan.steps[i].len;
        if len > 0 {
            self.overwrite(&self.source_span(i, len), s, JUNK);
        }
    }
}

/// Three segments of a registration, some of which may be empty.
fn pieces(mr: &Mr, at: u64, cuts: [usize; 2], len: usize) -> [Sge<'_>; 3] {
    let [a, b] = cuts;
    let piece = |from: usize, to: usize| mr.sge(at + from as u64, (to - from) as u32);
    [piece(0, a), piece(a, b), piece(b, len)]
}
