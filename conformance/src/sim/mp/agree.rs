//! Ranks agree on lost ranks, several times, while some of them die at random moments: between two
//! calls, in a call, or between the notes that they send to two other ranks. All survivors return
//! the same set and value each time. The set contains each rank that died before a survivor called,
//! and no rank that lives.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use mp::{Agreed, Context, Kind};

use super::job::{Job, Settings, process};
use crate::sim::world::{LIMIT, Pause, Rank, play};

/// The limit of a call. A rank that is silent for half of it counts as lost.
const CALL: Duration = Duration::from_millis(200);
/// Number of agreements.
const ROUNDS: u64 = 4;
/// The time after which all ranks that die are dead.
const DEAD: Duration = Duration::from_millis(8);

/// A rank that dies.
#[derive(Clone, Debug)]
struct Death {
    rank: usize,
    /// The time after which it dies.
    after: Duration,
    /// The number of control messages after which it dies, if that is earlier.
    messages: u64,
    /// Whether its launcher reports it.
    reported: bool,
}

impl Death {
    fn draw(rng: &mut Rng, rank: usize) -> Death {
        Death {
            rank,
            after: moment(rng),
            messages: rng.u64(1..40),
            reported: rng.bool(),
        }
    }
}

/// Up to 4 ms, most often less.
fn moment(rng: &mut Rng) -> Duration {
    let longest = 1 << rng.u32(8..22);
    Duration::from_nanos(rng.u64(1..longest))
}

/// What one rank returned in one round.
struct Answer {
    round: u64,
    rank: usize,
    agreed: Agreed,
}

/// Draws the ranks and the deaths.
///
/// # Errors
/// The first difference, with the seed.
pub fn run(seed: u64) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let ranks = rng.usize(2..=5);
    let mut dying: Vec<usize> = (0..ranks).collect();
    rng.shuffle(&mut dying);
    dying.truncate(rng.usize(0..ranks));
    let deaths = dying.into_iter().map(|rank| Death::draw(&mut rng, rank));
    let deaths: Rc<[Death]> = deaths.collect();
    let pauses = Pause::draw_some(&mut rng, ranks);
    let job = Job::new(seed, ranks as u32, Settings::draw(&mut rng));
    let answers = Rc::new(RefCell::new(Vec::new()));
    let (plan, all) = (Rc::clone(&deaths), Rc::clone(&answers));
    let report = play(seed, ranks + 1, move |rank| {
        if rank.me == ranks {
            return reap(&rank, &job, &plan);
        }
        let devices = job.open(&rank);
        let parts = process(&rank, &devices);
        rank.pauses(&pauses, &parts);
        let ctx = job.context(&rank, &devices, "mp").expect("a context");
        let dies = plan.iter().find(|death| death.rank == rank.me);
        if let Some(death) = dies {
            rank.send(ranks, parts.join("\n").as_bytes());
            job.die_after(rank.me, death.messages);
        }
        rank.barrier();
        let mut rng = Rng::with_seed(seed ^ (rank.me as u64) << 16);
        for round in 0..ROUNDS {
            rank.pass(moment(&mut rng));
            if round + 1 == ROUNDS && dies.is_none() {
                rank.pass(DEAD);
            }
            let dead = job.dead();
            let agreed = agree(&ctx, 10 * round + rank.me as u64);
            if dies.is_none() {
                let missed = dead.iter().find(|rank| !agreed.lost.contains(rank));
                assert_eq!(
                    missed, None,
                    "round {round}: {agreed:?}, and {dead:?} were dead"
                );
                let rank = rank.me;
                all.borrow_mut().push(Answer {
                    round,
                    rank,
                    agreed,
                });
            }
        }
        if dies.is_some() {
            rank.pass(LIMIT);
        }
        drop(ctx);
        devices.device.close(LIMIT).expect("a quiet NIC");
    })?;
    let dead = |rank: &usize| deaths.iter().any(|death| death.rank == *rank);
    let names = (0..ranks).filter(dead).map(|rank| format!("rank{rank}"));
    assert!(
        names.eq(report.unfinished.iter().cloned()),
        "seed {seed}: {:?}",
        report.unfinished
    );
    check(seed, &answers.borrow(), &deaths, ranks);
    Ok(report)
}

/// Agrees; ranks that die may be missing for some time.
fn agree(ctx: &Context, value: u64) -> Agreed {
    loop {
        match ctx.agree(value, CALL) {
            Ok(agreed) => return agreed,
            Err(e) => assert!(matches!(e.kind(), Kind::Missing | Kind::Timeout), "{e:?}"),
        }
    }
}

/// Stops the processes of the ranks that die, each in its moment.
fn reap(rank: &Rank, job: &Job, deaths: &[Death]) {
    const TICK: Duration = Duration::from_micros(50);
    let named = |death: &Death| String::from_utf8(rank.receive(death.rank)).expect("names");
    let mut left: Vec<(&Death, String)> = deaths.iter().map(|d| (d, named(d))).collect();
    rank.barrier();
    let start = rank.host.now();
    while !left.is_empty() {
        rank.pass(TICK);
        let time = rank.host.now().since(start);
        left.retain(|(death, names)| {
            if time >= death.after.min(DEAD / 2) {
                job.die_after(death.rank, 0);
            }
            let dies = job.dead().contains(&(death.rank as u32));
            if dies {
                names.lines().for_each(|name| rank.control.kill(name));
                if death.reported {
                    job.mark_gone(death.rank);
                }
            }
            !dies
        });
    }
}

/// Compares the answers of the survivors.
fn check(seed: u64, answers: &[Answer], deaths: &[Death], ranks: usize) {
    let case = format!("seed {seed}, {deaths:?}");
    assert_eq!(
        answers.len(),
        ROUNDS as usize * (ranks - deaths.len()),
        "{case}"
    );
    for Answer {
        round,
        rank,
        agreed,
    } in answers
    {
        let same = answers.iter().filter(|other| other.round == *round);
        for other in same {
            assert_eq!(
                agreed, &other.agreed,
                "round {round}, ranks {rank} and {}: {case}",
                other.rank
            );
        }
        let dies = |rank: &u32| deaths.iter().any(|death| death.rank == *rank as usize);
        assert!(agreed.lost.iter().all(dies), "{agreed:?}: {case}");
        assert!(agreed.value >= 10 * round + *rank as u64, "{agreed:?}");
        let whole = agreed.lost.len() == deaths.len();
        assert!(whole || round + 1 < ROUNDS, "{agreed:?}: {case}");
    }
}
