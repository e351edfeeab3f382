//! Every command in its short form over CUDA: always on a stand-in for its driver, and on the first
//! GPU if there is one. If there is none, the test reports that, and `GDS_REQUIRE` turns it into a
//! failure.

mod shared;

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Arguments, Failed, Trial};

use shared::short::{On, SHORT, WRONG, play, play_wrong};

fn main() {
    let mut arguments = Arguments::from_args();
    // Each trial starts processes that need the processors.
    arguments.test_threads = Some(1);
    let mut trials = vec![];
    match standin() {
        Ok(library) => trials.extend(trials_on("stand-in", Some(library))),
        Err(why) => trials.push(Trial::test("stand-in: built", || Err(why.into()))),
    }
    match gdsync::Gpu::cuda(0) {
        Ok(_) => trials.extend(trials_on("cuda", None)),
        Err(e) => {
            let what = format!("cuda (needs cuda: {e})");
            let absent = e.kind() == gdsync::Kind::Absent && !is_required("cuda");
            let trial = Trial::test(what, move || Err(e.to_string().into()));
            trials.push(trial.with_ignored_flag(absent));
        }
    }
    libtest_mimic::run(&arguments, trials).exit()
}

fn is_required(what: &str) -> bool {
    let required = std::env::var("GDS_REQUIRE").unwrap_or_default();
    required.split(',').any(|word| word.trim() == what)
}

fn trials_on(name: &str, library: Option<PathBuf>) -> Vec<Trial> {
    let on = On {
        gpu: "cuda",
        runtime: "cuda",
        library,
    };
    let trial = |title: String, run: Box<dyn Fn(&On) + Send>| {
        let on = on.clone();
        Trial::test(title, move || {
            run(&on);
            Ok::<(), Failed>(())
        })
    };
    let short = SHORT.iter().map(|short| {
        let title = format!("{name}: {}", short.0);
        trial(title, Box::new(move |on| play(short, on)))
    });
    let wrong = WRONG.into_iter().map(|wrong| {
        let title = format!(
            "{name}: {} with an injected error",
            wrong.0.split(' ').next().unwrap()
        );
        trial(title, Box::new(move |on| play_wrong(wrong, on)))
    });
    short.chain(wrong).collect()
}

/// The library's stand-in for libcuda, which runs kernels that are linked into it, with those of
/// messages and the benchmark's among them.
fn standin() -> Result<PathBuf, String> {
    let benches = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = benches.join("../libgdsync");
    let out =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("standin-{}", std::process::id()));
    std::fs::create_dir_all(&out).map_err(|e| e.to_string())?;
    let at = out.join("libcuda.so.1");
    let mut sources = Vec::new();
    for (folder, extension) in [
        (library.join("tests/standin"), "cpp"),
        (library.join("device"), "cu"),
        (benches.join("../libmp/device"), "cu"),
        (benches.join("device"), "cu"),
    ] {
        let entries =
            std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
        sources.extend(files.filter(|path| path.extension().is_some_and(|e| e == extension)));
    }
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let mut command = Command::new(compiler);
    // As libgdsync/tests/standin/mod.rs does it.
    command.args([
        "-std=c++17",
        "-fPIC",
        "-O1",
        "-pthread",
        "-U_FORTIFY_SOURCE",
        "-shared",
    ]);
    command.args([
        "-Wl,-Bsymbolic",
        "-Wl,-z,nodelete",
        "-Wl,-soname,libcuda.so.1",
    ]);
    for include in [
        library.join("tests/standin"),
        library.join("device"),
        library.join("../base/gdsync-build/device"),
        benches.join("../libmp/device"),
        benches.join("device"),
    ] {
        command.arg("-I").arg(include);
    }
    command.args(["-x", "c++"]).args(sources).arg("-o").arg(&at);
    let output = command
        .output()
        .map_err(|e| format!("a C++ compiler: {e}"))?;
    match output.status.success() {
        true => Ok(at),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
