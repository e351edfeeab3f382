//! Runs a [`plan`](crate::plan) on two ranks and checks every byte.
//!
//! Both ranks walk through the same steps. What a stream sees right behind its wait is copied
//! away by that stream: a byte that arrives late, because a flush or a fence is missing, is
//! found there. Every slot is longer than its message and was filled before, so whatever was
//! aborted and arrives all the same is found too.

use std::time::Duration;

use gds_driver::{SimError, SimReport};
use gdsync::gpu::{MemoryKind, Region, Stream};
use gdsync::rdma::{
    Access, Descriptor, Field, Mr, RemoteMemory, SendRequest, Sge, WaitOptions, Work,
};
use gdsync::{Kind as ErrorKind, Status};

use crate::plan::{By, Kind, Plan, SLOT, STEPS, Step, draw};
use crate::world::{LIMIT, Place, Rank, two_ranks};

const FILL: u8 = 0xee;
/// Behind the slots of the source: bytes for requests that are aborted, and the counter.
const JUNK: usize = STEPS * SLOT;
const COUNTER: usize = JUNK + SLOT;

/// Draws the program of `seed` and runs it under the schedule of `seed`.
///
/// # Errors
/// Whatever did not go as the program says, with the seed.
pub fn run(seed: u64) -> Result<SimReport, SimError> {
    let plan = draw(seed);
    two_ranks(seed, move |rank| Player::new(rank, plan.clone()).play())
}

/// What byte `at` of the message of a step is.
fn pattern(step: usize, from: usize, at: usize) -> u8 {
    (step * 31 + from * 97 + at * 7 + at / 251) as u8
}

fn message(step: usize, from: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| pattern(step, from, at)).collect()
}

struct Player {
    rank: Rank,
    plan: Plan,
    place: Place,
    streams: [Stream; 2],
    /// Where messages land, whether received, written by the peer or read from it.
    landing: Mr,
    /// What is sent, and what the peer reads.
    source: Mr,
    /// What the streams saw.
    seen: Region,
    their_landing: RemoteMemory,
    their_source: RemoteMemory,
    signaled: Vec<SendRequest>,
}

impl Player {
    fn new(rank: Rank, plan: Plan) -> Player {
        let mut place = rank.open(plan.options.clone(), &plan.config);
        let streams = [place.gpu.stream().unwrap(), place.gpu.stream().unwrap()];
        let alloc = |kind, len| place.gpu.alloc(kind, len).unwrap();
        let landing = place
            .pd
            .register(&alloc(plan.landing, STEPS * SLOT), Access::ALL)
            .unwrap();
        let source = alloc(MemoryKind::Pinned, COUNTER + 64);
        let source = place.pd.register(&source, Access::ALL).unwrap();
        let seen = alloc(MemoryKind::Pinned, STEPS * SLOT);
        landing
            .region()
            .write(0, &vec![FILL; STEPS * SLOT])
            .unwrap();
        source.region().write(JUNK, &[0xbb; SLOT]).unwrap();
        let [their_landing, their_source] = rank.swap_memory([landing.remote(), source.remote()]);
        rank.connect(&mut place.qp);
        Player {
            rank,
            plan,
            place,
            streams,
            landing,
            source,
            seen,
            their_landing,
            their_source,
            signaled: Vec::new(),
        }
    }

    fn play(mut self) {
        for (i, step) in self.plan.steps.clone().iter().enumerate() {
            if step.kind == Kind::Read && step.from != self.rank.me {
                // It is read from here, whenever the other rank gets there.
                self.fill(i, self.rank.me, SLOT);
            }
        }
        self.rank.barrier();
        for (i, step) in self.plan.steps.clone().iter().enumerate() {
            if step.from == self.rank.me {
                self.act(i, step);
            } else if matches!(
                step.kind,
                Kind::Send | Kind::SendImm | Kind::SendInline | Kind::WriteImm
            ) {
                self.receive(i, step);
            }
            if !step.hurry && i % 5 == 0 {
                self.synchronize(i);
            }
        }
        self.synchronize(STEPS);
        self.place.qp.quiet(LIMIT).unwrap();
        self.rank.barrier();
        self.look_at_silent_writes();
        self.check();
        self.rank.barrier();
        let Place { device, qp, .. } = self.place;
        drop(qp);
        device.close(LIMIT).unwrap();
    }

    fn synchronize(&self, step: usize) {
        for stream in &self.streams {
            assert!(
                stream.synchronize(LIMIT).unwrap(),
                "a stream hangs at step {step}"
            );
        }
    }

    fn fill(&self, i: usize, from: usize, len: usize) {
        self.source
            .region()
            .write(i * SLOT, &message(i, from, len))
            .unwrap();
    }

    fn flushing(&self) -> WaitOptions {
        WaitOptions {
            flush: self.plan.options.caps.flush && self.plan.landing == MemoryKind::Device,
            timeout: None,
        }
    }

    /// Has the stream copy what it sees of a slot.
    fn look(&self, i: usize, stream: &Stream) {
        let span = |region: &Region| region.span(i * SLOT, SLOT).unwrap();
        stream
            .copy(&span(&self.seen), &span(self.landing.region()))
            .unwrap();
    }

    fn act(&mut self, i: usize, step: &Step) {
        self.fill(i, self.rank.me, step.len);
        let hole = step.hole.then(|| self.junk(i)).flatten();
        let mut prepared = self.prepare(i, step, Duration::ZERO);
        if let Some(hole) = hole {
            // Behind the request, or, where there is no room for both, before it.
            self.place.qp.abort(hole).unwrap();
        }
        if matches!(&prepared, Err(e) if e.kind() == ErrorKind::QueueFull) {
            prepared = self.prepare(i, step, LIMIT);
        }
        let request = prepared.unwrap();
        if step.newest_aborted
            && let Some(newest) = self.junk(i)
        {
            self.place.qp.abort(newest).unwrap();
        }
        if step.signaled {
            self.signaled.push(request);
        }
        let waits = step.signaled && step.waits;
        let brings = matches!(step.kind, Kind::Read | Kind::FetchAdd);
        let options = if brings {
            self.flushing()
        } else {
            WaitOptions::default()
        };
        let wait = Descriptor::Wait(request.into(), options);
        let qp = &mut self.place.qp;
        match step.by {
            By::Cpu => {
                qp.post_within(request, LIMIT).unwrap();
                if waits {
                    qp.post_on(&self.streams[0], &[wait]).unwrap();
                }
            }
            By::Stream(s) => {
                let (length, address) = match step.patched {
                    true => (
                        Some(qp.field32(request, Field::Length(0)).unwrap()),
                        Some(qp.field64(request, Field::Address(0)).unwrap()),
                    ),
                    false => (None, None),
                };
                let at = self.source.region().addr().0 + (i * SLOT) as u64;
                let mut list = Vec::new();
                if let (Some(length), Some(address)) = (&length, &address) {
                    list.push(Descriptor::WriteValue32 {
                        word: length,
                        value: (step.len as u32).to_be(),
                    });
                    list.push(Descriptor::WriteValue64 {
                        word: address,
                        value: at.to_be(),
                    });
                }
                list.push(Descriptor::Send(request));
                if waits {
                    list.push(wait);
                }
                qp.post_on(&self.streams[s], &list).unwrap();
                if brings {
                    self.look(i, &self.streams[s]);
                }
            }
        }
    }

    /// Prepares a request that must never run; `None` if there is no room just now.
    fn junk(&mut self, i: usize) -> Option<SendRequest> {
        let source = self.source.clone();
        let sges = [source.sge(JUNK as u64, SLOT as u32)];
        let to = self
            .their_landing
            .span((i * SLOT) as u64, SLOT as u64)
            .unwrap();
        match self.place.qp.prepare(&Work::write(&sges, to).signaled()) {
            Ok(request) => Some(request),
            Err(e) if e.kind() == ErrorKind::QueueFull => None,
            Err(e) => panic!("{e:?}"),
        }
    }

    fn prepare(&mut self, i: usize, step: &Step, limit: Duration) -> gdsync::Result<SendRequest> {
        let (source, landing) = (self.source.clone(), self.landing.clone());
        let at = (i * SLOT) as u64;
        let out = match step.patched {
            true => [source.sge(JUNK as u64, 1)],
            false => [source.sge(at, step.len as u32)],
        };
        let into: [Sge<'_>; 1] = [landing.sge(at, step.len as u32)];
        let slot = self.their_landing.span(at, SLOT as u64).unwrap();
        let bytes = message(i, self.rank.me, step.len);
        let (head, tail) = bytes.split_at(bytes.len() / 3);
        let pieces = [head, tail];
        let work = match step.kind {
            Kind::Send => Work::send(&out),
            Kind::SendImm => Work::send(&out).with_imm(i as u32),
            Kind::SendInline => Work::send_inline(&pieces),
            Kind::WriteImm => Work::write(&out, slot).with_imm(i as u32),
            Kind::Write => Work::write(&out, slot),
            Kind::Read => Work::read(&into, self.their_source.span(at, step.len as u64).unwrap()),
            Kind::FetchAdd => {
                Work::fetch_add(&into, self.their_source.span(COUNTER as u64, 8).unwrap(), 1)
            }
        };
        let work = if step.signaled { work.signaled() } else { work };
        self.place.qp.prepare_within(&work, limit)
    }

    fn receive(&mut self, i: usize, step: &Step) {
        let landing = self.landing.clone();
        let sges = [landing.sge((i * SLOT) as u64, SLOT as u32)];
        let host = self.rank.host.clone();
        let qp = &mut self.place.qp;
        let request = retry(&*host, ErrorKind::QueueFull, || qp.prepare_receive(&sges));
        let wait = Descriptor::Wait(
            request.into(),
            WaitOptions {
                flush: self.plan.options.caps.flush && self.plan.landing == MemoryKind::Device,
                timeout: None,
            },
        );
        let stream = match step.receive_by_stream {
            true => {
                let stream = &self.streams[i % 2];
                qp.post_on(stream, &[Descriptor::Receive(request), wait])
                    .unwrap();
                stream
            }
            false => {
                retry(&*host, ErrorKind::Busy, || qp.post_receive(request));
                qp.post_on(&self.streams[0], &[wait]).unwrap();
                &self.streams[0]
            }
        };
        self.look(i, stream);
    }

    /// Nobody was told of plain writes: they are looked at when everything has completed.
    fn look_at_silent_writes(&mut self) {
        let stream = self.streams[0].clone();
        if self.flushing().flush {
            self.place
                .qp
                .post_on(&stream, &[Descriptor::Flush])
                .unwrap();
        }
        for (i, step) in self.plan.steps.iter().enumerate() {
            if step.kind == Kind::Write && step.from != self.rank.me {
                self.look(i, &stream);
            }
        }
        self.synchronize(STEPS);
    }

    fn check(&mut self) {
        assert_eq!(self.place.qp.error(), None);
        for request in std::mem::take(&mut self.signaled) {
            assert_eq!(self.place.qp.poll(request).unwrap(), Some(Status::SUCCESS));
        }
        let (me, peer) = (self.rank.me, self.rank.peer());
        let mut last = None;
        let mut adds = 0;
        for (i, step) in self.plan.steps.iter().enumerate() {
            let mine = step.from == me;
            let lands = match step.kind {
                Kind::Read | Kind::FetchAdd => mine,
                _ => !mine,
            };
            if step.kind == Kind::FetchAdd && !mine {
                adds += 1;
            }
            if !lands {
                continue;
            }
            let mut got = vec![0; SLOT];
            self.seen.read(i * SLOT, &mut got).unwrap();
            if step.kind == Kind::FetchAdd {
                let old = u64::from_le_bytes(got[..8].try_into().unwrap());
                assert!(
                    last.is_none_or(|l| old > l),
                    "step {i}: {old} after {last:?}"
                );
                last = Some(old);
                continue;
            }
            let mut want = message(i, peer, step.len);
            want.resize(SLOT, FILL);
            let wrong = got.iter().zip(&want).position(|(g, w)| g != w);
            assert_eq!(wrong, None, "step {i}, {step:?}: the first wrong byte");
        }
        let mut counter = [0; 8];
        self.source.region().read(COUNTER, &mut counter).unwrap();
        assert_eq!(u64::from_le_bytes(counter), adds);
    }
}

/// Tries until the answer is another one than `busy`.
fn retry<T>(
    host: &dyn gds_step::Host,
    busy: ErrorKind,
    mut attempt: impl FnMut() -> gdsync::Result<T>,
) -> T {
    let mut result = None;
    let deadline = host.now() + LIMIT;
    host.wait_until(Some(deadline), &mut || {
        let answer = attempt();
        let again = matches!(&answer, Err(e) if e.kind() == busy);
        result = Some(answer);
        !again
    });
    result.expect("tried at least once").unwrap()
}
