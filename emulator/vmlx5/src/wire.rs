//! The NIC's connection to other NICs: its fabric, and a loopback ring for queue pairs of this NIC
//! that are connected to each other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gds_step::Time;
use mlx5_prm::wqe::AvSeg;

use crate::fabric::faults::{FaultStats, Faults, Faulty, Held};
use crate::fabric::links::drain;
use crate::fabric::ring::{Reader, Region, Writer};
use crate::fabric::{
    Budget, Fabric, Fill, LinkError, LinkState, NodeId, PeerId, SendRefused, Sink,
};
use crate::frame::{Frame, FrameHeader};
use crate::route::{Resolve, Route};
use crate::timer::earliest;

/// The loopback link of a NIC.
pub(crate) const OWN: PeerId = PeerId(u32::MAX);

pub(crate) struct Wire {
    fabric: Box<dyn Fabric>,
    node: NodeId,
    own: Option<(Writer, Reader)>,
    own_bytes: usize,
    lost: VecDeque<PeerId>,
    faulty: Option<Box<Faulty>>,
    pub resolver: Option<Arc<dyn Resolve>>,
    now: Time,
    /// The ports that are down, as bits from port 1 on.
    pub down: u32,
    /// Frames sent, frames received, and frames dropped without a destination.
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
            faulty: None,
            resolver: None,
            now: Time::ZERO,
            down: 0,
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

    /// The route of an address vector, and the link to its node.
    pub fn route(&mut self, av: &AvSeg, port: u8) -> Option<(Route, PeerId)> {
        let route = self.resolver.as_ref()?.resolve(av, port)?;
        let peer = self.connect(route.node).ok()?;
        Some((route, peer))
    }

    pub fn state(&self, node: NodeId, peer: PeerId) -> LinkState {
        if node == self.node {
            LinkState::Up
        } else {
            self.fabric.state(peer)
        }
    }

    /// Returns true if a port is up.
    #[inline]
    pub fn is_up(&self, port: u8) -> bool {
        self.down & 1_u32.wrapping_shl(u32::from(port).wrapping_sub(1)) == 0
    }

    /// Makes the link to `node` again if it was lost.
    pub fn relink(&mut self, node: NodeId, peer: PeerId) {
        let own = peer == OWN && self.own.is_none();
        if own || peer != OWN && matches!(self.fabric.state(peer), LinkState::Lost(_)) {
            // If the link cannot be made now, the next retry tries again.
            let _ = self.connect(node);
        }
    }

    /// Sends a frame of `len` payload bytes that `fill` writes. On a lost link, or from a port that
    /// is down, the frame is dropped without an error.
    #[inline]
    pub fn send(
        &mut self,
        peer: PeerId,
        port: u8,
        frame: &Frame,
        len: usize,
        fill: Fill<'_>,
    ) -> Result<(), SendRefused> {
        let header = frame.encode(len);
        if self.down != 0 && !self.is_up(port) {
            self.vanished += 1;
            return Ok(());
        }
        let sent = match self.faulty {
            None => self.pass(peer, &header, fill),
            Some(_) => self.send_badly(peer, &header, fill),
        };
        match sent {
            Ok(()) => self.sent += 1,
            Err(SendRefused::Lost) => self.vanished += 1,
            Err(_) => return sent,
        }
        Ok(())
    }

    /// Passes a frame to the fabric or to the loopback ring.
    #[inline]
    fn pass(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        fill: Fill<'_>,
    ) -> Result<(), SendRefused> {
        if peer != OWN {
            return self.fabric.send(peer, header, fill);
        }
        let (writer, _) = self.own.as_mut().ok_or(SendRefused::Lost)?;
        Ok(writer.write(header, fill)?)
    }

    /// Sends a frame with the faults that are drawn for it.
    #[cold]
    fn send_badly(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        fill: Fill<'_>,
    ) -> Result<(), SendRefused> {
        let Some(mut faulty) = self.faulty.take() else {
            return self.pass(peer, header, fill);
        };
        faulty.scratch.resize(header.len.get() as usize, 0);
        let sent = if fill(&mut faulty.scratch) {
            self.send_copies(&mut faulty, peer, header)
        } else {
            Err(SendRefused::Unfilled)
        };
        self.faulty = Some(faulty);
        sent
    }

    fn send_copies(
        &mut self,
        faulty: &mut Faulty,
        peer: PeerId,
        header: &FrameHeader,
    ) -> Result<(), SendRefused> {
        let fate = faulty.draw(self.now);
        for copy in 0..fate.copies {
            // The second copy is held back by itself.
            let late = fate.late + Duration::from_micros(u64::from(copy));
            if !late.is_zero() {
                let (header, payload) = (*header, faulty.scratch.clone());
                faulty.hold(
                    self.now + late,
                    Held {
                        peer,
                        header,
                        payload,
                    },
                );
                continue;
            }
            self.pass(peer, header, &mut |room| {
                room.copy_from_slice(&faulty.scratch);
                true
            })?;
        }
        Ok(())
    }

    /// Sends the held frames that are due. Returns when the next one is due.
    fn release(&mut self, now: Time) -> Option<Time> {
        let mut faulty = self.faulty.take()?;
        while let Some(frame) = faulty.take(now) {
            let sent = self.pass(frame.peer, &frame.header, &mut |room| {
                room.copy_from_slice(&frame.payload);
                true
            });
            if sent == Err(SendRefused::Full) {
                faulty.hold(now + Duration::from_micros(1), frame);
                break;
            }
        }
        let next = faulty.deadline();
        self.faulty = Some(faulty);
        next
    }

    #[inline]
    pub fn is_faulty(&self) -> bool {
        self.faulty.is_some()
    }

    /// The due change of a port by the fault plan, and whether the port is up after it.
    pub fn port_edge(&mut self, now: Time) -> Option<(u8, bool)> {
        self.faulty.as_mut()?.edge(now)
    }

    /// Returns true if the fault plan has stopped the NIC by now.
    pub fn fatal(&self, now: Time) -> bool {
        self.faulty.as_ref().is_some_and(|faulty| faulty.fatal(now))
    }

    pub fn set_faults(&mut self, faults: Faults) {
        self.faulty = Some(Box::new(Faulty::new(faults, self.node.0)));
    }

    pub fn fault_stats(&self) -> FaultStats {
        self.faulty.as_ref().map(|f| f.stats).unwrap_or_default()
    }

    /// Passes received frames on. The loopback ring, if one exists, gets half of the budget.
    pub fn receive(&mut self, mut budget: Budget, sink: Sink<'_>) -> u32 {
        let deaf = self.faulty.as_ref().is_some_and(|f| f.silent(self.now));
        let sink: Sink<'_> = if deaf { &mut |_, _, _| Ok(()) } else { sink };
        let mut taken = 0;
        if let Some((writer, reader)) = &mut self.own {
            writer.publish();
            let (got, result) = drain(reader, OWN, &mut budget, sink);
            reader.release();
            taken += got;
            if result.is_err() {
                // This is not possible with our own frames; start with a new ring instead of
                // reading on.
                self.own = None;
                self.lost.push_back(OWN);
            }
        }
        taken += self.fabric.receive(budget, sink);
        self.received += u64::from(taken);
        taken
    }

    /// Returns true if the loopback ring contains frames.
    pub fn pending(&mut self) -> bool {
        self.own.as_mut().is_some_and(|(writer, reader)| {
            writer.publish();
            reader.ready()
        })
    }

    pub fn lost(&mut self) -> Option<PeerId> {
        self.lost.pop_front().or_else(|| self.fabric.lost())
    }

    pub fn flush(&mut self) {
        self.fabric.flush();
    }

    pub fn step(&mut self, now: Time) -> Option<Time> {
        self.now = now;
        let late = self.release(now);
        earliest(late, self.fabric.step(now))
    }
}
