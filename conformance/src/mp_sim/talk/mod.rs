//! A random program of messages of every kind, run and checked.
//!
//! `draw` makes the program: a list of messages, each with what its sender and its receiver do
//! about it. `player` runs one rank's part. Ranks go through the list in its order, and what
//! one does for a message only ever stands for what others do for it or for earlier ones, so no
//! program deadlocks by itself.

mod draw;
mod player;

use std::rc::Rc;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};

use vmlx5::fabric::faults::Faults;

use super::job::{Job, disorder};
use crate::world::play;

/// Draws the program of `seed` and runs it under the schedule of `seed`.
///
/// # Errors
/// Whatever did not go as the program says, with the seed.
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
    let plan = Rc::new(draw::draw(&mut Rng::with_seed(seed)));
    let ranks = plan.ranks as usize;
    let job = Job::new(seed, plan.ranks, plan.settings.clone()).on_a_wire(faults);
    play(seed, ranks, move |rank| {
        let seat = job.sit(&rank);
        player::Player::new(&rank, &seat, Rc::clone(&plan)).play();
        if plan.together {
            rank.barrier();
        }
        let me = seat.ctx.rank();
        let too_long = |m: &draw::Message| (m.to == me || m.from == me) && m.is_too_long();
        match plan.messages.iter().any(too_long) {
            true => seat.leave_truncated(),
            false => seat.leave(),
        }
    })
}
