//! Simulated machines: trees from `tests/machines`, and stand-in libraries that the test compiles.

#![allow(dead_code, reason = "each test binary uses its part")]

#[path = "../../../../base/gdsync-sys/tests/shared/mod.rs"]
mod shared;

pub use gdsync_doctor::Libraries;
use gdsync_doctor::uses::Use;
use gdsync_doctor::{Machine, Report, examine};
use gdsync_sys::cuda::Cuda;
use gdsync_sys::hip::Hip;
use gdsync_sys::mlx5::Mlx5;
use gdsync_sys::verbs::Ibverbs;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The folder for trees and libraries.
pub const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// The text of a file beside the tests.
pub fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A machine's `/`, removed at the end.
pub struct Tree(pub PathBuf);

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Tree {
    /// Writes one more file.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("it can be made");
        fs::write(path, text).expect("it can be written");
    }
}

/// Makes the tree that `machines/NAME.tree` describes: a line is a path, ` = ` and a text in
/// which `\n` ends a line; a path that ends in `/` is a folder.
pub fn tree(name: &str) -> Tree {
    // Counts the trees of this process; nothing is ordered by it.
    static MADE: AtomicU32 = AtomicU32::new(0);
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    let tree = Tree(Path::new(SCRATCH).join(format!("{name}.{}.{made}", std::process::id())));
    let root = &tree.0;
    let _ = fs::remove_dir_all(root);
    fs::create_dir_all(root).expect("the target folder can be written");
    for line in text(&format!("machines/{name}.tree")).lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(folder) = line.strip_suffix('/') {
            fs::create_dir_all(root.join(folder)).expect("it can be made");
            continue;
        }
        let (path, text) = line.split_once(" = ").expect("PATH = TEXT");
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("it can be made");
        fs::write(path, text.replace("\\n", "\n") + "\n").expect("it can be written");
    }
    tree
}

/// Attributes of a GPU by their numbers.
pub type Attributes = &'static [(u32, i32)];

/// A libcuda with `gpus`, whose functions return `failing` for the function named in it.
pub fn libcuda(name: &str, gpus: &[(&str, Attributes)], failing: (&str, i32)) -> PathBuf {
    compile_libcuda(name, gpus, failing, "")
}

/// A libcuda with `gpus` that lacks an optional function.
pub fn libcuda_without(name: &str, gpus: &[(&str, Attributes)], function: &str) -> PathBuf {
    compile_libcuda(name, gpus, ("", 0), function)
}

fn compile_libcuda(
    name: &str,
    gpus: &[(&str, Attributes)],
    failing: (&str, i32),
    without: &str,
) -> PathBuf {
    let mut source = text("standin-cuda.c");
    let made = [
        "cuInit",
        "cuDriverGetVersion",
        "cuGetErrorName",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceGetAttribute",
        "cuDeviceGetPCIBusId",
        "cuDeviceTotalMem_v2",
    ];
    for name in Cuda::REQUIRED.iter().filter(|name| !made.contains(name)) {
        source += &format!("int {name}(void) {{ return 801; }}\n");
    }
    // The doctor does not call these: it checks that the library has them.
    let optional = [
        "cuMemCreate",
        "cuMemImportFromShareableHandle",
        "cuMemGetHandleForAddressRange",
        "cuFuncLoad",
        "cuFlushGPUDirectRDMAWrites",
    ];
    for name in optional.iter().filter(|name| **name != without) {
        source += &format!("int {name}(void) {{ return 801; }}\n");
    }
    let names: Vec<String> = gpus.iter().map(|(name, _)| format!("{name:?}")).collect();
    let cases: String = gpus
        .iter()
        .enumerate()
        .flat_map(|(gpu, (_, attributes))| attributes.iter().map(move |a| (gpu, a)))
        .map(|(gpu, (number, value))| {
            format!("if (gpu == {gpu} && a == {number}) return {value};\n")
        })
        .collect();
    let head = format!(
        "#define COUNT {}\n#define FAILING {:?}\n#define CODE {}\n\
         static const char *const names[] = {{ {} 0 }};\n\
         static int attribute(int gpu, int a) {{\n{cases}return 0;\n}}\n",
        gpus.len(),
        failing.0,
        failing.1,
        names
            .iter()
            .map(|name| name.clone() + ", ")
            .collect::<String>(),
    );
    shared::compile(Path::new(SCRATCH), name, &(head + &source))
}

/// A libamdhip64 from `standin-hip.c` with these definitions before it.
pub fn compile_libhip(name: &str, head: &str) -> PathBuf {
    let mut source = head.to_owned() + &text("standin-hip.c");
    let made = [
        "hipRuntimeGetVersion",
        "hipGetErrorName",
        "hipGetDeviceCount",
        "hipDeviceGetName",
        "hipDeviceTotalMem",
        "hipDeviceGetPCIBusId",
        "hipDeviceGetAttribute",
    ];
    for name in Hip::REQUIRED.iter().filter(|name| !made.contains(name)) {
        source += &format!("int {name}(void) {{ return 801; }}\n");
    }
    shared::compile(Path::new(SCRATCH), name, &source)
}

/// A libgdrapi, with or without a driver to open.
pub fn libgdrapi(name: &str, opens: bool) -> PathBuf {
    let mut source = text("../../../base/gdrcopy-sys/tests/standin.c");
    if !opens {
        source = source.replace(
            "gdr_open(void) {",
            "gdr_open(void) {\n    standin_fail(\"open\", 2);",
        );
    }
    shared::compile(Path::new(SCRATCH), name, &source)
}

/// A library with functions of these names.
pub fn library(name: &str, functions: &[&str]) -> PathBuf {
    let source: String = functions
        .iter()
        .map(|name| format!("int {name}(void) {{ return -1; }}\n"))
        .collect();
    shared::compile(Path::new(SCRATCH), name, &source)
}

/// A libibverbs with all required functions, and `more`.
pub fn libibverbs(name: &str, more: &[&str]) -> PathBuf {
    let all: Vec<&str> = Ibverbs::REQUIRED.iter().chain(more).copied().collect();
    library(name, &all)
}

/// A libmlx5 with all required functions.
pub fn libmlx5(name: &str) -> PathBuf {
    library(name, Mlx5::REQUIRED)
}

/// No library.
pub fn none() -> Libraries {
    let absent = |name: &str| vec![OsString::from(format!("/nonexistent/{name}"))];
    Libraries {
        cuda: absent("libcuda.so.1"),
        gdrapi: absent("libgdrapi.so.2"),
        hip: absent("libamdhip64.so"),
        ibverbs: absent("libibverbs.so.1"),
        mlx5: absent("libmlx5.so.1"),
    }
}

/// This libcuda, and no other library.
pub fn cuda_alone(cuda: PathBuf) -> Libraries {
    Libraries {
        cuda: vec![cuda.into()],
        ..none()
    }
}

/// Examines a tree.
pub fn look(tree: &Tree, libraries: Libraries, variables: &[(&str, &str)]) -> Report {
    examine(&Machine::new(&tree.0, libraries, variables.iter().copied()))
}

/// The choice for `purpose` in the report.
pub fn used<'a>(report: &'a Report, purpose: &str) -> &'a Use {
    let mut uses = report.uses.iter();
    uses.find(|u| u.purpose == purpose)
        .expect("the report has the purpose")
}

/// The attributes that an H200 reports.
pub const H200: Attributes = &[
    (16, 132),
    (75, 9),
    (76, 0),
    (91, 1),
    (98, 0),
    (99, 1),
    (102, 1),
    (103, 1),
    (116, 1),
    (117, 1),
    (118, 100),
    (122, 1),
    (123, 1),
    (124, 1),
    (128, 1),
];

/// The attributes that an older GPU without GPUDirect RDMA reports.
pub const OLD: Attributes = &[
    (16, 40),
    (75, 7),
    (76, 5),
    (99, 1),
    (102, 1),
    (117, 1),
    (122, 1),
];

/// The attributes that a GPU reports that is too old for gdsync.
pub const ANCIENT: Attributes = &[(16, 5), (75, 5), (76, 2), (99, 1), (102, 1), (122, 1)];
