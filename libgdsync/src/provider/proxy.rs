//! The proxy: a CPU thread that posts what streams ask for.
//!
//! A stream posts by writing how many requests of the queue are to be posted into a *trigger*
//! word, and waits on a *done* word that counts completed positions. The proxy looks at the
//! trigger words of its queue pairs, rings the NIC for what is new, reads completion entries, and
//! publishes. A completion in error is counted only after its status is stored.

use std::sync::{Arc, Mutex, PoisonError};

use gds_step::{Machine, Step, Time};
use mlx5_prm::doorbell;

use crate::rdma::QpCore;
use crate::ring::RingMemory;

/// The queue pairs that one proxy serves.
#[derive(Clone, Default)]
pub(crate) struct ProxyList(Arc<Mutex<Vec<Arc<QpCore>>>>);

impl ProxyList {
    pub fn add(&self, core: Arc<QpCore>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(core);
    }
}

/// The proxy as a step machine.
pub(crate) struct Proxy {
    list: ProxyList,
    name: String,
}

impl Proxy {
    pub fn new(list: ProxyList, name: String) -> Proxy {
        Proxy { list, name }
    }
}

impl Machine for Proxy {
    fn step(&mut self, _now: Time) -> Step {
        let mut list = self.list.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|core| !core.is_closed());
        let mut busy = false;
        for core in list.iter() {
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
    // Whoever holds the lock may be in a call of a driver, and other NICs wait for this thread.
    let Some(mut state) = core.try_lock() else {
        return false;
    };
    if core.is_closed() {
        return false;
    }
    let mut busy = false;
    // Pairs with the stream's fenced write: what it wrote before is visible now.
    let trigger = core.places.send.trigger.cpu.load32(0);
    let wanted = trigger.wrapping_sub(state.rung as u32);
    if wanted as i32 > 0 {
        let upto = state.rung + u64::from(wanted);
        if let Some(posted) = state.send.ring_for(upto) {
            core.ring(posted.index, posted.doorbell);
        }
        state.rung = upto;
        busy = true;
    }
    let trigger = core.places.recv.trigger.cpu.load32(0);
    let record = &core.places.record.cpu;
    if doorbell::record_index(record.load32(doorbell::RCV)) != trigger as u16 {
        record.store32(doorbell::RCV, doorbell::record_value(trigger));
        core.ring_nic();
        busy = true;
    }
    busy | core.settle(&mut state)
}
