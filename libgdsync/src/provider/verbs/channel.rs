//! The completion channel of a NIC: its events end the sleep of the NIC's thread.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use gdsync_sys::verbs::types::{ibv_comp_channel, ibv_cq};

use super::OPEN;
use super::queues::DeviceQueues;
use crate::error::Result;
use crate::provider::ibv::{Context, refused_last};
use crate::provider::relay::thread::{SharedRelay, Source};

/// A channel for the events of a NIC's completion queues.
pub(super) struct Channel {
    context: &'static Context,
    pub raw: *mut ibv_comp_channel,
    /// Whether the device is lost. Used by the thread only: relaxed.
    lost: AtomicBool,
}

// SAFETY: libibverbs may be called from any thread with any of its objects.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub fn new(context: &'static Context) -> Result<Channel> {
        // SAFETY: an open context.
        let raw = unsafe { (context.verbs().ibv_create_comp_channel)(context.raw()) };
        if raw.is_null() {
            return Err(refused_last(OPEN, "ibv_create_comp_channel"));
        }
        let channel = Channel {
            context,
            raw,
            lost: AtomicBool::new(false),
        };
        // An event may be taken back after `poll` has reported it and before it is read.
        // SAFETY: a live channel's descriptor.
        let answer = unsafe {
            let flags = libc::fcntl((*raw).fd, libc::F_GETFL);
            libc::fcntl((*raw).fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        match answer < 0 {
            true => Err(refused_last(OPEN, "fcntl of the completion channel")),
            false => Ok(channel),
        }
    }

    fn read_events(&self, relays: &[SharedRelay<DeviceQueues>]) {
        let verbs = self.context.verbs();
        loop {
            let (mut cq, mut own) = (std::ptr::null_mut::<ibv_cq>(), std::ptr::null_mut());
            // SAFETY: a live channel, which does not block, and memory to write to.
            if unsafe { (verbs.ibv_get_cq_event)(self.raw, &mut cq, &mut own) } != 0 {
                return;
            }
            // SAFETY: the completion queue does not end before its events are acknowledged.
            unsafe { (verbs.ibv_ack_cq_events)(cq, 1) };
            for relay in relays {
                relay.with(|relay| relay.queues.disarm(cq));
            }
        }
    }
}

impl Source for Channel {
    type Queues = DeviceQueues;

    fn name(&self) -> &str {
        &self.context.name
    }

    fn fd(&self) -> RawFd {
        match self.lost.load(Ordering::Relaxed) {
            // The descriptor of a lost channel is always ready.
            true => -1,
            // SAFETY: a channel lives as long as this.
            false => unsafe { (*self.raw).fd },
        }
    }

    fn take_events(&self, relays: &[SharedRelay<DeviceQueues>], revents: i16) -> bool {
        self.read_events(relays);
        if revents & !libc::POLLIN != 0 {
            // The kernel has taken the device from the process, which only the channel reports: no
            // request completes any more, and no call changes that.
            self.lost.store(true, Ordering::Relaxed);
            tracing::warn!(target: "gdsync", "{} is lost: its requests fail", self.name());
        }
        true
    }

    fn before_sleep(&self, relays: &[SharedRelay<DeviceQueues>]) -> bool {
        let lose = |relay: &&SharedRelay<DeviceQueues>| relay.with(|relay| relay.lose());
        self.lost.load(Ordering::Relaxed) && relays.iter().filter(lose).count() > 0
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by `new`; no queue is left that uses it.
        let answer = unsafe { (self.context.verbs().ibv_destroy_comp_channel)(self.raw) };
        if answer != 0 {
            let name = &self.context.name;
            tracing::warn!(target: "gdsync", "destroy completion channel of {name}: {answer}");
        }
    }
}
