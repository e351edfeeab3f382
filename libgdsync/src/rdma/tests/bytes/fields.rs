//! The fields of an entry, in order, and the differences that are allowed between the entry of this
//! library and that of libmlx5 for the same request.
//!
//! | field | rule |
//! | --- | --- |
//! | control: modifier, index, opcode, size, flags, immediate | equal |
//! | control: number of the queue pair | each its own |
//! | control: signature, stream | zero in both |
//! | remote address: address, key | equal |
//! | remote address: the last four bytes | zero in both |
//! | address vector: key, number, and the fields that name the port | equal |
//! | address vector: UDP source port, on Ethernet | from 0xc000 on: libmlx5 draws one for each address handle |
//! | address vector: reserved bytes | zero in both |
//! | atomic: operands | equal |
//! | atomic: comparand of a fetch-and-add, which is unused | zero in ours, unchanged by libmlx5 |
//! | pointer: byte count, key, address | equal |
//! | inline: byte count, bytes | equal |
//! | inline: the rest of the last segment | zero in ours, unchanged by libmlx5 |
//! | receive: pointers, end mark | equal |
//! | every other byte of the ring | unchanged by both |

use mlx5_prm::opcode::SendOpcode;

use super::request::{Data, Request};

/// The rule for a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Equal,
    /// The number of the queue pair itself, in three bytes.
    Number,
    /// Zero in both.
    Zero,
    /// Zero in ours, unchanged in libmlx5's.
    Left,
    /// Equal, or each a UDP port: no LID of a port is that high.
    Port,
}

/// A range of bytes of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub name: &'static str,
    pub len: usize,
    pub rule: Rule,
}

const fn field(name: &'static str, len: usize, rule: Rule) -> Field {
    Field { name, len, rule }
}

/// The control segment.
const CONTROL: [Field; 8] = [
    field("modifier", 1, Rule::Equal),
    field("index", 2, Rule::Equal),
    field("opcode", 1, Rule::Equal),
    field("queue pair", 3, Rule::Number),
    field("size", 1, Rule::Equal),
    field("signature and stream", 3, Rule::Zero),
    field("flags", 1, Rule::Equal),
    field("immediate", 4, Rule::Equal),
];

/// A pointer, or the end mark of a list.
const POINTER: [Field; 3] = [
    field("byte count", 4, Rule::Equal),
    field("local key", 4, Rule::Equal),
    field("address", 8, Rule::Equal),
];

/// The address vector of a datagram.
const ADDRESS: [Field; 11] = [
    field("queue key", 4, Rule::Equal),
    field("reserved", 4, Rule::Zero),
    field("peer", 4, Rule::Equal),
    field("rate and service level", 1, Rule::Equal),
    field("path bits", 1, Rule::Equal),
    field("LID, or port of UDP", 2, Rule::Port),
    field("reserved", 4, Rule::Zero),
    field("MAC", 6, Rule::Equal),
    field("traffic class and hops", 2, Rule::Equal),
    field("own GID and flow", 4, Rule::Equal),
    field("GID", 16, Rule::Equal),
];

/// Inline data: its bytes, and the rest of the last segment.
fn inline(len: usize) -> Vec<Field> {
    if len == 0 {
        return Vec::new();
    }
    let left = (4 + len).next_multiple_of(16) - 4 - len;
    vec![
        field("inline byte count", 4, Rule::Equal),
        field("inline bytes", len, Rule::Equal),
        field("rest of inline segment", left, Rule::Left),
    ]
}

/// The fields of a send's entry.
pub(super) fn of_send(request: &Request) -> Vec<Field> {
    let opcode = request.kind.opcode();
    let mut fields = CONTROL.to_vec();
    let remote = matches!(
        opcode,
        SendOpcode::RDMA_WRITE
            | SendOpcode::RDMA_WRITE_IMM
            | SendOpcode::RDMA_READ
            | SendOpcode::ATOMIC_CS
            | SendOpcode::ATOMIC_FA
    );
    if request.kind.is_datagram() {
        fields.extend(ADDRESS);
    }
    if remote {
        fields.push(field("remote address", 8, Rule::Equal));
        fields.push(field("remote key", 4, Rule::Equal));
        fields.push(field("reserved", 4, Rule::Zero));
    }
    let comparand = match opcode {
        SendOpcode::ATOMIC_CS => Some(Rule::Equal),
        SendOpcode::ATOMIC_FA => Some(Rule::Left),
        _ => None,
    };
    if let Some(rule) = comparand {
        fields.push(field("swap or add", 8, Rule::Equal));
        fields.push(field("compare", 8, rule));
    }
    match &request.data {
        Data::Gather(pieces) => {
            let there = pieces.iter().filter(|(_, len)| *len != 0).count();
            fields.extend(POINTER.repeat(there));
        }
        Data::Inline(pieces) => fields.extend(inline(pieces.iter().map(Vec::len).sum())),
    }
    fields
}

/// The fields of a receive's entry with this many pointers, in a slot of `stride` bytes.
pub(super) fn of_receive(pointers: usize, stride: usize) -> Vec<Field> {
    let end = usize::from(16 * pointers < stride);
    POINTER.repeat(pointers + end)
}

/// A queue as memory, and the number of its queue pair.
pub(super) struct Side<'a> {
    pub ring: &'a [u8],
    pub qpn: u32,
}

/// Compares two rings that were filled with `fill` before entries were written into them, given the
/// start of each entry and its fields.
///
/// # Errors
/// The first difference that no rule allows.
pub(super) fn compare(
    ours: &Side<'_>,
    theirs: &Side<'_>,
    fill: u8,
    entries: &[(usize, Vec<Field>)],
) -> Result<(), String> {
    let len = ours.ring.len();
    if theirs.ring.len() != len {
        return Err(format!("rings of {len} and {} bytes", theirs.ring.len()));
    }
    let mut rest = vec![true; len];
    for (start, fields) in entries {
        let mut at = *start;
        for Field { name, len: n, rule } in fields {
            let mut places = (at..at + n).map(|i| i % len);
            let pick =
                |side: &Side<'_>| -> Vec<u8> { (at..at + n).map(|i| side.ring[i % len]).collect() };
            let (o, t) = (pick(ours), pick(theirs));
            let good = match rule {
                Rule::Equal => o == t,
                Rule::Number => {
                    o == ours.qpn.to_be_bytes()[1..] && t == theirs.qpn.to_be_bytes()[1..]
                }
                Rule::Zero => o.iter().chain(&t).all(|b| *b == 0),
                Rule::Port => o == t || [&o, &t].iter().all(|b| b[0] >= 0xc0),
                Rule::Left => o.iter().all(|b| *b == 0) && t.iter().all(|b| *b == fill),
            };
            if !good {
                return Err(format!(
                    "{name}, at {} of the entry at {start}: {o:02x?} by us, {t:02x?} by libmlx5",
                    at - start
                ));
            }
            if !places.all(|i| std::mem::replace(&mut rest[i], false)) {
                return Err(format!("{name} lies on another entry"));
            }
            at += n;
        }
    }
    let touched = (0..len).find(|&i| rest[i] && (ours.ring[i] != fill || theirs.ring[i] != fill));
    match touched {
        Some(i) => Err(format!(
            "byte {i} of the ring, of no entry, became {:#x} by us, {:#x} by libmlx5",
            ours.ring[i], theirs.ring[i]
        )),
        None => Ok(()),
    }
}
