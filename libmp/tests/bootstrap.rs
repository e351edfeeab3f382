//! The behaviour of every kind of bootstrap, among ranks of one process: order, topics, room,
//! descriptors, and files after a rank has left.

#[path = "common/jobs.rs"]
mod jobs;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use jobs::{Job, Place, all_in, next, until};
use mp::bootstrap::{Bootstrap, Directory, Local, MAX_MESSAGE, Tcp};
use mp::gdsync::Status;
use mp::{Error, Kind};

type Ranks = Vec<Arc<dyn Bootstrap>>;

fn shared(ranks: impl IntoIterator<Item = impl Bootstrap + 'static>) -> Ranks {
    let share = |rank| Arc::new(rank) as Arc<dyn Bootstrap>;
    ranks.into_iter().map(share).collect()
}

/// Runs the test with a job of each kind. With a `prompt` kind, a message has arrived when `send`
/// returns.
fn each(name: &str, size: u32, test: impl Fn(Ranks, bool)) {
    println!("local");
    test(Local::ranks(size), true);
    println!("directory");
    let place = Place::new(name);
    test(shared(all_in(&place.0, size)), true);
    assert_eq!(place.names(), [""; 0], "left behind");
    println!("tcp");
    let job = Job::new(size);
    test(shared(job.all()), false);
}

/// Repeats `send` until it fails; returns the number of successes and the error.
fn fill(mut send: impl FnMut() -> mp::Result<()>) -> (usize, Error) {
    let mut held = 0;
    loop {
        match send() {
            Ok(()) => held += 1,
            Err(e) => return (held, e),
        }
    }
}

#[test]
fn messages_arrive_in_order_under_their_topics() {
    each("pass", 3, |ranks, prompt| {
        for (i, rank) in ranks.iter().enumerate() {
            assert_eq!((rank.rank(), rank.size()), (i as u32, 3));
            assert_eq!(rank.job(), ranks[0].job());
            assert_eq!(rank.host(0), rank.host(2));
            assert!(rank.host(0).is_some() && rank.host(3).is_none());
        }
        // Several contexts use several topics; each topic keeps its own order.
        for i in 0..100_u8 {
            for topic in 0..4 {
                ranks[0].send(1, topic, &[topic as u8, i]).unwrap();
                ranks[2].send(1, topic, &[topic as u8, i]).unwrap();
            }
        }
        for topic in (0..4).rev() {
            let mut heard = [0; 3];
            for _ in 0..200 {
                let (from, message) = match prompt {
                    true => ranks[1].receive(topic).unwrap().expect("a message"),
                    false => next(&*ranks[1], topic),
                };
                assert_eq!(message, [topic as u8, heard[from as usize]]);
                heard[from as usize] += 1;
            }
            assert_eq!(ranks[1].receive(topic).unwrap(), None);
        }
        ranks[1].send(1, 9, b"to myself").unwrap();
        assert_eq!(next(&*ranks[1], 9), (1, b"to myself".to_vec()));
        assert_eq!(ranks[0].receive(9).unwrap(), None);
        ranks[2].send(0, 9, &vec![5; MAX_MESSAGE]).unwrap();
        assert_eq!(next(&*ranks[0], 9), (2, vec![5; MAX_MESSAGE]));
        ranks[2].send(0, 9, b"").unwrap();
        assert_eq!(next(&*ranks[0], 9), (2, vec![]));

        let e = ranks[0].send(3, 0, b"").unwrap_err();
        assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(3)));
        let e = ranks[0].send(1, 0, &vec![0; MAX_MESSAGE + 1]).unwrap_err();
        assert_eq!(e.kind(), Kind::Invalid);
        assert_eq!(e.limit(), Some(MAX_MESSAGE as u64));
    });
    assert_ne!(Local::ranks(1)[0].job(), Local::ranks(1)[0].job());
    assert_eq!(Local::ranks_of(77, 1)[0].job(), 77);
}

#[test]
fn send_fails_with_queue_full_until_the_receiver_receives() {
    each("full", 3, |ranks, prompt| {
        let block = vec![3; MAX_MESSAGE];
        let (held, full) = fill(|| ranks[0].send(1, 0, &block));
        assert_eq!((full.kind(), full.rank()), (Kind::QueueFull, Some(1)));
        // Other pairs of ranks are not affected.
        ranks[0].send(2, 0, b"round it").unwrap();
        ranks[2].send(1, 1, b"past it").unwrap();
        ranks[2].send(1, 0, b"beside it").unwrap();
        assert_eq!(next(&*ranks[2], 0), (0, b"round it".to_vec()));
        assert_eq!(next(&*ranks[1], 1), (2, b"past it".to_vec()));
        let mut lens: Vec<_> = (0..=held).map(|_| next(&*ranks[1], 0).1.len()).collect();
        lens.sort_unstable();
        assert_eq!((lens[0], &lens[1..]), (9, &vec![block.len(); held][..]));
        let again = || ranks[0].send(1, 0, &block).ok();
        match prompt {
            true => again().unwrap(),
            false => until(again),
        }
        // Messages under a forgotten topic occupy no room.
        ranks[1].forget(0);
        for _ in 0..3 * held {
            until(|| {
                assert_eq!(ranks[1].receive(0).unwrap(), None);
                ranks[0].send(1, 0, &block).ok()
            });
        }
        ranks[0].send(1, 6, &[1]).unwrap();
        assert_eq!(next(&*ranks[1], 6), (0, vec![1]));
    });
}

#[test]
fn ranks_exchange_with_all_others() {
    let exchange = |ranks: Ranks, _| {
        std::thread::scope(|s| {
            for rank in &ranks {
                s.spawn(move || {
                    for to in 0..rank.size() {
                        let text = [rank.rank().to_le_bytes(), to.to_le_bytes()].concat();
                        rank.send(to, 1, &text).unwrap();
                    }
                    let mut heard = vec![false; rank.size() as usize];
                    for _ in 0..rank.size() {
                        let (from, text) = next(&**rank, 1);
                        let right = [from.to_le_bytes(), rank.rank().to_le_bytes()].concat();
                        assert_eq!(text, right);
                        assert!(!std::mem::replace(&mut heard[from as usize], true));
                    }
                });
            }
        });
    };
    each("many", 16, exchange);
    let job = Job::new(64);
    exchange(shared(job.all()), false);
}

#[test]
fn threads_as_ranks_pass_a_token_in_a_ring() {
    let word = |(_, message): (u32, Vec<u8>)| u64::from_le_bytes(message.try_into().unwrap());
    each("token", 8, |ranks, _| {
        std::thread::scope(|s| {
            for rank in &ranks {
                s.spawn(move || {
                    let to = (rank.rank() + 1) % rank.size();
                    for lap in 0..200_u64 {
                        let topic = lap % 3;
                        if rank.rank() == 0 {
                            rank.send(to, topic, &lap.to_le_bytes()).unwrap();
                            assert_eq!(word(next(&**rank, topic)), lap + 7);
                        } else {
                            let token = word(next(&**rank, topic)) + 1;
                            rank.send(to, topic, &token.to_le_bytes()).unwrap();
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn messages_of_a_rank_that_left_are_received() {
    each("gone", 4, |mut ranks, prompt| {
        ranks[3].send(0, 7, b"last words").unwrap();
        assert!(!ranks[0].gone(3) && !ranks[0].gone(0) && !ranks[0].gone(9));
        drop(ranks.pop());
        for rank in &ranks {
            assert!(!prompt || rank.gone(3));
            until(|| rank.gone(3).then_some(()));
            let e = rank.send(3, 0, b"?").unwrap_err();
            assert_eq!(e.kind(), Kind::PeerFailed(Status::REMOTE_ABORTED));
            assert_eq!(e.rank(), Some(3));
        }
        assert_eq!(next(&*ranks[0], 7), (3, b"last words".to_vec()));
        ranks[0].send(2, 0, b"we go on").unwrap();
        assert_eq!(next(&*ranks[2], 0), (0, b"we go on".to_vec()));
        assert!(!ranks[0].gone(2));
    });
}

#[test]
fn descriptors_arrive_under_their_topics() {
    each("fds", 2, |ranks, _| {
        let (read, write) = std::io::pipe().unwrap();
        ranks[0].send_fd(1, 3, write.as_fd()).unwrap();
        drop(write);
        assert!(ranks[1].receive_fd(2).unwrap().is_none());
        let (from, fd) = until(|| ranks[1].receive_fd(3).unwrap());
        assert_eq!(from, 0);
        File::from(fd).write_all(b"through the other rank").unwrap();
        // Both write ends are closed, so the read ends reach the end of file.
        let mut text = String::new();
        let mut read = File::from(OwnedFd::from(read));
        read.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through the other rank");

        let file = File::open("/dev/null").unwrap();
        let send = |topic| ranks[0].send_fd(1, topic, file.as_fd());
        let (sent, full) = fill(|| send(3));
        assert_eq!((full.kind(), full.rank()), (Kind::QueueFull, Some(1)));
        for _ in 0..sent {
            until(|| ranks[1].receive_fd(3).unwrap());
        }
        send(3).unwrap();
        fill(|| send(3));
        ranks[1].forget(3);
        until(|| {
            assert!(ranks[1].receive_fd(4).unwrap().is_none());
            send(4).ok()
        });
    });
}

#[test]
fn join_accepts_a_limit_beyond_the_range_of_the_clock() {
    let (place, job) = (Place::new("long"), Job::new(1));
    for limit in [Duration::MAX, Duration::from_secs(u64::MAX / 2)] {
        let rank = Directory::join(&place.0, 0, 1, limit).unwrap();
        assert_eq!(rank.size(), 1);
    }
    let mut join = job.join(0);
    join.limit = Duration::MAX;
    assert_eq!(Tcp::join(&join).unwrap().size(), 1);
}
