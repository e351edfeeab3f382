//! What each rank does in which order: its own steps, and receives early, in turn and late.
//!
//! Nothing here can block for ever. Ranks walk through the steps in the same order, whatever
//! waits for a step waits behind what comes before it, and whoever is about to block first
//! does what it has put off.

use super::{Step, When};

/// Something a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Act in this step.
    Act(usize),
    /// Post the receive of this step if that is possible now.
    TryReceive(usize),
    /// The receive of this step is due, but put off until [`Action::Receive`], or until
    /// something else would block.
    PutOff(usize),
    /// Post the receive of this step if that is not done yet.
    Receive(usize),
    /// Have somebody wait for the receive of this step.
    Await(usize),
}

/// The agenda of `rank`.
pub fn of(steps: &[Step], rank: usize) -> Vec<Action> {
    let mut agenda: Vec<Action> = Vec::new();
    let mut late: Vec<(usize, usize)> = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        if step.from == rank {
            agenda.push(Action::Act(i));
        }
        if let Some(receive) = step.receive.filter(|_| step.to == rank) {
            match receive.when {
                When::InTurn => agenda.extend([Action::Receive(i), Action::Await(i)]),
                When::Early(by) => {
                    let at = agenda.len().saturating_sub(by);
                    agenda.insert(at, Action::TryReceive(i));
                    agenda.extend([Action::Receive(i), Action::Await(i)]);
                }
                When::Late(by) => {
                    agenda.push(Action::PutOff(i));
                    late.push((agenda.len() + by, i));
                }
            }
        }
        late.retain(|(due, i)| {
            let over = *due <= agenda.len();
            if over {
                agenda.extend([Action::Receive(*i), Action::Await(*i)]);
            }
            !over
        });
    }
    for (_, i) in late {
        agenda.extend([Action::Receive(i), Action::Await(i)]);
    }
    agenda
}
