//! Doorbells: the operations that hand prepared work to the NIC.
//!
//! The doorbell record gets the new producer index, then the doorbell register gets the first eight
//! bytes of the last control segment (PRM, "Posting a Work Request"). Both writes are fenced: the
//! NIC must never see the doorbell before the record, nor the record before the stream's writes to
//! work queue entries and payload. This holds for the 64-bit doorbell and for its 32-bit halves
//! alike.

use super::Width::{Bits32, Bits64};
use super::{Batch, Condition, DevicePtr, Op, Role};
use crate::mutant::{self, Mutant};

/// The values for a doorbell: constants, captured when the work was posted.
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
    /// Set if another stream posted last: this stream waits until the record shows that stream's
    /// value, so that doorbells are written in the order of the entries.
    pub edge: Option<u32>,
}

/// Appends the operations that write a doorbell. Two doorbells of one queue in a row become one:
/// the later doorbell covers both.
pub fn push(batch: &mut Batch, ring: &Ring) {
    let record = Op::write(Bits32, ring.record, ring.record_value);
    let doorbell = Op::write(Bits64, ring.doorbell, ring.doorbell_value)
        .fenced(!mutant::on(Mutant::NoFenceBeforeDoorbell));
    if let Some(first) = batch.len().checked_sub(2)
        && batch.role(first) == Role::Ring
        && let [Op::Write { at, .. }, _] = batch.ops()[first..]
        && at == ring.record
    {
        batch.ops_mut()[first..].copy_from_slice(&[record, doorbell]);
        return;
    }
    push_edge(batch, ring.record, ring.edge);
    batch.add(record, Role::Ring, true);
    batch.add(doorbell, Role::Ring, false);
}

/// Appends the write that makes receives available, or requests to a NIC that reads no doorbell: their
/// record gets the new producer index. The later of two such writes in a row covers both.
pub fn push_record(batch: &mut Batch, record: DevicePtr, value: u32, edge: Option<u32>) {
    let write = Op::write(Bits32, record, value);
    if let Some(last) = batch.len().checked_sub(1)
        && batch.role(last) == Role::Mark
        && let Op::Write { at, .. } = batch.ops()[last]
        && at == record
    {
        batch.ops_mut()[last] = write;
        return;
    }
    push_edge(batch, record, edge);
    batch.add(write, Role::Mark, false);
}

/// Appends the wait for the stream that posted last.
fn push_edge(batch: &mut Batch, record: DevicePtr, edge: Option<u32>) {
    if let Some(value) = edge {
        let wait = Op::wait(Bits32, record, Condition::Eq, value);
        batch.add(wait, Role::Wait, false);
    }
}
