//! `mprun -n N [--hosts FILE] COMMAND..`: starts the ranks of a job and supervises them.
//!
//! It hosts the bootstrap store, prints the output of the ranks line by line, ends all ranks when
//! one fails, and leaves no process behind. One thread does this, beside the thread of the store
//! and the thread that writes the output.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use mp::bootstrap::Secret;
use mp::bootstrap::tcp::Server;
use rustix::process::set_child_subreaper;
use rustix::system::uname;

mod hosts;
mod job;
mod lines;
mod listen;
mod rank;
mod remains;
mod writer;

use hosts::Host;
use rank::{Launch, Start};

/// Two command lines, and the exit status.
const EXAMPLES: &str = "\
Examples:
  mprun -n 4 ./halo2d
          four ranks on this host
  mprun --hosts hosts.txt --timeout 60 --env GDS_PROVIDER=mlx5 ./halo2d
          the ranks that hosts.txt lists, by ssh, for at most 60 s, each with this variable

Exit status: that of the first rank that fails; 128 + N if signal N killed it; 124 after the
time limit; 125 if mprun itself fails.";

/// Starts the ranks of a job, on this host or by ssh on several hosts.
///
/// mprun prints each output line of a rank with the number of the rank in front. The first rank
/// that fails ends all ranks, and mprun exits with its status (128 + N for signal N; 124 after the
/// time limit). Ctrl-C ends all ranks; a second Ctrl-C kills them at once. Standard input of the
/// ranks is empty.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Args {
    /// Number of ranks; -np N is the same. Default with --hosts: the sum over all hosts.
    #[arg(short, value_name = "N")]
    n: Option<u32>,

    /// A file with one host a line: its name, and the number of its ranks (default: 1).
    /// `localhost` is this host, without ssh.
    #[arg(long, value_name = "FILE")]
    hosts: Option<std::path::PathBuf>,

    /// Time limit in seconds, after which mprun ends all ranks. Default: none.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Option<Duration>,

    /// Sets an environment variable of the ranks; without VALUE, to its value in this process.
    /// Of the other variables, ranks on other hosts get GDS_* and MP_*.
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = variable)]
    env: Vec<(String, String)>,

    /// Time in seconds from the request to end (SIGTERM) until mprun kills a rank that still runs.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "2",
        allow_negative_numbers = true)]
    grace: Duration,

    /// Address on which mprun listens for the ranks, which exchange their addresses through it;
    /// 0.0.0.0: every address. Default: loopback if all ranks are on this host, else the address
    /// from which this host reaches the others.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,

    /// Name or address of this host for ranks on other hosts. Default: the address on which
    /// mprun listens, or the name of this host if mprun listens on every address.
    #[arg(long, value_name = "HOST")]
    address: Option<String>,

    /// Program that runs a command on another host; its arguments are options of ssh, the host,
    /// and one command line for the shell of that host.
    #[arg(long, value_name = "PROGRAM", env = "MP_SSH", default_value = "ssh")]
    ssh: String,

    /// Program of each rank, with its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

fn seconds(text: &str) -> anyhow::Result<Duration> {
    let seconds = text
        .parse()
        .context("the value is not a number of seconds")?;
    Duration::try_from_secs_f64(seconds).context("the value is negative or too large")
}

fn variable(text: &str) -> anyhow::Result<(String, String)> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_string()),
        None => (
            text,
            std::env::var(text).context("the variable is not set")?,
        ),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    anyhow::ensure!(
        name.chars().all(fits)
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty(),
        "{name:?} is not the name of a variable"
    );
    Ok((name.into(), value))
}

fn main() -> ExitCode {
    let args = arguments();
    let code = gds_log::init(None).map_err(Into::into);
    match code.and_then(|()| run(&args)) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            eprintln!("mprun: {e:#}");
            ExitCode::from(125)
        }
    }
}

/// The parsed command line; `-np N` is the same as `-n N`.
fn arguments() -> Args {
    let mut words: Vec<_> = std::env::args_os().collect();
    Args::try_parse_from(&words).unwrap_or_else(|e| {
        // The arguments did not parse. A `-np` of the launched program parses, so this one is
        // mprun's.
        match words.iter_mut().find(|word| *word == "-np") {
            Some(word) => *word = "-n".into(),
            None => e.exit(),
        }
        Args::parse_from(words)
    })
}

fn run(args: &Args) -> anyhow::Result<u8> {
    let hosts = match &args.hosts {
        None => vec![Host::here(
            args.n
                .context("the command line does not say how many ranks; use -n N")?,
        )],
        Some(path) => {
            let shown = path.display();
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("the file of hosts {shown} cannot be read"))?;
            let hosts = hosts::parse(&text);
            let hosts = hosts.with_context(|| format!("the file of hosts {shown} is invalid"))?;
            hosts::cut(hosts, args.n)?
        }
    };
    let size = hosts.iter().map(|h| h.ranks).sum::<u32>();
    let away = hosts.iter().any(|h| h.name.is_some());
    let bind = match args.bind {
        Some(address) => address,
        None if away => listen::address(&hosts, args.address.as_deref())?,
        None => IpAddr::from(Ipv4Addr::LOCALHOST),
    };
    let secret = secret()?;
    let key = Secret::from_text(&secret)?;
    let server = Server::start(SocketAddr::new(bind, 0), &key, "", size)?;
    let called = match &args.address {
        Some(name) => name.clone(),
        None if bind.is_unspecified() => uname().nodename().to_string_lossy().into_owned(),
        None => bind.to_string(),
    };
    let called = match called.contains(':') {
        true => format!("[{called}]"),
        false => called,
    };
    let launch = Launch {
        command: args.command.clone(),
        variables: args.env.clone(),
        store: format!("tcp://{called}:{}", server.address().port()),
        secret,
        size,
        ssh: args.ssh.clone(),
        grace: args.grace,
    };
    // Orphans of the ranks become children of this process, which ends them too.
    set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot become the subreaper of the ranks")?;
    let limits = job::Limits {
        timeout: args.timeout,
        grace: args.grace,
    };
    let code = job::run(&launch, &starts(&hosts), &limits);
    drop(server);
    code
}

/// The rank numbers and the host of each rank, in the order of the hosts.
fn starts(hosts: &[Host]) -> Vec<Start> {
    let of_host = |host: &Host| {
        let Host { name, ranks } = host.clone();
        (0..ranks).map(move |local| (name.clone(), local, ranks))
    };
    let all = hosts.iter().flat_map(of_host).zip(0..);
    all.map(|((host, local_rank, local_size), rank)| Start {
        rank,
        host,
        local_rank,
        local_size,
    })
    .collect()
}

/// A random secret of 32 bytes, as hexadecimal digits.
fn secret() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    let flags = rustix::rand::GetRandomFlags::empty();
    // The kernel always serves requests of at most 256 bytes in full.
    rustix::rand::getrandom(&mut bytes, flags).context("the call getrandom failed")?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
