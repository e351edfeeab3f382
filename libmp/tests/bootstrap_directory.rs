//! Ranks that meet in a directory, all in this process.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mp::bootstrap::{Bootstrap, Directory, MAX_MESSAGE, WINDOW};
use mp::{Kind, Result};

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// A name that is nobody else's; removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let name = format!("mp-test-{name}-{}", std::process::id());
        Place(std::env::temp_dir().join(name))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect::<Vec<_>>();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn together(path: &Path, ranks: &[u32], size: u32, limit: Duration) -> Vec<Result<Directory>> {
    std::thread::scope(|s| {
        let join = |rank| s.spawn(move || Directory::join(path, rank, size, limit));
        let threads = ranks.iter().map(|r| join(*r)).collect::<Vec<_>>();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn all(path: &Path, size: u32) -> Vec<Directory> {
    let ranks = (0..size).collect::<Vec<_>>();
    let joined = together(path, &ranks, size, LONG);
    joined.into_iter().map(Result::unwrap).collect()
}

fn until<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(value) = what() {
            return value;
        }
        assert!(Instant::now() < end, "never happened");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_time_limit_may_be_longer_than_the_clock_can_tell() {
    let place = Place::new("long");
    for limit in [Duration::MAX, Duration::from_secs(u64::MAX / 2)] {
        let rank = Directory::join(&place.0, 0, 1, limit).unwrap();
        assert_eq!(rank.size(), 1);
    }
}

#[test]
fn messages_pass_and_nothing_is_left_behind() {
    let place = Place::new("pass");
    let ranks = all(&place.0, 3);
    let mode = fs::metadata(&place.0).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    for (i, rank) in ranks.iter().enumerate() {
        assert_eq!((rank.rank(), rank.size()), (i as u32, 3));
        assert_eq!(rank.job(), ranks[0].job());
        assert_eq!(rank.host(0), rank.host(2));
    }
    for i in 0..20_u8 {
        for topic in 0..2 {
            ranks[0].send(1, topic, &[topic as u8, i]).unwrap();
            ranks[2].send(1, topic, &[topic as u8, i]).unwrap();
        }
    }
    for topic in [1, 0] {
        let mut heard = [0; 3];
        for _ in 0..40 {
            let (from, message) = ranks[1].receive(topic).unwrap().expect("a message");
            assert_eq!(message, [topic as u8, heard[from as usize]]);
            heard[from as usize] += 1;
        }
        assert_eq!(ranks[1].receive(topic).unwrap(), None);
    }
    ranks[0].send(0, 3, b"to myself").unwrap();
    assert_eq!(ranks[0].receive(3).unwrap(), Some((0, b"to myself".into())));
    ranks[0].send(2, 3, &vec![1; MAX_MESSAGE]).unwrap();
    assert_eq!(
        ranks[2].receive(3).unwrap(),
        Some((0, vec![1; MAX_MESSAGE]))
    );
    let e = ranks[0].send(3, 0, b"").unwrap_err();
    assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(3)));
    drop(ranks);
    assert!(place.names().is_empty(), "{:?}", place.names());
}

#[test]
fn a_rank_that_does_not_receive_is_full_for_its_senders_until_it_does() {
    let place = Place::new("full");
    let ranks = all(&place.0, 3);
    let block = vec![3; MAX_MESSAGE];
    let mut held = 0;
    let full = loop {
        match ranks[0].send(1, 0, &block) {
            Ok(()) => held += 1,
            Err(e) => break e,
        }
    };
    assert_eq!((full.kind(), full.rank()), (Kind::QueueFull, Some(1)));
    ranks[2].send(1, 1, b"past it").unwrap();
    assert_eq!(ranks[1].receive(1).unwrap(), Some((2, b"past it".to_vec())));
    for _ in 0..held {
        assert!(ranks[1].receive(0).unwrap().is_some());
    }
    ranks[0].send(1, 0, &block).unwrap();
    ranks[1].forget(0);
    for _ in 0..3 * held {
        ranks[0].send(1, 0, &block).unwrap();
        assert_eq!(ranks[1].receive(0).unwrap(), None);
    }
}

/// A rank that asks for one topic fetches messages of others too.
#[test]
fn messages_of_other_topics_are_kept_up_to_the_window_of_each_sender() {
    let place = Place::new("window");
    let ranks = all(&place.0, 2);
    let block = vec![3; MAX_MESSAGE];
    let most = WINDOW as usize / MAX_MESSAGE;
    for to in 0..2 {
        // Messages to itself stay in the inbox, those to another rank in that rank's mail as well.
        let mut sent = 0;
        while ranks[0].send(to, 0, &block).is_ok() {
            sent += 1;
            assert_eq!(ranks[to as usize].receive(1).unwrap(), None);
            assert!(sent <= 2 * most, "to rank {to}");
        }
        assert!(sent >= most / 2, "{sent} to rank {to}");
    }
}

#[test]
fn missing_ranks_are_named() {
    let place = Place::new("missing");
    let give_up = |rank, size| {
        let e = Directory::join(&place.0, rank, size, Duration::from_millis(200)).unwrap_err();
        assert_eq!((e.kind(), e.limit_value()), (Kind::Missing, Some(200)));
        e
    };
    assert_eq!(give_up(1, 2).rank(), Some(0));
    assert!(place.names().is_empty(), "{:?}", place.names());
    std::thread::scope(|s| {
        // Such a rank waits longer than the one that gives up, which sees that it has joined.
        let come = |rank: u32| {
            let path = &place.0;
            let joining = s.spawn(move || Directory::join(path, rank, 4, LONG));
            let note = format!("rank-{rank}");
            until(|| place.names().contains(&note).then_some(()));
            joining
        };
        let two = come(2);
        let e = give_up(0, 4);
        assert!(e.to_string().contains("ranks 1, 3 have not"), "{e}");
        let zero = come(0);
        let e = give_up(1, 4);
        assert_eq!(e.rank(), Some(3), "{e}");
        // With all ranks the job starts.
        for joining in [zero, come(1), two, come(3)] {
            joining.join().unwrap().unwrap();
        }
    });
    assert!(place.names().is_empty(), "{:?}", place.names());
}

#[test]
fn a_late_rank_is_waited_for() {
    let place = Place::new("late");
    for late in 0..2 {
        let join = |rank| Directory::join(&place.0, rank, 2, LONG).unwrap();
        std::thread::scope(|s| {
            let early = s.spawn(move || join(1 - late));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!early.is_finished());
            let late_one = join(late);
            late_one.send(1 - late, 0, b"sorry").unwrap();
            let early = early.join().unwrap();
            assert_eq!(early.receive(0).unwrap(), Some((late, b"sorry".to_vec())));
        });
    }
}

#[test]
fn a_second_rank_and_another_size_are_refused() {
    let place = Place::new("second");
    let ranks = all(&place.0, 2);
    let e = Directory::join(&place.0, 1, 2, LONG).unwrap_err();
    assert_eq!((e.kind(), e.rank()), (Kind::Protocol, Some(1)));
    assert!(e.to_string().contains("second rank 1"), "{e}");
    // The job goes on.
    ranks[0].send(1, 0, b"still").unwrap();
    assert!(ranks[1].receive(0).unwrap().is_some());
    drop(ranks);

    let short = Duration::from_secs(2);
    let e = std::thread::scope(|s| {
        let other = s.spawn(|| Directory::join(&place.0, 1, 3, short));
        let e = Directory::join(&place.0, 0, 2, short).unwrap_err();
        assert!(other.join().unwrap().is_err());
        e
    });
    assert_eq!((e.kind(), e.rank()), (Kind::Protocol, Some(1)));
    assert!(e.to_string().contains("thinks there are 3 ranks"), "{e}");
    let e = Directory::join(&place.0, 2, 2, LONG).unwrap_err();
    assert_eq!(e.kind(), Kind::Invalid);
}

#[test]
fn a_directory_of_others_too_is_refused() {
    let place = Place::new("open");
    fs::create_dir(&place.0).unwrap();
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o777)).unwrap();
    let e = Directory::join(&place.0, 0, 1, LONG).unwrap_err();
    assert_eq!(e.kind(), Kind::Invalid);
    let link = Place::new("link");
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink(&place.0, &link.0).unwrap();
    let e = Directory::join(&link.0, 0, 1, LONG).unwrap_err();
    fs::remove_file(&link.0).unwrap();
    assert_eq!(e.kind(), Kind::Invalid);
    let file = Place::new("file");
    fs::write(&file.0, "").unwrap();
    let e = Directory::join(&file.0, 0, 1, LONG).unwrap_err();
    fs::remove_file(&file.0).unwrap();
    assert_eq!(e.kind(), Kind::Invalid);
    let e = Directory::join(&file.0.join("a/b"), 0, 1, LONG).unwrap_err();
    assert_eq!(e.kind(), Kind::System);
}

#[test]
fn what_dead_ranks_left_is_not_taken_for_the_job() {
    let place = Place::new("stale");
    // A whole job whose processes were killed: its files as they were, without locks.
    {
        let ranks = all(&place.0, 2);
        ranks[0].send(1, 0, b"of the old job").unwrap();
        let copy = Place::new("stale-copy");
        copy_all(&place.0, &copy.0);
        drop(ranks);
        copy_all(&copy.0, &place.0);
    }
    let old = place.names();
    assert!(old.len() == 5 && old[0] == "job", "{old:?}");
    let e = Directory::join(&place.0, 1, 2, Duration::from_millis(100)).unwrap_err();
    assert_eq!((e.kind(), e.rank()), (Kind::Missing, Some(0)));
    let ranks = all(&place.0, 2);
    assert_eq!(ranks[1].receive(0).unwrap(), None);
    ranks[0].send(1, 0, b"of this one").unwrap();
    assert!(ranks[1].receive(0).unwrap().is_some());
    drop(ranks);
    assert!(place.names().is_empty(), "{:?}", place.names());
}

#[test]
fn rank_0_removes_a_job_note_of_unknown_format() {
    let place = Place::new("note");
    drop(all(&place.0, 1));
    fs::write(place.0.join("job"), "of another version").unwrap();
    std::thread::scope(|s| {
        let first = s.spawn(|| Directory::join(&place.0, 0, 2, LONG));
        until(|| place.names().contains(&"rank-0".to_owned()).then_some(()));
        Directory::join(&place.0, 1, 2, LONG).unwrap();
        first.join().unwrap().unwrap();
    });
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_all(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn a_rank_that_left_is_gone_and_what_it_sent_arrives() {
    let place = Place::new("gone");
    let mut ranks = all(&place.0, 3);
    ranks[2].send(0, 7, b"last words").unwrap();
    assert!(!ranks[0].gone(2) && !ranks[0].gone(0) && !ranks[0].gone(7));
    drop(ranks.pop());
    for rank in &ranks {
        assert!(rank.gone(2));
        let e = rank.send(2, 0, b"?").unwrap_err();
        assert!(matches!(e.kind(), Kind::PeerFailed(_)));
        assert_eq!(e.rank(), Some(2));
    }
    assert_eq!(
        ranks[0].receive(7).unwrap(),
        Some((2, b"last words".into()))
    );
    ranks[0].send(1, 0, b"we go on").unwrap();
    assert!(ranks[1].receive(0).unwrap().is_some());
}

#[test]
fn descriptors_pass() {
    let place = Place::new("fds");
    let ranks = all(&place.0, 2);
    let (read, write) = std::io::pipe().unwrap();
    ranks[1].send_fd(0, 3, write.as_fd()).unwrap();
    drop(write);
    let (from, fd) = until(|| ranks[0].receive_fd(3).unwrap());
    assert_eq!(from, 1);
    File::from(fd).write_all(b"through").unwrap();
    let mut text = String::new();
    let mut read = File::from(OwnedFd::from(read));
    read.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through");
}

#[test]
fn garbage_in_the_mail_is_an_error_and_strange_names_are_ignored() {
    let place = Place::new("garbage");
    let ranks = all(&place.0, 2);
    let names = place.names();
    let mailbox = names.iter().find(|n| n.starts_with("to-1-")).unwrap();
    let mailbox = place.0.join(mailbox);
    for name in [".hidden", "x", "0.7", "9.0", "1.1.1"] {
        fs::write(mailbox.join(name), "nonsense").unwrap();
    }
    assert_eq!(ranks[1].receive(0).unwrap(), None);
    // While a message is missing, no later one is taken.
    let next = |text: &str| [&[0; 8], text.as_bytes()].concat();
    fs::write(mailbox.join("0.1"), next("second")).unwrap();
    assert_eq!(ranks[1].receive(0).unwrap(), None);
    ranks[0].send(1, 0, b"right").unwrap();
    for text in [b"right".as_slice(), b"second"] {
        assert_eq!(ranks[1].receive(0).unwrap(), Some((0, text.to_vec())));
    }
    fs::write(mailbox.join("0.2"), "short").unwrap();
    let e = ranks[1].receive(0).unwrap_err();
    assert_eq!((e.kind(), e.rank()), (Kind::Protocol, Some(0)));
    fs::write(mailbox.join("0.2"), vec![0; 8 + MAX_MESSAGE + 1]).unwrap();
    assert_eq!(ranks[1].receive(0).unwrap_err().kind(), Kind::Protocol);
}

#[test]
fn sixteen_ranks_exchange_with_all_others() {
    let place = Place::new("many");
    let ranks = all(&place.0, 16);
    std::thread::scope(|s| {
        for rank in &ranks {
            s.spawn(move || {
                for to in 0..rank.size() {
                    let text = [rank.rank().to_le_bytes(), to.to_le_bytes()].concat();
                    rank.send(to, 1, &text).unwrap();
                }
                for _ in 0..rank.size() {
                    let (from, text) = until(|| rank.receive(1).unwrap());
                    let right = [from.to_le_bytes(), rank.rank().to_le_bytes()].concat();
                    assert_eq!(text, right);
                }
            });
        }
    });
}
