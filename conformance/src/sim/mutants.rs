//! The hunts for committed mutants: scenarios that run from a seed, the outcome of a seed, the
//! first scenario that detects a mutant, and the test program around the hunts.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gds_sim::{SimError, SimReport};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::sim::world::with_digest;

/// Seeds that a mutant must survive to count as undetected.
const SEEDS: u64 = 150;

/// A scenario's name, and its function of a seed.
pub type Scenario = (&'static str, fn(u64) -> Result<SimReport, SimError>);

/// The outcome of a seed: success, or the failure as text.
pub fn verdict(scenario: &Scenario, seed: u64) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| (scenario.1)(seed))) {
        Ok(Ok(_)) => None,
        Ok(Err(e)) => Some(e.to_string()),
        Err(_) => Some("a panic outside the ranks".to_owned()),
    }
}

/// The mutants of a package.
pub struct Hunt<M> {
    /// Switches one mutant on, for the whole process, or all off.
    pub set: fn(Option<M>),
    /// The scenarios that may detect them.
    pub scenarios: &'static [Scenario],
    /// The mutant whose failing seed is replayed.
    pub replayed: M,
}

impl<M: Copy + Debug + Send + Sync + 'static> Hunt<M> {
    /// The first scenario and seed that detect a mutant.
    fn killer(&self, mutant: M) -> Option<(&Scenario, u64, String)> {
        (self.set)(Some(mutant));
        let found = (0..SEEDS).find_map(|seed| {
            let mut all = self.scenarios.iter();
            all.find_map(|s| verdict(s, seed).map(|why| (s, seed, why)))
        });
        (self.set)(None);
        found
    }

    /// Checks that a mutant is detected.
    ///
    /// # Errors
    /// The mutant survives, or the scenario that detects it also fails without it.
    pub fn kill(&self, mutant: M) -> Result<(), Failed> {
        let Some((scenario, seed, why)) = self.killer(mutant) else {
            return Err(format!("{mutant:?} survived {SEEDS} seeds of every scenario").into());
        };
        let why = why.lines().next().unwrap_or_default().to_owned();
        println!("{mutant:?}: killed by {}, seed {seed}: {why}", scenario.0);
        match verdict(scenario, seed) {
            None => Ok(()),
            Some(why) => Err(format!("seed {seed} fails without the mutant too: {why}").into()),
        }
    }

    /// Checks that a failing seed of a mutant fails the same way ten times: the same choices of the
    /// scheduler, the same results of every machine, and the same error.
    ///
    /// # Errors
    /// It does not, or it also fails without the mutant.
    pub fn replay(&self) -> Result<(), Failed> {
        let Some((scenario, seed, why)) = self.killer(self.replayed) else {
            return Err("no failing seed to replay".into());
        };
        let run = || with_digest(|| nameless(&verdict(scenario, seed).unwrap_or_default()));
        (self.set)(Some(self.replayed));
        let runs = [(); 10].map(|()| run());
        (self.set)(None);
        println!("replayed {}, seed {seed}, ten times: {why}", scenario.0);
        println!("digest of the trace {:016x}", runs[0].1);
        let expected = (nameless(&why), runs[0].1);
        if let Some(other) = runs.iter().find(|r| **r != expected) {
            return Err(format!("{other:?} instead of {expected:?}").into());
        }
        // The digest must differ without the mutant.
        match expected.1 == 0 || run().1 == expected.1 {
            true => Err("the digest is the same with and without the mutant".into()),
            false => Ok(()),
        }
    }

    /// A trial for each mutant, by `kill`, and one for the replay.
    pub fn trials(&'static self, all: &[M], kill: fn(M) -> Result<(), Failed>) -> Vec<Trial> {
        let trial = |m: &M| {
            let m = *m;
            Trial::test(format!("{m:?} is noticed"), move || kill(m))
        };
        let mut trials: Vec<Trial> = all.iter().map(trial).collect();
        trials.push(Trial::test("a failing seed replays", || self.replay()));
        trials
    }
}

/// Removes the numbers of devices from `text`: they count over the whole process, so they differ
/// between runs.
fn nameless(text: &str) -> String {
    let mut out = String::new();
    let mut number = false;
    for c in text.chars() {
        let starts = out.ends_with("gpu") || out.ends_with("nic");
        number = c.is_ascii_digit() && (number || starts);
        if !number {
            out.push(c);
        }
    }
    out
}

/// The placeholder for the hunts in a build without mutants.
pub fn absent() -> Vec<Trial> {
    let why = "mutants (needs the feature mutants: ./build.sh test mutants)";
    let never = || Err("built without the feature mutants".into());
    vec![Trial::test(why, never).with_ignored_flag(true)]
}

/// Runs the hunts, one at a time, and ends the process.
pub fn run(trials: Vec<Trial>) -> ! {
    // The verdict contains the message of a rank that panics because of a mutant.
    std::panic::set_hook(Box::new(|_| ()));
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit()
}
