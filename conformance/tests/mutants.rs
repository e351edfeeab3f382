//! Committed mutants: each breaks one rule of the library on purpose, and some seed or check
//! must notice. Runs only with the feature `mutants`; one mutant at a time, since the switch is
//! for the whole process.

use libtest_mimic::Trial;

#[cfg(feature = "mutants")]
mod hunt {
    use conformance::mutants::{Scenario, verdict};
    use conformance::{digest, directed, exchange};
    use gdsync::mutant::{self, Mutant};
    use libtest_mimic::Failed;

    /// Seeds that a mutant has to survive before it counts as alive.
    const SEEDS: u64 = 150;

    const SCENARIOS: [Scenario; 7] = [
        ("exchange", exchange::run),
        ("failure", directed::failure),
        ("held stream", directed::held_stream),
        ("held sends", directed::held_sends),
        ("silence", directed::silence),
        ("consistency", directed::consistency),
        ("datagrams", directed::datagrams),
    ];

    /// The first scenario and seed that notice the mutant.
    fn first_killer() -> Option<(&'static Scenario, u64, String)> {
        (0..SEEDS).find_map(|seed| {
            SCENARIOS
                .iter()
                .find_map(|s| verdict(s, seed).map(|why| (s, seed, why)))
        })
    }

    /// Shows that `mutant` is noticed.
    pub fn kill(mutant: Mutant) -> Result<(), Failed> {
        if mutant == Mutant::PresetF0 {
            return preset();
        }
        mutant::set(Some(mutant));
        let killer = first_killer();
        mutant::set(None);
        let Some((scenario, seed, why)) = killer else {
            return Err(format!("{mutant:?} survived {SEEDS} seeds of every scenario").into());
        };
        let why = why.lines().next().unwrap_or_default().to_owned();
        println!("{mutant:?}: killed by {}, seed {seed}: {why}", scenario.0);
        match verdict(scenario, seed) {
            None => Ok(()),
            Some(why) => Err(format!("seed {seed} fails without the mutant too: {why}").into()),
        }
    }

    /// Our own waits test two bits and are immune to this one, by design: what is checked is
    /// the promise itself, for whoever tests the owner bit alone.
    fn preset() -> Result<(), Failed> {
        let (sound, broken) = (gdsync::preset_byte(), {
            mutant::set(Some(Mutant::PresetF0));
            let byte = gdsync::preset_byte();
            mutant::set(None);
            byte
        });
        if sound != 0xf1 || broken == 0xf1 {
            return Err(format!("preset {sound:#x}, with the mutant {broken:#x}").into());
        }
        println!("PresetF0: killed by the check of the preset byte");
        Ok(())
    }

    /// A failing seed of a mutant fails the same way, ten times over: the same choices of the
    /// scheduler and answers of every machine, the same words in the end.
    pub fn replay() -> Result<(), Failed> {
        mutant::set(Some(Mutant::NoFenceBeforeDoorbell));
        let found = first_killer();
        let runs: Vec<(String, u64)> = found
            .iter()
            .flat_map(|(scenario, seed, _)| (0..10).map(move |_| (scenario, *seed)))
            .map(|(scenario, seed)| {
                let (verdict, digest) = digest::with_digest(|| verdict(scenario, seed));
                (nameless(&verdict.unwrap_or_default()), digest)
            })
            .collect();
        mutant::set(None);
        let Some((scenario, seed, why)) = found else {
            return Err("no failing seed to replay".into());
        };
        let digest = runs[0].1;
        println!("replayed {}, seed {seed}, ten times: {why}", scenario.0);
        println!("digest of the trace {digest:016x}");
        let expected = (nameless(&why), digest);
        if let Some(other) = runs.iter().find(|r| **r != expected) {
            return Err(format!("{other:?} instead of {expected:?}").into());
        }
        // The digest is not the same for everything.
        let (_, sound) = digest::with_digest(|| verdict(scenario, seed));
        if sound == digest || digest == 0 {
            return Err("the digest says nothing".into());
        }
        Ok(())
    }

    /// Devices are numbered through the life of the process; everything else is the same.
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
}

#[cfg(feature = "mutants")]
fn trials() -> Vec<Trial> {
    let kill = |m: &gdsync::mutant::Mutant| {
        let m = *m;
        Trial::test(format!("{m:?} is noticed"), move || hunt::kill(m))
    };
    let mut trials: Vec<Trial> = gdsync::mutant::Mutant::ALL.iter().map(kill).collect();
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
