//! Committed mutants of messages: each breaks one rule of `mp` on purpose, and some seed must
//! notice. Runs only with the feature `mutants`; one mutant at a time, since the switch is for the
//! whole process.

use libtest_mimic::Trial;

#[cfg(feature = "mutants")]
mod hunt {
    use conformance::mutants::{Scenario, verdict};
    use conformance::{digest, mp_sim};
    use libtest_mimic::Failed;
    use mp::mutant::{self, Mutant};

    /// Seeds that a mutant has to survive before it counts as alive.
    const SEEDS: u64 = 150;

    const SCENARIOS: [Scenario; 4] = [
        ("talk", mp_sim::talk::run),
        ("halo", mp_sim::halo::run),
        ("talk out of order", mp_sim::talk::run_in_disorder),
        ("late words", mp_sim::late::run),
    ];

    /// The first seed of a scenario that notices the mutant.
    fn killer(scenario: &Scenario) -> Option<(u64, String)> {
        (0..SEEDS).find_map(|seed| verdict(scenario, seed).map(|why| (seed, why)))
    }

    /// Shows that `mutant` is noticed.
    pub fn kill(mutant: Mutant) -> Result<(), Failed> {
        let mut noticed = false;
        for scenario in &SCENARIOS {
            mutant::set(Some(mutant));
            let killer = killer(scenario);
            mutant::set(None);
            let Some((seed, why)) = killer else {
                println!("{mutant:?}: survives {SEEDS} seeds of {}", scenario.0);
                continue;
            };
            let why = why.lines().next().unwrap_or_default().to_owned();
            println!("{mutant:?}: killed by {}, seed {seed}: {why}", scenario.0);
            if let Some(why) = verdict(scenario, seed) {
                return Err(format!("seed {seed} fails without the mutant too: {why}").into());
            }
            noticed = true;
            break;
        }
        match noticed {
            true => Ok(()),
            false => Err(format!("{mutant:?} survives every scenario").into()),
        }
    }

    /// A failing seed of a mutant fails the same way, ten times over.
    pub fn replay() -> Result<(), Failed> {
        mutant::set(Some(Mutant::LostCredit));
        let found = killer(&SCENARIOS[0]);
        let again = |seed: u64| {
            let (verdict, digest) = digest::with_digest(|| verdict(&SCENARIOS[0], seed));
            (verdict.is_some(), digest)
        };
        let runs: Vec<(bool, u64)> = found
            .iter()
            .flat_map(|(seed, _)| (0..10).map(|_| again(*seed)))
            .collect();
        mutant::set(None);
        let Some((seed, why)) = found else {
            return Err("no failing seed to replay".into());
        };
        println!("replayed seed {seed} ten times: {why}");
        if let Some(other) = runs.iter().find(|r| **r != runs[0] || !r.0) {
            return Err(format!("{other:?} instead of {:?}", runs[0]).into());
        }
        let sound = again(seed);
        match sound.0 || sound.1 == runs[0].1 {
            true => Err("the mutant makes no difference".into()),
            false => Ok(()),
        }
    }
}

#[cfg(feature = "mutants")]
fn trials() -> Vec<Trial> {
    let kill = |m: &mp::mutant::Mutant| {
        let m = *m;
        Trial::test(format!("{m:?} is noticed"), move || hunt::kill(m))
    };
    let mut trials: Vec<Trial> = mp::mutant::Mutant::ALL.iter().map(kill).collect();
    trials.push(Trial::test("a failing seed replays", hunt::replay));
    trials
}

#[cfg(not(feature = "mutants"))]
fn trials() -> Vec<Trial> {
    conformance::mutants::absent()
}

fn main() {
    conformance::mutants::run(trials())
}
