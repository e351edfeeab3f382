//! The process of a rank dies while the ranks run a program without end: all others get a typed
//! error in time, and can close their contexts.

use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gds_step::Time;
use mp::{Context, Error, Kind};

use super::job::{Job, Settings, close_without, process};
use crate::sim::world::{LIMIT, Rank, play};

/// Time limit of waits for a peer, and of the detection.
const PEER_LIMIT: Duration = Duration::from_millis(200);
const DETECTION_LIMIT: Duration = Duration::from_secs(1);

/// Runs `program` on `ranks` ranks under the schedule of `seed`. It gets the number of the rank
/// that dies, and returns its error.
///
/// # Errors
/// The first difference, with the seed.
pub fn run(
    seed: u64,
    ranks: u32,
    settings: Settings,
    program: impl Fn(&Context, u32) -> Error + Clone + 'static,
) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed ^ 0xdead);
    let lost = rng.usize(0..ranks as usize);
    let longest = 1 << rng.u32(16..24);
    let after = Duration::from_nanos(rng.u64(1..longest));
    // Its links fail at once, and its launcher reports it later; or the report alone.
    let cut = rng.bool();
    let settings = Settings {
        timeout: PEER_LIMIT,
        ..settings
    };
    let job = Job::new(seed, ranks, settings);
    let last = ranks as usize;
    let report = play(seed, last + 1, move |rank| match rank.me {
        me if me == last => end(&rank, &job, lost, after, cut),
        me => {
            let devices = job.open(&rank);
            let ctx = job.context(&rank, &devices, "mp").unwrap();
            if me == lost {
                rank.send(last, &devices.node().to_le_bytes());
                rank.send(last, process(&rank, &devices).join("\n").as_bytes());
            }
            let e = program(&ctx, lost as u32);
            let now = rank.host.now();
            let typed = matches!(e.kind(), Kind::PeerFailed(_) | Kind::Timeout);
            let named = e.rank().is_some_and(|named| named as usize != me);
            assert!(typed && named, "rank {me}: {e:?}");
            let fell = rank.receive(last).try_into().unwrap();
            let took = now.since(Time::from_nanos(u64::from_le_bytes(fell)));
            assert!(took < DETECTION_LIMIT, "rank {me}: {e:?} after {took:?}");
            close_without(&ctx, lost as u32);
            drop(ctx);
            devices.device.close(LIMIT).expect("a quiet NIC");
        }
    })?;
    assert_eq!(report.unfinished, [format!("rank{lost}")]);
    Ok(report)
}

/// Ends the process of the lost rank, and sends the time to the others.
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
