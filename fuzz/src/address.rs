//! Address records of gdsync, which applications exchange.

use gdsync::Kind;
use gdsync::rdma::{PortAddress, QpAddress, RemoteMemory};

use crate::input::Input;

/// Decodes any bytes as either record, and encodes any record as bytes.
pub fn run(data: &[u8]) {
    match QpAddress::from_bytes(data) {
        Ok(record) => {
            let again = record.to_bytes();
            assert_eq!(QpAddress::from_bytes(&again).ok(), Some(record));
            same(data, &again, qp_free);
        }
        Err(e) => refused(&e),
    }
    match RemoteMemory::from_bytes(data) {
        Ok(record) => {
            let again = record.to_bytes();
            assert_eq!(RemoteMemory::from_bytes(&again).ok(), Some(record));
            same(data, &again, |at| memory_free(&record, at));
            spans(record, &mut Input(data));
        }
        Err(e) => refused(&e),
    }
    let mut input = Input(data);
    let made = QpAddress::default()
        .node(input.next())
        .qpn(input.next())
        .psn(input.next())
        .gpu(input.next())
        .process(input.next())
        .port((input.next::<u8>() & 1 == 1).then(|| {
            PortAddress::default()
                .lid(input.next())
                .mtu(input.next())
                .gid(input.next())
        }))
        .qkey((input.next::<u8>() & 1 == 1).then(|| input.next()))
        .rail(input.byte() % 4);
    assert_eq!(QpAddress::from_bytes(&made.to_bytes()).ok(), Some(made));
    let made = RemoteMemory::default()
        .addr(input.next())
        .len(input.number())
        .rkeys([(); 4].map(|()| (input.byte() & 1 == 1).then(|| input.next())));
    assert_eq!(RemoteMemory::from_bytes(&made.to_bytes()).ok(), Some(made));
    spans(made, &mut input);
}

/// Unused bits of a queue pair's record.
fn qp_free(at: usize) -> u8 {
    if at == 7 { 0xff } else { 0 }
}

/// Unused bits of a memory's record.
fn memory_free(record: &RemoteMemory, at: usize) -> u8 {
    match at {
        7 | 25..28 | 44.. => 0xff,
        24 => 0xf0,
        // The key of a rail without a key.
        28.. if record.rkeys[(at - 28) / 4].is_none() => 0xff,
        _ => 0,
    }
}

/// A decoded record encodes to the same bytes, except for the unused bits in `free`.
fn same(given: &[u8], again: &[u8], mut free: impl FnMut(usize) -> u8) {
    assert_eq!(given.len(), again.len());
    for (at, (a, b)) in given.iter().zip(again).enumerate() {
        assert_eq!((a ^ b) & !free(at), 0, "byte {at} of a record is lost");
    }
}

fn refused(e: &gdsync::Error) {
    assert_eq!(e.kind(), Kind::Protocol);
    assert!(e.to_string().len() < 200, "{e}");
}

/// Checks that spans of a peer's memory stay inside it.
fn spans(memory: RemoteMemory, input: &mut Input<'_>) {
    for _ in 0..4 {
        let (offset, len) = (input.number(), input.number());
        let inside = u128::from(offset) + u128::from(len) <= u128::from(memory.len);
        match memory.span(offset, len) {
            Ok(span) => {
                let keys = [0, 1, 2, 3].map(|rail| span.rkey_of(rail));
                assert!(inside && keys == memory.rkeys && keys != [None; 4]);
                assert_eq!(span.addr, memory.addr.wrapping_add(offset));
            }
            Err(e) if inside => assert_eq!(e.kind(), Kind::NotRegistered),
            Err(e) => assert_eq!(e.kind(), Kind::Invalid),
        }
    }
}
