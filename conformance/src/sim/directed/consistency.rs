//! Payload that arrives in GPU memory after its completion: every policy must wait for it.

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{Condition, Consistency, MemoryKind};
use gdsync::rdma::{Descriptor, Work};
use softgpu::Weak;

use super::{config, passes, weak};
use crate::rig::reaches;
use crate::sim::world::{LIMIT, play};

/// Messages between two checks, each in separate memory.
const TOGETHER: usize = 4;
const ROUNDS: usize = 4;
/// Bytes of the memory of a message.
const ROOM: usize = 4096;

/// How a message is transferred, and what a stream waits for.
#[derive(Clone, Copy, Debug)]
enum Transfer {
    /// SEND, and the receive.
    Send,
    /// WRITE with immediate data, and the receive it takes.
    WriteImm,
    /// WRITE, another WRITE of a word in host memory, and that word.
    Word,
    /// As `Word`, with a separate flush behind a wait that does not flush.
    WordThenFlush,
    /// READ by the receiver, and its completion.
    Read,
}

/// Options of a GPU with the policy `policy`, on which late writes rarely become visible.
fn options(policy: Consistency, rng: &mut Rng) -> SoftOptions {
    let mut options = weak(rng);
    options.caps.ordered_writes = policy == Consistency::Ordered;
    options.caps.flush = policy == Consistency::Flush;
    options.caps.host_flush = policy == Consistency::HostFlag;
    options.weak = options.weak.map(|weak| Weak {
        nic_one_in: 1 << rng.u32(4..10),
        ..weak
    });
    options
}

fn pattern(rank: usize, message: usize, len: usize) -> Vec<u8> {
    let first = 17 * message + 101 * rank + 1;
    (0..len).map(|i| (first + i * 3 + i / 256) as u8).collect()
}

/// Two ranks write to each other's GPU memory, by every operation and with lists of either
/// lowering. Streams copy the received bytes after their wait, or signal another stream, which
/// copies, by a word that the same list writes. The seed selects the policy.
///
/// # Errors
/// The first difference, with the seed.
pub fn consistency(seed: u64) -> Result<SimReport, SimError> {
    const POLICIES: [Consistency; 4] = [
        Consistency::HostFlag,
        Consistency::LoopbackRead,
        Consistency::Ordered,
        Consistency::Flush,
    ];
    let policy = POLICIES[(seed % 4) as usize];
    play(seed, 2, move |rank| {
        // Both ranks draw the same values.
        let mut rng = Rng::with_seed(seed);
        let config = config(&mut rng).send_blocks(32);
        let devices = rank.open(options(policy, &mut rng));
        let kept = devices.device.consistency(MemoryKind::Device).unwrap();
        assert_eq!(kept, policy);
        let mut qp = devices.pd.create_qp(&config).unwrap();
        let landing = devices.memory(MemoryKind::Device, TOGETHER * ROOM);
        let leaving = devices.memory(MemoryKind::Pinned, TOGETHER * ROOM);
        let counters = devices.memory(MemoryKind::Pinned, 8 * TOGETHER);
        let seen = devices
            .gpu
            .alloc(MemoryKind::Pinned, TOGETHER * ROOM)
            .unwrap();
        let their_landing = rank.swap_memory(&landing, rank.peer());
        let their_leaving = rank.swap_memory(&leaving, rank.peer());
        let their_counters = rank.swap_memory(&counters, rank.peer());
        rank.connect(&mut qp, rank.peer());
        let streams = [(); 2].map(|()| devices.gpu.stream().unwrap());
        let onlooker = devices.gpu.stream().unwrap();
        let waited = devices.gpu.alloc(MemoryKind::Pinned, 4 * TOGETHER).unwrap();
        for round in 0..ROUNDS {
            let number = |i: usize| round * TOGETHER + i;
            let draws: Vec<(usize, Transfer, bool)> = (0..TOGETHER)
                .map(|_| {
                    let transfers = [
                        Transfer::Send,
                        Transfer::WriteImm,
                        Transfer::Word,
                        Transfer::WordThenFlush,
                        Transfer::Read,
                    ];
                    let transfer = transfers[rng.usize(0..transfers.len())];
                    (rng.usize(1..ROOM), transfer, rng.bool())
                })
                .collect();
            for (i, (len, ..)) in draws.iter().enumerate() {
                let bytes = pattern(rank.me, number(i), *len);
                leaving.region().write(i * ROOM, &bytes).unwrap();
            }
            rank.barrier();
            for (i, (len, transfer, looks_on)) in draws.iter().copied().enumerate() {
                let stream = &streams[number(i) % 2];
                let signal = waited.word32(4 * i).unwrap();
                let write_signal = Descriptor::write_value(&signal, number(i) as u32 + 1);
                let last = usize::from(!looks_on);
                let (at, long) = ((i * ROOM) as u64, len as u32);
                let (mine, into) = ([leaving.sge(at, long)], [landing.sge(at, long)]);
                let there = their_landing.span(at, len as u64).unwrap();
                let works = match transfer {
                    Transfer::Send => Work::send(&mine),
                    Transfer::WriteImm => Work::write(&mine, there).with_imm(7),
                    Transfer::Word | Transfer::WordThenFlush => Work::write(&mine, there),
                    Transfer::Read => {
                        Work::read(&into, their_leaving.span(at, len as u64).unwrap())
                    }
                };
                let first = qp.prepare_within(&works.signaled(), LIMIT).unwrap();
                match transfer {
                    Transfer::Send | Transfer::WriteImm => {
                        let recv = qp.prepare_receive(&into).unwrap();
                        let list = [
                            Descriptor::Receive(recv),
                            Descriptor::Send(first),
                            Descriptor::wait_flushed(recv),
                            Descriptor::wait(first),
                            write_signal,
                        ];
                        qp.post_on(stream, &list[..5 - last]).unwrap();
                    }
                    Transfer::Read => {
                        let wait = Descriptor::wait_flushed(first);
                        let list = [Descriptor::Send(first), wait, write_signal];
                        qp.post_on(stream, &list[..3 - last]).unwrap();
                    }
                    Transfer::Word | Transfer::WordThenFlush => {
                        let count = (number(i) as u64 + 1).to_le_bytes();
                        let word = their_counters.span(8 * i as u64, 8).unwrap();
                        let pieces: [&[u8]; 1] = [&count];
                        let counter = Work::write_inline(&pieces, word);
                        let counter = qp.prepare_within(&counter, LIMIT).unwrap();
                        let list = [Descriptor::Send(first), Descriptor::Send(counter)];
                        qp.post_on(stream, &list).unwrap();
                        let word = counters.region().word64(8 * i).unwrap();
                        let by_itself = matches!(transfer, Transfer::Word);
                        let wait =
                            Descriptor::wait_value(&word, Condition::Geq, number(i) as u64 + 1)
                                .flush(by_itself);
                        // The wait names no queue pair: it holds for every writer of the word.
                        let mut list = vec![wait];
                        list.extend((!by_itself).then_some(Descriptor::Flush));
                        list.extend(looks_on.then_some(write_signal));
                        gdsync::rdma::post_on(stream, &mut [], &list).unwrap();
                    }
                }
                let from = landing.region().span(i * ROOM, len).unwrap();
                let to = seen.span(i * ROOM, len).unwrap();
                let mut looker = stream;
                if looks_on {
                    looker = &onlooker;
                    let wait = reaches(&signal, number(i) as u32 + 1);
                    gdsync::rdma::post_on(looker, &mut [], &[wait]).unwrap();
                }
                looker.copy(&to, &from).unwrap();
            }
            for stream in streams.iter().chain([&onlooker]) {
                passes(stream, "behind all messages");
            }
            for (i, (len, transfer, _)) in draws.iter().enumerate() {
                let mut got = vec![0; *len];
                seen.read(i * ROOM, &mut got).unwrap();
                let right = pattern(rank.peer(), number(i), *len);
                let wrong = got.iter().zip(&right).filter(|(a, b)| a != b).count();
                assert!(
                    wrong == 0,
                    "{policy:?}: {wrong} of {len} bytes by {transfer:?} were not there yet"
                );
            }
            assert_eq!(qp.error(), None);
            rank.barrier();
        }
    })
}
