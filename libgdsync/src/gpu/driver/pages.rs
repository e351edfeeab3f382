//! Host memory of the application that is registered with the driver.
//!
//! The driver registers a page only once, but applications may register overlapping ranges.
//! Therefore ranges are split into units; each unit is registered once and has a use count.

use std::collections::BTreeMap;

use gds_step::Mutex;

use super::calls::{ALREADY_REGISTERED, OK};
use super::context::Context;
use crate::error::{Error, Kind, Result};

const PAGE: usize = 4096;
const OPERATION: &str = "register host memory";

/// The units of one context.
#[derive(Default)]
pub(crate) struct HostPages(Mutex<State>);

#[derive(Default)]
struct State {
    /// Units by first address.
    units: BTreeMap<usize, Unit>,
}

struct Unit {
    end: usize,
    /// The number of registrations that cover the unit, including those whose end is deferred until
    /// streams have passed.
    users: usize,
    /// Whether the library registered the unit; `false`: the application did.
    ours: bool,
}

/// The first addresses of the units that one registration uses. The units stay as long as the
/// registration does.
pub(crate) type Units = Vec<usize>;

impl HostPages {
    /// Registers those pages of the `len` bytes at `ptr` that are not registered yet.
    ///
    /// # Safety
    /// The memory stays valid until [`HostPages::leave`] and the unregistration that it defers.
    pub unsafe fn enter(&self, context: &Context, ptr: *mut u8, len: usize) -> Result<Units> {
        let start = ptr as usize / PAGE * PAGE;
        let end = (ptr as usize)
            .checked_add(len)
            .map(|end| end.next_multiple_of(PAGE))
            .ok_or_else(|| {
                let what = format!("{len} bytes at {ptr:p} exceed the address space");
                Error::new(OPERATION, Kind::Invalid, what)
            })?;
        // Registrations that no stream uses any more end first: their addresses may hold other
        // memory by now. The application promises that memory which a stream may still use is
        // unchanged.
        context.deferred.free_unused(context);
        let mut state = self.0.lock();
        let mut used: Vec<usize> = state.overlapping(start, end);
        let mut gaps = Vec::new();
        let mut at = start;
        for unit in &used {
            if *unit > at {
                gaps.push((at, *unit));
            }
            at = at.max(state.units[unit].end);
        }
        if at < end {
            gaps.push((at, end));
        }
        let mut made = Vec::new();
        for (from, to) in gaps {
            // SAFETY: the caller's promise.
            if let Err(e) = unsafe { register(context, from, to, &mut made) } {
                for (from, _, ours) in made {
                    // The first error is the one to report.
                    let _ = unregister(context, from, ours);
                }
                return Err(e);
            }
        }
        for (from, end, ours) in made {
            let users = 0;
            state.units.insert(from, Unit { end, users, ours });
            used.push(from);
        }
        for start in &used {
            if let Some(unit) = state.units.get_mut(start) {
                unit.users += 1;
            }
        }
        Ok(used)
    }

    /// Ends a registration that no stream uses any more: unregisters the units that no other
    /// registration uses.
    pub fn leave(&self, context: &Context, units: &Units) {
        let mut state = self.0.lock();
        for start in units {
            let Some(unit) = state.units.get_mut(start) else {
                continue;
            };
            unit.users -= 1;
            if unit.users == 0
                && let Some(unit) = state.units.remove(start)
                && let Err(e) = unregister(context, *start, unit.ours)
            {
                tracing::warn!(target: "gdsync", "{e}");
            }
        }
    }
}

impl State {
    fn overlapping(&self, start: usize, end: usize) -> Vec<usize> {
        let inside = self.units.range(..end);
        inside
            .filter(|(_, unit)| unit.end > start)
            .map(|(from, _)| *from)
            .collect()
    }
}

fn unregister(context: &Context, start: usize, ours: bool) -> Result<()> {
    if !ours {
        return Ok(());
    }
    let _own = context.enter_own()?;
    // SAFETY: the library registered this address, and no stream uses it.
    let gone = unsafe { context.driver.host_unregister(start as *mut _) };
    context.check(gone, "unregister host memory")
}

/// Registers whole pages, and adds each run of them to `made`: first address, end, and whether the
/// library registered it; the application may have registered some.
///
/// # Safety
/// The memory is valid.
unsafe fn register(
    context: &Context,
    from: usize,
    to: usize,
    made: &mut Vec<(usize, usize, bool)>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    if unsafe { register_run(context, from, to)? } {
        made.push((from, to, true));
        return Ok(());
    }
    // Page by page: for a run that overlaps a registration, the driver does not say which part
    // overlaps.
    for page in (from..to).step_by(PAGE) {
        // SAFETY: as above.
        let ours = unsafe { register_run(context, page, page + PAGE)? };
        made.push((page, page + PAGE, ours));
    }
    Ok(())
}

/// Registers a run of pages; `false`: it overlaps an existing registration.
///
/// # Safety
/// The memory is valid.
unsafe fn register_run(context: &Context, from: usize, to: usize) -> Result<bool> {
    let _own = context.enter_own()?;
    let is_known = |page: usize| {
        let mut host = std::ptr::null_mut();
        // SAFETY: stores an address.
        let _ = unsafe { context.driver.host_pointer(&mut host, page as u64) };
        !host.is_null()
    };
    if context.driver.registers_twice() && (from..to).step_by(PAGE).any(is_known) {
        return Ok(false);
    }
    // The first try is for device registers; the driver refuses ordinary memory there and accepts
    // it at the second try.
    for registers in [true, false] {
        // SAFETY: the caller's promise.
        let done = unsafe {
            context
                .driver
                .host_register(from as *mut _, to - from, registers)
        };
        match done.code {
            OK => return Ok(true),
            ALREADY_REGISTERED => return Ok(false),
            code if registers && context.driver.kind(code) != Kind::DeviceLost => {}
            _ => context.check(done, OPERATION)?,
        }
    }
    Ok(false)
}
