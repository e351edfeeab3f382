//! Stream operations of lanes of copies: lists of waits, stores and puts; consecutive puts become
//! kernel launches, a block for each message.

use std::sync::Arc;
use std::{iter, mem};

use gdsync::rdma::{self, Descriptor};
use gdsync::{Gpu, Status, Stream};

use super::put::{PutState, Target};
use super::{Lane, Put};
use crate::error::{Error, Kind, Result};
use crate::kernels::{
    DIRECTS, Direct, FLAGS, Flag, Kernels, NAMES, Name, PUT_TASKS, PUTS, Polls, Puts,
};
use crate::path::{uncaptured, while_held};

/// Number of bytes from which a put has its own kernel launch.
pub(super) const LARGE: u64 = 64 << 10;
const POST: &str = "post request";

/// An item of a list.
#[derive(Clone, Copy)]
pub(crate) enum Item {
    /// A put, in the place of a descriptor.
    Put(Put),
    /// A wait for a word.
    Wait,
    /// Another descriptor.
    Other,
}

impl Item {
    pub fn is_put(&self) -> bool {
        self.put().is_some()
    }

    fn put(&self) -> Option<Put> {
        match self {
            Item::Put(put) => Some(*put),
            Item::Wait | Item::Other => None,
        }
    }

    /// Whether the stream waits at it.
    fn waits(&self) -> bool {
        match self {
            Item::Put(put) => put.waits,
            Item::Wait => true,
            Item::Other => false,
        }
    }
}

/// The parameters of launches: buffers that are kept from list to list.
#[derive(Default)]
pub(crate) struct Tasks {
    puts: Vec<Puts<PUTS>>,
    names: Vec<Name>,
    flags: Vec<Flag>,
    directs: Vec<Direct>,
}

/// The number of kernels of consecutive puts, at most; [`post_puts`] enqueues them.
pub(crate) fn launches(puts: impl Iterator<Item = Put>) -> u32 {
    let (mut puts, mut count) = (puts.peekable(), 0);
    while let Some(first) = puts.next() {
        let rest = iter::from_fn(|| puts.next_if(|put| !put.is_credit()));
        count += launches_of(iter::once(first).chain(rest));
    }
    count
}

/// As [`launches`], of puts of which only the first one waits for a credit.
fn launches_of(puts: impl Iterator<Item = Put>) -> u32 {
    let (mut large, mut groups, mut small) = (0, 0_usize, 0);
    let (mut names, mut flags, mut directs, mut relays) = (0_usize, 0_usize, 0_usize, 0);
    let mut wordless = false;
    let mut before: Option<(u32, bool)> = None;
    for put in puts {
        if put.reports() {
            wordless |= before.is_some_and(|(_, words)| !words);
            before = None;
            match put.target {
                Target::Relay | Target::Credit => relays += 1,
                Target::Name => names += 1,
                Target::Receive => directs += 1,
                Target::Room | Target::Memory => flags += 1,
            }
            continue;
        }
        if before.is_none_or(|(lane, words)| words || lane != put.lane) || small == PUTS {
            wordless |= before.is_some_and(|(_, words)| !words);
            (groups, small) = (groups + 1, 0);
        }
        large += usize::from(put.large);
        small += usize::from(!put.large);
        before = Some((put.lane, put.words));
    }
    wordless |= before.is_some_and(|(_, words)| !words);
    let both = usize::from(wordless && groups > 1);
    let copies = large + groups.div_ceil(PUT_TASKS) + both;
    let messages = flags.div_ceil(FLAGS) + directs.div_ceil(DIRECTS);
    (copies + names.div_ceil(NAMES) + messages + relays) as u32
}

/// Divides consecutive puts into the groups that one block each executes: puts of one lane up to
/// the word that announces them.
fn groups(mut rest: &[Put]) -> impl Iterator<Item = &[Put]> {
    iter::from_fn(move || {
        let first = rest.first()?;
        let (mut end, mut small) = (0, 0);
        for put in rest {
            small += usize::from(!put.large);
            if put.lane != first.lane || small > PUTS || put.reports() && end > 0 {
                break;
            }
            end += 1;
            if put.words {
                break;
            }
        }
        let (group, behind) = rest.split_at(end);
        rest = behind;
        Some(group)
    })
}

/// Enqueues consecutive puts of `lanes`: those behind a wait for a credit follow it.
pub(crate) fn post_puts(
    stream: &Stream,
    lanes: &mut [&mut Lane],
    puts: &[Put],
    tasks: &mut Tasks,
) -> Result<()> {
    let mut posted = false;
    for part in puts.chunk_by(|_, next| !next.is_credit()) {
        if let Err(e) = post_part(stream, lanes, part, tasks) {
            if posted {
                // The remaining puts are not enqueued.
                lanes
                    .iter_mut()
                    .for_each(|lane| lane.fail(Status::LOCAL_QP_OPERATION));
            }
            return Err(e);
        }
        posted = true;
    }
    Ok(())
}

/// Enqueues puts of which only the first may be a wait for a credit: this wait, then the large puts, each
/// by as many blocks as it needs, then the others, a block for each group, and the names of receives.
/// Then the messages to flagged rooms, those to the memory of their receives, and the waits for receives:
/// they may wait for a peer that waits for the other puts. The blocks of a launch have no order, so the
/// groups that end with a word have a launch behind those without one, whose bytes the word may
/// announce. After an error, the lanes fail if a kernel was launched.
fn post_part(
    stream: &Stream,
    lanes: &mut [&mut Lane],
    puts: &[Put],
    tasks: &mut Tasks,
) -> Result<()> {
    let kernels = ready(stream, lanes)?;
    let Tasks {
        puts: tasks,
        names,
        flags,
        directs,
    } = tasks;
    tasks.clear();
    names.clear();
    flags.clear();
    directs.clear();
    let mut bare = 0;
    for words in [false, true] {
        bare = tasks.len();
        for group in groups(puts) {
            let Some(last) = group.last() else {
                continue;
            };
            let Some(lane) = of(lanes, *last) else {
                continue;
            };
            let slot = &lane.slots[last.slot()];
            // The messages that wait are behind the others.
            match last.target {
                Target::Memory if last.words == words => {
                    tasks.push(lane.task(group.iter().filter(|put| !put.large), Some(*last)));
                }
                Target::Name if words => names.push(slot.name),
                Target::Room if last.waits == words => flags.push(slot.flag),
                Target::Receive if words => directs.push(slot.direct),
                _ => {}
            }
        }
    }
    let (bare, announced) = tasks.split_at(bare);
    let mut launched = false;
    let of_kind = |target| puts.iter().filter(move |put| put.target == target);
    let ends = |target| {
        let waiting = of_kind(target).filter(|put| put.waits);
        Polls::of(waiting.filter_map(|put| Some(of(lanes, *put)?.end_of(*put))))
    };
    let mut enqueue = || -> Result<()> {
        for put in of_kind(Target::Credit) {
            if let Some(lane) = of(lanes, *put) {
                let (credit, end) = (&lane.slots[put.slot()].credit, lane.end_of(*put));
                // SAFETY: the words belong to the lane and the channel, which the context keeps.
                unsafe { kernels.await_credit(stream, credit, end) }?;
                launched = true;
            }
        }
        for put in of_kind(Target::Memory).filter(|put| put.large) {
            let Some(lane) = of(lanes, *put) else {
                continue;
            };
            let (alone, len) = (lane.task(iter::once(put), None), lane.slots[put.slot()].len);
            // SAFETY: the WQEs belong to the lane, which the context keeps. The memory that they
            // name is in regions that were alive when they were prepared or, if a kernel of the
            // stream patches the place, in the memory that a receive has named. Memory that is
            // returned stays accessible until the operations enqueued before have run.
            unsafe { kernels.put(stream, &alone, len)? };
            launched = true;
        }
        for tasks in [bare, announced] {
            // SAFETY: as above.
            unsafe { kernels.put_all(stream, tasks.iter())? };
            launched |= !tasks.is_empty();
        }
        // SAFETY: as above. Rooms, places and the memory of receives are in memory of the peer that
        // is mapped here; the other words belong to the lane and the channel, which the context keeps.
        unsafe { kernels.name_all(stream, names) }?;
        launched |= !names.is_empty() || flags.len() > FLAGS;
        // SAFETY: as above.
        unsafe { kernels.flag_all(stream, flags, ends(Target::Room)) }?;
        launched |= !flags.is_empty() || directs.len() > DIRECTS;
        // SAFETY: as above.
        unsafe { kernels.direct_all(stream, directs, ends(Target::Receive)) }?;
        launched |= !directs.is_empty();
        for put in of_kind(Target::Relay) {
            if let Some(lane) = of(lanes, *put) {
                let (relay, end) = (&lane.slots[put.slot()].relay, lane.end_of(*put));
                // SAFETY: as above.
                unsafe { kernels.relay(stream, relay, end) }?;
                launched = true;
            }
        }
        Ok(())
    };
    let enqueued = enqueue();
    if enqueued.is_err() {
        if launched || tasks.len() > PUT_TASKS {
            // The remaining puts are not enqueued.
            lanes
                .iter_mut()
                .for_each(|lane| lane.fail(Status::LOCAL_QP_OPERATION));
        }
        return enqueued;
    }
    for group in groups(puts) {
        if let Some(last) = group.last()
            && let Some(lane) = of_mut(lanes, *last)
        {
            for put in group {
                let slot = &mut lane.slots[put.slot()];
                slot.state = PutState::Posted(*last);
                slot.end = slot.end.max(put.end);
                slot.from.clear();
            }
        }
    }
    Ok(())
}

/// The lane of a put.
fn of<'l>(lanes: &'l [&mut Lane], put: Put) -> Option<&'l Lane> {
    let lane = lanes.iter().find(|lane| lane.id == put.lane);
    lane.map(|lane| &**lane)
}

fn of_mut<'l>(lanes: &'l mut [&mut Lane], put: Put) -> Option<&'l mut Lane> {
    let lane = lanes.iter_mut().find(|lane| lane.id == put.lane);
    lane.map(|lane| &mut **lane)
}

/// Checks that a stream belongs to a GPU.
///
/// # Errors
/// `Foreign` if it belongs to another one.
pub(crate) fn check_gpu(stream: &Stream, gpu: &Gpu, operation: &'static str) -> Result<()> {
    if stream.gpu().is(gpu) {
        return Ok(());
    }
    let what = format!("{stream:?} does not belong to {gpu:?}; use a stream of this GPU");
    Err(Error::new(
        operation,
        Kind::Gdsync(gdsync::Kind::Foreign),
        what,
    ))
}

/// Checks that a stream can execute puts of `lanes`, and returns the kernels.
fn ready(stream: &Stream, lanes: &[&mut Lane]) -> Result<Arc<Kernels>> {
    let none = || Error::new(POST, Kind::Invalid, "a put has no lane");
    let copier = &lanes.first().ok_or_else(none)?.copier;
    for lane in lanes {
        lane.check(POST)?;
    }
    uncaptured(stream, POST)?;
    check_gpu(stream, &copier.gpu, POST)?;
    copier.kernels.clone().ok_or_else(|| {
        let what = "the GPU runs no kernels; a stream needs them to send to a rank of its host; \
                    post the request from the CPU";
        Error::new(POST, Kind::Unsupported, what)
    })
}

impl Lane {
    /// Enqueues a list, whose descriptors `items` describe. If it is refused before a kernel was
    /// launched, at most waits are enqueued; after a launch, the lane fails.
    pub fn post_on(
        &mut self,
        stream: &Stream,
        list: &[Descriptor<'_>],
        items: &[Item],
    ) -> Result<()> {
        if !items.iter().any(Item::is_put) {
            return Ok(rdma::post_on(stream, &mut [], list)?);
        }
        ready(stream, &[&mut *self])?;
        let waits = list.len() > 1 && items.iter().any(Item::waits);
        while_held(stream, waits, || {
            stream.check_room(list.len() as u32)?;
            self.enqueue(stream, list, items)
        })
    }

    fn enqueue(&mut self, stream: &Stream, list: &[Descriptor<'_>], items: &[Item]) -> Result<()> {
        let (mut tasks, mut puts) = (mem::take(&mut self.tasks), mem::take(&mut self.run));
        let mut at = 0;
        let mut enqueued = Ok(());
        let mut launched = false;
        while at < list.len() && enqueued.is_ok() {
            puts.clear();
            puts.extend(items[at..].iter().map_while(Item::put));
            if puts.is_empty() {
                let some = items[at..].iter().position(Item::is_put);
                let end = some.map_or(list.len(), |some| at + some);
                enqueued = rdma::post_on(stream, &mut [], &list[at..end]).map_err(Error::from);
                at = end;
            } else {
                enqueued = post_puts(stream, &mut [&mut *self], &puts, &mut tasks);
                at += puts.len();
                launched |= enqueued.is_ok();
            }
        }
        (self.tasks, self.run) = (tasks, puts);
        if enqueued.is_err() && launched {
            // The remaining operations are not enqueued.
            self.fail(Status::LOCAL_QP_OPERATION);
        }
        enqueued
    }

    /// The task of some puts; it reports that `last` is done.
    fn task<'p>(&self, puts: impl Iterator<Item = &'p Put>, last: Option<Put>) -> Puts<PUTS> {
        let done = |last: Put| (self.wqes.done(last.slot()).addr().0, last.serial());
        let (done, serial) = last.map_or((0, 0), done);
        let mut task = Puts {
            failed: self.wqes.failed().addr().0,
            done,
            serial,
            count: 0,
            words: 0,
            wqe: [0; PUTS],
        };
        for put in puts {
            let at = task.count as usize;
            task.wqe[at] = self.wqes.addr(put.slot());
            task.words |= u32::from(put.words) << at;
            task.count += 1;
        }
        task
    }
}
