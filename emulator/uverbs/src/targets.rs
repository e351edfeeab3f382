//! Who is told what happens on a device: its objects by what their events carry, and the event
//! files of the contexts that made them.
//!
//! A completion event is eight bytes on the channel of its queue, an asynchronous one sixteen on
//! the file of the context; both begin with the user's name of the object. The library waits,
//! when it destroys an object, until the program acknowledged as many events as are reported
//! then: those that the program read. So events are counted, and unread ones taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use vmlx5::Event;
use zerocopy::IntoBytes;

use crate::abi::core::{AsyncEventDesc, async_event};
use crate::event::EventFile;

/// An object that events may speak of.
pub(crate) struct Target {
    /// The user's name of it.
    pub handle: u64,
    /// Where its completions are told.
    pub channel: Option<Arc<EventFile>>,
    /// Where all else of it is told: the file of its context.
    pub file: Arc<EventFile>,
}

/// How many events of an object its user has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Read {
    pub completions: u32,
    pub asynchronous: u32,
}

/// All objects of a device that events may speak of.
#[derive(Default)]
pub(crate) struct Targets {
    last: u64,
    all: BTreeMap<u64, (Target, Read)>,
    /// Queue pairs whose user does not ask to be told that they are drained.
    quiet: BTreeSet<u64>,
    /// The files of asynchronous events of all contexts.
    contexts: Vec<Weak<EventFile>>,
    /// Files that did not take all yet.
    full: Vec<Arc<EventFile>>,
}

impl Targets {
    /// Adds an object. Returns what its events must carry as its owner.
    pub fn add(&mut self, target: Target) -> u64 {
        self.last += 1;
        self.all.insert(self.last, (target, Read::default()));
        self.last
    }

    /// Removes an object with the events that were not read.
    pub fn remove(&mut self, owner: u64) -> Read {
        self.quiet.remove(&owner);
        let Some((target, sent)) = self.all.remove(&owner) else {
            return Read::default();
        };
        let of_it = |bytes: &[u8]| bytes.starts_with(&target.handle.to_ne_bytes());
        let channel = target.channel.as_ref();
        let completions = channel.map_or(0, |channel| channel.take_back(of_it));
        let asynchronous = target.file.take_back(|bytes| {
            // The numbers of ports are no names of objects.
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

    /// Says whether the user of a queue pair asks to be told when it is drained.
    pub fn tell_drained(&mut self, owner: u64, asked: bool) {
        if asked {
            self.quiet.remove(&owner);
        } else {
            self.quiet.insert(owner);
        }
    }

    /// Adds a context, which is told of ports as long as its file is there.
    pub fn add_context(&mut self, file: &Arc<EventFile>) {
        self.contexts.retain(|file| file.strong_count() > 0);
        self.contexts.push(Arc::downgrade(file));
    }

    /// True if there is nobody to tell anything.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Tells who is concerned.
    pub fn tell(&mut self, event: Event) {
        use async_event::*;
        let (owner, kind) = match event {
            Event::Completion { owner, .. } => return self.tell_completion(owner),
            Event::Port { port, up } => {
                return self.tell_port(port, if up { PORT_ACTIVE } else { PORT_ERR });
            }
            Event::DeviceFatal => return self.tell_port(0, DEVICE_FATAL),
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
            // Of objects that no context can make.
            _ => return,
        };
        if let Some((target, sent)) = self.all.get_mut(&owner) {
            sent.asynchronous += 1;
            let file = Arc::clone(&target.file);
            let element = target.handle;
            self.send(file, message(element, kind).as_bytes());
        }
    }

    fn tell_completion(&mut self, owner: u64) {
        if let Some((target, sent)) = self.all.get_mut(&owner)
            && let Some(channel) = &target.channel
        {
            sent.completions += 1;
            let channel = Arc::clone(channel);
            let name = target.handle.to_ne_bytes();
            self.send(channel, &name);
        }
    }

    /// To every context; of port 0: of the device.
    fn tell_port(&mut self, port: u8, kind: u32) {
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

    /// Sends what did not fit before.
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
