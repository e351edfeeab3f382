//! A rank is lost in the middle of the stencil. Within the time limit, a request with it fails with
//! an error that names the rank; no rank hangs, and the other ranks still exchange messages.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gds_step::Time;
use gdsync::Status;
use gdsync::gpu::MemoryKind;
use halo2d::Model;
use halo2d::grid::{Direction, Grid};
use mp::{Context, Error, Kind, PathChoice};

use super::halo::Case;
use super::job::{Job, Member, close_without, process};
use crate::mp::pair::Pair;
use crate::sim::world::{LIMIT, Rank, play};

/// Time limit of waits for a peer.
const PEER_LIMIT: Duration = Duration::from_millis(100);
/// Limit of the detection time, per rank of the job: the last rank detects the loss within this
/// time times the number of ranks. It exceeds `PEER_LIMIT`, because a rank that waits for a lost
/// rank delays other ranks, waits begin late, and the background thread polls rarely.
const DETECTION_LIMIT: Duration = Duration::from_millis(130);

/// How the rank is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fall {
    /// Its process is stopped.
    Freezes,
    /// Its process dies, and its launcher reports it.
    IsReported,
    /// Its process dies, and its links with it; its launcher reports it a little later.
    Dies,
    /// Its NIC is cut off, but its process runs. A receive from it fails only at the time limit, a
    /// send to it at once. A rank that stops for this reason is lost to the others as well.
    IsCut,
}

/// The lost rank, and how and when it is lost.
#[derive(Clone, Debug)]
struct Loss {
    rank: usize,
    fall: Fall,
    after: Duration,
    /// Whether the rank may be lost before it has a context.
    early: bool,
}

/// Draws the loss.
fn draw(rng: &mut Rng, ranks: u32) -> Loss {
    let longest = 1 << rng.u32(8..22);
    Loss {
        rank: rng.usize(0..ranks as usize),
        fall: [Fall::Freezes, Fall::IsReported, Fall::Dies, Fall::IsCut][rng.usize(0..4)],
        after: Duration::from_nanos(rng.u64(1..longest)),
        early: rng.u8(0..8) == 0,
    }
}

/// Runs a stencil without end under the schedule of `seed` until a rank is lost.
///
/// # Errors
/// The first difference, with the seed.
pub fn run(seed: u64) -> Result<SimReport, SimError> {
    Ok(run_and_count(seed)?.0)
}

/// As [`run`]. Counts the surviving ranks, and those of them that exchange halos with the lost rank
/// and whose stencil failed with an error that names another rank.
///
/// # Errors
/// As [`run`].
pub fn run_and_count(seed: u64) -> Result<(SimReport, [u32; 2]), SimError> {
    let mut rng = Rng::with_seed(seed);
    let grids = [(2, 1), (1, 2), (3, 1), (1, 3), (2, 2), (3, 2)];
    let (columns, rows) = grids[rng.usize(0..grids.len())];
    let grid = Grid { columns, rows };
    let mut case = Case::draw(&mut rng, grid);
    case.settings.timeout = PEER_LIMIT;
    case.config.iterations = u64::MAX;
    case.config.answer_limit = PEER_LIMIT / 4;
    if case.config.model == Model::Cpu {
        // Only the CPU waits for its messages.
        case.config.limit = PEER_LIMIT;
    }
    let loss = draw(&mut rng, case.ranks());
    if loss.fall == Fall::IsCut {
        // No fault cuts a rank off from memory that it has mapped.
        case.settings.path = Some(PathChoice::Nic);
    }
    let job = Job::new(seed, case.ranks(), case.settings.clone());
    let ranks = case.ranks() as usize;
    let (case, lost) = (Rc::new(case), loss.clone());
    let misled = Rc::new(Cell::new(0));
    let counter = Rc::clone(&misled);
    let report = play(seed, ranks + 1, move |rank| {
        match rank.me {
            // The last number injects the failure.
            me if me == ranks => inject(&rank, &job, &loss),
            me if me == loss.rank => lose(&rank, &job, &case, &loss),
            _ => survive(&rank, &job, &case, &loss, &counter),
        }
    })?;
    let dead = match lost.fall {
        Fall::IsCut => vec![],
        _ => vec![format!("rank{}", lost.rank)],
    };
    assert_eq!(report.unfinished, dead, "{lost:?}");
    Ok((report, [ranks as u32 - 1, misled.get()]))
}

/// Makes the rank fail, and sends the time of the failure to the others.
fn inject(rank: &Rank, job: &Job, loss: &Loss) {
    let node = u64::from_le_bytes(rank.receive(loss.rank).try_into().unwrap());
    let names = String::from_utf8(rank.receive(loss.rank)).unwrap();
    rank.pass(loss.after);
    let now = rank.host.now().as_nanos();
    if loss.fall != Fall::IsCut {
        names.lines().for_each(|name| rank.control.kill(name));
    }
    if let Fall::Dies | Fall::IsCut = loss.fall {
        rank.cut(node);
        rank.pass(loss.after);
    }
    if let Fall::Dies | Fall::IsReported = loss.fall {
        job.mark_gone(loss.rank);
    }
    for other in (0..rank.me).filter(|other| *other != loss.rank) {
        rank.send(other, &now.to_le_bytes());
    }
}

/// Runs the stencil on the rank that is lost.
fn lose(rank: &Rank, job: &Job, case: &Case, loss: &Loss) {
    let devices = job.open(rank);
    let node = devices.node();
    let warn = || {
        rank.send(rank.ranks - 1, &node.to_le_bytes());
        rank.send(
            rank.ranks - 1,
            process(rank, &devices).join("\n").as_bytes(),
        );
    };
    if loss.early {
        warn();
    }
    let ctx = match job.context(rank, &devices, "mp") {
        Ok(ctx) => ctx,
        Err(e) => return assert_typed(&e, rank.me, loss),
    };
    if !loss.early {
        warn();
    }
    let e = halo2d::run(&ctx, &case.config).expect_err("the stencil has no end");
    assert_typed(&e, rank.me, loss);
    // The NIC of this rank is cut off, so peers may not answer.
    drop(ctx);
    devices.device.close(LIMIT).expect("a quiet NIC");
}

/// The errors that a loss may cause.
fn assert_typed(e: &Error, me: usize, loss: &Loss) {
    let known = match e.kind() {
        Kind::PeerFailed(status) => matches!(
            status,
            Status::TIMEOUT | Status::REMOTE_ABORTED | Status::TRANSPORT_RETRY | Status::FLUSHED
        ),
        Kind::Timeout | Kind::Missing => true,
        _ => false,
    };
    assert!(known, "rank {me}, {loss:?}: {e:?}");
    let named = e.rank().is_some() || e.kind() == Kind::Missing;
    assert!(
        named && e.rank() != Some(me as u32),
        "rank {me}, {loss:?}: {e:?}"
    );
}

/// Asserts that a request with the lost rank fails and names it.
fn assert_lost(ctx: &Context, me: usize, loss: &Loss) {
    let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
    let e = ctx
        .irecv(loss.rank as u32, 3, &memory.all())
        .and_then(|request| request.wait(PEER_LIMIT))
        .expect_err("the rank is lost");
    assert_typed(&e, me, loss);
    assert_eq!(
        e.rank(),
        Some(loss.rank as u32),
        "rank {me}, {loss:?}: {e:?}"
    );
}

/// Runs the stencil on a surviving rank until it fails, then messages between the survivors.
fn survive(rank: &Rank, job: &Job, case: &Case, loss: &Loss, misled: &Cell<u32>) {
    let lost = loss.rank as u32;
    let grid = case.config.grid.expect("a grid");
    let needs = |me: u32, other| {
        let mut directions = Direction::ALL.into_iter();
        directions.any(|direction| grid.neighbour(me, direction) == other)
    };
    let devices = job.open(rank);
    let built = job.context(rank, &devices, "mp");
    let (ctx, e) = match built {
        Ok(ctx) => {
            let e = halo2d::run(&ctx, &case.config).expect_err("the stencil has no end");
            (Some(ctx), e)
        }
        Err(e) => (None, e),
    };
    let now = rank.host.now();
    assert_typed(&e, rank.me, loss);
    if let Some(ctx) = &ctx
        && needs(rank.me as u32, lost)
        && e.rank() != Some(lost)
    {
        // The error names another rank, which stopped earlier: it detected the loss, or it was
        // connecting. A request with the lost rank fails with an error that names the lost rank.
        misled.set(misled.get() + 1);
        assert_lost(ctx, rank.me, loss);
    }
    let fell = u64::from_le_bytes(rank.receive(rank.ranks - 1).try_into().unwrap());
    let took = now.since(Time::from_nanos(fell));
    assert!(
        took < DETECTION_LIMIT * case.ranks(),
        "rank {}, {loss:?}: {e:?} after {took:?}",
        rank.me
    );

    let others: Vec<u32> = (0..case.ranks())
        .filter(|other| *other != lost && *other != rank.me as u32)
        .collect();
    // A rank that closes its context is lost to ranks that have not detected the first loss, so all
    // survivors meet first.
    let meet = || {
        others
            .iter()
            .for_each(|other| rank.send(*other as usize, &[]));
        others
            .iter()
            .for_each(|other| _ = rank.receive(*other as usize));
    };
    meet();
    if let Some(ctx) = ctx {
        // Requests with ranks that stopped as well may fail during the close.
        close_without(&ctx, lost);
    }
    let mut lazy = job.clone();
    lazy.settings.connect = mp::Connect::Lazy;
    let after = lazy.context(rank, &devices, "after").unwrap();
    meet();
    chat(&after, &others);
    assert_lost(&after, rank.me, loss);
    // The failed request does not affect messages between the survivors.
    meet();
    chat(&after, &others);
    Member {
        devices,
        ctx: after,
    }
    .leave_without(lost);
}

/// Exchanges messages with all others, by the CPU and on streams.
fn chat(ctx: &Context, others: &[u32]) {
    let pairs = Pair::all(ctx, others.iter().copied(), 50).unwrap();
    for round in 0..4 {
        let post = |pair: &Pair<'_>| pair.post(round, round % 2 == 1).unwrap();
        let posted: Vec<_> = pairs.iter().map(post).collect();
        for (pair, requests) in pairs.iter().zip(&posted) {
            pair.check(round, requests, LIMIT).unwrap();
        }
    }
}
