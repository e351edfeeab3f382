//! Datagrams among several NICs, in simulations: a seed determines senders, receivers, kinds of
//! sends, posters and waiters. Also on the live driver, over NICs that connect as those of two
//! processes do.

mod common;

use std::collections::BTreeMap;

use common::*;
use gds_sim::seeds;
use gdsync::EmulatedOptions;
use gdsync::gpu::Word32;
use gdsync::rdma::{Destination, GRH, Transport};
use vmlx5::fabric::hub::{Hub, HubConfig};

const QKEY: u32 = 0x0bad_cafe;
const STATIONS: usize = 4;
/// Most messages at once; the rings have room for all of them on one receiver.
const MOST: usize = 6;
/// Bytes of a slot of memory: a datagram and its header in front.
const SLOT: u64 = 4096 + 64;

struct Station {
    qp: Qp,
    pd: Pd,
    out: Mr,
    into: Mr,
    stream: Stream,
    /// The stream increments it after it has posted its receives.
    ready: Word32,
    /// The sources of received messages, by number of the station.
    heard: BTreeMap<usize, Destination>,
}

#[derive(Debug)]
struct Message {
    id: usize,
    from: usize,
    to: usize,
    len: usize,
    imm: Option<u32>,
    /// Sent with the wrong key.
    lost: bool,
}

/// The content of a message.
fn text(message: &Message) -> Vec<u8> {
    let byte = |i: usize| (i * 13 + message.id * 101 + i / 251) as u8;
    (0..message.len).map(byte).collect()
}

fn stations(gpu: &Gpu, config: &QpConfig, hub: Option<&Hub>) -> Vec<Station> {
    let open = || Device::emulated_with(gpu, EmulatedOptions::default().hub(hub.cloned())).unwrap();
    // Two of them share a NIC.
    let devices = [open(), open(), open()];
    let station = |i: usize| {
        let pd = devices[i % 3].alloc_pd().unwrap();
        let qkey = QKEY + i as u32;
        let config = config.clone().transport(Transport::Ud { qkey });
        let mut qp = pd.create_qp(&config).unwrap();
        qp.activate().unwrap();
        let kind = [MemoryKind::Pinned, MemoryKind::Device][i % 2];
        let [out, into] = [(); 2].map(|()| memory(&pd, kind, SLOT as usize * MOST, Access::ALL));
        Station {
            qp,
            pd,
            out,
            into,
            stream: gpu.stream().unwrap(),
            ready: gpu.word(),
            heard: BTreeMap::new(),
        }
    };
    (0..STATIONS).map(station).collect()
}

fn draw(rng: &mut fastrand::Rng, ids: &mut usize) -> Vec<Message> {
    let mut message = || {
        *ids += 1;
        Message {
            id: *ids,
            from: rng.usize(..STATIONS),
            to: rng.usize(..STATIONS),
            len: *rng.choice(&[0, 1, 11, 12, 64, 500, 4095, 4096]).unwrap(),
            imm: rng.bool().then(|| rng.u32(..)),
            lost: rng.u8(..4) == 0,
        }
    };
    (0..MOST).map(|_| message()).collect()
}

/// Prepares the receives of the messages that are going to arrive, and posts them.
fn receive(
    all: &mut [Station],
    batch: &[Message],
    round: u32,
    rng: &mut fastrand::Rng,
) -> Vec<Vec<ReceiveRequest>> {
    let mut receives = Vec::new();
    for (i, station) in all.iter_mut().enumerate() {
        let mine = batch.iter().filter(|m| m.to == i && !m.lost).count();
        let Station { qp, into, .. } = station;
        let prepared: Vec<_> = (0..mine as u64)
            .map(|n| {
                // In one piece, or with the header in a separate piece.
                let (at, grh) = (SLOT * n, GRH as u32);
                let two = [sge(into, at, grh), sge(into, at + GRH as u64, 4096)];
                let one = [sge(into, at, grh + 4096)];
                let list: &[_] = if rng.bool() { &two } else { &one };
                qp.prepare_receive(list).unwrap()
            })
            .collect();
        // A CPU thread would post them later.
        let by_stream = rng.bool() && qp.doorbell() == Doorbell::Direct;
        let mut list = Vec::new();
        for recv in &prepared {
            match by_stream {
                true => list.push(Descriptor::Receive(*recv)),
                false => qp.post_receive(*recv).unwrap(),
            }
        }
        list.push(write32(&station.ready, round));
        qp.post_on(&station.stream, &list).unwrap();
        receives.push(prepared);
    }
    receives
}

/// Sends the messages after all receives are posted.
fn send(all: &mut [Station], batch: &[Message], round: u32, rng: &mut fastrand::Rng) {
    let ready: Vec<Word32> = all.iter().map(|s| s.ready.clone()).collect();
    let addresses: Vec<_> = all.iter().map(|s| s.qp.address()).collect();
    for (i, station) in all.iter_mut().enumerate() {
        let mut sends = Vec::new();
        let mine = batch.iter().filter(|m| m.from == i);
        for (n, message) in mine.enumerate() {
            let named = |wrong: u32| {
                let mut address = addresses[message.to];
                address.qkey = address.qkey.map(|key| key ^ wrong);
                station.pd.destination(&address).unwrap()
            };
            let to = match station.heard.get(&message.to) {
                _ if message.lost => named(1),
                Some(to) if rng.bool() => to.clone(),
                _ => named(0),
            };
            let (text, at) = (text(message), SLOT * n as u64);
            station.out.region().write(at as usize, &text).unwrap();
            let cut = rng.usize(..=text.len());
            let pieces = [
                sge(&station.out, at, cut as u32),
                sge(&station.out, at + cut as u64, (text.len() - cut) as u32),
            ];
            let bytes = [&text[..cut], &text[cut..]];
            let work = match text.len() <= 500 && rng.bool() {
                true => Work::send_inline(&bytes),
                false => Work::send(&pieces),
            };
            let work = message.imm.map_or(work, |imm| work.with_imm(imm));
            sends.push(station.qp.signaled(&work.to(&to)));
        }
        let there = ready.iter().map(|word| geq(word, round));
        let mut list: Vec<_> = there.collect();
        let by_stream = rng.bool();
        if by_stream {
            list.extend(sends.iter().map(|send| Descriptor::Send(*send)));
            list.extend(sends.iter().map(|send| Descriptor::wait(*send)));
        }
        station.qp.post_on(&station.stream, &list).unwrap();
        if !by_stream {
            // Not behind streams that wait for this one.
            finish(&station.stream, "receives");
            for send in sends {
                station.qp.post_within(send, LIMIT).unwrap();
            }
        }
    }
}

/// Each station has received exactly the messages sent to it; those of one sender in order.
fn check(all: &mut [Station], batch: &[Message], receives: Vec<Vec<ReceiveRequest>>, what: &str) {
    let numbers: Vec<u32> = all.iter().map(|s| s.qp.address().qpn).collect();
    let nodes: Vec<u64> = all.iter().map(|s| s.qp.address().node).collect();
    for (i, requests) in receives.into_iter().enumerate() {
        let mut due: Vec<&Message> = batch.iter().filter(|m| m.to == i && !m.lost).collect();
        for (n, recv) in requests.into_iter().enumerate() {
            let station = &mut all[i];
            let done = station.qp.wait(recv, LIMIT);
            done.unwrap_or_else(|e| panic!("{what}, station {i}, receive {n}, due {due:?}: {e}"));
            let got = station.qp.received(recv).unwrap();
            let source = got.source.unwrap();
            let slot = SLOT as usize * n;
            let front = station.into.region().bytes::<GRH>(slot);
            // Queue pairs of two NICs may have the same number: the header has the node.
            let node = u64::from_be_bytes(front[16..24].try_into().unwrap());
            let from = |m: &&&Message| numbers[m.from] == source.qpn && nodes[m.from] == node;
            let message = *due.iter().find(from).unwrap_or_else(|| {
                panic!("{what}: station {i} hears from {:#x}, unasked", source.qpn)
            });
            due.retain(|m| m.id != message.id);
            let expected = ((GRH + message.len) as u32, message.imm);
            assert_eq!((got.len, got.imm), expected, "{what}");
            let bytes = station.into.region().vec(slot + GRH, message.len);
            assert!(bytes == text(message), "{what}: message {}", message.id);
            let key = QKEY + message.from as u32;
            let back = station.pd.answer_to(&source, &front, key).unwrap();
            station.heard.insert(message.from, back);
        }
        assert!(due.is_empty(), "{what}");
    }
}

fn live(gpu: &Gpu, config: &QpConfig, seed: u64, rounds: u32, hub: Option<&Hub>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut all = stations(gpu, config, hub);
    let mut ids = 0;
    for round in 1..=rounds {
        let what = format!("seed {seed}, round {round}");
        let batch = draw(&mut rng, &mut ids);
        let receives = receive(&mut all, &batch, round, &mut rng);
        send(&mut all, &batch, round, &mut rng);
        for station in &mut all {
            finish(&station.stream, &what);
            station.qp.quiet(LIMIT).unwrap();
        }
        check(&mut all, &batch, receives, &what);
        let station = rng.choice(&mut all).unwrap();
        if rng.u8(..4) == 0 {
            station.qp.reset().unwrap();
            station.qp.activate().unwrap();
        }
        assert!(all.iter_mut().all(|s| s.qp.error().is_none()), "{what}");
    }
}

#[test]
fn each_datagram_reaches_its_receiver_in_simulations() {
    seeds(20, |seed| {
        for (_, config) in paths() {
            let (_sim, gpu) = play(seed);
            let hub = Hub::new(HubConfig::default());
            live(&gpu, &config, seed, 30, Some(&hub));
        }
        Ok::<_, String>(())
    });
}

#[test]
fn each_datagram_reaches_its_receiver_on_the_live_driver() {
    for (_, config) in paths() {
        let gpu = soft(SoftOptions::default().channels(8));
        for seed in 0..5 {
            live(&gpu, &config, seed, 30, None);
        }
    }
}
