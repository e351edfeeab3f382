//! The delivery of a device's events: the objects by the owner field of their events, and the event
//! files of their contexts.
//!
//! A completion event has eight bytes and goes to the channel of its CQ. An asynchronous event has
//! 16 bytes and goes to the file of the context. Both begin with the user's name of the object.
//! When the library destroys an object, it waits until the program has acknowledged the reported
//! number of events, which are those that the program has read. Events are therefore counted, and
//! unread ones are taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use vmlx5::Event;
use zerocopy::IntoBytes;

use crate::abi::core::{AsyncEventDesc, async_event};
use crate::event::EventFile;

/// An object with possible events.
pub(crate) struct Target {
    /// The user's name of the object.
    pub handle: u64,
    /// The channel of its completion events.
    pub channel: Option<Arc<EventFile>>,
    /// The file of its other events: that of its context.
    pub file: Arc<EventFile>,
}

/// The numbers of an object's events that its user has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Read {
    pub completions: u32,
    pub asynchronous: u32,
}

/// All objects of a device with possible events.
#[derive(Default)]
pub(crate) struct Targets {
    last: u64,
    all: BTreeMap<u64, (Target, Read)>,
    /// QPs whose user does not request an event when they are drained.
    quiet: BTreeSet<u64>,
    /// The files of asynchronous events of all contexts.
    contexts: Vec<Weak<EventFile>>,
    /// Files with queued events.
    full: Vec<Arc<EventFile>>,
}

impl Targets {
    /// Adds an object. Returns the owner field of its events.
    pub fn add(&mut self, target: Target) -> u64 {
        self.last += 1;
        self.all.insert(self.last, (target, Read::default()));
        self.last
    }

    /// Removes an object with its unread events.
    pub fn remove(&mut self, owner: u64) -> Read {
        self.quiet.remove(&owner);
        let Some((target, sent)) = self.all.remove(&owner) else {
            return Read::default();
        };
        let of_it = |bytes: &[u8]| bytes.starts_with(&target.handle.to_ne_bytes());
        let channel = target.channel.as_ref();
        let completions = channel.map_or(0, |channel| channel.take_back(of_it));
        let asynchronous = target.file.take_back(|bytes| {
            // Port numbers are not names of objects.
            let of_port = [
                async_event::DEVICE_FATAL,
                async_event::PORT_ACTIVE,
                async_event::PORT_ERR,
            ]
            .iter()
            .any(|kind| bytes[8..].starts_with(&kind.to_ne_bytes()));
            of_it(bytes) && !of_port
        });
        Read {
            completions: sent.completions.saturating_sub(completions),
            asynchronous: sent.asynchronous.saturating_sub(asynchronous),
        }
    }

    /// Sets whether the user of a QP requests an event when it is drained.
    pub fn request_drained(&mut self, owner: u64, requested: bool) {
        if requested {
            self.quiet.remove(&owner);
        } else {
            self.quiet.insert(owner);
        }
    }

    /// Adds a context, which receives port events as long as its file is open.
    pub fn add_context(&mut self, file: &Arc<EventFile>) {
        self.contexts.retain(|file| file.strong_count() > 0);
        self.contexts.push(Arc::downgrade(file));
    }

    /// Whether there is no recipient.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Delivers an event to its recipients.
    pub fn deliver(&mut self, event: Event) {
        use async_event::*;
        let (owner, kind) = match event {
            Event::Completion { owner, .. } => return self.deliver_completion(owner),
            Event::Port { port, up } => {
                return self.deliver_port(port, if up { PORT_ACTIVE } else { PORT_ERR });
            }
            Event::DeviceFatal => return self.deliver_port(0, DEVICE_FATAL),
            Event::CqError { owner, .. } => (owner, CQ_ERR),
            Event::QpFatal { owner, .. } => (owner, QP_FATAL),
            Event::QpRequest { owner, .. } => (owner, QP_REQ_ERR),
            Event::QpAccess { owner, .. } => (owner, QP_ACCESS_ERR),
            Event::CommEst { owner, .. } => (owner, COMM_EST),
            Event::SqDrained { owner, .. } if self.quiet.contains(&owner) => return,
            Event::SqDrained { owner, .. } => (owner, SQ_DRAINED),
            Event::LastWqe { owner, .. } => (owner, QP_LAST_WQE_REACHED),
            Event::SrqLimit { owner, .. } => (owner, SRQ_LIMIT_REACHED),
            Event::SrqError { owner, .. } => (owner, SRQ_ERR),
            // Events of objects that no context can create.
            _ => return,
        };
        if let Some((target, sent)) = self.all.get_mut(&owner) {
            sent.asynchronous += 1;
            let file = Arc::clone(&target.file);
            let element = target.handle;
            self.send(file, message(element, kind).as_bytes());
        }
    }

    fn deliver_completion(&mut self, owner: u64) {
        if let Some((target, sent)) = self.all.get_mut(&owner)
            && let Some(channel) = &target.channel
        {
            sent.completions += 1;
            let channel = Arc::clone(channel);
            let name = target.handle.to_ne_bytes();
            self.send(channel, &name);
        }
    }

    /// Sends an event to every context; port 0 stands for the device.
    fn deliver_port(&mut self, port: u8, kind: u32) {
        let files: Vec<Arc<EventFile>> = self.contexts.iter().filter_map(Weak::upgrade).collect();
        for file in files {
            self.send(file, message(port.into(), kind).as_bytes());
        }
    }

    fn send(&mut self, file: Arc<EventFile>, bytes: &[u8]) {
        if !file.send(bytes) && !self.full.iter().any(|f| Arc::ptr_eq(f, &file)) {
            self.full.push(file);
        }
    }

    /// Sends the queued events.
    pub fn push(&mut self) {
        self.full.retain(|file| !file.push());
    }
}

fn message(element: u64, event_type: u32) -> AsyncEventDesc {
    AsyncEventDesc {
        element,
        event_type,
        reserved: 0,
    }
}
