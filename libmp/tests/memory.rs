//! Memory that the application hands over: it is freed once no handle, registration or stream can
//! reach it; it is not returned earlier; an address without memory is refused.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::gate::Gate;
use common::{LIMIT, pattern, ranks};
use gdsync::gpu::{DevicePtr, MemoryKind, Region, Stream};
use gdsync::rdma::Access;
use mp::{Context, Kind, Memory};

const SHORT: Duration = Duration::from_millis(50);

/// An allocation size that is unique in this process: one for each test and buffer.
const SIZE: usize = 1_234_567;
const SIZES: usize = 8;

/// The number of buffers of each size that are allocated. Relaxed: only the value counts.
static LIVE: [AtomicI64; SIZES] = [const { AtomicI64::new(0) }; SIZES];

/// Counts the buffers that the tests hand over.
struct Watched;

fn counted(layout: Layout, change: i64) {
    if let Some(live) = LIVE.get(layout.size().wrapping_sub(SIZE)) {
        live.fetch_add(change, Relaxed);
    }
}

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted(layout, 1);
        // SAFETY: the caller's promise is the one that the allocator needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        counted(layout, -1);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static HEAP: Watched = Watched;

/// The contents of the buffers of `seed`, in an allocation of another size.
fn bytes(seed: usize) -> Vec<u8> {
    pattern(0, seed, SIZE + SIZES)
}

/// A buffer of the size numbered `n`, handed over.
fn adopted(ctx: &Context, n: usize, seed: usize) -> Memory {
    let mut buffer = Vec::with_capacity(SIZE + n);
    buffer.extend_from_slice(&bytes(seed)[..SIZE + n]);
    assert_eq!(LIVE[n].load(Relaxed), 1);
    ctx.adopt_vec(buffer).unwrap()
}

fn lives(n: usize) -> bool {
    LIVE[n].load(Relaxed) == 1
}

/// Waits until the buffer is freed; the time after its last use is bounded.
fn freed(n: usize) {
    let deadline = Instant::now() + LIMIT;
    while LIVE[n].load(Relaxed) != 0 {
        assert!(Instant::now() < deadline, "buffer {n} is never freed");
        std::thread::yield_now();
    }
}

/// A stream that waits for a gate.
fn held(ctx: &Context) -> (Stream, Gate) {
    let (stream, gate) = (ctx.gpu().stream().unwrap(), Gate::new(ctx.gpu()));
    gate.hold(&stream);
    (stream, gate)
}

fn not_given_back(memory: Memory, why: &str) -> Memory {
    let (memory, e) = memory.into_vec(SHORT).expect_err(why);
    assert_eq!(e.kind(), Kind::Timeout, "{e}");
    memory
}

fn copy(stream: &Stream, to: &Region, from: &Region, len: usize) {
    let (to, from) = (to.span(0, len).unwrap(), from.span(0, len).unwrap());
    stream.copy(&to, &from).unwrap();
}

fn read(region: &Region, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_region_keeps_the_buffer_behind_it() {
    ranks(1, |ctx| {
        let memory = adopted(&ctx, 0, 3);
        let region = memory.region().clone();
        drop(memory);
        assert!(lives(0), "freed while a region reaches it");
        assert_eq!(read(&region, 5000), bytes(3)[..5000]);
        region.write(0, &[7; 64]).unwrap();
        drop(region);
        freed(0);
    });
}

#[test]
fn a_registration_keeps_the_buffer_behind_it() {
    ranks(1, |ctx| {
        let memory = adopted(&ctx, 1, 4);
        let pd = ctx.device().alloc_pd().unwrap();
        let mr = pd.register(memory.region(), Access::ALL).unwrap();
        drop(memory);
        assert!(lives(1), "freed while a peer may write to it");
        assert_eq!(read(mr.region(), 5000), bytes(4)[..5000]);
        drop(mr);
        freed(1);
    });
}

#[test]
fn copies_behind_a_wait_keep_the_buffers_that_they_name() {
    ranks(1, |ctx| {
        let (stream, gate) = held(&ctx);
        let (from, to) = (adopted(&ctx, 2, 5), adopted(&ctx, 3, 6));
        let other = ctx.alloc(MemoryKind::Device, 4096).unwrap();
        copy(&stream, other.region(), from.region(), 4096);
        copy(&stream, to.region(), from.region(), SIZE);
        drop((from, to));
        std::thread::sleep(SHORT);
        assert!(lives(2) && lives(3), "freed before the stream's copies");
        gate.open();
        assert!(stream.synchronize(LIMIT).unwrap());
        assert_eq!(read(other.region(), 4096), bytes(5)[..4096]);
        freed(2);
        freed(3);
    });
}

#[test]
fn buffer_that_a_stream_still_writes_is_not_returned() {
    ranks(1, |ctx| {
        let (stream, gate) = held(&ctx);
        let memory = adopted(&ctx, 4, 7);
        let from = ctx.alloc(MemoryKind::Device, 4096).unwrap();
        from.write(0, &[9; 4096]).unwrap();
        copy(&stream, memory.region(), from.region(), 4096);
        let memory = not_given_back(memory, "the stream has yet to write");
        gate.open();
        let buffer = memory.into_vec(LIMIT).unwrap();
        assert_eq!(buffer[..4096], [9; 4096]);
        assert_eq!(buffer[4096..], bytes(7)[4096..SIZE + 4]);
        assert!(lives(4), "it is the buffer itself");
        drop(buffer);
        freed(4);
    });
}

#[test]
fn buffer_is_returned_while_streams_are_never_idle() {
    ranks(1, |ctx| {
        let (stream, gate) = held(&ctx);
        let memory = adopted(&ctx, 5, 8);
        let other = ctx.alloc(MemoryKind::Device, 4096).unwrap();
        copy(&stream, other.region(), memory.region(), 4096);
        // Another stream already waits when this stream becomes idle.
        let ctx = &ctx;
        std::thread::scope(|s| {
            let busy = s.spawn(move || {
                std::thread::sleep(SHORT);
                let next = held(ctx);
                gate.open();
                next
            });
            memory.into_vec(LIMIT).unwrap();
            let (stream, gate) = busy.join().unwrap();
            assert!(!stream.is_idle().unwrap());
            gate.open();
        });
    });
}

#[test]
fn buffer_that_a_handle_reaches_is_not_returned() {
    ranks(1, |ctx| {
        let memory = adopted(&ctx, 6, 9);
        let pd = ctx.device().alloc_pd().unwrap();
        let region = memory.region().clone();
        let mr = pd.register(&region, Access::ALL).unwrap();
        let memory = not_given_back(memory, "a registration is held");
        drop(mr);
        let memory = not_given_back(memory, "a region is held");
        drop(region);
        let clone = memory.clone();
        let memory = not_given_back(memory, "another handle is held");
        drop(clone);
        memory.into_vec(Duration::ZERO).unwrap();
        let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
        let (_, e) = memory.into_vec(LIMIT).expect_err("made of no buffer");
        assert_eq!(e.kind(), Kind::Invalid, "{e}");
    });
}

#[test]
fn unmapped_addresses_are_refused() {
    ranks(1, |ctx| {
        // A page between two others, unmapped.
        let at = hole();
        for (at, len) in [
            (at + PAGE, PAGE),
            (at, 3 * PAGE),
            (at, PAGE + 1),
            (at + 2 * PAGE - 1, 2),
            (at, 32 << 40),
            (1 << 20, 64),
            (usize::MAX - 63, 64),
            (usize::MAX - 63, 128),
        ] {
            // SAFETY: the call is refused, because there is no memory.
            let slice = unsafe { ctx.slice_at(DevicePtr(at as u64), len) };
            let e = slice.map(|_| ()).expect_err("no memory is there");
            assert_eq!(e.kind(), Kind::Invalid, "{len} bytes at {at:#x}: {e}");
        }
        // SAFETY: the pages are never unmapped, and no other code uses them.
        unsafe { ctx.slice_at(DevicePtr(at as u64), PAGE) }.unwrap();
        // SAFETY: as above.
        unsafe { ctx.slice_at(DevicePtr((at + 2 * PAGE) as u64), PAGE) }.unwrap();
    });
}

#[test]
fn allocation_beyond_the_available_memory_is_refused() {
    ranks(1, |ctx| {
        for kind in [MemoryKind::Device, MemoryKind::Pinned] {
            for len in [32 << 40, usize::MAX - PAGE, usize::MAX] {
                let e = ctx.alloc(kind, len).expect_err("there is not so much");
                let wanted = format!("{len} bytes");
                assert!(e.to_string().contains(&wanted), "{e}");
            }
            ctx.alloc(kind, 64).unwrap();
        }
    });
}

const PAGE: usize = 4096;

/// Three pages; the one in the middle is not mapped.
fn hole() -> usize {
    // Far below the addresses that the system chooses, so that no other thread's mapping gets the hole.
    let far = std::ptr::without_provenance_mut(1 << 45);
    // SAFETY: new pages, one of which is unmapped at once; the address is a proposal.
    unsafe {
        let (prot, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let at = libc::mmap(far, 3 * PAGE, prot, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::munmap(at.add(PAGE), PAGE), 0);
        at as usize
    }
}
