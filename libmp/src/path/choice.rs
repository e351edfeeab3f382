//! The choice of the path to each rank: what the program or the environment selects
//! ([`PathChoice`]), and what the two ranks find out about each other.
//!
//! Both ranks come to the same choice. With [`PathChoice::Auto`], each of two ranks sends the other
//! the identity of its GPU, and answers whether it can map that GPU's memory and what its NIC is.
//! Two ranks of a host map memory if both can; else their NICs decide ([`queues`]). The answer
//! precedes all messages that depend on the path; a rank that needs none of the peer sends its own
//! unasked.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use super::Path;
use crate::error::{Error, Kind, Result};
use crate::wire::control::{Answer, NicSort};

/// The path to other ranks, for [`Builder::path`](crate::Builder::path). All ranks must use the
/// same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PathChoice {
    /// [`Path::Ipc`](crate::Path::Ipc) to a rank of this host if the two ranks can map each other's
    /// memory. Else, and to ranks of other hosts, [`Path::Nic`](crate::Path::Nic) if the NICs of the
    /// two ranks reach each other, else [`Path::Tcp`](crate::Path::Tcp). A virtual NIC
    /// ([`Provider::Emulated`](gdsync::rdma::Provider::Emulated)) reaches the virtual NICs of its
    /// host.
    #[default]
    Auto,
    /// [`Path::Nic`](crate::Path::Nic) to all ranks; [`Path::Tcp`](crate::Path::Tcp) if the
    /// context's device is one of TCP.
    Nic,
    /// [`Path::Ipc`](crate::Path::Ipc) to the ranks of this host: the ranks map each other's memory.
    /// A rank that cannot is an error of its first message. To ranks of other hosts as with
    /// [`PathChoice::Auto`].
    Ipc,
    /// [`Path::Tcp`](crate::Path::Tcp) to all ranks: the context uses no NIC.
    Tcp,
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
            "tcp" => Ok(PathChoice::Tcp),
            _ => {
                let what = format!("MP_PATH={value} is not valid; set it to auto, nic, ipc or tcp");
                Err(Error::new("read environment", Kind::Invalid, what))
            }
        }
    }
}

/// A path, and the reason for it.
pub(crate) type Chosen = (Path, Cow<'static, str>);

/// Whether a rank can map memory of another one. The error is a clause about the rank that cannot.
pub(crate) type Can = Result<(), String>;

/// How a rank is reached: its path, and the path of what mapped memory cannot do, which is the same
/// unless the path is [`Path::Ipc`].
#[derive(Debug)]
struct Reach {
    chosen: Chosen,
    queues: Path,
}

/// What this rank knows about another one.
#[derive(Clone, Copy, Debug)]
struct Facts<'a> {
    /// Whether it is of this host; `None`: the bootstrap does not know.
    here: Option<bool>,
    /// This rank's NIC.
    nic: NicSort,
    /// Whether this rank shares and maps memory at all.
    able: &'a Can,
    /// Whether this rank's GPU reaches the memory of the other one's; `None` before it is named.
    reaches: Option<&'a Can>,
    /// The other rank's answer.
    answer: Option<&'a Answer>,
}

/// The queue pairs that reach another rank, as their path: those of the NIC or those of TCP; and the
/// reason. A rank of an unknown host counts as one of this host. `None`: its NIC has to be known.
fn queues(facts: Facts<'_>) -> Option<(Path, &'static str)> {
    use NicSort::{Absent, Physical, Virtual};
    let far = facts.here == Some(false);
    Some(match (facts.nic, facts.answer.map(|answer| answer.nic)) {
        (Absent, _) => (Path::Tcp, "this rank has no NIC"),
        (Virtual, _) if far => (
            Path::Tcp,
            "the NIC of this rank is virtual and reaches no other host",
        ),
        (_, None) => return None,
        (_, Some(Absent)) => (Path::Tcp, "the other rank has no NIC"),
        (Physical, Some(Physical)) => (Path::Nic, "both ranks have a NIC"),
        (Virtual, Some(Virtual)) => (Path::Nic, "both ranks have a virtual NIC"),
        (Physical, Some(Virtual)) | (Virtual, Some(Physical)) => (
            Path::Tcp,
            "one of the two NICs is virtual and reaches virtual NICs of its host only",
        ),
    })
}

/// The path to another rank. `None`: the facts do not decide yet.
fn choose(choice: PathChoice, facts: Facts<'_>) -> Option<Reach> {
    let by = |queues, why: Cow<'static, str>| {
        let chosen = (queues, why);
        Some(Reach { chosen, queues })
    };
    let mapped = |queues, why: &'static str| {
        let chosen = (Path::Ipc, why.into());
        Some(Reach { chosen, queues })
    };
    let own = own_queues(facts.nic);
    match (choice, facts.here, own) {
        (PathChoice::Tcp, ..) => {
            return by(Path::Tcp, "MP_PATH or Builder::path selects TCP".into());
        }
        (PathChoice::Nic, _, Path::Tcp) => {
            let why = "GDS_PROVIDER or Builder::device selects TCP in place of a NIC";
            return by(own, why.into());
        }
        (PathChoice::Nic, ..) => return by(own, "MP_PATH or Builder::path selects the NIC".into()),
        (PathChoice::Ipc, Some(true), _) => {
            let why = "a rank of this host, and MP_PATH or Builder::path selects mapped memory";
            return mapped(own, why);
        }
        (PathChoice::Ipc | PathChoice::Auto, ..) => {}
    }
    let (queues, why) = queues(facts)?;
    let cannot = match (facts.here, facts.able, facts.reaches, facts.answer) {
        (None, ..) => "the bootstrap does not know the hosts of the ranks".into(),
        (Some(false), ..) => "a rank of another host".into(),
        (_, Err(why), ..) => format!("this rank maps no memory of its host: {why}"),
        (.., Some(Err(why)), _) => format!("the GPUs cannot reach each other: {why}"),
        (.., Some(Answer { can: Err(why), .. })) => {
            format!("the other rank cannot map this rank's memory: {why}")
        }
        (_, Ok(()), Some(Ok(())), Some(Answer { can: Ok(()), .. })) => {
            let why = "a rank of this host whose GPU memory this rank maps, as it maps this rank's";
            return mapped(queues, why);
        }
        _ => return None,
    };
    by(queues, format!("{cannot}; {why}").into())
}

/// The path of the queue pairs of a rank with such a NIC.
pub(super) fn own_queues(nic: NicSort) -> Path {
    match nic {
        NicSort::Absent => Path::Tcp,
        NicSort::Virtual | NicSort::Physical => Path::Nic,
    }
}

/// The paths to all ranks, each chosen once.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    /// This rank.
    pub me: u32,
    choice: PathChoice,
    nic: NicSort,
    /// Whether this rank shares and maps memory at all.
    able: Arc<Can>,
    /// By rank: whether it is of this host.
    here: Arc<[Option<bool>]>,
    reached: Arc<[OnceLock<Reach>]>,
}

impl Choices {
    /// The choices that need no other rank. `here`: by rank, whether it is of the host of rank `me`;
    /// `None`: not known. `nic`: the NIC of this rank.
    pub fn new(
        me: u32,
        choice: PathChoice,
        here: Vec<Option<bool>>,
        able: Can,
        nic: NicSort,
    ) -> Choices {
        let own = Reach {
            chosen: (
                Path::Local,
                "the rank itself: its memory is copied, by no NIC".into(),
            ),
            queues: own_queues(nic),
        };
        let choices = Choices {
            me,
            choice,
            nic,
            reached: here.iter().map(|_| OnceLock::new()).collect(),
            here: here.into(),
            able: Arc::new(able),
        };
        if let Some(cell) = choices.reached.get(me as usize) {
            // It is empty: it was made just now.
            let _ = cell.set(own);
        }
        for rank in 0..choices.here.len() as u32 {
            choices.settle(rank, None, None);
        }
        choices
    }

    /// The choices of a rank with a virtual NIC, which maps memory.
    #[cfg(test)]
    pub fn for_test(me: u32, choice: PathChoice, here: Vec<Option<bool>>) -> Choices {
        Choices::new(me, choice, here, Ok(()), NicSort::Virtual)
    }

    fn reach(&self, rank: u32) -> Option<&Reach> {
        self.reached.get(rank as usize)?.get()
    }

    /// The path to `rank`, once it is chosen.
    #[inline]
    pub fn of(&self, rank: u32) -> Option<&Chosen> {
        self.reach(rank).map(|reach| &reach.chosen)
    }

    /// The path of the queue pairs to `rank`: before it is chosen, of those of this rank's device.
    #[inline]
    pub fn queues(&self, rank: u32) -> Path {
        let own = || own_queues(self.nic);
        self.reach(rank).map_or_else(own, |reach| reach.queues)
    }

    /// Whether `rank` is another rank of this host.
    pub fn is_near(&self, rank: u32) -> bool {
        rank != self.me && self.here.get(rank as usize) == Some(&Some(true))
    }

    /// Whether the path to a rank is or may become [`Path::Ipc`].
    pub fn may_map(&self) -> bool {
        let may = self.choice == PathChoice::Auto && self.able.is_ok();
        (0..self.here.len() as u32).any(|rank| match self.of(rank) {
            Some((path, _)) => *path == Path::Ipc,
            None => may && self.is_near(rank),
        })
    }

    /// Whether the path to a rank of another host, or of an unknown one, is or may become
    /// [`Path::Tcp`]; `chosen`: is.
    pub fn may_use_tcp(&self, chosen: bool) -> bool {
        (0..self.here.len() as u32).any(|rank| match self.of(rank) {
            Some((path, _)) => *path == Path::Tcp,
            None => !chosen && !self.is_near(rank),
        })
    }

    /// Chooses the path to `rank` if these facts decide it. Returns it if it is new.
    pub fn settle(
        &self,
        rank: u32,
        reaches: Option<&Can>,
        answer: Option<&Answer>,
    ) -> Option<&Chosen> {
        let cell = self.reached.get(rank as usize)?;
        let facts = Facts {
            here: self.here[rank as usize],
            nic: self.nic,
            able: &self.able,
            reaches,
            answer,
        };
        let reach = choose(self.choice, facts)?;
        cell.set(reach).is_ok().then(|| self.of(rank))?
    }

    /// This rank's answer to `rank`, whose GPU it reaches or not.
    pub fn answer(&self, rank: u32, reaches: impl FnOnce() -> Can) -> Answer {
        let can = match self.choice {
            PathChoice::Nic => Err("its MP_PATH or Builder::path selects the NIC".to_owned()),
            PathChoice::Tcp => Err("its MP_PATH or Builder::path selects TCP".to_owned()),
            _ if !self.is_near(rank) => Err("it knows of no common host".to_owned()),
            PathChoice::Ipc => {
                Err("its MP_PATH or Builder::path selects mapped memory without a question".into())
            }
            PathChoice::Auto => self.able.as_ref().clone().and_then(|()| reaches()),
        };
        Answer { can, nic: self.nic }
    }

    /// The answer that this rank sends to `rank` unasked, because it has chosen without a question.
    pub fn unasked(&self, rank: u32) -> Option<Answer> {
        let takes_part = match self.choice {
            PathChoice::Auto => rank != self.me,
            PathChoice::Ipc => rank != self.me && !self.is_near(rank),
            PathChoice::Nic | PathChoice::Tcp => false,
        };
        takes_part.then(|| self.answer(rank, || Err("it was not asked".to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use NicSort::{Absent, Physical, Virtual};
    use PathChoice::{Auto, Ipc, Nic, Tcp};

    const SORTS: [NicSort; 3] = [Absent, Virtual, Physical];
    const PLACES: [Option<bool>; 3] = [Some(true), Some(false), None];

    fn can(yes: bool) -> Can {
        yes.then_some(()).ok_or_else(|| "it is so".to_owned())
    }

    /// The choice of a rank that maps memory if `able`, and what the other rank has said so far.
    fn chosen(
        choice: PathChoice,
        here: Option<bool>,
        nic: NicSort,
        [able, reaches, theirs]: [Option<bool>; 3],
        other: NicSort,
    ) -> Option<Reach> {
        let able = can(able.unwrap());
        let reaches = reaches.map(can);
        let answer = theirs.map(|yes| Answer {
            can: can(yes),
            nic: other,
        });
        let facts = Facts {
            here,
            nic,
            able: &able,
            reaches: reaches.as_ref(),
            answer: answer.as_ref(),
        };
        choose(choice, facts)
    }

    #[test]
    fn path_of_a_rank_of_this_host_follows_from_choice_and_facts() {
        let (yes, no) = (Some(true), Some(false));
        let far = "reaches virtual NICs of its host only";
        let rows = [
            (
                Nic,
                [yes, None, None],
                [Virtual; 2],
                Path::Nic,
                "selects the NIC",
            ),
            (
                Nic,
                [yes, None, None],
                [Absent; 2],
                Path::Tcp,
                "GDS_PROVIDER",
            ),
            (
                Tcp,
                [yes, None, None],
                [Physical; 2],
                Path::Tcp,
                "selects TCP",
            ),
            (
                Ipc,
                [yes, None, None],
                [Virtual; 2],
                Path::Ipc,
                "selects mapped",
            ),
            // The first message reports the error.
            (
                Ipc,
                [no, no, no],
                [Virtual; 2],
                Path::Ipc,
                "selects mapped memory",
            ),
            (
                Auto,
                [no, None, yes],
                [Virtual; 2],
                Path::Nic,
                "of its host: it is so",
            ),
            (
                Auto,
                [no, None, no],
                [Physical; 2],
                Path::Nic,
                "of its host: it is so; both",
            ),
            (
                Auto,
                [no, None, None],
                [Absent; 2],
                Path::Tcp,
                "it is so; this rank has no NIC",
            ),
            (
                Auto,
                [no, None, no],
                [Virtual, Absent],
                Path::Tcp,
                "the other rank has no NIC",
            ),
            (Auto, [no, None, no], [Virtual, Physical], Path::Tcp, far),
            (
                Auto,
                [yes, no, no],
                [Virtual; 2],
                Path::Nic,
                "each other: it is so",
            ),
            (Auto, [yes, None, no], [Physical, Virtual], Path::Tcp, far),
            (
                Auto,
                [yes, yes, no],
                [Virtual; 2],
                Path::Nic,
                "this rank's memory: it is so",
            ),
            (
                Auto,
                [yes, yes, yes],
                [Virtual; 2],
                Path::Ipc,
                "whose GPU memory this rank maps",
            ),
            (
                Auto,
                [yes, yes, yes],
                [Absent; 2],
                Path::Ipc,
                "whose GPU memory this rank maps",
            ),
        ];
        for (choice, facts, [nic, other], path, text) in rows {
            let row = format!("{choice:?} {facts:?} {nic:?} {other:?}");
            let Reach { chosen, queues } = chosen(choice, yes, nic, facts, other).expect(&row);
            assert_eq!(chosen.0, path, "{row}");
            assert!(chosen.1.contains(text), "{row}: {}", chosen.1);
            assert!(path == Path::Ipc || queues == path, "{row}: {queues:?}");
        }
        for facts in [
            [no, None, None],
            [yes, None, None],
            [yes, yes, None],
            [yes, None, yes],
        ] {
            assert!(
                chosen(Auto, yes, Virtual, facts, Virtual).is_none(),
                "{facts:?}"
            );
        }
    }

    #[test]
    fn nics_decide_the_path_to_a_rank_of_another_or_an_unknown_host() {
        let yes = Some(true);
        for choice in [Auto, Ipc] {
            for (nic, other) in SORTS.iter().flat_map(|a| SORTS.map(|b| (*a, b))) {
                for here in [Some(false), None] {
                    let row = format!("{choice:?} {nic:?} {other:?} {here:?}");
                    let reach = chosen(choice, here, nic, [yes, None, yes], other).expect(&row);
                    let same = nic == other && nic != Absent;
                    let far = nic == Virtual && here == Some(false);
                    let path = [Path::Tcp, Path::Nic][usize::from(same && !far)];
                    assert_eq!((reach.chosen.0, reach.queues), (path, path), "{row}");
                    // Only a rank whose NIC may reach the other one has to know it.
                    let alone = chosen(choice, here, nic, [yes, None, None], other);
                    assert_eq!(alone.is_some(), nic == Absent || far, "{row}");
                }
            }
        }
    }

    /// Whatever each of two ranks can and has, and whichever answer arrives first, both choose the
    /// same.
    #[test]
    fn two_ranks_choose_the_same_path() {
        let ranks = || SORTS.iter().flat_map(|nic| [(*nic, true), (*nic, false)]);
        for (here, a, b) in PLACES
            .iter()
            .flat_map(|here| ranks().map(move |a| (here, a)))
            .flat_map(|(here, a)| ranks().map(move |b| (here, a, b)))
        {
            let row = format!("{here:?} {a:?} {b:?}");
            let of = |me, nic| Choices::new(me, Auto, vec![*here; 2], Ok(()), nic);
            let (zero, one) = (of(0, a.0), of(1, b.0));
            let answers = [zero.answer(1, || can(a.1)), one.answer(0, || can(b.1))];
            let can = |rank: usize| Some(&answers[rank].can);
            // The first rank has both answers at once, the second one hears the answer first.
            zero.settle(1, can(0), Some(&answers[1]));
            one.settle(0, None, Some(&answers[0]));
            one.settle(0, can(1), Some(&answers[0]));
            let (to_one, to_zero) = (zero.of(1).unwrap().0, one.of(0).unwrap().0);
            assert_eq!((to_one, zero.queues(1)), (to_zero, one.queues(0)), "{row}");
            let maps = *here == Some(true) && a.1 && b.1;
            assert_eq!(to_one == Path::Ipc, maps, "{row}");
            assert_eq!(
                zero.settle(1, can(0), Some(&answers[1])),
                None,
                "it is chosen once"
            );
        }
    }

    #[test]
    fn rank_that_selects_a_path_answers_with_its_name_and_its_nic() {
        let here = vec![Some(true), Some(true), Some(false), None];
        let of = |choice| Choices::new(0, choice, here.clone(), Ok(()), Virtual);
        for (choice, text) in [(Nic, "the NIC"), (Tcp, "TCP"), (Ipc, "mapped memory")] {
            let answer = of(choice).answer(1, || Ok(()));
            let why = answer.can.unwrap_err();
            assert!(why.contains("MP_PATH") && why.contains(text), "{why}");
            assert_eq!(answer.nic, Virtual);
        }
        let unable = Choices::new(0, Auto, here.clone(), can(false), Virtual);
        assert_eq!(unable.answer(1, || Ok(())).can, can(false));
        assert!(!unable.may_map() && of(Auto).may_map() && of(Ipc).may_map());
        assert!(of(Auto).answer(1, || Ok(())).can.is_ok());
        for rank in [2, 3] {
            assert!(of(Auto).answer(rank, || Ok(())).can.is_err());
        }
        let asks = |choice| [0, 1, 2].map(|rank| of(choice).unasked(rank).is_none());
        assert_eq!(asks(Auto), [true, false, false]);
        assert_eq!(asks(Ipc), [true, true, false]);
        assert_eq!([asks(Nic), asks(Tcp)], [[true; 3]; 2]);
        assert_eq!(of(Auto).of(0).unwrap().0, Path::Local);
        // Its NIC is virtual, and rank 2 is of another host.
        let uses = |choice| [true, false].map(|chosen| of(choice).may_use_tcp(chosen));
        assert_eq!(
            [Auto, Ipc, Nic].map(uses),
            [[true; 2], [true; 2], [false; 2]]
        );
    }
}
