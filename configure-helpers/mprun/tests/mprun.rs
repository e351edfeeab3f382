//! Tests of the program as users run it: the environment of ranks, the output, the end of jobs, and
//! that no process is left. Ranks are this program, called with the name of a part.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use mp::bootstrap::from_env;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

#[path = "../../../libmp/tests/common/jobs.rs"]
mod jobs;
mod parts;

use jobs::{LONG, until};

fn main() {
    let mut arguments = std::env::args().skip(1);
    if let Some(part) = arguments
        .next()
        .as_deref()
        .and_then(|a| a.strip_prefix("as:"))
    {
        return parts::play(part, &arguments.collect::<Vec<_>>());
    }
    let mut trials = Vec::new();
    let mut trial = |name: &str, test: fn()| {
        let name = name.replace('_', " ");
        trials.push(Trial::test(name, move || {
            test();
            Ok(())
        }));
    };
    macro_rules! trials {
        ($($name:ident)*) => { $(trial(stringify!($name), $name);)* };
    }
    trials! {
        ranks_join_and_exchange_messages
        ranks_of_several_hosts_start_by_ssh
        ssh_command_line_has_no_secrets
        store_listens_only_on_the_address_that_other_hosts_reach
        time_limits_beyond_the_clock_are_accepted
        output_lines_have_a_prefix_and_are_never_mixed
        first_failed_rank_ends_all_and_is_reported
        signal_that_killed_a_rank_is_reported
        other_ranks_detect_a_killed_rank
        ctrl_c_ends_every_process
        second_ctrl_c_kills_at_once
        ranks_end_when_mprun_is_killed
        ranks_on_other_hosts_end_with_mprun
        failed_rank_on_another_host_ends_all
        processes_that_ranks_leave_running_are_killed
        timeout_reports_the_ranks_that_still_run
        missing_command_is_reported
        ranks_get_the_variables
        standard_input_of_ranks_is_empty
        closed_output_ends_the_job
        rank_that_does_not_join_is_named_in_the_error
        invalid_arguments_are_errors
        number_of_ranks_is_accepted_in_every_usual_form
        options_after_the_program_belong_to_the_program
    }
    let mut arguments = Arguments::from_args();
    // Each trial starts processes that need the processors.
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(2));
    libtest_mimic::run(&arguments, trials).exit();
}

/// `mprun` with a part of this program as its command.
fn mprun(options: &[impl AsRef<OsStr>], part: &[&str]) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut command = bare(options);
    command
        .arg(own)
        .arg(format!("as:{}", part[0]))
        .args(&part[1..]);
    command
}

fn bare(options: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mprun"));
    command.args(options).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MP_") {
            command.env_remove(name);
        }
    }
    command
}

fn sh(options: &[impl AsRef<OsStr>], script: &str) -> Command {
    let mut command = bare(options);
    command.args(["sh", "-c", script]);
    command
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    // Shown if the test fails.
    println!("{command:?}\n{}\n{}", out(&output), err(&output));
    output
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The lines of a rank.
fn lines_of(text: &str, rank: u32) -> Vec<&str> {
    let prefix = format!("[{rank}] ");
    text.lines()
        .filter_map(|line| line.strip_prefix(&prefix))
        .collect()
}

/// A new folder, removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("mprun-test-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().into()
    }

    /// Options for ranks on these hosts, which a stand-in for ssh reaches, then `more`.
    fn options(&self, hosts: &str, more: &[&str]) -> Vec<String> {
        let (hosts, ssh) = (self.file("hosts", hosts), self.ssh());
        let own = ["--hosts", &hosts, "--ssh", &ssh];
        let all = own.iter().chain(more);
        all.map(|word| (*word).to_owned()).collect()
    }

    /// A stand-in for ssh, which logs its arguments.
    fn ssh(&self) -> String {
        let log = self.0.join("ssh.log");
        // Like the shell of a remote host, its command does not get this process's variables.
        let script = format!(
            "#!/bin/sh\necho \"$@\" >>{log}\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\n\
             host=$1; shift\n\
             [ \"$host\" = unreachable ] && {{ echo no route >&2; exit 255; }}\n\
             exec env -i PATH=\"$PATH\" HOME=/ ON_HOST=$host /bin/sh -c \"$*\"\n",
            log = log.display()
        );
        let path = self.file("ssh", &script);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running `mprun` whose ranks print their process ids, and those of some children.
struct Running {
    child: Child,
    /// The process ids.
    processes: Vec<Pid>,
}

impl Running {
    /// Waits until `n` lines `process N` have been printed.
    fn start(command: &mut Command, n: usize) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut processes = Vec::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while processes.len() < n {
            let line = lines.next().expect("a line").unwrap();
            let number = line.rsplit_once("process ").expect("a number").1;
            processes.extend(Pid::from_raw(number.parse().unwrap()));
        }
        // mprun blocks if its output is not read.
        std::thread::spawn(move || lines.for_each(drop));
        Running { child, processes }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The exit status of mprun, after every process has ended.
    fn end(mut self) -> std::process::ExitStatus {
        let status = until(|| self.child.try_wait().unwrap());
        for process in self.processes {
            // A zombie still exists: the process must have been reaped.
            until(|| test_kill_process(process).is_err().then_some(()));
        }
        status
    }
}

fn ranks_join_and_exchange_messages() {
    let output = run(&mut mprun(&["-n", "4"], &["ring"]));
    assert!(output.status.success());
    for rank in 0..4 {
        let line = format!("rank {rank} of 4 received {}", (rank + 3) % 4);
        assert_eq!(lines_of(&out(&output), rank), [line]);
    }
}

/// Hosts of the tests have no address.
const BIND: &str = "--bind=127.0.0.1";

fn store_listens_only_on_the_address_that_other_hosts_reach() {
    let folder = Folder::new("listen");
    // mprun treats this address as another host, which it reaches by loopback.
    let options = folder.options("127.0.0.1\n", &[]);
    let mut child = sh(&options, "echo at $MP_STORE; exec sleep 1000")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let store = line.trim().rsplit_once("at tcp://127.0.0.1:");
    let port: Option<u16> = store.and_then(|(_, port)| port.parse().ok());
    let listening = [1, 2]
        .map(|n| TcpStream::connect((Ipv4Addr::new(127, 0, 0, n), port.unwrap_or(0))).is_ok());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(listening, [true, false], "{line}");
    // If the address cannot be found, --bind is required.
    let options = folder.options("no.such.host.invalid\n", &[]);
    let output = run(&mut sh(&options, "true"));
    assert_eq!(output.status.code(), Some(125));
    assert!(err(&output).contains("--bind"));
}

fn time_limits_beyond_the_clock_are_accepted() {
    let options = ["-n", "1", "--timeout", "1e19", "--grace", "1e19"];
    let output = run(&mut sh(&options, "exit 3"));
    assert_eq!(output.status.code(), Some(3));
}

fn ranks_of_several_hosts_start_by_ssh() {
    let folder = Folder::new("hosts");
    let hosts = "alpha 2\nlocalhost\nbeta slots=2 # more than needed\n";
    let options = folder.options(hosts, &[BIND, "-n", "4"]);
    let output = run(&mut mprun(&options, &["ring"]));
    assert!(output.status.success());
    for rank in 0..4 {
        let line = format!("rank {rank} of 4 received {}", (rank + 3) % 4);
        assert_eq!(lines_of(&out(&output), rank), [line]);
    }
    let script = "echo ${ON_HOST:-none} $MP_LOCAL_RANK $MP_LOCAL_SIZE by $MP_PATH in $PWD";
    // A rank's own number is not that of mprun.
    let variables = [("MP_PATH", "tcp"), ("MP_LOCAL_RANK", "7")];
    let output = run(sh(&options, script).envs(variables));
    let text = out(&output);
    let folder = std::env::current_dir().unwrap();
    for (rank, line) in ["alpha 0 2", "alpha 1 2", "none 0 1", "beta 0 1"]
        .iter()
        .enumerate()
    {
        let line = format!("{line} by tcp in {}", folder.display());
        assert_eq!(lines_of(&text, rank as u32), [line]);
    }
}

fn ssh_command_line_has_no_secrets() {
    let folder = Folder::new("secret");
    let password = "PASSWORD=it's $HOME \"quoted\"";
    let options = folder.options("alpha\n", &[BIND, "--env", password]);
    let script = "echo $MP_SECRET; echo \"$PASSWORD\"; tr '\\0' ' ' </proc/$$/cmdline";
    let output = run(&mut sh(&options, script));
    assert!(output.status.success());
    let text = out(&output);
    let [secret, password, ..] = lines_of(&text, 0)[..] else {
        panic!("{text}");
    };
    assert_eq!((secret.len(), password), (64, "it's $HOME \"quoted\""));
    let log = fs::read_to_string(folder.0.join("ssh.log")).unwrap();
    assert!(log.contains("alpha"), "{log}");
    for hidden in [secret, "PASSWORD", "HOME", "cmdline"] {
        assert!(!log.contains(hidden), "{log}");
    }
}

fn output_lines_have_a_prefix_and_are_never_mixed() {
    let output = run(&mut mprun(&["-n", "4"], &["chatter"]));
    assert!(output.status.success());
    for (text, word) in [(out(&output), "out"), (err(&output), "err")] {
        assert!(text.ends_with('\n'));
        assert_eq!(text.lines().count(), 4 * 200 + 4);
        for rank in 0..4 {
            let lines = lines_of(&text, rank);
            for (i, line) in lines[..200].iter().enumerate() {
                assert_eq!(*line, format!("{word} {rank} {i} {}", "x".repeat(i * 10)));
            }
            assert_eq!(lines[200], format!("{word} without an end"));
        }
    }
}

fn first_failed_rank_ends_all_and_is_reported() {
    let script = "if [ $MP_RANK = 2 ]; then exit 7; fi; exec sleep 1000";
    let begun = Instant::now();
    let output = run(&mut sh(&["-n", "4"], script));
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(err(&output), "mprun: rank 2 exited with status 7\n");
    assert!(begun.elapsed() < LONG);
    // Ranks that ignore the request to end are killed, and are not reported as the failure.
    let script = "if [ $MP_RANK = 1 ]; then sleep 0.3; exit 8; fi; trap '' TERM; \
                  while :; do sleep 1; done";
    let output = run(&mut sh(&["-n", "3", "--grace", "0.1"], script));
    assert_eq!(output.status.code(), Some(8));
    assert_eq!(err(&output), "mprun: rank 1 exited with status 8\n");
}

fn signal_that_killed_a_rank_is_reported() {
    let script = "if [ $MP_RANK = 0 ]; then kill -s KILL $$; fi; exec sleep 1000";
    let output = run(&mut sh(&["-n", "2"], script));
    assert_eq!(output.status.code(), Some(128 + 9));
    assert_eq!(
        err(&output),
        "mprun: rank 0 was killed by signal 9 (SIGKILL)\n"
    );
}

fn other_ranks_detect_a_killed_rank() {
    // Rank 2 kills itself; the other ranks detect that before mprun ends them.
    let output = run(&mut mprun(&["-n", "4", "--grace", "30"], &["die", "2"]));
    assert_eq!(output.status.code(), Some(128 + 9));
    for rank in [0, 1, 3] {
        let expected = [
            "rank 2 is gone".to_string(),
            format!("rank {} is alive", (rank + 3) % 4),
        ];
        // Rank 3 has rank 2 at its left.
        let expected = if rank == 3 { &expected[..1] } else { &expected };
        assert_eq!(lines_of(&out(&output), rank), expected);
    }
}

fn ctrl_c_ends_every_process() {
    // Each rank, a child in its process group, and a child in a new session.
    let script = "echo process $$; sleep 1000 & echo process $!; \
                  setsid sleep 1000 & echo process $!; wait";
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let running = Running::start(&mut sh(&["-n", "3"], script), 9);
        running.signal(signal);
        assert_eq!(running.end().code(), Some(code));
    }
}

fn second_ctrl_c_kills_at_once() {
    let script = "trap '' TERM INT; echo process $$; while :; do sleep 1; done";
    let mut running = Running::start(&mut sh(&["-n", "2", "--grace", "1000"], script), 2);
    running.signal(Signal::INT);
    // Signals that are pending together count as one.
    until(|| {
        std::thread::sleep(Duration::from_millis(100));
        let ended = running.child.try_wait().unwrap();
        if ended.is_none() {
            running.signal(Signal::INT);
        }
        ended
    });
    assert_eq!(running.end().code(), Some(130));
}

fn ranks_end_when_mprun_is_killed() {
    let running = Running::start(&mut sh(&["-n", "2"], "echo process $$; exec sleep 1000"), 2);
    running.signal(Signal::KILL);
    assert_eq!(running.end().signal(), Some(9));
}

fn ranks_on_other_hosts_end_with_mprun() {
    let folder = Folder::new("lifeline");
    let options = folder.options("alpha\nbeta\n", &[BIND]);
    let script = "echo process $$; sleep 1000 & echo process $!; wait";
    let running = Running::start(&mut sh(&options, script), 4);
    running.signal(Signal::INT);
    assert_eq!(running.end().code(), Some(130));
    // A rank that ignores the request to end is killed on the other host.
    let script = "trap '' TERM; echo process $$; while :; do sleep 1; done";
    let short = folder.options("alpha\nbeta\n", &[BIND, "--grace", "0.1"]);
    let running = Running::start(&mut sh(&short, script), 2);
    running.signal(Signal::INT);
    assert_eq!(running.end().code(), Some(130));
    // A killed mprun sends nothing: the other hosts detect the end of their input.
    let running = Running::start(&mut sh(&options, "echo process $$; exec sleep 1000"), 2);
    running.signal(Signal::KILL);
    assert_eq!(running.end().signal(), Some(9));
}

fn failed_rank_on_another_host_ends_all() {
    let folder = Folder::new("away");
    let options = folder.options("alpha\nlocalhost\n", &[BIND]);
    let script = "[ $MP_RANK = 0 ] && exit 9; exec sleep 1000";
    let output = run(&mut sh(&options, script));
    assert_eq!(output.status.code(), Some(9));
    assert_eq!(
        err(&output),
        "mprun: rank 0 on alpha exited with status 9\n"
    );
    let script = "[ $MP_RANK = 0 ] && kill -s SEGV $$; exec sleep 1000";
    let output = run(&mut sh(&options, script));
    assert_eq!(output.status.code(), Some(128 + 11));
    let error = "mprun: rank 0 on alpha was killed by signal 11 (SIGSEGV)";
    assert!(err(&output).contains(error));
    let options = folder.options("localhost\nunreachable\n", &[BIND]);
    let output = run(&mut sh(&options, "exec sleep 1000"));
    assert_eq!(output.status.code(), Some(255));
    assert!(err(&output).contains("[1] no route\n"));
    assert!(err(&output).contains("mprun: rank 1 on unreachable exited with status 255"));
}

fn processes_that_ranks_leave_running_are_killed() {
    let script = "sleep 1000 & echo process $!; setsid sleep 1000 & echo process $!";
    let running = Running::start(&mut sh(&["-n", "2"], script), 4);
    assert!(running.end().success());
}

fn timeout_reports_the_ranks_that_still_run() {
    let script = "[ $MP_RANK = 1 ] && exit; exec sleep 1000";
    let output = run(&mut sh(&["-n", "3", "--timeout", "5"], script));
    assert_eq!(output.status.code(), Some(124));
    let error = "mprun: the time limit has passed; these ranks still run: 0, 2\n";
    assert_eq!(err(&output), error);
}

fn missing_command_is_reported() {
    let output = run(&mut bare(&["-n", "2", "/no/such/program"]));
    assert_eq!(output.status.code(), Some(127));
    assert!(err(&output).contains("cannot start /no/such/program"));
}

fn ranks_get_the_variables() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mprun"));
    command
        .env("TAKEN", "c d")
        .env("INHERITED", "e f")
        .env("MP_RANK", "77");
    command.args(["-n", "1", "--env", "GIVEN=a b", "--env", "TAKEN"]);
    command.args(["sh", "-c"]);
    command.arg("echo \"$GIVEN $TAKEN $INHERITED $MP_RANK $MP_SIZE $MP_JOB-\"");
    let output = run(&mut command);
    assert_eq!(out(&output), "[0] a b c d e f 0 1 -\n");
}

fn standard_input_of_ranks_is_empty() {
    let mut command = sh(&["-n", "2"], "cat; echo end");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // mprun may have ended already.
    let _ = stdin.write_all(b"never read\n");
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    assert!(output.status.success());
    let mut lines = out(&output).lines().map(String::from).collect::<Vec<_>>();
    lines.sort();
    assert_eq!(lines, ["[0] end", "[1] end"]);
}

fn closed_output_ends_the_job() {
    // As in `mprun .. | head`.
    let mut command = sh(&["-n", "2"], "while :; do echo more; done");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut line).unwrap();
    assert!(line.ends_with("more\n"));
    drop(reader);
    let status = until(|| child.try_wait().unwrap());
    assert_eq!(status.code(), Some(141));
    // A reader that neither reads nor closes the output delays it, but not Ctrl-C.
    let mut command = sh(&["-n", "2"], "echo process $$; while :; do echo more; done");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    // mprun catches signals before it starts ranks.
    let mut unread = BufReader::new(child.stdout.take().unwrap());
    unread.read_line(&mut line).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = until(|| child.try_wait().unwrap());
    assert_eq!(status.code(), Some(130));
    drop(unread);
}

fn rank_that_does_not_join_is_named_in_the_error() {
    let own = std::env::current_exe().unwrap();
    let own = own.to_str().unwrap();
    let script = format!("[ $MP_RANK = 1 ] && exec sleep 1000; exec {own} as:ring");
    let options = ["-n", "3", "--env", "MP_START_TIMEOUT=5"];
    let output = run(&mut sh(&options, &script));
    assert_eq!(output.status.code(), Some(101));
    let text = err(&output);
    assert!(text.contains("rank 1 did not join in time"), "{text}");
}

fn invalid_arguments_are_errors() {
    let folder = Folder::new("wrong");
    let hosts = folder.file("hosts", "alpha 2\n");
    let cases: [(&[&str], i32, &str); 11] = [
        (&["--bogus", "-n", "2", "true"], 2, "'--bogus'"),
        (&["-n", "2", "-q", "true"], 2, "'-q'"),
        (&["-np", "x", "true"], 2, "invalid value 'x'"),
        (&["true"], 125, "how many ranks"),
        (&["-n", "0", "true"], 125, "0 ranks"),
        (&["-n", "x", "true"], 2, "invalid value"),
        (&["-n", "2"], 2, "required"),
        (
            &["-n", "3", "--hosts", &hosts, "true"],
            125,
            "2 slots for 3 ranks",
        ),
        (&["--hosts", "/no/such/file", "true"], 125, "/no/such/file"),
        (
            &["-n", "1", "--env", "A B=1", "true"],
            2,
            "not the name of a variable",
        ),
        (&["-n", "1", "--timeout", "-1", "true"], 2, "timeout"),
    ];
    for (arguments, code, word) in cases {
        let output = run(&mut bare(arguments));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(err(&output).contains(word), "{arguments:?}");
    }
}

fn number_of_ranks_is_accepted_in_every_usual_form() {
    let forms: [&[&str]; 5] = [
        &["-n", "2"],
        &["-n2"],
        &["-np", "2"],
        &["--timeout", "60", "-np", "2"],
        &["-np", "2", "--"],
    ];
    for form in forms {
        let output = run(&mut sh(form, "echo $MP_RANK of $MP_SIZE"));
        assert!(output.status.success(), "{form:?}");
        for rank in 0..2 {
            let line = format!("{rank} of 2");
            assert_eq!(lines_of(&out(&output), rank), [line.as_str()], "{form:?}");
        }
    }
}

fn options_after_the_program_belong_to_the_program() {
    let words = ["-np", "3", "-n", "4", "--timeout", "x", "--help", "--bogus"];
    for options in [["-n", "1"], ["-np", "1"]] {
        let mut command = bare(&options);
        let output = run(command.args(["printf", "%s "]).args(words));
        assert!(output.status.success());
        assert_eq!(lines_of(&out(&output), 0), [words.join(" ") + " "]);
    }
}
