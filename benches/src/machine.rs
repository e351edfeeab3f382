//! The machine and the program of a measurement.

use std::fs::{self, File};
use std::io::Read;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The machine. A value is `None` if the system does not report it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: Option<String>,
    /// Processors that this process may use.
    pub cores: usize,
    /// The kernel's version, without the suffix of its distributor.
    pub kernel: Option<String>,
    /// Main memory in bytes.
    pub memory: Option<u64>,
    /// Load average of the last minute: figures are worse if other programs run.
    pub load: Option<f64>,
}

/// The program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Program {
    /// Its version.
    pub version: String,
    /// SHA-256 of the executable, in hexadecimal.
    pub executable_sha256: String,
    /// The commit that is checked out in the current folder; `None` outside a repository.
    pub commit: Option<String>,
    /// Whether tracked files differ from that commit.
    pub modified: Option<bool>,
}

impl Machine {
    /// This machine.
    pub fn here() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Machine {
            cpu: field(&cpuinfo, "model name").map(str::to_owned),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .ok()
                .map(|s| s.trim().split('-').next().unwrap_or_default().to_owned()),
            memory: field(&meminfo, "MemTotal")
                .and_then(|v| v.strip_suffix(" kB")?.parse().ok())
                .map(|kib: u64| kib << 10),
            load: fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|s| s.split_ascii_whitespace().next()?.parse().ok()),
        }
    }
}

/// The value of the first `name : value` line.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

impl Program {
    /// This program.
    ///
    /// # Errors
    /// The executable cannot be read.
    pub fn this() -> Result<Program> {
        Ok(Program {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            executable_sha256: executable_sha256().context("reading the executable")?,
            commit: git(&["rev-parse", "HEAD"]),
            modified: git(&["status", "--porcelain", "--untracked-files=no"])
                .map(|s| !s.is_empty()),
        })
    }
}

fn executable_sha256() -> Result<String> {
    let mut file = File::open("/proc/self/exe")?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hash.update(&buffer[..n]),
        }
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// The output of git, if git is installed and this is a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: other\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2 GHz"));
        assert_eq!(field(text, "model"), None);
    }

    #[test]
    fn executable_has_a_hash() {
        let program = Program::this().unwrap();
        assert_eq!(program.executable_sha256.len(), 64);
        assert!(Machine::here().cores >= 1);
    }
}
