//! Host memory of the application that is registered with the driver.
//!
//! Registrations belong to the process: all GPUs of a driver use them. The driver registers a page
//! only once, but applications may register overlapping ranges. Therefore ranges are split into
//! units; each unit is registered once and has a use count.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

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
    contexts: Vec<Arc<Context>>,
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
    if !state
        .contexts
        .iter()
        .any(|known| Arc::ptr_eq(known, context))
    {
        state.contexts.push(Arc::clone(context));
    }
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
    let all = PAGES.lock();
    let contexts = all
        .get(context.driver.api())
        .map(|all| all.contexts.clone());
    drop(all);
    let contexts = contexts.unwrap_or_default();
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
        // SAFETY: the caller's promise.
        if unsafe { register_run(context, &pages)? } {
            self.add(&pages, Some(context));
            return Ok(());
        }
        // Page by page: for a run that overlaps a registration, the driver does not say which part
        // overlaps.
        for page in pages.step_by(PAGE) {
            let page = page..page + PAGE;
            // SAFETY: as above.
            let ours = unsafe { register_run(context, &page)? };
            self.add(&page, ours.then_some(context));
        }
        Ok(())
    }
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
    let is_known = |page: usize| {
        let mut host = std::ptr::null_mut();
        // SAFETY: stores an address.
        let _ = unsafe { context.driver.host_pointer(&mut host, page as u64) };
        !host.is_null()
    };
    if context.driver.registers_twice() && pages.clone().step_by(PAGE).any(is_known) {
        return Ok(false);
    }
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
