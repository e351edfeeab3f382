//! The memory of a circuit's end, as `device/mp_replay.cu` uses it: own words, and behind them what the peer
//! maps. A sender shares its credit and the two lines of a place, a receiver its rooms.

use gdsync::gpu::{MemoryKind, Region, Word64};
use gdsync::{Gpu, Status};

use super::Origin;
use crate::error::Result;
use crate::kernels::{Direct, Rooms};
use crate::path::Exported;
use crate::wire::flag;

/// Offsets of own words.
pub(super) const RESULT_AT: usize = 16;
const LOST_AT: usize = 24;
/// The offset of the part that the peer maps.
pub(super) const SHARED_AT: usize = 64;
/// The offset of the place in the part of a sender, and the length of this part.
pub(crate) const PLACE_AT: u64 = 16;
const SENDER_LEN: usize = 32;

/// The length of the part that the peer maps; `bytes`: of payload, in a room.
pub(super) fn shared_len(sends: bool, bytes: u64) -> Option<u64> {
    if sends {
        return Some(SENDER_LEN as u64);
    }
    (bytes <= 1 << 30).then(|| {
        let rooms = rooms(0, bytes);
        rooms.slots * rooms.stride
    })
}

/// The rooms from an address on, for messages of at most `bytes` bytes. A sender is as many messages ahead as
/// there are slots.
pub(crate) fn rooms(first: u64, bytes: u64) -> Rooms {
    /// Bytes of messages of which more fit in a small part of the memory of a long one.
    const SHORT: u64 = 4 << 10;
    let shown = flag::HEAD_LEN + flag::shown_len(Direct::MOST_SHARES as usize);
    Rooms {
        first,
        stride: flag::size(bytes as usize).max(shown) as u64,
        slots: if bytes <= SHORT { 4 } else { 2 },
    }
}

/// Makes the own end.
pub(super) fn make(from: Origin<'_>, sends: bool, bytes: u64) -> Result<Exported> {
    let first = from.start;
    let mut image = first.to_le_bytes().to_vec();
    image.resize(SHARED_AT, 0);
    match sends {
        true => {
            image.extend(first.wrapping_sub(1).to_le_bytes());
            image.resize(SHARED_AT + PLACE_AT as usize, 0);
            image.extend(flag::before(first, SENDER_LEN - PLACE_AT as usize));
        }
        false => {
            let rooms = rooms(0, bytes);
            image.extend(flag::before(first, (rooms.slots * rooms.stride) as usize));
        }
    }
    let memory = from.paths.copier().exported(image.len())?;
    memory.write(0, &image)?;
    Ok(memory)
}

/// Sets the word that ends the kernels of the end.
pub(super) fn set_lost(memory: &Exported, status: Status) -> Result<()> {
    memory.write(LOST_AT, &u64::from(status.0).to_le_bytes())
}

/// The words in host memory for all circuits of a peer.
pub(crate) struct Alarm {
    /// The status with which this rank has given the peer up, or 0: kernels that see it end. Stored after
    /// the words in device memory.
    stop: Word64,
    /// A kernel stores 1 when it has waited too long.
    late: Word64,
    /// A kernel stores 1 before it ends without its message, after it has read `stop`.
    failed: Word64,
}

impl Alarm {
    pub fn new(gpu: &Gpu) -> Result<Alarm> {
        let memory = gpu.alloc(MemoryKind::Pinned, 24)?;
        memory.write(0, &[0; 24])?;
        Ok(Alarm {
            stop: memory.word64(0)?,
            late: memory.word64(8)?,
            failed: memory.word64(16)?,
        })
    }

    pub fn region(&self) -> &Region {
        self.stop.region()
    }

    /// The address of the three words.
    pub fn addr(&self) -> u64 {
        self.stop.addr().0
    }

    pub fn stop(&self, status: Status) {
        // An error: the GPU is lost, and runs no kernel.
        let _ = self.stop.store(status.0.into());
    }

    /// Whether a kernel has waited too long.
    pub fn is_late(&self) -> bool {
        self.late.load().is_ok_and(|late| late != 0)
    }

    /// Whether a kernel has ended without its message since the last call that took this.
    pub fn has_failed(&self, take: bool) -> bool {
        let failed = self.failed.load().is_ok_and(|failed| failed != 0);
        if failed && take {
            let _ = self.failed.store(0);
        }
        failed
    }
}
