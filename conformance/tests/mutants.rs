//! Committed mutants: each breaks one rule of the library on purpose, and some seed or check must
//! detect it. Runs only with the feature `mutants`; one mutant at a time, since the switch applies
//! to the whole process.

use libtest_mimic::Trial;

#[cfg(feature = "mutants")]
fn trials() -> Vec<Trial> {
    use conformance::sim::mutants::Hunt;
    use conformance::sim::{directed, exchange};
    use gdsync::mutant::{self, Mutant};

    static HUNT: Hunt<Mutant> = Hunt {
        set: mutant::set,
        scenarios: &[
            ("exchange", exchange::run),
            ("failure", directed::failure),
            ("held stream", directed::held_stream),
            ("held sends", directed::held_sends),
            ("silence", directed::silence),
            ("consistency", directed::consistency),
            ("datagrams", directed::datagrams),
        ],
        replayed: Mutant::NoFenceBeforeDoorbell,
    };
    HUNT.trials(&Mutant::ALL, |mutant| match mutant {
        Mutant::PresetF0 => preset(),
        other => HUNT.kill(other),
    })
}

/// The library's waits test two bits and are immune to this mutant, by design. The test checks the
/// guarantee itself, for code that tests only the owner bit.
#[cfg(feature = "mutants")]
fn preset() -> Result<(), libtest_mimic::Failed> {
    use gdsync::mutant::{Mutant, set};
    use gdsync::preset_byte;

    let sound = preset_byte();
    set(Some(Mutant::PresetF0));
    let broken = preset_byte();
    set(None);
    if sound != 0xf1 || broken == 0xf1 {
        return Err(format!("preset {sound:#x}, with the mutant {broken:#x}").into());
    }
    println!("PresetF0: killed by the check of the preset byte");
    Ok(())
}

#[cfg(not(feature = "mutants"))]
fn trials() -> Vec<Trial> {
    conformance::sim::mutants::absent()
}

fn main() {
    conformance::sim::mutants::run(trials())
}
