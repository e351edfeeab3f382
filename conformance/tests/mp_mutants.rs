//! Committed mutants of messages: each breaks one rule of `mp` on purpose, and some seed must
//! detect it. Runs only with the feature `mutants`; one mutant at a time, since the switch applies
//! to the whole process.

use libtest_mimic::Trial;

#[cfg(feature = "mutants")]
fn trials() -> Vec<Trial> {
    use conformance::sim::mp::Wire::{InOrder, Mapped, OutOfOrder};
    use conformance::sim::mp::{
        agree, ahead, collectives, graphs, halo, late, messages, neighbours, windows, zero_sm,
    };
    use conformance::sim::mutants::Hunt;
    use mp::mutant::{self, Mutant};

    static HUNT: Hunt<Mutant> = Hunt {
        set: mutant::set,
        scenarios: &[
            ("messages", |seed| messages::run(seed, InOrder)),
            ("halo", |seed| halo::run(seed, InOrder)),
            ("messages by mapped memory", |seed| {
                messages::run(seed, Mapped)
            }),
            ("a sender ahead by mapped memory", |seed| {
                ahead::run(seed, Mapped)
            }),
            ("messages in graphs", graphs::run),
            ("zero-SM messages", zero_sm::run),
            ("messages out of order", |seed| {
                messages::run(seed, OutOfOrder)
            }),
            ("late words", late::run),
            ("agree", agree::run),
            ("windows", |seed| windows::run(seed, InOrder)),
            ("windows out of order", |seed| {
                windows::run(seed, OutOfOrder)
            }),
            ("neighbours", |seed| neighbours::run(seed, InOrder)),
            ("collectives", |seed| collectives::run(seed, InOrder)),
            ("collectives with a loss", collectives::run_with_loss),
        ],
        replayed: Mutant::LostCredit,
    };
    HUNT.trials(&Mutant::ALL, |mutant| HUNT.kill(mutant))
}

#[cfg(not(feature = "mutants"))]
fn trials() -> Vec<Trial> {
    conformance::sim::mutants::absent()
}

fn main() {
    // The mutants break the NIC's path, except where a scenario selects mapped memory itself.
    // SAFETY: no other thread has been started yet.
    unsafe { std::env::set_var("MP_PATH", "nic") };
    conformance::sim::mutants::run(trials())
}
