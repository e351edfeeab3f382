//! The end of a rank: checks the completed requests, and compares every byte of every slot.

use gdsync::gpu::Stream;
use mp::{Done, Request};

use super::{Player, Sent, Taken, tag, told};
use crate::mp::plan::{By, Message, image};
use crate::rig::finish;
use crate::rig::limits::time_limit;
use crate::rig::verdict::{Verdict, ensure};

impl Player<'_> {
    /// The outcome of a request that a stream has waited for. A failure may release the stream
    /// before the CPU detects it.
    fn passed(&self, request: &Request, too_long: bool) -> Verdict<mp::Result<Done>> {
        if too_long {
            return self.poll(request);
        }
        let ended = request.test().transpose();
        Ok(
            ended
                .ok_or_else(|| format!("{request:?}, which a stream has passed, has not ended"))?,
        )
    }

    /// Waits for the streams, then checks all completed requests.
    pub(super) fn judge(&mut self) -> Verdict {
        for stream in &self.streams {
            self.finish(stream).map_err(|e| told(&e, &self.open()))?;
        }
        self.into.events.fill(None);
        self.out.events.fill(None);
        for (round, mut taken) in std::mem::take(&mut self.taken).into_iter().enumerate() {
            taken.sort_by_key(|taken| (taken.line, taken.k));
            for mut taken in taken {
                let by_cpu = taken.handling.ends == By::Cpu;
                if let (None, Some(request)) = (taken.done, &taken.request) {
                    let ended = self.passed(request, taken.too_long)?;
                    taken.done = self.outcome(ended, taken.too_long)?;
                    ensure(taken.done.is_none() || !taken.too_long, || {
                        format!("{request:?} has taken a message that is too long")
                    })?;
                }
                if by_cpu && self.lines[taken.line].from.is_some() {
                    continue;
                }
                let mut got = vec![0; self.setup.slot()];
                let slots = self.into.events.len();
                let at = (round * slots + taken.slot) * self.setup.slot();
                self.seen.read(at, &mut got)?;
                self.compare(&taken, &got)?;
                if let (Some(done), None) = (taken.done, self.lines[taken.line].from) {
                    self.lines[taken.line].come[done.peer as usize] += 1;
                }
            }
        }
        // Rounds after the first open one stay, so that the number of a round gives its order.
        let open = |round: &Vec<Sent>| round.iter().any(|sent| !sent.ended);
        let over = self.sent.iter().position(open).unwrap_or(self.sent.len());
        for sent in self.sent.drain(..over).flatten().collect::<Vec<_>>() {
            if let Some(request) = &sent.request {
                self.check_sent(&sent, self.passed(request, sent.too_long)?)?;
            }
        }
        Ok(())
    }

    /// Some of the pending requests, as text.
    fn open(&self) -> String {
        let taken = self
            .taken
            .iter()
            .flatten()
            .filter_map(|taken| taken.request.as_ref());
        let sent = self
            .sent
            .iter()
            .flatten()
            .filter_map(|sent| sent.request.as_ref());
        let open = taken
            .chain(sent)
            .filter(|request| matches!(request.test(), Ok(None)));
        let open: Vec<String> = open.take(6).map(|request| format!("{request:?}")).collect();
        format!("stuck {:?}, open {open:?}", self.ctx.stuck())
    }

    fn finish(&self, stream: &Stream) -> Verdict {
        if !self.setup.manual {
            return finish(stream, "in the end of a round");
        }
        let host = self.ctx.gpu().host();
        let mut idle = Ok(false);
        host.wait_until(Some(host.now() + time_limit()), &mut || {
            self.ctx.progress();
            idle = stream.is_idle();
            !matches!(idle, Ok(false))
        });
        ensure(idle?, || format!("{stream:?} is not idle within the limit"))
    }

    /// Compares a slot with what it should hold.
    pub(super) fn compare(&self, taken: &Taken, got: &[u8]) -> Verdict {
        let line = &self.lines[taken.line];
        let me = self.ctx.rank();
        let (from, n) = match (line.from, taken.done) {
            (Some(from), _) => (from, taken.k),
            (None, Some(done)) => {
                let peer = done.peer as usize;
                let come = line.come.get(peer).ok_or_else(|| format!("{done:?}"))?;
                (done.peer, *come)
            }
            (None, None) => return Err("a receive from any rank has no completion".into()),
        };
        let message = Message::draw(self.setup, from, me, line.number, n);
        let bytes = message.bytes(&self.ink.bytes);
        let what = || {
            format!(
                "message {n} from rank {from} under tag {} of {} bytes, into {} segments, {:?}",
                tag(line.number),
                message.len,
                taken.landing.len(),
                taken.handling
            )
        };
        if let Some(done) = taken.done {
            let want = (from, tag(line.number), bytes.len() as u64);
            ensure((done.peer, done.tag, done.len) == want, || {
                format!("{}: {done:?} instead of {want:?}", what())
            })?;
        }
        let mut want = image(&taken.landing, self.setup.slot(), &bytes);
        for (at, len) in taken.landing.iter().filter(|_| taken.too_long) {
            // The contents of these bytes are undefined.
            want[*at..][..*len].copy_from_slice(&got[*at..][..*len]);
        }
        if got == want {
            return Ok(());
        }
        let wrong = || (0..want.len()).filter(|at| got[*at] != want[*at]);
        let first = wrong().next().unwrap_or(0);
        let shown = first..want.len().min(first + 16);
        Err(format!(
            "{}: {} bytes of its slot are wrong, the first at {first}: {:02x?} instead of {:02x?}; \
             its segments {:?}; error of the context {:?}",
            what(),
            wrong().count(),
            &got[shown.clone()],
            &want[shown],
            taken.landing,
            self.ctx.error()
        )
        .into())
    }
}
