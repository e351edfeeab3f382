//! The particles of the examples on ranks that are fibers: messages whose lengths the GPU computes,
//! in an order of phases. Every rank has the particles of the serial run, under any schedule, or an
//! error that names the rank that is lost.

use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gds_step::Time;
use mp::Kind;
use particles::{Config, Grid};
use vmlx5::fabric::faults::Faults;

use super::job::{Job, Settings, close_without, disorder, process};
use crate::sim::world::{LIMIT, Rank, play};

/// Time limit of waits for a peer of which one is lost, and of the detection.
const PEER_LIMIT: Duration = Duration::from_millis(200);
const DETECTION_LIMIT: Duration = Duration::from_secs(1);

/// Draws a run on one of these grids.
fn draw(rng: &mut Rng, grids: &[[u32; 3]]) -> Config {
    let grid = grids[rng.usize(0..grids.len())];
    let cells = grid.map(|ranks| {
        if ranks == 1 {
            rng.u32(3..=4)
        } else {
            2 * ranks
        }
    });
    Config {
        grid: Some(Grid(grid)),
        cells: Grid(cells),
        steps: rng.u64(1..=4),
        batch: rng.u64(1..=3),
        seed: rng.u64(..),
        serial: true,
        limit: LIMIT,
    }
}

/// Draws settings with room for the tags of six directions and of notes.
fn settings(rng: &mut Rng) -> Settings {
    Settings {
        channels: rng.usize(7..=9),
        ..Settings::draw(rng)
    }
}

fn ranks(config: &Config) -> u32 {
    config.grid.and_then(Grid::product).unwrap_or(1)
}

/// Runs the particles of `seed` under the schedule of `seed`, without any loss.
///
/// # Errors
/// A particle that differs from the serial run, or any other failure, with the seed.
pub fn run(seed: u64) -> Result<SimReport, SimError> {
    run_on(seed, Faults::default())
}

/// As [`run`], with WRITEs that become visible out of order.
///
/// # Errors
/// As [`run`].
pub fn run_in_disorder(seed: u64) -> Result<SimReport, SimError> {
    run_on(seed, disorder(seed))
}

fn run_on(seed: u64, faults: Faults) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let grids = [[1, 1, 1], [2, 1, 1], [1, 1, 2], [1, 3, 1], [2, 2, 1]];
    let config = Rc::new(draw(&mut rng, &grids));
    let ranks = ranks(&config);
    let job = Job::new(seed, ranks, settings(&mut rng)).on_a_wire(faults);
    play(seed, ranks as usize, move |rank| {
        let member = job.join(&rank);
        let outcome = particles::run(&member.ctx, &config).unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!(outcome.failures(), [""; 0], "{config:?}");
        assert_eq!(outcome.differing, 0, "{config:?}");
        // A rank that leaves early would be lost to the others.
        rank.barrier();
        member.leave();
    })
}

/// Runs particles without end under the schedule of `seed` until the process of a rank dies. Every
/// other rank gets an error that names it, in time.
///
/// # Errors
/// The first difference, with the seed.
pub fn run_until_a_rank_dies(seed: u64) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let mut config = draw(&mut rng, &[[2, 1, 1], [1, 3, 1], [2, 2, 1]]);
    config.steps = u64::MAX;
    config.serial = false;
    let mut settings = settings(&mut rng);
    settings.timeout = PEER_LIMIT;
    let ranks = ranks(&config);
    let lost = rng.usize(0..ranks as usize);
    let longest = 1 << rng.u32(16..24);
    let after = Duration::from_nanos(rng.u64(1..longest));
    // Its links fail at once, and its launcher reports it later; or the report alone.
    let cut = rng.bool();
    let job = Job::new(seed, ranks, settings);
    let config = Rc::new(config);
    let report = play(seed, ranks as usize + 1, move |rank| {
        let me = rank.me;
        match me {
            me if me == ranks as usize => end(&rank, &job, lost, after, cut),
            _ => {
                let devices = job.open(&rank);
                let ctx = job.context(&rank, &devices, "mp").unwrap();
                if me == lost {
                    rank.send(ranks as usize, &devices.node().to_le_bytes());
                    rank.send(
                        ranks as usize,
                        process(&rank, &devices).join("\n").as_bytes(),
                    );
                }
                let e = particles::run(&ctx, &config).expect_err("the run has no end");
                let now = rank.host.now();
                assert_eq!(e.rank(), Some(lost as u32), "rank {me}: {e:?}");
                let typed = matches!(e.kind(), Kind::PeerFailed(_) | Kind::Timeout);
                assert!(typed, "rank {me}: {e:?}");
                let fell = rank.receive(ranks as usize).try_into().unwrap();
                let took = now.since(Time::from_nanos(u64::from_le_bytes(fell)));
                assert!(took < DETECTION_LIMIT, "rank {me}: {e:?} after {took:?}");
                close_without(&ctx, lost as u32);
                drop(ctx);
                devices.device.close(LIMIT).expect("a quiet NIC");
            }
        }
    })?;
    assert_eq!(report.unfinished, [format!("rank{lost}")]);
    Ok(report)
}

/// Ends the process of the lost rank, and tells the others when.
fn end(rank: &Rank, job: &Job, lost: usize, after: Duration, cut: bool) {
    let node = u64::from_le_bytes(rank.receive(lost).try_into().unwrap());
    let names = String::from_utf8(rank.receive(lost)).unwrap();
    rank.pass(after);
    let now = rank.host.now().as_nanos();
    names.lines().for_each(|name| rank.control.kill(name));
    if cut {
        rank.cut(node);
        rank.pass(after);
    }
    job.mark_gone(lost);
    for other in (0..rank.me).filter(|other| *other != lost) {
        rank.send(other, &now.to_le_bytes());
    }
}
