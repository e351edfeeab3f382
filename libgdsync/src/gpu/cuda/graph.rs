//! CUDA graphs.

use std::sync::Arc;

use gds_step::Mutex;
use gdsync_sys::cuda::types::{CUgraph, CUgraphExec, CUgraphNode, CUstream};
use gdsync_sys::cuda::{Cuda, CudaResult, consts};

use super::context::Context;
use crate::error::{Error, Kind, Result};
use crate::gpu::runtime::GraphHandle;

/// A graph that streams can launch.
pub(super) struct CudaGraph {
    context: Arc<Context>,
    /// Locked during every call: the driver does not synchronise calls with one graph.
    exec: Mutex<CUgraphExec>,
    launch: unsafe extern "C" fn(CUgraphExec, CUstream) -> CudaResult,
    submissions: Option<u32>,
}

// SAFETY: a handle of the driver, which any thread may use, one at a time.
unsafe impl Send for CudaGraph {}
// SAFETY: as above.
unsafe impl Sync for CudaGraph {}

impl GraphHandle for CudaGraph {
    fn submissions(&self) -> Option<u32> {
        self.submissions
    }
}

/// The number of submissions that a launch takes, measured with driver 580 on an H100: one if all
/// nodes are kernels, otherwise one for each node. `None`: the driver lacks the calls that list nodes.
fn submissions(cuda: &Cuda, graph: CUgraph) -> Option<u32> {
    let (get, kind) = (cuda.cuGraphGetNodes?, cuda.cuGraphNodeGetType?);
    let mut count = 0;
    // SAFETY: a live graph; without a list only the number is stored.
    let asked = unsafe { get(graph, std::ptr::null_mut(), &mut count) };
    let mut nodes = vec![std::ptr::null_mut(); count];
    // SAFETY: a list of `count` nodes.
    let listed = unsafe { get(graph, nodes.as_mut_ptr(), &mut count) };
    let is_kernel = |node: &CUgraphNode| {
        let mut found = u32::MAX;
        // SAFETY: a node of the graph.
        let _ = unsafe { kind(*node, &mut found) };
        found == consts::CU_GRAPH_NODE_TYPE_KERNEL
    };
    let known = asked.is_success() && (listed.is_success() || count == 0);
    known.then(|| match nodes.iter().all(is_kernel) {
        true => 1,
        false => u32::try_from(count).unwrap_or(u32::MAX),
    })
}

/// A function of the driver's table that graphs need.
fn function<F: Copy>(f: Option<F>, operation: &'static str, name: &str) -> Result<F> {
    f.ok_or_else(|| {
        let what = format!("the driver has no {name}; update the driver");
        Error::new(operation, Kind::Unsupported, what)
    })
}

/// Starts a capture of `stream`. Its mode allows every call of every thread: the library makes no
/// call that would become part of the capture, and the thread that ends the capture may be another.
pub(super) fn begin(context: &Context, stream: CUstream) -> Result<()> {
    const OPERATION: &str = "begin capture";
    let cuda = context.cuda;
    let begin = function(
        cuda.cuStreamBeginCapture_v2,
        OPERATION,
        "cuStreamBeginCapture",
    )?;
    // The functions that come later are missed now, before work is recorded for nothing.
    function(cuda.cuStreamEndCapture, OPERATION, "cuStreamEndCapture")?;
    function(
        cuda.cuGraphInstantiateWithFlags,
        OPERATION,
        "cuGraphInstantiateWithFlags",
    )?;
    function(cuda.cuGraphLaunch, OPERATION, "cuGraphLaunch")?;
    let _app = context.enter_app()?;
    // SAFETY: a live stream of the current context.
    let began = unsafe { begin(stream, consts::CU_STREAM_CAPTURE_MODE_RELAXED) };
    context.check(began, OPERATION, "cuStreamBeginCapture")
}

/// Ends the capture of `stream`, and prepares the graph for launches.
pub(super) fn end(context: &Arc<Context>, stream: CUstream) -> Result<CudaGraph> {
    const OPERATION: &str = "end capture";
    let cuda = context.cuda;
    let end = function(cuda.cuStreamEndCapture, OPERATION, "cuStreamEndCapture")?;
    let instantiate = cuda.cuGraphInstantiateWithFlags;
    let instantiate = function(instantiate, OPERATION, "cuGraphInstantiateWithFlags")?;
    let launch = function(cuda.cuGraphLaunch, OPERATION, "cuGraphLaunch")?;
    let _app = context.enter_app()?;
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: a live stream of the current context.
    let ended = unsafe { end(stream, &mut graph) };
    context.check(ended, OPERATION, "cuStreamEndCapture")?;
    let submissions = submissions(cuda, graph);
    // SAFETY: the graph of the capture.
    let made = unsafe { instantiate(&mut exec, graph, 0) };
    if let Some(destroy) = cuda.cuGraphDestroy {
        // SAFETY: the graph of the capture, which nothing uses any more. What was made of it is
        // independent.
        let _ = unsafe { destroy(graph) };
    }
    context.check(made, OPERATION, "cuGraphInstantiate")?;
    let graph = CudaGraph {
        context: Arc::clone(context),
        exec: Mutex::new(exec),
        launch,
        submissions,
    };
    // Without this call the first launch prepares the graph.
    if let Some(upload) = cuda.cuGraphUpload {
        // SAFETY: live objects of the current context.
        let uploaded = unsafe { upload(exec, stream) };
        context.check(uploaded, OPERATION, "cuGraphUpload")?;
    }
    Ok(graph)
}

impl CudaGraph {
    pub(super) fn launch(&self, stream: CUstream) -> Result<()> {
        let _app = self.context.enter_to_enqueue()?;
        let exec = self.exec.lock();
        // SAFETY: a live graph and a live stream. The caller has checked that they are of one
        // context; the memory of the graph is kept by the library, or by the promise of a launch.
        let launched = unsafe { (self.launch)(*exec, stream) };
        self.context
            .check(launched, "launch graph", "cuGraphLaunch")
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if let Some(destroy) = self.context.cuda.cuGraphExecDestroy
            && !self.context.is_lost()
            && let Ok(_app) = self.context.enter_to_ask()
        {
            // SAFETY: the library's graph; the driver finishes the launches that run.
            let _ = unsafe { destroy(*self.exec.lock()) };
        }
    }
}
