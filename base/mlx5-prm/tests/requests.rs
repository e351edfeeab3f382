//! Requests that the encoder refuses, pieces that it leaves out, and NOPs.

use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{
    Atomic, AvSeg, Data, Encoded, FormatError, MAX_SGE_LEN, ParseError, Part, Payload, Remote,
    SendWqe, Sge, SliceSink, WqeFlags, encode_nop, encode_recv, parse_recv, parse_send,
};

const REMOTE: Option<Remote> = Some(Remote {
    addr: 0x1000,
    rkey: 7,
});
const CS: Option<Atomic> = Some(Atomic::CompareSwap {
    compare: 1,
    swap: 2,
});
const FA: Option<Atomic> = Some(Atomic::FetchAdd { add: 3 });
const SGE: Sge = Sge {
    addr: 0x2000,
    lkey: 9,
    len: 8,
};

fn encode(wqe: &SendWqe<'_>) -> Result<(Encoded, Vec<u8>), FormatError> {
    let mut bytes = Vec::new();
    let result = wqe.encode(0, 1, &mut |segment: &[u8; 16]| {
        bytes.extend_from_slice(segment)
    });
    assert!(
        result.is_ok() || bytes.is_empty(),
        "a refused request leaves no trace"
    );
    assert_eq!(wqe.segments(), result.map(|encoded| encoded.ds));
    result.map(|encoded| (encoded, bytes))
}

/// A request with the parts its opcode needs, and no others.
fn plain(opcode: SendOpcode) -> SendWqe<'static> {
    let (remote, atomic) = match opcode {
        SendOpcode::ATOMIC_CS => (REMOTE, CS),
        SendOpcode::ATOMIC_FA => (REMOTE, FA),
        SendOpcode::RDMA_WRITE | SendOpcode::RDMA_WRITE_IMM | SendOpcode::RDMA_READ => {
            (REMOTE, None)
        }
        _ => (None, None),
    };
    SendWqe {
        opcode,
        remote,
        atomic,
        ..SendWqe::default()
    }
}

/// A request with these pieces.
fn gather(opcode: SendOpcode, sges: &[Sge]) -> SendWqe<'_> {
    SendWqe {
        payload: Payload::Gather(sges),
        ..plain(opcode)
    }
}

/// An opcode, then the parts that it may have: immediate, inline data, an address vector.
const OPCODES: [(SendOpcode, bool, bool, bool); 9] = [
    (SendOpcode::NOP, false, false, false),
    (SendOpcode::SEND_INV, true, true, false),
    (SendOpcode::RDMA_WRITE, false, true, false),
    (SendOpcode::RDMA_WRITE_IMM, true, true, false),
    (SendOpcode::SEND, false, true, true),
    (SendOpcode::SEND_IMM, true, true, true),
    (SendOpcode::RDMA_READ, false, false, false),
    (SendOpcode::ATOMIC_CS, false, false, false),
    (SendOpcode::ATOMIC_FA, false, false, false),
];

#[test]
fn opcode_determines_the_permitted_parts() {
    const INLINE: Payload<'_> = Payload::Inline(&[b"abc"]);
    const GATHER: Payload<'_> = Payload::Gather(&[SGE]);
    for (opcode, imm, inlines, ud) in OPCODES {
        let good = plain(opcode);
        let missing = |part| Err(FormatError::Missing { opcode, part });
        let unexpected = |part| Err(FormatError::Unexpected { opcode, part });
        let ok_or = |ok, part| if ok { Ok(()) } else { unexpected(part) };
        let with = |change: &dyn Fn(&mut SendWqe<'_>)| {
            let mut wqe = good;
            change(&mut wqe);
            encode(&wqe).map(drop)
        };

        assert_eq!(with(&|_| ()), Ok(()));
        let got = with(&|wqe| wqe.imm = [0, 0, 0, 1]);
        assert_eq!(got, ok_or(imm, Part::Immediate));
        let got = with(&|wqe| wqe.av = Some(AvSeg::infiniband(1, 2, 3, 4)));
        assert_eq!(got, ok_or(ud, Part::AddressVector));
        let (gathers, refused) = match opcode {
            SendOpcode::NOP => (false, Part::Payload),
            _ => (true, Part::Inline),
        };
        let got = with(&|wqe| wqe.payload = INLINE);
        assert_eq!(got, ok_or(inlines, refused));
        let got = with(&|wqe| wqe.payload = GATHER);
        assert_eq!(got, ok_or(gathers, Part::Payload));

        let (remote, why) = match good.remote {
            Some(_) => (None, missing(Part::Remote)),
            None => (REMOTE, unexpected(Part::Remote)),
        };
        assert_eq!(with(&|wqe| wqe.remote = remote), why);
        let other = if good.atomic == CS { FA } else { CS };
        let (atomic, why) = match good.atomic {
            Some(_) => (None, missing(Part::Atomic)),
            None => (FA, unexpected(Part::Atomic)),
        };
        assert_eq!(with(&|wqe| wqe.atomic = atomic), why);
        let got = with(&|wqe| wqe.atomic = other);
        assert_eq!(got, unexpected(Part::Atomic));
    }
}

#[test]
fn other_opcodes_are_unsupported() {
    let known: Vec<u8> = OPCODES.iter().map(|row| row.0.0).collect();
    for code in (0..=u8::MAX).filter(|code| !known.contains(code)) {
        let opcode = SendOpcode(code);
        assert_eq!(
            encode(&plain(opcode)),
            Err(FormatError::Unsupported { opcode })
        );
    }
}

#[test]
fn payload_start_counts_the_segments_before_it() {
    let ud = SendWqe {
        av: Some(AvSeg::infiniband(1, 2, 3, 4)),
        ..plain(SendOpcode::SEND)
    };
    for (wqe, start) in [
        (plain(SendOpcode::SEND), 1),
        (plain(SendOpcode::RDMA_WRITE), 2),
        (plain(SendOpcode::ATOMIC_CS), 3),
        (ud, 4),
    ] {
        assert_eq!(wqe.payload_start(), Ok(start));
        let sges = [SGE];
        let (_, bytes) = encode(&SendWqe {
            payload: Payload::Gather(&sges),
            ..wqe
        })
        .unwrap();
        let at = usize::from(start) * 16;
        assert_eq!(
            bytes[at..at + 16],
            *b"\0\0\0\x08\0\0\0\x09\0\0\0\0\0\0\x20\0"
        );
    }
}

#[test]
fn empty_pieces_leave_no_segment() {
    let empty = Sge { len: 0, ..SGE };
    let sges = [empty, SGE, empty, empty, SGE, empty];
    let wqe = gather(SendOpcode::SEND, &sges);
    let (encoded, bytes) = encode(&wqe).unwrap();
    assert_eq!((encoded.ds, bytes.len()), (3, 48));
    let read: Vec<_> = parse_send(&bytes).unwrap().data().collect();
    assert_eq!(read, [Data::Sge(SGE), Data::Sge(SGE)]);

    for payload in [
        Payload::None,
        Payload::Gather(&[]),
        Payload::Gather(&[Sge {
            addr: 1,
            lkey: 2,
            len: 0,
        }]),
        Payload::Inline(&[]),
        Payload::Inline(&[&[], &[]]),
    ] {
        let (encoded, bytes) = encode(&SendWqe {
            payload,
            ..plain(SendOpcode::SEND)
        })
        .unwrap();
        assert_eq!((encoded.ds, bytes.len()), (1, 16), "{payload:?}");
    }
}

#[test]
fn byte_count_of_zero_is_2_gib() {
    let sges = [Sge {
        len: MAX_SGE_LEN,
        ..SGE
    }];
    let wqe = gather(SendOpcode::SEND, &sges);
    let (_, bytes) = encode(&wqe).unwrap();
    assert_eq!(bytes[16..20], [0; 4]);
    let parsed = parse_send(&bytes).unwrap();
    assert_eq!(parsed.data().collect::<Vec<_>>(), [Data::Sge(sges[0])]);
    assert_eq!(parsed.data_len(), 1 << 31);

    let len = MAX_SGE_LEN + 1;
    let sges = [Sge { len, ..SGE }];
    let too_long = FormatError::SgeTooLong { len };
    let wqe = gather(SendOpcode::SEND, &sges);
    assert_eq!(encode(&wqe), Err(too_long));
    let none = &mut |_: &[u8; 16]| panic!("nothing may be written");
    assert_eq!(encode_recv(&sges, 64, none), Err(too_long));
}

#[test]
fn entry_has_at_most_63_segments() {
    let sges = [SGE; 70];
    for (opcode, most) in [
        (SendOpcode::SEND, 62),
        (SendOpcode::RDMA_WRITE, 61),
        (SendOpcode::ATOMIC_CS, 60),
    ] {
        let with = |n| gather(opcode, &sges[..n]);
        let (encoded, bytes) = encode(&with(most)).unwrap();
        assert_eq!(
            (encoded.ds, encoded.basic_blocks, bytes.len()),
            (63, 16, 63 * 16)
        );
        assert_eq!(parse_send(&bytes).unwrap().data().count(), most);
        let too_many = FormatError::TooManySegments { segments: 64 };
        assert_eq!(encode(&with(most + 1)), Err(too_many));
    }
}

#[test]
fn inline_data_of_every_length() {
    let data: Vec<u8> = (0..1100u32).map(|i| (i * 7) as u8).collect();
    for opcode in [SendOpcode::SEND, SendOpcode::RDMA_WRITE] {
        // The limit of the size field of an entry.
        let most = if opcode == SendOpcode::SEND {
            62 * 16 - 4
        } else {
            61 * 16 - 4
        };
        for len in 0..data.len() {
            let pieces: Vec<&[u8]> = data[..len].chunks(len % 23 + 1).collect();
            let wqe = SendWqe {
                payload: Payload::Inline(&pieces),
                ..plain(opcode)
            };
            match encode(&wqe) {
                Ok((_, bytes)) => {
                    assert!(len <= most);
                    let parsed = parse_send(&bytes).unwrap();
                    let expected = if len == 0 {
                        vec![]
                    } else {
                        vec![Data::Inline(&data[..len])]
                    };
                    assert_eq!(parsed.data().collect::<Vec<_>>(), expected);
                }
                Err(FormatError::TooManySegments { segments }) => {
                    assert!((most + 1..=0x3ff).contains(&len) && segments > 63);
                }
                Err(e) => assert_eq!(e, FormatError::InlineTooLong { len }),
            }
        }
    }
}

#[test]
fn nop_voids_a_prepared_entry_in_place() {
    let flags = WqeFlags {
        signaled: true,
        fence: true,
        solicited: true,
    };
    for ds in 1..=63u8 {
        let sges = [SGE; 62];
        let payload = Payload::Gather(&sges[..usize::from(ds) - 1]);
        let wqe = SendWqe {
            flags,
            payload,
            ..plain(SendOpcode::SEND)
        };
        let mut ring = [0; 1024];
        let sent = wqe
            .encode(0xfffe, 0xabcdef, &mut SliceSink::new(&mut ring))
            .unwrap();
        let before = ring;

        let mut sink = SliceSink::new(&mut ring);
        let nop = encode_nop(0xfffe, 0xabcdef, sent.ds, ds % 2 == 0, &mut sink).unwrap();
        assert_eq!(sink.finish(), Ok(16));
        assert_eq!((nop.ds, nop.basic_blocks), (sent.ds, sent.basic_blocks));
        assert_eq!(nop.doorbell, [0, 0xff, 0xfe, 0, 0xab, 0xcd, 0xef, ds]);
        assert_eq!(ring[16..], before[16..], "only the control segment changes");

        let parsed = parse_send(&ring).unwrap();
        assert_eq!((parsed.opcode(), parsed.ctrl.ds()), (SendOpcode::NOP, ds));
        let flags = WqeFlags {
            signaled: ds % 2 == 0,
            ..WqeFlags::default()
        };
        assert_eq!(parsed.flags(), flags);
        assert_eq!(
            (parsed.data().count(), parsed.remote, parsed.atomic),
            (0, None, None)
        );
    }
    let none = &mut |_: &[u8; 16]| panic!("nothing may be written");
    for ds in [0, 64, 255] {
        assert_eq!(
            encode_nop(0, 1, ds, true, none),
            Err(FormatError::NopSize { ds })
        );
    }
    let qpn = 0x100_0000;
    assert_eq!(
        encode_nop(0, qpn, 1, true, none),
        Err(FormatError::QpNumber { qpn })
    );
    assert_eq!(
        plain(SendOpcode::SEND).encode(0, qpn, none),
        Err(FormatError::QpNumber { qpn })
    );
}

#[test]
fn fence_modes_that_wait_for_reads_are_fences() {
    let fenced: Vec<bool> = (0..8).map(|m| WqeFlags::from_byte(m << 5).fence).collect();
    assert_eq!(fenced, [false, false, true, true, true, true, true, true]);
    for bits in 0..8u8 {
        let flags = WqeFlags {
            signaled: bits & 1 != 0,
            solicited: bits & 2 != 0,
            fence: bits & 4 != 0,
        };
        assert_eq!(WqeFlags::from_byte(flags.to_byte()), flags);
    }
}

#[test]
fn receive_list_longer_than_its_slot_is_refused() {
    let sges = [SGE; 5];
    for stride in [16, 32, 64] {
        let room = stride / 16;
        for n in 0..=sges.len() {
            let mut memory = [0xee; 96];
            let mut sink = SliceSink::new(&mut memory);
            let result = encode_recv(&sges[..n], stride, &mut sink);
            let written = sink.finish().unwrap();
            if n > room {
                assert_eq!(result, Err(FormatError::RecvTooLong { sges: n, stride }));
                assert_eq!(written, 0);
                continue;
            }
            assert_eq!(result, Ok(n));
            assert_eq!(
                written,
                (n + usize::from(n < room)) * 16,
                "an end mark if it fits"
            );
            let list = parse_recv(&memory[..stride]).unwrap();
            assert_eq!(list.len(), n);
            assert!(list.eq(sges[..n].iter().copied()));
        }
    }
    // An empty piece neither ends the list nor becomes 2 GiB.
    let mut slot = [0; 32];
    let sges = [Sge { len: 0, ..SGE }, SGE, Sge { len: 0, ..SGE }, SGE];
    assert_eq!(
        encode_recv(&sges, 32, &mut SliceSink::new(&mut slot)),
        Ok(2)
    );
    assert!(parse_recv(&slot).unwrap().eq([SGE, SGE]));

    let none = &mut |_: &[u8; 16]| panic!("nothing may be written");
    for stride in [0, 8, 24] {
        assert_eq!(
            encode_recv(&[SGE], stride, none),
            Err(FormatError::RecvStride { stride })
        );
        let wrong = parse_recv(&slot[..stride]).unwrap_err();
        assert_eq!(wrong, ParseError::RecvStride { len: stride });
    }
}
