//! The list of the features that providers do not support, each with the reason.
//!
//! A trial that the list names is run too, and must be refused with the text in the list. The run
//! fails if such a trial succeeds, and if a trial is refused that the list does not name.

use gdsync::rdma::Provider;

use super::cover::{Axis, Cell, each, name};
use crate::rig::verdict::{Verdict, text};

/// A feature that a provider does not support.
#[derive(Clone, Copy, Debug)]
pub struct Lack {
    /// The provider.
    pub provider: Provider,
    /// A part of the names of the trials. If it names a setting of a matrix, the cover of the
    /// matrix omits the setting, so that it covers all pairs of other settings, and one cell tries
    /// it.
    pub trials: &'static str,
    /// A part of the error text of these trials.
    pub says: &'static str,
    /// The reason.
    pub reason: &'static str,
}

const FIRST: (&str, &str) = (
    "the first index of the queues",
    "verbs have no first index of queues: the NIC counts from 0",
);
const PINNED: (&str, &str) = (
    "queues are in pinned memory",
    "libmlx5 takes memory for queues from the CPU alone; the library takes pinned memory instead",
);
const READ_BY_CPU: (&str, &str) = (
    "queues are in pinned memory",
    "a CPU thread reads the queues all the time; the library takes pinned memory instead",
);

const fn lack(
    provider: Provider,
    trials: &'static str,
    (says, reason): (&'static str, &'static str),
) -> Lack {
    Lack {
        provider,
        trials,
        says,
        reason,
    }
}

/// The list.
pub const TABLE: [Lack; 10] = [
    lack(Provider::Mlx5, "from 2^16-9", FIRST),
    lack(Provider::Mlx5, "from 2^32-9", FIRST),
    lack(Provider::Mlx5, "queues device", PINNED),
    lack(Provider::Mlx5, "rings device", PINNED),
    lack(Provider::Mlx5, "completions device", PINNED),
    lack(Provider::Mlx5, "record device", PINNED),
    lack(Provider::Verbs, "queues device", READ_BY_CPU),
    lack(Provider::Verbs, "rings device", READ_BY_CPU),
    lack(Provider::Verbs, "completions device", READ_BY_CPU),
    lack(Provider::Verbs, "record device", READ_BY_CPU),
];

/// The trials that run only over the virtual NIC that is linked in, and the reason.
pub const SIMULATED: (&str, &str) = (
    "seeds, faults and mutants under sim",
    "libibverbs and libmlx5 have threads and a clock of their own, so no order of events can be \
     drawn from a seed; virtual NICs lose, double and delay frames here by --faults",
);

impl Lack {
    /// The entry of the list for a trial.
    pub fn of(provider: Provider, title: &str) -> Option<&'static Lack> {
        let mut all = TABLE.iter().filter(|lack| lack.provider == provider);
        all.find(|lack| title.split(", ").any(|part| part.ends_with(lack.trials)))
    }

    /// Whether a trial has ended as the list says.
    ///
    /// # Errors
    /// The trial succeeded, or failed with another text.
    pub fn judge(&self, verdict: Verdict) -> Verdict {
        let said = match verdict {
            Ok(()) => {
                return Err("it works, and is in the list of what is unsupported".into());
            }
            Err(failed) => text(&failed).to_owned(),
        };
        match said.contains(self.says) {
            true => Ok(()),
            false => Err(format!("{said}, where {:?} was due", self.says).into()),
        }
    }
}

/// The cells of a cover (or a `few` of them) that a provider runs. After them, for each setting
/// that it lacks, the cell that has this setting and the first setting of every other axis.
pub fn cells(
    provider: Provider,
    axes: &[Axis],
    few: bool,
    cover: impl Fn(&dyn Fn(&Cell) -> bool) -> Vec<Cell>,
) -> Vec<Cell> {
    let mut cells = cover(&|cell| Lack::of(provider, &name(axes, cell)).is_none());
    if few {
        cells = each(cells);
    }
    for (axis, (_, settings)) in axes.iter().enumerate() {
        for setting in 0..settings.len() {
            let mut cell = vec![0; axes.len()];
            cell[axis] = setting;
            if Lack::of(provider, &name(axes, &cell)).is_some() {
                cells.push(cell);
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::super::{matrix, programs};
    use super::*;

    #[test]
    fn what_is_listed_is_left_out_of_a_cover_and_tried_once() {
        const AXES: [Axis; 2] = [
            ("queues", &["pinned", "device"]),
            ("from", &["0", "2^16-9", "2^32-9"]),
        ];
        let all = [0, 1].map(|q| [0, 1, 2].map(|f| vec![q, f])).concat();
        let cells = |provider| {
            cells(provider, &AXES, false, |keep| {
                all.iter().filter(|cell| keep(cell)).cloned().collect()
            })
        };
        assert_eq!(cells(Provider::Emulated), all);
        let verbs = vec![vec![0, 0], vec![0, 1], vec![0, 2], vec![1, 0]];
        assert_eq!(cells(Provider::Verbs), verbs);
        let mlx5 = vec![vec![0, 0], vec![1, 0], vec![0, 1], vec![0, 2]];
        assert_eq!(cells(Provider::Mlx5), mlx5);
    }

    /// An entry that matches no name would never be tried.
    #[test]
    fn whatever_is_listed_is_a_setting_that_is_tried() {
        for lack in &TABLE {
            let tried = |axes: &[Axis]| {
                let cells = super::cells(lack.provider, axes, false, |_| Vec::new());
                let cells = cells.iter().map(|cell| name(axes, cell));
                let of = |title: String| Lack::of(lack.provider, &title).map(|l| l.trials);
                cells.filter_map(of).any(|trials| trials == lack.trials)
            };
            assert!(
                tried(&programs::AXES) || tried(&matrix::AXES),
                "no trial is called {:?}",
                lack.trials
            );
        }
    }

    #[test]
    fn a_listed_trial_has_to_be_refused_as_listed() {
        let lack = Lack::of(Provider::Mlx5, "program: posts cpu-thread, from 2^16-9");
        let lack = lack.expect("it is listed");
        assert!(lack.judge(Ok(())).is_err());
        assert!(lack.judge(Err("another thing".into())).is_err());
        lack.judge(Err("the first index of the queues cannot be 7".into()))
            .unwrap();
        assert!(Lack::of(Provider::Mlx5, "from 0").is_none());
    }
}
