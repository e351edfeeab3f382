//! The encoder writes the bytes of the vendor's library, and the parser reads them back.

mod common;

use common::{SendVector, hex, list, load, number, sends, sges};
use mlx5_prm::doorbell::{SendDoorbell, record_index, record_value};
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{
    Data, Encoded, ParseError, ParsedWqe, SliceSink, basic_blocks, encode_recv, parse_datagram,
    parse_recv, parse_send,
};

fn encode(v: &SendVector) -> (Encoded, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut sink = |segment: &[u8; 16]| bytes.extend_from_slice(segment);
    let encoded = v
        .with(|wqe| wqe.encode(v.index as u16, v.qpn, &mut sink))
        .unwrap_or_else(|e| panic!("{}: {e}", v.name));
    (encoded, bytes)
}

#[test]
fn encoded_sends_equal_the_vendors_bytes() {
    let vectors = sends();
    assert_eq!(vectors.len(), 41);
    for v in &vectors {
        let (encoded, bytes) = encode(v);
        assert_eq!(bytes, v.wqe, "{}", v.name);
        let sizes = (encoded.ds, encoded.basic_blocks);
        assert_eq!(sizes, (v.ds, v.basic_blocks), "{}", v.name);
        assert_eq!(v.with(|wqe| wqe.segments()), Ok(v.ds), "{}", v.name);
        assert_eq!(basic_blocks(v.ds), v.basic_blocks, "{}", v.name);
        assert_eq!(encoded.doorbell[..], v.doorbell, "{}", v.name);
        let stored = encoded.doorbell_value().to_le_bytes();
        assert_eq!(stored[..], v.doorbell, "{}", v.name);
        let record = encoded.record_value(v.index);
        assert_eq!(record.to_le_bytes(), v.record.to_be_bytes(), "{}", v.name);
        assert_eq!(record, record_value(v.record), "{}", v.name);
        assert_eq!(u32::from(record_index(record)), v.record, "{}", v.name);
    }
}

#[test]
fn slice_receives_a_send_or_reports_the_missing_room() {
    for v in &sends() {
        let mut memory = vec![0xee; v.wqe.len() + 16];
        let mut sink = SliceSink::new(&mut memory);
        v.with(|wqe| wqe.encode(v.index as u16, v.qpn, &mut sink))
            .unwrap();
        assert_eq!(sink.finish(), Ok(v.wqe.len()));
        assert_eq!(memory[..v.wqe.len()], v.wqe);
        let behind = &memory[v.wqe.len()..];
        assert_eq!(behind, [0xee; 16], "{}: past the end", v.name);
        for short in 0..v.wqe.len() {
            let mut sink = SliceSink::new(&mut memory[..short]);
            v.with(|wqe| wqe.encode(v.index as u16, v.qpn, &mut sink))
                .unwrap();
            let lacks = sink.finish().unwrap_err();
            let limits = format!(
                "{} bytes, and the memory for it has {short} bytes",
                v.wqe.len()
            );
            assert!(lacks.to_string().contains(&limits), "{lacks}");
        }
    }
}

#[test]
fn doorbells_are_parsed_and_encoded() {
    for v in &sends() {
        let bytes: [u8; 8] = v.doorbell[..].try_into().unwrap();
        let doorbell = SendDoorbell::from_bytes(bytes);
        let expected = SendDoorbell {
            opmod: 0,
            index: v.index as u16,
            opcode: v.opcode,
            qpn: v.qpn,
            ds: v.ds,
        };
        assert_eq!(doorbell, expected, "{}", v.name);
        assert_eq!(doorbell.to_bytes(), bytes, "{}", v.name);
    }
}

#[test]
fn parser_reads_the_vendors_entries() {
    let mut read = 0;
    for v in &sends() {
        let parsed = parse(v, &v.wqe).unwrap_or_else(|e| panic!("{}: {e}", v.name));
        let ctrl = &parsed.ctrl;
        let head = (
            parsed.opcode(),
            u32::from(ctrl.index()),
            ctrl.qpn(),
            ctrl.ds(),
        );
        assert_eq!(head, (v.opcode, v.index, v.qpn, v.ds), "{}", v.name);
        assert_eq!((parsed.flags(), ctrl.imm), (v.flags, v.imm), "{}", v.name);
        let parts = (parsed.remote, parsed.atomic, parsed.av);
        assert_eq!(parts, (v.remote, v.atomic, v.av), "{}", v.name);
        let data: Vec<Data<'_>> = parsed.data().collect();
        match &v.inline {
            Some(pieces) => assert_eq!(data, [Data::Inline(&pieces.concat())], "{}", v.name),
            None => {
                let sges: Vec<_> = v.sges.iter().copied().map(Data::Sge).collect();
                assert_eq!(data, sges, "{}", v.name);
            }
        }
        let len: u64 = v.sges.iter().map(|sge| u64::from(sge.len)).sum();
        assert_eq!(parsed.data_len(), len, "{}", v.name);
        read += 1;
    }
    assert_eq!(read, 41);
}

/// Parses an entry as the kind of its QP requires.
fn parse<'a>(v: &SendVector, bytes: &'a [u8]) -> Result<ParsedWqe<'a>, ParseError> {
    match v.av {
        Some(_) => parse_datagram(bytes),
        None => parse_send(bytes),
    }
}

/// The whole content of a parsed entry.
fn meaning(wqe: &ParsedWqe<'_>) -> impl PartialEq + std::fmt::Debug + use<> {
    let data: Vec<String> = wqe.data().map(|item| format!("{item:?}")).collect();
    (wqe.ctrl, wqe.remote, wqe.atomic, wqe.av, data)
}

#[test]
fn every_flipped_bit_of_a_used_byte_is_noticed() {
    for v in &sends() {
        let before = meaning(&parse(v, &v.wqe).unwrap());
        for bit in 0..v.wqe.len() * 8 {
            let byte = bit / 8;
            let mut bytes = v.wqe.clone();
            bytes[byte] ^= 1 << (bit % 8);
            let same = parse(v, &bytes).is_ok_and(|wqe| meaning(&wqe) == before);
            let padding = is_padding(v, byte);
            assert_eq!(same, padding, "{}: byte {byte}, bit {bit}", v.name);
        }
    }
}

/// Whether the byte is unused: the end of the remote address segment, the comparand of an operation
/// that compares nothing, the rest of the last inline segment.
fn is_padding(v: &SendVector, byte: usize) -> bool {
    let head = 16 + if v.remote.is_some() { 16 } else { 0 };
    let head = head + if v.av.is_some() { 48 } else { 0 };
    let inline = v.inline.as_ref().map(|pieces| pieces.concat().len());
    v.remote.is_some() && (28..32).contains(&byte)
        || v.opcode == SendOpcode::ATOMIC_FA && (40..48).contains(&byte)
        || inline.is_some_and(|len| byte >= head + 4 + len)
}

#[test]
fn encoded_receives_equal_the_vendors_bytes() {
    let all = load();
    let recvs = list(&all["recv"]);
    assert_eq!(recvs.len(), 3);
    for v in recvs {
        let (stride, sges, wqe) = (
            number(&v["stride"]) as usize,
            sges(&v["sge"]),
            hex(&v["wqe"]),
        );
        let mut slot = vec![0; stride];
        let mut sink = SliceSink::new(&mut slot);
        assert_eq!(encode_recv(&sges, stride, &mut sink), Ok(sges.len()));
        assert_eq!(sink.finish(), Ok((sges.len() + 1) * 16));
        assert_eq!(slot, wqe);
        assert_eq!(parse_recv(&wqe).unwrap().collect::<Vec<_>>(), sges);
        let record = record_value(number(&v["index"]) as u32 + 1);
        let expected = number(&v["doorbell_record_recv"]) as u32;
        assert_eq!(record.to_le_bytes(), expected.to_be_bytes());
    }
}

#[test]
fn every_flipped_bit_of_a_receive_is_noticed_up_to_its_end() {
    let all = load();
    for v in list(&all["recv"]) {
        let (sges, wqe) = (sges(&v["sge"]), hex(&v["wqe"]));
        for bit in 0..wqe.len() * 8 {
            let mut bytes = wqe.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let same = parse_recv(&bytes).is_ok_and(|list| list.eq(sges.iter().copied()));
            // The key of the end mark is used; its other fields and the bytes after it are not.
            let end = sges.len() * 16;
            let matters = bit / 8 < end || (end + 4..end + 8).contains(&(bit / 8));
            assert_eq!(same, !matters, "bit {bit} of {} SGEs", sges.len());
        }
    }
}
