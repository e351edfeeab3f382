//! `vmlx5 run`: starts a program with virtual ConnectX devices.
//!
//! Sets the environment variables of `libvmlx5.so`, preloads the library, and replaces itself by
//! the program: no process stays between.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Two command lines.
const EXAMPLES: &str = "\
Examples:
  vmlx5 run --devices 2 ibv_devinfo
          a program that finds two virtual devices
  vmlx5 run --link roce --faults loss=0.01,seed=7 -- ib_write_lat
          a server of perftest on Ethernet ports that lose 1% of the frames
  vmlx5 run --link roce --wait-port 18515 -- ib_write_lat localhost
          its client, started when the server listens";

/// Virtual ConnectX devices for programs that use libibverbs.
#[derive(Parser)]
#[command(name = "vmlx5", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs a program with virtual devices in place of the machine's devices.
    #[command(after_help = EXAMPLES)]
    Run(Run),
}

#[derive(Clone, Copy, ValueEnum)]
enum Link {
    /// InfiniBand
    Ib,
    /// RDMA over converged Ethernet
    Roce,
}

#[derive(Clone, Copy, ValueEnum)]
enum Uar {
    /// Doorbell pages are allocated one by one, as by current kernels
    Dyn,
    /// All doorbell pages are allocated at the start, as by older kernels
    Static,
}

#[derive(Args)]
struct Run {
    /// Link of the ports [default: ib, or VMLX5_LINK]
    #[arg(long)]
    link: Option<Link>,
    /// Allocation of doorbell pages [default: dyn, or VMLX5_UAR]
    #[arg(long)]
    uar: Option<Uar>,
    /// Name of the fabric; programs with the same fabric reach each other [default: default, or
    /// VMLX5_FABRIC]
    #[arg(long)]
    fabric: Option<String>,
    /// Number of devices, 1 to 64 [default: 1, or VMLX5_DEVICES]
    #[arg(long)]
    devices: Option<u32>,
    /// Number of ports of each device, 1 to 4 [default: 1, or VMLX5_PORTS]
    #[arg(long)]
    ports: Option<u8>,
    /// Faults of frames and ports, for example loss=0.01,dup=0.01,reorder=0.01,
    /// delay=20us..2ms,die=3s,deaf=1s..2s,down=1:1s..2s,seed=7 [default: none, or VMLX5_FAULTS]
    #[arg(long)]
    faults: Option<String>,
    /// Starts the program when another program on this host listens on this TCP port, for example
    /// a client after its server. Time limit: 60 s
    #[arg(long, value_name = "PORT")]
    wait_port: Option<u16>,
    /// Prints on standard error every command that the program sends to its devices
    #[arg(long)]
    trace: bool,
    /// Library to preload [default: libvmlx5.so beside this program, or in ../lib]
    #[arg(long)]
    library: Option<PathBuf>,
    /// Program to run, with its arguments
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

const LIBRARY: &str = "libvmlx5.so";

/// Time limit of `--wait-port`.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let Task::Run(run) = Cli::parse().command;
    gds_log::init(None)?;
    let library = match &run.library {
        Some(path) => path.clone(),
        None => library()?,
    };
    let library = fs::canonicalize(&library).with_context(|| library.display().to_string())?;
    let [name, arguments @ ..] = &run.program[..] else {
        bail!("no program is given");
    };
    let program = find(name)?;
    check(&program)?;
    let mut preload = library.into_os_string();
    if preload.to_string_lossy().contains([' ', ':']) {
        bail!(
            "{}: LD_PRELOAD takes no path with spaces or colons",
            preload.display()
        );
    }
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(&program);
    command
        .arg0(name)
        .args(arguments)
        .env("LD_PRELOAD", preload);
    for (variable, value) in variables(&run) {
        command.env(variable, value);
    }
    if let Some(port) = run.wait_port {
        wait_for(port)?;
    }
    let error = command.exec();
    Err(error).with_context(|| program.display().to_string())
}

/// Waits until a process of this host listens on a port. It opens no connection, because a server
/// for one client would take this connection for its client.
fn wait_for(port: u16) -> Result<()> {
    let end = Instant::now() + LIMIT;
    while !listens(port)? {
        if Instant::now() >= end {
            bail!("--wait-port: no program listens on TCP port {port} after {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Whether a process of this host listens on a TCP port, by the kernel's tables.
fn listens(port: u16) -> Result<bool> {
    const LISTEN: &str = "0A";
    let (v4, v6) = ("/proc/net/tcp", "/proc/net/tcp6");
    let mut table = fs::read_to_string(v4).context(v4)?;
    // A kernel may be without IPv6.
    table += &fs::read_to_string(v6).unwrap_or_default();
    let local = format!(":{port:04X}");
    Ok(table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words
            .next()
            .is_some_and(|address| address.ends_with(&local))
            && words.nth(1) == Some(LISTEN)
    }))
}

/// The environment variables of the library, from the options.
fn variables(run: &Run) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    let mut add = |name, value: Option<String>| all.extend(value.map(|v| (name, v)));
    let named = |v: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
        v().map(|v| v.get_name().to_string())
    };
    add("VMLX5_LINK", named(&|| run.link?.to_possible_value()));
    add("VMLX5_UAR", named(&|| run.uar?.to_possible_value()));
    add("VMLX5_FABRIC", run.fabric.clone());
    add("VMLX5_DEVICES", run.devices.map(|n| n.to_string()));
    add("VMLX5_PORTS", run.ports.map(|n| n.to_string()));
    add("VMLX5_FAULTS", run.faults.clone());
    add("VMLX5_TRACE", run.trace.then(|| "1".to_string()));
    all
}

/// The path of the library, at the places of builds and installations.
fn library() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find the path of this program")?;
    let beside = own.parent().unwrap_or(Path::new("."));
    let places = [beside.join(LIBRARY), beside.join("../lib").join(LIBRARY)];
    let found = places.iter().find(|place| place.exists());
    found.cloned().with_context(|| {
        let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        format!("no {LIBRARY}: looked for {}", places.join(" and "))
    })
}

/// The file of a program, found as a shell finds it.
fn find(name: &OsString) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return Ok(path.into());
    }
    let executable = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let all = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&all)
        .map(|dir| dir.join(path))
        .find(executable);
    found.with_context(|| format!("{}: no such program in PATH", path.display()))
}

/// Refuses programs for which the dynamic linker does not preload the library.
fn check(program: &Path) -> Result<()> {
    let name = program.display();
    let file = fs::metadata(program).with_context(|| name.to_string())?;
    if file.permissions().mode() & 0o6000 != 0 {
        bail!("{name} changes its user or group: the dynamic linker preloads no library then");
    }
    let mut bytes = Vec::new();
    fs::File::open(program)
        .and_then(|f| f.take(64 * 1024).read_to_end(&mut bytes))
        .with_context(|| name.to_string())?;
    if bytes.starts_with(b"\x7fELF") && is_static(&bytes) {
        bail!("{name} is linked statically: no dynamic linker preloads the library");
    }
    Ok(())
}

/// Whether a file is a 64-bit executable without a dynamic linker.
fn is_static(elf: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, len: usize| {
        let bytes = elf.get(at..at + len)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0_u64, |n, &b| n << 8 | u64::from(b)),
        )
    };
    let header = || {
        let class = elf.get(4)?;
        let table = usize::try_from(number(32, 8)?).ok()?;
        let (size, count) = (number(54, 2)? as usize, number(56, 2)? as usize);
        (*class == 2).then_some((table, size, count))
    };
    let Some((table, size, count)) = header() else {
        return false;
    };
    let mut kinds = (0..count).filter_map(|i| number(table.checked_add(i * size)?, 4));
    !kinds.any(|kind| kind == u64::from(INTERPRETER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_and_judged() {
        let found = find(&"sh".into()).unwrap();
        check(&found).unwrap();
        assert!(find(&"no-such-program-anywhere".into()).is_err());
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(!is_static(&own));
        // The same without its program headers.
        let mut own = own[..64].to_vec();
        own[56] = 0;
        own[57] = 0;
        assert!(is_static(&own));
        assert!(!is_static(b"\x7fELF"));
    }
}
