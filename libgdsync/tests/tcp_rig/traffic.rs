//! Messages of many lengths in both directions, posted and waited for by streams.

use super::*;
use crate::common::witness::Witness;

/// Messages of each direction.
const COUNT: usize = 12;
/// Most bytes of one.
const MOST: usize = 40_000;
/// Bytes of each side's memory: what it sends, and what it receives.
pub const ROOM: usize = 2 * COUNT * MOST;

/// The queue pairs need so many entries.
pub fn config(path: &QpConfig) -> QpConfig {
    sized(path, 64, 32)
}

struct Message {
    send: Result<SendRequest, Status>,
    receive: Option<ReceiveRequest>,
    at: usize,
    bytes: Vec<u8>,
}

/// The messages that one side sends.
struct Flow {
    messages: Vec<Message>,
    sender: Stream,
    receiver: Stream,
    saw: Option<Witness>,
}

impl Flow {
    /// Enqueues everything.
    fn start(from: &mut Side, to: &mut Side, rng: &mut fastrand::Rng) -> Flow {
        let gpu = from.qp.device().gpu().clone();
        let (sender, receiver) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let (source, sink) = (from.mem.clone(), to.mem.clone());
        let mut messages = Vec::new();
        for i in 0..COUNT {
            let len = [rng.usize(1..100), rng.usize(1..=MOST)][rng.usize(..2)];
            let salt = rng.u8(..);
            let bytes: Vec<u8> = (0..len)
                .map(|i| (i as u8).wrapping_mul(31) ^ salt)
                .collect();
            let (from_at, at) = (i * MOST, (COUNT + i) * MOST);
            source.region().write(from_at, &bytes).unwrap();
            sink.region().write(at, &vec![!bytes[0]; len]).unwrap();
            let list = [source.sge(from_at as u64, len as u32)];
            let failed = |e: gdsync::Error| match e.kind() {
                Kind::Failed(status) => status,
                _ => panic!("{e}"),
            };
            let sends = rng.bool();
            // The connection may be cut by now.
            let receive = sends.then(|| -> Result<ReceiveRequest, Status> {
                let list = [sink.sge(at as u64, len as u32)];
                let receive = to.qp.prepare_receive(&list).map_err(failed)?;
                to.qp.post_receive(receive).map_err(failed)?;
                Ok(receive)
            });
            let receive = receive.and_then(Result::ok);
            let span = sink.remote().span(at as u64, len as u64).unwrap();
            let work = match sends {
                true => Work::send(&list),
                false => Work::write(&list, span),
            };
            let send = from.qp.prepare(&work.signaled()).map_err(failed);
            let send = send.and_then(|send| {
                from.qp
                    .post_on(&sender, &send_and_wait(send))
                    .map_err(failed)?;
                Ok(send)
            });
            if let Some(receive) = receive {
                let wait = [Descriptor::wait_flushed(receive)];
                if let Err(e) = to.qp.post_on(&receiver, &wait) {
                    failed(e);
                }
            }
            messages.push(Message {
                send,
                receive,
                at,
                bytes,
            });
        }
        let last = messages.iter().rev().find_map(|message| message.send.ok());
        let saw = last.map(|last| Witness::launch(&sender, &from.qp, last));
        Flow {
            messages,
            sender,
            receiver,
            saw,
        }
    }

    /// Whether all sends have succeeded, in order, each with its effect.
    fn check(&self, from: &mut Side, to: &mut Side, lost: &[Status], what: &str) -> bool {
        let mut before = Status::SUCCESS;
        let mut last = Status::SUCCESS;
        for (i, message) in self.messages.iter().enumerate() {
            let what = format!("{what}: message {i} of {} bytes", message.bytes.len());
            let status = match message.send {
                Ok(send) => end(&mut from.qp, send, &what),
                Err(status) => status,
            };
            if message.send.is_ok() {
                last = status;
            }
            let arrived = match message.receive {
                Some(receive) => end(&mut to.qp, receive, &what),
                None => status,
            };
            let good = status == Status::SUCCESS;
            for status in [status, arrived] {
                let typed = status == Status::SUCCESS || lost.contains(&status);
                assert!(typed, "{what}: {status}");
            }
            assert!(
                !good || before == Status::SUCCESS,
                "{what}: behind one that failed"
            );
            assert!(
                !good || arrived == Status::SUCCESS,
                "{what}: received {arrived}"
            );
            if arrived == Status::SUCCESS {
                let got = to.mem.region().vec(message.at, message.bytes.len());
                assert!(got == message.bytes, "{what}: other bytes");
            }
            before = status;
        }
        if let Some(saw) = &self.saw {
            let seen = saw.seen();
            // The word of a request that succeeds is not written.
            let known = seen.status == last || !last.is_error() && !seen.status.is_error();
            assert!(known, "{what}: {seen:?}, {last}");
            assert_eq!(seen.error.is_error(), last.is_error(), "{what}: {seen:?}");
        }
        before == Status::SUCCESS
    }
}

impl Couple {
    /// Two queue pairs with memory for [`Couple::traffic`].
    pub fn for_traffic(devices: [Device; 2], path: &QpConfig, kind: MemoryKind) -> Couple {
        Couple::with(devices, &config(path), kind, ROOM)
    }

    /// Sends messages in both directions; `meanwhile` runs when all are enqueued. Checks that all
    /// end, with success or one of these statuses, that those that succeed have arrived, and that the
    /// streams pass. Returns whether all succeeded.
    pub fn traffic(
        &mut self,
        rng: &mut fastrand::Rng,
        lost: &[Status],
        what: &str,
        meanwhile: impl FnOnce(&Couple),
    ) -> bool {
        let (a, b) = (&mut self.a, &mut self.b);
        let flows = [Flow::start(a, b, rng), Flow::start(b, a, rng)];
        meanwhile(self);
        for flow in &flows {
            finish(&flow.sender, what);
        }
        let (a, b) = (&mut self.a, &mut self.b);
        // Receives do not end if their sender is gone.
        if a.qp.error().is_some() || b.qp.error().is_some() {
            a.qp.fail(Status::CANCELLED);
            b.qp.fail(Status::CANCELLED);
        }
        for flow in &flows {
            finish(&flow.receiver, what);
        }
        let good = [
            flows[0].check(a, b, lost, what),
            flows[1].check(b, a, lost, what),
        ];
        good == [true; 2]
    }
}
