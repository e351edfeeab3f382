//! A queue pair on a connection that takes no bytes: what waits for the peer is bounded.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::provider::tcp::poller::Poller;

/// A connection that has these bytes at each read, and takes bytes once it is open.
struct Endless {
    bytes: Vec<u8>,
    /// Relaxed: only the value counts.
    open: Arc<AtomicBool>,
}

impl Wire for Endless {
    unsafe fn read(&mut self, into: &[libc::iovec]) -> io::Result<usize> {
        let room = into[0].iov_len;
        let bytes = &self.bytes;
        assert!(into.len() == 1 && bytes.len() <= room);
        // SAFETY: the caller's promise; the bytes fit.
        unsafe { std::ptr::copy(bytes.as_ptr(), into[0].iov_base.cast(), bytes.len()) };
        Ok(bytes.len())
    }

    unsafe fn write(&mut self, from: &[libc::iovec]) -> io::Result<usize> {
        match self.open.load(Ordering::Relaxed) {
            true => Ok(from.iter().map(|part| part.iov_len).sum()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn may_read(&self) -> bool {
        true
    }

    fn want_room(&mut self, _: bool) {}

    fn close(self: Box<Self>) {}
}

/// A queue pair whose peer sends frames of this kind.
fn flooded(kind: Kind) -> (TcpQueues, Arc<AtomicBool>) {
    reading(Head::new(kind, 0).encode().repeat(40))
}

/// A queue pair whose peer sends these bytes, and what lets its own pass.
fn reading(bytes: Vec<u8>) -> (TcpQueues, Arc<AtomicBool>) {
    let shared = Arc::new(Shared {
        registrations: Registrations::default(),
        chunks: None,
        poller: Poller::new().unwrap(),
        node: 1,
        key: [0; 32],
        encrypted: false,
        atomics: Default::default(),
        events: Events::default(),
    });
    let ring = MrKeys { lkey: 0, rkey: 0 };
    let mut queues = TcpQueues::new(&shared, PdId(1), Access::ALL, ring, None);
    let open = Arc::new(AtomicBool::new(false));
    let wire = Endless {
        bytes,
        open: Arc::clone(&open),
    };
    let peer = End {
        qpn: 1,
        ..End::default()
    };
    queues.connect_to_itself([End::default(), peer], Box::new(wire));
    (queues, open)
}

#[test]
fn counts_that_a_peer_does_not_read_are_merged() {
    let (mut queues, open) = flooded(Kind::Write);
    for _ in 0..100 {
        assert!(queues.progress());
        queues.flush();
        queues.arm();
        assert_eq!(queues.output.left(), HEAD as u64);
    }
    open.store(true, Ordering::Relaxed);
    assert_eq!(queues.executed, 100 * 40);
    queues.arm();
    assert_eq!((queues.acked, queues.output.left()), (queues.executed, 0));
}

#[test]
fn a_peer_that_reads_no_answers_ends_its_connection() {
    let (mut queues, _) = flooded(Kind::Read);
    assert!(queues.progress());
    assert!(matches!(queues.link, Link::Broken));
    assert_eq!(queues.executed, FETCHES as u64);
}

#[test]
fn a_refusal_follows_the_answers_before_it_and_ends_the_connection() {
    let [answered, refused, behind] = [(Kind::Read, 0), (Kind::Write, 8), (Kind::FetchAdd, 8)]
        .map(|(kind, len)| Head::new(kind, len).encode());
    let (mut queues, open) =
        reading([&answered[..], &refused, &[1; 8], &behind, &[1; 16]].concat());
    for _ in 0..3 {
        assert!(queues.progress());
        queues.flush();
        queues.arm();
        assert!(!queues.has_failed());
        assert_eq!(queues.output.left(), 2 * HEAD as u64);
    }
    open.store(true, Ordering::Relaxed);
    assert!(queues.flush());
    assert!(matches!(queues.link, Link::Broken) && queues.has_failed());
    assert_eq!(queues.executed, 1);
    assert!(!queues.flush() && !queues.progress());
}
