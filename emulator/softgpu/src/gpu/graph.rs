//! Graphs: operations that a stream recorded once and that streams run any number of times.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Core, Stream};
use crate::Error;
use crate::backing::Backing;
use crate::event::Mark;
use crate::op::{Op, Recorded};
use crate::queue::{Ring, Submission};

/// The operations that a stream recorded during a capture, for any stream of the same GPU. Clones
/// share it.
///
/// It keeps the memory that its memory operations, copies and fills access, even if the handles of
/// the memory are dropped. Memory that only the arguments of its kernels name must live as long as
/// launches of the graph run. A graph that is dropped while it runs still runs to its end.
#[derive(Clone)]
pub struct Graph(Arc<Inner>);

struct Inner {
    core: Arc<Core>,
    recorded: Arc<Recorded>,
    /// The end of the latest launch.
    last: Mutex<Option<Mark>>,
}

/// The operations of a capture so far.
#[derive(Debug, Default)]
pub(crate) struct Capture(Recorded);

impl Capture {
    /// Records the items of `fill`, at most `items`, all or none; `fill` also gets the list of the
    /// memory that the graph keeps.
    pub(crate) fn record(
        &mut self,
        stream: u64,
        items: usize,
        fill: impl FnOnce(&mut Submission<'_, Op>, &mut Vec<Arc<Backing>>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // Enqueuers write items into a ring; these go through a ring of their own.
        let (mut producer, mut consumer) = Ring::channel(1, items);
        if let Some(mut submission) = producer.begin(items) {
            fill(&mut submission, &mut self.0.memory)?;
            submission.publish();
        }
        let ops: Vec<Op> = std::iter::from_fn(|| consumer.pop()).collect();
        if !ops.iter().all(Op::can_be_recorded) {
            return Err(Error::Capturing { stream });
        }
        self.0.ops.extend(ops);
        Ok(())
    }
}

impl Graph {
    pub(crate) fn new(core: Arc<Core>, capture: Capture) -> Graph {
        Graph(Arc::new(Inner {
            core,
            recorded: Arc::new(capture.0),
            last: Mutex::default(),
        }))
    }

    /// Enqueues the operations of the graph on `stream`, in order, as one submission. Waits while
    /// the stream is full. The launch starts when the latest launch of this graph has ended, on
    /// whichever stream, as in CUDA. A launch of an empty graph is no submission.
    ///
    /// # Errors
    /// The graph belongs to another GPU, the stream is capturing, or the GPU has stopped.
    pub fn launch(&self, stream: &Stream) -> Result<(), Error> {
        stream.launch_graph(self)
    }

    /// Whether it has no operations.
    pub fn is_empty(&self) -> bool {
        self.0.recorded.ops.is_empty()
    }

    pub(crate) fn is_of(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.0.core, core)
    }

    pub(crate) fn recorded(&self) -> Arc<Recorded> {
        Arc::clone(&self.0.recorded)
    }

    /// Stores the end of a launch, and returns that of the launch before.
    pub(crate) fn set_last(&self, mark: Mark) -> Option<Mark> {
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.replace(mark)
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("operations", &self.0.recorded.ops.len())
            .finish()
    }
}
