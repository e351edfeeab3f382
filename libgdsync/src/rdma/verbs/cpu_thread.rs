//! The CPU thread that writes doorbells for streams.
//!
//! A stream posts by a store into a *trigger* word: the number of requests of the queue to post. It
//! waits on a *done* word, which counts completed positions. The CPU thread polls the trigger words
//! of its queue pairs, writes the doorbell for new requests, reads completion entries, and
//! publishes them. It counts a completion in error only after it has stored the status.

use std::sync::Arc;

use gds_step::{Machine, Step, Time};
use mlx5_prm::doorbell;

use super::watch::WatchList;
use super::{Life, QpCore};
use crate::ring::RingMemory;

/// The CPU thread as a step machine.
pub(crate) struct CpuThread {
    /// The queue pairs that it will serve from the next step on.
    fresh: WatchList,
    served: Vec<Arc<QpCore>>,
    name: String,
}

impl CpuThread {
    pub fn new(fresh: WatchList, name: String) -> CpuThread {
        CpuThread {
            fresh,
            served: Vec::new(),
            name,
        }
    }
}

impl Machine for CpuThread {
    fn step(&mut self, _now: Time) -> Step {
        // The list is not locked while its queue pairs are served.
        let mut fresh = self.fresh.lock();
        self.served.append(&mut fresh);
        drop(fresh);
        self.served.retain(|core| !core.is(Life::Closed));
        let mut busy = false;
        for core in &self.served {
            busy |= serve(core);
        }
        if busy {
            Step::Progress
        } else {
            Step::IdleUntil(None)
        }
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

fn serve(core: &QpCore) -> bool {
    let mut state = core.lock_for_watcher();
    if core.is(Life::Closed) || state.under_way {
        // At the end of the call in progress the host is woken.
        return false;
    }
    let mut busy = false;
    // Pairs with the stream's fenced write: the stream's earlier writes are visible now.
    let trigger = core.addrs.send.trigger.cpu.load32(0);
    let wanted = trigger.wrapping_sub(state.rung as u32);
    if wanted as i32 > 0 {
        let upto = state.rung + u64::from(wanted);
        if let Some(posted) = state.send.ring_for(upto) {
            core.ring(posted.index, posted.doorbell);
        }
        state.rung = upto;
        busy = true;
    }
    let trigger = core.addrs.recv.trigger.cpu.load32(0);
    let record = &core.addrs.record.cpu;
    if doorbell::record_index(record.load32(doorbell::RCV)) != trigger as u16 {
        record.store32(doorbell::RCV, doorbell::record_value(trigger));
        core.ring_nic();
        busy = true;
    }
    busy | core.settle(&mut state)
}
