//! A peer in a separate process echoes messages on its own streams of the same GPU, and is killed
//! in the middle of the exchange.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

use gdsync::gpu::{MemoryKind, Region, Stream};
use gdsync::rdma::{Descriptor, Device, Mr, Qp, QpAddress, ReceiveRequest, SendRequest, Work};
use gdsync::{Kind, Status};

use super::child::{self, Guarded};
use super::faults::{config, error_word};
use super::settings;
use crate::rig::limits::time_limit;
use crate::rig::provider;
use crate::rig::verdict::{Verdict, ensure};
use crate::rig::{self, Rig, Runtime, expected, finish, retry};

/// Length of a message in bytes.
const LEN: usize = 256;
/// Messages in flight at a time.
const AHEAD: usize = 4;
/// Echoes before the peer is killed.
const BEFORE: usize = 24;
/// Slots for messages: each message of the trial has a separate one.
const SLOTS: usize = BEFORE + AHEAD + 1;
/// The statuses that a killed peer may cause: it does not answer, or, while its kernel releases its
/// resources, its memory is gone before the queue pair that received into it.
const LOST: [Status; 2] = [Status::TRANSPORT_RETRY, Status::REMOTE_OPERATION];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn address(line: &str) -> Verdict<QpAddress> {
    let digits = line.trim().as_bytes().chunks(2);
    let byte =
        |pair: &[u8]| -> Verdict<u8> { Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?) };
    let bytes = digits.map(byte).collect::<Verdict<Vec<u8>>>()?;
    Ok(QpAddress::from_bytes(&bytes)?)
}

/// A queue pair, memory for [`SLOTS`] messages in each direction, and streams.
struct Side {
    rig: Rig,
    qp: Qp,
    device: Device,
    memory: Mr,
    sender: Stream,
    receiver: Stream,
}

/// Offsets of a message: where it is written, and where the peer's message arrives.
fn offsets(round: usize) -> (usize, usize) {
    let slot = round % SLOTS;
    (slot * LEN, (SLOTS + slot) * LEN)
}

impl Side {
    fn open(runtime: Runtime, path: &str, payload: MemoryKind) -> Verdict<Side> {
        let rig = Rig::open(runtime)?;
        let device = provider::open(rig.provider, &rig.gpu)?;
        let pd = device.alloc_pd()?;
        let qp = pd.create_qp(&config(path))?;
        let memory = rig::memory(&pd, payload, 2 * SLOTS * LEN)?;
        Ok(Side {
            sender: rig.gpu.stream()?,
            receiver: rig.gpu.stream()?,
            rig,
            qp,
            device,
            memory,
        })
    }

    fn receive(&mut self, round: usize) -> gdsync::Result<ReceiveRequest> {
        let list = [self.memory.sge(offsets(round).1 as u64, LEN as u32)];
        retry(&self.rig.gpu, || self.qp.prepare_receive(&list))
    }

    /// Sends a message from where it was written or, as an echo, from where it arrived.
    fn send(&mut self, round: usize, echo: bool) -> gdsync::Result<SendRequest> {
        let (made, landed) = offsets(round);
        let at = if echo { landed } else { made };
        let list = [self.memory.sge(at as u64, LEN as u32)];
        self.qp
            .prepare_within(&Work::send(&list).signaled(), time_limit())
    }
}

/// The peer: echoes until it is killed, or until the process that started it ends.
pub fn child_main(arguments: &[String]) -> Verdict {
    let [runtime, path, payload] = arguments else {
        return Err("a runtime, a path and a kind of memory are needed".into());
    };
    let runtime = Runtime::named(runtime).ok_or("no such runtime")?;
    let mut side = Side::open(runtime, path, settings::memory(payload))?;
    println!("{}", hex(&side.qp.address().to_bytes()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    side.qp.connect(&address(&line)?)?;
    println!("connected");
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    for round in 0.. {
        let receive = side.receive(round)?;
        let send = side.send(round, true)?;
        let list = [
            Descriptor::Receive(receive),
            Descriptor::wait_flushed(receive),
            Descriptor::Send(send),
            Descriptor::wait(send),
        ];
        side.qp.post_on(&side.sender, &list)?;
    }
    Ok(())
}

/// The peer, as its parent process handles it.
struct Peer {
    process: Guarded,
    say: ChildStdin,
    hear: BufReader<ChildStdout>,
}

impl Peer {
    fn start(arguments: &[&str]) -> Verdict<Peer> {
        let mut command = child::command("peer", arguments)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Guarded(command.spawn()?);
        let say = process.0.stdin.take().ok_or("no standard input")?;
        let hear = process.0.stdout.take().ok_or("no standard output")?;
        Ok(Peer {
            process,
            say,
            hear: BufReader::new(hear),
        })
    }

    fn line(&mut self) -> Verdict<String> {
        let mut line = String::new();
        let n = self.hear.read_line(&mut line)?;
        ensure(n > 0, || "the peer ended early".to_owned())?;
        Ok(line)
    }
}

/// Kills the peer in the middle of an exchange: requests in flight get a typed status, streams
/// pass, and the GPU works with other peers.
pub fn killed(runtime: Runtime, path: &str, payload: &str) -> Verdict {
    let mut side = Side::open(runtime, path, settings::memory(payload))?;
    let mut peer = Peer::start(&[runtime.name(), path, payload])?;
    let theirs = peer.line()?;
    writeln!(peer.say, "{}", hex(&side.qp.address().to_bytes()))?;
    side.qp.connect(&address(&theirs)?)?;
    peer.line()?;

    let rounds = SLOTS - 1;
    let seen = side.rig.gpu.alloc(MemoryKind::Pinned, SLOTS * LEN)?;
    let mut flying = VecDeque::new();
    for round in 0..rounds {
        if flying.len() == AHEAD {
            let oldest = flying.pop_front().ok_or("nothing in flight")?;
            side.qp.wait(oldest, time_limit())?;
        }
        flying.push_back(post(&mut side, round, &seen)?.1);
    }
    // So many messages are in flight, or the peer processes them.
    peer.process.0.kill()?;
    peer.process.0.wait()?;
    let last = match post(&mut side, rounds, &seen) {
        Ok((send, _)) => side.qp.wait(send, time_limit()),
        // The failure was detected already.
        Err(failed) => Err(failed),
    };
    let error = side.qp.error();
    let lost = error.filter(|status| LOST.contains(status));
    let lost = lost.ok_or_else(|| format!("{error:?} of a peer that is gone, {last:?}"))?;
    if let Err(failed) = last {
        let typed = matches!(failed.kind(), Kind::Failed(s) if s == lost || s == Status::FLUSHED);
        ensure(typed, || format!("{failed:?}"))?;
    }
    for receive in flying {
        match side.qp.wait(receive, time_limit()) {
            Ok(()) => {}
            Err(e) if e.kind() == Kind::Failed(Status::FLUSHED) => {}
            Err(e) => return Err(e.into()),
        }
    }
    finish(&side.sender, "the survivor's stream that sends")?;
    finish(&side.receiver, "the survivor's stream that receives")?;
    error_word(&side.rig, &side.qp, lost)?;
    for round in 0..BEFORE {
        let mut got = vec![0; LEN];
        seen.read(round * LEN, &mut got)?;
        ensure(got == expected(round as u64, LEN), || {
            format!("message {round} came back as another")
        })?;
    }
    drop(side.qp);
    side.device.close(time_limit())?;
    side.rig.check(&config(path))
}

/// Enqueues a message on the sending stream, and the wait for its echo on the other stream: a send
/// does not wait for an echo.
fn post(
    side: &mut Side,
    round: usize,
    seen: &Region,
) -> gdsync::Result<(SendRequest, ReceiveRequest)> {
    let memory = side.memory.region().clone();
    let (made, landed) = offsets(round);
    side.rig
        .fill(&side.sender, &memory, made, LEN, round as u64)?;
    let receive = side.receive(round)?;
    side.qp.post_receive(receive)?;
    let send = side.send(round, false)?;
    let list = [Descriptor::Send(send), Descriptor::wait(send)];
    side.qp.post_on(&side.sender, &list)?;
    let list = [Descriptor::wait_flushed(receive)];
    side.qp.post_on(&side.receiver, &list)?;
    let (to, from) = (seen.span(round * LEN, LEN)?, memory.span(landed, LEN)?);
    side.receiver.copy(&to, &from)?;
    Ok((send, receive))
}
