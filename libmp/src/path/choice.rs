//! The choice of the path to each rank: what the program or the environment selects
//! ([`PathChoice`]), and what the two ranks find out about each other.
//!
//! Both ranks come to the same choice. With [`PathChoice::Auto`], each of two ranks of a host sends
//! the other the identity of its GPU, and answers whether it can map that GPU's memory; both map
//! memory if both answers are yes. The answer precedes all messages that depend on the path.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use super::Path;
use crate::error::{Error, Kind, Result};

/// The path to other ranks of this host, for [`Builder::path`](crate::Builder::path).
/// All ranks must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PathChoice {
    /// [`Path::Ipc`](crate::Path::Ipc) to each rank of this host if the two ranks can map each
    /// other's memory, else [`Path::Nic`](crate::Path::Nic).
    #[default]
    Auto,
    /// [`Path::Nic`](crate::Path::Nic).
    Nic,
    /// [`Path::Ipc`](crate::Path::Ipc): the ranks map each other's memory. A rank that cannot is an
    /// error of its first message.
    Ipc,
}

impl PathChoice {
    /// The choice in `MP_PATH`.
    ///
    /// # Errors
    /// `Invalid` for an unknown value.
    pub(crate) fn from_env() -> Result<PathChoice> {
        PathChoice::parse(&std::env::var("MP_PATH").unwrap_or_default())
    }

    /// The choice that `value` of `MP_PATH` names.
    ///
    /// # Errors
    /// `Invalid` for an unknown value.
    #[doc(hidden)]
    pub fn parse(value: &str) -> Result<PathChoice> {
        match value {
            "" | "auto" => Ok(PathChoice::Auto),
            "nic" => Ok(PathChoice::Nic),
            "ipc" => Ok(PathChoice::Ipc),
            _ => {
                let what = format!("MP_PATH={value} is not valid; set it to auto, nic or ipc");
                Err(Error::new("read environment", Kind::Invalid, what))
            }
        }
    }
}

/// A path, and the reason for it.
pub(crate) type Chosen = (Path, Cow<'static, str>);

/// Whether a rank can map memory of another one. The error is a clause about the rank that cannot.
pub(crate) type Can = Result<(), String>;

/// What this rank knows about another one.
#[derive(Clone, Copy, Debug, Default)]
struct Facts<'a> {
    /// Whether it is of this host; `None`: the bootstrap does not know.
    here: Option<bool>,
    /// Whether this rank shares and maps memory at all.
    able: Option<&'a Can>,
    /// Whether this rank's GPU reaches the memory of the other one's; `None` before it is named.
    reaches: Option<&'a Can>,
    /// The other rank's answer.
    answer: Option<&'a Can>,
}

/// The path to another rank. `None`: the facts do not decide yet.
fn choose(choice: PathChoice, facts: Facts<'_>) -> Option<Chosen> {
    let nic = |why: &'static str| Some((Path::Nic, why.into()));
    let cannot = |who: &str, why: &str| Some((Path::Nic, format!("{who}: {why}").into()));
    match (choice, facts.here) {
        (PathChoice::Nic, _) => nic("MP_PATH or Builder::path selects the NIC"),
        (_, None) => nic("the bootstrap does not know the hosts of the ranks"),
        (_, Some(false)) => nic("a rank of another host, which only the NIC reaches"),
        (PathChoice::Ipc, _) => {
            let why = "a rank of this host, and MP_PATH or Builder::path selects mapped memory";
            Some((Path::Ipc, why.into()))
        }
        (PathChoice::Auto, _) => match (facts.able, facts.reaches, facts.answer) {
            (Some(Err(why)), ..) => cannot("this rank maps no memory of its host", why),
            (_, Some(Err(why)), _) => cannot("the GPUs cannot reach each other", why),
            (.., Some(Err(why))) => cannot("the other rank cannot map this rank's memory", why),
            (Some(Ok(())), Some(Ok(())), Some(Ok(()))) => {
                let why = "a rank of this host whose GPU memory this rank maps, as it maps this \
                           rank's";
                Some((Path::Ipc, why.into()))
            }
            _ => None,
        },
    }
}

/// The paths to all ranks, each chosen once.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    /// This rank.
    pub me: u32,
    choice: PathChoice,
    /// Whether this rank shares and maps memory at all.
    able: Arc<Can>,
    /// By rank: whether it is of this host.
    here: Arc<[Option<bool>]>,
    chosen: Arc<[OnceLock<Chosen>]>,
}

impl Choices {
    /// The choices that need no other rank. `here`: by rank, whether it is of the host of rank `me`;
    /// `None`: not known.
    pub fn new(me: u32, choice: PathChoice, here: Vec<Option<bool>>, able: Can) -> Choices {
        let own = || {
            (
                Path::Local,
                "the rank itself: its memory is copied, by no NIC".into(),
            )
        };
        let first = |(rank, here): (u32, &Option<bool>)| {
            let (here, able) = (*here, Some(&able));
            let facts = Facts {
                here,
                able,
                ..Facts::default()
            };
            match rank == me {
                true => OnceLock::from(own()),
                false => choose(choice, facts).map_or_else(OnceLock::new, OnceLock::from),
            }
        };
        Choices {
            me,
            choice,
            chosen: (0..).zip(&here).map(first).collect(),
            here: here.into(),
            able: Arc::new(able),
        }
    }

    /// The path to `rank`, once it is chosen.
    #[inline]
    pub fn of(&self, rank: u32) -> Option<&Chosen> {
        self.chosen.get(rank as usize)?.get()
    }

    /// Whether `rank` is another rank of this host.
    pub fn is_near(&self, rank: u32) -> bool {
        rank != self.me && self.here.get(rank as usize) == Some(&Some(true))
    }

    /// Whether the path to a rank is or may become [`Path::Ipc`].
    pub fn may_map(&self) -> bool {
        let path = |cell: &OnceLock<Chosen>| cell.get().is_none_or(|(path, _)| *path == Path::Ipc);
        self.chosen.iter().any(path)
    }

    /// Chooses the path to `rank` if these facts decide it. Returns it if it is new.
    pub fn settle(
        &self,
        rank: u32,
        reaches: Option<&Can>,
        answer: Option<&Can>,
    ) -> Option<&Chosen> {
        let cell = self.chosen.get(rank as usize)?;
        let here = self.here[rank as usize];
        let facts = Facts {
            here,
            able: Some(&self.able),
            reaches,
            answer,
        };
        let chosen = choose(self.choice, facts)?;
        cell.set(chosen).is_ok().then(|| cell.get())?
    }

    /// This rank's answer to a rank of its host whose GPU it reaches or not.
    pub fn answer(&self, reaches: impl FnOnce() -> Can) -> Can {
        match self.choice {
            PathChoice::Auto => self.able.as_ref().clone().and_then(|()| reaches()),
            PathChoice::Nic => Err("its MP_PATH or Builder::path selects the NIC".to_owned()),
            PathChoice::Ipc => {
                Err("its MP_PATH or Builder::path selects mapped memory without a question".into())
            }
        }
    }

    /// The refusal that this rank sends to `rank` unasked, because it is of its host and this rank
    /// maps no memory.
    pub fn refusal(&self, rank: u32) -> Option<&Can> {
        let here = self.here.get(rank as usize) == Some(&Some(true));
        (self.choice == PathChoice::Auto && here && self.able.is_err()).then_some(&self.able)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_follows_from_choice_and_facts() {
        let (yes, no): (Can, Can) = (Ok(()), Err("it is so".to_owned()));
        let (yes, no) = (Some(&yes), Some(&no));
        let (auto, nic, ipc) = (PathChoice::Auto, PathChoice::Nic, PathChoice::Ipc);
        let here = Some(true);
        let rows = [
            (
                nic,
                here,
                [yes, yes, yes],
                Some(Path::Nic),
                "selects the NIC",
            ),
            (
                nic,
                None,
                [yes, None, None],
                Some(Path::Nic),
                "selects the NIC",
            ),
            (
                ipc,
                None,
                [yes, yes, yes],
                Some(Path::Nic),
                "does not know the hosts",
            ),
            (
                auto,
                None,
                [yes, yes, yes],
                Some(Path::Nic),
                "does not know the hosts",
            ),
            (ipc, Some(false), [yes; 3], Some(Path::Nic), "another host"),
            (auto, Some(false), [yes; 3], Some(Path::Nic), "another host"),
            (
                ipc,
                here,
                [yes, None, None],
                Some(Path::Ipc),
                "selects mapped memory",
            ),
            // As before the choice was automatic: the first message reports the error.
            (
                ipc,
                here,
                [no, no, no],
                Some(Path::Ipc),
                "selects mapped memory",
            ),
            (
                auto,
                here,
                [no, None, None],
                Some(Path::Nic),
                "of its host: it is so",
            ),
            (
                auto,
                here,
                [no, yes, yes],
                Some(Path::Nic),
                "of its host: it is so",
            ),
            (
                auto,
                here,
                [yes, no, None],
                Some(Path::Nic),
                "each other: it is so",
            ),
            (
                auto,
                here,
                [yes, no, no],
                Some(Path::Nic),
                "each other: it is so",
            ),
            (
                auto,
                here,
                [yes, None, no],
                Some(Path::Nic),
                "this rank's memory: it is so",
            ),
            (
                auto,
                here,
                [yes, yes, no],
                Some(Path::Nic),
                "this rank's memory: it is so",
            ),
            (
                auto,
                here,
                [yes, yes, yes],
                Some(Path::Ipc),
                "whose GPU memory this rank maps",
            ),
            (auto, here, [yes, None, None], None, ""),
            (auto, here, [yes, yes, None], None, ""),
            (auto, here, [yes, None, yes], None, ""),
        ];
        for (choice, here, [able, reaches, answer], path, text) in rows {
            let facts = Facts {
                here,
                able,
                reaches,
                answer,
            };
            let chosen = choose(choice, facts);
            assert_eq!(
                chosen.as_ref().map(|chosen| chosen.0),
                path,
                "{choice:?} {facts:?}"
            );
            let why = chosen.map_or(Cow::default(), |chosen| chosen.1);
            assert!(why.contains(text), "{choice:?} {facts:?}: {why}");
        }
    }

    /// Whatever each of two ranks can, and whichever answer arrives first, both choose the same.
    #[test]
    fn two_ranks_choose_the_same_path() {
        let cans = || [Ok(()), Err("it cannot".to_owned())];
        for (a, b) in cans().iter().flat_map(|a| cans().map(|b| (a.clone(), b))) {
            let of = |me| Choices::new(me, PathChoice::Auto, vec![Some(true); 2], Ok(()));
            let (zero, one) = (of(0), of(1));
            assert!(zero.may_map() && zero.of(1).is_none());
            let reaches = [zero.answer(|| a.clone()), one.answer(|| b.clone())];
            // The first rank has both answers at once, the second one hears the answer first.
            let first = zero.settle(1, Some(&reaches[0]), Some(&reaches[1]));
            let path = first.unwrap().0;
            one.settle(0, None, Some(&reaches[0]));
            one.settle(0, Some(&reaches[1]), Some(&reaches[0]));
            assert_eq!(one.of(0).unwrap().0, path);
            assert_eq!(path == Path::Ipc, a.is_ok() && b.is_ok());
            assert_eq!(
                zero.settle(1, Some(&Ok(())), Some(&Ok(()))),
                None,
                "it is chosen once"
            );
        }
    }

    #[test]
    fn rank_that_maps_no_memory_says_so_unasked_to_ranks_of_its_host() {
        let here = vec![Some(true), Some(true), Some(false), None];
        let unable = Err("its GPU runs no kernels".to_owned());
        let of = |choice, able: &Can| Choices::new(0, choice, here.clone(), able.clone());
        let choices = of(PathChoice::Auto, &unable);
        let asked: Vec<bool> = (0..5).map(|rank| choices.refusal(rank).is_some()).collect();
        assert_eq!(asked[1..], [true, false, false, false]);
        assert!(!choices.may_map());
        assert_eq!(choices.answer(|| Ok(())), unable);
        assert_eq!(choices.of(0).unwrap().0, Path::Local);
        for choice in [PathChoice::Nic, PathChoice::Ipc] {
            assert_eq!(of(choice, &unable).refusal(1), None);
            assert!(of(choice, &Ok(())).answer(|| Ok(())).is_err());
        }
        assert_eq!(of(PathChoice::Auto, &Ok(())).refusal(1), None);
    }
}
