//! Memory shared between processes, and within one: pinned and device memory both ways, written by
//! kernels and memory operations of one process and awaited by streams of the other, also after the
//! death of its owner. The processes use one GPU, or two that reach each other.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gdsync::gpu::{GpuIdentity, MemoryKind, Region, SharedMemory, Stream};
use gdsync::rdma::{Descriptor, post_on};
use gdsync::{Gpu, Kind};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};

use super::child::{self, Guarded};
use crate::rig::limits::time_limit;
use crate::rig::verdict::{Verdict, ensure};
use crate::rig::{Finding, Gate, Rig, Runtime, expected, finish, reaches};

/// The role of the other process.
pub const ROLE: &str = "shared";

/// The kinds of memory.
const KINDS: [&str; 4] = ["pinned", "long pinned", "device", "exportable device"];
/// Payloads in each direction, for each kind.
const ROUNDS: u32 = 20;
/// Offset and length of the payload of a region; words are before it.
const AT: usize = 4096;
const LEN: usize = 20_001;
/// Offsets of words: written by the other process, by the own stream, and by the CPU of the other.
const SENT: usize = 0;
const OWN: usize = 64;
const BY_CPU: usize = 128;

/// New memory of each kind.
fn regions(gpu: &Gpu) -> gdsync::Result<Vec<Region>> {
    let region = |kind: &&str| match *kind {
        "pinned" => gpu.alloc(MemoryKind::Pinned, AT + LEN),
        // With a file of its own.
        "long pinned" => gpu.alloc(MemoryKind::Pinned, 1 << 20),
        "device" => gpu.alloc(MemoryKind::Device, AT + LEN),
        _ => gpu.alloc_exportable(AT + LEN),
    };
    KINDS.iter().map(region).collect()
}

/// The pattern of a payload.
fn seed(kind: usize, from_first: bool, round: u32) -> u64 {
    1 + u64::from(round) * 16 + kind as u64 * 2 + u64::from(from_first)
}

/// Opens shared memory.
fn open(gpu: &Gpu, shared: &SharedMemory) -> gdsync::Result<Region> {
    // SAFETY: a descriptor keeps the memory, and the trials share nothing else.
    unsafe { gpu.open_shared(shared) }
}

/// Makes the stream write a word of a region.
fn write(stream: &Stream, region: &Region, at: usize, value: u32) -> gdsync::Result<()> {
    let word = region.word32(at)?;
    post_on(stream, &mut [], &[Descriptor::write_value(&word, value)])
}

/// Makes the stream wait until a word of a region has at least this value.
fn wait(stream: &Stream, region: &Region, at: usize, value: u32) -> gdsync::Result<()> {
    let word = region.word32(at)?;
    post_on(stream, &mut [], &[reaches(&word, value)])
}

/// Sends bytes, and a descriptor.
fn send(line: &OwnedFd, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Verdict {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fd.into_iter().collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let bytes = [IoSlice::new(bytes)];
    rustix::net::sendmsg(line, &bytes, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives what [`send`] has sent.
fn receive(line: &OwnedFd) -> Verdict<(Vec<u8>, Option<OwnedFd>)> {
    let mut bytes = [0; 128];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let (mut into, flags) = ([IoSliceMut::new(&mut bytes)], RecvFlags::CMSG_CLOEXEC);
    let message = rustix::net::recvmsg(line, &mut into, &mut control, flags)?;
    ensure(message.bytes > 0, || "the other process ended".to_owned())?;
    let mut fd = None;
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = item {
            fd = rights.last();
        }
    }
    Ok((bytes[..message.bytes].to_vec(), fd))
}

fn send_memory(line: &OwnedFd, region: &Region) -> Verdict {
    let (kind, fd, offset, len) = match region.share()? {
        SharedMemory::File { fd, offset, len } => (b'f', fd, offset, len),
        SharedMemory::Host { fd, offset, len } => (b'h', fd, offset, len),
        other => return Err(format!("{region:?} is shared as {other:?}").into()),
    };
    ensure(
        (kind == b'h') == (region.kind() == MemoryKind::Pinned),
        || format!("{region:?} is shared as the other kind of memory"),
    )?;
    let bytes = [&[kind][..], &offset.to_le_bytes(), &len.to_le_bytes()].concat();
    send(line, &bytes, Some(fd.as_fd()))
}

fn receive_memory(line: &OwnedFd) -> Verdict<SharedMemory> {
    let (bytes, fd) = receive(line)?;
    let number = |at: usize| -> Verdict<u64> {
        let word = bytes.get(at..at + 8).ok_or("a message that is too short")?;
        Ok(u64::from_le_bytes(word.try_into()?))
    };
    let (fd, offset, len) = (fd.ok_or("no descriptor")?, number(1)?, number(9)?);
    Ok(match bytes[0] {
        b'h' => SharedMemory::Host { fd, offset, len },
        _ => SharedMemory::File { fd, offset, len },
    })
}

/// One of the two processes.
struct Side {
    rig: Rig,
    line: OwnedFd,
    first: bool,
    mine: Vec<Region>,
    /// The memory of the other process, in the same order.
    theirs: Vec<Region>,
}

impl Side {
    fn meet(rig: Rig, line: OwnedFd, first: bool) -> Verdict<Side> {
        sockopt::set_socket_timeout(&line, sockopt::Timeout::Recv, Some(time_limit()))?;
        send(&line, &rig.gpu.identity().to_bytes(), None)?;
        let other = GpuIdentity::from_bytes(&receive(&line)?.0)?;
        rig.gpu
            .reaches(&other)
            .map_err(|e| format!("the GPU does not reach that of the other process: {e}"))?;
        let mine = regions(&rig.gpu)?;
        for region in &mine {
            send_memory(&line, region)?;
        }
        let mut theirs = Vec::new();
        for own in &mine {
            let region = open(&rig.gpu, &receive_memory(&line)?)?;
            let alike = (region.kind(), region.len()) == (own.kind(), own.len());
            ensure(alike, || format!("{region:?} for memory like {own:?}"))?;
            theirs.push(region);
        }
        Ok(Side {
            rig,
            line,
            first,
            mine,
            theirs,
        })
    }

    /// Waits until the other process is here too.
    fn meet_again(&self) -> Verdict {
        send(&self.line, b".", None)?;
        receive(&self.line).map(drop)
    }

    /// Enqueues all payloads in memory of one kind, in turns, behind each other in the streams
    /// alone.
    fn enqueue(&self, kind: usize, stream: &Stream, finding: &Finding) -> Verdict {
        let (mine, theirs) = (&self.mine[kind], &self.theirs[kind]);
        for round in 1..=ROUNDS {
            for from_first in [true, false] {
                let seed = seed(kind, from_first, round);
                if from_first == self.first {
                    self.rig.fill(stream, theirs, AT, LEN, seed)?;
                    write(stream, theirs, SENT, round)?;
                } else {
                    wait(stream, mine, SENT, round)?;
                    self.rig.verify(stream, mine, AT, LEN, seed, finding)?;
                }
            }
        }
        // A stream also waits for a word in memory of the other process.
        write(stream, mine, OWN, 1)?;
        wait(stream, theirs, OWN, 1)?;
        Ok(())
    }

    fn exchange(&self) -> Verdict {
        let finding = self.rig.finding()?;
        let stream = self.rig.gpu.stream()?;
        for (kind, name) in KINDS.iter().enumerate() {
            self.enqueue(kind, &stream, &finding)?;
            finish(&stream, &format!("payloads in {name} memory"))?;
            finding.clean(&format!("payloads in {name} memory"))?;
        }
        // By the CPU, or by a copy engine.
        for (kind, theirs) in self.theirs.iter().enumerate() {
            theirs.write(AT, &expected(kind as u64, LEN))?;
            theirs.word64(BY_CPU)?.store(77)?;
        }
        for (kind, mine) in self.mine.iter().enumerate() {
            let word = mine.word64(BY_CPU)?;
            let host = self.rig.gpu.host();
            let deadline = Some(host.now() + time_limit());
            let stored = host.wait_until(deadline, &mut || matches!(word.load(), Ok(77)));
            let mut bytes = vec![0; LEN];
            mine.read(AT, &mut bytes)?;
            ensure(stored && bytes == expected(kind as u64, LEN), || {
                format!("{}: the bytes of the other CPU are missing", KINDS[kind])
            })?;
        }
        self.meet_again()
    }

    /// The memory of a process that has ended stays usable, and its release waits for no stream.
    fn outlive(self) -> Verdict {
        let (finding, stream) = (self.rig.finding()?, self.rig.gpu.stream()?);
        for theirs in &self.theirs {
            self.rig.fill(&stream, theirs, AT, LEN, 99)?;
            self.rig.verify(&stream, theirs, AT, LEN, 99, &finding)?;
            write(&stream, theirs, SENT, 1000)?;
            wait(&stream, theirs, SENT, 1000)?;
        }
        finish(&stream, "memory of a process that has ended")?;
        finding.clean("memory of a process that has ended")?;
        let mut bytes = vec![0; LEN];
        self.theirs[0].read(AT, &mut bytes)?;
        ensure(bytes == expected(99, LEN), || {
            "the CPU does not read what the GPU wrote".to_owned()
        })?;
        let gate = Gate::new(&self.rig.gpu)?;
        post_on(&stream, &mut [], &[gate.wait()])?;
        for theirs in &self.theirs {
            self.rig.fill(&stream, theirs, AT, LEN, 100)?;
        }
        drop(self.theirs);
        let beside = self.rig.gpu.stream()?;
        self.rig.fill(&beside, &self.mine[0], AT, LEN, 101)?;
        finish(&beside, "a stream beside the one that waits")?;
        gate.open()?;
        finish(&stream, "work on memory that was dropped")
    }
}

/// The other process: exchanges, and stays until it is killed.
pub fn child_main(arguments: &[String]) -> Verdict {
    let [runtime, gpu] = arguments else {
        return Err("a runtime and a GPU are needed".into());
    };
    let runtime = Runtime::named(runtime).ok_or("no such runtime")?;
    let line = std::io::stdin().as_fd().try_clone_to_owned()?;
    let side = Side::meet(Rig::of(runtime, Gpu::open(gpu)?)?, line, false)?;
    side.exchange()?;
    // Ends with the other process, if that does not kill this one.
    let _ = receive(&side.line);
    Ok(())
}

/// Memory of two processes, the second one on the GPU of this name.
pub fn two_processes(rig: &Rig, gpu: &str) -> Verdict {
    let (here, there) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut command = child::command(ROLE, &[rig.runtime.name(), gpu])?;
    command.stdin(there);
    let mut process = Guarded(command.spawn()?);
    // The parent's copy of the other end would hide the end of the other process.
    drop(command);
    let side = Side::meet(rig.clone(), here, true)?;
    side.exchange()?;
    process.0.kill()?;
    process.0.wait()?;
    side.outlive()
}

/// A process opens its own memory, twice, as ranks do that are threads.
pub fn one_process(rig: &Rig) -> Verdict {
    let (finding, stream) = (rig.finding()?, rig.gpu.stream()?);
    for region in regions(&rig.gpu)? {
        let shared = region.share()?;
        let (first, second) = (open(&rig.gpu, &shared)?, open(&rig.gpu, &shared)?);
        rig.fill(&stream, &first, AT, LEN, 5)?;
        write(&stream, &second, SENT, 1)?;
        wait(&stream, &region, SENT, 1)?;
        wait(&stream, &first, SENT, 1)?;
        rig.verify(&stream, &region, AT, LEN, 5, &finding)?;
        drop((first, shared, region));
        rig.verify(&stream, &second, AT, LEN, 5, &finding)?;
        finish(&stream, "memory of the own process")?;
    }
    finding.clean("memory of the own process")
}

/// Descriptors that are no shared memory are refused with a typed error, and the GPU still works.
pub fn hostile(rig: &Rig) -> Verdict {
    let memfd = |len: u64, seals: SealFlags| -> Verdict<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("hostile", flags)?;
        rustix::fs::ftruncate(&file, len)?;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(file)
    };
    let device = |path: &str| -> Verdict<OwnedFd> {
        let file = std::fs::File::options().read(true).write(true).open(path);
        Ok(file?.into())
    };
    let shrink = SealFlags::SHRINK;
    let (pipe, _writer) = std::io::pipe()?;
    let files: [(&str, OwnedFd, u64, u64); 9] = [
        ("a pipe", pipe.into(), 0, 8),
        ("a device", device("/dev/null")?, 0, 8),
        (
            "a file of the system",
            std::fs::File::open("/proc/self/exe")?.into(),
            0,
            8,
        ),
        (
            "a file that may shrink",
            memfd(8192, SealFlags::GROW)?,
            0,
            8,
        ),
        ("a file that is too short", memfd(4096, shrink)?, 0, 4097),
        ("an offset past the end", memfd(4096, shrink)?, 4096, 1),
        ("an end past 2^64", memfd(4096, shrink)?, u64::MAX, 2),
        ("the longest length", memfd(4096, shrink)?, 1, u64::MAX),
        ("no bytes", memfd(4096, shrink)?, 0, 0),
    ];
    for (what, fd, offset, len) in files {
        let opened = open(&rig.gpu, &SharedMemory::Host { fd, offset, len });
        match opened {
            Err(e) if e.kind() == Kind::Invalid => {}
            other => return Err(format!("{what}: {other:?}").into()),
        }
    }
    // Files that are sealed against writes cannot be mapped for writes.
    let (fd, offset, len) = (memfd(4096, shrink | SealFlags::WRITE)?, 0, 8);
    let opened = open(&rig.gpu, &SharedMemory::Host { fd, offset, len });
    ensure(opened.is_err(), || "a file for reads is opened".to_owned())?;
    for (fd, len) in [(device("/dev/null")?, 8), (memfd(0, shrink)?, u64::MAX)] {
        let opened = open(&rig.gpu, &SharedMemory::File { fd, offset: 0, len });
        ensure(opened.is_err(), || {
            "a descriptor of no memory is opened".to_owned()
        })?;
    }
    one_process(rig)
}
