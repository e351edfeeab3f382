//! Flagged rooms, as the CPU reads and prepares them: memory of a GPU in which every 8 bytes have
//! their own flag. `device/mp_flag.hpp` describes the format.

/// Lines before those of the payload.
const HEAD: usize = 2;
/// Bytes of a line, and bytes of the payload in it.
const LINE: usize = 8;
const DATA: usize = 4;

/// Lines of a payload of `len` bytes: they are written by twos.
pub fn lines(len: usize) -> usize {
    2 * len.div_ceil(2 * DATA)
}

/// Bytes of the lines of a payload of at most `len` bytes.
pub fn lines_len(len: usize) -> usize {
    lines(len) * LINE
}

/// Bytes of a room for messages of at most `len` bytes.
pub fn size(len: usize) -> usize {
    HEAD_LEN + lines_len(len)
}

/// The bytes of `len` bytes of rooms before message `number`: no line belongs to it or to one of the
/// next 2^31 messages.
pub fn before(number: u64, len: usize) -> Vec<u8> {
    let flag = u64::from((number as u32).wrapping_sub(1)) << 32;
    flag.to_le_bytes().repeat(len / LINE)
}

/// Bytes of a place in lines, as `device/mp_direct.cu` reads it.
pub const PLACE: usize = 6 * LINE;

/// The lines of the memory of the receive of message `number`: `len` bytes at `addr`, with a key.
#[cfg(test)]
pub fn place(number: u64, (addr, key): (u64, u32), len: u64) -> [u8; PLACE] {
    let mut bytes = [0; PLACE];
    let halves = [addr, addr >> 32, len, len >> 32, number >> 32, key.into()];
    for (line, half) in bytes.chunks_exact_mut(LINE).zip(halves) {
        line.copy_from_slice(&(number << 32 | half & 0xffff_ffff).to_le_bytes());
    }
    bytes
}

/// Address, key and length of the memory of the receive of message `number`, in the bytes of its lines;
/// `None` while a line is missing.
pub fn placed(lines: &[u8; PLACE], number: u64) -> Option<(u64, u32, u64)> {
    let lines: &[[u8; LINE]] = lines.as_chunks().0;
    let [addr, addr_high, len, len_high, high, key] = lines else {
        return None;
    };
    let half = |line| match parts(line) {
        (flag, data) if flag == number as u32 => Some(u64::from(data)),
        _ => None,
    };
    let whole = half(high)? == number >> 32;
    let long = |low, high| Some(half(high)? << 32 | half(low)?);
    whole.then_some((
        long(addr, addr_high)?,
        half(key)? as u32,
        long(len, len_high)?,
    ))
}

/// `len` bytes of lines that are of no message of a slot: a ring has at least two slots, and the numbers
/// of the next slot are others.
pub fn no_place(slot: usize, len: usize) -> Vec<u8> {
    let flag = (slot as u64 + 1) << 32;
    flag.to_le_bytes().repeat(len / LINE)
}

/// Marks in the head of a room.
const ELSEWHERE: u32 = 1 << 31;
const LONG: u32 = 1 << 30;
/// Lines of the payload that have the length of a message elsewhere.
const LENGTH: usize = 2;

/// Where the payload of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// In the lines of the room: so many bytes.
    Here(usize),
    /// In the long room: so many bytes.
    Long(usize),
    /// In the memory of the receive, when this many lines behind those of the length have the flag.
    Elsewhere(usize),
}

/// The bytes of the head.
pub const HEAD_LEN: usize = HEAD * LINE;

/// The flag and the data of a line.
fn parts(line: &[u8; LINE]) -> (u32, u32) {
    let line = u64::from_le_bytes(*line);
    ((line >> 32) as u32, line as u32)
}

/// The head of message `number` in the bytes of a room; `None` before it is there.
pub fn head(room: &[u8], number: u64) -> Option<Head> {
    let [length, high, ..] = room.as_chunks().0 else {
        return None;
    };
    let (low, (flag, data)) = (number as u32, parts(length));
    if flag != low || parts(high) != (low, (number >> 32) as u32) {
        return None;
    }
    let len = (data & !(ELSEWHERE | LONG)) as usize;
    Some(match (data & ELSEWHERE, data & LONG) {
        (0, 0) => Head::Here(len),
        (0, _) => Head::Long(len),
        _ => Head::Elsewhere((data & !ELSEWHERE) as usize),
    })
}

/// Bytes of the lines behind the head that show a message elsewhere, written by so many blocks.
pub fn shown_len(blocks: usize) -> usize {
    (LENGTH + blocks) * LINE
}

/// The length of message `number` elsewhere, in the lines behind the head; `None` while a block is missing.
pub fn shown(lines: &[u8], number: u64, blocks: usize) -> Option<u64> {
    let lines = lines.get(..shown_len(blocks))?.as_chunks().0;
    if lines.iter().any(|line| parts(line).0 != number as u32) {
        return None;
    }
    let half = |at: usize| Some(u64::from(parts(lines.get(at)?).1));
    Some(half(1)? << 32 | half(0)?)
}

/// The `len` bytes of the payload of message `number` in the bytes of its lines; `None` while a line is
/// missing.
pub fn payload(lines: &[u8], number: u64, len: usize) -> Option<Vec<u8>> {
    let lines = lines.get(..lines_len(len))?.as_chunks().0;
    let mut bytes = Vec::with_capacity(len.next_multiple_of(DATA));
    for line in lines {
        let (flag, data) = parts(line);
        if flag != number as u32 {
            return None;
        }
        bytes.extend(data.to_le_bytes());
    }
    bytes.truncate(len);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A room with a message, as a kernel writes it.
    fn room(number: u64, data: u32, bytes: &[u8]) -> Vec<u8> {
        let mut room = before(number, size(64));
        let line = |data: u32| (number << 32 | u64::from(data)).to_le_bytes();
        room[..8].copy_from_slice(&line(data));
        room[8..16].copy_from_slice(&line((number >> 32) as u32));
        for at in 0..lines(bytes.len()) {
            let mut data = [0; DATA];
            let rest = bytes.get(DATA * at..).unwrap_or(&[]);
            let n = rest.len().min(DATA);
            data[..n].copy_from_slice(&rest[..n]);
            room[16 + 8 * at..][..8].copy_from_slice(&line(u32::from_le_bytes(data)));
        }
        room
    }

    #[test]
    fn payload_is_complete_or_absent() {
        for number in [0, 7, u64::from(u32::MAX), 1 << 32, u64::MAX] {
            for len in [0, 1, 4, 7, 64] {
                let bytes: Vec<u8> = (1..=len as u8).collect();
                let whole = room(number, len as u32, &bytes);
                let (head_bytes, lines) = whole.split_at(HEAD_LEN);
                assert_eq!(head(head_bytes, number), Some(Head::Here(len)));
                assert_eq!(payload(lines, number, len), Some(bytes));
                for other in [number.wrapping_add(1 << 32), number.wrapping_sub(1)] {
                    assert_eq!(head(&whole, other), None);
                }
                let empty = before(number, LINE);
                for line in 0..self::lines(len) {
                    let mut torn = lines.to_vec();
                    torn[line * LINE..][..LINE].copy_from_slice(&empty);
                    assert_eq!(payload(&torn, number, len), None, "line {line}");
                }
                for line in 0..HEAD {
                    let mut torn = whole.clone();
                    torn[line * LINE..][..LINE].copy_from_slice(&empty);
                    assert_eq!(head(&torn, number), None, "line {line}");
                }
            }
        }
        assert_eq!(payload(&[], 0, 0), Some(Vec::new()));
        assert_eq!(payload(&[], 0, 1), None);
    }

    #[test]
    fn place_is_whole_or_absent() {
        let number = 5 << 32 | 7;
        let lines = place(number, (0x1234_5678_9abc, 9), 3 << 32 | 1);
        let found = Some((0x1234_5678_9abc, 9, 3 << 32 | 1));
        assert_eq!(placed(&lines, number), found);
        assert_eq!(placed(&lines, number + (1 << 32)), None);
        for line in 0..PLACE / LINE {
            let mut torn = lines;
            torn[line * LINE..][..LINE].fill(0);
            assert_eq!(placed(&torn, number), None, "line {line}");
        }
    }

    #[test]
    fn message_elsewhere_is_complete_when_all_blocks_show_it() {
        let number = 3 << 32 | 9;
        let bytes = [&(5_u64 << 32 | 1).to_le_bytes()[..], &[0; 12]].concat();
        let whole = room(number, ELSEWHERE | 3, &bytes);
        assert_eq!(head(&whole, number), Some(Head::Elsewhere(3)));
        let lines = &whole[HEAD_LEN..];
        assert_eq!(shown(lines, number, 3), Some(5 << 32 | 1));
        for line in 0..5 {
            let mut torn = lines.to_vec();
            torn[line * LINE..][..LINE].fill(0);
            assert_eq!(shown(&torn, number, 3), None, "line {line}");
        }
        assert_eq!(shown(&lines[..32], number, 3), None);
        assert_eq!(
            head(&room(number, LONG | 7, &[]), number),
            Some(Head::Long(7))
        );
    }
}
