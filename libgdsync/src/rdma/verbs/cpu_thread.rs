//! The CPU thread that rings: it posts what streams ask for.
//!
//! A stream posts by writing how many requests of the queue are to be posted into a *trigger*
//! word, and waits on a *done* word that counts completed positions. The CPU thread looks at the
//! trigger words of its queue pairs, rings the NIC for what is new, reads completion entries, and
//! publishes. A completion in error is counted only after its status is stored.

use std::sync::Arc;

use gds_step::{Machine, Step, Time};
use mlx5_prm::doorbell;

use super::watch::WatchList;
use super::{Life, QpCore};
use crate::ring::RingMemory;

/// The CPU thread as a step machine.
pub(crate) struct CpuThread {
    /// Those that it is going to serve.
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
        // Not locked while they are served.
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
        // At the end of what is under way the host is rung.
        return false;
    }
    let mut busy = false;
    // Pairs with the stream's fenced write: what it wrote before is visible now.
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
