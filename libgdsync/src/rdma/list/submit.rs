//! Submits a list of operations to a stream: as memory operations, as programs, or alternately.

use crate::error::{Error, Kind, Result};
use crate::gpu::{Dims, Stream};
use crate::kernels;
use crate::memop::program::Program;
use crate::memop::{Batch, Caps, Needs, Op, Role, legal};

/// The program space that the largest operation needs.
pub(super) const ROOM: usize = 8;

/// The part of a list that reached the stream before a failure.
pub(super) enum Sent {
    All,
    Part(Error),
}

/// Memory that is kept from call to call.
#[derive(Default)]
pub(super) struct Buffers {
    batch: Batch,
    rewritten: Batch,
    program: Program,
}

/// Submits `list` to the stream, as memory operations or, where possible, as programs.
pub(super) fn submit(
    stream: &Stream,
    list: &mut Batch,
    buffers: &mut Buffers,
    kernel: bool,
) -> Result<Sent> {
    let mut out = Output {
        stream,
        batch: &mut buffers.batch,
        rewritten: &mut buffers.rewritten,
        program: &mut buffers.program,
        dry: false,
        submitted: false,
    };
    let gpu = stream.gpu();
    let result = if !kernel && !may_need_kernel(list, gpu.caps()) {
        gpu.submit(stream, list, out.rewritten, &mut out.submitted)
    } else {
        // An operation that the runtime lacks is refused before any submission.
        let caps = gpu.caps();
        let all = caps.memops64 && caps.nor && caps.cyclic;
        out.dry = !((caps.flush || caps.ordered_writes) && all);
        if out.dry {
            out.run(list, kernel)?;
            out.dry = false;
        }
        out.run(list, kernel)
    };
    match result {
        Ok(()) => Ok(Sent::All),
        Err(e) if out.submitted => Ok(Sent::Part(e)),
        Err(e) => Err(e),
    }
}

/// Whether the list may have waits that compare as the runtime does not.
fn compares(list: &Batch, caps: &Caps) -> bool {
    !caps.cyclic && list.needs().has(Needs::CYCLIC)
}

/// Whether only a kernel can execute operation `i`, which may be among memory operations.
pub(super) fn is_by_kernel(list: &Batch, i: usize, caps: &Caps) -> bool {
    matches!(list.role(i), Role::EntryByKernel(_)) || legal::is_by_kernel(&list.ops()[i], caps)
}

/// Whether the list may have an operation that only a kernel can execute.
pub(super) fn may_need_kernel(list: &Batch, caps: &Caps) -> bool {
    list.needs().has(Needs::KERNEL) || compares(list, caps)
}

/// Collects operations and submits them when they are complete or the space is used up.
struct Output<'a> {
    stream: &'a Stream,
    batch: &'a mut Batch,
    rewritten: &'a mut Batch,
    program: &'a mut Program,
    /// Submits nothing: only checks that all operations could be submitted.
    dry: bool,
    submitted: bool,
}

impl Output<'_> {
    fn run(&mut self, list: &Batch, kernel: bool) -> Result<()> {
        self.batch.clear();
        self.program.clear();
        let mut i = 0;
        while i < list.len() {
            match kernel {
                true => i += self.by_kernel(list, i)?,
                false => {
                    self.by_memops(list, i)?;
                    i += 1;
                }
            }
        }
        self.submit_program()?;
        self.submit_batch()
    }

    /// Appends operation `i`; a wait that no memory operation can express goes by a kernel, which
    /// waits of that kind share if they follow each other.
    fn by_memops(&mut self, list: &Batch, i: usize) -> Result<()> {
        let (op, role) = (list.ops()[i], list.role(i));
        if !is_by_kernel(list, i, self.stream.gpu().caps()) {
            self.submit_program()?;
            self.batch.add(op, role, list.is_glued(i));
            return Ok(());
        }
        self.submit_batch()?;
        if !self.program.has_room(ROOM) {
            self.submit_program()?;
        }
        self.program.take(list, i);
        if op.flushes() {
            self.submit_program()?;
            self.batch.push(Op::Flush);
        }
        Ok(())
    }

    /// Appends operation `i` and the operations that the program combines with it; returns their
    /// number.
    fn by_kernel(&mut self, list: &Batch, i: usize) -> Result<usize> {
        let op = list.ops()[i];
        if !self.program.has_room(ROOM) {
            self.submit_program()?;
        }
        let taken = self.program.take(list, i);
        if taken == 0 {
            // Flushes, and other operations that only the front end supports.
            self.batch.push(op);
        } else if op.flushes() {
            self.batch.push(Op::Flush);
        }
        if !self.batch.is_empty() {
            self.submit_program()?;
            self.submit_batch()?;
        }
        Ok(taken.max(1))
    }

    fn submit_batch(&mut self) -> Result<()> {
        let gpu = self.stream.gpu();
        if self.dry {
            legal::rewrite(self.batch, gpu.caps(), self.rewritten)?;
        } else if !self.batch.is_empty() {
            gpu.submit(self.stream, self.batch, self.rewritten, &mut self.submitted)?;
        }
        self.batch.clear();
        Ok(())
    }

    fn submit_program(&mut self) -> Result<()> {
        if self.program.ops().is_empty() {
            return Ok(());
        }
        let gpu = self.stream.gpu();
        if !self.dry {
            gpu.tracer().program(self.stream.id(), self.program);
            let (entry, bytes) = kernels::Entry::of_program(self.program);
            self.stream.launch_own(entry, Dims::linear(1, 32), bytes)?;
            self.submitted = true;
        } else if !gpu.caps().kernels {
            let what = format!(
                "{gpu:?} runs no kernels, which a list needs that waits for a completion entry or \
                 for a cyclic comparison; wait with EQ, or for a count that never wraps (wait_count)"
            );
            return Err(Error::new("lower to a kernel", Kind::Unsupported, what));
        }
        self.program.clear();
        Ok(())
    }
}
