//! Stand-ins for `libcuda.so.1` and `libamdhip64.so`, built from the C++ beside this file: the
//! driver's functions with their order, their refusals and the calls that block, on memory of this
//! process. Files `cuda_*` and `hip_*` belong to one of them; the others are compiled for both.
//! `inside!` runs a test in a separate process with one; [`Control`] reads and switches its state.

#![allow(dead_code, unused_macros, unused_imports)]

// A test that includes this file and another one that includes it has it twice.
#[allow(clippy::duplicate_mod)]
#[path = "../child/mod.rs"]
pub mod child;

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Names the test that a child runs.
const CHILD: &str = "STANDIN_CHILD";
/// The variables with the paths of the libraries, as gdsync reads them.
pub const LIBRARY: &str = "GDS_CUDA_LIB";
pub const HIP_LIBRARY: &str = "GDS_HIP_LIB";

/// The variable by which a stand-in for HIP has release 7.
pub const HIP_7: (&str, &str) = ("STANDIN_VERSION", "70051831");

/// The driver that a stand-in stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// NVIDIA's.
    #[default]
    Cuda,
    /// AMD's, HIP 6.
    Hip6,
    /// AMD's, HIP 7, with exports of address ranges.
    Hip7,
}

/// A function that HIP 6 does not have.
const NEW_IN_HIP_7: &str = "hipMemGetHandleForAddressRange";

impl Driver {
    /// The name of the library.
    const fn soname(self) -> &'static str {
        match self {
            Driver::Cuda => "libcuda.so.1",
            Driver::Hip6 => "libamdhip64.so.6",
            Driver::Hip7 => "libamdhip64.so.7",
        }
    }

    /// Whether this source belongs to another driver.
    fn lacks(self, source: &Path) -> bool {
        let other = if self == Driver::Cuda {
            "hip_"
        } else {
            "cuda_"
        };
        source
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with(other)
    }
}

/// One build of a stand-in, and the process it is loaded into.
#[derive(Clone, Debug, Default)]
pub struct Variant {
    /// The driver.
    pub driver: Driver,
    /// A function that it does not export.
    pub without: Option<&'static str>,
    /// Environment of the process: `STANDIN_VERSION`, `STANDIN_DEVICES`,
    /// `CUDA_DEVICE_MAX_CONNECTIONS`, `GPU_MAX_HW_QUEUES`, `STANDIN_ARCH`, ...
    pub env: &'static [(&'static str, &'static str)],
}

impl Variant {
    /// The stand-in for HIP 6.
    pub const HIP6: Variant = Variant::of(Driver::Hip6, None, &[]);
    /// The stand-in for HIP 7.
    pub const HIP7: Variant = Variant::of(Driver::Hip7, None, &[]);

    /// A variant with all its fields.
    pub const fn of(
        driver: Driver,
        without: Option<&'static str>,
        env: &'static [(&'static str, &'static str)],
    ) -> Variant {
        Variant {
            driver,
            without,
            env,
        }
    }

    /// A variant of CUDA's with this in the environment of its process.
    pub const fn env(env: &'static [(&'static str, &'static str)]) -> Variant {
        Variant::of(Driver::Cuda, None, env)
    }

    /// A variant of CUDA's that does not export this function.
    pub const fn without(function: &'static str) -> Variant {
        Variant::of(Driver::Cuda, Some(function), &[])
    }
}

/// Continues in a separate process in which the stand-in is the driver; the first line of a test.
macro_rules! inside {
    ($variant:expr) => {
        let name = crate::standin::child::test_name!();
        if !crate::standin::is_child(name, &$variant) {
            return;
        }
    };
}
pub(crate) use inside;

/// A test for each line, in a separate process: its name, the variant of the stand-in if it is not
/// the plain one, and its body.
macro_rules! cases {
    (@) => { crate::standin::Variant::default() };
    (@ $variant:expr) => { $variant };
    ($($(#[$doc:meta])* $name:ident $(in $variant:expr)? => $body:expr;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            crate::standin::inside!(crate::standin::cases!(@ $($variant)?));
            $body;
        }
    )*};
}
pub(crate) use cases;

/// Whether this is the process for the test `name`, with the stand-in as its driver. If not, the
/// function starts that process, whose failure is the test's.
pub fn is_child(name: &str, variant: &Variant) -> bool {
    child::is(CHILD, name) || {
        run(name, &build(variant), variant);
        false
    }
}

/// Runs the test `name` in a separate process in which `library` is the driver.
pub fn run(name: &str, library: &Path, variant: &Variant) {
    let path = match variant.driver {
        Driver::Cuda => LIBRARY,
        Driver::Hip6 | Driver::Hip7 => HIP_LIBRARY,
    };
    child::run(CHILD, name, |command| {
        command
            .env_remove("CUDA_DEVICE_MAX_CONNECTIONS")
            .env_remove("CUDA_MODULE_LOADING")
            .env_remove("GPU_MAX_HW_QUEUES")
            .env_remove("GPU_STREAMOPS_CP_WAIT")
            .env_remove(LIBRARY)
            .env_remove(HIP_LIBRARY)
            .env_remove("GDS_GPU")
            .env_remove("GDS_LOWER")
            .env_remove("MP_LOCAL_RANK")
            .env_remove("LOCAL_RANK")
            .env_remove("SLURM_LOCALID")
            .env(path, library)
            // Not the machine's own.
            .env("GDS_HSA_LIB", "/absent/libhsa-runtime64.so.1")
            .env("GDS_HIPRTC_LIB", "/absent/libhiprtc.so")
            .envs((variant.driver == Driver::Hip7).then_some(HIP_7))
            .envs(variant.env.iter().copied());
    });
}

/// The library, rebuilt if its sources have changed.
pub fn build(variant: &Variant) -> PathBuf {
    build_with(variant, &[])
}

/// As [`build`], with kernels and functions in more folders, whose paths start at libgdsync's.
pub fn build_with(variant: &Variant, more: &[&str]) -> PathBuf {
    // Also for packages beside gdsync, and for those of other workspaces.
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut above = package.ancestors().map(|folder| folder.join("libgdsync"));
    let root = above.find(|root| root.exists()).unwrap();
    let folders = [
        "tests/standin",
        "tests/kernels",
        "device",
        "../libmp/device",
        "../base/gdsync-build/device",
    ];
    let folders = folders.iter().chain(more).map(|folder| root.join(folder));
    let folders: Vec<PathBuf> = folders.collect();
    let mut hasher = DefaultHasher::new();
    let mut sources = Vec::new();
    for folder in &folders {
        for file in files(folder, &["cpp", "hpp", "cu"]) {
            (&file, std::fs::read(&file).unwrap()).hash(&mut hasher);
        }
        sources.extend(files(folder, &["cpp", "cu"]));
    }
    sources.retain(|source| !variant.driver.lacks(source));
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("standin-{:x}", hasher.finish()));
    // Both stand-ins for HIP have the same objects.
    let hip = variant.driver != Driver::Cuda;
    let objects = out.join(if hip { "objects-hip" } else { "objects" });
    if !objects.exists() {
        once(&objects, |folder| compile(&sources, &folders, hip, folder));
    }
    let soname = variant.driver.soname();
    let name = format!("{soname}-{}", variant.without.unwrap_or("all"));
    once(&out.join(&name), |folder| link(&objects, variant, folder));
    out.join(name).join(soname)
}

/// Makes a folder, complete or not at all: tests of several processes build at the same time.
fn once(folder: &Path, make: impl FnOnce(&Path)) {
    if folder.exists() {
        return;
    }
    // Two threads of one process may build too.
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let partial = folder.with_extension(format!("{}-{count}", std::process::id()));
    std::fs::create_dir_all(&partial).unwrap();
    make(&partial);
    if std::fs::rename(&partial, folder).is_err() {
        assert!(folder.exists(), "cannot make {}", folder.display());
        std::fs::remove_dir_all(&partial).unwrap();
    }
}

fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let extension = path.extension().and_then(OsStr::to_str);
            extensions.iter().any(|e| extension == Some(e))
        })
        .collect();
    found.sort();
    found
}

fn compiler() -> Command {
    Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()))
}

fn compile(sources: &[PathBuf], include: &[PathBuf], hip: bool, out: &Path) {
    let children = sources.iter().enumerate().map(|(i, source)| {
        let mut command = compiler();
        // Fibers jump from stack to stack, which the fortified longjmp reports as an error.
        command.args([
            "-std=c++17",
            "-fPIC",
            "-O1",
            "-pthread",
            "-U_FORTIFY_SOURCE",
        ]);
        if hip {
            command.arg("-DSTANDIN_HIP");
        }
        for folder in include {
            command.arg("-I").arg(folder);
        }
        command.args(["-x", "c++", "-c"]).arg(source);
        command.arg("-o").arg(out.join(format!("{i}.o")));
        (source, command.spawn().expect("a C++ compiler"))
    });
    let children: Vec<_> = children.collect();
    for (source, mut child) in children {
        assert!(child.wait().unwrap().success(), "{}", source.display());
    }
}

fn link(objects: &Path, variant: &Variant, out: &Path) {
    let mut command = compiler();
    // It has a thread that never ends, so it is never unloaded.
    command.args(["-shared", "-pthread", "-Wl,-Bsymbolic", "-Wl,-z,nodelete"]);
    let soname = variant.driver.soname();
    command.arg(format!("-Wl,-soname,{soname}"));
    let old = variant.driver == Driver::Hip6;
    let hidden = old.then_some(NEW_IN_HIP_7).into_iter();
    let hidden: String = hidden
        .chain(variant.without)
        .map(|name| format!("{name}; "))
        .collect();
    if !hidden.is_empty() {
        let script = out.join("exports");
        std::fs::write(&script, format!("{{ local: {hidden}}};")).unwrap();
        command.arg(format!("-Wl,--version-script={}", script.display()));
    }
    command.args(files(objects, &["o"]));
    command.arg("-o").arg(out.join(soname));
    assert!(command.status().unwrap().success());
}

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Methods of a type that has a `get` like [`Control::get`]: each calls the function of this name
/// with the same arguments.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $out:ty)? = $symbol:literal;)*) => {$(
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub fn $name(&self, $($arg: $ty),*) $(-> $out)? {
            // SAFETY: as the stand-in defines it.
            let f: unsafe extern "C" fn($($ty),*) $(-> $out)? = unsafe { self.get($symbol) };
            // SAFETY: the tests pass live memory, or values that it must refuse.
            unsafe { f($($arg),*) }
        }
    )*};
}
pub(crate) use functions;

/// The stand-in of this process: its functions, and the state that tests read and switch.
#[derive(Clone, Copy, Debug)]
pub struct Control(*mut c_void);

impl Control {
    /// The library that gdsync loads in this process.
    pub fn open() -> Control {
        let path = std::env::var(LIBRARY).or(std::env::var(HIP_LIBRARY));
        let path = path.expect("not in a process of `inside!`");
        let path = CString::new(path).unwrap();
        const NOW: c_int = 2;
        // SAFETY: a terminated string; the library's initialisers access no memory of this
        // process's Rust code.
        let handle = unsafe { dlopen(path.as_ptr(), NOW) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        Control(handle)
    }

    /// A function of the library.
    ///
    /// # Safety
    /// `F` is the type of the function of this name.
    pub unsafe fn get<F: Copy>(&self, name: &str) -> F {
        let symbol = CString::new(name).unwrap();
        // SAFETY: a handle that stays open, a terminated string.
        let at = unsafe { dlsym(self.0, symbol.as_ptr()) };
        assert!(!at.is_null(), "{name} is missing");
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the caller promises that it is a function of this type; the sizes agree.
        unsafe { std::mem::transmute_copy(&at) }
    }

    functions! {
        /// Starts the log of calls, or stops it.
        record(on: bool) = "standin_record";
        /// Loses the device, now (0) or with the operation `after` from here.
        lose_device(code: c_int, after: u64) = "standin_lose_device";
        /// Sets a device attribute.
        set_attribute(attribute: c_int, value: c_int) = "standin_set_attribute";
        /// Makes memory I/O memory; with length 0, ordinary memory again.
        io_memory(at: *mut u8, len: usize) = "standin_io_memory";
        /// Number of enqueues that blocked on a full stream.
        full() -> u64 = "standin_full";
        /// Whether HIP's register for flushes was written since the last call.
        flushed() -> bool = "standin_flushed";
        /// Number of compilations by HIPRTC.
        compilations() -> u64 = "standin_compilations";
        /// Number of memory operations that have run.
        operations() -> u64 = "standin_operations";
        /// Number of streams that wait now.
        waiting() -> u64 = "standin_waiting";
    }

    fn text(&self, name: &str) -> String {
        type Give = unsafe extern "C" fn(*mut c_char, usize) -> usize;
        // SAFETY: the texts in control.cpp have this type.
        let f: Give = unsafe { self.get(name) };
        // SAFETY: a null pointer is allowed as the destination.
        let len = unsafe { f(std::ptr::null_mut(), 0) };
        // The text may have grown meanwhile: the rest is cut off.
        let mut out = vec![0u8; len + 1];
        // SAFETY: memory of this length.
        unsafe { f(out.as_mut_ptr().cast(), out.len()) };
        CStr::from_bytes_until_nul(&out)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    }

    /// The logged calls: `thread function arguments = error`, and indented lines with their
    /// contents.
    pub fn calls(&self) -> String {
        self.text("standin_calls")
    }

    /// After `after` more calls, the function returns this code.
    pub fn fail(&self, name: &str, code: i32, after: u64) {
        type Fail = unsafe extern "C" fn(*const c_char, c_int, u64);
        // SAFETY: as control.cpp defines it.
        let f: Fail = unsafe { self.get("standin_fail") };
        let name = CString::new(name).unwrap();
        // SAFETY: a terminated string.
        unsafe { f(name.as_ptr(), code, after) };
    }

    /// Calls that blocked behind waiting streams: thread and function.
    pub fn blocked(&self) -> Vec<(u64, String)> {
        self.text("standin_blocked")
            .lines()
            .map(|line| {
                let (thread, function) = line.split_once(' ').unwrap();
                (thread.parse().unwrap(), function.to_owned())
            })
            .collect()
    }

    /// Calls so far that named a destroyed stream: thread and function. Returning them clears them;
    /// a process that ends with others fails.
    pub fn strays(&self) -> Vec<String> {
        let text = self.text("standin_strays");
        text.lines().map(str::to_owned).collect()
    }

    /// Numbers of live objects, by name.
    pub fn live(&self) -> HashMap<String, u64> {
        self.text("standin_live")
            .lines()
            .map(|line| {
                let (name, n) = line.split_once(' ').unwrap();
                (name.to_owned(), n.parse().unwrap())
            })
            .collect()
    }
}

/// The calling thread's name in the stand-in.
pub fn thread() -> u64 {
    let path = std::fs::read_link("/proc/thread-self").unwrap();
    path.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Waits until `condition` holds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: never");
        std::thread::sleep(Duration::from_millis(1));
    }
}
