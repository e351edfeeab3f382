//! A byte ring in shared memory: one writer, one reader, records of whole cache lines.
//!
//! A record is a frame header and its payload, padded to 64 bytes. It never wraps: if the rest of
//! the ring is too short, a padding record fills it. Heads and tails count bytes since the start
//! and never wrap. The other end may be a hostile process. So this end checks the other's head or
//! tail at every use, copies headers once before it checks them, and only copies payloads without
//! interpreting them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::IntoBytes;

use crate::frame::{FrameError, FrameHeader, HEADER, MAX_PAYLOAD};

/// Offset of the record bytes: the head and tail words before them have their own page.
const DATA: usize = 4096;
const LINE: usize = 64;
/// The kind of a record that only fills the end of the ring.
const PADDING: u8 = 0xff;

/// The smallest ring: it has room for two of the longest records and padding.
pub const MIN_RING: usize = 128 * 1024;
/// The largest ring.
pub const MAX_RING: usize = 64 << 20;

/// How many bytes a reader may release, and a writer may write, within one step before it publishes
/// its head or tail.
const LAG: u64 = 64 * 1024;

/// The words of a ring, each on its own line.
#[derive(Clone, Copy)]
enum At {
    /// Bytes that the reader released. Stored by the reader with release after its last read of
    /// them; loaded by the writer with acquire before it overwrites them.
    Head = 0,
    /// Bytes that the reader may read. Stored with release after the writer wrote them; loaded by
    /// the reader with acquire.
    Tail = 128,
    /// Of a scheduled link: bytes written but not delivered yet. Stored by the writer with release,
    /// loaded by the link with acquire; the link moves `Tail` up to it.
    Sent = 256,
}

/// The mapped memory of a ring.
pub struct Region {
    base: NonNull<u8>,
    size: usize,
    file: Option<OwnedFd>,
}

// SAFETY: the mapping lives as long as the region. Its words are accessed atomically, and its bytes
// only by the end that owns them according to the words.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A ring of `size` bytes within this process.
    pub fn private(size: usize) -> Result<Arc<Region>, Errno> {
        let len = DATA + size;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping, at an address the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE)
        }?;
        Region::from_map(base.cast(), size, None)
    }

    /// A ring of `size` bytes in a sealed memory file that another process can map.
    pub fn shared(size: usize) -> Result<Arc<Region>, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("vmlx5-ring", flags)?;
        rustix::fs::ftruncate(&file, (DATA + size) as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Region::map(file, size)
    }

    /// A ring of `size` bytes that another process made.
    ///
    /// # Errors
    /// The reason why the file is invalid.
    pub fn open(file: OwnedFd, size: usize) -> Result<Arc<Region>, &'static str> {
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| "its ring is no memory file")?;
        if !seals.contains(SEALS) {
            return Err("its ring file is not sealed");
        }
        let stat = rustix::fs::fstat(&file).map_err(|_| "its ring file has no size")?;
        if stat.st_size != (DATA + size) as i64 {
            return Err("its ring file has another size than announced");
        }
        Region::map(file, size).map_err(|_| "its ring file cannot be mapped")
    }

    fn map(file: OwnedFd, size: usize) -> Result<Arc<Region>, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let len = DATA + size;
        // SAFETY: a new mapping at an address the kernel chooses, of a file sealed against
        // shrinking, so that no access can fault.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &file, 0)
        }?;
        Region::from_map(base.cast(), size, Some(file))
    }

    fn from_map(base: *mut u8, size: usize, file: Option<OwnedFd>) -> Result<Arc<Region>, Errno> {
        let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
        Ok(Arc::new(Region { base, size, file }))
    }

    /// The memory file of a shared ring.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    fn word(&self, at: At) -> &AtomicU64 {
        // SAFETY: aligned, inside the page before `DATA`, only ever accessed atomically.
        unsafe { self.base.add(at as usize).cast().as_ref() }
    }

    fn place(&self, position: u64) -> NonNull<u8> {
        let offset = position as usize & (self.size - 1);
        // SAFETY: `offset < size`, and the mapping has `DATA + size` bytes.
        unsafe { self.base.add(DATA + offset) }
    }

    /// Copies the header at `position` out of the ring.
    fn header(&self, position: u64) -> FrameHeader {
        let mut copy = [0_u64; HEADER / 8];
        let from = self.place(position).cast::<u64>();
        for (i, word) in copy.iter_mut().enumerate() {
            // SAFETY: records begin on 64-byte lines, so the whole header is inside the ring.
            // Volatile: each word is read once, even if another process writes to it meanwhile.
            *word = unsafe { from.add(i).read_volatile() };
        }
        let mut header = FrameHeader::default();
        header.as_mut_bytes().copy_from_slice(copy.as_bytes());
        header
    }

    /// The record at `head`, if bytes up to `tail` are published: its header and its whole length
    /// in bytes.
    fn record(&self, head: u64, tail: u64) -> Result<(FrameHeader, u64), FrameError> {
        let header = self.header(head);
        let to_end = (self.size - (head as usize & (self.size - 1))) as u64;
        let there = (tail - head).min(to_end) - HEADER as u64;
        let len = u64::from(header.len.get());
        let limit = if header.kind == PADDING {
            there
        } else {
            there.min(MAX_PAYLOAD as u64)
        };
        if len > limit {
            return Err(FrameError::Length { len, limit });
        }
        Ok((header, HEADER as u64 + len.next_multiple_of(LINE as u64)))
    }

    /// Checks one end's word against the word of the other end.
    fn check(&self, head: u64, tail: u64) -> Result<(), FrameError> {
        let size = self.size as u64;
        let possible = tail.checked_sub(head).is_some_and(|used| used <= size);
        if !possible || (head | tail) & (LINE as u64 - 1) != 0 {
            return Err(FrameError::Indices { head, tail, size });
        }
        Ok(())
    }
}

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `from_map`'s callers with this length; ends hold an `Arc`
        // and lend no reference beyond it. A failure only leaves the mapping in place.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), DATA + self.size) };
    }
}

/// The writing end. A ring has one.
pub struct Writer {
    region: Arc<Region>,
    publish: At,
    /// Bytes written, and bytes published to the reader.
    written: u64,
    published: u64,
    /// The value of `written` at the last wake-up of the reader.
    announced: u64,
    /// The reader's word as last read.
    head: u64,
}

/// The reason why nothing was written.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// The ring has no room now.
    Full,
    /// The payload could not be read.
    Unfilled,
    /// The reader's word is impossible.
    Garbage(FrameError),
}

impl Writer {
    /// The writing end of a new ring. `scheduled`: a [`Delivery`] publishes the records.
    pub fn new(region: Arc<Region>, scheduled: bool) -> Writer {
        Writer {
            region,
            publish: if scheduled { At::Sent } else { At::Tail },
            written: 0,
            published: 0,
            announced: 0,
            head: 0,
        }
    }

    /// Writes one record; `fill` writes the `header.len` payload bytes in place.
    pub fn write(
        &mut self,
        header: &FrameHeader,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), Refused> {
        let size = self.region.size as u64;
        let len = header.len.get() as usize;
        if len > MAX_PAYLOAD {
            let limit = MAX_PAYLOAD as u64;
            let len = len as u64;
            return Err(Refused::Garbage(FrameError::Length { len, limit }));
        }
        let record = (HEADER + len.next_multiple_of(LINE)) as u64;
        let to_end = size - (self.written & (size - 1));
        let padding = if record > to_end { to_end } else { 0 };
        if self.written + padding + record - self.head > size {
            let head = self.region.word(At::Head).load(Ordering::Acquire);
            let checked = self.region.check(head, self.written);
            checked.map_err(Refused::Garbage)?;
            self.head = head;
            if self.written + padding + record - self.head > size {
                return Err(Refused::Full);
            }
        }
        let at = self.region.place(self.written + padding);
        if len > 0 {
            // SAFETY: `len` bytes after the header are before the ring's end (`padding` ensures
            // this). The reader released them (the check against `head`), so this end owns them
            // until it publishes them.
            let room = unsafe { std::slice::from_raw_parts_mut(at.add(HEADER).as_ptr(), len) };
            if !fill(room) {
                return Err(Refused::Unfilled);
            }
        }
        if padding > 0 {
            let filler = FrameHeader {
                len: ((padding as usize - HEADER) as u32).into(),
                kind: PADDING,
                ..FrameHeader::default()
            };
            self.put(self.region.place(self.written), &filler);
        }
        self.put(at, header);
        self.written += padding + record;
        if self.written - self.published >= LAG {
            self.show();
        }
        Ok(())
    }

    fn put(&self, at: NonNull<u8>, header: &FrameHeader) {
        // SAFETY: a header's bytes at a line's start, released by the reader, so this end owns them
        // until it publishes them.
        unsafe { at.copy_from_nonoverlapping(NonNull::from(header).cast(), HEADER) };
    }

    fn show(&mut self) {
        if self.published != self.written {
            let word = self.region.word(self.publish);
            word.store(self.written, Ordering::Release);
            self.published = self.written;
        }
    }

    /// Publishes everything written. Returns true if that is more than after the last call, so that
    /// the caller should wake the reader.
    pub fn publish(&mut self) -> bool {
        self.show();
        std::mem::replace(&mut self.announced, self.written) != self.written
    }
}

/// The reading end. A ring has one.
pub struct Reader {
    region: Arc<Region>,
    /// Bytes taken, and bytes released to the writer.
    taken: u64,
    released: u64,
    /// The value of `taken` at the last wake-up of the writer.
    announced: u64,
    /// The writer's word as last read.
    tail: u64,
}

impl Reader {
    /// The reading end of a new ring.
    pub fn new(region: Arc<Region>) -> Reader {
        Reader {
            region,
            taken: 0,
            released: 0,
            announced: 0,
            tail: 0,
        }
    }

    /// Returns true if the ring contains a record.
    pub fn ready(&self) -> bool {
        self.tail != self.taken || self.region.word(At::Tail).load(Ordering::Acquire) != self.taken
    }

    /// Passes the next record to `take`. Returns `None` if the ring is empty.
    pub fn read<R>(
        &mut self,
        take: impl FnOnce(&FrameHeader, &[u8]) -> R,
    ) -> Result<Option<R>, FrameError> {
        let mut padded = false;
        loop {
            if self.tail == self.taken {
                let tail = self.region.word(At::Tail).load(Ordering::Acquire);
                self.region.check(self.taken, tail)?;
                self.tail = tail;
                if tail == self.taken {
                    return Ok(None);
                }
            }
            let (header, record) = self.region.record(self.taken, self.tail)?;
            if header.kind == PADDING {
                // A record follows. A writer that could write paddings in a row could hold the
                // reader here without limit.
                if std::mem::replace(&mut padded, true) {
                    return Err(FrameError::Kind(PADDING));
                }
                self.taken += record;
                continue;
            }
            let len = header.len.get() as usize;
            let at = self.region.place(self.taken);
            // SAFETY: `record` found the payload inside the ring and below the published tail. An
            // honest writer leaves it alone until the reader releases it. A hostile writer can
            // change the bytes during the copy; they are only copied to memory that this writer may
            // write.
            let payload = unsafe { std::slice::from_raw_parts(at.add(HEADER).as_ptr(), len) };
            let result = take(&header, payload);
            self.taken += record;
            if self.taken - self.released >= LAG {
                self.give();
            }
            return Ok(Some(result));
        }
    }

    fn give(&mut self) {
        if self.released != self.taken {
            let word = self.region.word(At::Head);
            word.store(self.taken, Ordering::Release);
            self.released = self.taken;
        }
    }

    /// Releases what was taken to the writer. Returns true if that is more than after the last
    /// call, so that the caller should wake the writer.
    pub fn release(&mut self) -> bool {
        self.give();
        std::mem::replace(&mut self.announced, self.taken) != self.taken
    }
}

/// Delivers the records of a scheduled ring to the reader, one by one.
pub struct Delivery {
    region: Arc<Region>,
    delivered: u64,
}

impl Delivery {
    /// The delivery of a new ring within this process.
    pub fn new(region: Arc<Region>) -> Delivery {
        Delivery {
            region,
            delivered: 0,
        }
    }

    /// Returns true if a record waits for delivery.
    pub fn ready(&self) -> bool {
        self.region.word(At::Sent).load(Ordering::Acquire) != self.delivered
    }

    /// Delivers one record and the padding before it. Returns false if none waits.
    pub fn deliver(&mut self) -> bool {
        let sent = self.region.word(At::Sent).load(Ordering::Acquire);
        while self.delivered != sent {
            let Ok((header, record)) = self.region.record(self.delivered, sent) else {
                return false;
            };
            self.delivered += record;
            self.region
                .word(At::Tail)
                .store(self.delivered, Ordering::Release);
            if header.kind != PADDING {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
pub(crate) mod tests;
