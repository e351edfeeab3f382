//! WRITEs whose bytes become visible out of order, as on a fabric with several paths and a NIC that
//! places packets in order of arrival.
//!
//! A late piece is placed when it is due, and before any work that the specification orders after
//! it: the execution of an atomic or a READ, the completion of a receive. Acknowledgements wait for
//! the piece, so completions keep their order and prove placed bytes.

use std::time::Duration;

use gds_step::Time;

use crate::fabric::faults::Faults;
use crate::mr::{Access, MrTable, write};
use crate::mutant::{self, Mutant};
use crate::qp::Qp;

/// The bytes of one aligned line become visible together.
const LINE: u64 = 64;
/// Most pieces drawn per frame.
const PIECES: u64 = 4;

/// The generator of the delays of a NIC's pieces.
pub(crate) struct Disorder {
    rng: fastrand::Rng,
    rate: f64,
    /// Number of late pieces.
    pub displaced: u64,
    /// The earliest time at which a piece is due.
    pub next: Time,
}

/// A piece that is not visible yet.
pub(crate) struct Late {
    due: Time,
    rkey: u32,
    va: u64,
    bytes: Vec<u8>,
}

impl Disorder {
    pub fn new(plan: &Faults, node: u64) -> Disorder {
        let seed = plan.seed ^ node.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x000d_150d;
        Disorder {
            rng: fastrand::Rng::with_seed(seed),
            rate: plan.ooo,
            displaced: 0,
            next: Time::NEVER,
        }
    }

    /// The length of the next piece of `left` bytes at `va`, and its due time if it is late.
    fn draw(&mut self, now: Time, va: u64, left: u64) -> (u64, Option<Time>) {
        let lines = (va % LINE + left).div_ceil(LINE);
        let mine = match self.rng.u64(0..PIECES) {
            0 => self.rng.u64(1..=lines),
            _ => lines,
        };
        let len = left.min(mine * LINE - va % LINE);
        let late = self.rng.f64() < self.rate;
        let due = late.then(|| now + Duration::from_nanos(self.rng.u64(1000..20_000)));
        (len, due)
    }
}

impl Qp {
    /// Places the bytes of a WRITE, some of them late.
    ///
    /// # Errors
    /// Those of [`MrTable::find`] for the whole WRITE, and those of [`write`] for the bytes placed
    /// now.
    #[cold]
    #[inline(never)]
    pub(super) fn place_in_disorder(
        &mut self,
        disorder: &mut Disorder,
        (mrs, now): (&MrTable, Time),
        (rkey, mut va): (u32, u64),
        mut payload: &[u8],
    ) -> Result<(), u8> {
        // The NIC places no byte unless the whole WRITE is allowed.
        let need = Access::REMOTE_WRITE;
        mrs.find(self.pd, rkey, need, va, payload.len() as u64)?;
        while !payload.is_empty() {
            let (len, due) = disorder.draw(now, va, payload.len() as u64);
            let (piece, rest) = payload.split_at(len as usize);
            match due {
                None => {
                    let (mem, at) = mrs.find(self.pd, rkey, need, va, len)?;
                    write(mem, at, piece, true)?;
                }
                Some(due) => {
                    disorder.displaced += 1;
                    disorder.next = disorder.next.min(due);
                    let bytes = piece.to_vec();
                    self.resp.late.push(Late {
                        due,
                        rkey,
                        va,
                        bytes,
                    });
                }
            }
            va = va.wrapping_add(len);
            payload = rest;
        }
        Ok(())
    }

    /// Places the pieces due by `until`, in order of their due times, and sends the acknowledgement
    /// that waited for them. Returns the due time of the next piece.
    pub fn place_late(&mut self, mrs: &MrTable, until: Time) -> Option<Time> {
        if self.resp.late.is_empty() {
            return None;
        }
        self.resp.late.sort_by_key(|piece| piece.due);
        let due = self.resp.late.partition_point(|piece| piece.due <= until);
        for Late {
            rkey, va, bytes, ..
        } in self.resp.late.drain(..due)
        {
            let need = Access::REMOTE_WRITE;
            // A region or key that was removed receives no more bytes.
            let _ = mrs
                .find(self.pd, rkey, need, va, bytes.len() as u64)
                .and_then(|(mem, at)| write(mem, at, &bytes, true));
        }
        match self.resp.late.first() {
            Some(piece) => Some(piece.due),
            None => {
                if std::mem::take(&mut self.resp.ack_deferred) {
                    self.resp.ack();
                }
                None
            }
        }
    }

    /// Places every late piece before the execution of work that is ordered after them.
    pub(super) fn place_all(&mut self, mrs: &MrTable) {
        if !mutant::on(Mutant::LateBehindAtomic) {
            self.place_late(mrs, Time::NEVER);
        }
    }
}
