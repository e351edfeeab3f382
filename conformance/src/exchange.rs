//! A random program over random queue pairs, under a random schedule, run and checked.

use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use gdsync::rdma::{Access, Doorbell, Lowering, Provider, QpConfig};
use softgpu::Weak;

use crate::hardware::program::{self, Hazards, Settings};
use crate::live::rig::{Pair, Rig, Runtime};
use crate::live::verdict::{Verdict, text};
use crate::world::{self, Rank};

/// How often every ring is gone through at least, if all messages are as small as may be.
const LAPS: u32 = 6;

/// Draws the program of `seed` and runs it under the schedule of `seed`.
///
/// # Errors
/// Whatever did not go as the program says, with the seed.
pub fn run(seed: u64) -> Result<SimReport, SimError> {
    world::play(seed, 1, move |rank| {
        if let Err(failed) = exchange(&rank, seed) {
            panic!("{}", text(&failed));
        }
    })
}

fn exchange(rank: &Rank, seed: u64) -> Verdict {
    let mut rng = Rng::with_seed(seed);
    let options = gpu(&mut rng);
    let hazards = Hazards {
        caps: options.caps,
        // With a stream that soon blocks nothing can be put off.
        late: options.stream_bound > 8,
    };
    let place = rank.open(options);
    let rig = Rig::with(Runtime::Soft, place.gpu.clone(), Provider::Emulated)?;
    let devices = match one_in(&mut rng, 3) {
        true => [place.device.clone(), place.device.clone()],
        false => [place.device.clone(), rank.device(&place.gpu)],
    };
    let configs = [queue(&mut rng), queue(&mut rng)];
    let pds = [place.pd.clone(), devices[1].alloc_pd()?];
    let pair = Pair::on(devices, pds, [&configs[0], &configs[1]])?;
    let blocks = configs.iter().map(|c| c.send_blocks.max(c.recv_entries));
    let settings = Settings {
        payload: memory(&mut rng),
        streams: "any",
        cpu_receives: false,
        operations: "all",
        messages: (LAPS * blocks.max().unwrap_or(4)) as usize,
        seed,
        hazards: Some(hazards),
    };
    if one_in(&mut rng, 3) {
        for _ in 0..rng.usize(1..6) {
            let nics = pair.devices.each_ref().map(world::nic);
            let victims = [
                place.engine(),
                nics[0].clone(),
                nics[0].clone() + ".watcher",
                nics[1].clone(),
                "rank0".to_owned(),
                "hub.links".to_owned(),
            ];
            let after = Duration::from_micros(rng.u64(0..1000));
            let lasts = Duration::from_micros(1 << rng.u32(0..13));
            rank.pause(&victims[rng.usize(0..victims.len())], after, lasts);
        }
    }
    program::play(&rig, pair, &settings)
}

fn one_in(rng: &mut Rng, n: u32) -> bool {
    rng.u32(0..n) == 0
}

fn memory(rng: &mut Rng) -> MemoryKind {
    match one_in(rng, 3) {
        true => MemoryKind::Device,
        false => MemoryKind::Pinned,
    }
}

/// A GPU that can do this and that, with weak memory.
fn gpu(rng: &mut Rng) -> SoftOptions {
    let full = SoftOptions::default().caps;
    let caps = full
        .memops64(!one_in(rng, 4))
        .nor(!one_in(rng, 4))
        .mask(one_in(rng, 4))
        .flush(!one_in(rng, 3))
        .inline_copy(rng.bool())
        .fence(!one_in(rng, 4))
        .ordered_writes(one_in(rng, 5))
        .host_flush(rng.bool())
        .batch_limit(match one_in(rng, 3) {
            true => rng.usize(3..9),
            false => 255,
        });
    let weak = Weak {
        seed: rng.u64(..),
        store_one_in: 1 << rng.u32(0..6),
        nic_one_in: 1 << rng.u32(0..8),
    };
    SoftOptions::default()
        .caps(caps)
        .stream_bound(match one_in(rng, 4) {
            true => rng.usize(2..6),
            false => 1024,
        })
        .weak(Some(weak))
}

fn queue(rng: &mut Rng) -> QpConfig {
    let size = |rng: &mut Rng| match rng.u8(0..8) {
        0..5 => 4,
        5..7 => 8,
        _ => 16,
    };
    QpConfig::default()
        .send_blocks(size(rng))
        .recv_entries(size(rng))
        .recv_sges(rng.u32(1..=4))
        .ring_memory(memory(rng))
        .cq_memory(memory(rng))
        .record_memory(memory(rng))
        .timeout(None)
        .lowering(match one_in(rng, 3) {
            true => Lowering::Kernel,
            false => Lowering::MemOps,
        })
        .doorbell(match one_in(rng, 4) {
            true => Doorbell::CpuThread,
            false => Doorbell::Direct,
        })
        .access(Access::ALL)
        // Near the end of 32 bits, of the 16 that the NIC counts in, or at the beginning.
        .start(match rng.u8(0..4) {
            0 => rng.u32(0..9),
            1 => (1 << 16) - rng.u32(0..40),
            _ => 0u32.wrapping_sub(rng.u32(0..40)),
        })
}
