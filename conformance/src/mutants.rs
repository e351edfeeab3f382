//! What the hunts for committed mutants share: scenarios that a seed runs, what a seed says, and
//! the program around the hunts.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gds_sim::{SimError, SimReport};
use libtest_mimic::{Arguments, Trial};

/// A scenario's name, and what runs it from a seed.
pub type Scenario = (&'static str, fn(u64) -> Result<SimReport, SimError>);

/// What a seed says: nothing, or how it failed.
pub fn verdict(scenario: &Scenario, seed: u64) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| (scenario.1)(seed))) {
        Ok(Ok(_)) => None,
        Ok(Err(e)) => Some(e.to_string()),
        Err(_) => Some("a panic outside the ranks".to_owned()),
    }
}

/// What stands for the hunts in a build without mutants.
pub fn absent() -> Vec<Trial> {
    let why = "mutants (needs the feature mutants: ./build.sh test mutants)";
    let never = || Err("built without the feature mutants".into());
    vec![Trial::test(why, never).with_ignored_flag(true)]
}

/// Runs the hunts, one at a time, and ends the process.
pub fn run(trials: Vec<Trial>) -> ! {
    // What a rank says when a mutant makes it panic is told by the verdict.
    std::panic::set_hook(Box::new(|_| ()));
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit()
}
