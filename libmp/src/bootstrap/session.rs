//! A rank's side of the protocol with the store. Pure: bytes are its input, bytes are its output;
//! the socket is in another module.

use super::inbox::{Inbox, room};
use super::output::Output;
use super::secret::Nonce;
use super::wire::{self, Frame, Hello, MAX_FRAME, Malformed};
use super::{Secret, WINDOW};

/// The room that is returned to a sender in one credit, in bytes.
const CREDIT: u32 = WINDOW / 4;

/// The reason for which a session ended early, as a clause whose subject is the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SessionError {
    /// The store refuses this rank.
    #[error("refused this rank: {0}")]
    Refused(String),
    /// The store has another version of the protocol.
    #[error(
        "has version {0} of the protocol, and this rank has version {v}; use one version of mp",
        v = wire::VERSION
    )]
    Foreign(u32),
    /// The process that answered does not have the secret.
    #[error(
        "does not have the secret of this rank; check its address, and use one MP_SECRET for all ranks"
    )]
    WrongSecret,
    /// The bytes from the store are malformed.
    #[error("sent malformed bytes: {0}")]
    Malformed(&'static str),
}

impl From<Malformed> for SessionError {
    fn from(malformed: Malformed) -> SessionError {
        SessionError::Malformed(malformed.0)
    }
}

/// The progress of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The greeting is queued.
    Greeted,
    /// The store has proved the secret and challenges this rank.
    Asked(Nonce),
    /// The rank has proved the secret and waits for the other ranks.
    Answered,
    /// All ranks have joined.
    Started,
}

/// The state of a rank's session with the store.
#[derive(Debug)]
pub(super) struct Session {
    secret: Secret,
    hello: Hello,
    job: u64,
    phase: Phase,
    input: Vec<u8>,
    /// Bytes to write to the store.
    pub output: Output,
    /// The number of missing ranks in the last notice, and the first of them.
    missing: (u32, Vec<u32>),
    /// Indexed by rank, as far as received.
    hosts: Vec<u64>,
    inbox: Inbox,
    /// Indexed by rank: whether it has left.
    gone: Vec<bool>,
    /// Indexed by receiver: room of the messages in flight, in bytes.
    sent: Vec<u32>,
    /// Indexed by sender: room that is not returned yet, in bytes.
    uncredited: Vec<u32>,
}

impl Session {
    /// A session that begins with a greeting.
    pub fn new(secret: Secret, hello: Hello) -> Session {
        let mut output = Output::default();
        output.push(&Frame::Hello(hello));
        let size = hello.size as usize;
        Session {
            secret,
            hello,
            job: 0,
            phase: Phase::Greeted,
            input: Vec::new(),
            output,
            missing: (0, Vec::new()),
            hosts: Vec::new(),
            inbox: Inbox::default(),
            gone: vec![false; size],
            sent: vec![0; size],
            uncredited: vec![0; size],
        }
    }

    /// Handles bytes from the store.
    ///
    /// # Errors
    /// The session has ended.
    pub fn input(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        let mut input = std::mem::take(&mut self.input);
        input.extend(bytes);
        let mut at = 0;
        while let Some((frame, len)) = wire::decode(&input[at..], MAX_FRAME)? {
            at += len;
            self.frame(frame)?;
        }
        input.drain(..at);
        self.input = input;
        Ok(())
    }

    fn frame(&mut self, frame: Frame<'_>) -> Result<(), SessionError> {
        let size = self.hello.size;
        let known = |rank: u32| match rank < size {
            true => Ok(rank as usize),
            false => Err(Malformed("a frame names a rank that is not in the job")),
        };
        match (self.phase, frame) {
            (_, Frame::Refused { why }) => return Err(SessionError::Refused(why.into())),
            (_, Frame::Foreign { version }) => return Err(SessionError::Foreign(version)),
            (Phase::Greeted, Frame::Challenge { job, nonce, proof }) => {
                if proof != self.hello.proof(&self.secret, "store", job, &nonce) {
                    return Err(SessionError::WrongSecret);
                }
                self.job = job;
                self.phase = Phase::Asked(nonce);
            }
            (Phase::Answered, Frame::Waiting { count, missing }) => {
                self.missing = (count, missing);
            }
            (Phase::Answered, Frame::Hosts { first, hosts }) => {
                if first as usize != self.hosts.len() {
                    return Err(Malformed("the hosts are out of order").into());
                }
                self.hosts.extend(hosts);
            }
            (Phase::Answered, Frame::Start) => {
                if self.hosts.len() != size as usize {
                    return Err(Malformed("the number of hosts is not the number of ranks").into());
                }
                self.phase = Phase::Started;
            }
            (Phase::Started, Frame::Message { peer, topic, bytes }) => {
                let from = known(peer)?;
                if !self.inbox.has_room(peer, bytes.len()) {
                    return Err(Malformed("the messages exceed the window").into());
                }
                if !self.inbox.push(peer, topic, bytes.to_vec()) {
                    self.give_back(from, room(bytes.len()));
                }
            }
            (Phase::Started, Frame::Credit { peer, room }) => {
                let sent = &mut self.sent[known(peer)?];
                let left = sent.checked_sub(room);
                *sent = left.ok_or(Malformed("a credit exceeds the messages in flight"))?;
            }
            (Phase::Started, Frame::Gone { rank }) => self.gone[known(rank)?] = true,
            _ => return Err(Malformed("a frame is out of turn").into()),
        }
        Ok(())
    }

    /// The job's number, once the store has proved that it has the secret.
    pub fn asked(&self) -> Option<u64> {
        matches!(self.phase, Phase::Asked(_)).then_some(self.job)
    }

    /// The job's number. Zero before the challenge of the store arrives.
    pub fn job(&self) -> u64 {
        self.job
    }

    /// Answers the challenge of the store: proves that this rank has the secret.
    pub fn answer(&mut self) {
        if let Phase::Asked(nonce) = self.phase {
            let proof = self.hello.proof(&self.secret, "rank", self.job, &nonce);
            self.output.push(&Frame::Answer { proof });
            self.phase = Phase::Answered;
        }
    }

    /// Whether all ranks have joined.
    pub fn started(&self) -> bool {
        self.phase == Phase::Started
    }

    /// The number of missing ranks in the last notice, and the first of them. Zero if it is not
    /// known.
    pub fn missing(&self) -> (u32, &[u32]) {
        (self.missing.0, &self.missing.1)
    }

    /// Host numbers, indexed by rank.
    pub fn hosts(&self) -> &[u64] {
        &self.hosts
    }

    /// Whether a rank has left.
    pub fn gone(&self, rank: u32) -> bool {
        self.gone.get(rank as usize) == Some(&true)
    }

    /// Queues a message. False if the window of `to` is full.
    pub fn send(&mut self, to: u32, topic: u64, bytes: &[u8]) -> bool {
        if to == self.hello.rank {
            let fits = self.inbox.has_room(to, bytes.len());
            if fits {
                self.inbox.push(to, topic, bytes.to_vec());
            }
            return fits;
        }
        let sent = &mut self.sent[to as usize];
        if *sent + room(bytes.len()) > WINDOW {
            return false;
        }
        *sent += room(bytes.len());
        let peer = to;
        self.output.push(&Frame::Message { peer, topic, bytes });
        true
    }

    /// Whether bytes wait to be written.
    pub fn has_output(&self) -> bool {
        !self.output.pending().is_empty()
    }

    /// Takes the next message under `topic`.
    pub fn take(&mut self, topic: u64) -> Option<(u32, Vec<u8>)> {
        let (from, message) = self.inbox.take(topic)?;
        self.give_back(from as usize, room(message.len()));
        Some((from, message))
    }

    /// Drops the messages that have arrived under `topic` and those that arrive later.
    pub fn forget(&mut self, topic: u64) {
        for (from, room) in self.inbox.forget(topic) {
            self.give_back(from as usize, room);
        }
    }

    /// Whether `topic` was forgotten.
    pub fn is_forgotten(&self, topic: u64) -> bool {
        self.inbox.is_forgotten(topic)
    }

    fn give_back(&mut self, from: usize, room: u32) {
        let uncredited = &mut self.uncredited[from];
        *uncredited += room;
        if *uncredited >= CREDIT && from != self.hello.rank as usize {
            let (peer, room) = (from as u32, std::mem::take(uncredited));
            self.output.push(&Frame::Credit { peer, room });
        } else if from == self.hello.rank as usize {
            *uncredited = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::MAX_MESSAGE;

    const SIZE: u32 = 3;

    fn hear(session: &mut Session, frame: &Frame<'_>) -> Result<(), SessionError> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        session.input(&bytes)
    }

    /// A session whose store has the secret `secret`.
    fn challenged(secret: &Secret) -> (Session, Result<(), SessionError>) {
        let hello = Hello::plain(0, SIZE);
        let (job, nonce) = (5, [2; 32]);
        let proof = hello.proof(secret, "store", job, &nonce);
        let mut session = Session::new(Secret::from_bytes([7; 32]), hello);
        let heard = hear(&mut session, &Frame::Challenge { job, nonce, proof });
        session.answer();
        (session, heard)
    }

    fn answered() -> Session {
        let (session, heard) = challenged(&Secret::from_bytes([7; 32]));
        assert_eq!(heard, Ok(()));
        session
    }

    fn hosts(first: u32, count: u32) -> Frame<'static> {
        let hosts = vec![0; count as usize];
        Frame::Hosts { first, hosts }
    }

    #[test]
    fn store_without_the_secret_gets_no_answer() {
        let (session, heard) = challenged(&Secret::from_bytes([8; 32]));
        assert_eq!(
            (heard, session.asked()),
            (Err(SessionError::WrongSecret), None)
        );
    }

    #[test]
    fn hosts_must_arrive_in_order_and_all_before_the_start() {
        let wrong = |heard| {
            assert!(
                matches!(heard, Err(SessionError::Malformed(_))),
                "{heard:?}"
            )
        };
        wrong(hear(&mut answered(), &hosts(1, 2)));
        let mut session = answered();
        hear(&mut session, &hosts(0, SIZE - 1)).unwrap();
        wrong(hear(&mut session, &Frame::Start));
        let mut session = answered();
        hear(&mut session, &hosts(0, 1)).unwrap();
        hear(&mut session, &hosts(1, SIZE - 1)).unwrap();
        hear(&mut session, &Frame::Start).unwrap();
        assert!(session.started());
    }

    #[test]
    fn a_store_that_sends_more_than_the_window_is_an_error() {
        let mut session = answered();
        hear(&mut session, &hosts(0, SIZE)).unwrap();
        hear(&mut session, &Frame::Start).unwrap();
        let (peer, topic, bytes) = (1, 0, &[0; MAX_MESSAGE][..]);
        let message = Frame::Message { peer, topic, bytes };
        let fit = (WINDOW / room(MAX_MESSAGE)) as usize;
        for _ in 0..fit {
            hear(&mut session, &message).unwrap();
        }
        assert!(matches!(
            hear(&mut session, &message),
            Err(SessionError::Malformed(_))
        ));
    }
}
