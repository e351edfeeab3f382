//! Opening of a shared library, and the errors of it.
//!
//! Libraries are never closed: tables that any code may copy contain pointers into them, vendor
//! libraries start threads and register exit handlers, and few of them support `dlclose`.

use std::error::Error as _;
use std::ffi::{CStr, OsStr, OsString, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix;

/// One path that was tried, with the error of the dynamic linker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// The path or soname that the dynamic linker received.
    pub path: PathBuf,
    /// The text of `dlerror`.
    pub reason: String,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The linker's text begins with the path in most cases.
        let path = self.path.display().to_string();
        match self.reason.starts_with(&path) {
            true => f.write_str(&self.reason),
            false => write!(f, "{path}: {}", self.reason),
        }
    }
}

/// The reason for which a table of functions could not be filled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// None of the paths could be opened.
    #[error("no {api} library could be opened ({})", list(tried))]
    NotFound {
        /// The kind of library, such as "CUDA driver".
        api: &'static str,
        /// Every path tried, in order.
        tried: Vec<Tried>,
    },
    /// The library was opened, but it lacks a required function: it is too old, or another library
    /// of the same name.
    #[error("{} has no {symbol}, which the {api} table requires", library.display())]
    MissingSymbol {
        /// The kind of library, such as "CUDA driver".
        api: &'static str,
        /// The path under which the library was opened.
        library: PathBuf,
        /// The name of the missing symbol, as exported.
        symbol: &'static str,
    },
    /// The library has a required function, but not in the version that the table declares: the
    /// library is too old, or too new.
    #[error("{} has {symbol}, but not in version {version}, which the {api} table requires", library.display())]
    OtherVersion {
        /// The kind of library, such as "verbs".
        api: &'static str,
        /// The path under which the library was opened.
        library: PathBuf,
        /// The name of the symbol, as exported.
        symbol: &'static str,
        /// The required version of the symbol.
        version: &'static str,
    },
}

fn list(tried: &[Tried]) -> String {
    match tried {
        [] => "no path to try".into(),
        some => some
            .iter()
            .map(Tried::to_string)
            .collect::<Vec<_>>()
            .join("; "),
    }
}

/// A shared library, open until the process ends.
#[derive(Debug)]
pub struct Library {
    api: &'static str,
    path: PathBuf,
    // The library is never dropped, so it is never closed: resolved functions stay callable.
    handle: ManuallyDrop<unix::Library>,
    /// The linker's own handle, as a number.
    raw: usize,
}

impl Library {
    /// Opens the first of `paths` that can be opened.
    /// A path with a slash is opened as it is. The dynamic linker searches for a plain soname.
    /// `api` is the kind of library in errors.
    ///
    /// # Errors
    /// [`LoadError::NotFound`] with every path and its reason.
    ///
    /// # Safety
    /// Opening a library runs its initialisers: every library in `paths` must be sound to load.
    pub unsafe fn open<P: AsRef<OsStr>>(
        api: &'static str,
        paths: impl IntoIterator<Item = P>,
    ) -> Result<Library, LoadError> {
        let mut tried = Vec::new();
        for path in paths {
            let path = PathBuf::from(path.as_ref());
            if path.as_os_str().is_empty() {
                // For an empty path, the linker would return the program itself.
                tried.push(Tried {
                    path,
                    reason: "an empty path names no library".into(),
                });
                continue;
            }
            // SAFETY: the caller vouches for the library's initialisers.
            match unsafe { libloading::Library::new(&path) } {
                Ok(handle) => {
                    let raw = unix::Library::from(handle).into_raw();
                    // SAFETY: the handle was opened above and is not closed.
                    let handle = unsafe { unix::Library::from_raw(raw) };
                    return Ok(Library {
                        api,
                        path,
                        handle: ManuallyDrop::new(handle),
                        raw: raw as usize,
                    });
                }
                Err(e) => tried.push(Tried {
                    path,
                    // The reason is in `source`; the error itself is only "dlopen failed".
                    reason: e.source().map_or_else(|| e.to_string(), |s| s.to_string()),
                }),
            }
        }
        Err(LoadError::NotFound { api, tried })
    }

    /// The path or soname under which the library was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The function `name`, in `version` if one is given; `None` if the library does not export it.
    /// A library without a version table matches every version. A library has this table as soon as
    /// it uses versioned symbols of other libraries, such as the C library. Its own exports without
    /// a version then match no version.
    ///
    /// # Safety
    /// `F` must be a function pointer of the type that the library gives `name`.
    pub unsafe fn optional<F: Copy>(
        &self,
        name: &'static CStr,
        version: Option<&'static CStr>,
    ) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let Some(version) = version else {
            // SAFETY: the caller vouches for the type; the library is never closed, so the pointer
            // may outlive the borrow in `Symbol`.
            return unsafe { self.handle.get::<F>(name) }.ok().map(|f| *f);
        };
        // SAFETY: a handle that is never closed, and two C strings.
        let found =
            unsafe { libc::dlvsym(self.raw as *mut c_void, name.as_ptr(), version.as_ptr()) };
        // SAFETY: a function pointer has the size of this one, as asserted; the caller vouches
        // for its type, and it is not null.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
    }

    /// The function `name`, in `version` if one is given.
    ///
    /// # Errors
    /// [`LoadError::MissingSymbol`] if the library does not export it, [`LoadError::OtherVersion`]
    /// if it exports only another version of it.
    ///
    /// # Safety
    /// As [`optional`](Library::optional).
    pub unsafe fn required<F: Copy>(
        &self,
        name: &'static CStr,
        version: Option<&'static CStr>,
    ) -> Result<F, LoadError> {
        // SAFETY: the caller's promise.
        if let Some(found) = unsafe { self.optional(name, version) } {
            return Ok(found);
        }
        let (api, library) = (self.api, self.path.clone());
        let symbol = name.to_str().unwrap_or("a symbol that is not UTF-8");
        // SAFETY: looked up, and not called.
        let other = unsafe { self.optional::<F>(name, None) };
        Err(match (version, other) {
            (Some(version), Some(_)) => LoadError::OtherVersion {
                api,
                library,
                symbol,
                version: version.to_str().unwrap_or("a version that is not UTF-8"),
            },
            _ => LoadError::MissingSymbol {
                api,
                library,
                symbol,
            },
        })
    }
}

/// The paths to try: the value of the variable `env` alone if it is set, otherwise `sonames` in
/// order.
pub fn candidates(env: &str, sonames: &[&str]) -> Vec<OsString> {
    match std::env::var_os(env) {
        Some(path) => vec![path],
        None => sonames.iter().map(OsString::from).collect(),
    }
}
