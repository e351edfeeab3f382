//! Staging memory: the first destination of a long message for scattered memory, cached for later
//! messages.
//!
//! Pinning and registering memory takes longer than most messages, so a program in a steady state
//! allocates none. The cache is bounded in bytes and in pieces; the least recently used memory is
//! released first.

use std::collections::VecDeque;
use std::sync::Arc;

use super::engine::Engine;
use crate::error::Result;
use crate::path::Rights;
use crate::region::Memory;

/// Maximum number of cached bytes.
const IDLE_BYTES: usize = 64 << 20;
/// Maximum number of cached pieces.
const IDLE: usize = 256;

/// The allocation size for a message of `len` bytes: at most a page or a quarter more, so that
/// messages of about the same length use the same memory. Memory that is too large for the cache
/// has the exact size.
fn class(len: usize) -> usize {
    let step = (len.next_power_of_two() / 8).max(4096);
    match len.next_multiple_of(step) {
        class if class <= IDLE_BYTES => class,
        _ => len,
    }
}

/// Cached memory that no message uses.
#[derive(Default)]
pub(crate) struct Staging {
    /// The least recently used first.
    idle: VecDeque<Memory>,
    bytes: usize,
}

impl Staging {
    fn take(&mut self, len: usize) -> Option<Memory> {
        let class = class(len);
        let at = self.idle.iter().rposition(|memory| memory.len() == class)?;
        let memory = self.idle.remove(at)?;
        self.bytes -= memory.len();
        Some(memory)
    }

    /// Caches memory that no peer writes to any more. Memory that is evicted is moved to `trash`, and so is memory
    /// that a kernel may write to.
    pub fn keep(&mut self, memory: Memory, trash: &mut Vec<Memory>) {
        if memory.stray().is_some() {
            return trash.push(memory);
        }
        self.bytes += memory.len();
        self.idle.push_back(memory);
        while self.bytes > IDLE_BYTES || self.idle.len() > IDLE {
            let Some(oldest) = self.idle.pop_front() else {
                break;
            };
            self.bytes -= oldest.len();
            trash.push(oldest);
        }
    }
}

impl Engine {
    /// Memory for a message of `len` bytes, cached or new. It is allocated without the lock.
    ///
    /// # Errors
    /// As [`gdsync::Gpu::alloc`] and [`gdsync::rdma::Pd::register`].
    pub fn stage(&self, len: usize) -> Result<Memory> {
        let kept = self.lock().staging.take(len);
        if let Some(memory) = kept {
            return Ok(memory);
        }
        Ok(Memory::new(self.paths.pinned(class(len), Rights::Write)?))
    }

    /// Returns memory to the cache that was named to no peer and that no request uses.
    #[cold]
    pub fn unstage(&self, memory: Memory) {
        if Arc::strong_count(&memory.0) == 1 {
            let mut state = self.lock();
            let state = &mut *state;
            state.staging.keep(memory, &mut state.trash.memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gdsync::Gpu;
    use gdsync::gpu::MemoryKind;
    use gdsync::rdma::Device;
    use std::sync::Barrier;

    use super::*;
    use crate::bootstrap::Local;
    use crate::path::Paths;
    use crate::{Context, Full, Kind, Slice};

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn size_class_adds_a_quarter_at_most() {
        for len in (1..200_000).chain([1 << 20, (1 << 20) + 1, 60 << 20, 64 << 20]) {
            let class = class(len);
            assert!(class >= len && class <= IDLE_BYTES);
            assert!(class - len < (len / 4 + 1).max(4096), "{len}: {class}");
            assert_eq!(super::class(class), class);
        }
        assert_eq!(class((64 << 20) + 1), (64 << 20) + 1);
    }

    #[test]
    fn cached_memory_is_bounded() {
        let gpu = Gpu::soft().unwrap();
        let paths = Paths::for_test(&Device::emulated(&gpu).unwrap());
        let make = |len: usize| Memory::new(paths.pinned(len, Rights::Write).unwrap());
        let key = |memory: &Memory| memory.keys().id();
        let (mut staging, mut trash) = (Staging::default(), Vec::new());
        assert!(staging.take(5000).is_none());
        let (a, b) = (make(8192), make(8192));
        let (first, second) = (key(&a), key(&b));
        staging.keep(a, &mut trash);
        staging.keep(b, &mut trash);
        assert!(staging.take(9000).is_none());
        assert_eq!(staging.take(5000).as_ref().map(key), Some(second));
        // The oldest memory is evicted.
        for _ in 0..IDLE {
            staging.keep(make(4096), &mut trash);
        }
        assert_eq!(trash.iter().map(key).collect::<Vec<_>>(), [first]);
        assert!(staging.take(5000).is_none());
        staging.keep(make(IDLE_BYTES), &mut trash);
        assert_eq!((staging.idle.len(), staging.bytes), (1, IDLE_BYTES));
        // Memory larger than the whole cache is not kept.
        staging.keep(make(IDLE_BYTES + 1), &mut trash);
        assert_eq!((staging.idle.len(), staging.bytes), (0, 0));
    }

    /// Returned contexts live until both ranks are done.
    fn ranks(body: fn(Context) -> Option<Context>) {
        let ranks: Vec<_> = Local::ranks(2)
            .into_iter()
            .map(|job| {
                let gpu = Gpu::soft().unwrap();
                let ctx = Context::builder().bootstrap(job).gpu(&gpu);
                let ctx = ctx.depth(2).full(Full::Fail).build().unwrap();
                std::thread::spawn(move || body(ctx))
            })
            .collect();
        let contexts: Vec<_> = ranks.into_iter().map(|rank| rank.join()).collect();
        assert!(contexts.iter().all(Result::is_ok));
    }

    fn idle(ctx: &Context) -> Vec<u32> {
        let state = ctx.engine().lock();
        let mut keys: Vec<u32> = state.staging.idle.iter().map(|m| m.keys().id()).collect();
        keys.sort_unstable();
        keys
    }

    /// Slices for a message of `len` bytes in three pieces.
    fn pieces(memory: &Memory, len: usize) -> [Slice; 3] {
        let slice = |from, len| memory.slice(from, len).unwrap();
        [slice(0, 1), slice(len, len - 10), slice(2 * len, 9)]
    }

    #[test]
    fn steady_state_allocates_no_staging_memory() {
        ranks(|ctx| {
            let peer = 1 - ctx.rank();
            let stream = ctx.gpu().stream().unwrap();
            let memory = ctx.alloc(MemoryKind::Pinned, 1 << 18).unwrap();
            let mut kept = Vec::new();
            for round in 0..40 {
                // Lengths of one size class: by the CPU, by a stream, and longer than the receive.
                let len = 50_000 + 16 * round;
                let data = memory.slice(200_000, len).unwrap();
                let into = pieces(&memory, len);
                let bytes: Vec<u8> = (0..len).map(|i| (i + round) as u8).collect();
                memory.write(200_000, &bytes).unwrap();
                let a = ctx.irecvv(peer, 1, &into).unwrap();
                let b = ctx.irecvv_on(&stream, peer, 2, &into).unwrap();
                b.wait_on(&stream).unwrap();
                let sends = [
                    ctx.isend(peer, 2, &data).unwrap(),
                    ctx.isend(peer, 1, &memory.slice(0, 60_000).unwrap())
                        .unwrap(),
                ];
                assert_eq!(b.wait(LIMIT).unwrap().len, len as u64);
                assert_eq!(a.wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
                let mut got = vec![0; len - 10];
                memory.read(len, &mut got).unwrap();
                assert!(got == bytes[1..len - 9], "round {round}");
                assert_eq!(sends[0].wait(LIMIT).unwrap().len, len as u64);
                assert_eq!(sends[1].wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
                match round {
                    0 => kept = idle(&ctx),
                    _ => assert_eq!(idle(&ctx), kept, "round {round}"),
                }
            }
            assert_eq!(kept.len(), 2);
            Some(ctx)
        });
    }

    /// Waits until the background work has ended all requests.
    fn retire(ctx: &Context) {
        let host = ctx.gpu().host();
        let ended = host.wait_until(Some(host.now() + LIMIT), &mut || {
            ctx.progress();
            ctx.engine().lock().requests.iter().next().is_none()
        });
        assert!(ended);
    }

    #[test]
    fn steady_state_of_strided_messages_allocates_no_staging_memory() {
        ranks(|ctx| {
            let peer = 1 - ctx.rank();
            let stream = ctx.gpu().stream().unwrap();
            let memory = ctx.alloc(MemoryKind::Device, 1 << 20).unwrap();
            let pieces = |at| memory.strided(at, 16, 64, 5000).unwrap();
            let (out, into) = (pieces(0), pieces(32));
            let mut kept = Vec::new();
            for round in 0..20 {
                let (send, recv) = ((peer, 1, &out), (peer, 1, &into));
                ctx.sendrecv_on(&stream, send, recv).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                retire(&ctx);
                ctx.sendrecv((peer, 2, &out), (peer, 2, &into), LIMIT)
                    .unwrap();
                retire(&ctx);
                match round {
                    0 => kept = idle(&ctx),
                    _ => assert_eq!(idle(&ctx), kept, "round {round}"),
                }
            }
            assert_eq!(kept.len(), 2);
            Some(ctx)
        });
    }

    #[test]
    fn memory_that_a_lost_peer_may_write_is_not_reused() {
        static POSTED: Barrier = Barrier::new(2);
        ranks(|ctx| {
            let peer = 1 - ctx.rank();
            let memory = ctx.alloc(MemoryKind::Pinned, 1 << 18).unwrap();
            let into = pieces(&memory, 50_000);
            let recv = ctx.irecvv(peer, 1, &into).unwrap();
            let staging = {
                let state = ctx.engine().lock();
                let (_, entry) = state.requests.iter().next().unwrap();
                Arc::downgrade(&entry.receive().unwrap().staging.as_ref().unwrap().0)
            };
            // Both ranks check before either leaves.
            POSTED.wait();
            if ctx.rank() == 1 {
                // The rank leaves without closing its context.
                return None;
            }
            let e = recv.wait(LIMIT).unwrap_err();
            assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e}");
            assert!(idle(&ctx).is_empty());
            // The memory is dropped after the lock is released, here or in the background work.
            let host = ctx.gpu().host();
            let gone = || staging.upgrade().is_none();
            assert!(host.wait_until(Some(host.now() + LIMIT), &mut || gone()));
            None
        });
    }

    #[test]
    fn receive_without_room_returns_its_staging_memory() {
        ranks(|ctx| {
            let peer = 1 - ctx.rank();
            let memory = ctx.alloc(MemoryKind::Pinned, 1 << 18).unwrap();
            let into = pieces(&memory, 50_000);
            let posted: Vec<_> = (0..2)
                .map(|_| ctx.irecvv(peer, 1, &into).unwrap())
                .collect();
            assert!(idle(&ctx).is_empty());
            let refused = || ctx.irecvv(peer, 1, &into).unwrap_err().kind();
            assert_eq!(refused(), Kind::QueueFull);
            let kept = idle(&ctx);
            assert_eq!(kept.len(), 1);
            for _ in 0..10 {
                assert_eq!(refused(), Kind::QueueFull);
                assert_eq!(idle(&ctx), kept);
            }
            drop(posted);
            Some(ctx)
        });
    }
}
