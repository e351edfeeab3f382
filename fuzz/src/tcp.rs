//! What the two sides of a connection of the provider `tcp` send each other: heads of frames, the
//! greeting, and encrypted records.

use gdsync::internals::tcp::{
    CLAIM, CLAIMED, Claim, End, HEAD, Head, KINDS, Kind, MOST, MOST_SOCKETS, OPENING, PLAIN, Seal,
    Session, VERDICT, Verdict, opening, read_opening,
};

use crate::heap::bounded;
use crate::input::Input;

const VERDICTS: [Verdict; 3] = [Verdict::Welcome, Verdict::NotNow, Verdict::Encryption];

/// The first byte selects what the others are.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    match input.byte() % 4 {
        0 => frames(&mut input),
        1 => made(&mut input),
        2 => greetings(&mut input),
        _ => records(&mut input),
    }
}

fn bytes<const N: usize>(input: &mut Input<'_>) -> [u8; N] {
    let mut bytes = [0; N];
    let some = input.bytes(N);
    bytes[..some.len()].copy_from_slice(some);
    bytes
}

/// Any bytes are refused, or are the head that they decode to, which keeps the rules that queue pairs
/// rely on.
fn frames(input: &mut Input<'_>) {
    while !input.done() {
        let given: [u8; HEAD] = bytes(input);
        match Head::decode(&given) {
            Ok(head) => {
                assert_eq!(head.encode(), given);
                keeps_rules(&head);
            }
            Err(why) => assert!(why.to_string().len() < 200),
        }
    }
}

fn keeps_rules(head: &Head) {
    assert!(head.len <= MOST);
    assert_eq!(head.used(), *head);
    let atomic = matches!(head.kind, Kind::CompareSwap | Kind::FetchAdd);
    assert!(!atomic || head.len == 8);
    let counts = matches!(head.kind, Kind::Ack | Kind::Refuse);
    assert!(!counts || (head.len, head.addr, head.rkey) == (0, 0, 0));
    assert!(head.kind.has_imm() || head.imm == 0);
}

/// Any head encodes to bytes that decode to it, unless its length breaks a rule.
fn made(input: &mut Input<'_>) {
    let head = Head {
        kind: input.pick(&KINDS),
        syndrome: input.byte(),
        len: input.number() as u32,
        addr: input.number(),
        rkey: input.next(),
        imm: input.next(),
        ack: input.number(),
        receives: input.next(),
    };
    let used = head.used();
    assert_eq!(used.used(), used);
    let atomic = matches!(head.kind, Kind::CompareSwap | Kind::FetchAdd);
    let good = used.len <= MOST && (!atomic || used.len == 8);
    assert_eq!(Head::decode(&used.encode()).ok(), good.then_some(used));
    assert_eq!(Head::decode(&head.encode()).is_ok(), good && head == used);
}

/// A greeting is accepted if no bit of it differs, and by the same session alone.
fn greetings(input: &mut Input<'_>) {
    let given: [u8; OPENING] = bytes(input);
    match read_opening(&given) {
        Ok(nonce) => assert_eq!(opening(&nonce), given),
        Err(_) => assert_ne!(given[..8], opening(&[0; 32])[..8]),
    }
    let end = |input: &mut Input<'_>| End {
        node: input.next(),
        qpn: input.next(),
        psn: input.next(),
    };
    let sockets = input.byte() % MOST_SOCKETS + 1;
    let claim = Claim {
        attempt: input.next(),
        socket: input.byte() % sockets,
        sockets,
        ..Claim::new(end(input), end(input), input.byte() & 1 == 1)
    };
    let session = Session::new([input.byte(); 32], [[input.byte(); 32], [input.byte(); 32]]);
    let sent = session.claim(&claim);
    assert_eq!(session.read_claim(&sent), Ok(claim));
    let verdict = input.pick(&VERDICTS);
    let answer = session.verdict(&sent, verdict);
    assert_eq!(session.read_verdict(&sent, &answer), Ok(verdict));
    let other = Session::new([input.byte(); 32], [[input.byte(); 32], [input.byte(); 32]]);
    let same = other.claim(&claim) == sent;
    assert_eq!(other.read_claim(&sent).is_ok(), same);
    assert_eq!(other.read_verdict(&sent, &answer).is_ok(), same);
    assert_eq!(other.keys(&sent) == session.keys(&sent), same);
    // Bits that differ.
    let mask: [u8; CLAIM] = bytes(input);
    let forged: [u8; CLAIM] = std::array::from_fn(|i| sent[i] ^ mask[i]);
    assert_eq!(session.read_claim(&forged).is_ok(), forged == sent);
    // The verdict is bound to the claim, though not to the bytes of its proof.
    let bound = forged[..CLAIMED] == sent[..CLAIMED];
    assert_eq!(session.read_verdict(&forged, &answer).is_ok(), bound);
    let mask: [u8; VERDICT] = bytes(input);
    let forged: [u8; VERDICT] = std::array::from_fn(|i| answer[i] ^ mask[i]);
    assert_eq!(
        session.read_verdict(&sent, &forged).is_ok(),
        forged == answer
    );
}

/// Records that are changed, repeated, lost, reordered or cut, and arrive in pieces of any lengths:
/// what opens is the start of what was sealed, all of it if nothing has happened to the records.
fn records(input: &mut Input<'_>) {
    let key = [input.byte(); 32];
    let mut seal = Seal::new(&key);
    let (mut plain, mut sent) = (Vec::new(), Vec::new());
    for number in 0..1 + input.below(4) {
        let len = 1 + match input.byte() {
            255 => PLAIN - 1,
            len => usize::from(len),
        };
        let text = vec![number as u8; len];
        let mut record = Vec::new();
        seal.seal(&text, &mut record);
        plain.extend_from_slice(&text);
        sent.push(record);
    }
    let whole = sent.concat();
    let count = sent.len() as u64;
    match input.byte() % 8 {
        0 => sent.swap(input.below(count) as usize, input.below(count) as usize),
        1 => drop(sent.remove(input.below(count) as usize)),
        2 => sent.insert(
            input.below(count) as usize,
            sent[input.below(count) as usize].clone(),
        ),
        3 => sent.insert(input.below(count) as usize, input.bytes(64).to_vec()),
        _ => {}
    }
    let mut bytes = sent.concat();
    for _ in 0..input.byte() % 4 {
        let at = input.below(bytes.len() as u64) as usize;
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= input.byte();
        }
    }
    if input.byte() & 1 == 1 {
        bytes.truncate(input.below(bytes.len() as u64) as usize);
    }
    let mut open = Seal::new(&key);
    let (mut left, mut opened, mut refused) = (Vec::new(), Vec::with_capacity(plain.len()), false);
    let mut rest = &bytes[..];
    while !refused && !rest.is_empty() {
        let some = match input.done() {
            true => rest.len(),
            false => rest.len().min(1 + input.number() as usize % 4096),
        };
        let (piece, later) = rest.split_at(some);
        rest = later;
        left.extend_from_slice(piece);
        loop {
            match bounded(4096, || open.open(&mut left)) {
                Ok(Some((range, len))) => {
                    assert!(range.end <= len && len <= left.len() && !range.is_empty());
                    opened.extend_from_slice(&left[range]);
                    left.drain(..len);
                }
                Ok(None) => break,
                Err(why) => {
                    assert!(why.to_string().len() < 200);
                    refused = true;
                    break;
                }
            }
        }
    }
    assert!(plain.starts_with(&opened));
    if bytes == whole {
        assert!(!refused && opened == plain && left.is_empty());
    }
    // A cut loses its record alone.
    assert!(!refused || !whole.starts_with(&bytes));
}
