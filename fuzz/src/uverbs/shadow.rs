//! What a process knows to exist, and what uses what: as long as it has only sent commands that
//! it understands itself.

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

/// Names an object.
pub type Name = (Kind, u32);

/// What a command does if it is carried out.
#[derive(Clone, Debug, Default)]
pub enum Effect {
    /// Nothing that lasts.
    #[default]
    None,
    /// Makes an object, whose handle is the first word of the answer, that uses others.
    Makes(Kind, Vec<Name>, Option<Queue>),
    /// Does away with one.
    Ends(Name),
    /// Something that the shadow does not follow.
    Unknown,
}

/// Where a queue pair's rings lie.
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
    /// Something happened that it does not know.
    blind: bool,
}

impl Shadow {
    /// A command with this effect was carried out, and answered so.
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
                assert!(self.blind || !twice, "{name:?} was given twice");
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
                    assert!(self.blind, "{name:?} is gone and {:?} uses it", user.name);
                }
                let known = self.live.iter().any(|live| live.name == name);
                assert!(self.blind || known, "{name:?} never was");
                self.live.retain(|live| live.name != name);
            }
        }
    }

    /// A command with this effect was refused because something is in use.
    pub fn busy(&self, effect: &Effect) {
        if let Effect::Ends(name) = effect {
            let used = self.live.iter().any(|live| live.uses.contains(name));
            assert!(self.blind || used, "nothing uses {name:?}");
        }
    }

    /// The handle of an object of a kind, mostly.
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
