//! Jobs whose ranks are threads of one process: at a store, in a directory.
#![allow(dead_code, reason = "each test uses a part")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mp::Result;
use mp::bootstrap::tcp::{Join, Server};
use mp::bootstrap::{Bootstrap, Directory, Secret, Tcp};

/// Far longer than any operation in these tests takes.
pub const LONG: Duration = Duration::from_secs(60);

/// Polls until there is a result.
pub fn until<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(value) = what() {
            return value;
        }
        assert!(Instant::now() < end, "never happened");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The next message that a rank receives.
pub fn next(rank: &dyn Bootstrap, topic: u64) -> (u32, Vec<u8>) {
    until(|| rank.receive(topic).unwrap())
}

/// The results of these calls, made concurrently.
pub fn together<T: Send>(calls: impl IntoIterator<Item = impl FnOnce() -> T + Send>) -> Vec<T> {
    std::thread::scope(|s| {
        let threads: Vec<_> = calls.into_iter().map(|call| s.spawn(call)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// A store, and the parameters with which ranks join it.
pub struct Job {
    pub server: Server,
    pub secret: Secret,
    pub size: u32,
}

impl Job {
    pub fn new(size: u32) -> Job {
        let secret = Secret::random().unwrap();
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::start(anywhere, &secret, "test", size).unwrap();
        Job {
            server,
            secret,
            size,
        }
    }

    pub fn join(&self, rank: u32) -> Join {
        let store = self.server.address().to_string();
        Join::new(store, (rank, self.size), &self.secret, LONG).name("test")
    }

    pub fn all(&self) -> Vec<Tcp> {
        let joined = together((0..self.size).map(|rank| move || Tcp::join(&self.join(rank))));
        joined.into_iter().map(Result::unwrap).collect()
    }
}

/// A path in the file system that only this test uses; removed at the end.
pub struct Place(pub PathBuf);

impl Place {
    pub fn new(name: &str) -> Place {
        let name = format!("mp-test-{name}-{}", std::process::id());
        Place(std::env::temp_dir().join(name))
    }

    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect::<Vec<_>>();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// All ranks of a job in a directory.
pub fn all_in(path: &Path, size: u32) -> Vec<Directory> {
    let join = |rank| move || Directory::join(path, rank, size, LONG).unwrap();
    together((0..size).map(join))
}
