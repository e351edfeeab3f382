//! [`Machine`]: the files, libraries and variables that the doctor examines.

use gdsync_sys::library::candidates;
use gdsync_sys::mlx5::Mlx5;
use gdsync_sys::verbs::Ibverbs;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

/// The paths or sonames of each library, in the order in which they are tried.
#[derive(Debug, Clone, Default)]
pub struct Libraries {
    /// NVIDIA's CUDA driver.
    pub cuda: Vec<OsString>,
    /// GDRCopy.
    pub gdrapi: Vec<OsString>,
    /// AMD's HIP.
    pub hip: Vec<OsString>,
    /// libibverbs.
    pub ibverbs: Vec<OsString>,
    /// libmlx5, the provider for ConnectX.
    pub mlx5: Vec<OsString>,
}

impl Libraries {
    /// The paths that gdsync tries.
    pub fn installed() -> Libraries {
        Libraries {
            cuda: candidates(gdsync_sys::cuda::Cuda::ENV, gdsync_sys::cuda::Cuda::SONAMES),
            gdrapi: candidates(
                gdrcopy_sys::ffi::Gdrapi::ENV,
                gdrcopy_sys::ffi::Gdrapi::SONAMES,
            ),
            hip: candidates(gdsync_sys::hip::Hip::ENV, gdsync_sys::hip::Hip::SONAMES),
            ibverbs: candidates(Ibverbs::ENV, Ibverbs::SONAMES),
            mlx5: candidates(Mlx5::ENV, Mlx5::SONAMES),
        }
    }
}

/// A machine: a folder that contains its `proc`, `sys` and `dev`, its libraries, and its variables.
#[derive(Debug, Clone)]
pub struct Machine {
    root: PathBuf,
    libraries: Libraries,
    variables: BTreeMap<OsString, OsString>,
}

/// Whether this process has read and write access to a device file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "snake_case")]
pub enum Access {
    /// It has access.
    Granted,
    /// The file does not exist.
    Absent,
    /// Access is denied, or the device behind the file does not answer.
    Refused(String),
}

impl Machine {
    /// The machine below `root`, with these libraries and environment variables.
    ///
    /// The libraries named here are loaded into the process: name only those that are sound to
    /// load.
    pub fn new(
        root: impl Into<PathBuf>,
        libraries: Libraries,
        variables: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
    ) -> Machine {
        Machine {
            root: root.into(),
            libraries,
            variables: variables
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        }
    }

    pub(crate) fn libraries(&self) -> &Libraries {
        &self.libraries
    }

    /// An environment variable; bytes that are not Unicode are replaced.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let value = self.variables.get(OsString::from(name).as_os_str())?;
        Some(value.to_string_lossy().into_owned())
    }

    /// The contents of a file, trimmed.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.root.join(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The names in a folder, in order; none if the folder does not exist.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.root.join(path))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// The target of a path after its symbolic links, below the root.
    pub(crate) fn place(&self, path: &str) -> Option<PathBuf> {
        let root = self.root.canonicalize().ok()?;
        let place = root.join(path).canonicalize().ok()?;
        Some(place.strip_prefix(root).ok()?.to_owned())
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Opens and closes a device file.
    pub(crate) fn access(&self, path: &str) -> Access {
        let opened = File::options()
            .read(true)
            .write(true)
            .open(self.root.join(path));
        match opened {
            Ok(_) => Access::Granted,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Access::Absent,
            Err(e) => Access::Refused(e.to_string()),
        }
    }

    /// Whether a kernel module is loaded or built in.
    pub(crate) fn module(&self, name: &str) -> bool {
        self.exists(&format!("sys/module/{name}"))
            || self.read("proc/modules").is_some_and(|modules| {
                modules
                    .lines()
                    .any(|line| line.split_whitespace().next() == Some(name))
            })
    }
}
