//! Failures of requests, and which of them a call has returned to the application.
//!
//! A request that failed has a [`Fault`]. It stays with the request while its handle is held. What
//! no call has returned by the time the handle is dropped goes to [`Faults`], which keeps a bounded
//! number of them and counts the rest.

use gdsync::Status;

/// Faults of dropped requests that are kept; further ones are counted. Also the most groups that
/// they are counted in.
const KEPT: usize = 64;

/// Whose failure a fault is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The request's own, in words.
    Own(String),
    /// The peer was given up because of this request.
    Culprit,
    /// The peer was given up for another reason.
    Peer,
}

/// Names a request in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub receive: bool,
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
    /// Whether it belongs to what was enqueued on `stream`; `None`: on any, or by the CPU.
    pub fn is_of(&self, stream: Option<u64>) -> bool {
        stream.is_none_or(|stream| self.streams.contains(&stream))
    }
}

/// How a request ended, as far as it concerns errors.
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
    /// Further ones, in groups: the first fault of each set of streams, and how many there are of
    /// that set. The last of the most groups takes in all other sets, and its fault their streams.
    pub counted: Vec<(Fault, usize)>,
    /// How many faults the requests in the table and `kept` hold.
    pub open: usize,
    last: u64,
}

impl Faults {
    /// The next position in the order of failures.
    pub fn order(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Keeps the fault of a request that is dropped. `false`: there is no room, and it is counted.
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

    /// Forgets the faults of `stream`, or all, that are not a request's: a call has returned them.
    /// A group of several streams is returned for each of them.
    pub fn forget(&mut self, stream: Option<u64>) {
        self.kept.retain(|fault| !fault.is_of(stream));
        self.counted.retain_mut(|(fault, _)| {
            let returned = fault.is_of(stream);
            fault.streams.retain(|other| Some(*other) != stream);
            !returned || stream.is_some() && !fault.streams.is_empty()
        });
    }
}
