//! Rings between processes: each end against a hostile other end, and both ends honest.
//!
//! The hostile end is a second mapping of the ring's file, as another process has it. It acts
//! between the calls of the honest end and, like another core, in the middle of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use vmlx5::fuzzing::{MIN_RING, Reader, Refused, Region, Writer};
use vmlx5::{FrameHeader, Kind, MAX_PAYLOAD};
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;

/// Layout in the other process: the words, then the bytes.
const HEAD: usize = 0;
const TAIL: usize = 128;
const DATA: usize = 4096;
const SIZE: usize = MIN_RING;
const LINE: u64 = 64;
const PADDING: u8 = 0xff;

/// Most operations of one run.
const OPERATIONS: usize = 256;

/// The ring, as another process maps it.
pub struct Alias {
    base: NonNull<u8>,
    /// Bytes of the ring in the file: accesses beyond them fail.
    held: usize,
}

impl Alias {
    pub fn of(region: &Region) -> Alias {
        let file = region.file().expect("a shared ring");
        Alias::map(file, SIZE)
    }

    /// Maps a ring's file: the page of words, and the bytes, of which the file has `held`.
    pub fn map(file: impl std::os::fd::AsFd, held: usize) -> Alias {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let (null, len) = (std::ptr::null_mut(), DATA + SIZE);
        // SAFETY: a new mapping at an address the kernel chooses; beyond what the file has,
        // nothing is accessed.
        let base = unsafe { rustix::mm::mmap(null, len, prot, MapFlags::SHARED, file, 0) };
        let base = NonNull::new(base.expect("mapped").cast());
        Alias {
            base: base.expect("not null"),
            held: held.min(SIZE),
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: aligned, inside the mapping, only ever accessed atomically.
        unsafe { self.base.add(at).cast().as_ref() }
    }

    fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    pub fn store_head(&self, value: u64) {
        self.word(HEAD).store(value, Ordering::Release);
    }

    pub fn store_tail(&self, value: u64) {
        self.word(TAIL).store(value, Ordering::Release);
    }

    /// The address of a position of the ring, with `len` bytes behind it.
    fn place(&self, position: u64, len: usize) -> NonNull<u8> {
        let offset = (position as usize % SIZE).min(self.held - len);
        // SAFETY: inside the mapping, and inside what the file has.
        unsafe { self.base.add(DATA + offset) }
    }

    /// Writes bytes near a position.
    pub fn scribble(&self, position: u64, bytes: &[u8]) {
        let len = bytes.len().min(self.held);
        let at = self.place(position, len);
        // SAFETY: `len` bytes of the mapping, without a concurrent reader: the honest end runs on
        // this thread, and `take` reads its slices as volatile memory.
        unsafe { at.copy_from_nonoverlapping(NonNull::from(bytes).cast(), len) };
    }

    /// The header at a line.
    fn header(&self, position: u64) -> FrameHeader {
        let mut bytes = [0; 64];
        let at = self.place(position, 64);
        // SAFETY: 64 bytes of the mapping.
        unsafe {
            NonNull::from(&mut bytes)
                .cast()
                .copy_from_nonoverlapping(at, 64)
        };
        FrameHeader::read_from_bytes(&bytes).expect("64 bytes")
    }
}

impl Drop for Alias {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; no reference outlives the alias.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), DATA + SIZE) };
    }
}

fn ring() -> (Arc<Region>, Alias) {
    let region = Region::shared(SIZE).expect("a ring");
    let alias = Alias::of(&region);
    (region, alias)
}

fn header(kind: u8, len: u32) -> FrameHeader {
    FrameHeader {
        kind,
        len: len.into(),
        ..FrameHeader::default()
    }
}

/// A length of a record, often at a limit.
fn length(input: &mut Input<'_>) -> u32 {
    match input.byte() % 8 {
        0 => 0,
        1 => MAX_PAYLOAD as u32,
        2 => input.below(256) as u32,
        3 => input.below(MAX_PAYLOAD as u64 + 2) as u32,
        4 => input.below(SIZE as u64 + 128) as u32,
        5 => (SIZE - 64) as u32,
        6 => u32::MAX - u32::from(input.byte()),
        _ => input.next(),
    }
}

/// Bytes of a record with `len` payload bytes.
fn record(len: u64) -> u64 {
    LINE + len.next_multiple_of(LINE)
}

/// One operation of a hostile writer. `near`: the position of the reader.
pub fn spoil(alias: &Alias, input: &mut Input<'_>, near: u64, fill: &mut u64) {
    match input.byte() % 8 {
        // A valid record, or padding, behind the last one.
        0..=3 => {
            let kind = input.pick(&[1, 2, 3, 16, 20, PADDING]);
            let len = length(input);
            alias.scribble(*fill, header(kind, len).as_bytes());
            *fill = fill.wrapping_add(record(len.into()));
            if input.byte() & 3 != 0 {
                alias.store_tail(*fill);
            }
        }
        4 => {
            let bytes = input.bytes(64);
            alias.scribble(near.wrapping_add(input.below(SIZE as u64)) & !63, bytes);
        }
        5 => {
            let ahead = input.next::<i16>();
            alias.store_tail(near.wrapping_add_signed(i64::from(ahead) * LINE as i64));
        }
        6 => {
            *fill = near.wrapping_add(input.below(SIZE as u64 + 64) & !63);
            alias.store_tail(*fill);
        }
        _ => alias.store_tail(input.number()),
    }
}

/// An honest reader. With any contents of the ring, it returns bytes inside the ring, advances by
/// whole records, never beyond the published position, and terminates.
pub fn reader(data: &[u8]) {
    let (region, alias) = ring();
    let mut reader = Reader::new(Arc::clone(&region));
    let input = RefCell::new(Input(data));
    let (mut head, mut fill) = (0, 0);
    for _ in 0..OPERATIONS {
        if input.borrow().done() {
            break;
        }
        if input.borrow_mut().byte() & 1 == 0 {
            spoil(&alias, &mut input.borrow_mut(), head, &mut fill);
            continue;
        }
        let mut seen = None;
        let got = reader.read(|header, payload| {
            let sum: u64 = payload.iter().copied().map(u64::from).sum();
            std::hint::black_box(sum);
            seen = Some((header.kind, payload.len()));
            assert_eq!(header.len.get() as usize, payload.len());
            // The hostile end acts while the payload is being copied.
            if input.borrow_mut().byte() & 3 == 0 {
                spoil(&alias, &mut input.borrow_mut(), head, &mut fill);
                alias.scribble(head, header_of_nothing().as_bytes());
            }
        });
        reader.release();
        let now = alias.load(HEAD);
        // At most padding up to the published position, and one record: a writer that continues to
        // write must not keep the reader in its loop.
        let most = SIZE as u64 + record(MAX_PAYLOAD as u64);
        assert!(now >= head && now - head <= most && now % LINE == 0);
        match (got, seen) {
            (Ok(Some(())), Some((kind, len))) => {
                assert!(len <= MAX_PAYLOAD && kind != PADDING);
                assert!(now - head >= record(len as u64));
            }
            (Ok(None) | Err(_), None) => {}
            other => panic!("{other:?}"),
        }
        head = now;
        let _ = reader.ready();
    }
}

/// The header that a hostile writer stores over one that the reader has already read.
fn header_of_nothing() -> FrameHeader {
    header(PADDING, u32::MAX)
}

/// An honest writer against a hostile reader, which controls only the position of its reads.
pub fn writer(data: &[u8]) {
    let (region, alias) = ring();
    let mut writer = Writer::new(Arc::clone(&region), false);
    let mut input = Input(data);
    for _ in 0..OPERATIONS {
        if input.done() {
            break;
        }
        let tail = alias.load(TAIL);
        match input.byte() % 8 {
            0 => alias.store_head(input.number()),
            1 => {
                let behind = input.below(2 * SIZE as u64) & !63;
                alias.store_head(tail.wrapping_sub(behind));
            }
            2 => {
                writer.publish();
            }
            _ => {
                let (len, willing) = (length(&mut input), input.byte() & 7 != 0);
                let mut room = None;
                let wrote = writer.write(&header(Kind::Send as u8, len), &mut |bytes| {
                    room = Some(bytes.len());
                    bytes.fill(0x5a);
                    willing
                });
                match wrote {
                    Ok(()) => assert!(len == 0 || willing && room == Some(len as usize)),
                    Err(Refused::Unfilled) => assert!(room.is_some() && !willing),
                    Err(Refused::Full | Refused::Garbage(_)) => assert_eq!(room, None),
                }
                assert!(wrote.is_err() || len as usize <= MAX_PAYLOAD);
            }
        }
        let now = alias.load(TAIL);
        assert!(now >= tail && now % LINE == 0 && now - tail <= 2 * SIZE as u64);
        // The published bytes consist of valid records, at most once around the ring.
        let mut at = tail;
        while at < now && now - tail <= SIZE as u64 {
            let header = alias.header(at);
            assert!(header.kind == PADDING || header.len.get() as usize <= MAX_PAYLOAD);
            at += record(header.len.get().into());
        }
        assert!(at == now || now - tail > SIZE as u64);
    }
}

/// Two honest ends: a written record arrives once, in order and whole, and there is room unless the
/// ring is full.
pub fn pair(data: &[u8]) {
    let (region, _alias) = ring();
    let mut writer = Writer::new(Arc::clone(&region), false);
    let mut reader = Reader::new(Arc::clone(&region));
    let mut input = Input(data);
    let mut number = 0_u32;
    // The records in flight: number, length. And the positions, as a writer of records has them.
    let mut under_way = VecDeque::new();
    let (mut written, mut taken, mut released) = (0, 0, 0_u64);
    // The end of each record in flight.
    for _ in 0..OPERATIONS {
        if input.done() {
            break;
        }
        match input.byte() % 8 {
            0..=3 => {
                let len = length(&mut input);
                let willing = input.byte() & 7 != 0;
                let frame = FrameHeader {
                    psn: number.into(),
                    ..header(Kind::Send as u8, len)
                };
                let wrote = writer.write(&frame, &mut |room| {
                    room.fill(number as u8);
                    willing
                });
                let to_end = SIZE as u64 - written % SIZE as u64;
                let need = record(len.into());
                let need = if need > to_end { need + to_end } else { need };
                let fits = written + need - released <= SIZE as u64;
                match wrote {
                    Ok(()) => {
                        assert!(fits && len as usize <= MAX_PAYLOAD);
                        written += need;
                        under_way.push_back((number, len, written));
                        number += 1;
                    }
                    Err(Refused::Full) => assert!(!fits),
                    Err(Refused::Unfilled) => assert!(fits && !willing && len > 0),
                    Err(Refused::Garbage(_)) => assert!(len as usize > MAX_PAYLOAD),
                }
            }
            4 => {
                writer.publish();
            }
            5 => {
                reader.release();
                released = taken;
            }
            _ => {
                let got = reader.read(|header, payload| {
                    let whole = payload.iter().all(|b| *b == header.psn.get() as u8);
                    assert!(whole, "bytes of another record");
                    (header.psn.get(), payload.len() as u32)
                });
                if let Some(got) = got.expect("honest") {
                    let (number, len, end) = under_way.pop_front().expect("was written");
                    assert_eq!(got, (number, len));
                    taken = end;
                    // The reader releases bytes far behind its position without a call.
                    if taken - released >= 64 * 1024 {
                        released = taken;
                    }
                }
            }
        }
    }
    writer.publish();
    let rest = std::iter::from_fn(|| reader.read(|h, p| (h.psn.get(), p.len() as u32)).unwrap());
    assert!(rest.eq(under_way.iter().map(|(number, len, _)| (*number, *len))));
}
