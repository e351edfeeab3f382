//! Frames between ranks and the store.

use mp::bootstrap::MAX_MESSAGE;
use mp::bootstrap::wire::{Frame, Hello, MAX_FRAME, MAX_GREETING, decode};

use crate::heap::bounded;
use crate::input::Input;

/// Bytes are a frame, the beginning of one, or invalid. A decoded frame encodes to the same bytes,
/// and any frame survives encoding and decoding.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let limit = match input.byte() & 3 {
        0 => MAX_GREETING,
        1 => input.number() as usize,
        _ => MAX_FRAME,
    };
    check(input.0, limit);
    let mut text = String::new();
    let made = make(&mut input, &mut text);
    let mut bytes = Vec::new();
    made.encode(&mut bytes);
    assert_eq!(decode(&bytes, MAX_FRAME), Ok(Some((made, bytes.len()))));
    // One bit is flipped, or the length is wrong.
    let at = usize::from(input.next::<u16>()) % bytes.len();
    bytes[at] ^= input.byte();
    check(&bytes, limit);
    let len = (bytes.len() - 4).min(usize::from(input.next::<u16>()));
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    check(&bytes, limit);
}

fn check(bytes: &[u8], limit: usize) {
    let announced = bytes.first_chunk().map(|len| u32::from_le_bytes(*len));
    let announced = announced.map_or(0, |len| len as usize);
    match bounded(bytes.len() + 64, || decode(bytes, limit)) {
        Ok(Some((frame, len))) => {
            assert!(len == 4 + announced && len <= bytes.len() && len <= limit);
            let mut again = Vec::new();
            frame.encode(&mut again);
            match frame {
                // Only this part of a foreign frame is decoded.
                Frame::Foreign { .. } => assert_eq!(again[5..17], bytes[5..17]),
                _ => assert_eq!(again, bytes[..len]),
            }
            assert_eq!(decode(&bytes[..len - 1], limit), Ok(None));
        }
        Ok(None) => assert!(bytes.len() < 4 || announced > 0 && announced <= limit - 4),
        Err(garbage) => assert!(!garbage.0.is_empty() && bytes.len() >= 4),
    }
}

/// Any frame.
pub fn make<'a, 't: 'f, 'f>(input: &mut Input<'a>, text: &'t mut String) -> Frame<'f>
where
    'a: 'f,
{
    let proof = |input: &mut Input<'_>| input.next::<[u8; 32]>().into();
    let rank = |input: &mut Input<'_>| match input.byte() {
        0xff => input.next(),
        n => u32::from(n % 4),
    };
    match input.byte() % 12 {
        0 => Frame::Hello(Hello {
            rank: rank(input),
            size: rank(input),
            name: u64::from(input.byte() & 1),
            host: input.next(),
            nonce: input.next(),
        }),
        1 => Frame::Challenge {
            job: input.next(),
            nonce: input.next(),
            proof: proof(input),
        },
        2 => Frame::Answer {
            proof: proof(input),
        },
        3 => Frame::Foreign {
            version: input.next::<u32>().max(2),
        },
        4 => {
            let why = input.bytes(66);
            text.push_str(&String::from_utf8_lossy(why));
            Frame::Refused { why: text }
        }
        5 => Frame::Waiting {
            count: input.next(),
            missing: (0..input.byte()).map(|_| input.next()).collect(),
        },
        6 => Frame::Hosts {
            first: rank(input),
            hosts: (0..input.byte()).map(|_| input.next()).collect(),
        },
        7 => Frame::Start,
        8 => Frame::Gone { rank: rank(input) },
        9 => Frame::Credit {
            peer: rank(input),
            room: match input.byte() & 3 {
                0 => input.next(),
                1 => 0,
                _ => input.next::<u16>().into(),
            },
        },
        _ => Frame::Message {
            peer: rank(input),
            topic: u64::from(input.byte() & 3),
            bytes: match input.byte() {
                0 => &[7; MAX_MESSAGE],
                n => input.bytes(n.into()),
            },
        },
    }
}
