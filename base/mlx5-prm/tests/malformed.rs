//! Malformed entries are refused, and no input makes the parsers panic.

use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{
    Atomic, AvSeg, Data, ParseError, Part, Payload, Remote, SendWqe, Sge, WqeFlags, parse_datagram,
    parse_recv, parse_send,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// An entry with the given first dword, number of segments and segments after the first.
fn entry(opmod: u8, opcode: SendOpcode, ds: u8, rest: &[[u8; 16]]) -> Vec<u8> {
    let ctrl = [opmod, 0, 0, opcode.0, 0, 0, 1, ds, 0, 0, 0, 8, 0, 0, 0, 0];
    [&[ctrl], rest].concat().concat()
}

/// A segment that starts with the given dword.
fn segment(dword: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&dword.to_be_bytes());
    bytes
}

fn fault(bytes: &[u8]) -> ParseError {
    parse_send(bytes).expect_err("malformed")
}

#[test]
fn entry_with_a_wrong_size_is_refused() {
    let whole = entry(0, SendOpcode::SEND, 3, &[segment(8), segment(9)]);
    assert!(parse_send(&whole).is_ok());
    for len in 0..whole.len() {
        let expected = match len {
            0..16 => ParseError::NoCtrl { len },
            _ => ParseError::Truncated { ds: 3, len },
        };
        assert_eq!(fault(&whole[..len]), expected);
    }
    for ds in [0, 64, 200] {
        let bytes = entry(0, SendOpcode::SEND, ds, &[[0; 16]; 255]);
        assert_eq!(fault(&bytes), ParseError::Size { ds });
    }
    // Bytes after the entry belong to another entry.
    let longer = entry(0, SendOpcode::SEND, 2, &[segment(8), segment(0xffff_ffff)]);
    assert_eq!(parse_send(&longer).unwrap().data().count(), 1);
}

#[test]
fn unknown_opcodes_and_modifiers_are_refused() {
    for code in 0..=u8::MAX {
        let opcode = SendOpcode(code);
        let bytes = entry(0, opcode, 4, &[[0; 16]; 3]);
        match opcode.name() {
            Some(_) => assert!(parse_send(&bytes).is_ok(), "{opcode}"),
            None => assert_eq!(fault(&bytes), ParseError::Unsupported { opcode, opmod: 0 }),
        }
        let bytes = entry(8, opcode, 4, &[[0; 16]; 3]);
        assert_eq!(fault(&bytes), ParseError::Unsupported { opcode, opmod: 8 });
    }
}

#[test]
fn entry_without_a_needed_segment_is_refused() {
    for (opcode, ds, part) in [
        (SendOpcode::RDMA_WRITE, 1, Part::Remote),
        (SendOpcode::RDMA_WRITE_IMM, 1, Part::Remote),
        (SendOpcode::RDMA_READ, 1, Part::Remote),
        (SendOpcode::ATOMIC_CS, 1, Part::Remote),
        (SendOpcode::ATOMIC_FA, 2, Part::Atomic),
    ] {
        // Bytes beyond the entry's size do not count.
        let bytes = entry(0, opcode, ds, &[[0; 16]; 4]);
        assert_eq!(fault(&bytes), ParseError::Missing { opcode, ds, part });
    }
}

#[test]
fn datagram_must_be_a_send_with_a_whole_address_vector() {
    let av = AvSeg::infiniband(0x11, 0x22, 3, 4).to_bytes();
    for opcode in [SendOpcode::SEND, SendOpcode::SEND_IMM] {
        let whole = entry(0, opcode, 5, &[&av[..], &[segment(8)]].concat());
        let wqe = parse_datagram(&whole).unwrap();
        assert_eq!((wqe.av.unwrap().qpn(), wqe.data_len()), (0x22, 8));
        let part = Part::AddressVector;
        for ds in 1..4 {
            let expected = ParseError::Missing { opcode, ds, part };
            let bytes = entry(0, opcode, ds, &av);
            assert_eq!(parse_datagram(&bytes).unwrap_err(), expected);
        }
        // The short form of an address vector, of one segment.
        let mut short = av;
        short[0][8] = 0;
        let expected = ParseError::Missing {
            opcode,
            ds: 4,
            part,
        };
        let bytes = entry(0, opcode, 4, &short);
        assert_eq!(parse_datagram(&bytes).unwrap_err(), expected);
    }
    for opcode in [
        SendOpcode::SEND_INV,
        SendOpcode::RDMA_WRITE,
        SendOpcode::RDMA_WRITE_IMM,
        SendOpcode::RDMA_READ,
        SendOpcode::ATOMIC_CS,
        SendOpcode::ATOMIC_FA,
    ] {
        let bytes = entry(0, opcode, 4, &av);
        let expected = ParseError::Unsupported { opcode, opmod: 0 };
        assert_eq!(parse_datagram(&bytes).unwrap_err(), expected);
    }
    let nop = entry(0, SendOpcode::NOP, 1, &[]);
    assert_eq!(parse_datagram(&nop).unwrap().av, None);
}

#[test]
fn inline_data_beyond_the_entry_or_not_permitted_is_refused() {
    let inline = |len: u32| segment(1 << 31 | len);
    let send = |rest: &[[u8; 16]]| entry(0, SendOpcode::SEND, rest.len() as u8 + 1, rest);
    assert!(parse_send(&send(&[inline(12)])).is_ok());
    let overrun = |segment, len| ParseError::InlineOverrun { segment, len };
    let too_long = |segment, len| ParseError::InlineTooLong { segment, len };
    let two = [segment(8), inline(28), [0; 16], inline(1023), [0; 16]];
    for (rest, expected) in [
        (&[inline(13)][..], overrun(1, 13)),
        (&two, overrun(4, 1023)),
        (&[segment(8), inline(0x400)], too_long(2, 0x400)),
        (&[inline(0x7fff_ffff)], too_long(1, 0x7fff_ffff)),
    ] {
        assert_eq!(fault(&send(rest)), expected);
    }
    for (opcode, head) in [
        (SendOpcode::RDMA_READ, 1),
        (SendOpcode::ATOMIC_CS, 2),
        (SendOpcode::ATOMIC_FA, 2),
    ] {
        let mut rest = vec![[0; 16]; head];
        rest.extend([segment(8), inline(8)]);
        let expected = ParseError::InlineNotAllowed {
            opcode,
            segment: head as u8 + 2,
        };
        assert_eq!(
            fault(&entry(0, opcode, rest.len() as u8 + 1, &rest)),
            expected
        );
    }
    // Pointers and inline data may follow one another.
    let mixed = send(&[inline(2), segment(5), inline(20), [7; 16], inline(0)]);
    let wqe = parse_send(&mixed).unwrap();
    let lens: Vec<u64> = wqe.data().map(|item| item.len()).collect();
    assert_eq!((lens, wqe.data_len()), (vec![2, 5, 20, 0], 27));
}

#[test]
fn receive_cannot_be_inline() {
    let slot = [segment(8), segment(1 << 31 | 8)].concat();
    let byte_count = 0x8000_0008;
    assert_eq!(
        parse_recv(&slot).unwrap_err(),
        ParseError::RecvByteCount { sge: 1, byte_count }
    );
}

/// A request that owns its payload.
#[derive(Clone, Debug)]
struct Request {
    opcode: SendOpcode,
    flags: WqeFlags,
    imm: [u8; 4],
    remote: Option<Remote>,
    atomic: Option<Atomic>,
    sges: Vec<Sge>,
    inline: Option<Vec<Vec<u8>>>,
}

prop_compose! {
    fn sge()(addr: u64, lkey: u32, len in prop_oneof![Just(0), 1..100u32, 0..=1u32 << 31]) -> Sge {
        Sge { addr, lkey, len }
    }
}

fn request() -> impl Strategy<Value = Request> {
    const OPCODES: [SendOpcode; 9] = [
        SendOpcode::NOP,
        SendOpcode::SEND_INV,
        SendOpcode::RDMA_WRITE,
        SendOpcode::RDMA_WRITE_IMM,
        SendOpcode::SEND,
        SendOpcode::SEND_IMM,
        SendOpcode::RDMA_READ,
        SendOpcode::ATOMIC_CS,
        SendOpcode::ATOMIC_FA,
    ];
    let opcode = proptest::sample::select(&OPCODES[..]);
    let numbers = any::<(u64, u32, u64, u64, [u8; 4])>();
    let flags = any::<(bool, bool, bool)>();
    let pieces = proptest::option::of(vec(vec(any::<u8>(), 0..60), 0..8));
    (opcode, numbers, flags, vec(sge(), 0..62), pieces).prop_map(
        |(opcode, (addr, rkey, a, b, imm), (signaled, solicited, fence), sges, pieces)| {
            let atomic = match opcode {
                SendOpcode::ATOMIC_CS => Some(Atomic::CompareSwap {
                    compare: a,
                    swap: b,
                }),
                SendOpcode::ATOMIC_FA => Some(Atomic::FetchAdd { add: a }),
                _ => None,
            };
            let name = opcode.name().unwrap_or_default();
            let head = 1
                + usize::from(opcode.0 >= 8 && !name.starts_with("SEND"))
                + usize::from(atomic.is_some());
            let payload = opcode != SendOpcode::NOP;
            let inline = payload && opcode.0 < SendOpcode::RDMA_READ.0;
            Request {
                opcode,
                flags: WqeFlags {
                    signaled,
                    solicited,
                    fence,
                },
                imm: if name.ends_with("_IMM") || name.ends_with("_INV") {
                    imm
                } else {
                    [0; 4]
                },
                remote: (head > 1).then_some(Remote { addr, rkey }),
                atomic,
                sges: if payload {
                    sges.into_iter().take(63 - head).collect()
                } else {
                    vec![]
                },
                inline: pieces.filter(|_| inline),
            }
        },
    )
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 2000,
        rng_seed: RngSeed::Fixed(0x6d6c_7835),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn encoded_entry_is_parsed_to_the_same_request(r in request(), index: u16, qpn in 0..1u32 << 24) {
        let pieces: Vec<&[u8]> = r.inline.iter().flatten().map(Vec::as_slice).collect();
        let wqe = SendWqe {
            opcode: r.opcode,
            flags: r.flags,
            imm: r.imm,
            remote: r.remote,
            atomic: r.atomic,
            av: None,
            payload: match r.inline {
                Some(_) => Payload::Inline(&pieces),
                None if r.opcode == SendOpcode::NOP => Payload::None,
                None => Payload::Gather(&r.sges),
            },
        };
        let mut bytes = Vec::new();
        let mut sink = |segment: &[u8; 16]| bytes.extend_from_slice(segment);
        let encoded = wqe.encode(index, qpn, &mut sink).unwrap();
        prop_assert_eq!(usize::from(encoded.ds) * 16, bytes.len());
        prop_assert_eq!(usize::from(encoded.basic_blocks), bytes.len().div_ceil(64));
        prop_assert_eq!(wqe.segments(), Ok(encoded.ds));
        prop_assert_eq!(&encoded.doorbell, &bytes[..8]);

        let parsed = parse_send(&bytes).unwrap();
        prop_assert_eq!(parsed.opcode(), r.opcode);
        prop_assert_eq!(parsed.flags(), r.flags);
        prop_assert_eq!(parsed.ctrl.imm, r.imm);
        prop_assert_eq!(parsed.ctrl.index(), index);
        prop_assert_eq!(parsed.ctrl.qpn(), qpn);
        prop_assert_eq!(parsed.ctrl.ds(), encoded.ds);
        prop_assert_eq!(parsed.remote, r.remote);
        prop_assert_eq!(parsed.atomic, r.atomic);
        let joined = pieces.concat();
        let expected: Vec<Data<'_>> = match r.inline {
            Some(_) if joined.is_empty() => vec![],
            Some(_) => vec![Data::Inline(&joined)],
            None => r.sges.iter().filter(|s| s.len > 0).copied().map(Data::Sge).collect(),
        };
        prop_assert_eq!(parsed.data().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn random_bytes_are_an_entry_or_an_error(
        mut bytes in vec(any::<u8>(), 0..1100),
        steer: bool,
        code in 0..0x14u8,
        counts in vec((1..64usize, any::<(bool, u16)>()), 0..20),
    ) {
        if steer && bytes.len() >= 16 {
            // This reaches the checks after the first ones: a known opcode, a valid size, small
            // byte counts, in some cases inline data.
            bytes[0] = 0;
            bytes[3] = code;
            bytes[7] = (bytes.len() / 16).min(63) as u8;
            for (at, (inline, len)) in counts {
                if let Some(count) = bytes.get_mut(at * 16..at * 16 + 4) {
                    let dword = u32::from(inline) << 31 | u32::from(len % 0x401);
                    count.copy_from_slice(&dword.to_be_bytes());
                }
            }
        }
        if let Ok(wqe) = parse_send(&bytes) {
            let room = (usize::from(wqe.ctrl.ds()) - 1) * 16;
            let inline: usize = wqe.data().map(|item| match item {
                Data::Inline(data) => 4 + data.len(),
                Data::Sge(_) => 16,
            }).sum();
            prop_assert!(inline <= room);
            prop_assert!(wqe.opcode().name().is_some());
        }
        if let Ok(list) = parse_recv(&bytes) {
            prop_assert!(list.len() <= bytes.len() / 16);
            for sge in list {
                prop_assert!(sge.len > 0 && sge.len <= 1 << 31 && sge.lkey != 0x100);
            }
        }
    }
}
