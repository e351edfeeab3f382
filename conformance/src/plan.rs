//! A random program for two ranks, drawn from a seed.

use fastrand::Rng;
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use gdsync::memop::Caps;
use gdsync::rdma::{Access, Endpoint, Lowering, QpConfig};

/// Bytes of a message at most; each step has a slot of this size.
pub const SLOT: usize = 1024;
/// Steps of a program.
pub const STEPS: usize = 160;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND into a posted receive.
    Send,
    /// SEND with four bytes beside it.
    SendImm,
    /// SEND of captured bytes (at most 100).
    SendInline,
    /// RDMA WRITE with four bytes, which takes a receive.
    WriteImm,
    /// RDMA WRITE that nobody is told of.
    Write,
    /// RDMA READ of the other's pattern.
    Read,
    /// Adds to a word of the other.
    FetchAdd,
}

/// Who rings for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The CPU.
    Cpu,
    /// One of two streams.
    Stream(usize),
}

/// One step: `from` does something towards the other rank.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The acting rank.
    pub from: usize,
    /// What.
    pub kind: Kind,
    /// Bytes.
    pub len: usize,
    /// Who rings.
    pub by: By,
    /// Whether a completion is asked for.
    pub signaled: bool,
    /// Whether the ringing stream waits for the completion (if signaled).
    pub waits: bool,
    /// Whether the receive is posted by the receiver's stream instead of its CPU.
    pub receive_by_stream: bool,
    /// How many receives are posted ahead of their turn is bounded by this.
    pub hurry: bool,
    /// A request prepared before this one and aborted after it was prepared: a hole.
    pub hole: bool,
    /// A request prepared after this one and aborted at once.
    pub newest_aborted: bool,
    /// Prepared with a wrong length and address, put right by the stream.
    pub patched: bool,
}

/// A program and the world it runs in.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The steps in order.
    pub steps: Vec<Step>,
    /// How the soft GPUs are made, but for weak memory.
    pub options: SoftOptions,
    /// How the queue pairs are made.
    pub config: QpConfig,
    /// Where received bytes land.
    pub landing: MemoryKind,
}

/// Draws a program.
pub fn draw(seed: u64) -> Plan {
    let mut rng = Rng::with_seed(seed);
    let flush = rng.u8(0..8) != 0;
    let caps = Caps {
        memops64: rng.u8(0..4) != 0,
        nor: rng.u8(0..4) != 0,
        mask: rng.u8(0..4) == 0,
        flush,
        inline_copy: rng.bool(),
        fence: rng.u8(0..4) != 0,
        kernels: true,
        batch_limit: if rng.u8(0..3) == 0 {
            rng.usize(3..9)
        } else {
            255
        },
    };
    let kind = |rng: &mut Rng| match rng.u8(0..3) {
        0 => MemoryKind::Device,
        _ => MemoryKind::Pinned,
    };
    let config = QpConfig {
        send_blocks: 1 << rng.u32(2..5),
        recv_entries: 1 << rng.u32(2..5),
        recv_sges: 2,
        ring_memory: kind(&mut rng),
        cq_memory: kind(&mut rng),
        record_memory: kind(&mut rng),
        timeout: None,
        lowering: if rng.u8(0..3) == 0 {
            Lowering::Kernel
        } else {
            Lowering::MemOps
        },
        endpoint: if rng.u8(0..4) == 0 {
            Endpoint::Proxy
        } else {
            Endpoint::Ring
        },
        access: Access::ALL,
        start: 0u32.wrapping_sub(rng.u32(0..40)),
    };
    // Without a flush only host memory shows what its completion says.
    let landing = match flush && rng.u8(0..4) != 0 {
        true => MemoryKind::Device,
        false => MemoryKind::Pinned,
    };
    let steps = (0..STEPS).map(|_| step(&mut rng)).collect();
    Plan {
        steps,
        options: SoftOptions {
            caps,
            ..SoftOptions::default()
        },
        config,
        landing,
    }
}

fn step(rng: &mut Rng) -> Step {
    let kind = match rng.u8(0..12) {
        0..4 => Kind::Send,
        4 => Kind::SendImm,
        5 => Kind::SendInline,
        6 => Kind::WriteImm,
        7..9 => Kind::Write,
        9..11 => Kind::Read,
        _ => Kind::FetchAdd,
    };
    let len = match rng.u8(0..6) {
        0 => 0,
        1 => rng.usize(1..8),
        2 => SLOT,
        _ => rng.usize(1..SLOT),
    };
    let len = match kind {
        Kind::SendInline => len.min(100),
        Kind::FetchAdd => 8,
        Kind::Read => len.max(1),
        _ => len,
    };
    let by = match rng.u8(0..4) {
        0 => By::Cpu,
        1 => By::Stream(1),
        _ => By::Stream(0),
    };
    // READs and atomics are waited for: what they bring is looked at.
    let brings = matches!(kind, Kind::Read | Kind::FetchAdd);
    let patchable = matches!(kind, Kind::Send | Kind::Write) && by != By::Cpu && len > 0;
    Step {
        from: rng.usize(0..2),
        kind,
        len,
        by: if brings {
            By::Stream(rng.usize(0..2))
        } else {
            by
        },
        signaled: brings || rng.u8(0..3) != 0,
        waits: brings || rng.bool(),
        receive_by_stream: rng.bool(),
        hurry: rng.bool(),
        hole: rng.u8(0..5) == 0,
        newest_aborted: rng.u8(0..5) == 0,
        patched: patchable && rng.u8(0..3) == 0,
    }
}
