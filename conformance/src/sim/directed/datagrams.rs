//! Datagrams between four queue pairs of one NIC, under schedules that a seed draws.

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::gpu::MemoryKind;
use gdsync::rdma::{Doorbell, Provider};

use super::{config, weak};
use crate::datagrams::Stations;
use crate::datagrams::program::{MANY, Play, rounds_of};
use crate::rig::verdict::text;
use crate::rig::{Rig, Runtime};
use crate::sim::world::play;

/// Rounds: enough that all queues wrap.
const ROUNDS: u32 = 24;

/// Rounds of datagrams, the same as `conformance` runs on real threads. The seed draws which side
/// posts (CPU or stream), the lowering, and the memory of queues and messages.
///
/// # Errors
/// The first difference, with the seed.
pub fn datagrams(seed: u64) -> Result<SimReport, SimError> {
    play(seed, 1, move |rank| {
        let mut rng = Rng::with_seed(seed);
        let config = config(&mut rng).send_blocks(32);
        let receives = ["by CPU", "by both", "by stream"];
        let among = match config.doorbell {
            // A thread posts the receives of streams a moment later.
            Doorbell::CpuThread => 2,
            _ => 3,
        };
        let it = Play {
            config,
            payload: [MemoryKind::Pinned, MemoryKind::Device][rng.usize(..2)],
            cpu_sends: rng.u8(..4) == 0,
            receives: receives[rng.usize(..among)],
        };
        let devices = rank.open(weak(&mut rng));
        let rig = Rig::with(Runtime::Soft, devices.gpu.clone(), Provider::Emulated);
        let verdict = rig.and_then(|rig| {
            let devices = [devices.device.clone(), devices.device.clone()];
            let stations = Stations::on(devices, &it.config, MANY)?;
            rounds_of(&rig, stations, &it, ROUNDS, seed)
        });
        if let Err(failed) = verdict {
            panic!("{it:?}: {}", text(&failed));
        }
    })
}
