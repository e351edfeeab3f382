//! Completion entries, doorbell words, names of codes.

use mlx5_prm::cqe::{
    Cqe64, ERROR_BIT, EntryState, ErrCqe, Failure, LAST_DWORD_OFFSET, OP_OWN_OFFSET, OP_OWN_PRESET,
    OWNER_BIT, Source, Success, classify, last_dword, op_own, owner_of_lap, wqe_counter_of,
};
use mlx5_prm::doorbell::{cq_arm_value, cq_ci, cq_ci_value, record_index, record_value};
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;

/// The last dword as a little-endian machine loads it from memory.
fn last_of(bytes: &[u8; 64]) -> u32 {
    u32::from_le_bytes(bytes[LAST_DWORD_OFFSET..].try_into().unwrap())
}

#[test]
fn success_entry_has_the_layout_of_the_nic() {
    let content = Success {
        opcode: CqeOpcode::RESP_SEND_IMM,
        qpn: 0x0012_3456,
        uidx: 0xa0a1_a2a3,
        send_opcode: SendOpcode::RDMA_READ,
        byte_cnt: 0xb0b1_b2b3,
        imm: [1, 2, 3, 4],
        wqe_counter: 0xc0c1,
        solicited: true,
        timestamp: 0xd0d1_d2d3_d4d5_d6d7,
        source: Source {
            qpn: 0x0065_4321,
            slid: 0xe0e1,
            sl: 0xf,
            path_bits: 0x7f,
            grh: true,
        },
    };
    let cqe = Cqe64::success(&content, 1);
    let mut expected = [0; 64];
    expected[17] = 0x7f;
    expected[22..24].copy_from_slice(&[0xe0, 0xe1]);
    expected[24..28].copy_from_slice(&[0x1f, 0x65, 0x43, 0x21]);
    expected[32..36].copy_from_slice(&[0xa0, 0xa1, 0xa2, 0xa3]);
    expected[36..40].copy_from_slice(&[1, 2, 3, 4]);
    expected[44..48].copy_from_slice(&[0xb0, 0xb1, 0xb2, 0xb3]);
    expected[48..56].copy_from_slice(&[0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7]);
    expected[56..60].copy_from_slice(&[0x10, 0x12, 0x34, 0x56]);
    expected[60..64].copy_from_slice(&[0xc0, 0xc1, 0, 0x33]);
    assert_eq!(cqe.to_bytes(), expected);
    assert_eq!(Cqe64::from_bytes(expected), cqe);
    assert_eq!(
        (cqe.opcode(), cqe.owner(), cqe.solicited()),
        (content.opcode, 1, true)
    );
    assert_eq!(
        (cqe.qpn(), cqe.send_opcode()),
        (content.qpn, content.send_opcode)
    );
    assert_eq!(cqe.source(), content.source);
    assert_eq!(cqe.last_dword(), last_of(&expected));
    assert_eq!(wqe_counter_of(cqe.last_dword()), 0xc0c1);
}

#[test]
fn entry_contains_a_small_payload_at_its_start() {
    let content = Success {
        opcode: CqeOpcode::RESP_SEND,
        byte_cnt: 5,
        solicited: true,
        ..Success::default()
    };
    let plain = Cqe64::success(&content, 1);
    assert!(!plain.scattered());
    let cqe = plain.with_scattered(b"small");
    assert!(cqe.scattered());
    let mut expected = plain.to_bytes();
    expected[..5].copy_from_slice(b"small");
    expected[OP_OWN_OFFSET] = 0x27;
    assert_eq!(cqe.to_bytes(), expected);
    assert_eq!(
        (cqe.opcode(), cqe.owner(), cqe.solicited()),
        (content.opcode, 1, true)
    );
    // Bytes beyond the room of the entry are left out.
    let full = plain.with_scattered(&[7; 40]).to_bytes();
    assert_eq!(full[..32], [7; 32]);
    assert_eq!(full[32..OP_OWN_OFFSET], plain.to_bytes()[32..OP_OWN_OFFSET]);
}

#[test]
fn error_entry_has_the_layout_of_the_nic() {
    let content = Failure {
        opcode: CqeOpcode::REQ_ERR,
        syndrome: Syndrome::REMOTE_ACCESS,
        vendor_err: 0x88,
        qpn: 0x0012_3456,
        uidx: 0xa0a1_a2a3,
        send_opcode: SendOpcode::RDMA_WRITE,
        wqe_counter: 0xc0c1,
    };
    let cqe = ErrCqe::new(&content, 0);
    let mut expected = [0; 64];
    expected[32..36].copy_from_slice(&[0xa0, 0xa1, 0xa2, 0xa3]);
    expected[54..60].copy_from_slice(&[0x88, 0x13, 0x08, 0x12, 0x34, 0x56]);
    expected[60..64].copy_from_slice(&[0xc0, 0xc1, 0, 0xd0]);
    assert_eq!(cqe.to_bytes(), expected);
    let general = Cqe64::from_bytes(expected);
    assert_eq!((general.as_error(), cqe.as_cqe()), (&cqe, &general));
    assert_eq!(
        (cqe.reason(), cqe.qpn()),
        (Syndrome::REMOTE_ACCESS, 0x0012_3456)
    );
    assert_eq!(cqe.send_opcode(), SendOpcode::RDMA_WRITE);
    // The syndrome is at the offset of the timestamp.
    assert_eq!(general.timestamp.get(), 0x8813);
}

#[test]
fn too_wide_numbers_leave_other_fields_unchanged() {
    let content = Success {
        qpn: 0xff12_3456,
        send_opcode: SendOpcode::NOP,
        ..Success::default()
    };
    let cqe = Cqe64::success(&content, 0xfe);
    assert_eq!(
        (cqe.qpn(), cqe.send_opcode(), cqe.owner()),
        (0x0012_3456, SendOpcode::NOP, 0)
    );
}

#[test]
fn last_dword_by_parts_and_by_entry_agree() {
    for code in 0..16 {
        for owner in 0..2 {
            for wqe_counter in [0, 1, 0x80, 0x1234, 0xff00, 0xffff] {
                let opcode = CqeOpcode(code);
                let content = Success {
                    opcode,
                    wqe_counter,
                    ..Success::default()
                };
                let dword = last_dword(opcode, owner, 0, wqe_counter);
                assert_eq!(dword, last_of(&Cqe64::success(&content, owner).to_bytes()));
                assert_eq!(dword & OWNER_BIT != 0, owner == 1);
                assert_eq!(dword & ERROR_BIT != 0, code >= 8);
                assert_eq!(wqe_counter_of(dword), wqe_counter);
            }
        }
    }
    assert_eq!(last_dword(CqeOpcode::REQ, 0, 0xab, 0), 0x00ab_0000);
}

/// A queue of 8 entries, written in order for five laps; every third entry is an error. Before each
/// write the entry must be classified as not written, after it by its content. The single-word wait
/// of a stream must agree.
#[test]
fn entries_of_many_laps_are_distinguished() {
    const LOG: u8 = 3;
    let mut queue = [Cqe64::preset().to_bytes(); 1 << LOG];
    let passes = |dword: u32, index| {
        dword & (OWNER_BIT | ERROR_BIT) == u32::from(owner_of_lap(index, LOG)) * OWNER_BIT
    };
    for index in 0..5u32 << LOG {
        let slot = &mut queue[index as usize % (1 << LOG)];
        assert_eq!(
            classify(last_of(slot), index, LOG),
            EntryState::NotYet,
            "{index}"
        );
        assert!(!passes(last_of(slot), index), "{index}: nothing to pass on");
        let (owner, wqe_counter) = (owner_of_lap(index, LOG), index as u16);
        if index % 3 == 2 {
            let opcode = CqeOpcode::RESP_ERR;
            let syndrome = Syndrome::WR_FLUSH;
            let content = Failure {
                opcode,
                syndrome,
                wqe_counter,
                ..Failure::default()
            };
            *slot = ErrCqe::new(&content, owner).to_bytes();
            assert_eq!(
                classify(last_of(slot), index, LOG),
                EntryState::Error(opcode)
            );
            assert!(
                !passes(last_of(slot), index),
                "{index}: an error does not pass"
            );
        } else {
            let opcode = CqeOpcode::RESP_SEND;
            let content = Success {
                opcode,
                wqe_counter,
                solicited: true,
                ..Success::default()
            };
            *slot = Cqe64::success(&content, owner).to_bytes();
            assert_eq!(
                classify(last_of(slot), index, LOG),
                EntryState::Success(opcode)
            );
            assert!(passes(last_of(slot), index), "{index}: a success passes");
        }
        assert_eq!(wqe_counter_of(last_of(slot)), wqe_counter);
        // In the next lap the same slot is not yet written.
        assert_eq!(
            classify(last_of(slot), index + (1 << LOG), LOG),
            EntryState::NotYet
        );
    }
}

#[test]
fn preset_passes_no_test_in_the_first_lap() {
    let preset = Cqe64::preset().to_bytes();
    assert_eq!(preset[OP_OWN_OFFSET], OP_OWN_PRESET);
    assert_eq!(OP_OWN_PRESET, op_own(CqeOpcode::INVALID, false, 1));
    // Owner alone, as a byte or in the dword, does not match the first lap ...
    assert_ne!(OP_OWN_PRESET & 1, owner_of_lap(0, 3));
    assert_ne!(last_of(&preset) & OWNER_BIT, 0);
    // ... and where the owner would match, the opcode does not.
    assert_eq!(classify(last_of(&preset), 8, 3), EntryState::NotYet);
    // The opcode of the common mark decides, not its owner bit.
    assert_eq!(classify(0xf000_0000, 0, 3), EntryState::NotYet);
    assert_eq!(0xf0 & 1, owner_of_lap(0, 3));
}

#[test]
fn owner_bit_is_the_parity_of_the_lap() {
    for log in 0..=31u8 {
        let entries = 1u32 << log;
        for index in [
            0,
            1,
            7,
            8,
            0x7fff_ffff,
            0x8000_0000,
            u32::MAX,
            entries,
            entries - 1,
        ] {
            let expected = u8::from(index & entries != 0);
            assert_eq!(owner_of_lap(index, log), expected, "{index} of 2^{log}");
        }
    }
    assert_eq!(
        (owner_of_lap(u32::MAX, 32), owner_of_lap(u32::MAX, 255)),
        (0, 0)
    );
}

#[test]
fn counters_in_records_wrap() {
    for index in [0, 1, 0x1234, 0xffff, 0x1_0000, 0x1_0001, u32::MAX] {
        let stored = record_value(index).to_le_bytes();
        assert_eq!(stored, (index & 0xffff).to_be_bytes());
        assert_eq!(record_index(u32::from_le_bytes(stored)), index as u16);
        let stored = cq_ci_value(index).to_le_bytes();
        assert_eq!(stored, (index & 0xff_ffff).to_be_bytes());
        assert_eq!(cq_ci(u32::from_le_bytes(stored)), index & 0xff_ffff);
    }
}

#[test]
fn arming_a_completion_queue() {
    assert_eq!(cq_arm_value(0, false, 5).to_le_bytes(), [0, 0, 0, 5]);
    assert_eq!(
        cq_arm_value(7, true, 0xff12_3456).to_le_bytes(),
        [0x31, 0x12, 0x34, 0x56]
    );
    assert_eq!(cq_arm_value(2, false, 3).to_le_bytes(), [0x20, 0, 0, 3]);
}

#[test]
fn known_codes_have_names_and_others_keep_their_number() {
    let named = |name: fn(u8) -> Option<&'static str>| -> Vec<u8> {
        let codes: Vec<u8> = (0..=u8::MAX).filter(|&code| name(code).is_some()).collect();
        let mut names: Vec<_> = codes.iter().map(|&code| name(code)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), codes.len(), "no name twice");
        codes
    };
    assert_eq!(
        named(|c| SendOpcode(c).name()),
        [0x00, 0x01, 0x08, 0x09, 0x0a, 0x0b, 0x10, 0x11, 0x12]
    );
    assert_eq!(named(|c| CqeOpcode(c).name()), [0, 1, 2, 3, 4, 13, 14, 15]);
    assert_eq!(
        named(|c| Syndrome(c).name()),
        [
            0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22
        ]
    );
    assert_eq!(Syndrome::TRANSPORT_RETRY.to_string(), "TRANSPORT_RETRY");
    assert_eq!(Syndrome(0x99).to_string(), "0x99");
    assert_eq!(SendOpcode(0x23).to_string(), "0x23");
    assert_eq!(CqeOpcode(5).to_string(), "0x05");
}

#[test]
fn every_code_is_classified_by_its_highest_bit() {
    for code in 0..16 {
        let opcode = CqeOpcode(code);
        let expected = match code {
            0..8 => EntryState::Success(opcode),
            8..15 => EntryState::Error(opcode),
            _ => EntryState::NotYet,
        };
        assert_eq!(opcode.is_error(), code >= 8);
        assert_eq!(classify(last_dword(opcode, 1, 0, 5), 4, 2), expected);
        assert_eq!(
            classify(last_dword(opcode, 0, 0, 5), 4, 2),
            EntryState::NotYet
        );
    }
}
