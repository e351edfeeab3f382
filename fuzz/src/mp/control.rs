//! Control messages between contexts.

use gdsync::rdma::{QpAddress, RemoteMemory};
use mp::fuzzing::{CONTROL_VERSION, control};

use crate::heap::bounded;
use crate::input::Input;

/// Decodes any bytes, and bytes that begin like a message.
pub fn run(data: &[u8]) {
    let version = CONTROL_VERSION.to_le_bytes();
    let mut any = data.to_vec();
    // The bytes of older corpora reach the decoder of this version.
    if let Some(field) = any.get_mut(4..6) {
        field.copy_from_slice(&version);
    }
    check(&any);
    let mut input = Input(data);
    let kind = input.byte();
    let mut bytes = b"mp01".to_vec();
    bytes.extend(version);
    assert!(control(&[&bytes[..], &[2, 0]].concat()).is_some());
    bytes.extend([kind >> 3, input.byte() & kind & 1]);
    match kind >> 3 {
        1 => {
            let record = QpAddress::default()
                .node(input.next())
                .qpn(input.next())
                .psn(input.next())
                .gpu(input.next())
                .process(input.next())
                .rail(input.byte() % 4);
            shape(&mut bytes, &mut input);
            let order = input.byte() & 1;
            let end = [&record.to_bytes()[..], &[order]].concat();
            records(&mut bytes, &mut input, &end);
        }
        3 | 4 => {
            bytes.extend(input.next::<[u8; 4]>());
            let record = RemoteMemory::default()
                .addr(input.next())
                .len(input.next())
                .rkeys([(); 4].map(|()| (input.byte() & 1 == 1).then(|| input.next())));
            shape(&mut bytes, &mut input);
            records(&mut bytes, &mut input, &record.to_bytes());
            match (kind >> 3, kind & 1) {
                (4, 0) => bytes.push(0),
                (4, _) => records(&mut bytes, &mut input, &record.to_bytes()),
                _ => {}
            }
            if kind >> 3 == 4 {
                // The flagged rooms.
                bytes.push(0);
                bytes.extend(input.next::<[u8; 16]>());
            }
        }
        13 => {
            bytes.extend(input.next::<[u8; 12]>());
            let record = RemoteMemory::default().addr(input.next()).len(input.next());
            records(&mut bytes, &mut input, &record.to_bytes());
        }
        14 => {
            bytes.extend(input.next::<[u8; 32]>());
            let record = RemoteMemory::default().addr(input.next()).len(input.next());
            records(&mut bytes, &mut input, &record.to_bytes());
            bytes.extend(input.next::<[u8; 16]>());
            records(&mut bytes, &mut input, &record.to_bytes());
        }
        17 => {
            bytes.extend(input.next::<[u8; 16]>());
            let lost = input.bytes(usize::from(kind & 7));
            bytes.push(input.byte() % 4);
            bytes.extend((lost.len() as u32).to_le_bytes());
            bytes.extend(lost);
        }
        18 => bytes.extend(input.next::<[u8; 28]>()),
        19 => bytes.extend(input.next::<[u8; 16]>()),
        20 => bytes.extend(input.next::<[u8; 4]>()),
        22 | 23 => {
            if kind >> 3 == 22 {
                shape(&mut bytes, &mut input);
            }
            let short = input.bytes(usize::from(kind & 7));
            bytes.extend((short.len() as u16).to_le_bytes());
            bytes.extend(short);
        }
        25 => bytes.extend(input.next::<[u8; 4]>()),
        26 => {
            bytes.extend(input.next::<[u8; 12]>());
            let record = RemoteMemory::default().addr(input.next()).len(input.next());
            records(&mut bytes, &mut input, &record.to_bytes());
            records(&mut bytes, &mut input, &record.to_bytes());
        }
        _ => bytes.extend(input.bytes(usize::from(kind & 7) * 2)),
    }
    check(&bytes);
    // One bit is flipped, or the message is cut.
    if let Some(at) = usize::from(input.byte()).checked_rem(bytes.len()) {
        bytes[at] ^= input.byte();
    }
    let end = usize::from(input.byte());
    bytes.truncate(if end == 0 { bytes.len() } else { end });
    bytes.extend(input.bytes(2));
    check(&bytes);
}

/// The layout of channels.
fn shape(bytes: &mut Vec<u8>, input: &mut Input<'_>) {
    bytes.extend(input.next::<[u8; 16]>());
    bytes.push(input.byte() & 1);
}

/// The record of the path by a NIC, possibly behind records of unknown paths.
fn records(bytes: &mut Vec<u8>, input: &mut Input<'_>, record: &[u8]) {
    let others = input.byte() % 4;
    bytes.push(others + 1);
    for _ in 0..others {
        let (path, len) = (input.byte(), input.byte() % 80);
        let other = input.bytes(len.into());
        bytes.extend([path, other.len() as u8]);
        bytes.extend(other);
    }
    bytes.extend([1, record.len() as u8]);
    bytes.extend(record);
}

/// A message is refused, or encodes to the same bytes again.
fn check(data: &[u8]) {
    // An error has a text with the reason; a message is short, or as long as its bytes.
    if let Some(again) = bounded(4096 + 4 * data.len(), || control(data)) {
        assert_eq!(data, again);
    }
}
