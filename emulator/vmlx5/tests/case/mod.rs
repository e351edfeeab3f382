//! A fault in the work of one end, among valid work, and its effects on both sides.

use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use vmlx5::*;

use crate::rig::*;

pub const REQ_ERR: CqeOpcode = CqeOpcode::REQ_ERR;
pub const RESP_ERR: CqeOpcode = CqeOpcode::RESP_ERR;

/// A syndrome and its vendor syndrome.
pub type Why = (Syndrome, u8);

/// The effects of a fault in `a`'s work.
#[derive(Clone, Copy)]
pub struct Seen {
    /// The fault in the requester's entry; `None`: the entry completes.
    pub requester: Option<Why>,
    /// The fault in the entry of the receive.
    pub responder: Option<Why>,
    /// The event of the responder for a refused request.
    pub event: Option<fn(Qpn, u64) -> Event>,
}

/// A fault of the requester itself: the other end gets no request.
pub fn own(why: Syndrome, vendor: u8) -> Seen {
    Seen {
        requester: Some((why, vendor)),
        responder: None,
        event: None,
    }
}

/// An error that the responder finds in the request itself: no entry of the responder reports it,
/// an event does.
pub fn refused(why: Syndrome, vendor: u8) -> Seen {
    Seen {
        event: Some(match why {
            Syndrome::REMOTE_ACCESS => |qpn, owner| Event::QpAccess { qpn, owner },
            _ => |qpn, owner| Event::QpRequest { qpn, owner },
        }),
        ..own(why, vendor)
    }
}

/// The receive is at fault: its entry reports it.
pub fn receive_fails(theirs: Why, ours: Why) -> Seen {
    Seen {
        responder: Some(ours),
        ..own(theirs.0, theirs.1)
    }
}

/// Prepares the faulty entry of the first end; returns its index.
type Raise = dyn Fn(&mut World, &mut End, &mut End) -> u16;

/// A fault of `a`'s work, which `raise` prepares without a doorbell, and its effects.
pub struct Case {
    name: &'static str,
    ends: [EndConfig; 2],
    raise: Box<Raise>,
    pub seen: Seen,
}

pub fn case(
    name: &'static str,
    raise: impl Fn(&mut World, &mut End, &mut End) -> u16 + 'static,
    seen: Seen,
) -> Case {
    Case {
        name,
        ends: [(); 2].map(|()| EndConfig::default()),
        raise: Box::new(raise),
        seen,
    }
}

impl Case {
    /// Changes the configuration of one of the ends.
    pub fn with(mut self, end: usize, change: impl FnOnce(&mut EndConfig)) -> Case {
        change(&mut self.ends[end]);
        self
    }

    pub fn unreliable(self) -> Case {
        let uc = |c: &mut EndConfig| c.service = Service::Uc;
        self.with(0, uc).with(1, uc)
    }

    /// Posts valid work, then the faulty entry, then more. All later work is flushed in order, also
    /// work that is posted afterwards, and no byte of either end changes.
    pub fn run(&self) {
        println!("{}", self.name);
        let [a, b] = self.ends.clone();
        let reliable = a.service == Service::Rc;
        let (mut world, mut a, mut b) = World::joined(a, b);
        let (ours, theirs) = (pattern(1, 64), pattern(2, 64));
        a.put(0, &ours);
        b.put(0, &theirs);
        let Seen {
            requester,
            responder,
            event,
        } = self.seen;
        let b_fails = responder.is_some() || event.is_some();

        let good = a.post(&nop());
        let bad = (self.raise)(&mut world, &mut a, &mut b);
        let after = [a.prepare(&nop()), a.quietly(nop())];
        if b_fails {
            b.post_recv(&[]);
            b.post_recv(&[]);
        }
        a.ring();
        world.settle();
        let slow = |(why, _)| [Syndrome::TRANSPORT_RETRY, Syndrome::RNR_RETRY].contains(&why);
        if requester.is_some_and(slow) {
            world.outlast();
        }

        a.sent(good);
        match requester {
            None => a.sent(after[0]),
            Some((why, vendor)) => {
                let entry = a.send.poll().unwrap();
                assert_err(&entry, REQ_ERR, bad, why);
                let error = entry.as_error();
                assert_eq!((error.qpn(), error.vendor_err), (a.qpn.0, vendor));
                let mut opcode = [0];
                let place = a.sq_at + u64::from(bad) * 64 + 3;
                a.mem.read(place, &mut opcode).unwrap();
                assert_eq!(error.send_opcode(), SendOpcode(opcode[0]));
                let late = a.run(&mut world, &nop());
                for index in [after[0], after[1], late] {
                    a.send_failed(index, Syndrome::WR_FLUSH);
                }
            }
        }
        let state = match requester {
            None => QpState::Rts,
            Some(_) if reliable => QpState::Err,
            Some(_) => QpState::Sqe,
        };
        assert_eq!(world.state(&a), state);
        if state == QpState::Err {
            // A receive is flushed without a doorbell.
            let receive = a.post_recv(&[]);
            world.settle();
            a.recv_failed(receive, Syndrome::WR_FLUSH);
        }
        assert!(a.send.poll().is_none() && a.recv.poll().is_none());

        let b_state = if b_fails { QpState::Err } else { QpState::Rts };
        assert_eq!(world.state(&b), b_state);
        if b_fails {
            b.post_recv(&[]);
            let sent = b.run(&mut world, &nop());
            b.send_failed(sent, Syndrome::WR_FLUSH);
            let flush = (Syndrome::WR_FLUSH, vendor::FLUSHED);
            for (i, entry) in b.recv.drain().iter().enumerate() {
                let (why, vendor) = responder.filter(|_| i == 0).unwrap_or(flush);
                assert_err(entry, RESP_ERR, i as u16, why);
                assert_eq!(entry.as_error().vendor_err, vendor);
            }
            assert_eq!(b.recv.next, u32::from(b.rq), "receives remain posted");
        } else {
            assert_eq!(b.recv.poll(), None);
        }
        for end in [&a, &b] {
            let info = world.nics[end.nic].query_qp(end.qpn).unwrap();
            assert_eq!((info.sq_done, info.outstanding), (end.sq, 0));
        }
        let expected = event.map(|event| event(b.qpn, 9));
        assert_eq!(
            (world.events(0), world.events(1)),
            (vec![], Vec::from_iter(expected))
        );
        assert_eq!((a.get(0, 64), b.get(0, 64)), (ours, theirs));
        if state == QpState::Err && !b_fails {
            // The other end does not change, and finds the error at its next request.
            let index = b.post(&write(a.remote(0), &[b.sge(0, 8)]));
            world.outlast();
            b.send_failed(index, Syndrome::TRANSPORT_RETRY);
        }
    }
}
