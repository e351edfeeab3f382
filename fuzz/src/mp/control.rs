//! Control messages between contexts.

use gdsync::rdma::{QpAddress, RemoteMemory};
use mp::fuzzing::control;

use crate::address::{memory_free, qp_free, same};
use crate::heap::bounded;

/// Where the records lie in messages of kinds 1, and 3 and 4.
const ADDRESS: usize = 8;
const BLOCK: usize = 12;

/// A message is refused, or says the same again.
pub fn run(data: &[u8]) {
    // An error says in words what is wrong; a message is short.
    let Some(again) = bounded(2048, || control(data)) else {
        return;
    };
    assert_eq!(control(&again).as_ref(), Some(&again));
    match data[6] {
        1 => {
            let record = &again[ADDRESS..][..QpAddress::LEN];
            QpAddress::from_bytes(record).expect("the record of a message");
            same(data, &again, |at| {
                at.checked_sub(ADDRESS).map_or(0, qp_free)
            });
        }
        3 | 4 => {
            let record = &again[BLOCK..][..RemoteMemory::LEN];
            let record = RemoteMemory::from_bytes(record).expect("the record of a message");
            same(data, &again, |at| match at.checked_sub(BLOCK) {
                Some(at @ 0..RemoteMemory::LEN) => memory_free(&record, at),
                _ => 0,
            });
        }
        _ => assert_eq!(data, again),
    }
}
