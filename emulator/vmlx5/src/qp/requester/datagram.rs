//! The send path of datagrams: each has its own destination, consists of one packet, and completes
//! when it is sent.
//!
//! If a link has no room, a datagram waits as a packet does at a switch, for a limited time. Then
//! the datagram is dropped, and so are later ones to the same destination until the link has room
//! again. So a receiver that is stalled does not block datagrams to other destinations.

use std::time::Duration;

use gds_step::Time;
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{AvSeg, parse_datagram};
use zerocopy::IntoBytes;

use super::{Allowance, Pending, Turn};
use crate::fabric::{PeerId, SendRefused};
use crate::frame::{FIRST, Frame, GRH, IMM, Kind, LAST, SOLICITED, psn};
use crate::qp::Ctx;
use crate::qp::Qp;
use crate::route::{Label, ROOM, Route};
use crate::sq::gather;
use crate::timer::ack_timeout;
use crate::wire::Wire;

/// The state of a datagram queue pair beyond that of others.
pub(crate) struct Datagrams {
    /// The queue key that a received datagram must carry.
    pub qkey: u32,
    pub port: u8,
    pub pkey: u16,
    known: Vec<Known>,
    /// The entry of `known` that the next destination replaces when `known` is full.
    oldest: usize,
}

/// A destination of a former datagram.
struct Known {
    address: Address,
    route: Route,
    peer: PeerId,
    /// The time when its link was last made.
    linked: Time,
    /// A datagram timed out for lack of room, and the link had no room since.
    stalled: bool,
}

/// An address vector without its queue key.
type Address = [u8; 40];

/// Most cached destinations of a queue pair.
const MAX_KNOWN: usize = 32;

/// The time limit of a datagram that waits for room: 4.096 us times 2^18, as switches commonly have
/// it.
const ROOM_LIMIT: Duration = ack_timeout(18).expect("only 0 is without a limit");

/// Shortest interval between attempts to make a lost link again.
const RELINK: Duration = Duration::from_millis(1);

/// In an entry's queue key: the NIC uses the queue key of the sending queue pair instead.
const OWN_QKEY: u32 = 1 << 31;

impl Datagrams {
    pub fn new(pkey: u16) -> Datagrams {
        Datagrams {
            qkey: 0,
            port: 1,
            pkey,
            known: Vec::with_capacity(MAX_KNOWN),
            oldest: 0,
        }
    }

    /// The destination of `av`, if a NIC has that address.
    fn find(&mut self, av: &AvSeg, wire: &mut Wire, now: Time) -> Option<&mut Known> {
        let mut address: Address = [0; 40];
        address.copy_from_slice(&av.as_bytes()[8..]);
        let found = self.known.iter().position(|k| k.address == address);
        if let Some(i) = found {
            return self.known.get_mut(i);
        }
        let (route, peer) = wire.route(av, self.port)?;
        let new = Known {
            address,
            route,
            peer,
            linked: now,
            stalled: false,
        };
        if self.known.len() < MAX_KNOWN {
            self.known.push(new);
            return self.known.last_mut();
        }
        let i = self.oldest;
        self.oldest = (i + 1) % MAX_KNOWN;
        self.known[i] = new;
        self.known.get_mut(i)
    }
}

impl Qp {
    /// Sends the datagram at `cursor`.
    pub(super) fn transmit_datagram(
        &mut self,
        ctx: &mut Ctx,
        wire: &mut Wire,
        may: &mut Allowance,
    ) -> Turn {
        let Some(&p) = self.sq.pending.get(self.sq.cursor) else {
            return Turn::Done;
        };
        if p.opcode != SendOpcode::NOP
            && let Err(turn) = self.send_datagram(ctx, wire, &p)
        {
            return turn;
        }
        may.spend(p.total as usize);
        let sq = &mut self.sq;
        sq.stop_clock();
        if p.numbered {
            sq.acked = psn::add(p.psn, p.packets);
            sq.top = sq.acked;
        }
        sq.advance();
        self.retire(ctx);
        Turn::More
    }

    /// Passes a datagram to the wire, or drops it.
    fn send_datagram(&mut self, ctx: &Ctx, wire: &mut Wire, p: &Pending) -> Result<(), Turn> {
        let sq = &mut self.sq;
        let (Ok(wqe), Some(ud)) = (parse_datagram(&sq.wqe[..]), &mut self.ud) else {
            return Err(Turn::Done);
        };
        let Some(av) = wqe.av else {
            return Err(Turn::Done);
        };
        let (port, pkey, own) = (ud.port, ud.pkey, ud.qkey);
        let Some(to) = ud.find(&av, wire, ctx.now) else {
            wire.vanished += 1;
            return Ok(());
        };
        let len = p.total as usize;
        let imm = p.opcode == SendOpcode::SEND_IMM;
        let header = to.route.header.map(|header| header.bytes(len, imm));
        let room = header.map_or(0, |_| ROOM);
        let mut frame = Frame::new(Kind::Send, av.qpn(), self.number, p.psn);
        for (flag, is) in [
            (FIRST | LAST, true),
            (IMM, imm),
            (SOLICITED, p.flags.solicited),
            (GRH, header.is_some()),
        ] {
            frame.flags |= if is { flag } else { 0 };
        }
        let qkey = av.qkey.get();
        frame.rkey = if qkey & OWN_QKEY != 0 { own } else { qkey };
        frame.total = (room + len) as u32;
        frame.imm = wqe.ctrl.imm;
        frame.service = self.service as u8;
        let label = Label {
            slid: to.route.slid,
            pkey,
            sl: to.route.sl,
            path_bits: to.route.path_bits,
            port: to.route.port,
        };
        frame.compare = label.pack();
        let (mut fault, lost) = (None, wire.vanished);
        let sent = wire.send(to.peer, port, &frame, room + len, &mut |into| {
            let (front, body) = into.split_at_mut(room);
            if let Some(header) = &header {
                front.copy_from_slice(header);
            }
            fault = gather(&wqe, &ctx.mrs, self.pd, 0, body).err();
            fault.is_none()
        });
        match sent {
            Ok(()) => {
                to.stalled = false;
                if wire.vanished != lost && ctx.now >= to.linked + RELINK {
                    to.linked = ctx.now;
                    wire.relink(to.route.node, to.peer);
                }
                Ok(())
            }
            Err(SendRefused::Full) => {
                let until = *sq.deadline.get_or_insert(ctx.now + ROOM_LIMIT);
                to.stalled |= until <= ctx.now;
                if !to.stalled {
                    return Err(Turn::Full);
                }
                wire.vanished += 1;
                Ok(())
            }
            Err(SendRefused::Lost | SendRefused::Unfilled) => {
                sq.loaded = false;
                sq.fault = fault;
                Err(Turn::More)
            }
        }
    }
}
