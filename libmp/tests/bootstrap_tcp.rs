//! Ranks that meet at a store over TCP, all in this process: authentication, refusals, missing
//! ranks.

#[path = "common/jobs.rs"]
mod jobs;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use jobs::{Job, LONG, next, until};
use mp::Kind;
use mp::bootstrap::tcp::{Join, Server};
use mp::bootstrap::{Bootstrap, MAX_MESSAGE, Secret, Tcp, wire};

#[test]
fn receive_returns_credit_to_the_sender_at_once() {
    let job = Job::new(2);
    let ranks = job.all();
    let block = vec![3; MAX_MESSAGE];
    let mut held = 0;
    while ranks[0].send(1, 0, &block[..MAX_MESSAGE - 1024]).is_ok() {
        held += 1;
    }
    // When this last message has arrived, all have arrived: the receives below do not read the
    // socket.
    ranks[0].send(1, 1, b"last").unwrap();
    next(&ranks[1], 1);
    for _ in 0..held {
        assert!(ranks[1].receive(0).unwrap().is_some());
    }
    until(|| ranks[0].send(1, 0, &block).ok());
}

/// An address of this host without a listener, which no other test gets.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    listener.local_addr().unwrap()
}

#[test]
fn join_waits_for_a_late_rank_and_a_late_store() {
    let (secret, address) = (Secret::random().unwrap(), free_address());
    let join = |rank| Join::new(address.to_string(), (rank, 2), &secret, LONG);
    std::thread::scope(|s| {
        let early = s.spawn(|| Tcp::join(&join(1)).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        let _server = Server::start(address, &secret, "", 2).unwrap();
        std::thread::sleep(Duration::from_millis(150));
        assert!(!early.is_finished());
        let late = Tcp::join(&join(0)).unwrap();
        late.send(1, 0, b"sorry").unwrap();
        assert_eq!(next(&early.join().unwrap(), 0), (0, b"sorry".to_vec()));
    });
}

/// Joins with increasing limits until the error is `right`: within a short limit, the store may not
/// answer.
fn give_up(join: &Join, right: impl Fn(&mp::Error) -> bool) {
    let mut limit = Duration::from_millis(100);
    loop {
        let mut join = join.clone();
        join.limit = limit;
        let e = Tcp::join(&join).unwrap_err();
        assert_eq!(e.limit(), Some(limit.as_millis() as u64), "{e}");
        if right(&e) {
            return;
        }
        limit *= 2;
        assert!(limit < LONG, "{e}");
    }
}

#[test]
fn error_names_missing_ranks() {
    let job = Job::new(5);
    let missing = |e: &mp::Error| match e.kind() {
        Kind::Missing => true,
        // The store has not answered in time.
        Kind::Absent => false,
        _ => panic!("{e}"),
    };
    std::thread::scope(|s| {
        let come = |rank| {
            let join = job.join(rank);
            s.spawn(move || Tcp::join(&join).unwrap())
        };
        let one = come(1);
        let named = |e: &mp::Error| e.to_string().contains("ranks 0, 2, 4 did not join");
        give_up(&job.join(3), |e| missing(e) && named(e));
        let [zero, four] = [0, 4].map(come);
        // One of five ranks is missing.
        give_up(&job.join(2), |e| missing(e) && e.rank() == Some(3));
        // The job starts once all ranks have joined.
        for joining in [zero, one, come(2), come(3), four] {
            joining.join().unwrap();
        }
    });
}

#[test]
fn join_without_a_store_fails_with_the_reason() {
    let (secret, address) = (Secret::random().unwrap(), free_address());
    let limit = Duration::from_millis(100);
    let join = |store: String| Join::new(store, (0, 1), &secret, limit);
    let e = Tcp::join(&join(address.to_string())).unwrap_err();
    assert_eq!((e.kind(), e.limit()), (Kind::Absent, Some(100)));
    assert!(e.to_string().contains(&address.to_string()), "{e}");
    let e = Tcp::join(&join("no port in here".into())).unwrap_err();
    assert_eq!(e.kind(), Kind::Absent);
    // A listener that never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = silent.local_addr().unwrap().to_string();
    let e = Tcp::join(&join(store)).unwrap_err();
    assert_eq!((e.kind(), e.limit()), (Kind::Absent, Some(100)));
    // A listener of another protocol.
    let e = std::thread::scope(|s| {
        s.spawn(|| {
            let (mut stream, _) = silent.accept().unwrap();
            let answer = |mut s: TcpStream| s.write_all(b"HTTP/1.1 400 Bad\r\n\r\n");
            drop(silent.accept().map(|(s, _)| answer(s)));
            let _ = stream.read(&mut [0; 100]);
        });
        let store = silent.local_addr().unwrap().to_string();
        Tcp::join(&Join::new(store, (0, 1), &secret, LONG)).unwrap_err()
    });
    assert_eq!(e.kind(), Kind::Protocol, "{e}");
}

#[test]
fn ranks_that_do_not_fit_the_job_are_refused_and_others_unaffected() {
    let job = Job::new(2);
    let right = job.join(1);
    let wrong = |change: fn(&mut Join)| {
        let mut join = right.clone();
        change(&mut join);
        join
    };
    type Case = (fn(&mut Join), &'static str);
    let no_secret = "does not have the secret of this rank";
    let cases: [Case; 4] = [
        (|j| j.secret = Secret::random().unwrap(), no_secret),
        (|j| j.size = 3, "it expects 3 ranks, and the job has 2"),
        (|j| (j.rank, j.size) = (2, 3), "expects 3 ranks"),
        (|j| j.name = "other".into(), "its job has another name"),
    ];
    for (change, word) in cases {
        let join = wrong(change);
        let e = Tcp::join(&join).unwrap_err();
        assert_eq!((e.kind(), e.rank()), (Kind::Protocol, Some(join.rank)));
        assert!(e.to_string().contains(word), "{e}");
    }
    let e = Tcp::join(&wrong(|j| j.rank = 2)).unwrap_err();
    assert_eq!(e.kind(), Kind::Invalid);

    // A second process of one rank, before and after the start.
    std::thread::scope(|s| {
        let first = s.spawn(|| until(|| Tcp::join(&right).ok()));
        let refused = until(|| {
            let e = Tcp::join(&wrong(|j| j.limit = Duration::from_millis(300))).unwrap_err();
            (e.kind() == Kind::Protocol).then_some(e)
        });
        assert!(refused.to_string().contains("already rank 1"), "{refused}");
        let zero = Tcp::join(&job.join(0)).unwrap();
        let first = first.join().unwrap();
        let e = Tcp::join(&right).unwrap_err();
        assert!(e.to_string().contains("already rank 1"), "{e}");
        drop(first);
        until(|| zero.gone(1).then_some(()));
        let e = Tcp::join(&right).unwrap_err();
        assert!(e.to_string().contains("rank 1 has left"), "{e}");
    });
}

#[test]
fn unauthenticated_connections_are_refused_and_block_no_rank() {
    let job = Job::new(2);
    let ranks = std::thread::scope(|s| {
        let waiting = s.spawn(|| job.all());
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut keep = Vec::new();
        for i in 0..40 {
            let mut stream = TcpStream::connect(job.server.address()).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            let len = rng.usize(..2000);
            let mut bytes: Vec<_> = (0..len).map(|_| rng.u8(..)).collect();
            if i % 2 == 0 {
                // A valid frame length, so that the store parses the rest.
                bytes.splice(0..bytes.len().min(4), [40, 0, 0, 0]);
                bytes.resize(bytes.len().max(100), 0);
            }
            if let Err(e) = stream.write_all(&bytes) {
                let closed = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
                assert!(closed.contains(&e.kind()), "{e}");
            }
            if i % 4 == 0 {
                // The store sends the reason and closes the connection.
                let mut answer = Vec::new();
                let end = stream.read_to_end(&mut answer);
                match wire::decode(&answer, wire::MAX_FRAME) {
                    Ok(Some((wire::Frame::Refused { why }, _))) => assert!(!why.is_empty()),
                    _ => assert!(end.is_err() || answer.is_empty(), "{answer:?}"),
                }
            } else {
                keep.push(stream);
            }
        }
        waiting.join().unwrap()
    });
    ranks[0].send(1, 0, b"all well").unwrap();
    assert_eq!(next(&ranks[1], 0), (0, b"all well".to_vec()));
}

#[test]
fn silent_connections_do_not_prevent_joining() {
    let job = Job::new(2);
    let connect = |_| TcpStream::connect(job.server.address()).unwrap();
    let silent: Vec<TcpStream> = (0..300).map(connect).collect();
    let ranks = job.all();
    ranks[0].send(1, 0, b"all well").unwrap();
    assert_eq!(next(&ranks[1], 0), (0, b"all well".to_vec()));
    drop(silent);
}

#[test]
fn connection_that_ends_before_the_start_is_retried() {
    let secret = Secret::random().unwrap();
    let fake = TcpListener::bind("127.0.0.2:0").unwrap();
    let address = fake.local_addr().unwrap();
    let mut join = Join::new(address.to_string(), (0, 1), &secret, LONG);
    std::thread::scope(|s| {
        let joining = s.spawn(|| Tcp::join(&join));
        fake.set_nonblocking(true).unwrap();
        for _ in 0..3 {
            until(|| (fake.accept().is_ok() || joining.is_finished()).then_some(()));
        }
        drop(fake);
        let _server = until(|| Server::start(address, &secret, "", 1).ok());
        assert_eq!(joining.join().unwrap().unwrap().size(), 1);
    });
    // The last error has the cause.
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    fake.set_nonblocking(true).unwrap();
    join.store = fake.local_addr().unwrap().to_string();
    std::thread::scope(|s| {
        let joining = s.spawn(|| {
            give_up(&join, |e| match e.kind() {
                Kind::System => e.to_string().contains("broke"),
                // The last connection was not established, or did not end, within the limit.
                Kind::Absent => false,
                _ => panic!("{e}"),
            });
        });
        while !joining.is_finished() {
            drop(fake.accept());
            std::thread::sleep(Duration::from_millis(1));
        }
        joining.join().unwrap();
    });
}

#[test]
fn other_protocol_version_is_refused_with_the_reason() {
    let job = Job::new(2);
    let mut stream = TcpStream::connect(job.server.address()).unwrap();
    let mut hello = Vec::new();
    wire::Frame::Foreign { version: 99 }.encode(&mut hello);
    stream.write_all(&hello).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let mut text = String::from_utf8_lossy(&answer).into_owned();
    text.retain(|c| c.is_ascii_graphic() || c == ' ');
    assert!(text.contains("its protocol has version 99"), "{text}");
}

#[test]
fn arrived_messages_are_received_after_the_store_is_lost() {
    let job = Job::new(2);
    let ranks = job.all();
    ranks[0].send(1, 4, b"in time").unwrap();
    ranks[0].send(1, 5, b"done").unwrap();
    assert_eq!(next(&ranks[1], 5), (0, b"done".to_vec()));
    drop(job.server);
    let e = until(|| ranks[1].receive(5).err());
    assert_eq!(e.kind(), Kind::System);
    assert!(
        e.to_string().contains("the store closed the connection"),
        "{e}"
    );
    assert_eq!(next(&ranks[1], 4), (0, b"in time".to_vec()));
    assert_eq!(ranks[1].send(0, 0, b"").unwrap_err().kind(), Kind::System);
}

#[test]
fn store_without_ranks_and_address_in_use_are_refused() {
    let secret = Secret::random().unwrap();
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let e = Server::start(anywhere, &secret, "", 0).unwrap_err();
    assert_eq!(e.kind(), Kind::Invalid);
    let first = Server::start(anywhere, &secret, "", 1).unwrap();
    let e = Server::start(first.address(), &secret, "", 1).unwrap_err();
    assert_eq!(e.kind(), Kind::System);
}
