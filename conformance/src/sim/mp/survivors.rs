//! Each rank exchanges messages with each other rank in rounds, by a stream and a tag for every
//! pair. One rank is lost: the requests of its peers with it fail, and the peers continue with all
//! other ranks in the same context.

use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use mp::{PathChoice, Request, Result};

use super::job::{Job, Member, Settings, process};
use crate::mp::pair::Pair;
use crate::sim::world::{LIMIT, Rank, play};

/// Time limit of waits for a peer: longer than the bootstrap takes to report a rank, because by mapped
/// memory nothing else does, and a rank that waits for the lost one lets others wait for as long.
const PEER_LIMIT: Duration = Duration::from_millis(400);
/// Rounds after the loss.
const MORE: usize = 6;

/// How the rank is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fall {
    /// It is stopped.
    Freezes,
    /// It dies, and its launcher reports it.
    IsReported,
    /// It dies, and its links with it.
    Dies,
    /// It closes its context.
    Leaves,
}

/// The parameters that all ranks share.
#[derive(Clone, Copy, Debug)]
struct Case {
    ranks: usize,
    lost: usize,
    fall: Fall,
    /// The round in which the rank is lost.
    round: usize,
    /// Whether the CPU posts the messages, and not streams.
    by_cpu: bool,
}

/// Draws the ranks and a loss.
///
/// # Errors
/// The first difference, with the seed.
pub fn run(seed: u64) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let ranks = rng.usize(3..=4);
    let case = Case {
        ranks,
        lost: rng.usize(0..ranks),
        fall: [Fall::Freezes, Fall::IsReported, Fall::Dies, Fall::Leaves][rng.usize(0..4)],
        round: rng.usize(1..12),
        by_cpu: rng.u8(0..4) == 0,
    };
    let settings = Settings {
        timeout: PEER_LIMIT,
        // By mapped memory only the time limit itself finds a stopped rank.
        path: (case.fall == Fall::Freezes).then_some(PathChoice::Nic),
        ..Settings::draw(&mut rng)
    };
    let job = Job::new(seed, ranks as u32, settings);
    let report = play(seed, ranks, move |rank| {
        let member = job.join(&rank);
        // No rank is lost before all have joined.
        rank.barrier();
        match rank.me == case.lost {
            true => falls(&rank, &job, member, case),
            false => stays(&rank, member, case),
        }
    })?;
    let dead = match case.fall {
        Fall::Leaves => vec![],
        _ => vec![format!("rank{}", case.lost)],
    };
    assert_eq!(report.unfinished, dead, "{case:?}");
    Ok(report)
}

/// The rank that is lost: it takes part until the round of its loss.
fn falls(rank: &Rank, job: &Job, member: Member, case: Case) {
    let node = member.devices.node();
    let others = (0..case.ranks as u32).filter(|other| *other != member.ctx.rank());
    let pairs = Pair::all(&member.ctx, others, 0).expect("pairs");
    for round in 0..case.round {
        let posted = pairs.iter().map(|p| p.post(round, case.by_cpu));
        let posted: Vec<[Request; 2]> = posted.collect::<Result<_>>().expect("all live");
        for (pair, requests) in pairs.iter().zip(&posted) {
            let checked = pair.check(round, requests, 2 * PEER_LIMIT);
            checked.expect("all live");
        }
    }
    // In the middle of a round: some of it is posted.
    let half: Vec<Result<[Request; 2]>> = pairs
        .iter()
        .take(case.round % case.ranks)
        .map(|pair| pair.post(case.round, case.by_cpu))
        .collect();
    if case.fall == Fall::Leaves {
        drop(half);
        drop(pairs);
        drop(member.ctx);
        return;
    }
    for name in process(rank, &member.devices) {
        rank.control.kill(&name);
    }
    match case.fall {
        Fall::Dies => {
            rank.cut(node);
            job.mark_gone(case.lost);
        }
        Fall::IsReported => job.mark_gone(case.lost),
        Fall::Freezes | Fall::Leaves => {}
    }
    rank.pass(LIMIT);
    unreachable!("it is stopped");
}

/// A rank that remains.
fn stays(rank: &Rank, member: Member, case: Case) {
    let others = (0..case.ranks as u32).filter(|other| *other != member.ctx.rank());
    let mut pairs = Pair::all(&member.ctx, others, 0).expect("pairs");
    for round in 0..case.round + MORE {
        let posted: Vec<Result<[Request; 2]>> = pairs
            .iter()
            .map(|pair| pair.post(round, case.by_cpu))
            .collect();
        let mut lost = None;
        for (pair, requests) in pairs.iter().zip(posted) {
            let ended = requests.and_then(|r| pair.check(round, &r, 2 * PEER_LIMIT));
            if let Err(e) = ended {
                assert_eq!(
                    e.rank(),
                    Some(case.lost as u32),
                    "rank {}, {case:?}: {e:?}",
                    rank.me
                );
                assert!(
                    round + 1 >= case.round,
                    "rank {}, {case:?}: {e:?} too soon",
                    rank.me
                );
                lost = Some(pair.other);
            }
        }
        pairs.retain(|pair| Some(pair.other) != lost);
        if case.fall == Fall::Freezes {
            // A rank that still waits for the lost one must not be late for the next round: it would be
            // given up within the same time.
            let others = (0..case.ranks).filter(|other| ![rank.me, case.lost].contains(other));
            others.clone().for_each(|other| rank.send(other, &[]));
            others.for_each(|other| drop(rank.receive(other)));
        }
    }
    assert_eq!(
        pairs.len(),
        case.ranks - 2,
        "rank {}: the lost one is known",
        rank.me
    );
    drop(pairs);
    member.leave_without(case.lost as u32);
}
