//! Ringing a doorbell: the operations that hand prepared work to the NIC.
//!
//! The doorbell record gets the new producer index, then the doorbell register gets the first
//! eight bytes of the last control segment (PRM, "Posting a Work Request"). Both writes are
//! fenced: the NIC must never see the doorbell before the record, nor the record before what
//! the stream wrote into work queue entries and payload. This holds for the 64-bit doorbell and
//! for its 32-bit halves alike.

use super::{Batch, Condition, DevicePtr, Op};

/// What ringing takes: constants, captured when the work was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The doorbell record of the send queue.
    pub record: DevicePtr,
    /// Its new value as a native word (big-endian producer index).
    pub record_value: u32,
    /// The doorbell register.
    pub doorbell: DevicePtr,
    /// The first eight bytes of the last control segment, as a native word.
    pub doorbell_value: u64,
    /// Set where another stream posted last: this one waits until the record shows that
    /// stream's value, so that the queue is rung in the order of its entries.
    pub edge: Option<u32>,
}

/// Appends the operations that ring.
pub fn push(batch: &mut Batch, ring: &Ring) {
    if let Some(value) = ring.edge {
        batch.push(Op::Wait32 {
            at: ring.record,
            value,
            mask: u32::MAX,
            condition: Condition::Eq,
            flush: false,
        });
    }
    batch.push_glued(Op::Write32 {
        at: ring.record,
        value: ring.record_value,
        fenced: true,
    });
    batch.push(Op::Write64 {
        at: ring.doorbell,
        value: ring.doorbell_value,
        fenced: !crate::mutant::on(crate::mutant::Mutant::NoFenceBeforeDoorbell),
    });
}
