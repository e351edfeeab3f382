//! The NIC's way to the others: its fabric, and a ring of its own for queue pairs that talk
//! to the same NIC.

use std::collections::VecDeque;

use gds_step::Time;

use crate::fabric::ring::{Reader, Refused, Region, Writer};
use crate::fabric::{
    Budget, Fabric, Fill, LinkError, LinkState, NodeId, PeerId, SendRefused, Sink, drain,
};
use crate::frame::Frame;

/// The link of a NIC to itself.
pub(crate) const OWN: PeerId = PeerId(u32::MAX);

pub(crate) struct Wire {
    fabric: Box<dyn Fabric>,
    node: NodeId,
    own: Option<(Writer, Reader)>,
    own_bytes: usize,
    lost: VecDeque<PeerId>,
    /// Frames sent, taken, and sent to nobody.
    pub sent: u64,
    pub received: u64,
    pub vanished: u64,
}

impl Wire {
    pub fn new(fabric: Box<dyn Fabric>, own_bytes: usize) -> Wire {
        Wire {
            node: fabric.node(),
            fabric,
            own: None,
            own_bytes,
            lost: VecDeque::new(),
            sent: 0,
            received: 0,
            vanished: 0,
        }
    }

    pub fn node(&self) -> NodeId {
        self.node
    }

    pub fn connect(&mut self, node: NodeId) -> Result<PeerId, LinkError> {
        if node != self.node {
            return self.fabric.connect(node);
        }
        if self.own.is_none() {
            let region = Region::private(self.own_bytes).map_err(|errno| LinkError::System {
                what: "mmap",
                errno,
            })?;
            self.own = Some((Writer::new(region.clone(), false), Reader::new(region)));
        }
        Ok(OWN)
    }

    pub fn state(&self, node: NodeId, peer: PeerId) -> LinkState {
        if node == self.node {
            LinkState::Up
        } else {
            self.fabric.state(peer)
        }
    }

    /// Makes the link to `node` again if it was lost.
    pub fn relink(&mut self, node: NodeId, peer: PeerId) {
        let own = peer == OWN && self.own.is_none();
        if own || peer != OWN && matches!(self.fabric.state(peer), LinkState::Lost(_)) {
            // If it cannot be had now, the next retry tries again.
            let _ = self.connect(node);
        }
    }

    /// Sends a frame of `len` payload bytes that `fill` writes. On a lost link it vanishes, as
    /// on a wire that leads nowhere.
    #[inline]
    pub fn send(
        &mut self,
        peer: PeerId,
        frame: &Frame,
        len: usize,
        fill: Fill<'_>,
    ) -> Result<(), SendRefused> {
        let header = frame.encode(len);
        let sent = if peer != OWN {
            self.fabric.send(peer, &header, fill)
        } else {
            let (writer, _) = self.own.as_mut().ok_or(SendRefused::Lost)?;
            writer
                .write(&header, fill)
                .map_err(|refused| match refused {
                    Refused::Full => SendRefused::Full,
                    Refused::Unfilled => SendRefused::Unfilled,
                    Refused::Garbage(_) => SendRefused::Lost,
                })
        };
        match sent {
            Ok(()) => self.sent += 1,
            Err(SendRefused::Lost) => self.vanished += 1,
            Err(_) => return sent,
        }
        Ok(())
    }

    /// Hands received frames on, half of the budget from this NIC itself if it has any.
    pub fn receive(&mut self, mut budget: Budget, sink: Sink<'_>) -> u32 {
        let mut taken = 0;
        if let Some((writer, reader)) = &mut self.own {
            writer.publish();
            let (got, result) = drain(reader, OWN, &mut budget, sink);
            reader.release();
            taken += got;
            if result.is_err() {
                // Not possible with frames of our own; start afresh rather than read on.
                self.own = None;
                self.lost.push_back(OWN);
            }
        }
        taken += self.fabric.receive(budget, sink);
        self.received += u64::from(taken);
        taken
    }

    /// True if frames to itself wait.
    pub fn pending(&mut self) -> bool {
        self.own.as_mut().is_some_and(|(writer, reader)| {
            writer.publish();
            reader.ready()
        })
    }

    pub fn lost(&mut self) -> Option<PeerId> {
        self.lost.pop_front().or_else(|| self.fabric.lost())
    }

    pub fn refusal(&mut self) -> Option<LinkError> {
        self.fabric.refusal()
    }

    pub fn flush(&mut self) {
        self.fabric.flush();
    }

    pub fn step(&mut self, now: Time) -> Option<Time> {
        self.fabric.step(now)
    }
}
