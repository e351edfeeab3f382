//! Tests of channels: what a hostile peer stores in the entries and names for a channel never leads outside of the
//! memory that it shares, and a rank releases its own streams alone.

use gdsync::Gpu;
use gdsync::gpu::MemoryKind;
use gdsync::rdma::Device;
use proptest::prelude::*;

use super::channel::{BLOCK_LEN, Field, Recvs, Sends};
use super::half::{arriving, find};
use super::protocol::{First, SLOTS, agreement};
use super::*;
use crate::path::{Paths, Shared, export};
use crate::request::zero_sm::Way;

/// Bytes of a slot, and of memory that the peer shares.
const ROOM: usize = 128;
const SHARED: u64 = 10_000;
/// The peer's key of this memory.
const KEY: u32 = 7;

/// Paths, and memory that a peer has shared.
fn shared() -> (Paths, Shared) {
    let gpu = Gpu::soft().unwrap();
    let paths = Paths::for_test(&Device::emulated(&gpu).unwrap()).with_mapped(2);
    let region = gpu.alloc(MemoryKind::Pinned, SHARED as usize).unwrap();
    let (message, fd) = export(&region, KEY).unwrap().unwrap();
    let Control::Memory(sent) = message else {
        panic!("{message:?}");
    };
    let mut shared = Shared::default();
    shared.keep_descriptor(fd).unwrap();
    shared.open(&paths, &sent).unwrap();
    (paths, shared)
}

/// Values around the limits.
fn hostile() -> impl Strategy<Value = u64> {
    let near = prop_oneof![
        Just(0),
        Just(u64::from(KEY)),
        Just(SLOTS),
        Just(ROOM as u64),
        Just(SHARED),
        Just(1 << 32),
        Just(1 << 63),
        Just(u64::MAX),
        any::<u64>(),
    ];
    (near, 0_u64..3).prop_map(|(value, more)| value.wrapping_add(more).wrapping_sub(1))
}

proptest! {
    #[test]
    fn entries_of_a_hostile_sender_name_a_slot_or_shared_memory(
        fields in [hostile(), hostile(), hostile(), hostile()],
        room in hostile(),
        number in 0_u64..1000,
    ) {
        thread_local!(static MADE: (Paths, Shared, Recvs) = {
            let (paths, shared) = shared();
            let recvs = Recvs::make(&paths, ROOM).unwrap();
            (paths, shared, recvs)
        });
        MADE.with(|(_, shared, recvs)| {
            let names = [Field::Len, Field::SourceKey, Field::SourceOffset, Field::Slot];
            for (field, value) in names.into_iter().zip(fields) {
                recvs.entries.store(number, field, value);
            }
            match arriving(recvs, shared, number, room) {
                Ok(half) => {
                    let [len, ..] = fields;
                    prop_assert_eq!((half.arriving, half.cut), (len, len > room));
                    match (half.way, half.far) {
                        (Way::Staged { slot }, None) => {
                            prop_assert!(slot < SLOTS && len <= ROOM as u64);
                        }
                        (Way::Pulled, None) => prop_assert!(half.cut),
                        (Way::Pulled, Some((region, at))) => {
                            prop_assert!(region.span(at, len as usize).is_ok());
                        }
                        other => prop_assert!(false, "{other:?}"),
                    }
                }
                Err(e) => prop_assert_eq!(e.kind(), Kind::Protocol),
            }
            Ok(())
        })?;
    }

    #[test]
    fn place_of_a_hostile_receiver_is_in_shared_memory(
        place in [hostile(), hostile()],
        len in hostile(),
    ) {
        thread_local!(static MADE: (Paths, Shared) = shared());
        MADE.with(|(_, shared)| {
            match find(shared, place, len) {
                Ok((region, at)) => prop_assert!(region.span(at, len as usize).is_ok()),
                Err(e) => prop_assert_eq!(e.kind(), Kind::Protocol),
            }
            Ok(())
        })?;
    }
}

#[test]
fn agreement_is_made_once_and_hostile_words_are_refused() {
    let (paths, _shared) = shared();
    let entries = Recvs::make(&paths, ROOM).unwrap().entries;
    assert_eq!(entries.agreed(3).unwrap(), None);
    assert!(entries.agree(3, First::Receive).unwrap());
    assert!(!entries.agree(3, First::Send).unwrap());
    assert_eq!(entries.agreed(3).unwrap(), Some(First::Receive));
    for word in [
        agreement(3, First::Send) + 1,
        u64::MAX,
        agreement(259, First::Send),
    ] {
        entries.store(3, Field::Agreement, word);
        let e = entries.agreed(3).unwrap_err();
        assert_eq!(e.kind(), Kind::Protocol, "{e}");
        assert_eq!(
            entries.agree(3, First::Send).unwrap_err().kind(),
            Kind::Protocol
        );
    }
}

#[test]
fn memory_of_a_channel_that_does_not_fit_is_refused() {
    let (paths, _shared) = shared();
    let good = Recvs::make(&paths, ROOM).unwrap();
    let record = good.record(1).unwrap();
    let channel = Sends::open(&paths, ROOM, &record).unwrap();
    assert_eq!(channel.slot(1).1, channel.slot(0).1 + ROOM);
    let small = paths
        .pinned(BLOCK_LEN - 8, crate::path::Rights::Words)
        .unwrap();
    let small = small.record(crate::path::Path::Ipc).unwrap();
    let bad = [
        ZeroSmRoom {
            offset: u64::MAX,
            ..record.clone()
        },
        ZeroSmRoom {
            offset: 2 << 20,
            ..record.clone()
        },
        ZeroSmRoom {
            block: vec![small],
            ..record.clone()
        },
        ZeroSmRoom {
            block: Vec::new(),
            ..record.clone()
        },
        ZeroSmRoom {
            slots: Vec::new(),
            ..record
        },
    ];
    for theirs in bad {
        let refused = Sends::open(&paths, ROOM, &theirs).err().unwrap();
        assert_eq!(refused.kind(), Kind::Protocol, "{theirs:?}: {refused}");
    }
}

#[test]
fn waits_of_a_given_up_rank_pass_and_its_peer_takes_them_for_no_message() {
    let (paths, _shared) = shared();
    let mut recvs = Recvs::make(&paths, ROOM).unwrap();
    let mut sends = Sends::open(&paths, ROOM, &recvs.record(1).unwrap()).unwrap();
    let flight = protocol::Flight::new(Way::Direct, 1);
    recvs.window.push(flight);
    sends.push(flight);
    recvs.fail();
    sends.fail();
    let passes = |field| recvs.entries.load(0, field) >= protocol::released(0);
    assert!(passes(Field::Sent) && passes(Field::Ready));
    for entries in [&recvs.entries, &sends.entries] {
        assert!(!entries.has(0, Field::Sent) && !entries.has(0, Field::Ready));
    }
    // The peer may store the word meanwhile.
    sends.entries.set(0, Field::Sent);
    recvs.fail();
    assert!(recvs.entries.has(0, Field::Sent));
}
