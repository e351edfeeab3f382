//! Ranks of one process: order, topics, room, and what a dropped rank leaves behind.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use mp::bootstrap::{Bootstrap, Local, MAX_MESSAGE};
use mp::{Kind, gdsync::Status};

#[test]
fn ranks_know_who_they_are_and_jobs_differ() {
    let (one, other) = (Local::ranks(3), Local::ranks(3));
    for (i, rank) in one.iter().enumerate() {
        assert_eq!((rank.rank(), rank.size()), (i as u32, 3));
        assert_eq!(rank.job(), one[0].job());
        assert_ne!(rank.job(), other[0].job());
        assert_eq!(rank.host(0), rank.host(2));
        assert_eq!(rank.host(3), None);
    }
    assert_eq!(Local::ranks_of(77, 1)[0].job(), 77);
}

#[test]
fn messages_keep_order_and_topics_apart() {
    let ranks = Local::ranks(3);
    for i in 0..10_u8 {
        ranks[0].send(2, u64::from(i % 2), &[0, i]).unwrap();
        ranks[1].send(2, u64::from(i % 2), &[1, i]).unwrap();
    }
    for topic in [1, 0] {
        for i in (0..10_u8).filter(|i| u64::from(i % 2) == topic) {
            for from in 0..2 {
                let got = ranks[2].receive(topic).unwrap();
                assert_eq!(got, Some((u32::from(from), vec![from, i])));
            }
        }
        assert_eq!(ranks[2].receive(topic).unwrap(), None);
    }
    // A rank may talk to itself, and nobody else hears it.
    ranks[1].send(1, 9, b"").unwrap();
    assert_eq!(ranks[0].receive(9).unwrap(), None);
    assert_eq!(ranks[1].receive(9).unwrap(), Some((1, vec![])));
}

#[test]
fn refusals_name_rank_and_limit() {
    let ranks = Local::ranks(3);
    let e = ranks[0].send(3, 0, &[]).unwrap_err();
    assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(3)));
    let e = ranks[0].send(1, 0, &vec![0; MAX_MESSAGE + 1]).unwrap_err();
    assert_eq!(e.kind(), Kind::Invalid);
    assert_eq!(e.limit_value(), Some(MAX_MESSAGE as u64));

    // One rank fills its window; others, and other receivers, are not concerned.
    let block = vec![7; MAX_MESSAGE];
    let mut held = 0;
    let full = loop {
        match ranks[0].send(1, 5, &block) {
            Ok(()) => held += 1,
            Err(e) => break e,
        }
    };
    assert_eq!((full.kind(), full.rank()), (Kind::QueueFull, Some(1)));
    ranks[2].send(1, 5, &block).unwrap();
    ranks[0].send(2, 5, &block).unwrap();
    assert!(ranks[1].receive(5).unwrap().is_some());
    ranks[0].send(1, 5, &block).unwrap();
    let left = std::iter::from_fn(|| ranks[1].receive(5).unwrap()).count();
    assert_eq!(left, held + 1);
}

#[test]
fn a_forgotten_topic_takes_no_room() {
    let ranks = Local::ranks(2);
    let block = vec![0; MAX_MESSAGE];
    while ranks[0].send(1, 5, &block).is_ok() {}
    ranks[1].forget(5);
    for _ in 0..100 {
        ranks[0].send(1, 5, &block).unwrap();
    }
    assert_eq!(ranks[1].receive(5).unwrap(), None);
    ranks[0].send(1, 6, &[1]).unwrap();
    assert!(ranks[1].receive(6).unwrap().is_some());
}

#[test]
fn a_dropped_rank_is_gone_but_what_it_sent_arrives() {
    let mut ranks = Local::ranks(3);
    ranks[2].send(0, 1, b"last").unwrap();
    assert!(!ranks[0].gone(2) && !ranks[0].gone(9));
    ranks.pop();
    assert!(ranks[0].gone(2) && !ranks[0].gone(1));
    let e = ranks[1].send(2, 1, b"?").unwrap_err();
    assert_eq!(e.rank(), Some(2));
    assert_eq!(e.kind(), Kind::PeerFailed(Status::REMOTE_ABORTED));
    assert_eq!(ranks[0].receive(1).unwrap(), Some((2, b"last".to_vec())));
    ranks[0].send(1, 1, b"still here").unwrap();
    assert!(ranks[1].receive(1).unwrap().is_some());
}

#[test]
fn descriptors_pass() {
    let ranks = Local::ranks(2);
    let path = std::env::temp_dir().join(format!("mp-local-{}", std::process::id()));
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(path).unwrap();
    file.write_all(b"by descriptor").unwrap();
    ranks[0].send_fd(1, 3, file.as_fd()).unwrap();
    assert!(ranks[1].receive_fd(4).unwrap().is_none());
    let (from, fd) = ranks[1].receive_fd(3).unwrap().unwrap();
    assert_eq!(from, 0);
    let (mut copy, mut text) = (File::from(fd), String::new());
    copy.rewind().unwrap();
    copy.read_to_string(&mut text).unwrap();
    assert_eq!(text, "by descriptor");

    let full = loop {
        if let Err(e) = ranks[0].send_fd(1, 3, file.as_fd()) {
            break e;
        }
    };
    assert_eq!((full.kind(), full.rank()), (Kind::QueueFull, Some(1)));
    ranks[1].forget(3);
    ranks[0].send_fd(1, 4, file.as_fd()).unwrap();
}

#[test]
fn threads_as_ranks_pass_a_token_around() {
    let ranks = Local::ranks(8);
    let turn = |rank: &Arc<dyn Bootstrap>, topic| loop {
        match rank.receive(topic).unwrap() {
            Some((_, message)) => return u64::from_le_bytes(message.try_into().unwrap()),
            None => std::thread::yield_now(),
        }
    };
    std::thread::scope(|s| {
        for rank in &ranks {
            s.spawn(move || {
                let next = (rank.rank() + 1) % rank.size();
                for lap in 0..200_u64 {
                    let topic = lap % 3;
                    if rank.rank() == 0 {
                        rank.send(next, topic, &lap.to_le_bytes()).unwrap();
                        assert_eq!(turn(rank, topic), lap + 7);
                    } else {
                        let token = turn(rank, topic) + 1;
                        rank.send(next, topic, &token.to_le_bytes()).unwrap();
                    }
                }
            });
        }
    });
}
