//! The list of the features that providers do not support, with the reasons.
//!
//! A trial that the list names runs as well, and must fail with the text that the list gives. It
//! fails the run if it succeeds; a trial that is not listed fails the run if it is refused.

use gdsync::rdma::Provider;

use super::cover::{Axis, Cell, each, name};
use crate::rig::verdict::{Verdict, text};

/// A feature that a provider does not support.
#[derive(Clone, Copy, Debug)]
pub struct Lack {
    /// The provider.
    pub provider: Provider,
    /// The end of a part of the names of the trials. If it names a setting of a matrix, the cover
    /// omits the setting, so that all other settings are combined, and one cell tries it.
    pub trials: &'static str,
    /// The text of the error of these trials.
    pub error: &'static str,
    /// The reason.
    pub reason: &'static str,
}

const FIRST: (&str, &str) = (
    "the first index of the queues",
    "verbs have no first index of queues: the NIC counts from 0",
);
const PINNED: (&str, &str) = (
    "queues are in pinned memory",
    "libmlx5 accepts only host memory for queues; the library uses pinned memory instead",
);
const READ_BY_CPU: (&str, &str) = (
    "queues are in pinned memory",
    "a CPU thread polls the queues; the library uses pinned memory instead",
);
const DATAGRAMS: (&str, &str) = (
    "TCP carries no datagrams",
    "a connection of TCP has one peer",
);

const fn lack(
    provider: Provider,
    trials: &'static str,
    (error, reason): (&'static str, &'static str),
) -> Lack {
    Lack {
        provider,
        trials,
        error,
        reason,
    }
}

/// The trial that stands for all trials of datagrams where there are none.
pub const ANY_DATAGRAMS: &str = "datagrams";

/// The list.
pub const TABLE: [Lack; 15] = [
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
    lack(Provider::Tcp, "queues device", READ_BY_CPU),
    lack(Provider::Tcp, "rings device", READ_BY_CPU),
    lack(Provider::Tcp, "completions device", READ_BY_CPU),
    lack(Provider::Tcp, "record device", READ_BY_CPU),
    lack(Provider::Tcp, ANY_DATAGRAMS, DATAGRAMS),
];

/// The trials that run only over the linked-in virtual NIC, and the reason.
pub const SIMULATED: (&str, &str) = (
    "seeds, faults and mutants under sim",
    "libibverbs and libmlx5 use real threads and a real clock, so a seed cannot select the order \
     of events; --faults makes the virtual NICs lose, duplicate and delay frames instead",
);

impl Lack {
    /// The entry of the list for a trial, if it is listed.
    pub fn of(provider: Provider, title: &str) -> Option<&'static Lack> {
        let mut all = TABLE.iter().filter(|lack| lack.provider == provider);
        all.find(|lack| title.split(", ").any(|part| part.ends_with(lack.trials)))
    }

    /// Checks that a trial has failed as the list says.
    ///
    /// # Errors
    /// It succeeded, or failed with another error.
    pub fn judge(&self, verdict: Verdict) -> Verdict {
        let text = match verdict {
            Ok(()) => {
                return Err("it succeeds, but is listed as unsupported".into());
            }
            Err(failed) => text(&failed).to_owned(),
        };
        match text.contains(self.error) {
            true => Ok(()),
            false => Err(format!("{text}, where {:?} was expected", self.error).into()),
        }
    }
}

/// The cells of a cover (or a `few` of them) that a provider runs, and behind them, for each
/// setting that it does not support, the cell in which all other axes have their first setting.
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
    fn cover_omits_listed_settings_and_one_cell_tries_each() {
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

    /// An entry that matches no trial would never be tried.
    #[test]
    fn every_entry_of_the_list_matches_a_trial() {
        for lack in &TABLE {
            let tried = |axes: &[Axis]| {
                let cells = super::cells(lack.provider, axes, false, |_| Vec::new());
                let cells = cells.iter().map(|cell| name(axes, cell));
                let of = |title: String| Lack::of(lack.provider, &title).map(|l| l.trials);
                cells.filter_map(of).any(|trials| trials == lack.trials)
            };
            assert!(
                tried(&programs::AXES) || tried(&matrix::AXES) || lack.trials == ANY_DATAGRAMS,
                "no trial is called {:?}",
                lack.trials
            );
        }
    }

    #[test]
    fn listed_trial_must_fail_with_the_listed_error() {
        let lack = Lack::of(Provider::Mlx5, "program: posts cpu-thread, from 2^16-9");
        let lack = lack.expect("it is listed");
        assert!(lack.judge(Ok(())).is_err());
        assert!(lack.judge(Err("another thing".into())).is_err());
        lack.judge(Err("the first index of the queues cannot be 7".into()))
            .unwrap();
        assert!(Lack::of(Provider::Mlx5, "from 0").is_none());
    }
}
