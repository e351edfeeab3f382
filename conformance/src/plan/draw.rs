//! Draws a program from a seed.

use std::time::Duration;

use fastrand::Rng;
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use gdsync::memop::{Caps, Condition};
use gdsync::rdma::{Access, Endpoint, Lowering, QpConfig, Transport};
use softgpu::Weak;

use super::{
    By, GUARD, Hiccup, Ink, Kind, Plan, Receive, Seat, Step, Victim, Waiter, When, agenda, is_words,
};

/// The longest message.
const LONGEST: usize = 16 << 10;
/// The longest message that travels in its entry.
const INLINE: usize = 150;
/// How often every ring is gone through at least.
const LAPS: u32 = 3;

/// Draws the program of `seed`.
pub fn draw(seed: u64) -> Plan {
    let mut rng = Rng::with_seed(seed);
    let ranks = if one_in(&mut rng, 5) { 3 } else { 2 };
    let mut seats: Vec<Seat> = (0..ranks).map(|_| seat(&mut rng, ranks)).collect();
    for (rank, seat) in seats.iter_mut().enumerate() {
        seat.queues[rank] = None;
    }
    let steps = steps(&mut rng, &seats);
    let mut slots = vec![0];
    for step in &steps {
        let len = (step.len.max(8) + GUARD).next_multiple_of(64);
        slots.push(slots[slots.len() - 1] + len);
    }
    let hiccups = match rng.u8(0..3) {
        0 => (0..rng.usize(1..6))
            .map(|_| hiccup(&mut rng, ranks))
            .collect(),
        _ => Vec::new(),
    };
    Plan {
        agendas: (0..ranks).map(|rank| agenda::of(&steps, rank)).collect(),
        seats,
        steps,
        slots,
        hiccups,
    }
}

fn one_in(rng: &mut Rng, n: u32) -> bool {
    rng.u32(0..n) == 0
}

fn hiccup(rng: &mut Rng, ranks: usize) -> Hiccup {
    let victims = [
        Victim::Gpu,
        Victim::Nic,
        Victim::Watcher,
        Victim::Cpu,
        Victim::Links,
    ];
    Hiccup {
        rank: rng.usize(0..ranks),
        victim: victims[rng.usize(0..victims.len())],
        after: Duration::from_micros(rng.u64(0..1000)),
        lasts: Duration::from_micros(1 << rng.u32(0..13)),
    }
}

fn seat(rng: &mut Rng, ranks: usize) -> Seat {
    let caps = Caps {
        memops64: !one_in(rng, 4),
        nor: !one_in(rng, 4),
        mask: one_in(rng, 4),
        flush: !one_in(rng, 3),
        inline_copy: rng.bool(),
        fence: !one_in(rng, 4),
        ordered_writes: one_in(rng, 5),
        host_flush: rng.bool(),
        kernels: true,
        batch_limit: match one_in(rng, 3) {
            true => rng.usize(3..9),
            false => 255,
        },
    };
    let weak = Weak {
        seed: rng.u64(..),
        store_one_in: 1 << rng.u32(0..6),
        nic_one_in: 1 << rng.u32(0..8),
    };
    Seat {
        options: SoftOptions {
            caps,
            stream_bound: match one_in(rng, 4) {
                true => rng.usize(2..6),
                false => 1024,
            },
            weak: Some(weak),
            ..SoftOptions::default()
        },
        landing: match !one_in(rng, 4) {
            true => MemoryKind::Device,
            false => MemoryKind::Pinned,
        },
        source: memory(rng),
        queues: (0..ranks).map(|_| Some(queue(rng, ranks))).collect(),
    }
}

fn memory(rng: &mut Rng) -> MemoryKind {
    match one_in(rng, 3) {
        true => MemoryKind::Device,
        false => MemoryKind::Pinned,
    }
}

fn queue(rng: &mut Rng, ranks: usize) -> QpConfig {
    let size = |rng: &mut Rng| match rng.u8(0..8) {
        0..5 => 4,
        5..7 => 8,
        _ if ranks == 2 => 16,
        _ => 8,
    };
    QpConfig {
        transport: Transport::Rc,
        send_blocks: size(rng),
        recv_entries: size(rng),
        recv_sges: rng.u32(1..=4),
        ring_memory: memory(rng),
        cq_memory: memory(rng),
        record_memory: memory(rng),
        timeout: None,
        lowering: match one_in(rng, 3) {
            true => Lowering::Kernel,
            false => Lowering::MemOps,
        },
        endpoint: match one_in(rng, 4) {
            true => Endpoint::Proxy,
            false => Endpoint::Ring,
        },
        access: Access::ALL,
        path: Default::default(),
        error: None,
        // Near the end of 32 bits, of the 16 that the NIC counts in, or at the beginning.
        start: match rng.u8(0..4) {
            0 => rng.u32(0..9),
            1 => (1 << 16) - rng.u32(0..40),
            _ => 0u32.wrapping_sub(rng.u32(0..40)),
        },
    }
}

/// How far the requests of one rank to one other have come.
#[derive(Clone, Copy, Default)]
struct Done {
    requests: u32,
    signaled: u32,
    receives: u32,
}

/// Draws steps until every ring was gone through often enough.
fn steps(rng: &mut Rng, seats: &[Seat]) -> Vec<Step> {
    let ranks = seats.len();
    let mut done = vec![vec![Done::default(); ranks]; ranks];
    // The words that atomics of a rank (first) at another (second) work on.
    let mut words = vec![vec![(0u64, 0u64); ranks]; ranks];
    let mut steps = Vec::new();
    // Completion queues have twice as many entries as there are requests.
    let enough = |done: &[Vec<Done>]| {
        let pairs = (0..ranks).flat_map(|a| (0..ranks).map(move |b| (a, b)));
        pairs.filter(|(a, b)| a != b).all(|(from, to)| {
            let (Some(ours), Some(theirs)) = (&seats[from].queues[to], &seats[to].queues[from])
            else {
                return true;
            };
            let d = &done[from][to];
            d.requests >= LAPS * ours.send_blocks
                && d.signaled >= 2 * LAPS * ours.send_blocks
                && d.receives >= 2 * LAPS * theirs.recv_entries
        })
    };
    while !enough(&done) {
        let from = rng.usize(0..ranks);
        let to = (from + rng.usize(1..ranks)) % ranks;
        let step = step(rng, seats, from, to, &mut words[from][to], steps.len());
        let d = &mut done[from][to];
        d.requests += 1;
        d.signaled += u32::from(step.signaled);
        d.receives += u32::from(step.receive.is_some());
        steps.push(step);
    }
    steps
}

fn length(rng: &mut Rng) -> usize {
    match rng.u8(0..16) {
        0..2 => 0,
        2..5 => rng.usize(1..9),
        5..7 => 4 * rng.usize(1..40),
        7..13 => rng.usize(1..600),
        13 => 1 << rng.u32(6..15),
        _ => rng.usize(1..=LONGEST),
    }
}

fn kind(rng: &mut Rng, number: usize, words: &mut (u64, u64)) -> Kind {
    let imm = number as u32 ^ 0xa5a5_0000;
    match rng.u8(0..16) {
        0..4 => Kind::Send(None),
        4..6 => Kind::Send(Some(imm)),
        6..8 => Kind::Write(Some(imm)),
        8..11 => Kind::Write(None),
        11..13 => Kind::Read,
        13 => {
            let add = rng.u64(..);
            words.0 = words.0.wrapping_add(add);
            Kind::FetchAdd(add)
        }
        14 => {
            let swap = rng.u64(..);
            let right = !one_in(rng, 3);
            let compare = words.1 ^ u64::from(!right);
            if right {
                words.1 = swap;
            }
            Kind::CompareSwap { compare, swap }
        }
        _ => Kind::Nop,
    }
}

fn cuts(rng: &mut Rng, len: usize, pieces: u32) -> [usize; 2] {
    let mut cut = |on: bool| match on {
        true => rng.usize(0..=len),
        false => len,
    };
    let (a, b) = (cut(pieces > 1), cut(pieces > 2));
    [a.min(b), a.max(b)]
}

fn step(
    rng: &mut Rng,
    seats: &[Seat],
    from: usize,
    to: usize,
    words: &mut (u64, u64),
    number: usize,
) -> Step {
    let caps = &seats[from].options.caps;
    let kind = kind(rng, number, words);
    let inline = kind.carries() && one_in(rng, 5);
    let len = match kind {
        Kind::FetchAdd(_) | Kind::CompareSwap { .. } => 8,
        Kind::Nop => 0,
        _ if inline => length(rng).min(INLINE),
        _ => length(rng),
    };
    let by = match rng.u8(0..4) {
        0 => By::Cpu,
        1 => By::Stream(1),
        _ => By::Stream(0),
    };
    let signaled = !one_in(rng, 4);
    let stream = match by {
        By::Stream(s) if !one_in(rng, 4) => s,
        _ => rng.usize(0..2),
    };
    let wait = match rng.u8(0..8) {
        _ if !signaled => Waiter::Nobody,
        0..2 => Waiter::Nobody,
        2 => Waiter::Cpu,
        3 => Waiter::Both(stream),
        _ => Waiter::Stream(stream),
    };
    let ink = match rng.u8(0..6) {
        _ if by == By::Cpu || inline || !kind.carries() => Ink::Cpu,
        0..2 => Ink::Copy,
        2 if is_words(len) => Ink::Words,
        2..4 => handed(rng, caps),
        _ => Ink::Cpu,
    };
    let moves = matches!(kind, Kind::Send(_) | Kind::Write(_) | Kind::Read);
    let patchable = by != By::Cpu && moves && len > 0 && !inline;
    let remote = matches!(kind, Kind::Write(_) | Kind::Read) && by != By::Cpu;
    let plain = matches!(
        kind,
        Kind::FetchAdd(_) | Kind::CompareSwap { .. } | Kind::Nop
    );
    Step {
        from,
        to,
        kind,
        len,
        inline,
        cuts: match plain {
            true => [len; 2],
            false => {
                let pieces = rng.u32(1..=3);
                cuts(rng, len, pieces)
            }
        },
        fenced: one_in(rng, 6),
        by,
        signaled,
        wait,
        ink,
        patched: patchable && one_in(rng, 4),
        patched_remote: remote && one_in(rng, 6),
        hole: one_in(rng, 6),
        newest_aborted: one_in(rng, 6),
        spoiled: one_in(rng, 10),
        left_open: one_in(rng, 3),
        receive: kind
            .takes_receive()
            .then(|| receive(rng, &seats[to], from, len)),
    }
}

fn handed(rng: &mut Rng, caps: &Caps) -> Ink {
    let wide = rng.bool();
    let condition = match rng.u8(0..4) {
        _ if wide && !caps.memops64 => Condition::Eq,
        0 => Condition::And,
        1 if !wide || caps.nor => Condition::Nor,
        2 => Condition::Geq,
        _ => Condition::Eq,
    };
    Ink::Handed { condition, wide }
}

fn receive(rng: &mut Rng, seat: &Seat, from: usize, len: usize) -> Receive {
    let sges = seat.queues[from].as_ref().map_or(1, |q| q.recv_sges);
    let pieces = rng.u32(1..=sges);
    let stream = rng.usize(0..2);
    // With a stream that soon blocks nothing can be put off.
    let patient = seat.options.stream_bound > 8;
    let when = match rng.u8(0..6) {
        0..2 => When::Early(rng.usize(1..8)),
        2 if patient => When::Late(rng.usize(1..12)),
        _ => When::InTurn,
    };
    Receive {
        by: match matches!(when, When::Late(_)) || rng.bool() {
            true => By::Cpu,
            false => By::Stream(rng.usize(0..2)),
        },
        when,
        wait: match rng.u8(0..6) {
            // Entries count as used until streams have passed them. A stream that comes to one
            // late could keep a receive from being posted that it waits for before.
            0..4 if matches!(when, When::Late(_)) => Waiter::Nobody,
            _ if matches!(when, When::Late(_)) => Waiter::Cpu,
            0 => Waiter::Cpu,
            1 => Waiter::Both(stream),
            _ => Waiter::Stream(stream),
        },
        cuts: cuts(rng, len + GUARD, pieces),
        newest_aborted: one_in(rng, 8),
    }
}
