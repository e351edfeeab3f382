//! Flagged rooms, as the CPU reads and prepares them: memory of a GPU in which every 8 bytes have
//! their own flag. `device/mp_flag.hpp` describes the format.

/// Lines before those of the payload.
const HEAD: usize = 2;
/// Bytes of a line, and bytes of the payload in it.
const LINE: usize = 8;
const DATA: usize = 4;

/// Lines of a payload of `len` bytes.
pub fn lines(len: usize) -> usize {
    len.div_ceil(DATA)
}

/// Bytes of a message of at most `len` bytes.
pub fn size(len: usize) -> usize {
    (HEAD + lines(len)) * LINE
}

/// The bytes of `len` bytes of rooms before message `number`: no line belongs to it or to one of the
/// next 2^31 messages.
pub fn before(number: u64, len: usize) -> Vec<u8> {
    let flag = u64::from((number as u32).wrapping_sub(1)) << 32;
    flag.to_le_bytes().repeat(len / LINE)
}

/// Bytes of a place in lines, as `device/mp_direct.cu` reads it.
pub const PLACE: usize = 5 * LINE;

/// The lines of the memory of the receive of message `number`: `len` bytes at `addr`.
pub fn place(number: u64, addr: u64, len: u64) -> [u8; PLACE] {
    let mut bytes = [0; PLACE];
    let halves = [addr, addr >> 32, len, len >> 32, number >> 32];
    for (line, half) in bytes.chunks_exact_mut(LINE).zip(halves) {
        line.copy_from_slice(&(number << 32 | half & 0xffff_ffff).to_le_bytes());
    }
    bytes
}

/// `len` bytes of lines that are of no message of a slot: a ring has at least two slots, and the numbers
/// of the next slot are others.
pub fn no_place(slot: usize, len: usize) -> Vec<u8> {
    let flag = (slot as u64 + 1) << 32;
    flag.to_le_bytes().repeat(len / LINE)
}

/// The payload of message `number`, of `len` bytes, in the bytes of a room; `None` while a line is
/// missing.
pub fn payload(room: &[u8], number: u64, len: usize) -> Option<Vec<u8>> {
    if room.len() < size(len) {
        return None;
    }
    let mut lines = room.chunks_exact(LINE).map(|line| {
        let half =
            |at: usize| u32::from_le_bytes([line[at], line[at + 1], line[at + 2], line[at + 3]]);
        (half(DATA), half(0))
    });
    let (low, high) = (number as u32, (number >> 32) as u32);
    let head = [lines.next()?, lines.next()?];
    if head != [(low, len as u32), (low, high)] {
        return None;
    }
    let mut bytes = Vec::with_capacity(len.next_multiple_of(DATA));
    for (flag, data) in lines.take(self::lines(len)) {
        if flag != low {
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
    fn room(number: u64, bytes: &[u8], len: usize) -> Vec<u8> {
        let mut room = before(number, size(len));
        let line = |data: u32| (number << 32 | u64::from(data)).to_le_bytes();
        room[..8].copy_from_slice(&line(bytes.len() as u32));
        room[8..16].copy_from_slice(&line((number >> 32) as u32));
        for (at, four) in bytes.chunks(DATA).enumerate() {
            let mut data = [0; DATA];
            data[..four.len()].copy_from_slice(four);
            room[16 + 8 * at..][..8].copy_from_slice(&line(u32::from_le_bytes(data)));
        }
        room
    }

    #[test]
    fn payload_is_complete_or_absent() {
        for number in [0, 7, u64::from(u32::MAX), 1 << 32, u64::MAX] {
            for len in [0, 1, 4, 7, 64] {
                let bytes: Vec<u8> = (1..=len as u8).collect();
                let whole = room(number, &bytes, 64);
                assert_eq!(payload(&whole, number, len), Some(bytes));
                for other in [number.wrapping_add(1 << 32), number.wrapping_sub(1)] {
                    assert_eq!(payload(&whole, other, len), None);
                }
                assert_eq!(payload(&whole, number, len + 1), None);
                let empty = before(number, size(64));
                for line in 0..HEAD + lines(len) {
                    let mut torn = whole.clone();
                    torn[line * LINE..][..LINE].copy_from_slice(&empty[..LINE]);
                    assert_eq!(payload(&torn, number, len), None, "line {line}");
                }
            }
        }
        assert_eq!(payload(&[], 0, 0), None);
    }
}
