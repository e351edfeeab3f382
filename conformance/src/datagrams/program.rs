//! Rounds of datagrams between four stations: from one to all, from all to one, and from any to
//! each. Streams fill the messages by a kernel, send, wait, and verify by a kernel; the CPU
//! compares every byte, also those around the message. Some messages have a wrong Q_Key, and are
//! dropped.

use std::collections::BTreeMap;

use fastrand::Rng;
use gdsync::Kind;
use gdsync::gpu::{MemoryKind, Region, Word32};
use gdsync::rdma::{Descriptor, Destination, GRH, Mr, QpConfig, ReceiveRequest, SendRequest, Work};

use super::{Stations, came_from, qkey};
use crate::rig::limits::time_limit;
use crate::rig::verdict::{Verdict, ensure, text};
use crate::rig::{Finding, Rig, expected, finish, reaches, retry, retry_while};

/// Number of stations.
pub const MANY: usize = 4;
/// Most messages of a round that one of them sends or gets.
const MOST: usize = 4;
/// Guard bytes before and behind a received message, which must stay unchanged.
const GUARD: usize = 64;
/// The longest datagram on any link, in bytes.
const LONGEST: usize = 4096;
/// Bytes of a slot beside the message.
const AROUND: usize = GUARD + GRH + GUARD;
/// Room for a separate header, and a guard.
const FRONT: usize = GRH + 24;
/// Longest inline message, in bytes.
const INLINE: usize = 100;
/// Value of the guards of headers.
const UNTOUCHED: u8 = 0xa5;
/// Sends and receives of each station that make any queue wrap.
const PAST_THE_WRAP: usize = 10;

/// One message.
#[derive(Debug)]
struct Message {
    id: u64,
    from: usize,
    to: usize,
    len: usize,
    imm: Option<u32>,
    inline: bool,
    signaled: bool,
    /// Whether it has a wrong Q_Key.
    lost: bool,
    /// Whether it is sent to the source of an earlier message from `to`, if there was one.
    answers: bool,
}

/// The pattern of the bytes around the message in a slot.
fn guard(round: u32, station: usize, slot: usize) -> u64 {
    0x8000_0000 + (u64::from(round) << 16 | (station as u64) << 8 | slot as u64)
}

/// The messages of a round; `longest` is the longest datagram that all stations accept.
fn draw(rng: &mut Rng, round: u32, longest: usize) -> Vec<Message> {
    let who = round as usize / 3 % MANY;
    let mut ends: Vec<(usize, usize)> = (0..MOST)
        .map(|i| match round % 3 {
            0 => (who, i),
            1 => (i, who),
            _ => (rng.usize(..MANY), i),
        })
        .collect();
    rng.shuffle(&mut ends);
    let sizes = [0, 1, 3, 8, 63, 100, 777, longest - 1, longest];
    let message = |(n, (from, to))| {
        let len = sizes[rng.usize(..sizes.len())].min(longest);
        Message {
            id: 0x1_0000 + u64::from(round) * 16 + n as u64,
            from,
            to,
            len,
            imm: rng.bool().then(|| rng.u32(..)),
            inline: len <= INLINE && rng.bool(),
            signaled: rng.bool(),
            lost: rng.u8(..8) == 0,
            answers: rng.bool(),
        }
    };
    ends.into_iter().enumerate().map(message).collect()
}

/// The settings of a program, beside its seed.
#[derive(Clone, Debug)]
pub struct Play {
    /// The configuration of the queue pairs.
    pub config: QpConfig,
    /// The memory of messages.
    pub payload: MemoryKind,
    /// Whether the CPU posts all sends.
    pub cpu_sends: bool,
    /// The poster of receives, by the name of the setting.
    pub receives: &'static str,
}

/// Runs the program that `seed` draws between existing stations.
pub fn rounds_of(rig: &Rig, stations: Stations, play: &Play, rounds: u32, seed: u64) -> Verdict {
    let mut rng = Rng::with_seed(seed);
    let mut table = Table::new(rig, stations, play)?;
    for round in 1..=rounds {
        table.round(round, &mut rng).map_err(|e| {
            let what = text(&e);
            format!("datagrams, seed {seed:#x}, round {round}: {what}")
        })?;
    }
    for (i, [sent, taken]) in table.moved.iter().enumerate() {
        ensure((*sent).min(*taken) >= PAST_THE_WRAP, || {
            format!("seed {seed:#x}: station {i} sends {sent} and takes {taken} in all")
        })?;
    }
    ensure(table.answered > 0, || format!("seed {seed:#x}: no answer"))?;
    table.stations.leave("in the end")
}

/// The memory of a station.
struct Buffers {
    out: Mr,
    into: Mr,
    /// Separate headers, in pinned memory.
    fronts: Mr,
    /// The copy of `into` by its stream.
    seen: Region,
    /// The round for which it has posted its receives, counted by its stream.
    ready: Word32,
    /// Destinations of answers, by the station that a message came from.
    heard: BTreeMap<usize, Destination>,
}

/// A receive that is pending.
#[derive(Debug)]
struct Due {
    request: ReceiveRequest,
    /// Whether the header is separate from the message.
    apart: bool,
}

struct Table<'g> {
    rig: &'g Rig,
    play: Play,
    stations: Stations,
    buffers: Vec<Buffers>,
    /// The longest datagram that all stations accept.
    longest: usize,
    /// Bytes of a slot for one datagram, with its header and the guards.
    room: usize,
    finding: Finding,
    /// Numbers of messages that each station has sent and received.
    moved: [[usize; 2]; MANY],
    answered: usize,
}

impl<'g> Table<'g> {
    fn new(rig: &'g Rig, stations: Stations, play: &Play) -> Verdict<Table<'g>> {
        let mut longest = LONGEST;
        for i in 0..MANY * MANY {
            let to = stations.destination(i / MANY, i % MANY)?;
            longest = longest.min(to.max_len() as usize);
        }
        let room = longest + AROUND;
        let mut buffers = Vec::new();
        for i in 0..MANY {
            let memory = |kind, len| stations.memory(i, kind, MOST * len);
            buffers.push(Buffers {
                out: memory(play.payload, longest)?,
                into: memory(play.payload, room)?,
                fronts: memory(MemoryKind::Pinned, FRONT)?,
                seen: rig.gpu.alloc(MemoryKind::Pinned, MOST * room)?,
                ready: rig.gpu.alloc(MemoryKind::Pinned, 64)?.word32(0)?,
                heard: BTreeMap::new(),
            });
        }
        Ok(Table {
            rig,
            play: play.clone(),
            stations,
            buffers,
            longest,
            room,
            finding: rig.finding()?,
            moved: [[0; 2]; MANY],
            answered: 0,
        })
    }

    fn round(&mut self, round: u32, rng: &mut Rng) -> Verdict {
        let messages = draw(rng, round, self.longest);
        let dues = (0..MANY).map(|i| self.receive(i, round, &messages, rng));
        let dues: Vec<Vec<Due>> = dues.collect::<Result<_, _>>()?;
        if self.play.cpu_sends {
            for station in &self.stations.all {
                finish(&station.stream, "receives and what is sent")?;
            }
        }
        for i in 0..MANY {
            self.send(i, round, &messages, rng)?;
        }
        for (i, dues) in dues.iter().enumerate() {
            self.await_on_stream(i, dues)?;
        }
        for (i, dues) in dues.into_iter().enumerate() {
            finish(&self.stations.all[i].stream, "messages")?;
            self.look(i, round, dues, &messages)?;
        }
        for station in &self.stations.all {
            finish(&station.stream, "a look by the GPU")?;
        }
        self.finding.clean("what arrived")
    }

    /// Makes a station post the receives of the round, and signal that.
    fn receive(
        &mut self,
        i: usize,
        round: u32,
        messages: &[Message],
        rng: &mut Rng,
    ) -> Verdict<Vec<Due>> {
        let (station, buffers) = (&mut self.stations.all[i], &self.buffers[i]);
        let due = messages.iter().filter(|m| m.to == i && !m.lost);
        // From several senders, they come in any order.
        let len = due.clone().map(|m| m.len).max().unwrap_or(0) as u32;
        let mut dues = Vec::new();
        for slot in 0..due.count() {
            let around = guard(round, i, slot);
            let (rig, stream) = (self.rig, &station.stream);
            rig.fill(
                stream,
                buffers.into.region(),
                slot * self.room,
                self.room,
                around,
            )?;
            let front = slot * FRONT;
            buffers.fronts.region().write(front, &[UNTOUCHED; FRONT])?;
            let at = (slot * self.room + GUARD) as u64;
            let apart = rng.bool();
            let whole = [buffers.into.sge(at, GRH as u32 + len)];
            let pieces = [
                buffers.fronts.sge(front as u64, GRH as u32),
                buffers.into.sge(at + GRH as u64, len),
            ];
            let list: &[_] = if apart { &pieces } else { &whole };
            let request = retry(&rig.gpu, || station.qp.prepare_receive(list))?;
            dues.push(Due { request, apart });
        }
        let by_cpu = match self.play.receives {
            "by CPU" => dues.len(),
            "by stream" => 0,
            _ => dues.len().min(1),
        };
        let (by_stream, by_cpu) = dues.split_at(dues.len() - by_cpu);
        if !by_stream.is_empty() {
            let receives = by_stream.iter().map(|due| Descriptor::Receive(due.request));
            let list: Vec<_> = receives.collect();
            station.qp.post_on(&station.stream, &list)?;
        }
        for due in by_cpu {
            // Not before those of the stream are there, by a thread or not.
            retry_while(&self.rig.gpu, Kind::Busy, || {
                station.qp.post_receive(due.request)
            })?;
        }
        // The payload of sends is also written before any station is signalled.
        for (slot, message) in messages.iter().filter(|m| m.from == i).enumerate() {
            if !message.inline {
                let (out, len) = (buffers.out.region(), message.len);
                let rig = self.rig;
                rig.fill(&station.stream, out, slot * self.longest, len, message.id)?;
            }
        }
        let ready = Descriptor::write_value(&buffers.ready, round);
        station.qp.post_on(&station.stream, &[ready])?;
        Ok(dues)
    }

    /// The destination of a message.
    fn whom(&mut self, message: &Message) -> gdsync::Result<Destination> {
        let heard = self.buffers[message.from].heard.get(&message.to);
        if let Some(to) = heard.filter(|_| message.answers && !message.lost) {
            self.answered += 1;
            return Ok(to.clone());
        }
        let mut address = self.stations.all[message.to].qp.address();
        if message.lost {
            address.qkey = address.qkey.map(|key| key ^ 1);
        }
        self.stations.all[message.from].pd.destination(&address)
    }

    /// Makes a station send its messages, once all receives are posted.
    fn send(&mut self, i: usize, round: u32, messages: &[Message], rng: &mut Rng) -> Verdict {
        let mine: Vec<_> = messages.iter().filter(|m| m.from == i).collect();
        let mut sends: Vec<(SendRequest, bool)> = Vec::new();
        for (slot, message) in mine.iter().enumerate() {
            let to = self.whom(message)?;
            let (out, qp) = (&self.buffers[i].out, &mut self.stations.all[i].qp);
            let cut = rng.usize(..=message.len);
            let (at, rest) = ((slot * self.longest) as u64, (message.len - cut) as u32);
            let pieces = [out.sge(at, cut as u32), out.sge(at + cut as u64, rest)];
            let bytes = match message.inline {
                true => expected(message.id, message.len),
                false => Vec::new(),
            };
            let parts = [
                &bytes[..cut.min(bytes.len())],
                &bytes[cut.min(bytes.len())..],
            ];
            let work = match message.inline {
                true => Work::send_inline(&parts),
                false => Work::send(&pieces),
            };
            let work = message.imm.map_or(work, |imm| work.with_imm(imm)).to(&to);
            let signaled = message.signaled || slot + 1 == mine.len();
            let work = if signaled { work.signaled() } else { work };
            sends.push((qp.prepare_within(&work, time_limit())?, signaled));
            // The destination goes: requests keep it.
        }
        self.moved[i][0] += sends.len();
        let station = &mut self.stations.all[i];
        let signaled = sends.iter().filter(|(_, signaled)| *signaled);
        let signaled: Vec<SendRequest> = signaled.map(|(send, _)| *send).collect();
        if self.play.cpu_sends {
            for (send, _) in sends {
                station.qp.post_within(send, time_limit())?;
            }
            for send in signaled {
                station.qp.wait(send, time_limit())?;
            }
            return Ok(());
        }
        let buffers = self.buffers.iter();
        let ready = buffers.map(|of| reaches(&of.ready, round));
        let mut list: Vec<_> = ready.collect();
        list.extend(sends.iter().map(|(send, _)| Descriptor::Send(*send)));
        list.extend(signaled.iter().map(|send| Descriptor::wait(*send)));
        station.qp.post_on(&station.stream, &list)?;
        Ok(())
    }

    /// Makes the stream of a station wait for its receives and copy them for the CPU.
    fn await_on_stream(&mut self, i: usize, dues: &[Due]) -> Verdict {
        if dues.is_empty() {
            return Ok(());
        }
        let (station, buffers) = (&mut self.stations.all[i], &self.buffers[i]);
        // If a datagram does not arrive, the limit ends the wait of the stream.
        let limit = time_limit() / 2;
        let list: Vec<_> = dues
            .iter()
            .map(|due| Descriptor::wait_flushed(due.request).within(limit))
            .collect();
        station.qp.post_on(&station.stream, &list)?;
        let len = dues.len() * self.room;
        let (seen, into) = (
            buffers.seen.span(0, len)?,
            buffers.into.region().span(0, len)?,
        );
        station.stream.copy(&seen, &into)?;
        Ok(())
    }

    /// Checks all that a station has received: the source, and every byte of the slot.
    fn look(&mut self, i: usize, round: u32, dues: Vec<Due>, messages: &[Message]) -> Verdict {
        let addresses: Vec<_> = self.stations.all.iter().map(|s| s.qp.address()).collect();
        let mut open: Vec<&Message> = messages.iter().filter(|m| m.to == i && !m.lost).collect();
        self.moved[i][1] += dues.len();
        for (slot, Due { request, apart }) in dues.into_iter().enumerate() {
            let (station, buffers) = (&mut self.stations.all[i], &mut self.buffers[i]);
            station.qp.wait(request, time_limit()).map_err(|e| {
                format!("station {i}, receive {slot}, of which are due {open:?}: {e}")
            })?;
            let got = station.qp.received(request)?;
            let source = got.source.ok_or("no source of a datagram")?;
            let mut bytes = vec![0; self.room];
            buffers.seen.read(slot * self.room, &mut bytes)?;
            let mut header = [0; FRONT];
            buffers.fronts.region().read(slot * FRONT, &mut header)?;
            let behind = if apart { GRH } else { 0 };
            ensure(header[behind..].iter().all(|b| *b == UNTOUCHED), || {
                format!("station {i}, receive {slot}: around a header: {header:02x?}")
            })?;
            let mut front = [0; GRH];
            front.copy_from_slice(match apart {
                true => &header[..GRH],
                false => &bytes[GUARD..GUARD + GRH],
            });

            // In order of each sender.
            let mut found = None;
            for (n, message) in open.iter().enumerate() {
                if came_from(&source, &front, &addresses[message.from], &addresses[i])? {
                    found = Some(n);
                    break;
                }
            }
            let found = found.ok_or_else(|| {
                format!("station {i} hears from {source:?}, {front:02x?}, and {open:?} are due")
            })?;
            let message = open.remove(found);
            ensure(
                (got.len as usize, got.imm) == (GRH + message.len, message.imm),
                || format!("{got:?} in place of {message:?}"),
            )?;
            let mut want = expected(guard(round, i, slot), self.room);
            let at = GUARD + GRH;
            if !apart {
                want[GUARD..at].copy_from_slice(&front);
            }
            want[at..at + message.len].copy_from_slice(&expected(message.id, message.len));
            if let Some(first) = (0..self.room).find(|b| bytes[*b] != want[*b]) {
                let (got, want) = (bytes[first], want[first]);
                let offset = first as i64 - at as i64;
                return Err(format!(
                    "{message:?}: byte {offset} of it is {got:#04x}, not {want:#04x}"
                )
                .into());
            }
            let into = buffers.into.region();
            let (at, len) = (slot * self.room + at, message.len);
            let rig = self.rig;
            rig.verify(&station.stream, into, at, len, message.id, &self.finding)?;
            let key = qkey(message.from);
            let back = station.pd.answer_to(&source, &front, key)?;
            buffers.heard.insert(message.from, back);
        }
        ensure(open.is_empty(), || format!("{open:?} did not arrive"))
    }
}
