//! Control messages between contexts.

use gdsync::rdma::{QpAddress, RemoteMemory};
use mp::fuzzing::control;

use crate::address::{memory_free, qp_free, same};
use crate::heap::bounded;
use crate::input::Input;

/// Where the records lie in messages of kinds 1, and 3 and 4.
const ADDRESS: usize = 8;
const BLOCK: usize = 12;

/// Any bytes, and bytes that begin as a message does.
pub fn run(data: &[u8]) {
    // The version that the bytes below are of.
    assert!(control(b"mp01\x03\0\x02\0").is_some());
    check(data);
    let mut input = Input(data);
    let kind = input.byte();
    let mut bytes = b"mp01\x03\0".to_vec();
    bytes.extend([kind >> 4, input.byte() & kind & 1]);
    match kind >> 4 {
        1 => {
            let record = QpAddress {
                node: input.next(),
                qpn: input.next(),
                psn: input.next(),
                gpu: input.next(),
                process: input.next(),
                port: None,
                qkey: None,
                lane: input.byte() % 4,
            };
            bytes.extend(record.to_bytes());
            bytes.extend(input.next::<[u8; 16]>());
            bytes.push(input.byte() & 1);
        }
        3 | 4 => {
            bytes.extend(input.next::<[u8; 4]>());
            let record = RemoteMemory {
                addr: input.next(),
                len: input.next(),
                rkeys: [(); 4].map(|()| (input.byte() & 1 == 1).then(|| input.next())),
            };
            bytes.extend(record.to_bytes());
            bytes.extend(input.next::<[u8; 16]>());
        }
        _ => bytes.extend(input.bytes(usize::from(kind & 15) * 2)),
    }
    check(&bytes);
    // A bit of it is wrong, or its end.
    if let Some(at) = usize::from(input.byte()).checked_rem(bytes.len()) {
        bytes[at] ^= input.byte();
    }
    let end = usize::from(input.byte());
    bytes.truncate(if end == 0 { bytes.len() } else { end });
    bytes.extend(input.bytes(2));
    check(&bytes);
}

/// A message is refused, or says the same again.
fn check(data: &[u8]) {
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
