//! `mprun -n N [--hosts FILE] COMMAND..`: starts the ranks of a job and looks after them.
//!
//! It hosts the store at which they meet, shows what they print line by line, ends all when one
//! fails, and leaves no process behind. One thread does that, beside the store's and the one
//! that writes.

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

/// Starts the ranks of a job, on this host or by ssh on several.
///
/// Each line that a rank prints is shown behind its number. The first rank that fails ends all,
/// and its exit status is mprun's (128 + N for signal N; 124 when the time is up). Ctrl-C ends
/// all; pressed again, at once. Ranks read no input.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// How many ranks; -np N is the same. Left out with --hosts: as many as there are slots.
    #[arg(short, value_name = "N")]
    n: Option<u32>,

    /// A file that names a host a line, with the number of its ranks behind it (1 if left out).
    /// `localhost` is this one, without ssh.
    #[arg(long, value_name = "FILE")]
    hosts: Option<std::path::PathBuf>,

    /// Ends all after so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Option<Duration>,

    /// Sets a variable for the ranks, or hands this process's value to ranks on other hosts.
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = variable)]
    env: Vec<(String, String)>,

    /// How long ranks may take to end when they are asked to, before they are killed.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "2",
        allow_negative_numbers = true)]
    grace: Duration,

    /// Where to listen for the ranks; 0.0.0.0: on every address. Left out: on loopback if all are
    /// here, else on the address from which this host reaches the others.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,

    /// What ranks on other hosts call this host. Left out: the address it listens on, or its name
    /// if that is every address.
    #[arg(long, value_name = "HOST")]
    address: Option<String>,

    /// The program that runs a command on another host: called with options of ssh, the host,
    /// and one argument for its shell.
    #[arg(long, value_name = "PROGRAM", env = "MP_SSH", default_value = "ssh")]
    ssh: String,

    /// What each rank runs.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

fn seconds(text: &str) -> anyhow::Result<Duration> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}

fn variable(text: &str) -> anyhow::Result<(String, String)> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_string()),
        None => (text, std::env::var(text).context("it is not set here")?),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    anyhow::ensure!(
        name.chars().all(fits)
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty(),
        "{name:?} is no name of a variable"
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

/// The command line, on which `-np N` is `-n N`.
fn arguments() -> Args {
    let mut words: Vec<_> = std::env::args_os().collect();
    Args::try_parse_from(&words).unwrap_or_else(|e| {
        // A `-np` of the launched program parses without an error, so this one is mprun's.
        match words.iter_mut().find(|word| *word == "-np") {
            Some(word) => *word = "-n".into(),
            None => e.exit(),
        }
        Args::parse_from(words)
    })
}

fn run(args: &Args) -> anyhow::Result<u8> {
    let hosts = match &args.hosts {
        None => vec![Host::here(args.n.context("say how many ranks: -n N")?)],
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            let hosts = hosts::parse(&text).with_context(|| path.display().to_string())?;
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
    // Processes whose parents end become children of this one, which ends them too.
    set_child_subreaper(Some(rustix::process::getpid())).context("become a subreaper")?;
    let limits = job::Limits {
        timeout: args.timeout,
        grace: args.grace,
    };
    let code = job::run(&launch, &starts(&hosts), &limits);
    drop(server);
    code
}

/// Who starts where.
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

/// A text that nobody can guess.
fn secret() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    let flags = rustix::rand::GetRandomFlags::empty();
    // Requests of at most 256 bytes are never cut short.
    rustix::rand::getrandom(&mut bytes, flags).context("random numbers")?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
