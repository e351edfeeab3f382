//! The objects that must exist in a process, and their dependencies, as long as the process has
//! sent only commands that the shadow can interpret.

use std::cell::Cell;

use crate::input::Input;

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Pd,
    Mr,
    Cq,
    Qp,
    Srq,
    Ah,
}

/// Identifies an object.
pub type Name = (Kind, u32);

/// The effect of an accepted command.
#[derive(Clone, Debug, Default)]
pub enum Effect {
    /// No lasting effect.
    #[default]
    None,
    /// Creates an object, whose handle is the first word of the answer, and which uses others.
    Makes(Kind, Vec<Name>, Option<Queue>),
    /// Destroys an object.
    Ends(Name),
    /// An effect that the shadow does not track.
    Unknown,
}

/// The addresses of a queue pair's rings.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    pub qpn: u32,
    pub sq: u64,
    pub rq: u64,
    pub sends: u64,
    pub record: u64,
    pub posted: Cell<u16>,
}

struct Live {
    name: Name,
    uses: Vec<Name>,
    queue: Option<Queue>,
    /// A region's key.
    key: Option<u32>,
}

#[derive(Default)]
pub struct Shadow {
    live: Vec<Live>,
    /// An untracked effect occurred.
    blind: bool,
}

impl Shadow {
    /// Records an accepted command with this effect, and its answer.
    pub fn done(&mut self, effect: Effect, words: &[u32]) {
        match effect {
            Effect::None => {}
            Effect::Unknown => self.blind = true,
            Effect::Makes(kind, uses, queue) => {
                let Some(&handle) = words.first() else {
                    return;
                };
                let name = (kind, handle);
                let twice = self.live.iter().any(|live| live.name == name);
                assert!(self.blind || !twice, "{name:?} was created twice");
                let queue = queue.map(|queue| Queue {
                    qpn: words.get(1).copied().unwrap_or(0),
                    ..queue
                });
                let key = (kind == Kind::Mr).then(|| words.get(1).copied().unwrap_or(0));
                self.live.push(Live {
                    name,
                    uses,
                    queue,
                    key,
                });
            }
            Effect::Ends(name) => {
                let user = self.live.iter().find(|live| live.uses.contains(&name));
                if let Some(user) = user {
                    assert!(
                        self.blind,
                        "{name:?} was destroyed, but {:?} uses it",
                        user.name
                    );
                }
                let known = self.live.iter().any(|live| live.name == name);
                assert!(self.blind || known, "{name:?} never existed");
                self.live.retain(|live| live.name != name);
            }
        }
    }

    /// Checks a command with this effect that was refused because an object is in use.
    pub fn busy(&self, effect: &Effect) {
        if let Effect::Ends(name) = effect {
            let used = self.live.iter().any(|live| live.uses.contains(name));
            assert!(self.blind || used, "nothing uses {name:?}");
        }
    }

    /// A handle, mostly of an object of this kind.
    pub fn handle(&self, kind: Kind, input: &mut Input<'_>) -> Option<u32> {
        let which = input.byte();
        let of: Vec<u32> = self.all(kind).collect();
        match which {
            0xf0.. => None,
            _ if of.is_empty() => None,
            n => Some(of[usize::from(n) % of.len()]),
        }
    }

    fn all(&self, kind: Kind) -> impl Iterator<Item = u32> + '_ {
        let of = move |live: &&Live| live.name.0 == kind;
        self.live.iter().filter(of).map(|live| live.name.1)
    }

    /// A queue pair with its rings.
    pub fn queue(&self, input: &mut Input<'_>) -> Option<&Queue> {
        let all: Vec<&Queue> = self.live.iter().filter_map(|l| l.queue.as_ref()).collect();
        let which = usize::from(input.byte());
        (!all.is_empty()).then(|| all[which % all.len()])
    }

    /// The number of some queue pair.
    pub fn qpn(&self, input: &mut Input<'_>) -> u32 {
        self.queue(input).map_or(0, |queue| queue.qpn)
    }

    /// The key of some region.
    pub fn key(&self, input: &mut Input<'_>) -> u32 {
        let all: Vec<u32> = self.live.iter().filter_map(|l| l.key).collect();
        let which = usize::from(input.byte());
        if all.is_empty() {
            0
        } else {
            all[which % all.len()]
        }
    }
}
