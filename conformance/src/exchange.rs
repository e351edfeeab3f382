//! A random program, run and checked.

use std::rc::Rc;

use gds_sim::{SimError, SimReport};

use crate::oracle;
use crate::plan::draw;
use crate::player::Player;
use crate::world::play;

/// Draws the program of `seed` and runs it under the schedule of `seed`.
///
/// # Errors
/// Whatever did not go as the program says, with the seed.
pub fn run(seed: u64) -> Result<SimReport, SimError> {
    let plan = Rc::new(draw(seed));
    play(seed, plan.seats.len(), move |rank| {
        let me = rank.me;
        let mut player = Player::new(rank, Rc::clone(&plan));
        player.play();
        oracle::check(&plan, me, &player.outcome());
        player.leave();
    })
}
