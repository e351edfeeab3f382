//! The start of a program as users start it, by mprun or with all ranks as threads, and the checks
//! of its output. The tests of halo2d, halo3d and particles use this file, too.

#![allow(dead_code)] // No test uses all of it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use mp::bootstrap::Local;
use mp::gdsync::Gpu;
use mp::{Builder, Context};

/// The limit of waits of ranks as threads.
pub const LIMIT: Duration = Duration::from_secs(60);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `body` on `ranks` ranks, which are threads with a software GPU each, and returns their
/// results in the order of the ranks. `set` configures the contexts.
pub fn on_ranks<T: Send>(
    ranks: u32,
    set: impl Fn(Builder) -> Builder + Sync,
    body: impl Fn(&Context) -> T + Sync,
) -> Vec<T> {
    let rank = |bootstrap| {
        let gpu = Gpu::soft().unwrap();
        let builder = set(Context::builder().timeout(LIMIT));
        let ctx = builder.bootstrap(bootstrap).gpu(&gpu).build().unwrap();
        let result = body(&ctx);
        ctx.close(LIMIT).unwrap();
        result
    };
    std::thread::scope(|scope| {
        let start = |bootstrap| scope.spawn(|| rank(bootstrap));
        let threads: Vec<_> = Local::ranks(ranks).into_iter().map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

pub fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The mprun next to the examples; it is built if it is absent.
pub fn mprun() -> PathBuf {
    static BUILT: Once = Once::new();
    // Tests are in the folder `deps` of the folder of the programs.
    let test = std::env::current_exe().unwrap();
    let folder = test.ancestors().nth(2).unwrap();
    let path = folder.join("mprun");
    BUILT.call_once(|| {
        if path.exists() {
            return;
        }
        let release = folder.file_name().is_some_and(|name| name == "release");
        let profile = if release { "release" } else { "test" };
        let status = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--package",
                "mprun",
                "--profile",
                profile,
            ])
            .arg("--target-dir")
            .arg(folder.parent().unwrap())
            .status()
            .unwrap();
        assert!(status.success(), "building mprun: {status}");
    });
    path
}

pub fn run(command: &mut Command) -> Output {
    let _alone = alone();
    command
        .env("GDS_GPU", "soft")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

pub fn launch(ranks: u32, command: &[&str]) -> Output {
    let mut mprun = Command::new(mprun());
    mprun.args(["-n", &ranks.to_string(), "--timeout", "120"]);
    run(mprun.args(command))
}

pub fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|b| String::from_utf8_lossy(b));
    format!("{}\n{out}{err}", output.status)
}

/// Checks that the program succeeded, and that its only line contains these words.
pub fn well(output: &Output, words: &[&str]) {
    assert!(output.status.success(), "{}", text(output));
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(out.lines().count(), 1, "{}", text(output));
    for word in words {
        assert!(out.contains(word), "{word} is not in {}", text(output));
    }
}

/// Checks that the program failed with these words.
pub fn fails(output: &Output, words: &str) {
    assert!(!output.status.success(), "{}", text(output));
    assert!(
        text(output).contains(words),
        "{words} is not in {}",
        text(output)
    );
}

pub fn threads(program: &str, ranks: u32, options: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(["--ranks-as-threads", &ranks.to_string()]);
    run(command.args(options))
}

/// Ends a process that a failed test would leave behind.
pub struct Rank(pub Child);

impl Drop for Rank {
    fn drop(&mut self) {
        // Both calls fail only for a process that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts ranks of a program that meet in a private folder and run until they are killed; all run
/// two seconds later.
pub fn running(
    program: &str,
    arguments: &[&str],
    size: u32,
    stdio: fn(&mut Command),
) -> (Vec<Rank>, PathBuf) {
    let folder = std::env::temp_dir().join(format!("mp-running-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let start = |rank: u32| {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("GDS_GPU", "soft")
            .env("MP_RANK", rank.to_string())
            .env("MP_SIZE", size.to_string())
            .env("MP_STORE", format!("file://{}", folder.display()));
        stdio(&mut command);
        Rank(command.spawn().unwrap())
    };
    let mut ranks: Vec<Rank> = (0..size).map(start).collect();
    std::thread::sleep(Duration::from_secs(2));
    for rank in &mut ranks {
        let ended = rank.0.try_wait().unwrap();
        assert!(ended.is_none(), "a rank ended by itself");
    }
    (ranks, folder)
}

/// Kills one rank of a running program: all others end with an error that names it.
pub fn killed_rank_is_named(program: &str, arguments: &[&str], size: u32, killed: usize) {
    let (mut ranks, folder) = running(program, arguments, size, |command| {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
    });
    ranks[killed].0.kill().unwrap();
    let dead = ranks.remove(killed);
    // The output ends when the process ends, which is bounded by the time limits of the start and
    // of messages.
    let said: Vec<String> = ranks
        .iter_mut()
        .map(|rank| std::io::read_to_string(rank.0.stderr.take().unwrap()).unwrap())
        .collect();
    for (mut rank, said) in ranks.into_iter().zip(said) {
        assert!(!rank.0.wait().unwrap().success());
        assert!(said.contains(&format!("rank {killed}")), "{said}");
    }
    drop(dead);
    fs::remove_dir_all(&folder).unwrap();
}
