//! [`State`]: whether a library can be opened, and its file.

use gdsync_sys::{LoadError, Tried};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// The state of a library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// It opens and has all required functions.
    Opened {
        /// The requested path or soname.
        path: PathBuf,
        /// The file that the dynamic linker chose, if it is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<PathBuf>,
        /// Optional functions that it lacks.
        lacks: Vec<String>,
    },
    /// It opens and lacks a required function, or has it only in another version.
    TooOld {
        /// The requested path or soname.
        path: PathBuf,
        /// The function.
        symbol: String,
    },
    /// It cannot be opened.
    Absent {
        /// For each path tried, the error of the dynamic linker.
        tried: Vec<String>,
    },
}

impl State {
    /// A library that was opened.
    pub fn opened(path: &Path, lacks: Vec<String>) -> State {
        State::Opened {
            path: path.to_owned(),
            file: mapped_file(path),
            lacks,
        }
    }

    /// Whether it can be used.
    pub fn is_opened(&self) -> bool {
        matches!(self, State::Opened { .. })
    }

    /// Whether no library has this name.
    pub fn is_absent(&self) -> bool {
        matches!(self, State::Absent { .. })
    }

    /// Whether it is present and lacks the optional function `name`.
    pub fn lacks(&self, name: &str) -> bool {
        matches!(self, State::Opened { lacks, .. } if lacks.iter().any(|l| l == name))
    }
}

impl From<&LoadError> for State {
    fn from(error: &LoadError) -> State {
        match error {
            LoadError::MissingSymbol {
                library, symbol, ..
            }
            | LoadError::OtherVersion {
                library, symbol, ..
            } => State::TooOld {
                path: library.clone(),
                symbol: (*symbol).to_owned(),
            },
            LoadError::NotFound { tried, .. } => State::Absent {
                tried: tried.iter().map(Tried::to_string).collect(),
            },
            other => State::Absent {
                tried: vec![other.to_string()],
            },
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Opened { path, file, lacks } => {
                write!(f, "{}", path.display())?;
                if let Some(file) = file {
                    write!(f, " ({})", file.display())?;
                }
                if !lacks.is_empty() {
                    write!(f, ", without {}", lacks.join(", "))?;
                }
                Ok(())
            }
            State::TooOld { path, symbol } => {
                write!(f, "too old: {} has no {symbol}", path.display())
            }
            State::Absent { tried } => match tried.as_slice() {
                [] => f.write_str("absent"),
                [one] => write!(f, "absent: {one}"),
                // Only the last reason is printed in full; the reasons differ little.
                [first @ .., last] => {
                    let names = first.iter().map(|t| t.split(':').next().unwrap_or(t));
                    write!(f, "absent: ")?;
                    for name in names {
                        write!(f, "{name}, ")?;
                    }
                    f.write_str(last)
                }
            },
        }
    }
}

/// The file of a bare soname in this process.
fn mapped_file(path: &Path) -> Option<PathBuf> {
    let soname = path.to_str().filter(|name| !name.contains('/'))?;
    file_in(&std::fs::read_to_string("/proc/self/maps").ok()?, soname)
}

/// The mapped file in `maps` whose name is `soname`, or the name that the soname abbreviates.
fn file_in(maps: &str, soname: &str) -> Option<PathBuf> {
    // libcuda.so.1 is a link to libcuda.so.580.95.05, so what they share is "libcuda.so".
    let stem = &soname[..soname.find(".so")? + ".so".len()];
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])))
        .find(|file| {
            let name = file.file_name().and_then(|name| name.to_str());
            name.and_then(|name| name.strip_prefix(stem))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
        .map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_file_is_found_by_its_soname() {
        let maps = "\
7f00-7f01 r-xp 00000000 08:01 1    /usr/lib/libcudart.so.13.0.96
7f02-7f03 r--p 00000000 08:01 2    /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
7f04-7f05 rw-p 00000000 00:00 0
7f06-7f07 rw-p 00000000 00:00 0    [heap]";
        assert_eq!(
            file_in(maps, "libcuda.so.1"),
            Some("/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05".into())
        );
        assert_eq!(file_in(maps, "libmlx5.so.1"), None);
        assert_eq!(file_in(maps, "nothing"), None);
    }

    #[test]
    fn absent_library_lists_all_names_and_the_last_reason() {
        let tried = ["a.so.2: not found", "a.so.1: not found either"].map(String::from);
        let state = State::Absent {
            tried: tried.to_vec(),
        };
        assert_eq!(
            state.to_string(),
            "absent: a.so.2, a.so.1: not found either"
        );
    }
}
