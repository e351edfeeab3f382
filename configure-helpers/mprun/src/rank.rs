//! The process of one rank: its start, on this host or by ssh, and its end.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open,
    set_parent_process_death_signal, waitid,
};

/// The start parameters of all ranks.
#[derive(Debug)]
pub struct Launch {
    /// The command.
    pub command: Vec<String>,
    /// Variables for the command.
    pub variables: Vec<(String, String)>,
    /// Address of the store.
    pub store: String,
    /// The job's secret. Ranks on this host get it in the environment, those on other hosts on
    /// standard input.
    pub secret: String,
    /// The number of ranks.
    pub size: u32,
    /// The program used instead of ssh.
    pub ssh: String,
    /// Time for ranks on other hosts to end before they are killed.
    pub grace: Duration,
}

/// The numbers of a rank, and its host.
#[derive(Clone, Debug)]
pub struct Start {
    /// The rank.
    pub rank: u32,
    /// The host; `None`: this host.
    pub host: Option<String>,
    /// Its number among the ranks of its host.
    pub local_rank: u32,
    /// The number of ranks of its host.
    pub local_size: u32,
}

impl Launch {
    /// The variables that identify a rank.
    fn identity(&self, start: &Start) -> Vec<(&str, String)> {
        vec![
            ("MP_RANK", start.rank.to_string()),
            ("MP_SIZE", self.size.to_string()),
            ("MP_LOCAL_RANK", start.local_rank.to_string()),
            ("MP_LOCAL_SIZE", start.local_size.to_string()),
            ("MP_STORE", self.store.clone()),
            ("MP_SERVE", "0".into()),
            ("MP_JOB", String::new()),
            ("MP_SECRET", self.secret.clone()),
        ]
    }

    fn here(&self, start: &Start) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).stdin(Stdio::null());
        let variables = self.variables.iter().map(|(n, v)| (n.as_str(), v.clone()));
        command.envs(variables.chain(self.identity(start)));
        command
    }

    /// The command that runs [`script`](Launch::script) on another host.
    fn there(&self, host: &str) -> Command {
        let mut command = Command::new(&self.ssh);
        command.args(["-T", "-oBatchMode=yes", "-oControlMaster=no", host]);
        // Every process can read the command line, so it contains no secret: the variables and the
        // command go by standard input.
        command.arg("exec /bin/sh -c 'IFS= read -r line && eval \"$line\"'");
        command.stdin(Stdio::piped());
        command
    }

    /// The command line for the shell of the other host. The rank runs in a separate session. When
    /// standard input ends, because mprun closes it or has ended, the shell ends the rank.
    ///
    /// # Errors
    /// The command, a variable or the current directory contains a line break.
    fn script(&self, start: &Start) -> anyhow::Result<String> {
        // Those of `identity` override them.
        let ours = |(name, _): &(String, String)| {
            ["GDS_", "MP_"].iter().any(|first| name.starts_with(first))
        };
        let inherited = std::env::vars_os();
        let inherited =
            inherited.filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)));
        let given = inherited.filter(ours).chain(self.variables.clone());
        let own = self.identity(start).into_iter();
        let own = own.map(|(name, value)| (name.to_owned(), value));
        let mut export = String::from("export");
        for (name, value) in given.chain(own) {
            export += &format!(" {name}={}", quote(&value));
        }
        let folder = std::env::current_dir().context("the current directory cannot be read")?;
        let folder = folder
            .to_str()
            .context("the path of the current directory is not UTF-8")?;
        let command = self.command.iter().map(|word| quote(word));
        let command = command.collect::<Vec<_>>().join(" ");
        // The guard starts before the command, in its process group, and is not its child.
        let guard = format!(
            "((trap \"\" TERM; while read -r line <&3; do :; done; kill -s TERM -- -$$; sleep {}; \
             kill -s KILL -- -$$) &) </dev/null >/dev/null 2>&1; exec \"$@\" </dev/null 3<&-",
            self.grace.as_secs_f64()
        );
        let line = format!(
            "cd {} || exit 126; {export}; exec 3<&0 </dev/null; \
             setsid /bin/sh -c {} rank {command} & rank=$!; wait $rank 2>/dev/null; code=$?; \
             kill -s KILL -- -$rank 2>/dev/null; exit $code",
            quote(folder),
            quote(&guard)
        );
        ensure!(
            !line.contains('\n'),
            "a command, variable or directory with a line break cannot be sent to another host"
        );
        Ok(line + "\n")
    }
}

/// Quotes a word for a shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A started rank. Dropping it kills and reaps the process.
#[derive(Debug)]
pub struct Rank {
    /// Its numbers and its host.
    pub start: Start,
    child: Child,
    /// Readable when the process has ended.
    pub ended: OwnedFd,
    /// Of a rank on another host: closing it ends the rank.
    lifeline: Option<ChildStdin>,
    status: Option<ExitStatus>,
}

impl Rank {
    /// Starts a rank as the leader of a new process group.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn start(launch: &Launch, start: Start) -> anyhow::Result<Rank> {
        let rank = start.rank;
        let (mut command, script) = match &start.host {
            None => (launch.here(&start), None),
            Some(host) => (launch.there(host), Some(launch.script(&start)?)),
        };
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        let killed = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: between fork and exec the closure makes one system call and does nothing else.
        unsafe { command.pre_exec(killed) };
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn();
        let mut child = child.with_context(|| format!("rank {rank} cannot start {program}"))?;
        let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let mut lifeline = child.stdin.take();
        let mut rank = Rank {
            start,
            // From here on a failure drops the rank, which kills it.
            ended: match ended {
                Ok(ended) => ended,
                Err(e) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(e).context("the call pidfd_open failed");
                }
            },
            child,
            lifeline: None,
            status: None,
        };
        if let (Some(line), Some(lifeline)) = (script, &mut lifeline) {
            // If it has ended already, the wait reports that.
            let _ = std::io::Write::write_all(lifeline, line.as_bytes());
        }
        rank.lifeline = lifeline;
        Ok(rank)
    }

    /// Its standard output and standard error; they can be taken once.
    pub fn streams(&mut self) -> [Option<OwnedFd>; 2] {
        let out = self.child.stdout.take().map(OwnedFd::from);
        [out, self.child.stderr.take().map(OwnedFd::from)]
    }

    /// The process id.
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Whether it runs, as far as has been observed.
    pub fn runs(&self) -> bool {
        self.status.is_none()
    }

    /// Requests it to end.
    pub fn terminate(&mut self) {
        match &self.start.host {
            None => self.signal(Signal::TERM),
            Some(_) => self.lifeline = None,
        }
    }

    /// Kills the rank and its processes, except those that left its process group.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if self.runs() {
            // It is not reaped yet, so the process id is still valid; an error because all have
            // ended is harmless.
            let _ = kill_process_group(self.pid(), signal);
        }
    }

    /// How it ended, if it has. First kills the processes that it left running in its process
    /// group.
    ///
    /// # Errors
    /// A system call fails.
    pub fn reap(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        if self.runs() {
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let ended = waitid(WaitId::PidFd(self.ended.as_fd()), look)
                .context("the call waitid failed")?;
            if ended.is_some() {
                self.kill();
                self.status = Some(self.child.wait().context("the call wait failed")?);
            }
        }
        Ok(self.status)
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        if self.runs() {
            self.kill();
            // It was killed, so this is fast. init reaps the rest.
            let _ = self.child.wait();
        }
    }
}

/// How a rank failed, as text and as mprun's exit code; `None` if it succeeded.
pub fn failure(start: &Start, status: ExitStatus) -> Option<(String, u8)> {
    let by_signal = |signal: i32| {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("unknown");
        let text = format!("was killed by signal {signal} ({name})");
        (text, (128 + signal).clamp(1, 255) as u8)
    };
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        // The exit code of the other host's shell contains the number of the signal.
        (Some(code), _) if start.host.is_some() && (129..160).contains(&code) => {
            Some(by_signal(code - 128))
        }
        (Some(255), _) if start.host.is_some() => {
            let text = "exited with status 255, which is also the status of ssh if ssh fails";
            Some((text.into(), 255))
        }
        (Some(code), _) => Some((format!("exited with status {code}"), code as u8)),
        (None, signal) => Some(by_signal(signal.unwrap_or_default())),
    }
}
