//! The memory that this process has exported by IPC handles. HIP refuses to open a handle in the
//! process that made it; there this list gives the address.

use gds_step::Mutex;

struct Exported {
    /// The last handle of each exported allocation, and its address.
    handles: Vec<([u8; 64], u64)>,
    /// The address of each handle of this process that is open.
    open: Vec<u64>,
}

static EXPORTED: Mutex<Exported> = Mutex::new(Exported {
    handles: Vec::new(),
    open: Vec::new(),
});

/// Notes the handle of the allocation at `at`.
pub(super) fn add(handle: [u8; 64], at: u64) {
    let handles = &mut EXPORTED.lock().handles;
    handles.retain(|(_, known)| *known != at);
    handles.push((handle, at));
}

/// Opens the handle if it is one of this process, and returns the address.
pub(super) fn open(handle: &[u8; 64]) -> Option<u64> {
    let exported = &mut *EXPORTED.lock();
    let mut found = exported.handles.iter().filter(|(known, _)| known == handle);
    let at = found.next().map(|(_, at)| *at)?;
    exported.open.push(at);
    Some(at)
}

/// Closes a handle that [`open`] has opened. `false`: none is open at this address.
pub(super) fn close(at: u64) -> bool {
    let open = &mut EXPORTED.lock().open;
    let found = open.iter().position(|known| *known == at);
    found.map(|place| open.swap_remove(place)).is_some()
}

/// Forgets an allocation, which is freed.
pub(super) fn remove(at: u64) {
    EXPORTED.lock().handles.retain(|(_, known)| *known != at);
}
