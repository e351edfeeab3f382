//! Every input of the corpora, as found by the fuzzer, again.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fuzz::{TARGETS, Target};

/// The most bytes that all corpora take together.
const LIMIT: usize = 1 << 20;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn inputs(target: &Target) -> Vec<PathBuf> {
    let list = fs::read_dir(corpora().join(target.name));
    let list = list.unwrap_or_else(|e| panic!("no corpus of {}: {e}", target.name));
    let mut files: Vec<_> = list.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

/// Names the input that a panic is about.
struct About<'a>(&'a Target, &'a Path);

impl Drop for About<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(target, path) = self;
            eprintln!("try: fuzz/run try {} {}", target.name, path.display());
        }
    }
}

/// Held by who runs a target: some look at the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn replay(name: &str) {
    let _alone = alone();
    let target = fuzz::find(name).unwrap();
    let files = inputs(target);
    assert!(!files.is_empty(), "the corpus of {name} is empty");
    for path in &files {
        let bytes = fs::read(path).unwrap();
        let _about = About(target, path);
        (target.run)(&bytes);
    }
    println!("{name}: {} inputs", files.len());
}

macro_rules! replays {
    ($($test:ident $name:literal)*) => {
        $(#[test]
        fn $test() {
            replay($name);
        })*

        #[test]
        fn every_target_is_replayed() {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$($name),*]);
            let mut folders: Vec<_> = fs::read_dir(corpora())
                .unwrap()
                .map(|folder| folder.unwrap().file_name().into_string().unwrap())
                .collect();
            folders.sort();
            let mut sorted = names.clone();
            sorted.sort();
            assert_eq!(folders, sorted);
        }
    };
}

replays! {
    address "address"
    doorbell "doorbell"
    frame "frame"
    greeting "greeting"
    mp_context "mp-context"
    mp_control "mp-control"
    mp_frame "mp-frame"
    mp_notes "mp-notes"
    mp_session "mp-session"
    mp_store "mp-store"
    mprun_lines "mprun-lines"
    nic "nic"
    ring_reader "ring-reader"
    ring_writer "ring-writer"
    ring_pair "ring-pair"
    shm "shm"
    uverbs "uverbs"
    wqe "wqe"
}

#[test]
fn corpora_are_small() {
    let files = TARGETS.iter().flat_map(inputs);
    let bytes: usize = files.map(|file| fs::read(file).unwrap().len()).sum();
    assert!(bytes <= LIMIT, "{bytes} bytes");
}

/// Nothing, and bytes of every value, are inputs as well.
#[test]
fn plain_inputs() {
    let _alone = alone();
    let mut rng = fastrand::Rng::with_seed(1);
    for target in TARGETS {
        for len in [0, 1, 31, 64, 500] {
            let noise: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
            for bytes in [vec![0; len], vec![0xff; len], noise] {
                (target.run)(&bytes);
            }
        }
    }
}
