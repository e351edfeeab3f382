//! Host memory of the application that is registered with the driver.
//!
//! The driver registers a page once; applications register what they like, overlapping too. So
//! ranges are cut into units, each registered once and counted.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gdsync_sys::cuda::{CudaResult, consts};

use super::context::Context;
use crate::error::{Error, Kind, Result};

const PAGE: usize = 4096;
const OPERATION: &str = "register host memory";

/// The units of one context.
#[derive(Default)]
pub(crate) struct HostPages(Mutex<State>);

#[derive(Default)]
struct State {
    /// By first address.
    units: BTreeMap<usize, Unit>,
    generation: u64,
}

struct Unit {
    end: usize,
    /// Registrations that cover it; 0: it waits to be given back.
    users: usize,
    generation: u64,
    /// Registered by us, and not by the application.
    ours: bool,
}

/// The units that one registration uses: first address and generation.
pub(crate) type Units = Vec<(usize, u64)>;

impl HostPages {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the pages of `len` bytes at `ptr` as far as they are not registered.
    ///
    /// # Safety
    /// The memory is valid, and stays so until [`HostPages::leave`] and what it defers.
    pub unsafe fn enter(&self, context: &Context, ptr: *mut u8, len: usize) -> Result<Units> {
        let start = ptr as usize / PAGE * PAGE;
        let end = (ptr as usize)
            .checked_add(len)
            .map(|end| end.next_multiple_of(PAGE))
            .ok_or_else(|| {
                Error::new(OPERATION, Kind::Invalid, format!("{len} bytes at {ptr:p}"))
            })?;
        let mut state = self.lock();
        state.drop_unused(context, start, end)?;
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
        for (i, (from, to)) in gaps.iter().copied().enumerate() {
            // SAFETY: the caller's promise.
            match unsafe { register(context, from, to) } {
                Ok(ours) => {
                    state.generation += 1;
                    let generation = state.generation;
                    let users = 0;
                    let end = to;
                    state.units.insert(
                        from,
                        Unit {
                            end,
                            users,
                            generation,
                            ours,
                        },
                    );
                    used.push(from);
                }
                Err(e) => {
                    for (from, _) in &gaps[..i] {
                        state.remove(context, *from)?;
                    }
                    return Err(e);
                }
            }
        }
        let mut units = Vec::with_capacity(used.len());
        for start in used {
            if let Some(unit) = state.units.get_mut(&start) {
                unit.users += 1;
                units.push((start, unit.generation));
            }
        }
        Ok(units)
    }

    /// Ends a registration. Returns the units that nobody uses any more, for
    /// [`HostPages::give_back`] once no stream does either.
    pub fn leave(&self, units: &Units) -> Units {
        let mut state = self.lock();
        let mut unused = Vec::new();
        for (start, generation) in units {
            if let Some(unit) = state.units.get_mut(start)
                && unit.generation == *generation
            {
                unit.users -= 1;
                if unit.users == 0 {
                    unused.push((*start, *generation));
                }
            }
        }
        unused
    }

    /// Gives those of `units` back to the driver that are still unused.
    pub fn give_back(&self, context: &Context, units: &Units) {
        let mut state = self.lock();
        for (start, generation) in units {
            let same = |unit: &Unit| unit.generation == *generation && unit.users == 0;
            if state.units.get(start).is_some_and(same) {
                // A refusal changes nothing for us: the unit is forgotten.
                let _ = state.remove(context, *start);
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

    /// What is only to be given back goes now: the memory there may be another by this time.
    /// What streams may still use is the same memory, as the application has promised, and
    /// serves again.
    fn drop_unused(&mut self, context: &Context, start: usize, end: usize) -> Result<()> {
        for start in self.overlapping(start, end) {
            let unit = &self.units[&start];
            if unit.users == 0 && !context.graves.uses(&(start, unit.generation)) {
                self.remove(context, start)?;
            }
        }
        Ok(())
    }

    fn remove(&mut self, context: &Context, start: usize) -> Result<()> {
        match self.units.remove(&start) {
            Some(unit) if unit.ours => {
                let _own = context.enter_own()?;
                // SAFETY: registered by us at this address, and counted out.
                let gone = unsafe { (context.cuda.cuMemHostUnregister)(start as *mut _) };
                context.check(gone, "unregister host memory")
            }
            _ => Ok(()),
        }
    }
}

/// Registers whole pages. Returns whether it was us: the application may have done so.
///
/// # Safety
/// The memory is valid.
unsafe fn register(context: &Context, from: usize, to: usize) -> Result<bool> {
    let _own = context.enter_own()?;
    let plain = consts::CU_MEMHOSTREGISTER_PORTABLE | consts::CU_MEMHOSTREGISTER_DEVICEMAP;
    // Registers of a device first; ordinary memory is refused as such and taken the second time.
    for flags in [plain | consts::CU_MEMHOSTREGISTER_IOMEMORY, plain] {
        // SAFETY: the caller's promise.
        let done = unsafe { (context.cuda.cuMemHostRegister_v2)(from as *mut _, to - from, flags) };
        match done {
            CudaResult::SUCCESS => return Ok(true),
            CudaResult::HOST_MEMORY_ALREADY_REGISTERED => return Ok(false),
            _ if flags != plain && !done.is_sticky() => {}
            _ => context.check(done, OPERATION)?,
        }
    }
    Ok(false)
}
