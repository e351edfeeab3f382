//! Failures of requests, and which of them a call has returned to the application.
//!
//! A failed request has a [`Fault`]. The fault stays with the request while its handle is held. A
//! fault that no call has returned when the handle is dropped goes to [`Faults`], which keeps a
//! bounded number of faults and counts the others.

use gdsync::Status;

use super::one_sided::Action;

/// Maximum number of kept faults of dropped requests; further ones are counted. Also the maximum
/// number of groups in which they are counted.
const KEPT: usize = 64;

/// The cause of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The request failed itself; the text is the reason.
    Own(String),
    /// The peer was given up because of this request.
    Culprit,
    /// The peer was given up for another reason.
    Peer,
}

/// The name of a request in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub receive: bool,
    /// What a one-sided operation does; its `number` is the offset in the window. `None`: a send or
    /// a receive.
    pub one_sided: Option<Action>,
    /// `None`: from any rank, not matched yet.
    pub peer: Option<u32>,
    pub tag: u32,
    pub number: u64,
    /// Bytes of the message, or of the receive's room.
    pub size: u64,
}

/// A failure.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// Position in the order of failures.
    pub order: u64,
    pub name: Name,
    pub status: Status,
    pub why: Why,
    /// Streams that posted the request or waited for it.
    pub streams: Vec<u64>,
}

impl Fault {
    /// Whether it belongs to `stream`; `None` stands for all streams and the CPU.
    pub fn is_of(&self, stream: Option<u64>) -> bool {
        stream.is_none_or(|stream| self.streams.contains(&stream))
    }
}

/// How a request ended, for error reports.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// The stream that posted it, once it has ended.
    pub stream: Option<u64>,
    /// Its failure.
    pub fault: Option<Box<Fault>>,
    /// A call has returned the failure, or is about to.
    pub returned: bool,
}

/// Failures that no call has returned.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Faults of dropped requests.
    pub kept: Vec<Fault>,
    /// Further faults, in groups: the first fault of each set of streams, and the number of faults
    /// of that set. The last group of a full list counts all other sets, and its fault collects
    /// their streams.
    pub counted: Vec<(Fault, usize)>,
    /// How many faults the requests in the table and `kept` hold.
    pub open: usize,
    last_order: u64,
}

impl Faults {
    /// The next position in the order of failures.
    pub fn next_order(&mut self) -> u64 {
        self.last_order += 1;
        self.last_order
    }

    /// Keeps the fault of a request that is dropped. `false`: there is no room, and the fault is
    /// counted.
    pub fn keep(&mut self, fault: Fault) -> bool {
        if self.kept.len() < KEPT {
            self.kept.push(fault);
            return true;
        }
        self.open -= 1;
        let full = self.counted.len() == KEPT;
        let same = |(first, _): &&mut (Fault, usize)| first.streams == fault.streams;
        match self.counted.iter_mut().find(same) {
            Some((_, count)) => *count += 1,
            None if full => {
                let (first, count) = &mut self.counted[KEPT - 1];
                for stream in fault.streams {
                    if !first.streams.contains(&stream) {
                        first.streams.push(stream);
                    }
                }
                *count += 1;
            }
            None => self.counted.push((fault, 1)),
        }
        false
    }

    /// Removes the faults of `stream`, or all, that belong to no request in the table: a call has
    /// returned them. A group of several streams is returned once for each stream.
    pub fn forget(&mut self, stream: Option<u64>) {
        self.kept.retain(|fault| !fault.is_of(stream));
        self.counted.retain_mut(|(fault, _)| {
            let returned = fault.is_of(stream);
            fault.streams.retain(|other| Some(*other) != stream);
            !returned || stream.is_some() && !fault.streams.is_empty()
        });
    }
}
