//! The seeded scheduler of the simulation: it selects the next step and advances the clock. It has
//! only the numbers and names of actors (machines and ranks), and runs none itself.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use fastrand::Rng;
use gds_step::{Step, Time};

use crate::error::Waiting;
use crate::trace::Trace;
use crate::when::When;

/// The number of consecutive idle rounds of all actors before the clock jumps. It is more than one
/// because a rank may do some work inside the condition of its wait.
const CALM_TO_JUMP: u32 = 2;
/// The number of consecutive idle rounds before the simulation is stuck.
const CALM_TO_GIVE_UP: u32 = 4;

/// A change of an actor from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Freeze,
    Unfreeze,
    Kill,
}

/// The next action of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    /// Step this actor.
    Actor { id: u64, is_rank: bool },
    /// All actors were idle; the clock may have jumped. Call again.
    Again,
    /// All actors are idle, and none waits for a time.
    Stuck,
    /// The limit of turns or of time is reached.
    Limit,
}

#[derive(Debug)]
struct Actor {
    id: u64,
    name: String,
    is_rank: bool,
    frozen: bool,
    /// The last answer; `None` before the first.
    answer: Option<Step>,
    /// The round of the last answer.
    round: u64,
    /// The turn in which it was last selected.
    turn: u64,
}

/// The current preference of the scheduler. A new one is drawn from time to time.
#[derive(Clone, Copy, Debug)]
enum Mood {
    /// All actors with equal probability.
    Even,
    /// Never this actor, as long as another one has work.
    Starve(u64),
    /// Nearly always this actor, as long as it has work.
    Favour(u64),
}

#[derive(Debug)]
struct Event {
    when: When,
    name: String,
    action: Action,
}

/// The limits and the pace of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub step_ns: RangeInclusive<u64>,
    pub turns: u64,
    pub time: Time,
}

#[derive(Debug)]
pub(super) struct Scheduler {
    rng: Rng,
    limits: Limits,
    clock: Time,
    turn: u64,
    /// Ascending ids.
    actors: Vec<Actor>,
    /// A round ends with progress, or when all actors have answered that they are idle.
    round: u64,
    /// The number of consecutive rounds without progress.
    calm: u32,
    mood: Mood,
    mood_ends: u64,
    /// Drawn once per simulation: the chance (of 256) that a mood is even, the longest mood as a
    /// power of two, the longest starvation of an actor, the chance (of 256) of a needless step.
    even: u8,
    longest_mood: u32,
    starvation: u64,
    needless: u8,
    events: Vec<Event>,
    frozen: BTreeSet<String>,
    killed: BTreeSet<String>,
    pub(super) trace: Trace,
}

impl Scheduler {
    pub(super) fn new(seed: u64, limits: Limits) -> Scheduler {
        let mut rng = Rng::with_seed(seed);
        Scheduler {
            // One seed in four is fair throughout, the others to varying degrees.
            even: if rng.u8(..) < 64 { 255 } else { rng.u8(..) },
            longest_mood: rng.u32(3..=11),
            starvation: 1 << rng.u32(8..=13),
            needless: rng.u8(2..=32),
            rng,
            limits,
            clock: Time::ZERO,
            turn: 0,
            actors: Vec::new(),
            round: 0,
            calm: 0,
            mood: Mood::Even,
            mood_ends: 0,
            events: Vec::new(),
            frozen: BTreeSet::new(),
            killed: BTreeSet::new(),
            trace: Trace::default(),
        }
    }

    pub(super) fn now(&self) -> Time {
        self.clock
    }

    pub(super) fn turn(&self) -> u64 {
        self.turn
    }

    /// A rank reads the clock, which takes some virtual time. A loop that polls the clock alone
    /// therefore ends.
    pub(super) fn look_at_clock(&mut self) -> Time {
        self.tick();
        self.clock
    }

    pub(super) fn coin(&mut self) -> bool {
        self.rng.bool()
    }

    fn tick(&mut self) {
        let ns = self.rng.u64(self.limits.step_ns.clone());
        self.clock = self.clock + std::time::Duration::from_nanos(ns);
    }

    pub(super) fn add(&mut self, id: u64, name: String, is_rank: bool) {
        let frozen = self.frozen.contains(&name);
        self.trace.note(self.turn, self.clock, &name, "comes");
        self.actors.push(Actor {
            id,
            name,
            is_rank,
            frozen,
            answer: None,
            // It belongs to no round: it has work until it answers otherwise.
            round: u64::MAX,
            turn: self.turn,
        });
        self.nudge();
    }

    pub(super) fn remove(&mut self, id: u64) {
        if let Some(i) = self.actors.iter().position(|a| a.id == id) {
            let actor = self.actors.remove(i);
            self.trace.note(self.turn, self.clock, &actor.name, "goes");
            self.trace.fold(&[self.clock.as_nanos(), id, u64::MAX]);
            self.nudge();
        }
    }

    pub(super) fn name(&self, id: u64) -> String {
        let actor = self.actors.iter().find(|a| a.id == id);
        actor.map(|a| a.name.clone()).unwrap_or_default()
    }

    /// A change happened outside a step: all actors must be stepped again.
    pub(super) fn nudge(&mut self) {
        self.round += 1;
        self.calm = 0;
    }

    /// Records the answer of the selected actor.
    pub(super) fn answered(&mut self, id: u64, answer: Step) {
        let code = match answer {
            Step::Progress => 1,
            Step::IdleUntil(None) => 2,
            Step::IdleUntil(Some(t)) => 3 ^ t.as_nanos() << 2,
        };
        self.trace.fold(&[self.clock.as_nanos(), id, code]);
        if let Some(actor) = self.actors.iter_mut().find(|a| a.id == id) {
            actor.answer = Some(answer);
            actor.round = self.round;
            self.trace
                .answer(self.turn, self.clock, &actor.name, answer);
        }
        if answer == Step::Progress {
            self.nudge();
        }
    }

    /// Whether there is a rank that is not frozen for good.
    pub(super) fn ranks_left(&self) -> bool {
        let hope = |a: &Actor| {
            let name = &a.name;
            let thaw = |e: &Event| e.action == Action::Unfreeze && e.name == *name;
            !self.killed.contains(name) && self.events.iter().any(thaw)
        };
        self.actors
            .iter()
            .any(|a| a.is_rank && (!a.frozen || hope(a)))
    }

    /// All actors with their last answers.
    pub(super) fn waiting(&self) -> Vec<Waiting> {
        let of = |a: &Actor| Waiting {
            name: a.name.clone(),
            is_rank: a.is_rank,
            frozen: a.frozen,
            last: a.answer,
        };
        self.actors.iter().map(of).collect()
    }

    pub(super) fn at(&mut self, when: When, name: &str, action: Action) {
        self.events.push(Event {
            when,
            name: name.to_owned(),
            action,
        });
    }

    pub(super) fn apply(&mut self, name: &str, action: Action) {
        let (frozen, what) = match action {
            Action::Freeze => (true, "is frozen"),
            Action::Kill => (true, "is killed"),
            Action::Unfreeze if self.killed.contains(name) => return,
            Action::Unfreeze => (false, "is unfrozen"),
        };
        if action == Action::Kill {
            self.killed.insert(name.to_owned());
        }
        if frozen {
            self.frozen.insert(name.to_owned());
        } else {
            self.frozen.remove(name);
        }
        for actor in self.actors.iter_mut().filter(|a| a.name == name) {
            actor.frozen = frozen;
            actor.turn = self.turn;
        }
        self.trace.note(self.turn, self.clock, name, what);
        self.nudge();
    }

    /// Selects the next step. Without `ranks`, selects among machines only. `alarm` is an
    /// additional time at which to stop if all actors are idle.
    pub(super) fn pick(&mut self, ranks: bool, alarm: Option<Time>) -> Pick {
        self.fire_events();
        if self.turn >= self.limits.turns || self.clock > self.limits.time {
            return Pick::Limit;
        }
        if let Some(i) = self.choose(ranks) {
            self.turn += 1;
            self.tick();
            let actor = &mut self.actors[i];
            actor.turn = self.turn;
            return Pick::Actor {
                id: actor.id,
                is_rank: actor.is_rank,
            };
        }
        self.round += 1;
        self.calm += 1;
        if self.calm >= CALM_TO_JUMP && self.jump(ranks, alarm) {
            self.calm = 0;
            return Pick::Again;
        }
        if self.calm < CALM_TO_GIVE_UP {
            Pick::Again
        } else {
            Pick::Stuck
        }
    }

    fn takes_part(&self, a: &Actor, ranks: bool) -> bool {
        !a.frozen && (ranks || !a.is_rank)
    }

    /// Whether an actor may have work.
    fn has_work(&self, a: &Actor) -> bool {
        let waits = match a.answer {
            Some(Step::IdleUntil(t)) => t.is_none_or(|t| t > self.clock),
            _ => false,
        };
        a.round != self.round || !waits
    }

    /// Moves the clock to the earliest time that an actor waits for.
    fn jump(&mut self, ranks: bool, alarm: Option<Time>) -> bool {
        let deadlines = self.actors.iter().filter(|a| self.takes_part(a, ranks));
        let deadlines = deadlines.filter_map(|a| match a.answer {
            Some(Step::IdleUntil(t)) => t,
            _ => None,
        });
        // A future freeze enables no actor; a future unfreeze may.
        let thaws = || self.events.iter().filter(|e| e.action == Action::Unfreeze);
        let times = thaws().filter_map(|e| match e.when {
            When::Time(t) => Some(t),
            When::Turn(_) => None,
        });
        let time = deadlines
            .chain(times)
            .chain(alarm)
            .filter(|t| *t != Time::NEVER)
            .min();
        let turn = thaws().filter_map(|e| match e.when {
            When::Turn(n) => Some(n),
            When::Time(_) => None,
        });
        match (time, turn.min()) {
            (Some(t), _) => self.clock = self.clock.max(t),
            (None, Some(n)) => self.turn = self.turn.max(n),
            (None, None) => return false,
        }
        self.trace.note(self.turn, self.clock, "clock", "jumps");
        self.trace.fold(&[self.clock.as_nanos(), self.turn]);
        true
    }

    fn fire_events(&mut self) {
        while let Some(i) = self.events.iter().position(|e| match e.when {
            When::Time(t) => t <= self.clock,
            When::Turn(n) => n <= self.turn,
        }) {
            let Event { name, action, .. } = self.events.remove(i);
            self.apply(&name, action);
        }
    }

    /// The index of the next actor; `None` if no actor has work.
    fn choose(&mut self, ranks: bool) -> Option<usize> {
        let busy = self.count(ranks, |s, a| s.has_work(a));
        if busy == 0 {
            return None;
        }
        // Starvation is bounded.
        let part = self
            .actors
            .iter()
            .enumerate()
            .filter(|(_, a)| self.takes_part(a, ranks));
        let (oldest, actor) = part.min_by_key(|(_, a)| a.turn)?;
        if self.turn - actor.turn > self.starvation {
            return Some(oldest);
        }
        if self.turn >= self.mood_ends {
            self.change_mood(ranks);
        }
        // Real drivers poll; an additional step must be harmless.
        if self.rng.u8(..) < self.needless {
            return self.nth(ranks, |_, _| true);
        }
        match self.mood {
            Mood::Even => {}
            Mood::Starve(id) => {
                let other = self.nth(ranks, |s, a| s.has_work(a) && a.id != id);
                if other.is_some() {
                    return other;
                }
            }
            Mood::Favour(id) => {
                let favoured = self.nth(ranks, |s, a| s.has_work(a) && a.id == id);
                if favoured.is_some() && self.rng.u8(..) >= 16 {
                    return favoured;
                }
            }
        }
        self.nth(ranks, |s, a| s.has_work(a))
    }

    /// A random actor among those that take part and pass the test.
    fn nth(&mut self, ranks: bool, test: impl Fn(&Self, &Actor) -> bool) -> Option<usize> {
        let n = self.count(ranks, &test);
        if n == 0 {
            return None;
        }
        let k = self.rng.usize(..n);
        let passes = |a: &Actor| self.takes_part(a, ranks) && test(self, a);
        let mut passing = self.actors.iter().enumerate().filter(|(_, a)| passes(a));
        passing.nth(k).map(|(i, _)| i)
    }

    fn count(&self, ranks: bool, test: impl Fn(&Self, &Actor) -> bool) -> usize {
        let passes = |a: &&Actor| self.takes_part(a, ranks) && test(self, a);
        self.actors.iter().filter(passes).count()
    }

    fn change_mood(&mut self, ranks: bool) {
        let someone = self.nth(ranks, |_, _| true).map(|i| self.actors[i].id);
        let even = self.rng.u8(..) < self.even;
        let coin = self.rng.bool();
        self.mood = match (self.mood, someone) {
            // An actor that starved may catch up in one burst.
            (Mood::Starve(id), _) if coin => Mood::Favour(id),
            (_, Some(id)) if !even && coin => Mood::Starve(id),
            (_, Some(id)) if !even => Mood::Favour(id),
            _ => Mood::Even,
        };
        // Lengths are spread over powers of two: mostly short, in rare cases long.
        let power = self.rng.u32(0..=self.longest_mood);
        self.mood_ends = self.turn + self.rng.u64(1..=1 << power);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduler(seed: u64) -> Scheduler {
        let limits = Limits {
            step_ns: 1..=100,
            turns: u64::MAX,
            time: Time::NEVER,
        };
        Scheduler::new(seed, limits)
    }

    /// The longest time that each of `n` always busy actors went without a step, and the turns of
    /// each.
    fn starvation(seed: u64, n: u64, turns: u64) -> (u64, Vec<u64>) {
        let mut s = scheduler(seed);
        (0..n).for_each(|id| s.add(id, format!("m{id}"), false));
        let (mut last, mut had) = (vec![0; n as usize], vec![0; n as usize]);
        let mut longest = 0;
        for turn in 1..=turns {
            let Pick::Actor { id, .. } = s.pick(true, None) else {
                panic!("all are busy")
            };
            s.answered(id, Step::Progress);
            longest = longest.max(turn - last[id as usize]);
            (last[id as usize], had[id as usize]) = (turn, had[id as usize] + 1);
        }
        (
            longest.max(last.iter().map(|l| turns - l).max().unwrap()),
            had,
        )
    }

    #[test]
    fn choice_is_unfair_but_starvation_is_bounded() {
        let mut worst = 0;
        for seed in 0..50 {
            let (longest, had) = starvation(seed, 5, 40_000);
            // At most 2^13 turns; five actors may reach it at the same time.
            assert!(longest <= (1 << 13) + 5, "seed {seed}: {longest}");
            assert!(had.iter().all(|h| *h > 0), "seed {seed}: {had:?}");
            worst = worst.max(longest);
        }
        // The choice is unfair: with five equal actors a gap of 300 has a chance of 10^-29.
        assert!(worst > 300, "{worst}");
    }

    #[test]
    fn starvation_is_bounded_in_the_longest_mood() {
        let mut s = scheduler(1);
        (0..3).for_each(|id| s.add(id, format!("m{id}"), false));
        (s.mood, s.mood_ends, s.needless) = (Mood::Starve(2), u64::MAX, 0);
        let mut had = [0; 3];
        for _ in 0..10 * s.starvation {
            let Pick::Actor { id, .. } = s.pick(true, None) else {
                panic!("all are busy")
            };
            s.answered(id, Step::Progress);
            had[id as usize] += 1;
        }
        assert!((9..=10).contains(&had[2]), "{had:?}");
    }

    #[test]
    fn clock_jumps_to_the_earliest_deadline_then_the_world_is_stuck() {
        let mut s = scheduler(7);
        s.add(0, "late".into(), false);
        s.add(1, "early".into(), false);
        let deadlines = [Time::from_nanos(9_000_000), Time::from_nanos(5_000_000)];
        let mut seen = Vec::new();
        loop {
            match s.pick(true, None) {
                Pick::Actor { id, .. } => {
                    let t = deadlines[id as usize];
                    let over = s.now() >= t;
                    if over && !seen.contains(&id) {
                        seen.push(id);
                        assert!(s.now() - t < std::time::Duration::from_micros(1));
                    }
                    s.answered(id, Step::IdleUntil((!over).then_some(t)));
                }
                Pick::Again => {}
                Pick::Stuck => break,
                Pick::Limit => panic!("no limit"),
            }
        }
        assert_eq!(seen, [1, 0]);
    }
}
