//! What streams do for a rank's messages to itself: lists of waits, stores and puts, of which puts
//! become launches.

use gdsync::gpu::Word64;
use gdsync::rdma::{self, Descriptor};
use gdsync::{Status, Stream};

use super::lane::Stage;
use super::{Lane, Put};
use crate::error::{Error, Kind, Result};
use crate::kernels::{PUTS, Puts};

/// Bytes of a put that has blocks of its own.
const LARGE: u64 = 64 << 10;
const POST: &str = "post put";

/// Puts that one kernel carries out.
struct Group {
    puts: [Option<Put>; PUTS],
    count: usize,
}

impl Lane {
    /// Enqueues a list; `copies` are puts, each in the place of an operation. All of it, or nothing
    /// but waits.
    pub fn post_on(
        &mut self,
        stream: &Stream,
        list: &[Descriptor<'_>],
        copies: &[Option<Put>],
    ) -> Result<()> {
        let Some(last) = copies.iter().flatten().next_back().copied() else {
            return Ok(rdma::post_on(stream, &mut [], list)?);
        };
        if let Some(status) = self.error() {
            return Err(Error::new(
                POST,
                Kind::PeerFailed(status),
                "the lane failed",
            ));
        }
        stream.check_room(list.len() as u32)?;
        let mut launched = false;
        let mut at = 0;
        while at < list.len() {
            let enqueued = match copies[at] {
                None => {
                    let some = copies[at..].iter().position(Option::is_some);
                    let end = some.map_or(list.len(), |some| at + some);
                    let enqueued = rdma::post_on(stream, &mut [], &list[at..end]);
                    at = end;
                    enqueued.map_err(Error::from)
                }
                Some(_) => {
                    let group = self.group(&copies[at..]);
                    at += group.count;
                    let enqueued = self.launch(stream, &group, last, awaited(&list[at..]));
                    launched |= enqueued.is_ok();
                    enqueued
                }
            };
            if let Err(e) = enqueued {
                if launched {
                    // The rest will not come.
                    self.fail(Status::LOCAL_QP_OPERATION);
                }
                return Err(e);
            }
        }
        for put in copies.iter().flatten() {
            let slot = &mut self.slots[put.record()];
            slot.stage = Stage::Posted(last);
            slot.let_go();
        }
        Ok(())
    }

    /// The puts from the first on that one kernel can carry out.
    fn group(&self, copies: &[Option<Put>]) -> Group {
        let mut group = Group {
            puts: [None; PUTS],
            count: 0,
        };
        for put in copies.iter().map_while(|put| *put).take(PUTS) {
            let alone = self.slots[put.record()].len >= LARGE;
            if group.count > 0 && alone {
                break;
            }
            group.puts[group.count] = Some(put);
            group.count += 1;
            if alone {
                break;
            }
        }
        group
    }

    /// Launches a kernel; the one with the `last` put says that all are done. A stream that goes on
    /// to wait is counted among those that do, before there is anything that could not be undone.
    fn launch(
        &self,
        stream: &Stream,
        group: &Group,
        last: Put,
        awaited: Option<(&Word64, u64)>,
    ) -> Result<()> {
        let kernels = self.local.kernels.as_ref().ok_or_else(|| {
            let what = "the GPU runs no kernels: a stream needs them to send to its own rank";
            Error::new(POST, Kind::Unsupported, what)
        })?;
        let mut params = Puts {
            failed: self.records.failed().addr().0,
            done: 0,
            serial: 0,
            count: group.count as u32,
            words: 0,
            record: [0; PUTS],
        };
        let mut bytes = 0;
        for (i, put) in group.puts.iter().flatten().enumerate() {
            let slot = &self.slots[put.record()];
            bytes += slot.len;
            params.record[i] = self.records.addr(put.record());
            params.words |= u32::from(slot.words) << i;
            if *put == last {
                params.done = self.records.done(put.record()).addr().0;
                params.serial = put.serial();
            }
        }
        // SAFETY: the records are the lane's, which the context keeps; what they name lies in
        // regions that were alive when they were prepared or, where a kernel of the stream patches
        // the place, is told of by a receive, and memory that is given back stays accessible until
        // what was enqueued before has run.
        unsafe { kernels.put(stream, &params, bytes, awaited) }
    }
}

/// What the next wait of a list waits for.
fn awaited<'a>(list: &[Descriptor<'a>]) -> Option<(&'a Word64, u64)> {
    list.iter().find_map(|item| match item {
        Descriptor::WaitValue64 { word, value, .. } => Some((*word, *value)),
        _ => None,
    })
}
