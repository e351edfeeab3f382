//! The links of one end of a fabric: the node and the state of each, and the order in which they
//! are received from.

use std::collections::VecDeque;

use super::ring::{Reader, Refused};
use super::{Budget, LinkError, LinkState, NodeId, PeerId, SendRefused, Sink};
use crate::frame::FrameError;

/// The part of a step's budget that one link may use before others get their turn.
const TURN: u32 = 32;

pub(super) struct Peer<E> {
    pub node: NodeId,
    pub state: LinkState,
    /// The rings, in the form of the fabric; the rings of a lost link are dropped.
    pub ends: E,
}

pub(super) struct Links<E> {
    /// The links, indexed by their [`PeerId`]s.
    pub peers: Vec<Peer<E>>,
    lost: VecDeque<PeerId>,
    /// The link that is received from next.
    turn: usize,
}

impl<E: Default> Links<E> {
    pub fn new() -> Links<E> {
        Links {
            peers: Vec::new(),
            lost: VecDeque::new(),
            turn: 0,
        }
    }

    /// The index of a node's link in `peers`.
    pub fn find(&self, node: NodeId) -> Option<usize> {
        self.peers.iter().position(|p| p.node == node)
    }

    /// As `find`, but makes a link if the node has none.
    pub fn slot(&mut self, node: NodeId) -> usize {
        self.find(node).unwrap_or_else(|| {
            self.peers.push(Peer {
                node,
                state: LinkState::Connecting,
                ends: E::default(),
            });
            self.peers.len() - 1
        })
    }

    pub fn lose(&mut self, i: usize, why: LinkError) {
        let peer = &mut self.peers[i];
        peer.ends = E::default();
        peer.state = LinkState::Lost(why);
        self.lost.push_back(PeerId(i as u32));
    }

    pub fn state(&self, peer: PeerId) -> LinkState {
        let state = self.peers.get(peer.0 as usize).map(|p| p.state.clone());
        state.unwrap_or(LinkState::Lost(LinkError::Closed))
    }

    pub fn lost(&mut self) -> Option<PeerId> {
        self.lost.pop_front()
    }

    /// The result for the sender of a frame on the link `i`, from the result of the write.
    #[inline]
    pub fn sent(&mut self, i: usize, written: Result<(), Refused>) -> Result<(), SendRefused> {
        written.map_err(|refused| {
            if let Refused::Garbage(e) = refused {
                self.lose(i, e.into());
            }
            refused.into()
        })
    }

    /// As [`Fabric::receive`](super::Fabric::receive); `inward` is the ring of received frames.
    pub fn receive(
        &mut self,
        mut budget: Budget,
        sink: Sink<'_>,
        inward: impl Fn(&mut E) -> Option<&mut Reader>,
    ) -> u32 {
        let (mut taken, n) = (0, self.peers.len());
        for k in 0..n {
            let i = (self.turn + k) % n;
            let Some(reader) = inward(&mut self.peers[i].ends) else {
                continue;
            };
            let (got, result) = drain(reader, PeerId(i as u32), &mut budget, sink);
            taken += got;
            if let Err(e) = result {
                self.lose(i, e.into());
            }
            if budget.frames == 0 || budget.bytes == 0 {
                break;
            }
        }
        self.turn = self.turn.wrapping_add(1);
        taken
    }
}

impl From<Refused> for SendRefused {
    fn from(refused: Refused) -> SendRefused {
        match refused {
            Refused::Full => SendRefused::Full,
            Refused::Unfilled => SendRefused::Unfilled,
            Refused::Garbage(_) => SendRefused::Lost,
        }
    }
}

/// Passes waiting records of one link to `sink`. Returns their number, and whether one was invalid.
pub(crate) fn drain(
    reader: &mut Reader,
    peer: PeerId,
    budget: &mut Budget,
    sink: Sink<'_>,
) -> (u32, Result<(), FrameError>) {
    let mut taken = 0;
    while taken < TURN {
        let mut len = 0;
        let read = reader.read(|header, payload| {
            len = payload.len();
            sink(peer, header, payload)
        });
        match read {
            Ok(Some(Ok(()))) => {}
            Ok(None) => break,
            Ok(Some(Err(e))) | Err(e) => return (taken, Err(e)),
        }
        taken += 1;
        if !budget.spend(len) {
            break;
        }
    }
    (taken, Ok(()))
}
