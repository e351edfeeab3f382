//! Messages between two kernels, in all interleavings that loom tries.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gds_step::panic_message;
use kernel_model::{
    Credit, Defect, Direct, End, Flag, Memory, Name, Pieces, ReadyWord, ReadyWords, ReplayCopy,
    ReplayPlace, ReplayTake, ReplayWrite, Rooms, StepPart, StepParts, Take,
};
use loom::model::Builder;
use loom::thread;

/// Shared words: the room of a slot, the words of the mailbox, and what kernels report.
const ROOM: usize = 0;
const PLACE: usize = 16;
const PAIR: usize = 24;
const TAKEN: usize = 26;
const READY: usize = 28;
const LOST: usize = 29;
const ENDED: usize = 30;
const REPORT: usize = 32;
const FOUND: usize = 40;
/// Of 16 words that a kernel reads at once.
const CREDIT: usize = 48;
const KNOWN: usize = 64;
/// Shared words of a circuit: those of the sender's end, of the receiver's, and the alarm.
const SENDER: usize = 80;
const RECEIVER: usize = 84;
const ALARM: usize = 88;
/// Bytes: the payload of each message, and the memory of its receive.
const FROM: usize = 96;
const INTO: usize = 112;
const INFO: usize = 132;

/// The numbers of two messages of a slot, one before and one behind a wrap of the flag.
const NUMBERS: [u64; 2] = [u32::MAX as u64, 1 << 32];
/// The value of the word of the end, to which the length is added.
const VALUE: u64 = 1 << 44;
const LEN: u64 = 12;

/// Runs a model. A model whose device layer has a defect has to fail.
fn model(defect: Defect, body: impl Fn(&Memory) + Send + Sync + 'static) {
    let run = || {
        let mut builder = Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let memory = Memory::begin(defect);
            // As of the message before.
            for word in [PAIR, PAIR + 1, READY, TAKEN] {
                memory.store(word, (NUMBERS[0] - 1) << 48);
            }
            body(&memory);
        });
    };
    match defect {
        Defect::None => run(),
        _ => {
            let failed = catch_unwind(AssertUnwindSafe(run));
            let message = failed
                .map_err(panic_message)
                .expect_err("no race was found");
            assert!(
                message.contains("Causality violation"),
                "{defect:?}: {message}"
            );
        }
    }
}

/// The payload of message `n`, in two words.
fn payload(n: usize) -> [u64; 2] {
    [0x1122_3344_5566_7700, 0x8899_aabb].map(|word| word + n as u64)
}

fn write(memory: &Memory, word: usize, payload: [u64; 2]) {
    (word..)
        .zip(payload)
        .for_each(|(at, half)| memory.write(at, half));
}

fn read(memory: &Memory, word: usize) -> [u64; 2] {
    [0, 1].map(|half| memory.read(word + half))
}

/// The kernel of a sender, for message `n`, which has the payload at its source.
fn flag(memory: &Memory, n: usize, waits: bool) -> Flag {
    let at = |word| memory.addr(word);
    write(memory, FROM + 2 * n, payload(n));
    let slot = Credit {
        credit: at(CREDIT),
        known: at(KNOWN),
        taken: at(TAKEN),
        before: NUMBERS[0],
    };
    Flag {
        slot: if waits { slot } else { Credit::default() },
        report: at(REPORT),
        from: at(FROM + 2 * n),
        room: at(ROOM),
        len: LEN,
        number: NUMBERS[n],
        shares: 1,
        ..Flag::default()
    }
}

/// The kernel of the receiver, for message `n`.
fn take(memory: &Memory, n: usize) -> Take {
    let at = |word| memory.addr(word);
    Take {
        word: at(PAIR),
        consumed: at(TAKEN),
        capacity: LEN,
        flagged: at(ROOM),
        credit: at(CREDIT),
        ended: at(ENDED),
        value: VALUE * (n as u64 + 1),
        slot: LEN as u32,
        shares: 1,
        segments: 1,
        waits: 1,
        number: NUMBERS[n],
        segment: [at(INTO + 2 * n), LEN],
        ..Take::default()
    }
}

#[test]
fn messages_of_a_slot_arrive_in_turn() {
    model(Defect::None, |memory| {
        let [first, second] = [0, 1].map(|n| flag(memory, n, n == 1));
        let takes = [0, 1].map(|n| take(memory, n));
        let sender = thread::spawn(move || {
            first.run();
            second.run();
        });
        for (n, take) in takes.iter().enumerate() {
            take.run();
            assert_eq!(read(memory, INTO + 2 * n), payload(n));
        }
        sender.join().unwrap();
    });
}

/// The kernel of the receiver waits for the first message without end.
#[test]
#[should_panic(expected = "maximum number of branches")]
fn message_overwrites_the_one_before_if_its_sender_waits_for_no_credit() {
    model(Defect::None, |memory| {
        let flags = [0, 1].map(|n| flag(memory, n, false));
        let takes = [0, 1].map(|n| take(memory, n));
        thread::spawn(move || flags.iter().for_each(Flag::run));
        takes.iter().for_each(Take::run);
    });
}

/// Another stream finds the end in device memory.
fn end(defect: Defect) {
    model(defect, |memory| {
        let (flag, take) = (flag(memory, 0, false), take(memory, 0));
        let sender = thread::spawn(move || flag.run());
        let receiver = thread::spawn(move || take.run());
        if memory.has_reached(ENDED, VALUE) {
            assert_eq!(read(memory, INTO), payload(0));
        }
        sender.join().unwrap();
        receiver.join().unwrap();
    });
}

#[test]
fn reader_behind_the_end_of_a_receive_finds_the_payload() {
    end(Defect::None);
}

#[test]
fn end_of_a_receive_needs_its_fence_and_an_acquire() {
    end(Defect::NoFence("Take"));
    end(Defect::NoAcquire);
}

/// Two blocks take a message in from a long room, and another stream finds the end. `known`: the library knows the
/// words before.
fn shared(defect: Defect, known: bool) {
    model(defect, move |memory| {
        // The words of the receive before, of another length, and the message in its lines.
        let before = [VALUE + (1 << 37) + 5, (NUMBERS[1] - 16) << 6];
        memory.store(ENDED, before[0]);
        memory.store(CREDIT, before[1]);
        let [low, high] = [NUMBERS[1] as u32, (NUMBERS[1] >> 32) as u32];
        let line = |data: u32| u64::from(low) << 32 | u64::from(data);
        memory.store(ROOM, line(1 << 30 | LEN as u32));
        memory.store(ROOM + 1, line(high));
        for (i, half) in payload(1).into_iter().enumerate() {
            memory.store(PLACE + 2 * i, line(half as u32));
            memory.store(PLACE + 2 * i + 1, line((half >> 32) as u32));
        }
        let value = 2 * VALUE;
        let take = Take {
            consumed: if known { before[1] } else { u64::MAX },
            before: if known { before[0] } else { u64::MAX },
            long_room: memory.addr(PLACE),
            long_len: 2 * LEN,
            slot: 8,
            shares: 2,
            value,
            ..take(memory, 1)
        };
        let blocks = [0, 1].map(|block| thread::spawn(move || take.run_block(block, 2)));
        if memory.has_reached(ENDED, value) {
            assert_eq!(read(memory, INTO + 2), payload(1));
        }
        blocks.into_iter().for_each(|block| block.join().unwrap());
        assert!(
            memory.has_reached(ENDED, value + LEN) && !memory.has_reached(ENDED, value + LEN + 1)
        );
        assert!(
            memory.has_reached(CREDIT, NUMBERS[1] << 6)
                && !memory.has_reached(CREDIT, (NUMBERS[1] << 6) + 1)
        );
    });
}

#[test]
fn blocks_end_a_receive_without_an_answer_from_each_other() {
    shared(Defect::None, true);
    shared(Defect::None, false);
}

#[test]
fn end_of_blocks_needs_its_fence_and_an_acquire() {
    shared(Defect::NoFence("Take"), true);
    shared(Defect::NoAcquire, true);
}

/// The receive is named to the kernel of the sender, which copies into its memory.
fn direct(defect: Defect) {
    model(defect, |memory| {
        let at = |word| memory.addr(word);
        write(memory, FROM, payload(0));
        let number = NUMBERS[0];
        let send = Direct {
            place: at(PLACE),
            found: at(FOUND),
            ready: at(READY),
            info: at(INFO),
            lost: at(LOST),
            from: at(FROM),
            len: LEN,
            room: at(ROOM),
            pair: at(PAIR),
            report: at(REPORT),
            number,
            shares: 1,
            ..Direct::default()
        };
        let name = Name {
            place: at(PLACE),
            to: at(INTO),
            len: LEN,
            lost: at(LOST),
            number,
            report: at(REPORT + 1),
            ..Name::default()
        };
        let take = Take {
            slot: 0,
            ..take(memory, 0)
        };
        let sender = thread::spawn(move || send.run());
        name.run();
        take.run();
        assert_eq!(read(memory, INTO), payload(0));
        sender.join().unwrap();
    });
}

#[test]
fn message_is_in_the_memory_of_its_receive() {
    direct(Defect::None);
}

#[test]
fn message_in_the_memory_of_its_receive_needs_the_fence_of_its_sender() {
    direct(Defect::NoFence("Direct"));
}

/// One room, so that the second message waits for the first.
fn rooms(memory: &Memory) -> Rooms {
    Rooms {
        first: memory.addr(ROOM),
        stride: 0,
        slots: 1,
    }
}

/// The ends of a circuit before its first message.
fn circuit(memory: &Memory) -> [End; 2] {
    memory.store(CREDIT, NUMBERS[0] - 1);
    [SENDER, RECEIVER].map(|words| {
        memory.store(words, NUMBERS[0]);
        End {
            words: memory.addr(words),
            alarm: memory.addr(ALARM),
            shares: 1,
            ..End::default()
        }
    })
}

/// The kernel that takes a replay's message in.
fn replay_take(memory: &Memory, end: End, bytes: u64, n: usize) -> ReplayTake {
    ReplayTake {
        end,
        rooms: rooms(memory),
        bytes,
        to: memory.addr(INTO + 2 * n),
        capacity: LEN,
        credit: memory.addr(CREDIT),
    }
}

/// Each replay takes its own message, though the sender's stream is ahead; `waits`: its kernel waits for the
/// credit.
fn replays(waits: bool) {
    model(Defect::None, move |memory| {
        let [from, to] = circuit(memory);
        if !waits {
            memory.store(CREDIT, NUMBERS[1]);
        }
        let sends = [0, 1].map(|n| {
            write(memory, FROM + 2 * n, payload(n));
            ReplayWrite {
                end: from,
                credit: memory.addr(CREDIT),
                from: memory.addr(FROM + 2 * n),
                len: LEN,
                rooms: rooms(memory),
            }
        });
        let sender = thread::spawn(move || sends.iter().for_each(ReplayWrite::run));
        for n in 0..2 {
            replay_take(memory, to, LEN, n).run();
            assert_eq!(read(memory, INTO + 2 * n), payload(n));
        }
        sender.join().unwrap();
    });
}

#[test]
fn replays_of_a_sender_that_is_ahead_arrive_in_turn() {
    replays(true);
}

/// The kernel of the receiver waits for the first message without end.
#[test]
#[should_panic(expected = "maximum number of branches")]
fn replay_overwrites_the_message_before_if_it_waits_for_no_credit() {
    replays(false);
}

/// The replay of a receive shows its memory, and that of the send copies there, twice. Each message has memory
/// of its own: that earlier work of the stream has read the memory before it is shown is the order of
/// kernels of a stream, which the model does not have.
fn replayed_copies(defect: Defect) {
    model(defect, |memory| {
        let [from, to] = circuit(memory);
        let sends = [0, 1].map(|n| {
            write(memory, FROM + 2 * n, payload(n));
            ReplayCopy {
                end: from,
                place: memory.addr(PLACE),
                from: memory.addr(FROM + 2 * n),
                len: LEN,
                rooms: rooms(memory),
            }
        });
        let sender = thread::spawn(move || sends.iter().for_each(ReplayCopy::run));
        for n in 0..2 {
            let place = ReplayPlace {
                end: to,
                place: memory.addr(PLACE),
                to: memory.addr(INTO + 2 * n),
            };
            place.run();
            replay_take(memory, to, 0, n).run();
            assert_eq!(read(memory, INTO + 2 * n), payload(n));
        }
        sender.join().unwrap();
    });
}

#[test]
fn replayed_message_is_in_the_memory_of_its_receive() {
    replayed_copies(Defect::None);
}

#[test]
fn replayed_message_in_the_memory_of_its_receive_needs_its_fence_and_its_acquire() {
    replayed_copies(Defect::NoFence("ReplayCopy"));
    replayed_copies(Defect::NoAcquire);
}

/// The sender leaves as soon as its kernel has ended, and the library of the receiver gives it up: the
/// message has arrived all the same.
#[test]
fn message_of_a_rank_that_leaves_behind_its_replay_arrives() {
    model(Defect::None, |memory| {
        let [from, to] = circuit(memory);
        write(memory, FROM, payload(0));
        let send = ReplayWrite {
            end: from,
            credit: memory.addr(CREDIT),
            from: memory.addr(FROM),
            len: LEN,
            rooms: rooms(memory),
        };
        let stop = memory.addr(ALARM);
        let sender = thread::spawn(move || {
            send.run();
            kernel_model::release(stop, 5);
        });
        replay_take(memory, to, LEN, 0).run();
        // Success, and the length.
        assert!(memory.has_reached(RECEIVER + 2, 1 << 48 | LEN));
        assert!(!memory.has_reached(RECEIVER + 2, 2 << 48));
        assert_eq!(read(memory, INTO), payload(0));
        sender.join().unwrap();
    });
}

/// Words of the steps of a neighbourhood: ready and arrival by parity, and those of the ranks alone.
const STEP_READY: usize = 0;
const STEP_ARRIVED: usize = 2;
const STEP_CLOSED: usize = 4;
const STEP_LEFT: usize = 5;
const STEP_PASSED: usize = 6;
/// Where the receiver unpacks.
const UNPACKED: usize = 140;

/// A part of a step with its pieces, and the kernel that executes it.
struct StepTable {
    part: StepPart,
    pieces: Pieces,
}

impl StepTable {
    fn new(memory: &Memory, word: usize, from: usize, to: usize) -> Box<StepTable> {
        let pieces = Pieces {
            first: memory.addr(from),
            packed: memory.addr(to),
            len: LEN,
            block: LEN.next_multiple_of(16),
            rows: 1,
            ..Pieces::default()
        };
        let part = StepPart {
            word: memory.addr(word),
            closed: memory.addr(STEP_CLOSED),
            count: 1,
            split: 1,
            shares: 1,
            ..StepPart::default()
        };
        Box::new(StepTable { part, pieces })
    }

    fn run(&mut self, step: u64, passed: u64) {
        self.part.pieces = &raw const self.pieces as u64;
        let params = StepParts {
            table: &raw const self.part as u64,
            step,
            awaited: step,
            passed,
            count: 1,
            shares: 1,
            ..StepParts::default()
        };
        params.run();
    }
}

/// Two steps: the data of the second one goes to the memory of the first one, which the receiver unpacks.
fn steps(defect: Defect) {
    model(defect, |memory| {
        let parity = |step: u64| (step % 2) as usize;
        for word in [STEP_READY, STEP_ARRIVED] {
            memory.store(word + 1, u64::MAX);
        }
        (0..2).for_each(|n| write(memory, FROM + 2 * n, payload(n)));
        let mut sends = [1, 2].map(|step| {
            let from = FROM + 2 * (step as usize - 1);
            let mut table = StepTable::new(memory, STEP_READY + parity(step), from, INTO);
            table.part.arrived = memory.addr(STEP_ARRIVED + parity(step));
            table.part.left = memory.addr(STEP_LEFT);
            table
        });
        let passed = [0, 1].map(|at| memory.addr(STEP_PASSED + at));
        let sender = thread::spawn(move || {
            for (step, send) in (1..).zip(&mut sends) {
                send.run(step, passed[0]);
            }
        });
        for step in [1, 2] {
            let word = ReadyWord {
                closed: memory.addr(STEP_CLOSED),
                to: memory.addr(STEP_READY + parity(step)),
            };
            let ready = ReadyWords {
                table: &raw const word as u64,
                step,
                count: 1,
                reserved: 0,
            };
            ready.run();
            let arrived = STEP_ARRIVED + parity(step);
            StepTable::new(memory, arrived, INTO, UNPACKED).run(step, passed[1]);
            assert_eq!(read(memory, UNPACKED), payload(step as usize - 1));
        }
        sender.join().unwrap();
    });
}

#[test]
fn steps_arrive_in_turn() {
    steps(Defect::None);
}

#[test]
fn step_needs_its_fences_and_an_acquire() {
    steps(Defect::NoFence("StepParts"));
    steps(Defect::NoFence("ReadyWords"));
    steps(Defect::NoAcquire);
}
