//! Copies between chunks of pinned memory and device memory that go on beside the caller, on a stream of
//! the library's context.

use std::sync::Arc;

use super::calls::{Handle, NOT_READY};
use super::context::Context;
use super::engine;
use crate::error::{Kind, Result};
use crate::gpu::runtime::{Copier, Way};
use crate::memop::DevicePtr;

const OPERATION: &str = "copy device memory";

/// A stream, and an event for the last copy of each slot.
pub(super) struct DriverCopier {
    context: Arc<Context>,
    stream: Handle,
    events: Vec<Handle>,
}

// SAFETY: handles of the driver, which is thread-safe.
unsafe impl Send for DriverCopier {}
// SAFETY: as above.
unsafe impl Sync for DriverCopier {}

impl DriverCopier {
    pub fn new(context: &Arc<Context>, slots: usize) -> Result<DriverCopier> {
        let _own = context.enter_own()?;
        let mut copier = DriverCopier {
            context: Arc::clone(context),
            stream: std::ptr::null_mut(),
            events: Vec::new(),
        };
        // SAFETY: creates objects of the current context, the library's.
        unsafe {
            let made = context.driver.stream_create(&mut copier.stream, true);
            context.check(made, OPERATION)?;
            for _ in 0..slots {
                let mut event = std::ptr::null_mut();
                let made = context.driver.event_create(&mut event, false);
                context.check(made, OPERATION)?;
                copier.events.push(event);
            }
        }
        Ok(copier)
    }

    /// Waits for the copies behind an error, which says nothing about them.
    fn settle(&self, outcome: Result<()>) -> Result<()> {
        let Err(e) = outcome else {
            return Ok(());
        };
        match engine::finish(&self.context, self.stream, OPERATION) {
            Err(late) if late.kind() == Kind::Timeout => Err(late),
            _ => Err(e),
        }
    }
}

impl Copier for DriverCopier {
    unsafe fn start(
        &self,
        slot: usize,
        way: Way,
        host: *mut u8,
        at: DevicePtr,
        len: usize,
    ) -> Result<()> {
        let driver = self.context.driver;
        let _own = self.context.enter_own()?;
        // SAFETY: the caller's promise; stream and event are live.
        unsafe {
            let copied = match way {
                Way::Out => driver.copy_out(host, at.0, len, self.stream),
                Way::In => driver.copy_in(at.0, host, len, self.stream),
            };
            self.context.check(copied, OPERATION)?;
            let recorded = driver.event_record(self.events[slot], self.stream);
            self.settle(self.context.check(recorded, OPERATION))
        }
    }

    fn is_done(&self, slot: usize) -> Result<bool> {
        let _own = self.context.enter_own()?;
        // SAFETY: a live event.
        let asked = unsafe { self.context.driver.event_query(self.events[slot]) };
        if asked.code == NOT_READY {
            return Ok(false);
        }
        self.settle(self.context.check(asked, OPERATION))
            .map(|()| true)
    }
}

impl Drop for DriverCopier {
    fn drop(&mut self) {
        let Ok(_own) = self.context.enter_own() else {
            // The context is lost, and its objects with it.
            return;
        };
        for event in self.events.drain(..) {
            // SAFETY: a live event, which nothing uses any more.
            let _ = unsafe { self.context.driver.event_destroy(event) };
        }
        if !self.stream.is_null() {
            // SAFETY: a live stream, whose copies are done.
            let _ = unsafe { self.context.driver.stream_destroy(self.stream) };
        }
    }
}
