//! The command line of `vmlx5 run`, with a library without effect in place of libvmlx5.so.

use std::net::TcpListener;
use std::process::{Command, Output};
use std::time::Duration;

/// `vmlx5 run` with the C library preloaded, which every program loads in any case.
fn vmlx5(words: &[&str]) -> Output {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.contains("/libc.so").then_some(path)
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmlx5"));
    command.args(["run", "--library", libc.unwrap()]);
    command.args(words).output().unwrap()
}

fn printed(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|b| String::from_utf8_lossy(b));
    format!("{}: {out}{err}", output.status)
}

#[test]
fn unknown_options_are_named_and_the_programs_options_are_passed_on() {
    let output = vmlx5(&["--bogus", "--", "true"]);
    assert!(
        !output.status.success() && printed(&output).contains("'--bogus'"),
        "{}",
        printed(&output)
    );
    let words = ["--link", "nonsense", "-p", "1", "--help"];
    for dashes in [&[][..], &["--"]] {
        let output = vmlx5(&[dashes, &["printf", "%s "], &words].concat());
        assert!(output.status.success(), "{}", printed(&output));
        let out = String::from_utf8_lossy(&output.stdout);
        assert_eq!(out.trim_end(), words.join(" "));
    }
}

#[test]
fn wait_port_starts_the_program_once_another_listens() {
    // A port that is free: bound, but not listened on yet.
    let held = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = held.local_addr().unwrap().port();
    drop(held);
    let server = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        TcpListener::bind(("127.0.0.1", port)).unwrap()
    });
    // The shell connects, or it fails.
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    let port = port.to_string();
    let output = vmlx5(&["--wait-port", &port, "--", "bash", "-c", &connect]);
    let listener = server.join().unwrap();
    assert!(output.status.success(), "{}", printed(&output));
    // The wait itself opened no connection: the listener has one.
    listener.accept().unwrap();
    listener.set_nonblocking(true).unwrap();
    let e = listener.accept().expect_err("one connection alone");
    assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock);
}
