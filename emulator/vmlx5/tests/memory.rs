//! The NIC's memory accesses, one by one: the order of its writes, and memory that is removed.

mod rig;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use mlx5_prm::cqe::{LAST_DWORD_OFFSET, SIZE};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::Atomic;
use rig::*;
use vmlx5::*;

thread_local! {
    /// Writes (offset and length) and stores (length 0), in order.
    static LOG: RefCell<Vec<(u64, usize)>> = const { RefCell::new(Vec::new()) };
    /// The memory refuses accesses to these offsets.
    static GONE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Host memory that records accesses and can be removed in part.
struct Watched(Arc<HostMemory>);

impl Watched {
    fn view(mem: Arc<HostMemory>) -> Arc<dyn Dma> {
        Arc::new(Watched(mem))
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), DmaFault> {
        let (from, to) = GONE.get();
        if offset < to && offset + len > from {
            let limit = 0;
            return Err(DmaFault { offset, len, limit });
        }
        Ok(())
    }
}

impl Dma for Watched {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        self.check(offset, into.len() as u64)?;
        self.0.read(offset, into)
    }
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DmaFault> {
        self.check(offset, from.len() as u64)?;
        LOG.with_borrow_mut(|log| log.push((offset, from.len())));
        self.0.write(offset, from)
    }
    fn load32(&self, offset: u64) -> Result<u32, DmaFault> {
        self.check(offset, 4)?;
        self.0.load32(offset)
    }
    fn load64(&self, offset: u64) -> Result<u64, DmaFault> {
        self.check(offset, 8)?;
        self.0.load64(offset)
    }
    fn store32(&self, offset: u64, value: u32) -> Result<(), DmaFault> {
        self.check(offset, 4)?;
        LOG.with_borrow_mut(|log| log.push((offset, 0)));
        self.0.store32(offset, value)
    }
    fn swap64(&self, offset: u64, value: u64) -> Result<u64, DmaFault> {
        self.check(offset, 8)?;
        self.0.swap64(offset, value)
    }
    fn compare_swap64(&self, offset: u64, current: u64, new: u64) -> Result<u64, DmaFault> {
        self.check(offset, 8)?;
        self.0.compare_swap64(offset, current, new)
    }
    fn fetch_add64(&self, offset: u64, add: u64) -> Result<u64, DmaFault> {
        self.check(offset, 8)?;
        self.0.fetch_add64(offset, add)
    }
}

fn watched() -> EndConfig {
    EndConfig::default().changed(|c| c.view = Watched::view)
}

#[test]
fn payload_last_word_entry_and_last_dword_are_written_in_order() {
    for (at, len) in [
        (0, 1),
        (0, 8),
        (4, 4),
        (0, 9),
        (3, 8),
        (0, 64),
        (5, 1001),
        (8, 70_000),
    ] {
        let (mut world, mut a, mut b) = World::joined(EndConfig::default(), watched());
        b.post_recv(&[b.sge(at, len as u32)]);
        a.post(&send(&[a.sge(0, len as u32)]));
        LOG.take();
        world.settle();
        let log = LOG.take();
        let [payload @ .., body, last] = &log[..] else {
            panic!("{log:?}");
        };
        assert_eq!(*body, (b.recv.offset, LAST_DWORD_OFFSET));
        assert_eq!(*last, (b.recv.offset + LAST_DWORD_OFFSET as u64, 0));
        let mut place = b.data_at + at;
        for &(offset, written) in payload {
            assert_eq!(offset, place, "the order of writes: {log:?}");
            place += written as u64;
        }
        assert_eq!(place, b.data_at + at + len);
        // The last write is the aligned word that ends the message, as far as the message covers
        // it.
        let (offset, written) = payload[payload.len() - 1];
        let word = (b.data_at + at + len - 1) & !7;
        assert_eq!(offset, word.max(b.data_at + at));
        assert!(written <= 8);
    }
}

#[test]
fn every_message_writes_its_last_word_last() {
    let mut world = World::new(1);
    let (mut a, mut b) = world.pair(watched(), watched());
    let (there, big, word) = (b.remote(0), [a.sge(0, 100)], [a.sge(0, 8)]);
    b.post_recv(&[b.sge(0, 50), b.sge(200, 50)]);
    let works = [
        (
            write(there, &big),
            vec![(b.data_at, 96), (b.data_at + 96, 4)],
        ),
        (
            read(there, &big),
            vec![(a.data_at, 96), (a.data_at + 96, 4)],
        ),
        (
            atomic(there, Atomic::FetchAdd { add: 1 }, &word),
            vec![(a.data_at, 8)],
        ),
        (
            send(&big),
            vec![(b.data_at, 50), (b.data_at + 200, 48), (b.data_at + 248, 2)],
        ),
    ];
    for (wqe, expect) in works {
        a.post(&wqe);
        LOG.take();
        world.settle();
        let log = LOG.take();
        let data = a.data_at..;
        let payload: Vec<_> = log
            .into_iter()
            .filter(|w| data.contains(&w.0) && w.1 > 0)
            .collect();
        assert_eq!(payload, expect);
    }
}

/// Two ends with recorded memory, on separate NICs, before any removal.
fn pair() -> (World, End, End) {
    GONE.set((0, 0));
    World::joined(watched(), EndConfig::default())
}

fn lose(end: &End, offset: u64, len: u64) {
    GONE.set((offset, offset + len));
    assert!(offset + len <= end.mem.len());
}

#[test]
fn removed_local_payload_fails_work() {
    for op in 0..3 {
        let (mut world, mut a, mut b) = pair();
        lose(&a, a.data_at + 40_000, 1);
        let (there, list) = (b.remote(0), [a.sge(0, 50_000)]);
        b.post_recv(&[b.sge(0, 50_000)]);
        let index = match op {
            0 => a.post(&send(&list)),
            1 => a.post(&write(there, &list)),
            _ => a.post(&read(there, &list)),
        };
        world.settle();
        assert_eq!(a.send_failed(index, Syndrome::LOCAL_PROT), vendor::MEMORY);
        assert_eq!(world.state(&a), QpState::Err);
    }
}

#[test]
fn removed_remote_payload_fails_work() {
    for op in 0..4 {
        let (mut world, mut a, mut b) = pair();
        lose(&a, a.data_at + 40_000, 8);
        // Here `b` posts the work, and `a` is the target.
        let (there, list) = (a.remote(0), [b.sge(0, 50_000)]);
        let word = [b.sge(0, 8)];
        let r = a.post_recv(&[a.sge(0, 50_000)]);
        let index = match op {
            0 => b.post(&write(there, &list)),
            1 => b.post(&read(there, &list)),
            2 => b.post(&atomic(
                a.remote(40_000),
                Atomic::FetchAdd { add: 1 },
                &word,
            )),
            _ => b.post(&send(&list)),
        };
        world.settle();
        let why = [Syndrome::REMOTE_ACCESS, Syndrome::REMOTE_OP][op / 3];
        b.send_failed(index, why);
        let why = [Syndrome::WR_FLUSH, Syndrome::LOCAL_PROT][op / 3];
        a.recv_failed(r, why);
        assert_eq!(world.state(&a), QpState::Err);
    }
}

#[test]
fn removed_rings_and_records_fail_queues() {
    // The send ring: the entry cannot be read.
    let (mut world, mut a, _b) = pair();
    lose(&a, a.sq_at, 64);
    let s = a.run(&mut world, &nop());
    a.send_failed(s, Syndrome::LOCAL_QP_OP);
    // The second block of an entry.
    let (mut world, mut a, b) = pair();
    lose(&a, a.sq_at + 64, 64);
    let pieces: Vec<_> = (0..5).map(|i| a.sge(8 * i, 8)).collect();
    let s = a.run(&mut world, &write(b.remote(0), &pieces));
    a.send_failed(s, Syndrome::LOCAL_QP_OP);
    // The receive ring.
    let (mut world, mut a, mut b) = pair();
    lose(&a, a.rq_at, 64);
    let r = a.post_recv(&[]);
    let s = b.run(&mut world, &send(&[]));
    b.send_failed(s, Syndrome::REMOTE_OP);
    a.recv_failed(r, Syndrome::LOCAL_QP_OP);
    // The completion queue.
    let (mut world, mut a, _b) = pair();
    lose(&a, a.send.offset + SIZE as u64, SIZE as u64);
    a.post(&nop());
    a.run(&mut world, &nop());
    let info = world.nics[0].query_cq(a.send.cqn).unwrap();
    assert_eq!((info.failure, info.producer), (Some(CqFailure::Memory), 1));
    assert_eq!(world.state(&a), QpState::Err);
    // The doorbell page and the record: the NIC gets no further doorbell, and nothing else fails.
    for offset in [0x800, a.record] {
        let (mut world, mut a, _b) = pair();
        lose(&a, offset, 8);
        a.post(&nop());
        a.half = 0;
        world.settle();
        assert_eq!((a.send.poll(), world.state(&a)), (None, QpState::Rts));
    }
}
