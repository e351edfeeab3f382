//! Stream operations of lanes of copies: lists of waits, stores and puts; a put becomes a kernel
//! launch.

use gdsync::rdma::{self, Descriptor};
use gdsync::{Status, Stream};

use super::lane::PutState;
use super::{Lane, Put};
use crate::error::{Error, Kind, Result};
use crate::kernels::{PUTS, Puts};
use crate::path::uncaptured;

/// Number of bytes from which a put has its own kernel launch.
const LARGE: u64 = 64 << 10;
const POST: &str = "post request";

/// An item of a list.
#[derive(Clone, Copy)]
pub(crate) enum Item {
    /// A put, in the place of a descriptor.
    Put(Put),
    /// A wait for a word.
    Wait,
    /// Another descriptor.
    Other,
}

impl Item {
    pub fn is_put(&self) -> bool {
        self.put().is_some()
    }

    fn put(&self) -> Option<Put> {
        match self {
            Item::Put(put) => Some(*put),
            Item::Wait | Item::Other => None,
        }
    }
}

/// Puts that one kernel executes.
struct Group {
    puts: [Option<Put>; PUTS],
    count: usize,
}

impl Lane {
    /// Enqueues a list, whose descriptors `items` describe. If it is refused before a kernel was
    /// launched, at most waits are enqueued; after a launch, the lane fails.
    pub fn post_on(
        &mut self,
        stream: &Stream,
        list: &[Descriptor<'_>],
        items: &[Item],
    ) -> Result<()> {
        let Some(last) = items.iter().filter_map(Item::put).next_back() else {
            return Ok(rdma::post_on(stream, &mut [], list)?);
        };
        self.check(POST)?;
        uncaptured(stream, POST)?;
        if !stream.gpu().is(&self.copier.gpu) {
            let gpu = &self.copier.gpu;
            let what = format!("{stream:?} does not belong to {gpu:?}; use a stream of this GPU");
            return Err(Error::new(POST, Kind::Gdsync(gdsync::Kind::Foreign), what));
        }
        stream.check_room(list.len() as u32)?;
        let mut behind = items.iter().skip_while(|item| !item.is_put());
        match behind.any(|item| matches!(item, Item::Wait)) {
            true => stream.hold_wait(|| self.enqueue(stream, list, items, last))?,
            false => self.enqueue(stream, list, items, last),
        }
    }

    fn enqueue(
        &mut self,
        stream: &Stream,
        list: &[Descriptor<'_>],
        items: &[Item],
        last: Put,
    ) -> Result<()> {
        let mut launched = false;
        let mut at = 0;
        while at < list.len() {
            let enqueued = match items[at].put() {
                None => {
                    let some = items[at..].iter().position(Item::is_put);
                    let end = some.map_or(list.len(), |some| at + some);
                    let enqueued = rdma::post_on(stream, &mut [], &list[at..end]);
                    at = end;
                    enqueued.map_err(Error::from)
                }
                Some(_) => {
                    let group = self.group(&items[at..]);
                    at += group.count;
                    let enqueued = self.launch(stream, &group, last);
                    launched |= enqueued.is_ok();
                    enqueued
                }
            };
            if let Err(e) = enqueued {
                if launched {
                    // The remaining operations are not enqueued.
                    self.fail(Status::LOCAL_QP_OPERATION);
                }
                return Err(e);
            }
        }
        for put in items.iter().filter_map(Item::put) {
            let slot = &mut self.slots[put.slot()];
            slot.state = PutState::Posted(last);
            slot.let_go();
        }
        Ok(())
    }

    /// The leading puts that one kernel can execute.
    fn group(&self, items: &[Item]) -> Group {
        let mut group = Group {
            puts: [None; PUTS],
            count: 0,
        };
        for put in items.iter().map_while(Item::put).take(PUTS) {
            let alone = self.slots[put.slot()].len >= LARGE;
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

    /// Launches one kernel; the kernel with the `last` put stores that all are done.
    fn launch(&self, stream: &Stream, group: &Group, last: Put) -> Result<()> {
        let kernels = self.copier.kernels.as_ref().ok_or_else(|| {
            let what = "the GPU runs no kernels; a stream needs them to send to a rank of its host; post \
                        the request from the CPU";
            Error::new(POST, Kind::Unsupported, what)
        })?;
        let mut params = Puts {
            failed: self.wqes.failed().addr().0,
            done: 0,
            serial: 0,
            count: group.count as u32,
            words: 0,
            wqe: [0; PUTS],
        };
        let mut bytes = 0;
        for (i, put) in group.puts.iter().flatten().enumerate() {
            let slot = &self.slots[put.slot()];
            bytes += slot.len;
            params.wqe[i] = self.wqes.addr(put.slot());
            params.words |= u32::from(slot.words) << i;
            if *put == last {
                params.done = self.wqes.done(put.slot()).addr().0;
                params.serial = put.serial();
            }
        }
        // SAFETY: the WQEs belong to the lane, which the context keeps. The memory that they name
        // is in regions that were alive when they were prepared or, if a kernel of the stream
        // patches the place, in the memory that a receive has named. Memory that is returned stays
        // accessible until the operations enqueued before have run.
        unsafe { kernels.put(stream, &params, bytes) }
    }
}
