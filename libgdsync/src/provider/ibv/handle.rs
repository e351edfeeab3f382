//! Address handles: the route of datagrams to a port. On Ethernet the kernel resolves the address.

use gdsync_sys::verbs::types::{ibv_ah, ibv_ah_attr, ibv_pd};

use super::context::{Context, refused_last};
use crate::error::Result;

const OPERATION: &str = "create destination";

/// An address handle of libibverbs.
pub(crate) struct Handle {
    context: &'static Context,
    raw: *mut ibv_ah,
}

// SAFETY: libibverbs may be called from any thread with any of its objects.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// # Safety
    /// `pd` is a protection domain of `context`, which outlives this.
    pub(in crate::provider) unsafe fn make(
        context: &'static Context,
        pd: *mut ibv_pd,
        mut attr: ibv_ah_attr,
    ) -> Result<Handle> {
        // SAFETY: as the caller says.
        let raw = unsafe { (context.verbs().ibv_create_ah)(pd, &mut attr) };
        if raw.is_null() {
            let call = format!("ibv_create_ah on {} with {attr:?}", context.name);
            return Err(refused_last(OPERATION, &call));
        }
        Ok(Handle { context, raw })
    }

    /// The pointer, for requests.
    pub fn raw(&self) -> *mut ibv_ah {
        self.raw
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by `make`, and destroyed once. Requests that name it hold it.
        let answer = unsafe { (self.context.verbs().ibv_destroy_ah)(self.raw) };
        if answer != 0 {
            let name = &self.context.name;
            tracing::warn!(target: "gdsync", "destroy address handle of {name}: {answer}");
        }
    }
}
