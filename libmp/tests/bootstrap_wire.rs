//! The protocol between ranks and the store without sockets: frames, malformed input, order, room.

use std::collections::{HashMap, VecDeque};

use mp::bootstrap::fuzz::{self, World};
use mp::bootstrap::wire::{Frame, Hello, MAX_FRAME, MAX_LISTED, VERSION, decode};
use mp::bootstrap::{MAX_MESSAGE, WINDOW};
use proptest::prelude::*;

fn coded(frame: Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let nonce = any::<[u8; 32]>();
    prop_oneof![
        (any::<(u32, u32, u64, u64)>(), nonce).prop_map(|((rank, size, name, host), nonce)| coded(
            Frame::Hello(Hello {
                rank,
                size,
                name,
                host,
                nonce
            })
        )),
        (any::<u64>(), nonce, nonce).prop_map(|(job, nonce, proof)| coded(Frame::Challenge {
            job,
            nonce,
            proof: proof.into()
        })),
        nonce.prop_map(|proof| coded(Frame::Answer {
            proof: proof.into()
        })),
        (VERSION + 1..).prop_map(|version| coded(Frame::Foreign { version })),
        ".{0,60}".prop_map(|why| coded(Frame::Refused { why: &why })),
        (any::<u32>(), prop::collection::vec(any::<u32>(), 0..20))
            .prop_map(|(count, missing)| coded(Frame::Waiting { count, missing })),
        (0..4_u32, prop::collection::vec(any::<u64>(), 0..20))
            .prop_map(|(first, hosts)| coded(Frame::Hosts { first, hosts })),
        Just(coded(Frame::Start)),
        (
            0..4_u32,
            0..4_u64,
            prop::collection::vec(any::<u8>(), 0..300)
        )
            .prop_map(|(peer, topic, bytes)| coded(Frame::Message {
                peer,
                topic,
                bytes: &bytes
            })),
        (0..4_u32, any::<u32>()).prop_map(|(peer, room)| coded(Frame::Credit { peer, room })),
        (0..4_u32).prop_map(|rank| coded(Frame::Gone { rank })),
    ]
}

/// Frames, some with bytes changed, removed or inserted.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop_oneof![
        4 => frames(),
        1 => prop::collection::vec(any::<u8>(), 0..100),
    ];
    let pieces = prop::collection::vec(pieces, 0..8).prop_map(|p| p.concat());
    let change = prop::option::of((any::<prop::sample::Index>(), any::<u8>()));
    (pieces, change, any::<bool>()).prop_map(|(mut bytes, change, cut)| {
        if let (Some((at, byte)), false) = (change, bytes.is_empty()) {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut {
                bytes.truncate(at);
            }
        }
        bytes
    })
}

proptest! {
    #[test]
    fn frames_decode_only_when_complete(bytes in frames()) {
        let (frame, len) = decode(&bytes, MAX_FRAME).unwrap().expect("a whole frame");
        prop_assert_eq!(len, bytes.len());
        prop_assert_eq!(&coded(frame), &bytes);
        for end in 0..bytes.len() {
            prop_assert_eq!(decode(&bytes[..end], MAX_FRAME), Ok(None));
        }
        let longer = [bytes.as_slice(), &[1, 2, 3]].concat();
        prop_assert_eq!(decode(&longer, MAX_FRAME).unwrap().unwrap().1, len);
        prop_assert!(decode(&bytes, len - 1).is_err());
    }

    #[test]
    fn malformed_input_does_not_affect_other_ranks(bytes in garbage()) {
        fuzz::store(&bytes);
        fuzz::session(&bytes);
        fuzz::descriptor(&bytes);
        fuzz::notes(&bytes);
    }

    /// Every message arrives, in order between two ranks in one topic, under any schedule.
    #[test]
    fn order_is_kept(steps in prop::collection::vec((0..3_u32, 0..3_u32, 0..2_u64, 0..3_u8), 1..200)) {
        let mut world = World::started(3);
        let mut sent = HashMap::<(u32, u32, u64), VecDeque<u64>>::new();
        let mut count = 0_u64;
        let take = |world: &mut World, sent: &mut HashMap<_, VecDeque<u64>>, to, topic| {
            let (from, got) = world.take(to, topic)?;
            let expected = sent.get_mut(&(from, to, topic)).and_then(VecDeque::pop_front);
            assert_eq!(expected, Some(u64::from_le_bytes(got.try_into().unwrap())));
            Some(())
        };
        for (a, b, topic, what) in steps {
            match what {
                0 => world.turn(),
                1 => {
                    prop_assert!(world.send(a, b, topic, &count.to_le_bytes()));
                    sent.entry((a, b, topic)).or_default().push_back(count);
                    count += 1;
                }
                _ => { take(&mut world, &mut sent, a, topic); }
            }
        }
        world.turn();
        for to in 0..3 {
            for topic in 0..2 {
                while take(&mut world, &mut sent, to, topic).is_some() {}
            }
        }
        prop_assert!(sent.values().all(VecDeque::is_empty));
    }
}

#[test]
fn error_names_the_malformed_part_of_a_frame() {
    let word = |e: &[u8]| decode(e, MAX_FRAME).unwrap_err().to_string();
    for (bytes, text) in [
        (&[0, 0, 0, 0][..], "a frame is empty"),
        (&[255; 8], "a frame is too long"),
        (&[1, 0, 0, 0, 77], "a frame has an unknown kind"),
        (&[2, 0, 0, 0, 7, 0], "a frame has trailing bytes"),
        (&[2, 0, 0, 0, 10, 0], "a frame is too short"),
        (
            b"\x0d\0\0\0\x01GET / HTTP/1",
            "the greeting is not of this protocol",
        ),
    ] {
        assert_eq!(word(bytes), text);
    }
    // The reason is cut inside a two-byte character.
    let why = &("x".to_owned() + &"\u{e9}".repeat(200));
    let bytes = coded(Frame::Refused { why });
    assert!(decode(&bytes, MAX_FRAME).unwrap().is_some());
    // Frames of valid length whose message or list is too long.
    let long = |kind, len: usize| {
        let head = [&(len as u32 + 1).to_le_bytes()[..], &[kind]].concat();
        [head, vec![0; len]].concat()
    };
    assert!(decode(&long(8, 12 + MAX_MESSAGE), MAX_FRAME).is_ok());
    assert_eq!(
        word(&long(8, 12 + MAX_MESSAGE + 1)),
        "a message is too long"
    );
    for (kind, item) in [(5, 4), (6, 8)] {
        assert!(decode(&long(kind, 4 + MAX_LISTED * item), MAX_FRAME).is_ok());
        let over = 4 + (MAX_LISTED + 1) * item;
        assert_eq!(word(&long(kind, over)), "a list has an invalid length");
    }
}

#[test]
fn slow_receiver_blocks_only_messages_to_itself() {
    let mut world = World::started(3);
    let block = vec![1; MAX_MESSAGE];
    let mut held = 0;
    while world.send(0, 1, 0, &block) {
        held += 1;
        world.turn();
    }
    assert!(held * MAX_MESSAGE <= WINDOW as usize && held >= 8);
    assert!(!world.send(0, 1, 1, &block));
    assert!(world.send(0, 2, 0, &block) && world.send(2, 1, 0, &block));
    for _ in 0..2 {
        world.turn();
    }
    // Room becomes free as messages are received.
    let mut got = 0;
    while let Some((from, _)) = world.take(1, 0) {
        got += usize::from(from == 0);
        world.turn();
    }
    assert_eq!(got, held);
    assert!(world.send(0, 1, 0, &block));
}

#[test]
fn rank_that_exceeds_the_window_is_disconnected() {
    let mut world = World::started(3);
    let (peer, topic, bytes) = (1, 0, &vec![0; MAX_MESSAGE]);
    let frame = coded(Frame::Message { peer, topic, bytes });
    for _ in 0..=WINDOW as usize / MAX_MESSAGE {
        world.say(0, &frame);
    }
    world.turn();
    assert!(world.gone(1, 0) && world.gone(2, 0) && !world.gone(1, 2));
    assert!(world.take(1, 0).is_some());
}

#[test]
fn closed_connection_is_announced_to_all_ranks() {
    let mut world = World::started(4);
    assert!((0..4).all(|r| world.has_started(r)));
    world.send(3, 0, 5, b"last words");
    world.turn();
    world.close(3);
    world.turn();
    assert!((0..3).all(|r| world.gone(r, 3)));
    assert_eq!(world.take(0, 5), Some((3, b"last words".to_vec())));
    // A message to the closed rank is dropped, and no other message is.
    assert!(world.send(0, 3, 0, b"?") && world.send(0, 1, 0, b"!"));
    world.turn();
    assert!(world.take(1, 0).is_some());
}
