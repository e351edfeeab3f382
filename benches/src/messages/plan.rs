//! The programs of two ranks, drawn from a seed: batches of messages with their lengths, tags, places,
//! streams and the times of their receives. Both ranks draw the same. Pure: no GPU, no clock.
//!
//! A batch is drawn by its execution: at each step one of the four streams posts or waits, unless it
//! waits at the send of a message above the eager limit whose receive is not posted. So there is an
//! order in which no stream waits forever, whatever the streams do at the same time. Each rank has a
//! stream that is not held by such a send. A send needs the credit of the message that had its slot; a
//! receiver returns credits in runs of half the slots, so half of the slots are used.

use std::collections::VecDeque;
use std::ops::Range;

use fastrand::Rng;

/// Ranks, and streams of each.
pub const RANKS: usize = 2;
pub const STREAMS: usize = 2;
/// Messages of a batch, of both ranks.
pub const BATCH: u64 = 256;
/// Slots of each tag.
pub const DEPTH: u32 = 64;
/// Most consecutive messages under a tag in one direction of which the first is not waited for.
const FLIGHT: usize = DEPTH as usize / 2;
/// The longest message that does not wait for its receive: the default of contexts.
const EAGER: u32 = 4096;
/// Most requests of a call.
const CALL: usize = 6;
/// Alignments of places in bytes.
const ALIGNED: [u32; 5] = [1, 1, 4, 16, 256];

/// What a program is drawn from.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub seed: u64,
    pub messages: u64,
    pub tags: u32,
    /// The longest message in bytes.
    pub longest: u32,
    /// The message whose bytes no other message has, so that one wrong bit is of this one alone.
    pub spoil: Option<u64>,
}

impl Choice {
    /// Bytes of what a stream receives in a batch.
    pub fn target(&self) -> u32 {
        (16 * self.longest).next_multiple_of(4096).max(64 << 10)
    }

    /// Bytes of what a stream sends in a batch: as many, and those of the spoiled message behind them.
    pub fn source(&self) -> u32 {
        self.target() + self.longest.next_multiple_of(8)
    }
}

/// A message.
#[derive(Clone, Debug)]
pub struct Message {
    /// The number among all messages.
    pub number: u64,
    /// The rank that sends it.
    pub sender: usize,
    pub tag: u32,
    pub len: u32,
    /// The length of its receive, which may be greater.
    pub room: u32,
    /// The streams of its send and of its receive.
    pub streams: [usize; 2],
    /// The offset of its bytes where the sender's stream has its own, and where the receiver's stream
    /// receives.
    pub from: u32,
    pub into: u32,
    /// The receive is posted before the send.
    pub early: bool,
    /// The stream of the send has passed it, and that of the receive has waited for it.
    sent: bool,
    taken: bool,
}

/// The send or the receive of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    /// The index of the message in the batch.
    pub message: usize,
    pub sends: bool,
}

/// A call of a rank: it posts requests on a stream, or makes the stream wait for them.
#[derive(Clone, Debug)]
pub struct Call {
    pub rank: usize,
    pub stream: usize,
    pub waits: bool,
    /// Its requests, in [`Batch::halves`].
    pub halves: Range<usize>,
}

/// The messages of a batch and the calls of both ranks, in an order in which they can be executed.
#[derive(Debug, Default)]
pub struct Batch {
    pub number: u64,
    pub messages: Vec<Message>,
    pub halves: Vec<Half>,
    pub calls: Vec<Call>,
}

/// Draws the batches of a program.
pub struct Plan {
    choice: Choice,
    rng: Rng,
    batches: u64,
    drawn: u64,
}

impl Plan {
    pub fn new(choice: Choice) -> Plan {
        Plan {
            rng: Rng::with_seed(choice.seed),
            batches: 0,
            drawn: 0,
            choice,
        }
    }
}

impl Iterator for Plan {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let count = BATCH.min(self.choice.messages - self.drawn);
        if count == 0 {
            return None;
        }
        let tags = self.choice.tags as usize;
        let mut draw = Draw {
            choice: self.choice,
            rng: &mut self.rng,
            first: self.drawn,
            count: count as usize,
            unmatched: [(); RANKS].map(|()| vec![VecDeque::new(); tags]),
            flight: [(); RANKS].map(|()| vec![VecDeque::new(); tags]),
            room: [self.choice.target(); RANKS],
            streams: Default::default(),
            batch: Batch {
                number: self.batches,
                ..Batch::default()
            },
        };
        draw.calls();
        draw.places();
        let batch = draw.batch;
        self.batches += 1;
        self.drawn += count;
        Some(batch)
    }
}

/// A stream while a batch is drawn.
#[derive(Default)]
struct StreamState {
    /// The requests that it has posted and not waited for.
    open: Vec<Half>,
    /// The messages of its last call for whose receives it waits.
    holds: Vec<usize>,
    /// The sends of that call.
    held: Vec<usize>,
}

struct Draw<'r> {
    choice: Choice,
    rng: &'r mut Rng,
    /// The number of the first message, and of messages in the batch.
    first: u64,
    count: usize,
    /// By sender and tag: the messages of which one half is posted.
    unmatched: [Vec<VecDeque<usize>>; RANKS],
    /// By sender and tag: the messages from the oldest on that the receiver has not waited for.
    flight: [Vec<VecDeque<usize>>; RANKS],
    /// By receiver: bytes that are left for messages.
    room: [u32; RANKS],
    streams: [[StreamState; STREAMS]; RANKS],
    batch: Batch,
}

impl Draw<'_> {
    /// Draws the calls, until every message is posted on both sides and waited for.
    fn calls(&mut self) {
        let open = |draw: &Self| draw.unmatched.iter().flatten().any(|q| !q.is_empty());
        while self.batch.messages.len() < self.count || open(self) {
            let (rank, stream) = (self.rng.usize(..RANKS), self.rng.usize(..STREAMS));
            if self.streams[rank][stream].holds.is_empty() {
                let most = self.rng.usize(1..=CALL);
                match self.rng.u8(..4) {
                    0 => self.wait(rank, stream, most),
                    _ => self.post(rank, stream, most),
                }
            }
        }
        for rank in 0..RANKS {
            for stream in 0..STREAMS {
                self.wait(rank, stream, usize::MAX);
            }
        }
    }

    fn call(&mut self, rank: usize, stream: usize, waits: bool, halves: &[Half]) {
        let start = self.batch.halves.len();
        self.batch.halves.extend(halves);
        self.batch.calls.push(Call {
            rank,
            stream,
            waits,
            halves: start..start + halves.len(),
        });
    }

    /// Waits for at most so many requests that end without a later call.
    fn wait(&mut self, rank: usize, stream: usize, most: usize) {
        let messages = &self.batch.messages;
        let mut left = most;
        let mut take = |half: &mut Half| {
            let takes = left > 0 && messages[half.message].sent;
            left -= usize::from(takes);
            takes
        };
        let open = &mut self.streams[rank][stream].open;
        let halves: Vec<Half> = open.extract_if(.., &mut take).collect();
        for half in halves.iter().filter(|half| !half.sends) {
            let messages = &mut self.batch.messages;
            messages[half.message].taken = true;
            let Message { sender, tag, .. } = messages[half.message];
            let flight = &mut self.flight[sender][tag as usize];
            while flight
                .pop_front_if(|message| messages[*message].taken)
                .is_some()
            {}
        }
        if !halves.is_empty() {
            self.call(rank, stream, true, &halves);
        }
    }

    /// Posts one request, or at most so many in one call.
    fn post(&mut self, rank: usize, stream: usize, most: usize) {
        let most = [1, most][self.rng.usize(..2)];
        let mut halves = Vec::with_capacity(most);
        for _ in 0..most {
            let sends = self.rng.bool();
            halves.extend(self.half(rank, stream, sends));
        }
        if halves.is_empty() {
            return;
        }
        let state = &mut self.streams[rank][stream];
        state.open.extend(&halves);
        let sends = halves.iter().filter(|half| half.sends);
        state.held = sends.map(|half| half.message).collect();
        self.call(rank, stream, false, &halves);
        self.pass(rank, stream);
    }

    /// The sends of a stream's last call have passed, if none of them waits for its receive.
    fn pass(&mut self, rank: usize, stream: usize) {
        let state = &mut self.streams[rank][stream];
        if state.holds.is_empty() {
            for message in state.held.drain(..) {
                self.batch.messages[message].sent = true;
            }
        }
    }

    /// A send or a receive: the other half of the oldest message under a tag of which one half is
    /// posted, or the first half of a new one.
    fn half(&mut self, rank: usize, stream: usize, sends: bool) -> Option<Half> {
        let sender = if sends { rank } else { 1 - rank };
        let tags = self.choice.tags as usize;
        let some = self.rng.usize(..tags);
        for tag in (some..tags).chain(0..some) {
            let posted = &mut self.unmatched[sender][tag];
            let messages = &mut self.batch.messages;
            match posted.front() {
                Some(&message) if messages[message].early == sends => {
                    posted.pop_front();
                    messages[message].streams[usize::from(!sends)] = stream;
                    if !sends {
                        let of = messages[message].streams[0];
                        self.streams[sender][of]
                            .holds
                            .retain(|held| *held != message);
                        self.pass(sender, of);
                    }
                    return Some(Half { message, sends });
                }
                _ if messages.len() < self.count && self.flight[sender][tag].len() < FLIGHT => {
                    let message = messages.len();
                    posted.push_back(message);
                    self.flight[sender][tag].push_back(message);
                    self.create(sender, tag as u32, stream, sends);
                    return Some(Half { message, sends });
                }
                _ => continue,
            }
        }
        None
    }

    /// A new message, of which the half of `stream` is posted first.
    fn create(&mut self, sender: usize, tag: u32, stream: usize, sends: bool) {
        let number = self.first + self.batch.messages.len() as u64;
        let spoiled = self.choice.spoil == Some(number);
        let mut longest = self.choice.longest.min(self.room[1 - sender]);
        let states = &self.streams[sender];
        let mut others = (0..STREAMS).filter(|other| *other != stream);
        // A stream of the rank must be left.
        if sends && !others.any(|other| states[other].holds.is_empty()) {
            longest = longest.min(EAGER);
        }
        let doublings = f64::from(longest + 1).log2();
        let len = (self.rng.f64() * doublings).exp2() as u32;
        // One in 64 is empty.
        let empty = !spoiled && self.rng.u8(..64) == 0;
        let len = if empty { 0 } else { len.min(longest) };
        let more = match self.rng.u8(..4) {
            0 => self.rng.u32(..=len.max(64)),
            _ => 0,
        };
        let room = (len + more).min(self.room[1 - sender]);
        self.room[1 - sender] -= room;
        if sends && len > EAGER {
            let message = self.batch.messages.len();
            self.streams[sender][stream].holds.push(message);
        }
        let align = ALIGNED[self.rng.usize(..ALIGNED.len())];
        let from = self.rng.u32(..=self.choice.target() - len);
        self.batch.messages.push(Message {
            number,
            sender,
            tag,
            len,
            room,
            streams: [stream; 2],
            from: match spoiled {
                true => self.choice.target(),
                false => from - from % align,
            },
            into: 0,
            early: !sends,
            sent: false,
            taken: false,
        });
    }

    /// Draws where each stream receives its messages: in any order, with gaps of any length.
    fn places(&mut self) {
        for (rank, stream) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut mine = self.batch.received(rank, stream);
            self.rng.shuffle(&mut mine);
            let rooms = mine.iter().map(|i| self.batch.messages[*i].room);
            let mut slack = self.choice.target() - rooms.sum::<u32>();
            let mut at = 0;
            for (done, i) in mine.iter().enumerate() {
                let share = slack / (mine.len() - done) as u32;
                let gap = match self.rng.u8(..4) {
                    0 => 0,
                    1 => self.rng.u32(..=share.min(15)),
                    _ => self.rng.u32(..=share),
                };
                let align = ALIGNED[self.rng.usize(..ALIGNED.len())];
                let aligned = (at + gap).next_multiple_of(align);
                let start = if aligned - at <= slack { aligned } else { at };
                slack -= start - at;
                let message = &mut self.batch.messages[*i];
                message.into = start;
                at = start + message.room;
            }
        }
    }
}

impl Batch {
    /// The messages that a stream receives.
    pub fn received(&self, rank: usize, stream: usize) -> Vec<usize> {
        let messages = self.messages.iter().enumerate();
        let mine = messages.filter(|(_, m)| m.sender != rank && m.streams[1] == stream);
        mine.map(|(i, _)| i).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(longest: u32) -> Choice {
        Choice {
            seed: 7,
            messages: 10 * BATCH + 33,
            tags: 3,
            longest,
            spoil: None,
        }
    }

    #[test]
    fn all_messages_are_drawn_and_equal_seeds_draw_equal_programs() {
        let text = |seed| {
            let program = Plan::new(Choice {
                seed,
                ..choice(9000)
            });
            program.map(|b| format!("{b:?}")).collect::<Vec<_>>()
        };
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
        let messages = Plan::new(choice(70_000)).flat_map(|batch| batch.messages);
        let messages: Vec<Message> = messages.collect();
        let numbers: Vec<u64> = messages.iter().map(|m| m.number).collect();
        assert_eq!(numbers, Vec::from_iter(0..choice(1).messages));
        let some = |is: fn(&Message) -> bool| messages.iter().any(is);
        assert!(some(|m| m.len == 0) && some(|m| m.len == 1) && some(|m| m.len > 60_000));
        assert!(some(|m| !m.early && m.len > EAGER) && some(|m| m.early && m.len > EAGER));
        assert!(some(|m| m.room > m.len && m.len > 0));
        for odd in [some(|m| m.from % 2 == 1), some(|m| m.into % 2 == 1)] {
            assert!(odd, "places of any alignment");
        }
    }

    #[test]
    fn received_ranges_are_in_the_target_and_do_not_overlap() {
        // The messages of the last two fill the target.
        for longest in [1, 300, 70_000, 1 << 20] {
            let choice = choice(longest);
            for batch in Plan::new(choice) {
                for (rank, stream) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let mut ranges: Vec<(u32, u32)> = batch
                        .received(rank, stream)
                        .iter()
                        .map(|i| &batch.messages[*i])
                        .inspect(|m| assert!(m.len <= m.room && m.from + m.len <= choice.target()))
                        .map(|m| (m.into, m.into + m.room))
                        .collect();
                    ranges.sort_unstable();
                    assert!(ranges.windows(2).all(|two| two[0].1 <= two[1].0));
                    assert!(ranges.iter().all(|(_, end)| *end <= choice.target()));
                }
            }
        }
    }

    /// Executes the calls of the two ranks, each stream as far as it goes, the streams in one order
    /// and in the other. A send above the eager limit passes when its receive is posted, and a send with a
    /// credit that is returned as late as possible.
    #[test]
    fn no_stream_waits_forever_and_tags_keep_their_order() {
        for (longest, forth) in [(100, true), (50_000, true), (50_000, false)] {
            for batch in Plan::new(choice(longest)) {
                execute(&batch, forth);
            }
        }
    }

    fn execute(batch: &Batch, forth: bool) {
        let count = batch.messages.len();
        let (mut reached, mut posted, mut passed) =
            ([0; 4], vec![false; count], vec![false; count]);
        let (mut waited, mut ended) = (vec![[false; 2]; count], 0);
        let calls = |index: usize| {
            let mine = move |call: &&Call| call.rank * STREAMS + call.stream == index;
            batch.calls.iter().filter(mine).collect::<Vec<_>>()
        };
        let streams: Vec<Vec<&Call>> = (0..4).map(calls).collect();
        // The n-th send under a tag matches the n-th receive, in the order of the calls.
        let mut nth = vec![(0, Vec::new()); count];
        for sender in 0..RANKS {
            for tag in 0..3 {
                let order = |sends: bool| -> Vec<usize> {
                    let posts = batch.calls.iter().filter(|call| !call.waits);
                    let halves = posts.flat_map(|call| &batch.halves[call.halves.clone()]);
                    let of = |half: &&Half| {
                        let message = &batch.messages[half.message];
                        half.sends == sends && (message.sender, message.tag) == (sender, tag)
                    };
                    halves.filter(of).map(|half| half.message).collect()
                };
                let all = order(true);
                assert_eq!(all, order(false));
                for (n, message) in all.iter().enumerate() {
                    nth[*message] = (n, all.clone());
                }
            }
        }
        loop {
            let before = (reached, ended);
            for turn in 0..4 {
                let index = if forth { turn } else { 3 - turn };
                while let Some(call) = streams[index].get(reached[index]) {
                    let halves = &batch.halves[call.halves.clone()];
                    if call.waits {
                        if !halves.iter().all(|half| passed[half.message]) {
                            break;
                        }
                        for half in halves {
                            waited[half.message][usize::from(half.sends)] = true;
                            ended += 1;
                        }
                    } else {
                        for half in halves.iter().filter(|half| !half.sends) {
                            posted[half.message] = true;
                        }
                        let holds = |half: &Half| {
                            let long = batch.messages[half.message].len > EAGER;
                            let (n, all) = &nth[half.message];
                            let last = (n + DEPTH as usize / 2).saturating_sub(DEPTH as usize);
                            let credit = all[..last].iter().all(|message| waited[*message][0]);
                            half.sends && (long && !posted[half.message] || !credit)
                        };
                        if halves.iter().any(holds) {
                            break;
                        }
                        for half in halves.iter().filter(|half| half.sends) {
                            passed[half.message] = true;
                        }
                    }
                    reached[index] += 1;
                }
            }
            if before == (reached, ended) {
                break;
            }
        }
        assert_eq!(reached, [0, 1, 2, 3].map(|index| streams[index].len()));
        assert!(waited.iter().all(|both| *both == [true; 2]));
    }
}
