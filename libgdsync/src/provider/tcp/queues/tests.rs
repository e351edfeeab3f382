//! A queue pair and a peer by hand: what waits for the peer is bounded, and the rules that a peer by
//! sockets cannot test.

use super::*;
use crate::gpu::{Gpu, MemoryKind, Region};
use crate::provider::tcp::frame::HEAD;
use crate::provider::tcp::poller::Poller;
use crate::provider::tcp::queues::requests::FETCHES;
use crate::provider::tcp::wire::Wire;

/// The peer's side of a connection.
#[derive(Default)]
struct Script {
    /// Bytes that it sends.
    says: Vec<u8>,
    /// Whether it sends them again and again.
    repeats: bool,
    /// Bytes that it has got.
    heard: Vec<u8>,
    /// Whether it takes no bytes.
    full: bool,
    /// Whether the connection was reset behind what it says.
    reset: bool,
}

type Peer = Arc<gds_step::Mutex<Script>>;

struct ByHand(Peer);

impl Wire for ByHand {
    unsafe fn read(&mut self, into: &[libc::iovec]) -> io::Result<usize> {
        let mut script = self.0.lock();
        let room = into[0].iov_len;
        assert!(script.says.len() <= room);
        if script.says.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = script.says.len();
        // SAFETY: the caller's promise; the bytes fit.
        unsafe { std::ptr::copy(script.says.as_ptr(), into[0].iov_base.cast(), len) };
        if !script.repeats {
            script.says.clear();
        }
        Ok(len)
    }

    unsafe fn write(&mut self, from: &[libc::iovec]) -> io::Result<usize> {
        let mut script = self.0.lock();
        if script.reset {
            return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
        }
        if script.full {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let before = script.heard.len();
        for part in from {
            // SAFETY: the caller's promise.
            let part = unsafe { std::slice::from_raw_parts(part.iov_base.cast(), part.iov_len) };
            script.heard.extend_from_slice(part);
        }
        Ok(script.heard.len() - before)
    }

    fn may_read(&mut self) -> bool {
        true
    }

    fn want_room(&mut self, _: bool) {}

    fn close(self: Box<Self>) {}
}

/// A queue pair and its peer. Before the peer's first frame the queue pair writes nothing.
fn pair(access: Access, limit: Option<Duration>) -> (TcpQueues, Peer) {
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
    let mut queues = TcpQueues::new(&shared, PdId(1), access, ring, limit);
    let peer = Peer::default();
    queues.link = Link::Open(Box::new(ByHand(Arc::clone(&peer))));
    queues.ends[1].qpn = 1;
    (queues, peer)
}

/// As [`pair`], and the peer has announced `receives`.
fn confirmed(receives: u16) -> (TcpQueues, Peer) {
    let (mut queues, peer) = pair(Access::ALL, None);
    let head = Head::new(Kind::Ack, 0);
    say(&mut queues, &peer, &[Head { receives, ..head }]);
    (queues, peer)
}

/// The peer sends these frames, whose payloads are of zeros.
fn say(queues: &mut TcpQueues, peer: &Peer, frames: &[Head]) {
    for head in frames {
        let mut script = peer.lock();
        script.says.extend(head.encode());
        let end = script.says.len() + head.kind.payload(head.len) as usize;
        script.says.resize(end, 0);
    }
    queues.progress();
    queues.flush();
}

/// The frames that the peer has got since the last call, which have no payloads.
fn heard(peer: &Peer) -> Vec<Head> {
    let bytes = std::mem::take(&mut peer.lock().heard);
    let heads = bytes.as_chunks::<HEAD>().0.iter();
    heads.map(|bytes| Head::decode(bytes).unwrap()).collect()
}

fn kinds(peer: &Peer) -> Vec<Kind> {
    heard(peer).iter().map(|head| head.kind).collect()
}

/// Posts a request without data, whose number is `wr_id`.
fn post(queues: &mut TcpQueues, wr_id: u64, opcode: c_int, fenced: bool) -> c_int {
    // SAFETY: numbers, and pointers that may be null.
    let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
    (wr.wr_id, wr.opcode) = (wr_id, opcode);
    wr.send_flags = if fenced { IBV_SEND_FENCE } else { 0 };
    let refused = queues.post_send(&mut wr);
    queues.flush();
    refused
}

fn post_receive(queues: &mut TcpQueues, wr_id: u64, sges: &mut [ibv_sge]) {
    // SAFETY: numbers, and pointers that may be null.
    let mut wr: ibv_recv_wr = unsafe { std::mem::zeroed() };
    (wr.wr_id, wr.sg_list, wr.num_sge) = (wr_id, sges.as_mut_ptr(), sges.len() as c_int);
    assert_eq!(queues.post_recv(&mut wr), 0);
}

/// Number and status of the completions since the last call.
fn ends(queues: &mut TcpQueues) -> Vec<(u64, c_int)> {
    let done = queues.done.drain(..);
    done.map(|wc| (wc.wr_id, wc.status)).collect()
}

fn ack(ack: u64) -> Head {
    Head {
        ack,
        ..Head::new(Kind::Ack, 0)
    }
}

fn response(ack: u64) -> Head {
    Head {
        ack,
        ..Head::new(Kind::Response, 0)
    }
}

/// Number of the peer's requests that are executed.
fn executed(queues: &mut TcpQueues) -> u64 {
    queues.counts.stamp(Head::new(Kind::Ack, 0)).ack
}

#[test]
fn counts_that_a_peer_does_not_read_are_merged() {
    let (mut queues, peer) = pair(Access::ALL, None);
    (peer.lock().full, peer.lock().repeats) = (true, true);
    peer.lock().says = Head::new(Kind::Write, 0).encode().repeat(40);
    for _ in 0..100 {
        assert!(queues.progress());
        queues.flush();
        queues.arm();
        assert_eq!(queues.output.left(), HEAD as u64);
    }
    peer.lock().full = false;
    queues.arm();
    let counts: Vec<u64> = heard(&peer).iter().map(|head| head.ack).collect();
    assert_eq!((counts.len(), counts.last()), (2, Some(&4000)));
}

#[test]
fn one_answer_too_many_ends_the_connection() {
    let (mut queues, peer) = pair(Access::ALL, None);
    peer.lock().full = true;
    say(&mut queues, &peer, &[Head::new(Kind::Read, 0); FETCHES + 1]);
    assert!(matches!(queues.link, Link::Broken));
    assert_eq!(executed(&mut queues), FETCHES as u64);
}

#[test]
fn a_refusal_follows_the_answers_before_it_and_ends_the_connection() {
    let (mut queues, peer) = pair(Access::ALL, None);
    peer.lock().full = true;
    let requests = [(Kind::Read, 0), (Kind::Write, 8), (Kind::FetchAdd, 8)];
    say(
        &mut queues,
        &peer,
        &requests.map(|(kind, len)| Head::new(kind, len)),
    );
    for _ in 0..3 {
        queues.progress();
        queues.flush();
        queues.arm();
        assert!(!queues.has_failed());
        assert_eq!(queues.output.left(), 2 * HEAD as u64);
    }
    peer.lock().full = false;
    assert!(queues.flush());
    assert!(matches!(queues.link, Link::Broken) && queues.has_failed());
    assert_eq!(kinds(&peer), [Kind::Response, Kind::Refuse]);
    assert_eq!(executed(&mut queues), 1);
    assert!(!queues.flush() && !queues.progress());
}

#[test]
fn behind_a_refusal_this_side_sends_nothing_and_takes_answers() {
    let (mut queues, peer) = confirmed(1);
    assert_eq!(post(&mut queues, 1, IBV_WR_RDMA_READ, false), 0);
    peer.lock().full = true;
    say(&mut queues, &peer, &[Head::new(Kind::Write, 8)]);
    assert_eq!(post(&mut queues, 2, IBV_WR_RDMA_WRITE, false), 0);
    assert_eq!(post(&mut queues, 3, IBV_WR_SEND, false), 0);
    post_receive(&mut queues, 4, &mut []);
    let message = Head {
        kind: Kind::Send,
        ..ack(1)
    };
    say(&mut queues, &peer, &[response(1), message]);
    assert_eq!(ends(&mut queues), [(1, IBV_WC_SUCCESS)]);
    peer.lock().full = false;
    queues.arm();
    assert_eq!(kinds(&peer), [Kind::Read, Kind::Refuse]);
    let failed = [(2, IBV_WC_RETRY_EXC_ERR), (3, IBV_WC_WR_FLUSH_ERR)];
    assert_eq!(ends(&mut queues), failed);
}

/// The receive that a refused message took fails at the end: before, the end of the queue pair would
/// drop the answers that the peer is still to get.
#[test]
fn a_receive_of_a_refused_message_fails_with_the_connection() {
    let wrong = ibv_sge {
        addr: 0,
        length: 8,
        lkey: 77,
    };
    for (sges, len, own, theirs) in [
        (&mut [][..], 1, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR),
        (&mut [wrong][..], 0, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR),
    ] {
        let (mut queues, peer) = confirmed(0);
        post_receive(&mut queues, 1, sges);
        post_receive(&mut queues, 2, &mut []);
        queues.arm();
        assert_eq!((ends(&mut queues), heard(&peer).len()), (vec![], 1));
        peer.lock().full = true;
        let message = Head::new(Kind::Send, len);
        say(&mut queues, &peer, &[message, Head::new(Kind::Send, 0)]);
        assert_eq!(ends(&mut queues), []);
        peer.lock().full = false;
        queues.flush();
        let [refusal] = heard(&peer)[..] else {
            panic!("one refusal");
        };
        assert_eq!(refusal.kind, Kind::Refuse);
        assert_eq!(c_int::from(refusal.syndrome), theirs);
        assert!(queues.to_error());
        assert_eq!(ends(&mut queues), [(1, own), (2, IBV_WC_WR_FLUSH_ERR)]);
    }
}

#[test]
fn a_refused_request_fails_whatever_the_reason() {
    for syndrome in 0..=u8::MAX {
        let (mut queues, peer) = confirmed(0);
        post(&mut queues, 1, IBV_WR_RDMA_WRITE, false);
        post(&mut queues, 2, IBV_WR_RDMA_WRITE, false);
        let refusal = Head {
            syndrome,
            ack: 1,
            ..Head::new(Kind::Refuse, 0)
        };
        say(&mut queues, &peer, &[refusal]);
        let known = [IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR];
        let status = match c_int::from(syndrome) {
            status if known.contains(&status) => status,
            _ => IBV_WC_REM_OP_ERR,
        };
        assert_eq!(ends(&mut queues), [(1, IBV_WC_SUCCESS), (2, status)]);
    }
}

/// A message without a receive is not sent, nor what is behind it: no frame completes them.
#[test]
fn held_requests_are_not_completed() {
    for frame in [ack(1), response(1)] {
        let (mut queues, peer) = confirmed(0);
        post(&mut queues, 1, IBV_WR_SEND, false);
        post(&mut queues, 2, IBV_WR_RDMA_READ, false);
        assert_eq!(kinds(&peer), []);
        say(&mut queues, &peer, &[frame]);
        let failed = [(1, IBV_WC_RETRY_EXC_ERR), (2, IBV_WC_WR_FLUSH_ERR)];
        assert_eq!(ends(&mut queues), failed, "{frame:?}");
    }
}

#[test]
fn a_read_ends_with_its_answer_alone() {
    let (mut queues, peer) = confirmed(0);
    post(&mut queues, 1, IBV_WR_RDMA_WRITE, false);
    post(&mut queues, 2, IBV_WR_RDMA_READ, false);
    post(&mut queues, 3, IBV_WR_RDMA_WRITE, false);
    say(&mut queues, &peer, &[ack(3)]);
    assert_eq!(ends(&mut queues), [(1, IBV_WC_SUCCESS)]);
    say(&mut queues, &peer, &[response(3)]);
    let done = [(2, IBV_WC_SUCCESS), (3, IBV_WC_SUCCESS)];
    assert_eq!(ends(&mut queues), done);
    // Each answer is that of another READ, whatever it counts.
    post(&mut queues, 4, IBV_WR_RDMA_READ, false);
    post(&mut queues, 5, IBV_WR_RDMA_READ, false);
    say(&mut queues, &peer, &[response(3), response(5)]);
    let done = [(4, IBV_WC_SUCCESS), (5, IBV_WC_SUCCESS)];
    assert_eq!(ends(&mut queues), done);
}

#[test]
fn reads_and_fences_wait_for_answers() {
    let (mut queues, peer) = confirmed(0);
    for n in 0..FETCHES {
        assert_eq!(post(&mut queues, n as u64, IBV_WR_RDMA_READ, false), 0);
    }
    let full = libc::ENOMEM;
    assert_eq!(post(&mut queues, 50, IBV_WR_RDMA_READ, false), full);
    assert_eq!(post(&mut queues, 50, IBV_WR_RDMA_WRITE, false), 0);
    assert_eq!(post(&mut queues, 51, IBV_WR_RDMA_WRITE, true), full);
    say(&mut queues, &peer, &[response(1)]);
    assert_eq!(post(&mut queues, 51, IBV_WR_RDMA_WRITE, true), full);
    assert_eq!(post(&mut queues, 52, IBV_WR_RDMA_READ, false), 0);
    let all: Vec<Head> = (2..=FETCHES as u64).map(response).collect();
    say(&mut queues, &peer, &all);
    // The WRITE is in front of it.
    say(&mut queues, &peer, &[response(FETCHES as u64 + 2)]);
    assert_eq!(post(&mut queues, 53, IBV_WR_RDMA_WRITE, true), 0);
    assert_eq!(ends(&mut queues).len(), FETCHES + 2);
}

#[test]
fn a_queue_pair_permits_what_its_access_says() {
    let rights = [
        (Kind::Write, Access::REMOTE_WRITE),
        (Kind::Read, Access::REMOTE_READ),
    ];
    for (kind, right) in rights {
        for (access, answer) in [(right, None), (Access::LOCAL_WRITE, Some(Kind::Refuse))] {
            let (mut queues, peer) = pair(access, None);
            say(&mut queues, &peer, &[Head::new(kind, 0)]);
            queues.arm();
            let refuses = kinds(&peer).contains(&Kind::Refuse);
            assert_eq!(refuses, answer.is_some(), "{kind:?} {access:?}");
        }
    }
}

#[test]
fn a_peer_that_never_uses_its_connection_is_late() {
    let (mut queues, _) = pair(Access::ALL, Some(Duration::ZERO));
    assert!(!queues.progress());
    post(&mut queues, 1, IBV_WR_RDMA_WRITE, false);
    while !matches!(queues.link, Link::Broken) {
        queues.progress();
    }
    assert_eq!(ends(&mut queues), [(1, IBV_WC_RETRY_EXC_ERR)]);
}

#[test]
fn a_reset_sends_the_last_counts() {
    let (mut queues, peer) = confirmed(0);
    say(&mut queues, &peer, &[Head::new(Kind::Write, 0)]);
    queues.reset();
    let counts: Vec<u64> = heard(&peer).iter().map(|head| head.ack).collect();
    assert_eq!(counts, [1]);
    assert_eq!(executed(&mut queues), 0);
}

#[test]
fn requests_that_the_connection_has_not_taken_are_not_executed() {
    let (mut queues, peer) = confirmed(1);
    peer.lock().full = true;
    for (wr_id, opcode) in [(1, IBV_WR_RDMA_WRITE), (2, IBV_WR_SEND)] {
        assert_eq!(post(&mut queues, wr_id, opcode, false), 0);
    }
    peer.lock().full = false;
    queues.flush();
    peer.lock().full = true;
    assert_eq!(post(&mut queues, 3, IBV_WR_RDMA_WRITE, false), 0);
    say(&mut queues, &peer, &[ack(2)]);
    assert_eq!(
        ends(&mut queues),
        [(1, IBV_WC_SUCCESS), (2, IBV_WC_SUCCESS)]
    );
    say(&mut queues, &peer, &[ack(3)]);
    assert!(matches!(queues.link, Link::Broken));
    assert_eq!(ends(&mut queues), [(3, IBV_WC_RETRY_EXC_ERR)]);
}

#[test]
fn what_came_before_a_reset_counts() {
    for refused in [false, true] {
        let (mut queues, peer) = confirmed(0);
        post(&mut queues, 1, IBV_WR_RDMA_WRITE, false);
        let refusal = Head {
            syndrome: IBV_WC_REM_ACCESS_ERR as u8,
            ..Head::new(Kind::Refuse, 0)
        };
        let last = if refused { refusal } else { ack(1) };
        peer.lock().says = last.encode().to_vec();
        peer.lock().reset = true;
        post(&mut queues, 2, IBV_WR_RDMA_WRITE, false);
        let wanted = match refused {
            true => [(1, IBV_WC_REM_ACCESS_ERR), (2, IBV_WC_WR_FLUSH_ERR)],
            false => [(1, IBV_WC_SUCCESS), (2, IBV_WC_RETRY_EXC_ERR)],
        };
        assert_eq!(ends(&mut queues), wanted);
    }
}

/// Memory that the peer may access, and the head of a request of half of it.
fn exposed(queues: &TcpQueues, kind: Kind) -> (Region, MrKeys, Head) {
    let region = Gpu::open("soft").unwrap();
    let region = region.alloc(MemoryKind::Pinned, 64 * 1024).unwrap();
    let keys = queues
        .shared
        .registrations
        .add(queues.pd, &region, Access::ALL);
    let head = Head {
        addr: region.addr().0,
        rkey: keys.rkey,
        ..Head::new(kind, 32 * 1024)
    };
    (region, keys, head)
}

#[test]
fn the_end_of_a_registration_ends_a_write_in_progress() {
    let (mut queues, peer) = confirmed(0);
    let (region, keys, head) = exposed(&queues, Kind::Write);
    peer.lock().says = head.encode().to_vec();
    queues.progress();
    peer.lock().says = vec![7; 16 * 1024];
    queues.progress();
    let mut bytes = [0; 16 * 1024];
    region.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 16 * 1024]);
    queues.shared.registrations.remove(keys);
    assert!(!queues.withdraw(keys.rkey + 1), "another registration");
    assert!(region.handles() > 1);
    assert!(queues.withdraw(keys.rkey));
    assert!(matches!(queues.link, Link::Broken));
    assert_eq!(region.handles(), 1);
    assert!(!queues.withdraw(keys.rkey));
}

#[test]
fn the_end_of_a_registration_ends_a_read_in_progress() {
    let (mut queues, peer) = confirmed(0);
    let (region, keys, head) = exposed(&queues, Kind::Read);
    peer.lock().full = true;
    say(&mut queues, &peer, &[head]);
    queues.shared.registrations.remove(keys);
    assert!(!queues.withdraw(keys.rkey + 1), "another registration");
    assert!(queues.withdraw(keys.rkey));
    assert!(matches!(queues.link, Link::Broken));
    assert_eq!(region.handles(), 1);
}
