//! Collective calls by streams: a copy of the contributions, and one plan: puts, waits, and the
//! kernel that makes the result.

use std::mem;
use std::sync::Arc;

use gdsync::Stream;

use super::call::CollectiveCall;
use super::team::{TeamHandle, others};
use crate::error::{Error, Result};
use crate::kernels::{Collect, Kernels, LENS, Shape};
use crate::plan::check_room;
use crate::region::Slice;
use crate::request::collective::{Collection, awaited, parity};
use crate::request::entry::{Common, Entry, Handle, Operation, Poster};
use crate::two_sided::engine::Engine;
use crate::two_sided::{On, State, mark_others};
use crate::wire::collective::{self, Call};

/// The memory of a stream's call.
#[derive(Clone, Copy)]
pub(crate) struct Buffers<'a> {
    /// The contributions of this rank.
    pub from: Option<&'a Slice>,
    /// The memory for the result.
    pub into: Option<&'a Slice>,
}

impl TeamHandle {
    /// Enqueues a call on a stream: all of it, or, after an error, nothing that another rank can
    /// observe.
    pub fn call_on(
        &mut self,
        engine: &Engine,
        call: &CollectiveCall<'_>,
        stream: &Stream,
        buffers: Buffers<'_>,
    ) -> Result<()> {
        let number = self.next(call, engine)?;
        let on = On::Stream(stream, None);
        on.check(&engine.gpu, call.name())?;
        let kernels = engine.kernels(call.name())?;
        for slice in [buffers.from, buffers.into].into_iter().flatten() {
            let paths = &engine.paths;
            paths.check(call.name(), slice.memory().keys(), slice)?;
        }
        self.open(engine, call, &on, number)?;
        let posted = engine.with_room(|| {
            let mut state = engine.lock();
            engine.sweep_if_crowded(&mut state);
            mark_others(&mut state, stream, 0)?;
            state.requests.reserve(&engine.gpu)?;
            self.enqueue(engine, &mut state, kernels, (call, number), stream, buffers)
        });
        posted.map_err(|e| self.refused(engine, call, number, e))
    }

    fn enqueue(
        &mut self,
        engine: &Engine,
        state: &mut State,
        kernels: &Kernels,
        (call, number): (&CollectiveCall<'_>, u64),
        stream: &Stream,
        buffers: Buffers<'_>,
    ) -> Result<()> {
        let launch = |stream: &Stream, _: usize| {
            self.launch(engine, kernels, (call, number), stream, buffers.into)
        };
        self.with_puts(engine, state, (call, number), |state, plan| {
            for (_, word) in self.team.others(number) {
                plan.wait(word, collective::threshold(awaited(number)), false);
            }
            if engine.size > 1 {
                plan.passed_by(&self.team.passed, number);
            }
            plan.kernels_here(1 + (engine.size as usize / LENS) as u32);
            // A copy that stays behind would overwrite the contributions of the call under the same
            // number that the CPU or another stream makes: nothing after it lacks room.
            let mut post = || {
                // The wait for another stream, and the copy.
                check_room(stream, 3 + plan.room(stream))?;
                plan.check_order(&mut state.peers)?;
                self.follow(state, stream)?;
                self.copy(call, number, stream, buffers.from)?;
                plan.post(stream, &mut state.peers, Some(&launch))
            };
            match engine.size {
                1 => post(),
                _ => stream.hold_wait(post).map_err(Error::from)?,
            }
        })?;
        (self.last, self.stream) = (number, Some(stream.id()));
        let peer = others(engine).next().unwrap_or(engine.rank);
        let common = Common {
            number,
            poster: Poster {
                lane: self.lanes[peer as usize],
                stream: Some(stream.downgrade()),
            },
            handle: Handle::Dropped,
            len: call.received(engine.size) as u64,
            order: state.requests.next_order(),
            ..Common::new(peer, 0, &[])
        };
        let operation = Operation::Collective(Collection {
            team: Arc::clone(&self.team),
            call: call.kind,
            done: None,
        });
        state.requests.put(Entry { common, operation });
        Ok(())
    }

    /// Makes the stream wait for the stream of the last call, if that is another one.
    fn follow(&self, state: &mut State, stream: &Stream) -> Result<()> {
        let other = self.stream.is_some_and(|last| last != stream.id());
        if !other || self.team.has_passed(self.last) {
            return Ok(());
        }
        let mut plan = mem::take(&mut state.plan).emptied();
        plan.wait(&self.team.passed, self.last, false);
        let posted = plan.post(stream, &mut state.peers, None);
        state.plan = plan.emptied();
        posted.map_err(|refusal| refusal.error)
    }

    /// Copies the contributions to where they are put from.
    fn copy(
        &self,
        call: &CollectiveCall<'_>,
        number: u64,
        stream: &Stream,
        from: Option<&Slice>,
    ) -> Result<()> {
        let Some(from) = from.filter(|from| !from.is_empty()) else {
            return Ok(());
        };
        let at = self.sources(call, number);
        let to = self.memory().region().span(at, from.len())?;
        let from = (from.memory().region()).span(from.offset(), from.len())?;
        Ok(stream.copy(&to, &from)?)
    }

    /// Enqueues the kernels that compare the words and make the result.
    fn launch(
        &self,
        engine: &Engine,
        kernels: &Kernels,
        (call, number): (&CollectiveCall<'_>, u64),
        stream: &Stream,
        into: Option<&Slice>,
    ) -> Result<()> {
        let ranks = engine.size;
        let shape = call.shape(engine.rank);
        let mut params = self.collect_params(engine, (call, number), into);
        let at_once = match shape {
            Shape::Varied => LENS as u32,
            _ => ranks,
        };
        for first in (0..ranks).step_by(at_once as usize) {
            params.first = first;
            params.count = at_once.min(ranks - first);
            if shape == Shape::Varied {
                let these = first..first + params.count;
                for (len, rank) in params.lens.iter_mut().zip(these) {
                    *len = call.from(rank) as u32;
                }
            }
            if first + params.count == ranks {
                params.passed = self.team.passed.addr().0;
            }
            // SAFETY: words and slots belong to the team, the result to a slice that is as long as
            // the call requires. Memory that is returned stays accessible until the operations
            // enqueued before have run.
            unsafe { kernels.collect(stream, &params)? };
            let lens = params.lens.iter().take(params.count as usize);
            params.out += lens.map(|len| u64::from(*len)).sum::<u64>();
        }
        Ok(())
    }

    /// The parameters of the kernels of a call, without the ranks of each.
    fn collect_params(
        &self,
        engine: &Engine,
        (call, number): (&CollectiveCall<'_>, u64),
        into: Option<&Slice>,
    ) -> Collect {
        let (me, parity) = (engine.rank, parity(number));
        let addr = |offset: usize| self.memory().region().addr().0 + offset as u64;
        let (element, op) = match call.kind {
            Call::AllReduce { element, op } => (element, op),
            _ => (0, 0),
        };
        let first_slot = match call.kind {
            Call::Broadcast { root } => root,
            _ => 0,
        };
        Collect {
            words: addr(self.layout.word(parity, 0)),
            slots: addr(self.layout.slot(parity, first_slot)),
            stride: self.layout.room as u64,
            own: addr(self.source(call, number, me)),
            out: into.map_or(0, Slice::addr),
            len: call.len as u64,
            expected: collective::word(number, call.kind, call.len),
            fault: self.team.fault[0].addr().0,
            error: engine.error.addr().0,
            passed: 0,
            call: number,
            ranks: engine.size,
            me,
            count: 0,
            first: 0,
            shape: call.shape(me) as u32,
            element,
            op,
            reserved: 0,
            lens: [0; LENS],
        }
    }
}
