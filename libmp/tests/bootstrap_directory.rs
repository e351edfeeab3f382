//! Ranks that meet in a directory, all in this process.

#[path = "common/jobs.rs"]
mod jobs;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jobs::{LONG, Place, all_in as all, until};
use mp::Kind;
use mp::bootstrap::{Bootstrap, Directory, MAX_MESSAGE, WINDOW};

#[test]
fn directory_is_created_for_this_user_only() {
    let place = Place::new("mode");
    let rank = all(&place.0, 1);
    let mode = fs::metadata(&place.0).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    drop(rank);
}

/// A rank that receives one topic also fetches messages of other topics.
#[test]
fn messages_of_other_topics_are_kept_up_to_the_window_of_each_sender() {
    let place = Place::new("window");
    let ranks = all(&place.0, 2);
    let block = vec![3; MAX_MESSAGE];
    let most = WINDOW as usize / MAX_MESSAGE;
    for to in 0..2 {
        // Messages to itself wait in the inbox; messages to another rank also wait in that rank's
        // mailbox.
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
fn error_names_missing_ranks() {
    let place = Place::new("missing");
    let give_up = |rank, size| {
        let e = Directory::join(&place.0, rank, size, Duration::from_millis(200)).unwrap_err();
        assert_eq!((e.kind(), e.limit()), (Kind::Missing, Some(200)));
        e
    };
    assert_eq!(give_up(1, 2).rank(), Some(0));
    assert_eq!(place.names(), [""; 0]);
    std::thread::scope(|s| {
        // This rank waits longer than the rank that times out, so that the latter sees it as
        // joined.
        let come = |rank: u32| {
            let path = &place.0;
            let joining = s.spawn(move || Directory::join(path, rank, 4, LONG));
            let note = format!("rank-{rank}");
            until(|| place.names().contains(&note).then_some(()));
            joining
        };
        let two = come(2);
        let e = give_up(0, 4);
        assert!(e.to_string().contains("ranks 1, 3 did not join"), "{e}");
        let zero = come(0);
        let e = give_up(1, 4);
        assert_eq!(e.rank(), Some(3), "{e}");
        // The job starts once all ranks have joined.
        for joining in [zero, come(1), two, come(3)] {
            joining.join().unwrap().unwrap();
        }
    });
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn join_waits_for_a_late_rank() {
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
fn duplicate_rank_and_different_job_size_are_refused() {
    let place = Place::new("second");
    let ranks = all(&place.0, 2);
    let e = Directory::join(&place.0, 1, 2, LONG).unwrap_err();
    assert_eq!((e.kind(), e.rank()), (Kind::Protocol, Some(1)));
    assert!(e.to_string().contains("already rank 1"), "{e}");
    // The job continues.
    ranks[0].send(1, 0, b"still").unwrap();
    assert!(ranks[1].receive(0).unwrap().is_some());
    drop(ranks);

    // Rank 1 joins again until rank 0 has seen it.
    let seen = AtomicBool::new(false);
    let e = std::thread::scope(|s| {
        s.spawn(|| {
            while !seen.load(Ordering::Relaxed) {
                Directory::join(&place.0, 1, 3, Duration::from_millis(500)).unwrap_err();
            }
        });
        let joined = Directory::join(&place.0, 0, 2, LONG);
        seen.store(true, Ordering::Relaxed);
        joined.unwrap_err()
    });
    assert_eq!((e.kind(), e.rank()), (Kind::Protocol, Some(1)));
    assert!(e.to_string().contains("expects 3 ranks"), "{e}");
    let e = Directory::join(&place.0, 2, 2, LONG).unwrap_err();
    assert_eq!(e.kind(), Kind::Invalid);
}

#[test]
fn directory_writable_by_others_is_refused() {
    let place = Place::new("open");
    fs::create_dir(&place.0).unwrap();
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = |path: &Path| Directory::join(path, 0, 1, LONG).unwrap_err().kind();
    assert_eq!(refused(&place.0), Kind::Invalid);
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o700)).unwrap();
    let link = place.0.join("link");
    std::os::unix::fs::symlink(&place.0, &link).unwrap();
    assert_eq!(refused(&link), Kind::Invalid);
    let file = place.0.join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(refused(&file), Kind::Invalid);
    assert_eq!(refused(&place.0.join("a/b")), Kind::System);
}

#[test]
fn files_of_dead_ranks_are_not_used_by_a_new_job() {
    let place = Place::new("stale");
    // All processes of a job were killed: its files remain, without locks.
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
    assert_eq!(place.names(), [""; 0]);
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

/// Copies the files of a directory into another one, which is created if it is absent.
fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let mut cp = Command::new("cp");
    let copied = cp.arg("-r").arg(from.join(".")).arg(to).status();
    assert!(copied.unwrap().success());
}

#[test]
fn malformed_mail_is_an_error_and_unknown_names_are_ignored() {
    let place = Place::new("garbage");
    let ranks = all(&place.0, 2);
    let names = place.names();
    let mailbox = names.iter().find(|n| n.starts_with("to-1-")).unwrap();
    let mailbox = place.0.join(mailbox);
    for name in [".hidden", "x", "0.7", "9.0", "1.1.1"] {
        fs::write(mailbox.join(name), "nonsense").unwrap();
    }
    assert_eq!(ranks[1].receive(0).unwrap(), None);
    // While a message is missing, no later message of its sender is received.
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
