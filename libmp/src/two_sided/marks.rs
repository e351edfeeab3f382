//! Marks: when a stream stores how far it has come, and which party asks for it (`request::reached` has
//! the words).

use gdsync::Stream;
use gdsync::gpu::{WeakStream, Word64};

use super::claim::poster_of;
use super::state::{State, known};
use crate::error::Result;
use crate::mutant::{Mutant, on};
use crate::request::entry::{Entry, Incoming, ReceiveState};
use crate::request::reached::Mark;
use crate::request::table::RequestKey;

/// Stores marks for the receives that a stream has posted and not taken in, before it waits for another
/// party: for a message, a receive, a credit or a word. `claimed`: the number of those without a mark that
/// it takes in now.
#[inline]
pub(crate) fn mark_others(state: &mut State, stream: &Stream, claimed: u32) -> Result<()> {
    match lacks_marks(state, stream.id(), claimed) {
        true => mark_posted(state, &stream.downgrade(), claimed, false).map(drop),
        false => Ok(()),
    }
}

/// As [`mark_others`], but the kernel that the caller enqueues next stores the mark, before it waits. The stream
/// waits for nothing in front of it.
#[inline]
pub(super) fn number_others(
    state: &mut State,
    stream: &Stream,
    claimed: u32,
) -> Result<Option<Mark>> {
    match lacks_marks(state, stream.id(), claimed) {
        true => mark_posted(state, &stream.downgrade(), claimed, true),
        false => Ok(None),
    }
}

/// Takes [`number_others`] back: no kernel stores the mark.
#[cold]
pub(super) fn withdraw_mark(state: &mut State, stream: &Stream, mark: Mark, claimed: u32) {
    let keys = receives(state, |_, receive| receive.reached == Some(mark));
    let left = claimed + keys.len() as u32;
    set_marks(state, &keys, None);
    state.reached.leave_unmarked(stream.id(), left);
    state.marked = keys;
}

/// The receives for which `is` holds, in the buffer of the state.
fn receives(state: &mut State, is: impl Fn(&Entry, &Incoming) -> bool) -> Vec<RequestKey> {
    let mut keys = std::mem::take(&mut state.marked);
    keys.clear();
    let all = state.requests.iter();
    let found = all.filter(|(_, entry)| entry.receive().is_some_and(|receive| is(entry, receive)));
    keys.extend(found.map(|(key, _)| key));
    keys
}

fn set_marks(state: &mut State, keys: &[RequestKey], mark: Option<Mark>) {
    for key in keys {
        if let Some(receive) = state.requests.receive_mut(*key) {
            receive.reached = mark;
        }
    }
}

fn lacks_marks(state: &State, stream: u64, claimed: u32) -> bool {
    let lacks = state.reached.unmarked(stream) > claimed && state.reached.marks_receives();
    lacks && !on(Mutant::MissingMark)
}

/// As [`mark_others`], before the wait of a request of `stream`.
pub(super) fn mark_before(state: &mut State, stream: &WeakStream) -> Result<()> {
    match lacks_marks(state, stream.id(), 0) {
        true => mark_posted(state, stream, 0, false).map(drop),
        false => Ok(()),
    }
}

/// `by_kernel`: the caller makes a kernel store the mark.
#[cold]
fn mark_posted(
    state: &mut State,
    stream: &WeakStream,
    claimed: u32,
    by_kernel: bool,
) -> Result<Option<Mark>> {
    let keys = receives(state, |entry, receive| {
        let own = entry.poster.id() == Some(stream.id());
        own && receive.state == ReceiveState::Posted && receive.reached.is_none()
    });
    let mark = match keys.is_empty() {
        true => Ok(None),
        false if by_kernel => state.reached.next(stream).map(Some),
        false => state.reached.mark_on(stream),
    };
    if let Ok(mark) = mark {
        set_marks(state, &keys, mark);
        state.reached.leave_unmarked(stream.id(), claimed);
    }
    state.marked = keys;
    mark
}

/// The receive of a request, if `stream` has posted it and stores no mark for it: 1, or 0.
pub(super) fn own_unmarked(state: &State, key: RequestKey, stream: u64) -> u32 {
    let receive = state.requests.get(key).and_then(Entry::receive);
    let unmarked = receive.is_some_and(|receive| receive.reached.is_none());
    u32::from(unmarked && poster_of(state, key) == Some(stream))
}

/// Whether the stream that posted a receive has reached it. If no mark is enqueued yet, this
/// enqueues one; a stream without handles has reached it when it has executed all its work.
pub(super) fn ask_reached(state: &mut State, key: RequestKey, stream: &WeakStream) -> bool {
    let Some(receive) = state.requests.receive_mut(key) else {
        return false;
    };
    if receive.reached.is_none() {
        // While the stream is full or captured, the mark is retried in the next rounds.
        receive.reached = state.reached.mark_on(stream).ok().flatten();
    }
    let reached = receive.reached.is_some_and(|mark| state.reached.has(mark));
    reached || stream.has_ended()
}

/// The word and the value for which `stream` waits if another stream posted the receive: that stream
/// may use the memory until it reaches the receive.
pub(super) fn posted_by_another(
    state: &mut State,
    key: RequestKey,
    stream: &Stream,
) -> Result<Option<(Word64, u64)>> {
    let entry = known(&mut state.requests, key)?;
    let poster = entry.poster.stream.clone();
    let Some(poster) = poster.filter(|poster| poster.id() != stream.id()) else {
        return Ok(None);
    };
    if on(Mutant::EarlyClaim) || ask_reached(state, key, &poster) {
        return Ok(None);
    }
    let receive = known(&mut state.requests, key)?.receive();
    let Some(mark) = receive.and_then(|receive| receive.reached) else {
        // The last handle of that stream was dropped, or that stream is full. A call that is repeated enqueues
        // no second wait.
        let receive = state.requests.receive_mut(key);
        if let Some(receive) = receive.filter(|receive| receive.behind != Some(stream.id())) {
            stream.check_free()?;
            poster.precede(stream)?;
            receive.behind = Some(stream.id());
        }
        return Ok(None);
    };
    let (word, count) = state.reached.word(mark);
    Ok(Some((word.clone(), count)))
}
