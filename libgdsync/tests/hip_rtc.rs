//! A HIP GPU for which no code object is committed: HIPRTC compiles the kernels, a cache keeps them, and
//! each failure of the compiler or of the cache has its reason in the error or changes nothing.

mod common;
mod standin;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::*;
use gdsync::gpu::Dims;
use gdsync::internals::Fill;
use standin::{Control, Driver, HIP_LIBRARY, Variant};

/// The environment of a process, besides the stand-in's.
type Env<'a> = &'a [(&'a str, &'a str)];

/// Set in the process of a test.
const COMPILED: &str = "COMPILED";

/// A folder that ends with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("{name}-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        Folder(folder)
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// The only file.
    fn file(&self) -> PathBuf {
        let files: Vec<_> = fs::read_dir(&self.0).unwrap().collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files.into_iter().next().unwrap().unwrap().path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the test `name` in a process on a gfx908, for which the library has no code.
fn run(name: &str, env: Env<'_>) {
    let code = format!(
        "{}/device/hip/gds_kernels.gfx942.co",
        env!("CARGO_MANIFEST_DIR")
    );
    let library = standin::build(&Variant::HIP7);
    let rtc = library.to_str().unwrap();
    let all = [
        ("STANDIN_ARCH", "gfx908"),
        ("STANDIN_RTC_CODE", &*code),
        ("GDS_HIPRTC_LIB", rtc),
    ];
    let all: Vec<_> = all.iter().chain(env).copied().collect();
    // The variant's environment is for the whole run of the test program.
    let all: &'static [(&str, &str)] = all
        .iter()
        .map(|(name, value)| (&*name.to_string().leak(), &*value.to_string().leak()))
        .collect::<Vec<_>>()
        .leak();
    standin::run(name, &library, &Variant::of(Driver::Hip7, None, all));
}

fn is_parent() -> bool {
    std::env::var_os(HIP_LIBRARY).is_none()
}

/// Opens the GPU, runs one of its kernels, and compares the number of compilations with `COMPILED`.
#[test]
fn kernels_run() {
    if is_parent() {
        return run("kernels_run", &[("GDS_HIP_CACHE", ""), (COMPILED, "1")]);
    }
    let gpu = Gpu::hip(0).unwrap();
    let expected: u64 = std::env::var(COMPILED).unwrap().parse().unwrap();
    assert_eq!(Control::open().compilations(), expected);
    let module = gpu.load(&gdsync::gpu::KERNELS).unwrap();
    let kernel = module.kernel("gds_fill").unwrap();
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let fill = Fill {
        at: memory.addr(),
        len: 64,
        seed: 7,
    };
    let stream = gpu.stream().unwrap();
    // SAFETY: fills memory that outlives the launch.
    unsafe { stream.launch(&kernel, Dims::linear(1, 64), fill.bytes()) }.unwrap();
    assert!(stream.synchronize(LIMIT).unwrap());
    let mut bytes = [0; 64];
    memory.read(0, &mut bytes).unwrap();
    assert_ne!(bytes, [0; 64]);
    assert_eq!(Control::open().compilations(), expected);
}

#[test]
fn what_was_compiled_is_kept() {
    let cache = Folder::new("hip-cache");
    let in_cache = [("GDS_HIP_CACHE", cache.text())];
    let compiled = |times, more: Env<'_>| {
        let env: Vec<_> = in_cache
            .iter()
            .chain(&[(COMPILED, times)])
            .chain(more)
            .copied()
            .collect();
        run("kernels_run", &env);
    };
    compiled("1", &[]);
    let whole = fs::read(cache.file()).unwrap();
    compiled("0", &[]);
    // A file that is cut off, changed or empty counts as missing, and is replaced.
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    for damaged in [&whole[..whole.len() / 2], &changed, &[]] {
        fs::write(cache.file(), damaged).unwrap();
        compiled("1", &[]);
        assert_eq!(fs::read(cache.file()).unwrap(), whole);
        compiled("0", &[]);
    }
    // Another release of the compiler, or another target, makes other code.
    compiled("1", &[("STANDIN_RTC_VERSION", "8")]);
    compiled("0", &[("STANDIN_RTC_VERSION", "8")]);
    compiled("0", &[]);
}

/// A file or a folder that another user may write is not read, and a link is not followed.
#[test]
fn code_of_another_user_is_not_loaded() {
    let cache = Folder::new("hip-shared-cache");
    let in_cache = [("GDS_HIP_CACHE", cache.text())];
    let compiled = |times| {
        let env = [in_cache[0], (COMPILED, times)];
        run("kernels_run", &env);
    };
    compiled("1");
    compiled("0");
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&cache.file(), 0o666);
    compiled("1");
    compiled("0");
    mode(&cache.0, 0o777);
    compiled("1");
    mode(&cache.0, 0o700);
    compiled("0");
    let (file, away) = (cache.file(), cache.0.with_extension("away"));
    fs::rename(&file, &away).unwrap();
    std::os::unix::fs::symlink(&away, &file).unwrap();
    compiled("1");
    assert!(!fs::symlink_metadata(&file).unwrap().is_symlink());
    fs::remove_file(away).unwrap();
}

#[test]
fn folder_of_the_cache_follows_the_environment() {
    let home = Folder::new("hip-home");
    let caches = home.0.join("caches");
    let caches = caches.to_str().unwrap();
    let by_home = [
        ("HOME", home.text()),
        ("XDG_CACHE_HOME", ""),
        (COMPILED, "1"),
    ];
    run("kernels_run", &by_home);
    assert_eq!(
        fs::read_dir(home.0.join(".cache/gdsync/hip"))
            .unwrap()
            .count(),
        1
    );
    run(
        "kernels_run",
        &[("XDG_CACHE_HOME", caches), (COMPILED, "1")],
    );
    assert_eq!(
        fs::read_dir(format!("{caches}/gdsync/hip"))
            .unwrap()
            .count(),
        1
    );
    // The folder cannot be created, because a file has its path.
    let file = format!("{caches}/file");
    fs::write(&file, "").unwrap();
    run("kernels_run", &[("GDS_HIP_CACHE", &file), (COMPILED, "1")]);
}

/// The GPU is refused with these words.
#[test]
fn gpu_is_refused() {
    if is_parent() {
        return run(
            "gpu_is_refused",
            &[("STANDIN_RTC_ERROR", "no"), ("NAMES", "no")],
        );
    }
    let error = Gpu::hip(0).unwrap_err();
    let text = error.to_string();
    for name in std::env::var("NAMES").unwrap().split('|') {
        assert!(text.contains(name), "{name}: {text}");
    }
    let kind = match std::env::var("INVALID") {
        Ok(_) => Kind::Invalid,
        Err(_) => Kind::Unsupported,
    };
    assert_eq!(error.kind(), kind, "{text}");
}

#[test]
fn failures_of_the_compiler_are_reasons() {
    let refused = |names: &str, more: Env<'_>| {
        let env: Vec<_> = [("GDS_HIP_CACHE", ""), ("NAMES", names)]
            .iter()
            .chain(more)
            .copied()
            .collect();
        run("gpu_is_refused", &env);
    };
    let line = "gdsync.hip:7:1: error: unknown type name";
    let names = format!(
        "gfx1100, gfx90a, gfx942, not for gfx908|hiprtcCompileProgram failed: \
         HIPRTC_ERROR_COMPILATION (6)|{line}"
    );
    refused(&names, &[("STANDIN_RTC_ERROR", line)]);
    refused(
        "not for gfx1036|unknown target",
        &[("STANDIN_ARCH", "gfx1036")],
    );
    refused(
        "HIPRTC_ERROR_OTHER (11)",
        &[("STANDIN_RTC_CODE", "/absent")],
    );
    let absent = "/absent/libhiprtc.so.7";
    refused(
        "HIPRTC, which compiles them, is missing|/absent/",
        &[("GDS_HIPRTC_LIB", absent)],
    );
}
