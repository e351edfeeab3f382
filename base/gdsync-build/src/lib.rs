//! Compiles GPU kernels in a build script, once for each GPU runtime.
//!
//! ```no_run
//! // build.rs, with gdsync-build in [build-dependencies]
//! fn main() -> Result<(), gdsync_build::Error> {
//!     gdsync_build::Kernels::new("scale").source("device/scale.cu").compile()
//! }
//! ```
//!
//! A kernel is a C++ function that is written against `gds_device.hpp` and defined by `GDS_KERNEL`:
//!
//! ```cpp
//! #include "gds_device.hpp"
//!
//! struct Scale {  // the program passes these bytes at a launch
//!     float* numbers;
//!     gds::u64 count;
//!     float factor;
//!     gds::u32 unused;
//! };
//!
//! GDS_KERNEL(scale, Scale, p) {
//!     const gds::u64 threads = gridDim.x * blockDim.x;
//!     for (gds::u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += threads) {
//!         p.numbers[i] *= p.factor;
//!     }
//! }
//! ```
//!
//! The software GPU runs it as code of the host compiler, CUDA as PTX, and HIP as a code object, or as source that
//! HIP compiles when the program loads it. [`Kernels::compile`] makes these and writes `$OUT_DIR/NAME.rs`, which
//! `gdsync::kernel_image!("NAME")` includes in the program. `docs/kernels.md` shows the whole program.
//!
//! # Map
//!
//! | item | what it is |
//! | --- | --- |
//! | [`Kernels`] | a module of kernels: sources, headers, PTX, code objects; compiles them |
//! | [`include_dir`] | the folder of `gds_device.hpp`, for other compilers and for editors |
//! | [`Error`] | the reason for which a module was not compiled |
//!
//! # Features
//! `soft`, off by default: compiles kernels for the software GPU too, with a C++ compiler. The
//! feature `soft` of `gdsync` switches it on. Without it, [`Kernels::compile`] makes nothing for that GPU.
//!
//! # Environment
//! `CXX` is the host compiler. `NVCC`, else `$CUDA_HOME/bin/nvcc`, else the `nvcc` in `PATH` is the
//! compiler for CUDA. Cargo sets `CARGO_MANIFEST_DIR` and `OUT_DIR` for build scripts.

#![deny(
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::missing_safety_doc
)]

mod inline;
mod scan;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// The reason for which a module of kernels was not compiled. A build script that returns it from
/// `main` fails the build, and cargo prints it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A source, a PTX file, a code object or the output could not be read or written.
    #[error("compile kernels: {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The sources define no kernel, or two kernels of one name.
    #[error("compile kernels: {0}")]
    Source(String),
    /// The host compiler is missing or failed.
    #[error("compile kernels for the software GPU: {0}")]
    Host(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// nvcc failed; the text has its output.
    #[error("compile kernels for CUDA: {0}")]
    Nvcc(String),
    /// A variable that cargo sets for build scripts is missing: the program is not a build script.
    #[error("compile kernels: {0} is not set; call this from a build script")]
    NotABuildScript(&'static str),
}

/// The folder of `gds_device.hpp`, the header of kernels. [`Kernels`] includes it already.
pub fn include_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("device")
}

/// A module of kernels to compile: a builder, for build scripts.
///
/// ```no_run
/// # fn main() -> Result<(), gdsync_build::Error> {
/// gdsync_build::Kernels::new("scale") // the name for `gdsync::kernel_image!`
///     .source("device/scale.cu")
///     .include("device")
///     .ptx("device/ptx/scale.ptx") // without this line nvcc makes it
///     .code_objects("device/hip") // without this line HIP compiles the source at run time
///     .compile()
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Kernels {
    name: String,
    sources: Vec<PathBuf>,
    includes: Vec<PathBuf>,
    ptx: Option<PathBuf>,
    code_objects: Option<PathBuf>,
    arch: String,
}

impl Kernels {
    /// A module without sources. `name` consists of letters, digits and underscores, and is unique
    /// in the program.
    pub fn new(name: &str) -> Kernels {
        Kernels {
            name: name.to_owned(),
            sources: Vec::new(),
            includes: vec![include_dir()],
            ptx: None,
            code_objects: None,
            arch: "compute_75".to_owned(),
        }
    }

    /// Adds a source, relative to the package. Every `GDS_KERNEL` in it becomes a kernel of the
    /// module. A kernel that another macro or a header defines does not.
    pub fn source(mut self, path: impl AsRef<Path>) -> Kernels {
        self.sources.push(path.as_ref().to_owned());
        self
    }

    /// Adds a folder of headers, relative to the package.
    pub fn include(mut self, folder: impl AsRef<Path>) -> Kernels {
        self.includes.push(folder.as_ref().to_owned());
        self
    }

    /// Takes the PTX from a file, relative to the package, and does not call nvcc: for packages
    /// that are built on machines without nvcc. The file is not compared with the sources.
    pub fn ptx(mut self, path: impl AsRef<Path>) -> Kernels {
        self.ptx = Some(path.as_ref().to_owned());
        self
    }

    /// Takes code objects for HIP from a folder, relative to the package: the files `NAME.TARGET.co` of this module,
    /// for example `scale.gfx942.co`. The files are not compared with the sources. For a GPU of another target, and
    /// without this call for all, HIP compiles the sources when the program loads the module.
    pub fn code_objects(mut self, folder: impl AsRef<Path>) -> Kernels {
        self.code_objects = Some(folder.as_ref().to_owned());
        self
    }

    /// Sets the virtual architecture that nvcc compiles for (`-arch`). The default is `compute_75`,
    /// which every later GPU runs.
    pub fn arch(mut self, arch: &str) -> Kernels {
        self.arch = arch.to_owned();
        self
    }

    /// Compiles the module. The host compiler (`CXX`) makes the code for the software GPU. nvcc
    /// (`NVCC`, else `$CUDA_HOME/bin/nvcc`, else the one in `PATH`) makes the code for CUDA, unless
    /// [`Kernels::ptx`] names a file. Without nvcc and without a file, cargo prints a warning, and
    /// loading the module on a CUDA GPU fails with `Unsupported`. Without the feature `soft` the
    /// host compiler is not called, loading the module on a software GPU fails, and a missing nvcc
    /// is an error.
    ///
    /// # Errors
    /// [`Error::Source`] if the sources define no kernel, or two of one name, or if the folder of
    /// [`Kernels::code_objects`] has none of the module; [`Error::File`] if a
    /// file cannot be read or written, or nvcc cannot be started; [`Error::Host`], [`Error::Nvcc`]
    /// if a compiler fails; [`Error::NotABuildScript`] outside a build script.
    pub fn compile(self) -> Result<(), Error> {
        let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
        let out = PathBuf::from(variable("OUT_DIR")?);
        let sources: Vec<PathBuf> = self.sources.iter().map(|path| root.join(path)).collect();
        let includes: Vec<PathBuf> = self.includes.iter().map(|path| root.join(path)).collect();
        for path in sources.iter().chain(&includes) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
        let names = self.kernels(&sources)?;
        #[cfg(feature = "soft")]
        self.host(&sources, &includes)?;
        let soft = match cfg!(feature = "soft") {
            true => &names[..],
            false => &[],
        };
        let ptx = match &self.ptx {
            Some(path) => {
                let path = root.join(path);
                println!("cargo::rerun-if-changed={}", path.display());
                fs::metadata(&path).map_err(|e| file(&path, e))?;
                Some(path)
            }
            None => self.nvcc(&sources, &includes, &out)?,
        };
        let objects = match &self.code_objects {
            Some(folder) => self.objects_in(&root.join(folder))?,
            None => Vec::new(),
        };
        let source = out.join(format!("{}.hip", self.name));
        let text = inline::text(&sources, &includes).map_err(|(path, e)| file(&path, e))?;
        fs::write(&source, text).map_err(|e| file(&source, e))?;
        let path = out.join(format!("{}.rs", self.name));
        let text = image(&self.name, soft, ptx.as_deref(), &objects, &source);
        fs::write(&path, text).map_err(|e| file(&path, e))
    }

    /// The targets and the code objects of this module in a folder, in order.
    fn objects_in(&self, folder: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
        println!("cargo::rerun-if-changed={}", folder.display());
        let mut objects = Vec::new();
        for entry in fs::read_dir(folder).map_err(|e| file(folder, e))? {
            let path = entry.map_err(|e| file(folder, e))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let target = name.and_then(|name| {
                name.strip_prefix(&self.name)?
                    .strip_prefix('.')?
                    .strip_suffix(".co")
            });
            if let Some(target) = target {
                objects.push((target.to_owned(), path));
            }
        }
        if objects.is_empty() {
            let (folder, name) = (folder.display(), &self.name);
            let what = format!("module {name}: {folder} has no code object {name}.TARGET.co");
            return Err(Error::Source(what));
        }
        objects.sort();
        Ok(objects)
    }

    /// The names of the kernels in `sources`.
    fn kernels(&self, sources: &[PathBuf]) -> Result<Vec<String>, Error> {
        let mut names: Vec<String> = Vec::new();
        for path in sources {
            let text = fs::read_to_string(path).map_err(|e| file(path, e))?;
            for name in scan::kernels(&text) {
                if names.contains(&name) {
                    let what = format!("{}: kernel {name} is defined twice", path.display());
                    return Err(Error::Source(what));
                }
                names.push(name);
            }
        }
        if names.is_empty() {
            let what = format!("module {}: no source has a GDS_KERNEL", self.name);
            return Err(Error::Source(what));
        }
        Ok(names)
    }

    #[cfg(feature = "soft")]
    fn host(&self, sources: &[PathBuf], includes: &[PathBuf]) -> Result<(), Error> {
        let mut build = cc::Build::new();
        build
            .cpp(true)
            .std("c++17")
            .define(concat!("GDS", "_MODULE"), self.name.as_str()) // no variable of the environment
            .cpp_link_stdlib(None) // kernels call no C++ runtime
            .flag("-fno-exceptions") // a kernel cannot be unwound
            .opt_level(2)
            .flag("-x") // `.cu` is C++ here
            .flag("c++")
            .includes(includes)
            .files(sources);
        let compiled = build.try_compile(&self.name);
        compiled.map_err(|e| Error::Host(e.into()))
    }

    /// Compiles all sources to PTX as one translation unit. `None`: nvcc is not installed.
    fn nvcc(
        &self,
        sources: &[PathBuf],
        includes: &[PathBuf],
        out: &Path,
    ) -> Result<Option<PathBuf>, Error> {
        for name in ["NVCC", "CUDA_HOME", "PATH"] {
            println!("cargo::rerun-if-env-changed={name}");
        }
        let nvcc = env::var_os("NVCC")
            .map(PathBuf::from)
            .or_else(|| {
                let home = PathBuf::from(env::var_os("CUDA_HOME")?);
                Some(home.join("bin/nvcc")).filter(|path| path.exists())
            })
            .unwrap_or_else(|| PathBuf::from("nvcc"));
        let unit = out.join(format!("{}.cu", self.name));
        let ptx = out.join(format!("{}.ptx", self.name));
        let text: String = sources
            .iter()
            .map(|path| format!("#include \"{}\"\n", path.display()))
            .collect();
        fs::write(&unit, text).map_err(|e| file(&unit, e))?;
        let mut command = Command::new(&nvcc);
        command
            .args(["-std=c++17", "-ptx", "-x", "cu"])
            .arg(format!("-arch={}", self.arch))
            .args(includes.iter().map(|path| format!("-I{}", path.display())))
            .arg("-o")
            .args([&ptx, &unit]);
        match command.output() {
            Ok(output) if output.status.success() => Ok(Some(ptx)),
            Ok(output) => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                Err(Error::Nvcc(format!("{}: {stderr}", nvcc.display())))
            }
            Err(e)
                if e.kind() == io::ErrorKind::NotFound
                    && env::var_os("NVCC").is_none()
                    && cfg!(feature = "soft") =>
            {
                println!(
                    "cargo::warning=kernels {}: nvcc was not found (NVCC, CUDA_HOME, PATH): they \
                     run on the software GPU only",
                    self.name
                );
                Ok(None)
            }
            Err(e) => Err(file(&nvcc, e)),
        }
    }
}

fn variable(name: &'static str) -> Result<std::ffi::OsString, Error> {
    env::var_os(name).ok_or(Error::NotABuildScript(name))
}

fn file(path: &Path, source: io::Error) -> Error {
    Error::File {
        path: path.to_owned(),
        source,
    }
}

/// The expression that `gdsync::kernel_image!` includes: the name, the entry and the parameter size
/// of each kernel, the PTX, the code objects for HIP with their targets, and the source for HIP. Symbols contain the
/// module's name too, as `GDS_MODULE` has it, because a kernel's name may be a keyword of Rust.
fn image(
    module: &str,
    names: &[String],
    ptx: Option<&Path>,
    objects: &[(String, PathBuf)],
    source: &Path,
) -> String {
    let mut text = String::from("{\n    unsafe extern \"C\" {\n");
    for (i, name) in names.iter().enumerate() {
        let _ = writeln!(
            text,
            "        #[link_name = \"{name}_of_{module}\"]\n        \
             fn kernel_{i}(params: *const ::core::ffi::c_void);\n        \
             #[link_name = \"{name}_params_size_of_{module}\"]\n        \
             fn size_{i}() -> usize;"
        );
    }
    text.push_str(
        "    }\n    type Entry = unsafe extern \"C\" fn(*const ::core::ffi::c_void);\n    \
         type Size = unsafe extern \"C\" fn() -> usize;\n    \
         const KERNELS: &[(&str, Entry, Size)] = &[\n",
    );
    for (i, name) in names.iter().enumerate() {
        let _ = writeln!(text, "        ({name:?}, kernel_{i}, size_{i}),");
    }
    text.push_str("    ];\n    const CODE_OBJECTS: &[(&str, &[u8])] = &[\n");
    for (target, path) in objects {
        let path = path.display().to_string();
        let _ = writeln!(
            text,
            "        ({target:?}, ::core::include_bytes!({path:?})),"
        );
    }
    let ptx = match ptx {
        Some(path) => {
            let path = path.display().to_string();
            format!("::core::option::Option::Some(::core::include_str!({path:?}))")
        }
        None => "::core::option::Option::None".to_owned(),
    };
    let source = source.display().to_string();
    let _ = writeln!(
        text,
        "    ];\n    (KERNELS, {ptx}, CODE_OBJECTS, ::core::include_str!({source:?}))\n}}"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_expression_names_each_kernel_and_its_codes() {
        let names = ["a".to_owned(), "b_1".to_owned()];
        let objects = [("gfx942".to_owned(), PathBuf::from("/x/m.gfx942.co"))];
        let source = Path::new("/x/m.hip");
        let text = image("m", &names, Some(Path::new("/x/y.ptx")), &objects, source);
        for part in [
            "link_name = \"a_of_m\"",
            "(\"b_1\", kernel_1, size_1)",
            "include_str!(\"/x/y.ptx\")",
            "(\"gfx942\", ::core::include_bytes!(\"/x/m.gfx942.co\"))",
            "include_str!(\"/x/m.hip\")",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let none = |text: &str| text.matches("Option::None").count();
        assert_eq!(none(&text), 0);
        assert_eq!(none(&image("m", &names, None, &[], source)), 1);
    }

    #[test]
    fn module_without_kernels_is_refused() {
        let error = Kernels::new("none").kernels(&[]).unwrap_err().to_string();
        assert!(
            error.contains("module none: no source has a GDS_KERNEL"),
            "{error}"
        );
    }

    #[test]
    fn code_objects_are_those_of_the_module() {
        let folder = env::temp_dir().join(format!("gdsync-build-{}-objects", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in ["m.gfx942.co", "m.gfx1100.co", "mm.gfx90a.co", "m.ptx"] {
            fs::write(folder.join(name), "").unwrap();
        }
        let targets = |name: &str| {
            let objects = Kernels::new(name).objects_in(&folder)?;
            Ok::<_, Error>(
                objects
                    .into_iter()
                    .map(|(target, _)| target)
                    .collect::<Vec<_>>(),
            )
        };
        let (found, none) = (targets("m"), targets("other"));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.unwrap(), ["gfx1100", "gfx942"]);
        let error = none.unwrap_err().to_string();
        assert!(error.contains("no code object other.TARGET.co"), "{error}");
    }

    #[test]
    fn missing_source_is_named() {
        let path = PathBuf::from("/nonexistent/k.cu");
        let error = Kernels::new("k").kernels(&[path]).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/k.cu"), "{error}");
    }
}
