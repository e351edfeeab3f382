//! The store, with connections that are not ranks, and a hostile rank. Two other ranks exchange
//! messages.

use std::collections::{BTreeMap, VecDeque};

use mp::bootstrap::fuzz::World;
use mp::bootstrap::{MAX_MESSAGE, WINDOW};

use super::frame::make;
use crate::heap::bounded;
use crate::input::Input;

const RANKS: u32 = 3;
/// The hostile rank, and the number of a connection that is not a rank.
const HOSTILE: u32 = 0;
const STRANGER: u32 = u32::MAX;
/// Most operations of one run.
const ACTS: usize = 96;
/// A topic that the hostile rank does not use.
const OURS: u64 = 77;

/// By sender: messages to the other rank that have not been received.
type Sent = BTreeMap<u32, VecDeque<Vec<u8>>>;

struct Play {
    world: World,
    sent: Sent,
    count: u32,
}

impl Play {
    /// One honest rank sends to the other, if the connection has room.
    fn send(&mut self, from: u32, len: usize) -> bool {
        let mut message = self.count.to_le_bytes().to_vec();
        message.resize(len.max(4), from as u8);
        let sent = self.world.send(from, 3 - from, OURS, &message);
        if sent {
            self.count += 1;
            self.sent.entry(from).or_default().push_back(message);
        }
        sent
    }

    /// One honest rank receives the oldest message of the other.
    fn take(&mut self, rank: u32) -> bool {
        let Some((from, message)) = self.world.take(rank, OURS) else {
            return false;
        };
        // The hostile rank may use any topic too.
        if from != HOSTILE {
            assert_eq!(from, 3 - rank);
            let queue = self.sent.get_mut(&from).expect("sent");
            assert_eq!(queue.pop_front(), Some(message));
        }
        true
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let act = input.byte();
        let honest = 1 + u32::from(act >> 4 & 1);
        match act & 15 {
            0..7 => {
                let from = if act & 0x30 == 0 { STRANGER } else { HOSTILE };
                let (mut text, mut bytes) = (String::new(), Vec::new());
                if act & 15 == 0 {
                    bytes.extend(input.bytes(48));
                } else {
                    make(input, &mut text).encode(&mut bytes);
                }
                let times = if act & 0x40 == 0 { 1 } else { 32 };
                for _ in 0..times {
                    self.world.say(from, &bytes);
                }
            }
            7 => self.world.close(HOSTILE),
            8 | 9 => {
                let len = input.pick(&[4, 5, 1000, MAX_MESSAGE]);
                self.send(honest, len);
            }
            10 | 11 => {
                self.take(honest);
            }
            12 => {
                let to = u32::from(input.byte()) % RANKS;
                self.world.send(HOSTILE, to, 1, &[3; 500]);
            }
            13 => {
                self.world.take(honest, u64::from(input.byte() & 3));
            }
            _ => self.world.turn(),
        }
    }
}

/// Whatever it receives, the store forwards the messages of other ranks in order, and buffers no
/// more than the windows of its ranks.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut play = Play {
        world: World::started(RANKS),
        sent: Sent::new(),
        count: 0,
    };
    let windows = (RANKS * RANKS * WINDOW) as usize;
    bounded(4 * windows, || {
        for _ in 0..ACTS {
            if input.done() {
                break;
            }
            play.act(&mut input);
        }
        for _ in 0..3 {
            play.world.turn();
            for rank in [1, 2] {
                while play.take(rank) {}
            }
        }
        assert!(play.sent.values().all(VecDeque::is_empty), "lost");
        for from in [1, 2] {
            assert!(play.send(from, 9), "there is room again");
            play.world.turn();
            assert!(!play.world.gone(from, 3 - from));
            while play.take(3 - from) {}
            assert!(play.sent[&from].is_empty(), "not forwarded");
        }
    });
}
