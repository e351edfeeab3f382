//! A rank, with a store that sends any bytes.

use mp::bootstrap::fuzz::{World, session};
use mp::bootstrap::wire::Frame;
use mp::bootstrap::{MAX_MESSAGE, WINDOW};

use super::frame::make;
use crate::heap::bounded;
use crate::input::Input;

const RANKS: u32 = 3;
/// Most operations of one run.
const ACTS: usize = 64;

/// The result of a byte stream does not depend on how it was split, and a rank uses no more memory
/// than the windows of the others.
pub fn run(data: &[u8]) {
    session(data);
    let mut input = Input(data);
    let cut = usize::from(input.byte()) + 1;
    let (mut whole, mut pieces) = (World::started(RANKS), World::started(RANKS));
    // Messages, their places in the queues of topics, and both worlds.
    let most = 2 * (2 * RANKS * WINDOW) as usize + (8 << 20);
    // By sender: bytes that were received and not taken, as windows count them.
    let mut held = Some([0; RANKS as usize]);
    bounded(most, || {
        for _ in 0..ACTS {
            if input.done() || !act(&mut whole, &mut pieces, &mut input, cut, &mut held) {
                break;
            }
            assert!(held.iter().flatten().all(|bytes| *bytes <= WINDOW as usize));
        }
    });
}

/// Overhead of a message in its sender's window, in bytes.
const OVERHEAD: usize = 64;

fn act(
    whole: &mut World,
    pieces: &mut World,
    input: &mut Input<'_>,
    cut: usize,
    held: &mut Option<[usize; RANKS as usize]>,
) -> bool {
    let act = input.byte();
    let topic = u64::from(act >> 4 & 3);
    match act & 15 {
        0..9 => {
            let (mut text, mut bytes) = (String::new(), Vec::new());
            let mut message = None;
            if act & 15 == 0 {
                bytes.extend(input.bytes(48));
                // This rank does not interpret them.
                *held = None;
            } else {
                let frame = make(input, &mut text);
                if let Frame::Message { peer, bytes, .. } = &frame {
                    message = Some((*peer as usize, bytes.len()));
                }
                frame.encode(&mut bytes);
            }
            let taken = whole.hear(0, &bytes);
            if let Some((from, len)) = message.filter(|_| taken)
                && let Some(held) = held
            {
                held[from] += len + OVERHEAD;
            }
            let all = bytes.chunks(cut).all(|piece| pieces.hear(0, piece));
            assert_eq!(taken, all);
            for rank in 0..RANKS {
                assert_eq!(whole.gone(0, rank), pieces.gone(0, rank));
            }
            taken
        }
        9 | 10 => {
            let to = u32::from(input.byte()) % RANKS;
            let bytes = [1; 300];
            let sent = whole.send(0, to, topic, &bytes);
            if sent
                && to == 0
                && let Some(held) = held
            {
                held[0] += bytes.len() + OVERHEAD;
            }
            assert_eq!(pieces.send(0, to, topic, &bytes), sent);
            true
        }
        _ => {
            let taken = whole.take(0, topic);
            assert_eq!(pieces.take(0, topic), taken);
            if let Some((from, bytes)) = taken {
                assert!(from < RANKS && bytes.len() <= MAX_MESSAGE);
                if let Some(held) = held {
                    held[from as usize] -= bytes.len() + OVERHEAD;
                }
            }
            true
        }
    }
}
