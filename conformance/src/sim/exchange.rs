//! A random program under a random schedule, run and checked: over queue pairs of one GPU, or of
//! two or three ranks with a GPU each.

use std::collections::BTreeMap;
use std::rc::Rc;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use gdsync::rdma::{Access, Doorbell, Lowering, Provider, Qp, QpConfig};
use softgpu::Weak;
use vmlx5::fabric::faults::Faults;

use crate::program::{self, Ends, Hazards, Memory, Program, Settings, Side};
use crate::rig::verdict::{Verdict, text};
use crate::rig::{self, Pair, Rig, Runtime};
use crate::sim::world::{self, Devices, LIMIT, Pause, Rank};

/// Least number of laps of every ring, if all messages have the smallest size.
const LAPS: u32 = 6;

/// Separates the draws of a program from those of its schedule; chosen so that seed 0 detects most
/// mutants.
const SALT: u64 = 202;

/// Draws the program of `seed` and runs it under the schedule of `seed`.
///
/// # Errors
/// The first deviation from the program, with the seed.
pub fn run(seed: u64) -> Result<SimReport, SimError> {
    let plan = Rc::new(Plan::draw(seed));
    world::play(seed, plan.gpus.len(), move |rank| {
        let played = match plan.gpus.len() {
            1 => plan.alone(&rank),
            _ => plan.among(&rank),
        };
        if let Err(failed) = played {
            panic!("{}", text(&failed));
        }
    })
}

/// A program, with the settings of its GPUs, queue pairs and NICs.
struct Plan {
    /// Options of one GPU, or of one GPU for each side.
    gpus: Vec<SoftOptions>,
    /// Settings of the queue pairs, by side and peer.
    queues: Vec<Vec<QpConfig>>,
    /// Whether two sides on one GPU have one NIC each.
    two_nics: bool,
    program: Program,
    pauses: Vec<Pause>,
}

impl Plan {
    fn draw(seed: u64) -> Plan {
        // These draws are independent of those of the schedule.
        let mut rng = Rng::with_seed(seed ^ SALT);
        let sides = if one_in(&mut rng, 5) { 3 } else { 2 };
        let count = match sides == 2 && one_in(&mut rng, 3) {
            true => 1,
            false => sides,
        };
        let gpus: Vec<SoftOptions> = (0..count).map(|_| gpu(&mut rng)).collect();
        let queues: Vec<Vec<QpConfig>> = (0..sides)
            .map(|_| (0..sides).map(|_| queue(&mut rng, sides)).collect())
            .collect();
        let blocks = queues.iter().flatten();
        let blocks = blocks.map(|c| c.send_blocks.max(c.recv_entries)).max();
        let side = |i: usize| {
            let gpu = &gpus[i % count];
            Side {
                source: memory(&mut rng),
                landing: match one_in(&mut rng, 4) {
                    true => MemoryKind::Pinned,
                    false => MemoryKind::Device,
                },
                hazards: Some(Hazards {
                    caps: gpu.caps,
                    // If a stream soon blocks, no receive can be posted late.
                    late: gpu.stream_bound > 8,
                }),
            }
        };
        let settings = Settings {
            sides: (0..sides).map(side).collect(),
            streams: "any",
            cpu_receives: false,
            operations: "all",
            messages: LAPS as usize * blocks.unwrap_or(4) as usize * sides * (sides - 1) / 2,
            seed,
        };
        let pauses = match one_in(&mut rng, 3) {
            true => rng.usize(1..6),
            false => 0,
        };
        Plan {
            pauses: (0..pauses).map(|_| Pause::draw(&mut rng, count)).collect(),
            two_nics: !one_in(&mut rng, 3),
            program: Program::draw(settings),
            gpus,
            queues,
        }
    }

    fn open(&self, rank: &Rank) -> Verdict<(Devices, Rig)> {
        let devices = rank.open(self.gpus[rank.me].clone());
        let rig = Rig::with(Runtime::Soft, devices.gpu.clone(), Provider::Emulated)?;
        Ok((devices, rig))
    }

    fn pause(&self, rank: &Rank, devices: &Devices, other_nic: String) {
        let parts = [
            devices.engine(),
            devices.nic(),
            devices.nic() + ".watcher",
            other_nic,
            format!("rank{}", rank.me),
            "hub.links".to_owned(),
        ];
        rank.pauses(&self.pauses, &parts);
    }

    /// Runs both sides on one GPU.
    fn alone(&self, rank: &Rank) -> Verdict {
        let (devices, rig) = self.open(rank)?;
        let other = match self.two_nics {
            true => rank.device(&devices.gpu, Faults::default()),
            false => devices.device.clone(),
        };
        self.pause(rank, &devices, world::nic(&other));
        let pds = [devices.pd.clone(), other.alloc_pd()?];
        let configs = [&self.queues[0][1], &self.queues[1][0]];
        let pair = Pair::on([devices.device.clone(), other], pds, configs)?;
        program::play(&rig, pair, &self.program)
    }

    /// Runs the side of a rank.
    fn among(&self, rank: &Rank) -> Verdict {
        let (devices, rig) = self.open(rank)?;
        let register = |kind, len| rig::memory(&devices.pd, kind, len);
        let memory = Memory::new(&self.program, rank.me, register)?;
        let mut remote = vec![memory.remote(); rank.ranks];
        let configs = &self.queues[rank.me];
        let mut qps: BTreeMap<(usize, usize), Qp> = BTreeMap::new();
        for peer in (0..rank.ranks).filter(|peer| *peer != rank.me) {
            let mut qp = devices.pd.create_qp(&configs[peer])?;
            remote[peer] = [&memory.source, &memory.landing].map(|mr| rank.swap_memory(mr, peer));
            rank.connect(&mut qp, peer);
            qps.insert((rank.me, peer), qp);
        }
        self.pause(rank, &devices, devices.nic() + ".cpu");
        let least = |of: fn(&QpConfig) -> u32| configs.iter().map(of).min().unwrap_or(1) as usize;
        let ends = Ends {
            qps: qps.iter_mut().map(|(end, qp)| (*end, qp)).collect(),
            memory: BTreeMap::from([(rank.me, memory)]),
            remote,
            entries: least(|config| config.recv_entries),
            recv_sges: least(|config| config.recv_sges),
        };
        program::play_on(&rig, &self.program, ends, || rank.barrier())?;
        rank.barrier();
        drop(qps);
        Ok(devices.device.close(LIMIT)?)
    }
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

/// A GPU with drawn capabilities and weak memory.
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
        .weak(weak)
}

fn queue(rng: &mut Rng, sides: usize) -> QpConfig {
    let size = |rng: &mut Rng| match rng.u8(0..8) {
        0..5 => 4,
        5..7 => 8,
        _ if sides == 2 => 16,
        _ => 8,
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
