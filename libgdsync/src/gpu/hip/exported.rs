//! The memory that this process has exported by IPC handles. HIP refuses to open a handle in the
//! process that made it; there the handle stands for the address itself.

use gds_step::Mutex;

/// Handles of the process and the addresses of their allocations.
static EXPORTED: Mutex<Vec<([u8; 64], u64)>> = Mutex::new(Vec::new());

/// Notes the handle of the allocation at `at`.
pub(super) fn add(handle: [u8; 64], at: u64) {
    let mut exported = EXPORTED.lock();
    if !exported.contains(&(handle, at)) {
        exported.push((handle, at));
    }
}

/// The address of this process's allocation with the handle.
pub(super) fn find(handle: &[u8; 64]) -> Option<u64> {
    let exported = EXPORTED.lock();
    let mut found = exported.iter().filter(|(known, _)| known == handle);
    found.next().map(|(_, at)| *at)
}

/// Whether the address is an exported allocation of this process.
pub(super) fn is_own(at: u64) -> bool {
    EXPORTED.lock().iter().any(|(_, known)| *known == at)
}

/// Forgets an allocation, which is freed.
pub(super) fn remove(at: u64) {
    EXPORTED.lock().retain(|(_, known)| *known != at);
}
