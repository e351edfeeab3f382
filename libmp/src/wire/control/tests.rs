//! Control messages round trip, and other bytes are refused.

use super::super::agree::{Ranks, Stage};
use super::super::record;
use super::*;

#[test]
fn control_messages_round_trip_and_other_bytes_are_refused() {
    let block = vec![Record::new(record::NIC, &[7; 48]), Record::new(9, &[])];
    let ends = vec![Record::new(record::NIC, &[3; 64]); record::MOST];
    let shape = Shape {
        depth: 16,
        eager: 4096,
        start: 0xffff_fff0,
        zero_sm: true,
    };
    let all = [
        Control::Connect {
            lane: 3,
            ends,
            shape,
        },
        Control::Up { lane: 7 },
        Control::AskPath {
            gpu: vec![1, 2, 3],
            shape,
        },
        Control::AnswerPath(Answer {
            can: Ok(()),
            nic: NicSort::Virtual,
        }),
        Control::AnswerPath(Answer {
            can: Err("its GPU runs no kernels".to_owned()),
            nic: NicSort::Physical,
        }),
        Control::Sends {
            tag: u32::MAX,
            block: block.clone(),
            shape,
            eager: true,
        },
        Control::Receives {
            tag: 0,
            block: block.clone(),
            rooms: Vec::new(),
            flagged: Vec::new(),
            flags: RoomsPlace::default(),
            long: Vec::new(),
            long_flags: RoomsPlace::default(),
            shape,
        },
        Control::Receives {
            tag: 1,
            block: block.clone(),
            rooms: block.clone(),
            flagged: block.clone(),
            flags: RoomsPlace {
                offset: 5,
                from: 6,
                bytes: 0,
            },
            long: block,
            long_flags: RoomsPlace {
                offset: 7,
                from: 8,
                bytes: 9,
            },
            shape,
        },
        Control::Truncated {
            tag: 1,
            number: 2,
            len: 3,
        },
        Control::Retire { tag: 1, next: 2 },
        Control::Retired { tag: 1, gone: true },
        Control::GivenUp { closed: false },
        Control::GivenUp { closed: true },
        Control::Leaving,
        Control::Left,
        Control::Ping,
        Control::Pong,
        Control::Window {
            number: 1 << 40,
            rank: 3,
            block: vec![Record::new(record::LOCAL, &[1; 20])],
        },
        Control::Neighbour(Box::new(Neighbour {
            send: 1,
            receive: u32::MAX,
            sends: 1 << 30,
            receives: 3,
            words: 4,
            words_block: vec![Record::new(record::NIC, &[5; 48])],
            landing: [6, 7],
            landing_block: vec![Record::new(record::NIC, &[8; 48])],
        })),
        Control::Withdrawn {
            send: 1,
            receive: 2,
        },
        Control::Broken {
            id: 1,
            call: 1 << 40,
            rank: 2,
            status: 3,
        },
        Control::Agree(Note {
            number: 3,
            stage: Stage::Complete,
            value: 1 << 50,
            lost: [0, 7, 8, 1000].into_iter().collect(),
        }),
        Control::Agree(Note {
            number: 0,
            stage: Stage::Decided,
            value: 0,
            lost: Ranks::default(),
        }),
        Control::Memory(Export {
            key: 1,
            addr: 2 << 40,
            len: 3,
            offset: 4,
            host: true,
        }),
        Control::Mapped {
            key: 1,
            place: Some((2 << 40, 3)),
        },
        Control::Mapped {
            key: 1,
            place: None,
        },
        Control::Released { key: u32::MAX },
        Control::DeviceBlock {
            tag: 3,
            block: vec![Record::new(2, &[1; 20])],
            offset: 64,
            from: 9,
        },
        Control::Circuit(Box::new(CircuitEnd {
            sends: true,
            tag: 3,
            number: 1 << 33,
            len: Some(4),
            block: vec![Record::new(2, &[1; 20])],
            offset: 64,
            bytes: 0,
        })),
        Control::Circuit(Box::default()),
        Control::AskZeroSm { tag: 1 },
        Control::ZeroSm(Box::new(ZeroSmRoom {
            tag: 4,
            block: vec![Record::new(2, &[1; 20])],
            slots: vec![Record::new(2, &[2; 20])],
            offset: 128,
        })),
    ];
    for message in all {
        let bytes = message.encode();
        assert_eq!(Control::decode(&bytes).unwrap(), message);
        for len in 0..bytes.len() {
            assert!(Control::decode(&bytes[..len]).is_err());
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Control::decode(&longer).is_err());
        let mut other = bytes;
        other[4] = 7;
        let e = Control::decode(&other).unwrap_err().to_string();
        let ours = format!("version {VERSION}");
        assert!(e.contains("version 7") && e.contains(&ours), "{e}");
    }
}
