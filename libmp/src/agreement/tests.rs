//! Agreements under random orders of messages, crashes and detections.

use std::collections::VecDeque;

use fastrand::Rng;

use super::*;

/// A job: the rules of each rank, and the messages in flight.
struct Job {
    rng: Rng,
    ranks: Vec<Agreement>,
    /// By sender and receiver.
    wires: Vec<Vec<VecDeque<Note>>>,
    dead: Vec<bool>,
    /// By rank and rank: the first has detected that the second is dead.
    detected: Vec<Vec<bool>>,
}

impl Job {
    fn new(seed: u64, size: usize) -> Job {
        Job {
            rng: Rng::with_seed(seed),
            ranks: (0..size as u32)
                .map(|rank| Agreement::new(rank, size as u32))
                .collect(),
            wires: vec![vec![VecDeque::new(); size]; size],
            dead: vec![false; size],
            detected: vec![vec![false; size]; size],
        }
    }

    /// Steps a rank. A rank that `dies` does so between two of its messages.
    fn step(&mut self, rank: usize, dies: bool) {
        let step = self.ranks[rank].step();
        let size = self.ranks.len();
        let sends: Vec<(usize, &Note)> = (0..size)
            .flat_map(|to| step.notes.iter().map(move |note| (to, note)))
            .collect();
        let count = match dies {
            true => self.rng.usize(0..=sends.len()),
            false => sends.len(),
        };
        for (to, note) in &sends[..count] {
            self.wires[rank][*to].push_back((*note).clone());
        }
        self.dead[rank] |= dies;
    }

    /// Runs agreement `number` among the ranks that live, in which up to `deaths` die and up to
    /// `errors` times a rank counts a living one as lost. Returns the decision of each rank that
    /// lives and is not expelled.
    fn agree(
        &mut self,
        number: u64,
        mut deaths: usize,
        mut errors: usize,
    ) -> Vec<(usize, Decision)> {
        let size = self.ranks.len();
        let mut called = vec![false; size];
        for _ in 0..200_000 {
            let live = |job: &Job, rank: usize| !job.dead[rank];
            let open = |job: &Job, rank: usize| {
                let this = &job.ranks[rank];
                live(job, rank) && this.number <= number && this.expelled_by.is_none()
            };
            if !(0..size).any(|rank| open(self, rank)) {
                break;
            }
            let rank = self.rng.usize(0..size);
            if !live(self, rank) || self.ranks[rank].expelled_by.is_some() {
                continue;
            }
            let dies = deaths > 0 && self.rng.u8(0..40) == 0;
            deaths -= usize::from(dies);
            match self.rng.u8(0..4) {
                0 if !called[rank] => {
                    called[rank] = true;
                    assert_eq!(self.ranks[rank].call(rank as u64), number);
                }
                1 => {
                    let other = self.rng.usize(0..size);
                    // Messages that were sent before the death may arrive after the detection.
                    let detects = self.dead[other] && !self.detected[rank][other];
                    let errs = errors > 0 && other != rank && self.rng.u8(0..20) == 0;
                    errors -= usize::from(errs && !detects);
                    if detects || errs {
                        self.detected[rank][other] = true;
                        self.ranks[rank].lose(other as u32);
                    }
                }
                _ => {
                    let from = self.rng.usize(0..size);
                    if let Some(note) = self.wires[from][rank].pop_front() {
                        self.ranks[rank].receive(from as u32, note).unwrap();
                    }
                }
            }
            self.step(rank, dies);
        }
        let live: Vec<usize> = (0..size)
            .filter(|rank| !self.dead[*rank] && self.ranks[*rank].expelled_by.is_none())
            .collect();
        live.into_iter()
            .map(|rank| (rank, self.ranks[rank].take(number).expect("decided")))
            .collect()
    }
}

#[test]
fn survivors_decide_the_same_set_however_ranks_die() {
    for seed in 0..3000 {
        let mut job = Job::new(seed, 2 + seed as usize % 5);
        for number in 0..3 {
            let before = job.dead.clone();
            let decided = job.agree(number, seed as usize % 3, 0);
            let Some((_, first)) = decided.first() else {
                continue;
            };
            for (rank, decision) in &decided {
                assert_eq!(
                    decision, first,
                    "seed {seed}, rank {rank}, agreement {number}"
                );
            }
            for (rank, dead) in before.iter().enumerate() {
                let lost = first.lost.contains(&(rank as u32));
                assert!(
                    lost || !dead,
                    "seed {seed}: rank {rank} died before agreement {number}"
                );
                assert!(!lost || job.dead[rank], "seed {seed}: rank {rank} lives");
            }
            let greatest = decided.iter().map(|(rank, _)| *rank as u64).max().unwrap();
            assert!(first.value >= greatest, "seed {seed}: {first:?}");
            assert!(
                !first.lost.contains(&(first.value as u32)),
                "seed {seed}: {first:?}"
            );
        }
    }
}

/// Ranks count living ones as lost: two ranks that decide, and are in neither set, decide the same.
#[test]
fn ranks_that_count_each_other_as_living_decide_the_same_set() {
    let (mut pairs, mut split) = (0, 0);
    for seed in 0..6000 {
        let mut job = Job::new(seed, 2 + seed as usize % 5);
        for number in 0..3 {
            let decided = job.agree(number, seed as usize % 2, 1 + seed as usize % 3);
            for (x, mine) in &decided {
                for (y, theirs) in &decided {
                    if mine.lost.contains(&(*y as u32)) || theirs.lost.contains(&(*x as u32)) {
                        split += 1;
                        continue;
                    }
                    pairs += usize::from(x != y);
                    assert_eq!(
                        mine, theirs,
                        "seed {seed}, ranks {x} and {y}, agreement {number}"
                    );
                }
            }
        }
    }
    assert!(
        pairs > 10_000 && split > 10,
        "{pairs} pairs, {split} splits"
    );
}

fn note(number: u64, stage: Stage, lost: &[u32]) -> Note {
    Note {
        number,
        stage,
        value: 0,
        lost: lost.iter().copied().collect(),
    }
}

#[test]
fn a_decision_that_a_dead_rank_has_passed_on_is_taken_over() {
    let mut rank = Agreement::new(0, 4);
    assert_eq!(rank.call(7), 0);
    assert_eq!(
        rank.step().notes,
        [Note {
            value: 7,
            ..note(0, Stage::Called, &[])
        }]
    );
    // Rank 1 has decided without rank 3; rank 2 was complete.
    let decided = Note {
        value: 9,
        ..note(0, Stage::Decided, &[3])
    };
    rank.receive(2, note(0, Stage::Complete, &[3])).unwrap();
    rank.receive(1, decided.clone()).unwrap();
    assert_eq!(rank.step().notes, [decided]);
    let decision = Decision {
        lost: vec![3],
        value: 9,
    };
    assert_eq!(rank.take(1), None);
    assert_eq!(rank.call(1), 0, "no call has returned the decision");
    assert_eq!(rank.take(0), Some(decision));
    assert!(!rank.is_open() && !rank.is_asked());
}

#[test]
fn an_agreement_of_one_rank_ends_at_once() {
    let mut rank = Agreement::new(0, 1);
    for number in 0..3 {
        assert_eq!(rank.call(number + 5), number);
        rank.step();
        let decision = Decision {
            lost: vec![],
            value: number + 5,
        };
        assert_eq!(rank.take(number), Some(decision));
    }
}

#[test]
fn a_rank_that_others_gave_up_is_expelled_and_does_not_expel_them() {
    let mut rank = Agreement::new(0, 3);
    rank.lose(1);
    rank.spare(1); // rank 1 has given this rank up
    rank.call(0);
    assert_eq!(rank.step().notes, [note(0, Stage::Called, &[])]);
    rank.receive(1, note(0, Stage::Called, &[0])).unwrap();
    assert_eq!(rank.expelled_by(), Some(1));
    assert!(!rank.is_open());
    assert_eq!(rank.step().notes, [note(0, Stage::Called, &[0])]);
    assert!(rank.step().notes.is_empty());
    // The other ranks do not wait for it, whatever they have heard.
    let mut other = Agreement::new(2, 3);
    other.lose(1);
    other.call(0);
    other.receive(0, note(0, Stage::Called, &[0])).unwrap();
    assert_eq!(other.step().reported, [(0, 0)]);
    let alone = Decision {
        lost: vec![0, 1],
        value: 0,
    };
    assert_eq!(other.take(0), Some(alone));
}

#[test]
fn absent_ranks_are_named_and_the_first_value_counts() {
    let mut rank = Agreement::new(1, 3);
    rank.receive(0, note(0, Stage::Called, &[])).unwrap();
    assert!(rank.is_asked());
    rank.call(4);
    rank.step();
    assert!(!rank.is_asked());
    assert_eq!(rank.absent().collect::<Vec<_>>(), [2]);
    assert_eq!(rank.call(5), 0);
    rank.receive(2, note(0, Stage::Called, &[])).unwrap();
    assert_eq!(
        rank.step().notes,
        [Note {
            value: 4,
            ..note(0, Stage::Complete, &[])
        }]
    );
}

#[test]
fn notes_that_cannot_be_are_refused() {
    let mut rank = Agreement::new(0, 3);
    for bad in [
        note(1, Stage::Called, &[]),
        note(0, Stage::Decided, &[]),
        note(0, Stage::Called, &[3]),
    ] {
        let e = rank.receive(1, bad).unwrap_err();
        assert_eq!((e.kind(), e.rank()), (Kind::Protocol, Some(1)), "{e}");
    }
    // A lost rank is not listened to.
    rank.lose(2);
    rank.receive(2, note(5, Stage::Called, &[])).unwrap();
}

#[test]
fn a_rank_that_names_itself_again_and_again_takes_no_more_memory() {
    let mut rank = Agreement::new(0, 3);
    for _ in 0..100 {
        let (number, stage, value) = (0, Stage::Called, 0);
        let lost = [1].into_iter().collect();
        let note = Note {
            number,
            stage,
            value,
            lost,
        };
        rank.receive(1, note).unwrap();
        rank.step();
    }
    assert_eq!(rank.leaving, [1]);
}
