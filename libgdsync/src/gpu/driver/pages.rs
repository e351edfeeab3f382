//! Host memory of the application that is registered with the driver.
//!
//! Registrations belong to the process: all GPUs of a driver use them. The driver registers a page
//! only once, but applications may register overlapping ranges. Therefore ranges are split into
//! units; each unit is registered once and has a use count.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use gds_step::Mutex;

use super::calls::{ALREADY_REGISTERED, OK};
use super::context::Context;
use super::memory::Origin;
use crate::error::{Error, Kind, Result};
use crate::gpu::runtime::Owner;

const PAGE: usize = 4096;
const OPERATION: &str = "register host memory";

/// By the API of the driver.
static PAGES: Mutex<BTreeMap<&'static str, State>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct State {
    /// Units by first address.
    units: BTreeMap<usize, Unit>,
    /// The contexts that have used units.
    contexts: Vec<Weak<Context>>,
}

struct Unit {
    end: usize,
    /// The number of registrations that cover the unit, including those whose end is deferred until
    /// streams have passed.
    users: usize,
    /// The context that registered the unit, and unregisters it; `None`: the application
    /// registered it.
    home: Option<Arc<Context>>,
}

/// The first addresses of the units that one registration uses, in order. The units stay as long as
/// the registration does.
pub(crate) type Units = Vec<usize>;

/// Registers those pages of the `len` bytes at `ptr` that are not registered yet. The caller leaves
/// the units that are returned, also after an error.
///
/// # Safety
/// The memory stays valid until [`leave`] and the unregistration that it defers.
pub(super) unsafe fn enter(
    context: &Arc<Context>,
    ptr: *mut u8,
    len: usize,
) -> (Units, Result<()>) {
    let start = ptr as usize / PAGE * PAGE;
    let end = (ptr as usize).checked_add(len);
    let Some(end) = end.and_then(|end| end.checked_next_multiple_of(PAGE)) else {
        let what = format!("{len} bytes at {ptr:p} exceed the address space");
        return (Vec::new(), Err(Error::new(OPERATION, Kind::Invalid, what)));
    };
    free_unused(context);
    let mut all = PAGES.lock();
    let state = all.entry(context.driver.api()).or_default();
    let one = Arc::downgrade(context);
    state
        .contexts
        .retain(|known| known.strong_count() > 0 && !known.ptr_eq(&one));
    state.contexts.push(one);
    let mut gaps = state.gaps(start, end).into_iter();
    // SAFETY: the caller's promise.
    let made = gaps.try_for_each(|gap| unsafe { state.register(context, gap) });
    let used = state.overlapping(start, end);
    for start in &used {
        if let Some(unit) = state.units.get_mut(start) {
            unit.users += 1;
        }
    }
    (used, made)
}

/// Ends the registrations that no stream uses any more, of all GPUs of the driver: their addresses
/// may hold other memory by now. (The application promises that memory which a stream may still use
/// is unchanged.)
pub(super) fn free_unused(context: &Context) {
    let known = |state: &State| state.contexts.iter().filter_map(Weak::upgrade).collect();
    let contexts: Vec<Arc<Context>> =
        (PAGES.lock().get(context.driver.api())).map_or_else(Vec::new, known);
    // Each round may hand units over to a context that was asked before.
    for _ in &contexts {
        for context in contexts.iter().filter(|one| !one.deferred.is_empty()) {
            context.deferred.free_unused(context);
        }
    }
}

/// Ends a registration that no stream of `context` uses any more: unregisters the units that no other
/// registration uses. Returns the owner, unless it goes to another context with units that only that
/// context can unregister: the call may block behind streams of the GPU that registered a unit.
pub(super) fn leave(context: &Context, units: Units, owner: Option<Owner>) -> Option<Owner> {
    let mut all = PAGES.lock();
    let state = all.entry(context.driver.api()).or_default();
    let (mut rest, mut next) = (Vec::new(), None);
    for start in units {
        let Some(unit) = state.units.get_mut(&start) else {
            continue;
        };
        if unit.users > 1 {
            unit.users -= 1;
        } else if let Some(home) = unit
            .home
            .as_ref()
            .filter(|home| !std::ptr::eq(&***home, context))
        {
            next = Some(Arc::clone(home));
            rest.push(start);
        } else if let Some(unit) = state.units.remove(&start)
            && unit.home.is_some()
            && let Err(e) = unregister(context, start)
        {
            tracing::warn!(target: "gdsync", "{e}");
        }
    }
    drop(all);
    let Some(next) = next else { return owner };
    next.deferred.take_over(Origin::Registered(rest, owner));
    None
}

impl State {
    fn overlapping(&self, start: usize, end: usize) -> Units {
        let inside = self.units.range(..end);
        inside
            .filter(|(_, unit)| unit.end > start)
            .map(|(from, _)| *from)
            .collect()
    }

    /// The parts of a range that no unit covers.
    fn gaps(&self, start: usize, end: usize) -> Vec<Range<usize>> {
        let (mut gaps, mut at) = (Vec::new(), start);
        for unit in self.overlapping(start, end) {
            gaps.push(at..unit);
            at = self.units[&unit].end;
        }
        gaps.push(at..end);
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }

    fn add(&mut self, pages: &Range<usize>, home: Option<&Arc<Context>>) {
        let (end, users, home) = (pages.end, 0, home.cloned());
        self.units.insert(pages.start, Unit { end, users, home });
    }

    /// Registers whole pages, and makes units of them and of those that the application has
    /// registered.
    ///
    /// # Safety
    /// The memory is valid.
    unsafe fn register(&mut self, context: &Arc<Context>, pages: Range<usize>) -> Result<()> {
        let _own = context.enter_own()?;
        let twice = context.driver.registers_twice();
        // SAFETY: the caller's promise.
        if !twice && unsafe { register_run(context, &pages)? } {
            self.add(&pages, Some(context));
            return Ok(());
        }
        for (run, registered) in runs(pages, |at| registration(context, at)).map_err(shared)? {
            if registered.is_some() {
                self.add(&run, None);
                continue;
            }
            // SAFETY: as above.
            if !unsafe { register_run(context, &run)? } {
                return Err(shared(run));
            }
            self.add(&run, Some(context));
            // HIP finds an address by the last registration that begins before it.
            if twice && registration(context, run.end - 1).is_none() {
                return Err(shared(run));
            }
        }
        Ok(())
    }
}

/// A run of pages, and the number of its registration; `None`: it has none.
type Run = (Range<usize>, Option<u64>);

/// Splits whole pages into runs. Fails with a page that has bytes of several registrations, or of one
/// and of none.
fn runs(
    pages: Range<usize>,
    registration: impl Fn(usize) -> Option<u64>,
) -> Result<Vec<Run>, Range<usize>> {
    let mut runs: Vec<Run> = Vec::new();
    for page in pages.step_by(PAGE) {
        let (end, number) = (page + PAGE, registration(page));
        if registration(end - 1) != number {
            return Err(page..end);
        }
        match runs.last_mut() {
            Some((run, last)) if *last == number => run.end = end,
            _ => runs.push((page..end, number)),
        }
    }
    Ok(runs)
}

#[cold]
fn shared(pages: Range<usize>) -> Error {
    let Range { start, end } = pages;
    let what = format!(
        "the memory from {start:#x} to {end:#x} shares a page with a registration of the \
         application that does not cover the page; register whole pages of {PAGE} bytes, or leave \
         all registrations there to the library"
    );
    Error::new(OPERATION, Kind::Unsupported, what)
}

/// The number of the registration of the byte at `at`; `None`: it has none.
fn registration(context: &Context, at: usize) -> Option<u64> {
    let (mut host, mut number) = (std::ptr::null_mut(), 0);
    // SAFETY: stores an address.
    let _ = unsafe { context.driver.host_pointer(&mut host, at as u64) };
    if host.is_null() {
        return None;
    }
    // SAFETY: stores a number.
    let _ = unsafe { context.driver.buffer_id(&mut number, at as u64) };
    Some(number)
}

fn unregister(context: &Context, start: usize) -> Result<()> {
    let _own = context.enter_own()?;
    // SAFETY: the library registered this address, and no stream uses it.
    let gone = unsafe { context.driver.host_unregister(start as *mut _) };
    context.check(gone, "unregister host memory")
}

/// Registers a run of pages in the current context; `false`: it overlaps an existing registration.
///
/// # Safety
/// The memory is valid.
unsafe fn register_run(context: &Context, pages: &Range<usize>) -> Result<bool> {
    // The first try is for device registers; the driver refuses ordinary memory there and accepts
    // it at the second try.
    for registers in [true, false] {
        let at = pages.start as *mut _;
        // SAFETY: the caller's promise.
        let done = unsafe { context.driver.host_register(at, pages.len(), registers) };
        match done.code {
            OK => return Ok(true),
            ALREADY_REGISTERED => return Ok(false),
            code if registers && context.driver.kind(code) != Kind::DeviceLost => {}
            _ => context.check(done, OPERATION)?,
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages 1 and 2 have one registration, page 3 another one.
    #[test]
    fn pages_of_one_registration_are_one_run() {
        let number = |at: usize| match at / PAGE {
            1 | 2 => Some(7),
            3 => Some(8),
            _ => None,
        };
        let found = runs(0..6 * PAGE, number).unwrap();
        let found: Vec<_> = found
            .into_iter()
            .map(|(run, number)| (run.start / PAGE, run.end / PAGE, number))
            .collect();
        let expected = [(0, 1, None), (1, 3, Some(7)), (3, 4, Some(8)), (4, 6, None)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_page_of_two_registrations_is_found() {
        let page = PAGE..2 * PAGE;
        for (first, last) in [(None, Some(7)), (Some(7), None), (Some(7), Some(8))] {
            let number = |at: usize| if at < page.end - 1000 { first } else { last };
            assert_eq!(runs(0..3 * PAGE, number), Err(page.clone()));
        }
    }
}
