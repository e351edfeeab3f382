//! From decided descriptors to submissions: memory operations or programs.

use crate::error::{Error, Kind, Result};
use crate::gpu::{Dims, Stream};
use crate::kernels;
use crate::memop::completion::Entry;
use crate::memop::cost;
use crate::memop::post::Ring;
use crate::memop::program::Program;
use crate::memop::{Batch, Condition, DevicePtr, Op, completion, legal, post};

/// A descriptor whose effect on queue state is decided.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    Op(Op),
    Post(Ring),
    PostReceive {
        record: DevicePtr,
        value: u32,
        edge: Option<u32>,
    },
    Wait(Entry),
    /// A word that tells others how far the stream has come.
    Mark {
        at: DevicePtr,
        value: u32,
    },
}

impl Item {
    /// Takes over a ring for the same queue that follows at once: one doorbell, the later one,
    /// hands over what both were for. Returns whether it did.
    pub fn absorb(&mut self, next: &Item) -> bool {
        match (self, next) {
            (Item::Post(ring), Item::Post(later)) if ring.record == later.record => {
                let edge = ring.edge;
                *ring = Ring { edge, ..*later };
                true
            }
            _ => false,
        }
    }
}

impl Item {
    /// Memory operations that it becomes, or at most one more.
    pub fn operations(&self) -> usize {
        match self {
            Item::Op(op) => cost::operations(op),
            Item::Post(ring) => 2 + usize::from(ring.edge.is_some()),
            Item::PostReceive { edge, .. } => 1 + usize::from(edge.is_some()),
            Item::Wait(_) => 2,
            Item::Mark { .. } => 1,
        }
    }
}

/// A wait until a 32-bit word has a value.
pub(super) fn equal(at: DevicePtr, value: u32) -> Op {
    Op::Wait32 {
        at,
        value,
        mask: u32::MAX,
        condition: Condition::Eq,
        flush: false,
    }
}

/// How much of a list reached the stream before something failed.
pub(super) enum Sent {
    All,
    Part(Error),
}

/// Memory that is kept from call to call.
#[derive(Default)]
pub(super) struct Buffers {
    batch: Batch,
    lowered: Batch,
    program: Program,
}

/// Hands `items` to the stream, as memory operations or, where they can be, as programs.
pub(super) fn lower(
    stream: &Stream,
    items: &[Item],
    buffers: &mut Buffers,
    kernel: bool,
) -> Result<Sent> {
    let mut out = Output {
        stream,
        batch: &mut buffers.batch,
        lowered: &mut buffers.lowered,
        program: &mut buffers.program,
        submitted: false,
    };
    out.batch.clear();
    out.program.clear();
    out.check(items, kernel)?;
    let result = items
        .iter()
        .try_for_each(|item| match kernel {
            true => out.by_kernel(item),
            false => out.by_memops(item),
        })
        .and_then(|()| out.flush_all());
    match result {
        Ok(()) => Ok(Sent::All),
        Err(e) if out.submitted => Ok(Sent::Part(e)),
        Err(e) => Err(e),
    }
}

/// Collects operations and hands them to the stream when they are complete or must be.
struct Output<'a> {
    stream: &'a Stream,
    batch: &'a mut Batch,
    lowered: &'a mut Batch,
    program: &'a mut Program,
    submitted: bool,
}

impl Output<'_> {
    /// Refuses what the runtime cannot do, before anything is handed over.
    fn check(&mut self, items: &[Item], kernel: bool) -> Result<()> {
        let caps = *self.stream.gpu().caps();
        if (caps.flush || caps.ordered_writes) && caps.memops64 && caps.nor {
            return Ok(());
        }
        for item in items {
            self.batch.clear();
            self.program.clear();
            let mut expressed = false;
            match item {
                Item::Op(op) => {
                    self.batch.push(*op);
                    expressed = kernel && self.program.push_batch(self.batch);
                }
                Item::Wait(entry) => {
                    if entry.flush {
                        self.batch.push(Op::Flush);
                    }
                    let done = kernel || completion::push(self.batch, entry, &caps).is_ok();
                    if !done && !caps.kernels {
                        let what = format!("a completion wait on {:?}", self.stream.gpu());
                        return Err(Error::new("lower to a kernel", Kind::Unsupported, what));
                    }
                }
                Item::Post(_) | Item::PostReceive { .. } | Item::Mark { .. } => {}
            }
            if !expressed {
                self.lowered.clear();
                legal::rewrite(self.batch, &caps, self.lowered)?;
            }
        }
        self.batch.clear();
        self.program.clear();
        Ok(())
    }

    fn by_memops(&mut self, item: &Item) -> Result<()> {
        match item {
            Item::Op(op) => self.batch.push(*op),
            Item::Post(ring) => post::push(self.batch, ring),
            Item::PostReceive {
                record,
                value,
                edge,
            } => {
                if let Some(edge) = edge {
                    self.batch.push(equal(*record, *edge));
                }
                self.batch.push(Op::Write32 {
                    at: *record,
                    value: *value,
                    fenced: true,
                });
            }
            Item::Wait(entry) => {
                if completion::push(self.batch, entry, self.stream.gpu().caps()).is_err() {
                    self.flush_batch()?;
                    self.program.push_entry(entry.word, entry.owner);
                    self.flush_program()?;
                    if entry.flush {
                        self.batch.push(Op::Flush);
                    }
                }
            }
            Item::Mark { at, value } => self.batch.push(Op::Write32 {
                at: *at,
                value: *value,
                fenced: true,
            }),
        }
        Ok(())
    }

    fn by_kernel(&mut self, item: &Item) -> Result<()> {
        if !self.program.has_room(8) {
            self.flush_program()?;
        }
        match item {
            Item::Op(op) => {
                let mut op = *op;
                if self.stream.gpu().caps().ordered_writes {
                    if op == Op::Flush {
                        return Ok(());
                    }
                    op.set_flush(false);
                }
                self.batch.clear();
                self.batch.push(op);
                if self.program.push_batch(self.batch) {
                    self.batch.clear();
                } else {
                    // Flushes, and whatever else only the front end can do.
                    self.flush_program()?;
                    self.flush_batch()?;
                }
            }
            Item::Post(ring) => self.program.push_ring(ring),
            Item::PostReceive {
                record,
                value,
                edge,
            } => {
                if let Some(edge) = edge {
                    self.program.push_equal(*record, *edge);
                }
                self.program.push_mark(*record, *value);
            }
            Item::Wait(entry) => {
                self.program.push_entry(entry.word, entry.owner);
                if entry.flush && !self.stream.gpu().caps().ordered_writes {
                    self.flush_program()?;
                    self.batch.push(Op::Flush);
                    self.flush_batch()?;
                }
            }
            Item::Mark { at, value } => self.program.push_mark(*at, *value),
        }
        Ok(())
    }

    fn flush_all(&mut self) -> Result<()> {
        self.flush_program()?;
        self.flush_batch()
    }

    fn flush_batch(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let gpu = self.stream.gpu();
        gpu.submit(self.stream, self.batch, self.lowered, &mut self.submitted)?;
        self.batch.clear();
        Ok(())
    }

    fn flush_program(&mut self) -> Result<()> {
        if self.program.ops().is_empty() {
            return Ok(());
        }
        self.stream
            .gpu()
            .tracer()
            .program(self.stream.id(), self.program);
        let (entry, bytes) = kernels::Entry::of_program(self.program);
        self.stream.launch_own(entry, Dims::linear(1, 32), bytes)?;
        self.submitted = true;
        self.program.clear();
        Ok(())
    }
}
