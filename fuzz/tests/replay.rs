//! Replays every input of the corpora that the fuzzer found.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fuzz::{TARGETS, Target};

/// Most bytes of all corpora together.
const LIMIT: usize = 1 << 20;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// A target's inputs with their names, from the ustar archive that `fuzz/run` packs.
fn inputs(target: &Target) -> Vec<(String, Vec<u8>)> {
    let path = corpora().join(target.name).with_extension("tar");
    let archive = fs::read(path).unwrap_or_else(|e| panic!("no corpus of {}: {e}", target.name));
    let mut inputs = Vec::new();
    let mut rest = &archive[..];
    loop {
        // A block of zeros ends an archive.
        let blocks = rest.split_at_checked(512);
        let (header, behind) = blocks.unwrap_or_else(|| panic!("{}.tar is cut", target.name));
        if header[0] == 0 {
            return inputs;
        }
        let field = |at: Range<usize>| str::from_utf8(&header[at]).unwrap().trim_end_matches('\0');
        let len = usize::from_str_radix(field(124..136), 8).unwrap();
        inputs.push((field(0..100).to_owned(), behind[..len].to_owned()));
        rest = &behind[len.next_multiple_of(512)..];
    }
}

/// Prints the name of the input when a panic occurs.
struct About<'a>(&'a Target, &'a str);

impl Drop for About<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(target, input) = self;
            eprintln!("try: fuzz/run try {} {input}", target.name);
        }
    }
}

/// Held while a target runs: some targets examine the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn replay(name: &str) {
    let _alone = alone();
    let target = fuzz::find(name).unwrap();
    let inputs = inputs(target);
    assert!(!inputs.is_empty(), "the corpus of {name} is empty");
    for (input, bytes) in &inputs {
        let _about = About(target, input);
        (target.run)(bytes);
    }
    println!("{name}: {} inputs", inputs.len());
}

macro_rules! replays {
    ($($test:ident $name:literal)*) => {
        $(#[test]
        fn $test() {
            replay($name);
        })*

        #[test]
        fn every_target_has_a_corpus_and_a_test() {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$($name),*]);
            let mut archives: Vec<_> = fs::read_dir(corpora())
                .unwrap()
                .map(|file| file.unwrap().file_name().into_string().unwrap())
                .collect();
            archives.sort();
            let mut sorted: Vec<_> = names.iter().map(|name| format!("{name}.tar")).collect();
            sorted.sort();
            assert_eq!(archives, sorted);
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
    tcp "tcp"
    uverbs "uverbs"
    wqe "wqe"
}

#[test]
fn corpora_are_below_the_size_limit() {
    let inputs = TARGETS.iter().flat_map(inputs);
    let bytes: usize = inputs.map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes <= LIMIT, "{bytes} bytes");
}

/// The empty input, and inputs of constant and random bytes.
#[test]
fn constant_and_random_inputs_break_no_rule() {
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
